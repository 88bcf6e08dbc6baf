"""Shards: damaged ones are refused; remote ones are fetched through faults, whole or not at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detalbert.corpus import reader, storage
from detalbert.corpus.reader import Corpus
from detalbert.errors import Unavailable, UserError
from pretrain.examples import ExampleOrder, train_loader
from tests.fakes.s3 import upload
from tests.fakes.text import contexts, read_examples, text_config, write

DAMAGE = {
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
    with pytest.raises(UserError, match=str(folder)):
        Corpus(str(folder), "train", text_config("generated", tmp_path))


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
