"""Shards: damaged ones are refused; remote ones are fetched through faults, whole or not at all."""

import json
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detalbert import integrity
from detalbert.corpus import reader
from detalbert.corpus.reader import Corpus, Shards
from detalbert.errors import Unavailable, UserError
from detalbert.integrity import seal
from detalbert.reading import storage
from detalbert.reading.folders import find_files
from lm.order import WindowOrder
from lm.windows import LmWindows
from pretrain.examples import ExampleOrder, ExampleRows
from tests.corpus.documents import documents_config, write_lines
from tests.corpus.documents import write as write_documents
from tests.fakes.damage import flip
from tests.fakes.s3 import Faults, upload
from tests.fakes.text import contexts, read_examples, text_config, write


def some(folder: Path, count: int = 30, **more: Any) -> Path:
    """Write shards of so many paragraphs."""
    (folder / "a.txt").write_text("\n".join(contexts(count)))
    return write(folder / "a.txt", folder, **more)


def remove(path: Path) -> None:
    path.unlink()


def flip_last_bit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def change_number(path: Path) -> None:
    path.write_bytes(re.sub(rb'("documents": )\d', rb"\g<1>0", path.read_bytes()))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def change_format(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 99'))


def rename_shard(path: Path, name: str) -> None:
    """Name the first shard otherwise in an index, with a sum that is right."""
    text = path.read_text().replace('"train-00000.bin', f'"{name}')
    path.write_text(json.dumps(seal(json.loads(text))))


def remove_sum(path: Path) -> None:
    index = json.loads(path.read_text())
    del index["sha256"]
    path.write_text(json.dumps(index))


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "missing": ("train-00000.bin", remove),
    "one bit": ("train-00000.bin", flip_last_bit),
    "number": ("index.json", change_number),
    "outside": ("index.json", partial(rename_shard, name="/dev/zero")),
    "another's": ("index.json", partial(rename_shard, name="notes.txt")),
    "folder": ("index.json", partial(rename_shard, name="..")),
    "index": ("index.json", cut_short),
    "without a sum": ("index.json", remove_sum),
    "format": ("index.json", change_format),
    "lengths": ("train-lengths.npy", flip_last_bit),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shards_are_refused(damage: str, tmp_path: Path) -> None:
    folder = some(tmp_path, validation_fraction=0.5)
    name, damage_file = DAMAGE[damage]
    damage_file(folder / name)

    with pytest.raises(UserError, match=str(folder)) as error:
        Corpus(str(folder), "train", text_config("generated", tmp_path))

    problem = str(error.value)
    assert "copy it there again, or repeat" in problem or "its index.json is damaged" in problem


def test_shards_that_cannot_be_written_to_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = some(tmp_path)
    touch = Path.touch

    def touch_elsewhere(path: Path) -> None:
        """Fail for files of the folder, as if it were on a read-only disk."""
        touch(tmp_path / "no such folder" / path.name if path.parent == folder else path)

    def fail(path: Path) -> str:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr(Path, "touch", touch_elsewhere)
    Corpus(str(folder), "train", text_config("generated", tmp_path))
    monkeypatch.setattr(integrity, "checksum", fail)
    Corpus(str(folder), "validation", text_config("generated", tmp_path))


# Room for two or three shards: they are evicted.
SMALL_CACHE = {"cache_gib": 0.00003, "shuffle_shards": 2}


def example_rows(shards: Any, folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """Yield an epoch of packed rows of examples."""
    examples = read_examples(shards, text_config("generated", folder, **SMALL_CACHE))
    order = ExampleOrder(examples, 8, 1, seed=1, group=2)
    rows = ExampleRows(examples, 512, order)
    for step in range(len(order) // 8):
        yield from rows[order.share(step, 0)]


def windows(shards: Any, folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """Yield an epoch of a language model's windows."""
    config = documents_config("generated", folder, **SMALL_CACHE)
    windows = LmWindows(Shards(str(shards), "train", config), 64)
    order = WindowOrder(windows.counts, 4, seed=1, group=2)
    windows.shards.prefetch(order.shards_to_prefetch(0))
    assert windows.average_bytes()[0] > 1
    for step in range(len(order) // 4):
        for place in order.step(step):
            tokens, pieces = windows[place]
            yield {"input_ids": tokens.numpy(), "pieces": pieces.numpy(), "windows": place[None]}


@pytest.mark.parametrize("kind", ["examples", "windows"])
def test_streaming_with_faults_loses_and_repeats_nothing(
    kind: str, s3: tuple[Any, Faults], tmp_path: Path
) -> None:
    client, faults = s3
    if kind == "examples":
        folder = some(tmp_path, 500, shard_mib=0.01)
        stream = example_rows
    else:
        path = write_lines(tmp_path / "a.jsonl", contexts(250))
        folder = write_documents(path, tmp_path, shard_mib=0.005)
        stream = windows
    shards = len(list(folder.glob("train-*.bin")))
    assert shards > 4
    upload(client, folder)
    faults.kinds = ["fine", "slow", "500", "truncated"]

    local_rows = list(stream(folder, tmp_path))
    remote_rows = list(stream("s3://bucket/shards", tmp_path))

    assert sum(faults.done.values()) > 3
    numbers = []
    for local, remote in zip(local_rows, remote_rows, strict=True):
        for name, column in remote.items():
            assert np.array_equal(local[name], column), name
        numbers += [tuple(np.atleast_1d(number)) for number in remote["windows"]]
    assert len(set(numbers)) == len(numbers) > 20
    assert 0 < len(list((tmp_path / "cache").glob("fetched-*/*.bin"))) < shards


def test_a_damaged_copy_is_fetched_again(
    s3: tuple[Any, Faults], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = s3
    upload(client, some(tmp_path))
    config = text_config("generated", tmp_path)
    tokens, _ = Corpus("s3://bucket/shards", "train", config).example(0)
    (copy,) = (tmp_path / "cache").glob("fetched-*/train-00000.bin")
    flip(copy, random.Random(0), bits=50)

    corpus = Corpus("s3://bucket/shards", "train", config)

    tokens_again, _ = corpus.example(0)
    assert np.array_equal(tokens_again, tokens)
    assert corpus.fetch(0) == copy
    lines = [record.getMessage() for record in caplog.records if record.name == reader.__name__]
    assert lines == [f"{copy}: not as it was written; fetching it again"]


def test_what_cannot_be_read_is_one_line(
    s3: tuple[Any, Faults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, faults = s3
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)
    config = text_config("generated", tmp_path)
    with pytest.raises(UserError, match="no index.json"):
        Corpus("s3://bucket/nothing", "train", config)
    with pytest.raises(UserError, match="key: no file of data below s3://bucket/nothing"):
        find_files("s3://bucket/nothing", "key")
    with pytest.raises(UserError, match="/nothing: cannot read it: No such file"):
        storage.read_all("/nothing")

    # A shard that is as long as it was, but another.
    folder = some(tmp_path)
    upload(client, folder)
    index = json.loads((folder / "index.json").read_text())
    name = index["splits"]["train"]["shards"][0]["name"]
    content = bytearray((folder / name).read_bytes())
    content[10] ^= 1
    client.put_object(Bucket="bucket", Key=f"shards/{name}", Body=bytes(content))
    corpus = Corpus("s3://bucket/shards", "train", config)
    with pytest.raises(UserError, match="not the bytes that were written"):
        corpus.example(0)
    faults.kinds = ["500"]
    with pytest.raises(Unavailable, match=f"not read after {storage.TRIES} tries: "):
        corpus.example(0)
    assert {path.suffix for path in (tmp_path / "cache").glob("fetched-*/*")} == {".lock"}


def test_a_shard_that_is_evicted_meanwhile_is_fetched_again(
    s3: tuple[Any, Faults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread removes it before it is mapped, or before its size is read."""
    client, _ = s3
    upload(client, some(tmp_path))
    corpus = Corpus("s3://bucket/shards", "train", text_config("generated", tmp_path))
    fetch = corpus.fetch
    glob = Path.glob
    removed: list[Path] = []

    def fetch_and_remove(shard: int) -> Path:
        path = fetch(shard)
        if path not in removed:
            removed.append(path)
            path.unlink()
        return path

    def list_one_that_is_gone(folder: Path, pattern: str) -> list[Path]:
        return [*glob(folder, pattern), folder / "gone.bin"]

    monkeypatch.setattr(corpus, "fetch", fetch_and_remove)
    monkeypatch.setattr(Path, "glob", list_one_that_is_gone)

    tokens, _ = corpus.example(0)

    assert len(tokens) > 0
    assert removed[0].exists()
