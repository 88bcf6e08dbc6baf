"""Shards: damaged ones are refused; remote ones are fetched through faults, whole or not at all."""

import json
import random
import re
from collections.abc import Callable, Iterator
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
from tests.fakes.s3 import upload
from tests.fakes.text import contexts, read_examples, text_config, write


def some(folder: Path, count: int = 30, **more: Any) -> Path:
    """Shards of so many paragraphs."""
    (folder / "a.txt").write_text("\n".join(contexts(count)))
    return write(folder / "a.txt", folder, **more)


def change_index(content: bytes, old: str, new: str) -> bytes:
    return json.dumps(seal(json.loads(content.decode().replace(old, new)))).encode()


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "missing": ("train-00000.bin", lambda content: None),
    "one bit": ("train-00000.bin", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
    "number": ("index.json", lambda content: re.sub(rb'("documents": )\d', rb"\g<1>0", content)),
    "outside": ("index.json", lambda c: change_index(c, '"train-00000.bin', '"/dev/zero')),
    "another's": ("index.json", lambda c: change_index(c, '"train-00000.bin', '"notes.txt')),
    "folder": ("index.json", lambda c: change_index(c, '"train-00000.bin', '"..')),
    "index": ("index.json", lambda content: content[:50]),
    "format": ("index.json", lambda content: content.replace(b'"format": 1', b'"format": 99')),
    "lengths": ("train-lengths.npy", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shards_are_refused(damage: str, tmp_path: Path) -> None:
    folder = some(tmp_path, validation_fraction=0.5)
    name, change = DAMAGE[damage]
    changed = change((folder / name).read_bytes())
    (folder / name).unlink() if changed is None else (folder / name).write_bytes(changed)
    with pytest.raises(UserError, match=str(folder)) as error:
        Corpus(str(folder), "train", text_config("generated", tmp_path))
    said = "copy it there again, or repeat", "its index.json is damaged"
    assert any(part in str(error.value) for part in said)


def test_an_index_without_its_sum_is_damaged(tmp_path: Path) -> None:
    folder = some(tmp_path)
    index = json.loads((folder / "index.json").read_text())
    del index["sha256"]
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="json is damaged"):
        Corpus(str(folder), "train", text_config("generated", tmp_path))


def test_shards_that_cannot_be_written_to_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, touch = some(tmp_path), Path.touch
    blocked = {folder: tmp_path / "no such folder"}
    at = lambda path: blocked.get(path.parent, path.parent) / path.name  # noqa: E731
    monkeypatch.setattr(Path, "touch", lambda path: touch(at(path)))
    Corpus(str(folder), "train", text_config("generated", tmp_path))
    monkeypatch.setattr(integrity, "checksum", lambda path: 1 / 0)
    Corpus(str(folder), "validation", text_config("generated", tmp_path))


def batches(kind: str, where: Any, folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """An epoch of examples, or of windows, of shards."""
    small = {"cache_gib": 0.00003, "shuffle_shards": 2}  # two or three shards: they are evicted
    if kind == "examples":
        examples = read_examples(where, text_config("generated", folder, **small))
        order = ExampleOrder(examples, 8, 1, seed=1, group=2)
        rows = ExampleRows(examples, 512, order)
        for step in range(len(order) // 8):
            yield from rows[order.share(step, 0)]
        return
    windows = LmWindows(
        Shards(str(where), "train", documents_config("generated", folder, **small)), 64
    )
    order = WindowOrder(windows.counts, 4, seed=1, group=2)
    windows.shards.prefetch(order.shards_to_prefetch(0))
    assert windows.average_bytes()[0] > 1
    for step in range(len(order) // 4):
        for place in order.step(step):
            tokens, pieces = windows[place]
            yield {"input_ids": tokens.numpy(), "pieces": pieces.numpy(), "windows": place[None]}


@pytest.mark.parametrize("kind", ["examples", "windows"])
def test_streaming_with_faults_loses_and_repeats_nothing(
    kind: str, s3: Any, tmp_path: Path
) -> None:
    client, faults = s3
    if kind == "examples":
        folder = some(tmp_path, 500, shard_mib=0.01)
    else:
        path = write_lines(tmp_path / "a.jsonl", contexts(250))
        folder = write_documents(path, tmp_path, shard_mib=0.005)
    shards = len(list(folder.glob("train-*.bin")))
    upload(client, folder)
    faults.kinds = ["fine", "slow", "500", "truncated"]
    here = list(batches(kind, folder, tmp_path))
    there = list(batches(kind, "s3://bucket/shards", tmp_path))
    assert shards > 4 and sum(faults.done.values()) > 3
    for local, remote in zip(here, there, strict=True):
        assert all(np.array_equal(local[name], value) for name, value in remote.items())
    numbers = [tuple(np.atleast_1d(number)) for row in there for number in row["windows"]]
    assert len(set(numbers)) == len(numbers) > 20
    assert 0 < len(list((tmp_path / "cache").glob("fetched-*/*.bin"))) < shards


def test_a_damaged_copy_is_fetched_again(s3: Any, tmp_path: Path, caplog: Any) -> None:
    upload(s3[0], some(tmp_path))
    config = text_config("generated", tmp_path)
    before = Corpus("s3://bucket/shards", "train", config).example(0)[0]
    (copy,) = (tmp_path / "cache").glob("fetched-*/train-00000.bin")
    flip(copy, random.Random(0), bits=50)
    again = Corpus("s3://bucket/shards", "train", config)
    assert np.array_equal(again.example(0)[0], before)
    assert again.fetch(0) == copy
    said = [record.getMessage() for record in caplog.records if record.name == reader.__name__]
    assert said == [f"{copy}: not as it was written; fetching it again"]


def test_what_cannot_be_read_is_one_line(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    folder = some(tmp_path)
    upload(client, folder)
    name = json.loads((folder / "index.json").read_text())["splits"]["train"]["shards"][0]["name"]
    content = bytearray((folder / name).read_bytes())
    content[10] ^= 1  # as long as it was, but another
    client.put_object(Bucket="bucket", Key=f"shards/{name}", Body=bytes(content))
    corpus = Corpus("s3://bucket/shards", "train", config)
    with pytest.raises(UserError, match="not the bytes that were written"):
        corpus.example(0)
    faults.kinds = ["500"]
    with pytest.raises(Unavailable, match=f"not read after {storage.TRIES} tries: "):
        corpus.example(0)
    assert {path.suffix for path in (tmp_path / "cache").glob("fetched-*/*")} == {".lock"}


def test_a_shard_that_is_evicted_meanwhile_is_fetched_again(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread removes it before it is mapped, or before its size is read."""
    upload(s3[0], some(tmp_path))
    corpus = Corpus("s3://bucket/shards", "train", text_config("generated", tmp_path))
    fetch, glob = corpus.fetch, Path.glob
    removed: list[Path] = []

    def fetch_and_remove(shard: int) -> Path:
        if (path := fetch(shard)) not in removed:
            removed.append(path)
            path.unlink()
        return path

    monkeypatch.setattr(corpus, "fetch", fetch_and_remove)
    monkeypatch.setattr(Path, "glob", lambda self, name: [*glob(self, name), self / "gone.bin"])
    assert len(corpus.example(0)[0]) > 0 and removed[0].exists()
