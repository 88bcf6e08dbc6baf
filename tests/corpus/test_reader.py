"""Shards: damaged ones are refused; remote ones are fetched through faults, whole or not at all."""

import dataclasses
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detalbert import integrity
from detalbert.corpus import reader, storage
from detalbert.corpus.reader import Corpus
from detalbert.errors import Unavailable, UserError
from detalbert.integrity import seal
from pretrain.examples import ExampleOrder, train_loader
from tests.fakes.damage import flip
from tests.fakes.s3 import upload
from tests.fakes.text import contexts, read_examples, text_config, write


def change_index(content: bytes, old: str, new: str) -> bytes:
    return json.dumps(seal(json.loads(content.decode().replace(old, new)))).encode()


DAMAGE = {
    "one bit": ("train-00000.bin", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
    "number": ("index.json", lambda content: re.sub(rb'("documents": )\d', rb"\g<1>0", content)),
    "outside": ("index.json", lambda c: change_index(c, '"train-00000.bin', '"/dev/zero')),
    "truncated": ("train-00000.bin", lambda content: content[:100]),
    "index": ("index.json", lambda content: content[:50]),
    "format": ("index.json", lambda content: content.replace(b'"format": 1', b'"format": 99')),
    "lengths": ("train-lengths.npy", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
}


@pytest.mark.parametrize("damage", [*DAMAGE, "missing"])
def test_damaged_shards_are_refused(damage: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(contexts(30)))
    folder = write(tmp_path / "a.txt", tmp_path, validation_fraction=0.5)
    if damage == "missing":
        (folder / "train-00000.bin").unlink()
    else:
        name, change = DAMAGE[damage]
        (folder / name).write_bytes(change((folder / name).read_bytes()))
    reader.read_index.cache_clear()
    for shards, cure in ((None, f"remove {folder} and"), (str(folder), "copy it there again, or")):
        config = dataclasses.replace(text_config("generated", tmp_path), shards=shards)
        with pytest.raises(UserError, match=str(folder)) as error:
            Corpus(str(folder), "train", config)
        assert cure in str(error.value) or "its index.json is damaged" in str(error.value)


def test_an_index_without_a_sum_is_read(tmp_path: Path) -> None:
    """Commit 596c121 wrote none."""
    (tmp_path / "a.txt").write_text("\n".join(contexts(30)))
    folder = write(tmp_path / "a.txt", tmp_path)
    index = json.loads((folder / "index.json").read_text())
    for key, whole in (("sha256", True), ("sha257", False)):
        values = {key if k == "sha256" else k: v for k, v in index.items()}
        if whole:
            del values["sha256"]
        (folder / "index.json").write_text(json.dumps(values))
        reader.read_index.cache_clear()
        if whole:
            assert len(Corpus(str(folder), "train", text_config("generated", tmp_path))) > 0
        else:
            with pytest.raises(UserError, match="index.json is damaged"):
                reader.read_index(str(folder))


def test_shards_that_cannot_be_written_to_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(contexts(30)))
    folder = write(tmp_path / "a.txt", tmp_path)
    touch = Path.touch

    def refuse(path: Path) -> None:
        if path.parent == folder:
            raise PermissionError
        touch(path)

    monkeypatch.setattr(Path, "touch", refuse)
    Corpus(str(folder), "train", text_config("generated", tmp_path))
    monkeypatch.setattr(integrity, "checksum", lambda path: 1 / 0)
    Corpus(str(folder), "validation", text_config("generated", tmp_path))


def test_streaming_with_faults_loses_and_repeats_nothing(s3: Any, tmp_path: Path) -> None:
    client, faults = s3
    (tmp_path / "a.txt").write_text("\n".join(contexts(700)))
    folder = write(tmp_path / "a.txt", tmp_path, shard_mib=0.01)
    upload(client, folder)
    faults.kinds = ["fine", "slow", "500", "truncated"]
    small = {"cache_gib": 0.00003, "shuffle_shards": 2}  # two or three shards: they are evicted
    seen = []
    for where in (folder, "s3://bucket/shards"):
        examples = read_examples(where, text_config("generated", tmp_path, **small))
        order = ExampleOrder(examples, 8, 1, seed=1, group=2)
        loader = iter(train_loader(examples, order, 0, 0, 512, 0, False))
        steps = len(examples.lengths) // 8
        seen.append([row for _ in range(steps) for row in next(loader)])
    assert len(examples.corpus.shards) >= 6
    assert sum(faults.done.values()) > 5 and all(faults.done.values()), faults.done
    for local, remote in zip(*seen, strict=True):
        for name in ("input_ids", "windows"):
            assert np.array_equal(local[name], remote[name])
    numbers = np.concatenate([row["windows"] for row in seen[1]])
    assert len(set(numbers.tolist())) == len(numbers) == steps * 8
    cached = list((tmp_path / "cache").glob("fetched-*/*.bin"))
    assert 0 < len(cached) < len(examples.corpus.shards)


def test_a_damaged_copy_is_fetched_again(s3: Any, tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "a.txt").write_text("\n".join(contexts(30)))
    upload(s3[0], write(tmp_path / "a.txt", tmp_path))
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
    (tmp_path / "a.txt").write_text("\n".join(contexts(30)))
    folder = write(tmp_path / "a.txt", tmp_path)
    upload(client, folder)
    name = json.loads((folder / "index.json").read_text())["splits"]["train"]["shards"][0]["name"]
    content = bytearray((folder / name).read_bytes())
    content[10] ^= 1  # as long as it was, but another
    client.put_object(Bucket="bucket", Key=f"shards/{name}", Body=bytes(content))
    corpus = Corpus("s3://bucket/shards", "train", config)
    with pytest.raises(UserError, match="not the bytes that were written"):
        corpus.example(0)
    faults.kinds = ["500"]
    with pytest.raises(Unavailable, match="not read after"):
        corpus.example(0)
    assert {path.suffix for path in (tmp_path / "cache").glob("fetched-*/*")} == {".lock"}
