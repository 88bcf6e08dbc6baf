"""Writing of a corpus: this process reads text and writes shards, one after another; workers
tokenize. The index is written last.

One process reads, so that a file is downloaded and unpacked once, and shards are the same for any
number of workers. The price is that it bounds the speed, however many tokenize. Workers are forks,
so nothing here imports torch.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from detalbert.atomic import hold_lock, sweep, write_json, writing
from detalbert.corpus import shards
from detalbert.corpus.blocks import Segments, cut_segments
from detalbert.corpus.held_out import decide
from detalbert.corpus.index import TOKENIZER, remove_damaged
from detalbert.corpus.opened import OpenedText, fingerprints_of, open_texts
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.shards import (
    SPLITS,
    Kind,
    Rows,
    ShardFacts,
    ShardPart,
    Target,
    is_held_out,
)
from detalbert.corpus.sources import Part, cut_parts, group, size_of, unpack_sizes
from detalbert.corpus.words import WordEncoder
from detalbert.corpus.workers import map_in_processes
from detalbert.errors import UserError
from detalbert.integrity import read_sealed, seal
from detalbert.processes import CHILDREN, count_cores
from detalbert.settings.text import CorpusConfig
from detalbert.waiting import waiting

log = logging.getLogger(__name__)
_TEXT_PER_TOKEN_BYTE = 2.2  # English: some 4.5 characters per token, which takes two bytes
_BATCH = 1 << 19  # characters that are tokenized at a time


class ShardText(NamedTuple):
    """The text of one shard; `held_out` is the fraction of its documents for validation, 0 to 1."""

    number: int
    parts: list[Part]
    held_out: float
    source: str  # its name; "" if there is one source


class Batch(NamedTuple):
    """Text of a job that is tokenized at a time."""

    job: int
    held_out: float  # fraction of the documents that are held out; with segments of others, 0 or 1
    segments: Segments


class Tokenized(NamedTuple):
    """A batch as tokens."""

    job: int
    rows: dict[str, Rows]  # by split


def write_shards(
    data: CorpusConfig,
    tokenizer: PreTrainedTokenizerBase,
    kind: Kind,
    output: str | None = None,
    processes: int | None = None,
    part: ShardPart | None = None,
) -> str:
    """Write missing or damaged shards of the configured text; return where they are.

    Several machines may write a part each, at the same time: the shards are those of one machine.
    Which part ends last writes the index; until then the folder is no corpus.

    Args:
        data: names the text.
        tokenizer: a fast one.
        kind: the format of the shards.
        output: a folder, or a remote address, to which each shard is moved once it is written;
            default: a folder below `data.cache_dir` that depends on all that the bytes do.
        processes: default: one per core.
        part: of the shards; default: all.

    Raises:
        UserError: text cannot be read, or shards cannot be written.
    """
    texts = open_texts(data, exact=kind.exact)
    plan = _plan(data, texts=texts, kind=kind, tokenizer=tokenizer)
    notes = _notes(data, texts)
    key = hashlib.sha256(json.dumps(plan).encode()).hexdigest()
    cached = Path(data.cache_dir) / f"shards-{key[:24]}"
    target = Target(output or str(cached), data.cache_dir, part)
    folder = target.folder
    lock = folder / (".lock" if part is None else f".lock-{part.number}-of-{part.total}")
    with writing(folder, what="token shards"):
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        with hold_lock(lock, purpose=f"writes token shards to {folder}"):
            # The plan comes before any shard: so no other text's are added to these.
            target.open()
            _keep_plan(folder, plan)
            target.move([], shards.PLAN)
            if target.remote is None:
                remove_damaged(folder)

            path = folder / shards.INDEX
            # A complete corpus is left as it is, unless what the user says of it has changed.
            index = json.loads(path.read_text()) if path.is_file() else {}
            has_other_notes = {**index, **notes} != index
            if not index or output and has_other_notes:
                writer = ShardWriter(target, kind=kind, tokenizer=tokenizer, processes=processes)
                jobs = writer.plan(texts, plan)
                if part is None:
                    writer.sweep()
                    writer.write(jobs)
                    writer.finish(jobs, {**plan, **notes})
                else:
                    writer.write(jobs[part.number - 1 :: part.total])
                    writer.join(part, jobs, {**plan, **notes})
    return target.address


def _plan(
    data: CorpusConfig, texts: list[OpenedText], kind: Kind, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """Return all that the shards' bytes depend on, in the order of the index."""
    has_validation = any(text.purpose == "validation" for text in texts)
    return {
        "format": shards.FORMAT,
        **kind.facts(tokenizer),
        "part_bytes": max(1, int(data.shard_mib * (1 << 20) * _TEXT_PER_TOKEN_BYTE)),
        "held_out": 0.0 if has_validation else data.validation_fraction,
        "text": fingerprints_of(texts),
    }


