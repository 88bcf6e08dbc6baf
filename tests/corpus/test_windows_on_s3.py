"""Windows of shards that are fetched are those of shards that are here."""

from pathlib import Path
from typing import Any

from detalbert.corpus import reader
from detalbert.corpus.reader import Shards
from lm.order import WindowOrder
from lm.windows import Windows
from tests.corpus.documents import documents_config, write, write_lines
from tests.fakes.s3 import upload
from tests.fakes.text import contexts


def test_fetched_through_faults_and_evicted(s3: Any, tmp_path: Path) -> None:
    client, faults = s3
    path = write_lines(tmp_path / "a.jsonl", contexts(300))
    folder = write(path, tmp_path, shard_mib=0.005)
    upload(client, folder)
    faults.kinds = ["fine", "slow", "500", "truncated"]
    config = documents_config("generated", tmp_path, cache_gib=0.00003, shuffle_shards=2)
    here, there = (
        Windows(Shards(str(where), "train", config), 64) for where in (folder, "s3://bucket/shards")
    )
    order = WindowOrder(here.counts, 4, seed=1, group=2)
    assert len(here.counts) > 4
    there.shards.prefetch(order.soon(0))
    for step in range(order.total // 4):
        for place in order.step(step):
            for one, other in zip(here[place], there[place], strict=True):
                assert one.equal(other)
    assert sum(faults.done.values()) > 3
    assert here.bytes_per_token == there.bytes_per_token > 1
    cached = list((tmp_path / "cache").glob("fetched-*/*.bin"))
    assert 0 < len(cached) < len(here.counts)
    reader.read_index.cache_clear()
