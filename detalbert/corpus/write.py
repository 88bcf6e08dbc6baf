"""Writing of a corpus: this process reads text and writes shards, one after another; workers
tokenize. The index is written last.

Files of about a shard together, or one that is larger, are a volume, which becomes one shard or
more. A volume is complete once its record is there; what a killed process has left of others is
written again, with the same bytes. So a restart reads only the volumes that are missing, and
several machines write some of them each. One process reads, so that a file is downloaded and
unpacked once; the price is that it bounds the speed, however many tokenize. A shard is in memory
until it is written. Workers are forks, so nothing here imports torch.
"""

import contextlib
import io
import itertools
import logging
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from loky import cpu_count
from transformers import PreTrainedTokenizerBase

from detalbert.addresses import is_remote
from detalbert.corpus.index import (
    FORMAT,
    INDEX,
    SPLITS,
    TOKENIZER,
    load_sealed,
    write_file,
    write_sealed,
)
from detalbert.corpus.text import (
    Unit,
    byte_size,
    every,
    fingerprint,
    is_held_out,
    open_texts,
    read_documents,
)
from detalbert.corpus.workers import map_in_processes
from detalbert.errors import UserError
from detalbert.files import hold_lock, sweep, writing
from detalbert.progress import waiting
from detalbert.settings.text import CorpusConfig
from detalbert.squad.encoding import named_tokenizer, tokenizer_sum
from detalbert.sums import Json, find_damaged, json_sum, seal

Part = tuple[int, int]  # its number, from 1 on, and how many there are
PLAN = "plan.json"
_RECORD = "volume-{:05d}.json"
_TEXT_PER_MIB = 2.2 * (1 << 20)  # bytes; English has some 4.5 per token, which takes two
_BATCH = 1 << 19  # bytes of text that are tokenized at a time
log = logging.getLogger(__name__)


class Kind(Protocol):
    """What documents become: columns of examples, or of documents."""

    name: str
    strips: bool  # the white space around documents
    tokenizer: PreTrainedTokenizerBase
    facts: Json  # on which a shard's bytes depend, besides text and tokenizer

    def tokenize(self, documents: list[str], /) -> dict[str, np.ndarray]:
        """Return the columns of some documents."""


class Batch(NamedTuple):
    """Documents of one split that are tokenized at a time; none at the end of a volume."""

    volume: int
    shard: int  # in its volume
    split: str
    texts: list[str]  # none once they are tokenized
    # What `_tokenize` makes of them:
    columns: dict[str, np.ndarray]
    documents: int = 0
    text_bytes: int = 0