def _notes(data: CorpusConfig, texts: list[OpenedText]) -> dict[str, Any]:
    """Return what the index says of the text besides what the shards' bytes depend on."""
    notes: dict[str, Any] = {}
    weights = {source.name: source.weight for source in data.training if source.weight}
    if weights:
        notes["weights"] = weights
    articles = [opened.text.articles for opened in texts if opened.text.articles]
    if articles:
        notes["article"] = articles[0]
    return notes


def load_in_child(
    name: str, *needed: str, kind: str, key: str = "data.tokenizer"
) -> PreTrainedTokenizerBase:
    """Return `named_tokenizer` of the arguments, loaded by a child process: transformers imports
    torch to find a tokenizer's class, some 450 MiB. Raises UserError as it does.
    """
    with ProcessPoolExecutor(1, mp_context=CHILDREN) as pool:
        return pool.submit(_load, name, *needed, kind=kind, key=key).result()


def _load(*arguments: str, kind: str, key: str) -> PreTrainedTokenizerBase:
    from detalbert.squad.tokenizer import named_tokenizer  # in the child alone

    return named_tokenizer(*arguments, kind=kind, key=key)


def _keep_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Write the plan. Raises UserError if the folder holds shards of another one."""
    path = folder / shards.PLAN
    index = read_sealed(folder / shards.INDEX) or {}  # the plan and more; damaged: written again
    with contextlib.suppress(FileNotFoundError, ValueError):
        same_plan = json.loads(path.read_text()) == plan
        same_index = not index or index == {**index, **plan}
        if same_plan and same_index:
            return
        raise UserError(
            "holds shards of another text, tokenizer or length",
            key=str(folder),
            cure="give a fresh folder",
        )
    write_json(path, plan)


class ShardWriter:
    """Writes the shards of a corpus: `plan`, `write` those that are missing, `finish`.

    The caller holds the lock of the folder. A job's shards are there once its record is; what a
    killed process has left of others is written again, with the same bytes.

    Args:
        target: where they are written.
        kind: their format.
        tokenizer: a fast one.
        processes: None: one per core.
    """

    def __init__(
        self,
        target: Target,
        kind: Kind,
        tokenizer: PreTrainedTokenizerBase,
        processes: int | None = None,
    ) -> None:
        self.target = target
        self.folder = target.folder
        self.kind = kind
        self.tokenizer = tokenizer
        self.processes = processes or count_cores()

    def plan(self, texts: list[OpenedText], plan: dict[str, Any]) -> list[ShardText]:
        """Return the text of each shard: parts of one source, of some `part_bytes` together."""
        size = plan["part_bytes"]
        jobs: list[ShardText] = []
        for purpose, name, text in texts:
            held_out = 1.0 if purpose == "validation" else plan["held_out"]
            sources = unpack_sizes(text, self.folder)
            parts = cut_parts(sources, part_bytes=size)
            # Small files share a shard, large ones are cut.
            for members in group(parts, size=lambda part: part.text_bytes, least=size):
                job = ShardText(len(jobs), parts=members, held_out=held_out, source=name)
                jobs.append(job)
        return jobs

    def missing(self, jobs: list[ShardText]) -> list[ShardText]:
        """Return the jobs without a record, or whose shards are not there as it says."""
        sizes = self.target.sizes()
        missing = []
        for job in jobs:
            if shards.read_record(self.folder, job.number, sizes) is None:
                missing.append(job)
        return missing

    def sweep(self) -> None:
        """Remove what killed processes have left. No other process may be writing shards."""
        sweep(self.folder, shards.FILES)
        sweep(self.folder / "jobs", r"\d{5,}\.json")

    def write(self, jobs: list[ShardText]) -> None:
        """Write the shards that are missing, each with its record, in the order of the jobs."""
        # Progress counts what is there already, too.
        missing = self.missing(jobs)
        total = sum(size_of(job.parts) for job in jobs)
        missing_size = sum(size_of(job.parts) for job in missing)

        # No more processes than there are batches.
        batch_count = math.ceil(missing_size / _BATCH)
        processes = min(self.processes, batch_count)
        dtype = "<u2" if len(self.tokenizer) <= 1 << 16 else "<u4"
        encoder = WordEncoder(self.kind.backend(self.tokenizer))
        tokenize = partial(_tokenize, self.kind, encoder, dtype)
        with waiting(
            "writing token shards",
            total=total,
            unit="B",
            done=total - missing_size,
        ) as wait:
            reader = TextReader(wait.update)
            batches = self._read(missing, reader)
            tokenized = map_in_processes(self.folder, tokenize, batches, processes=processes)
            with contextlib.closing(tokenized):  # which ends the processes
                self._write_in_order(tokenized)
            for text, times in reader.notes.texts().items():
                log.warning("%s %s", f"{times:,}", text)

    def _read(self, jobs: list[ShardText], reader: TextReader) -> Iterator[Batch]:
        """Yield the text of each job in batches of about _BATCH characters, at least one."""
        for job in jobs:
            blocks = itertools.chain.from_iterable(map(reader.read, job.parts))
            segments = cut_segments(blocks, self.kind.find_cut)
            batch = Batch(job.number, held_out=job.held_out, segments=Segments([], []))
            size = 0  # characters
            for held_out, segment in decide(segments, job.held_out, self.folder):
                # Another fraction is that of a long document, for which it is decided.
                if size >= _BATCH or held_out != batch.held_out:
                    yield batch
                    batch = Batch(
                        job.number,
                        held_out=held_out,
                        segments=Segments([], [], starts=segment.starts),
                    )
                    size = 0
                batch.segments.texts.append(segment.text)
                batch.segments.ends.append(segment.ends)
                size += len(segment.text)
            yield batch

    def _write_in_order(self, tokenized: Iterator[Tokenized]) -> None:
        """Write the shards of one job after another: the batches come in the order of the text."""
        for number, batches in itertools.groupby(tokenized, key=lambda batch: batch.job):
            rows = (batch.rows for batch in batches)
            names = shards.write_job(self.folder, number, self.kind, rows)
            self.target.move(names, shards.RECORD.format(number))

    def join(self, part: ShardPart, jobs: list[ShardText], header: dict[str, Any]) -> None:
        """Finish if all parts are written; log how many shards others have to write else."""
        self.target.open()  # for the records of the others
        with hold_lock(self.folder / ".lock", purpose=f"joins the shards of {self.folder}"):
            missing = self.missing(jobs)
            if missing:
                log.info(
                    "part %s is written; %d of %d shards are missing, of other parts",
                    part,
                    len(missing),
                    len(jobs),
                )
                return
            # Two parts may end at the same time: the second finds nothing to do.
            if not (self.folder / shards.INDEX).is_file():
                self.sweep()
                self.finish(jobs, header)

    def finish(self, jobs: list[ShardText], header: dict[str, Any]) -> None:
        """Write the tokenizer, and the index last of all: the shards, their counts, the header."""
        self.tokenizer.save_pretrained(self.folder / TOKENIZER)
        splits = {}
        for split, members in self._read_records(jobs).items():
            counts = {name: sum(shard[name] for shard in members) for name in self.kind.counts}
            description = self.kind.describe(self.folder, self.target.address, split, members)
            splits[split] = {"shards": members, "counts": counts, **description}

        # Sealed with its own sum, as readers trust the names in it.
        index = seal({**header, "splits": splits})
        write_json(self.folder / shards.INDEX, index)

        # The index makes the others count, so it goes last.
        names = [path.name for path in self.folder.glob("*-lengths.npy")]
        for path in (self.folder / TOKENIZER).iterdir():
            names.append(f"{TOKENIZER}/{path.name}")
        self.target.move(names, shards.INDEX)

    def _read_records(self, jobs: list[ShardText]) -> dict[str, list[ShardFacts]]:
        """Return the shards of each split, with the names of their sources."""
        sizes = self.target.sizes()
        members: dict[str, list[ShardFacts]] = {split: [] for split in SPLITS}
        for job in jobs:
            record = shards.read_record(self.folder, job.number, sizes)
            assert record is not None, f"{self.folder}: a shard that was written is gone"
            for split, shard in record.items():
                if job.source:
                    shard["source"] = job.source
                members[split].append(shard)
        return members


def _tokenize(kind: Kind, encoder: WordEncoder, dtype: str, batch: Batch) -> Tokenized:
    """Return the tokens of a batch, by split."""
    # Deal the documents to the splits.
    train, validation = SPLITS
    by_split = {split: Segments([], [], starts=batch.segments.starts) for split in SPLITS}
    for text, ends in zip(batch.segments.texts, batch.segments.ends, strict=True):
        split = validation if is_held_out(text, batch.held_out) else train
        segments = by_split[split]
        segments.texts.append(text)
        segments.ends.append(ends)

    rows_by_split = {}
    for split, segments in by_split.items():
        if segments.texts:
            rows = kind.tokenize(encoder, segments)
            rows_by_split[split] = rows._replace(tokens=rows.tokens.astype(dtype))
    return Tokenized(batch.job, rows=rows_by_split)
