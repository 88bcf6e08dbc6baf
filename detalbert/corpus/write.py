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
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.documents import DocumentKind
from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.index import FORMAT, INDEX, SPLITS, TOKENIZER
from detalbert.corpus.output import Output
from detalbert.corpus.text import Unit, fingerprint, is_held_out, open_texts, read_documents
from detalbert.corpus.words import byte_size, group
from detalbert.corpus.workers import map_in_processes
from detalbert.errors import UserError
from detalbert.files import hold_lock, writing
from detalbert.processes import count_cores
from detalbert.progress import waiting
from detalbert.settings.text import CorpusConfig
from detalbert.sums import Json, find_damaged, json_sum, seal

Kind = DocumentKind | ExampleKind
PLAN = "plan.json"
_RECORD = "volume-{:05d}.json"
_TEXT_PER_TOKEN_BYTE = 2.2  # English: some 4.5 bytes per token, which takes two
_BATCH = 1 << 19  # bytes of text that are tokenized at a time
log = logging.getLogger(__name__)


class Part(NamedTuple):
    """Part `number` of `total`, from 1 on, of a corpus that several machines write."""

    number: int = 1
    total: int = 1


class Batch(NamedTuple):
    """Documents of one split that are tokenized at a time; none at the end of a volume."""

    volume: int
    shard: int  # in its volume
    split: str
    documents: list[str]


class TokenizedBatch(NamedTuple):
    """A batch as columns, and counts."""

    volume: int
    shard: int
    split: str
    columns: dict[str, np.ndarray]
    counts: Counter[str]