def write_shards(
    data: CorpusConfig,
    kind: Kind,
    output: str | None = None,
    processes: int | None = None,
    part: Part = (1, 1),
) -> str:
    """Write missing or damaged shards of the configured text; return where they are, or "" if other
    parts are missing.

    Several machines may write a part each, at the same time: the shards are those of one machine.
    The part that ends last writes the index; until then the folder is no corpus.

    Args:
        data: names the text.
        kind: what documents become.
        output: a folder, or a remote address; default: a folder below `data.cache_dir` whose name
            depends on all that the bytes do.
        processes: default: one per core.
        part: of the shards, as (number, total); default: all.

    Raises:
        UserError: text cannot be read, or shards cannot be written.
        Unavailable: a server fails, or a worker was killed.
    """
    texts = open_texts(data)
    shard_bytes = int(data.shard_mib * _TEXT_PER_MIB) or 1
    # All that the shards' bytes depend on.
    plan = {
        "format": FORMAT,
        "kind": kind.name,
        "tokenizer": tokenizer_sum(kind.tokenizer),
        **kind.facts,
        "shard_bytes": shard_bytes,
        "text": fingerprint(texts),
    }
    address = output or f"{data.cache_dir}/shards-{json_sum(plan)[:24]}"
    number, total = part
    folder = Path(data.cache_dir if is_remote(address) else address)
    with writing(address, cure="free space, or give another place", what="token shards"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = folder / f".lock-{number}-of-{total}"
        with hold_lock(lock):
            sweep(folder)
            _check_plan(address, plan)
            volumes: list[list[Unit]] = []
            for units in texts:
                key = every(shard_bytes, size=lambda unit: unit.size)
                volumes += [list(members) for _, members in itertools.groupby(units, key)]
            own = range(number - 1, len(volumes), total)
            missing = {i: volumes[i] for i in own if _read_record(address, i) is None}
            if missing:
                _write_volumes(address, kind, missing, shard_bytes, processes or cpu_count())
            weights = {source.name: source.weight for source in data.training if source.weight}
            header = {**plan, "weights": weights}
            return address if _write_index(address, len(volumes), header, kind.tokenizer) else ""


def _check_plan(address: str, plan: Json) -> None:
    """Write the plan before any shard, so that no other text's are added to these.

    Raises:
        UserError: the place holds shards of another plan, or other files.
    """
    saved_plan = load_sealed(f"{address}/{PLAN}")
    if saved_plan == seal(plan):
        return
    names = [] if is_remote(address) else os.listdir(address)
    if saved_plan or any(not name.startswith(".") for name in names):
        problem = "holds other files, or shards of another text, tokenizer or length"
        raise UserError(problem, key=address, cure="give a fresh folder")
    write_sealed(address, PLAN, plan)


def _read_record(address: str, volume: int) -> Json | None:
    """Return the record of a volume whose shards are there as they were written; else None."""
    record = load_sealed(f"{address}/{_RECORD.format(volume)}")
    if record is not None and not is_remote(address):  # in a bucket, what is there is whole
        sums = {Path(address, file): digest for file, digest in record["files"].items()}
        path = find_damaged(sums, stamps=Path(address))
        if path is not None:
            log.warning("%s: not as it was written; writing it again", path)
            return None
    return record


def _write_volumes(
    address: str, kind: Kind, volumes: dict[int, list[Unit]], shard_bytes: int, processes: int
) -> None:
    """Write the shards of volumes, by their numbers, and a record of each volume."""
    size = sum(unit.size for units in volumes.values() for unit in units)
    skipped: Counter[str] = Counter()
    batches = itertools.chain.from_iterable(
        _read(number, units, shard_bytes, kind.strips, skipped) for number, units in volumes.items()
    )
    # No more processes than there are batches.
    processes = min(processes, math.ceil(size / _BATCH))
    tokenized = map_in_processes(partial(_tokenize, kind), batches, processes)
    with (
        waiting("writing token shards", total=size, unit="B") as wait,
        contextlib.closing(tokenized),  # which ends the processes
    ):
        for number, results in itertools.groupby(tokenized, key=lambda tokens: tokens.volume):
            record: Json = {"files": {}, "shards": []}
            for _, members in itertools.groupby(results, key=lambda tokens: tokens.shard):
                tokens = list(members)
                wait.update(sum(batch.text_bytes for batch in tokens))
                _write_shard(address, volumes[number][0].source, tokens, record)
            write_sealed(address, _RECORD.format(number), record)
    if skipped:
        log.warning("left out are rows or documents without text: %d", skipped.total())


def _read(
    volume: int, units: list[Unit], shard_bytes: int, strips: bool, skipped: Counter[str]
) -> Iterator[Batch]:
    """Yield the documents of a volume in batches of about _BATCH bytes, some less.

    Args:
        shard_bytes: of text, after which the next shard begins.
        strips, skipped: as for `read_documents`.
    """
    documents = itertools.chain.from_iterable(
        read_documents(unit, skipped, strips) for unit in units
    )
    shard = 0
    for shard, of_shard in itertools.groupby(documents, every(shard_bytes, byte_size)):
        for _, batch in itertools.groupby(of_shard, every(_BATCH, byte_size)):
            by_split: dict[str, list[str]] = {split: [] for split in SPLITS}
            for document in batch:
                by_split[SPLITS[is_held_out(document, units[0].held_out)]].append(document)
            for split, members in by_split.items():
                yield Batch(volume, shard, split, members, columns={})
    yield Batch(volume, shard, "train", [], columns={})


def _tokenize(kind: Kind, batch: Batch) -> Batch:
    texts = batch.texts
    return batch._replace(
        texts=[],
        columns=kind.tokenize(texts) if texts else {},
        documents=len(texts),
        text_bytes=sum(map(byte_size, texts)),
    )


def _write_shard(address: str, source: str, tokens: list[Batch], record: Json) -> None:
    """Write the columns of a shard, by split, and add them to the record of its volume."""
    for split in SPLITS:
        batches = [batch for batch in tokens if batch.split == split and batch.documents]
        if not batches:
            continue
        shard = {
            "name": f"{split}-{batches[0].volume:05d}-{batches[0].shard:05d}",
            "source": source,
            "documents": sum(batch.documents for batch in batches),
            "text_bytes": sum(batch.text_bytes for batch in batches),
        }
        record["shards"].append(shard)
        for column in list(batches[0].columns):
            values = np.concatenate([batch.columns.pop(column) for batch in batches])
            shard[column] = len(values)
            if column.endswith("_ptr"):  # lengths become offsets
                values = np.append(0, np.cumsum(values, dtype=np.int64))
            content = io.BytesIO()
            np.save(content, values)
            file = f"{shard['name']}.{column}.npy"
            record["files"][file] = write_file(address, file, content.getbuffer())


def _write_index(
    address: str, volumes: int, header: Json, tokenizer: PreTrainedTokenizerBase
) -> bool:
    """Write the tokenizer, and the index last of all, if the volumes of all parts are complete;
    return whether they are.
    """
    index = {**header, "files": {}, "shards": []}
    for number in range(volumes):
        record = _read_record(address, number)
        if record is None:
            log.info("no index yet: volume %d of %d is of another part", number + 1, volumes)
            return False
        index["files"] |= record["files"]
        index["shards"] += record["shards"]

    # A complete corpus is left as it is, unless what the user says of it has changed.
    saved_index = load_sealed(f"{address}/{INDEX}") or {}
    if saved_index == {**saved_index, **header, "shards": index["shards"]}:
        return True
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path, tokenizer.save_pretrained(folder)):
            name = f"{TOKENIZER}/{path.name}"
            index["files"][name] = write_file(address, name, path.read_bytes())
    write_sealed(address, INDEX, index)
    return True


def load_in_child(*arguments: str, **options: str) -> PreTrainedTokenizerBase:
    """Return `named_tokenizer` of the arguments, loaded by a child process: transformers imports
    torch to find a tokenizer's class, some 450 MiB. Raises UserError as it does.
    """

    def load(_: None) -> PreTrainedTokenizerBase:
        return named_tokenizer(*arguments, **options)

    [tokenizer] = map_in_processes(load, [None], processes=2)
    return tokenizer