def write_shards(
    data: CorpusConfig,
    kind: Kind,
    output: str | None = None,
    processes: int | None = None,
    part: Part = Part(),  # noqa: B008
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
        part: of the shards; default: all.

    Raises:
        UserError: text cannot be read, or shards cannot be written.
        Unavailable: a server fails, or a worker was killed.
    """
    texts = open_texts(data)
    shard_bytes = max(1, int(data.shard_mib * (1 << 20) * _TEXT_PER_TOKEN_BYTE))
    # All that the shards' bytes depend on.
    plan = {
        "format": FORMAT,
        **kind.facts(),
        "shard_bytes": shard_bytes,
        "text": fingerprint(texts),
    }
    address = output or f"{data.cache_dir}/shards-{json_sum(plan)[:24]}"
    place = Output(address)
    folder = Path(data.cache_dir if place.is_remote else address)
    with writing(address, cure="free space, or give another place", what="token shards"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = folder / f".lock-{part.number}-of-{part.total}"
        with hold_lock(lock, purpose=f"writes token shards to {address}"):
            _check_plan(place, seal(plan))
            volumes: list[list[Unit]] = []
            for units in texts:
                volumes += group(units, size=lambda unit: unit.size, least=shard_bytes)
            own = range(part.number - 1, len(volumes), part.total)
            missing = [number for number in own if _read_record(place, number) is None]
            missing_volumes = {number: volumes[number] for number in missing}
            _write_volumes(place, kind, missing_volumes, shard_bytes, processes or count_cores())
            weights = {source.name: source.weight for source in data.training if source.weight}
            header = {**plan, "weights": weights}
            return address if _write_index(place, len(volumes), header, kind.tokenizer) else ""


def _check_plan(place: Output, plan: Json) -> None:
    """Write the plan before any shard, so that no other text's are added to these.

    Raises:
        UserError: the place holds shards of another plan, or other files.
    """
    if place.read_json(PLAN) == plan:
        return
    if any(not name.startswith(".") for name in place.names()):
        problem = "holds other files, or shards of another text, tokenizer or length"
        raise UserError(problem, key=place.address, cure="give a fresh folder")
    place.write_json(PLAN, plan)


def _read_record(place: Output, volume: int) -> Json | None:
    """Return the record of a volume whose shards are there as they were written; else None."""
    record = place.read_json(_RECORD.format(volume))
    if record is None or place.is_remote:  # in a bucket, what is there is whole
        return record
    folder = Path(place.address)
    sums = {folder / file: digest for file, digest in record["files"].items()}
    damaged = find_damaged(sums, stamps=folder)
    if damaged:
        log.warning("%s: not as it was written; writing it again", damaged[0])
    return None if damaged else record


def _write_volumes(
    place: Output, kind: Kind, volumes: dict[int, list[Unit]], shard_bytes: int, processes: int
) -> None:
    """Write the shards of volumes, by their numbers, and a record of each volume."""
    size = sum(unit.size for units in volumes.values() for unit in units)
    skipped: Counter[str] = Counter()  # by the reason
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
                wait.update(sum(batch.counts["text_bytes"] for batch in tokens))
                _write_shard(place, volumes[number][0].source, tokens, record)
            place.write_json(_RECORD.format(number), record)
    for reason, count in skipped.items():
        log.warning("%s %s", f"{count:,}", reason)


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
    size = shard = 0
    for members in group(documents, size=byte_size, least=min(_BATCH, shard_bytes)):
        shard = size // shard_bytes
        size += sum(map(byte_size, members))
        is_held = [is_held_out(document, units[0].held_out) for document in members]
        for split in SPLITS:
            chosen = [held == (split == "validation") for held in is_held]
            yield Batch(volume, shard, split, list(itertools.compress(members, chosen)))
    yield Batch(volume, shard, "train", [])


def _tokenize(kind: Kind, batch: Batch) -> TokenizedBatch:
    documents = batch.documents
    columns = kind.tokenize(documents) if documents else {}
    counts = Counter({column: len(values) for column, values in columns.items()})
    counts.update(documents=len(documents), text_bytes=sum(map(byte_size, documents)))
    return TokenizedBatch(batch.volume, batch.shard, batch.split, columns, counts)


def _write_shard(place: Output, source: str, tokens: list[TokenizedBatch], record: Json) -> None:
    """Write the columns of a shard, by split, and add them to the record of its volume."""
    for split in SPLITS:
        batches = [batch for batch in tokens if batch.split == split and batch.columns]
        if not batches:
            continue
        name = f"{split}-{batches[0].volume:05d}-{batches[0].shard:05d}"
        for column in list(batches[0].columns):
            values = np.concatenate([batch.columns.pop(column) for batch in batches])
            if column.endswith("_ptr"):  # lengths become offsets
                values = np.append(0, np.cumsum(values, dtype=np.int64))
            content = io.BytesIO()
            np.save(content, values)
            file = f"{name}.{column}.npy"
            record["files"][file] = place.write(file, content.getbuffer())
        counts = sum((batch.counts for batch in batches), Counter())
        record["shards"].append({"name": name, "split": split, "source": source, **counts})


def _write_index(
    place: Output, volumes: int, header: Json, tokenizer: PreTrainedTokenizerBase
) -> bool:
    """Write the tokenizer, and the index last of all, if the volumes of all parts are complete;
    return whether they are.
    """
    files: dict[str, str] = {}
    shards: list[Json] = []
    for number in range(volumes):
        record = _read_record(place, number)
        if record is None:
            log.info("no index yet: volume %d of %d is of another part", number + 1, volumes)
            return False
        files |= record["files"]
        shards += record["shards"]

    # A complete corpus is left as it is, unless what the user says of it has changed.
    index = {**header, "shards": shards}
    saved_index = place.read_json(INDEX) or {}
    if saved_index == {**saved_index, **index}:
        return True
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path, tokenizer.save_pretrained(folder)):
            if path.is_file():
                name = f"{TOKENIZER}/{path.name}"
                files[name] = place.write(name, path.read_bytes())
    place.write_json(INDEX, {**index, "files": files})
    return True


def load_in_child(*arguments: str, **options: str) -> PreTrainedTokenizerBase:
    """Return `named_tokenizer` of the arguments, loaded by a child process: transformers imports
    torch to find a tokenizer's class, some 450 MiB. Raises UserError as it does.
    """

    def load(_: None) -> PreTrainedTokenizerBase:
        from detalbert.squad.tokenizer import named_tokenizer  # in the child alone

        return named_tokenizer(*arguments, **options)

    [tokenizer] = map_in_processes(load, [None], processes=2)
    return tokenizer
