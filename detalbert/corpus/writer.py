"""Writing of a corpus: this process reads text and writes shards, one after another; workers
tokenize. The index is written last. Workers are forks, so nothing here imports torch.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from detalbert.atomic import hold_lock, sweep, write_json, writing
from detalbert.corpus import shards
from detalbert.corpus.blocks import Segments, cut_segments
from detalbert.corpus.held_out import decide
from detalbert.corpus.index import TOKENIZER, remove_damaged
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.shards import SPLITS, Kind, Rows, Target, is_held_out
from detalbert.corpus.sources import Part, Text, cut_parts, group, open_text, size_of, unpack_sizes
from detalbert.corpus.words import WordEncoder
from detalbert.errors import Unavailable, UserError
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


Tokenize = Callable[[Batch], tuple[int, dict[str, Rows]]]


def write_shards(
    data: CorpusConfig,
    tokenizer: PreTrainedTokenizerBase,
    kind: Kind,
    output: str | None = None,
    processes: int | None = None,
) -> str:
    """Write missing or damaged shards of the configured text; return where they are.

    `output`: a folder, or a remote address, to which each shard is moved once it is written;
    default: a folder below `data.cache_dir` that depends on all that the bytes do. `processes`:
    default: one per core. Raises UserError if text cannot be read or shards cannot be written.
    """
    texts = _open_texts(data, kind.exact)
    held_out = [purpose for purpose, _, _ in texts if purpose == "validation"]
    facts = {
        "format": shards.FORMAT,
        **kind.facts(tokenizer),
        "part_bytes": max(1, int(data.shard_mib * (1 << 20) * _TEXT_PER_TOKEN_BYTE)),
        "held_out": 0.0 if held_out else data.validation_fraction,
        "text": _fingerprints(texts),
    }
    known = {
        "weights": {one.name: one.weight for one in data.training if one.weight},
        "article": next((text.articles for *_, text in texts if text.articles), None),
    }
    found = {key: value for key, value in known.items() if value}
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    target = Target(output or str(Path(data.cache_dir) / f"shards-{key}"), data.cache_dir)
    folder = target.folder
    with writing(folder, what="token shards"):
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / ".lock", purpose=f"writes token shards to {folder}"):
            target.open()
            _check_same(folder, facts)
            target.move([], shards.PLAN)  # before any shard: so no other text's are added to these
            if target.remote is None:
                remove_damaged(folder)
            there = folder / shards.INDEX
            index = json.loads(there.read_text()) if there.is_file() else {}
            if not index or output and {**index, **found} != index:
                jobs = _plan_jobs(folder, texts, facts)
                _write_missing(target, jobs, kind, tokenizer, processes)
                tokenizer.save_pretrained(folder / TOKENIZER)
                _write_index(target, kind, {**facts, **found}, jobs)
    return target.address


def load_in_child(name: str, *needed: str, kind: str) -> PreTrainedTokenizerBase:
    """Return `named_tokenizer` of the arguments, loaded by a child process: transformers imports
    torch to find a tokenizer's class, some 450 MiB. Raises UserError as it does.
    """
    with ProcessPoolExecutor(1, CHILDREN) as pool:
        return pool.submit(_load, name, *needed, kind=kind).result()


def _load(*arguments: str, kind: str) -> PreTrainedTokenizerBase:
    from detalbert.squad.tokenizer import named_tokenizer  # in the child alone

    return named_tokenizer(*arguments, kind=kind)


Opened = tuple[str, str, Text]  # text or validation, name of the source, its text


def _open_texts(data: CorpusConfig, exact: bool) -> list[Opened]:
    """Open the sources. Without any for "validation", some documents of "text" are held out."""
    wanted = [("text", data.source, "train", one) for one in data.training]
    wanted += [("validation", data.held_out_source, "validation", one) for one in data.held_out]
    return [
        (
            purpose,
            one.name or "",
            open_text(one, f"data.{key}", split, exact, data.article, one.form or data.form),
        )
        for purpose, key, split, one in wanted
    ]


def _fingerprints(texts: list[Opened]) -> dict[str, Any]:
    """Return the fingerprints by purpose, and by name where a purpose has a list of sources."""
    found: dict[str, Any] = {}
    for purpose, name, text in texts:
        place = found.setdefault(purpose, {}) if name else found
        place[name or purpose] = text.fingerprint
    return found


def _check_same(folder: Path, facts: dict[str, Any]) -> None:
    """Raise UserError if the folder holds shards of another text, tokenizer or length."""
    plan, index = folder / shards.PLAN, folder / shards.INDEX
    indexed = read_sealed(index) or {}  # facts and more; a damaged one is written again
    with contextlib.suppress(FileNotFoundError, ValueError):
        same = json.loads(plan.read_text()) == facts
        if same and (not indexed or indexed == {**indexed, **facts}):
            return
        said = "holds shards of another text, tokenizer or length; give a fresh folder"
        raise UserError(f"{folder}: {said}")
    write_json(plan, facts)


def _plan_jobs(folder: Path, texts: list[Opened], facts: dict[str, Any]) -> list[ShardText]:
    least, jobs = facts["part_bytes"], list[ShardText]()
    for purpose, name, text in texts:
        held_out = 1.0 if purpose == "validation" else facts["held_out"]
        parts = cut_parts(unpack_sizes(text, folder), least)
        for some in group(parts, lambda part: part.text_bytes, least):
            jobs.append(ShardText(len(jobs), some, held_out, name))
    return jobs


def _write_missing(
    target: Target, jobs: list[ShardText], kind: Kind, tokenizer: Any, processes: int | None
) -> None:
    folder, there = target.folder, target.sizes()
    sweep(folder, shards.FILES)
    sweep(folder / "jobs", r"\d{5,}\.json")
    todo = [job for job in jobs if shards.read_record(folder, job.number, there) is None]
    total, missing = (sum(size_of(job.parts) for job in some) for some in (jobs, todo))
    processes = min(processes or count_cores(), -(-missing // _BATCH))
    dtype = "<u2" if len(tokenizer) <= 1 << 16 else "<u4"
    tokenize = partial(_tokenize, kind, WordEncoder(kind.backend(tokenizer)), dtype)
    with waiting("writing token shards", total, "B", total - missing) as wait:
        batches = _read_batches(todo, kind, folder, wait.update)
        made = _map_in_processes(folder, tokenize, batches, processes)
        with contextlib.closing(made):  # which ends the processes
            for number, rows in itertools.groupby(made, key=lambda pair: pair[0]):
                names = shards.write_job(folder, number, kind, (by_split for _, by_split in rows))
                target.move(names, shards.RECORD.format(number))


def _read_batches(
    jobs: list[ShardText], kind: Kind, folder: Path, count: Callable[[int], None]
) -> Iterator[Batch]:
    """Yield the text of each job in batches of about _BATCH characters, at least one."""
    reader = TextReader(count)
    for job in jobs:
        blocks = itertools.chain.from_iterable(map(reader.read, job.parts))
        segments = cut_segments(blocks, kind.find_cut)
        batch = Batch(job.number, job.held_out, Segments([], []))
        size = 0
        for held_out, segment in decide(segments, job.held_out, folder):
            if size >= _BATCH or held_out != batch.held_out:
                yield batch
                batch = Batch(job.number, held_out, Segments([], [], segment.starts))
                size = 0
            batch.segments.texts.append(segment.text)
            batch.segments.ends.append(segment.ends)
            size += len(segment.text)
        yield batch
    for text, times in reader.notes.texts().items():
        log.warning("%s %s", f"{times:,}", text)


def _tokenize(
    kind: Kind, encoder: WordEncoder, dtype: str, batch: Batch
) -> tuple[int, dict[str, Rows]]:
    """Return the batch's job, and rows by split."""
    by_split = {split: Segments([], [], batch.segments.starts) for split in SPLITS}
    for text, ends in zip(batch.segments.texts, batch.segments.ends, strict=True):
        segments = by_split[SPLITS[is_held_out(text, batch.held_out)]]
        segments.texts.append(text)
        segments.ends.append(ends)
    made = {}
    for split, segments in by_split.items():
        if segments.texts:
            rows = kind.tokenize(encoder, segments)
            made[split] = rows._replace(tokens=rows.tokens.astype(dtype))
    return batch.job, made


_work: Tokenize  # of the workers, which are forks


def _run_worker(batch: Batch) -> tuple[int, dict[str, Rows]]:
    return _work(batch)


def _map_in_processes(
    folder: Path, tokenize: Tokenize, batches: Iterable[Batch], processes: int
) -> Generator[tuple[int, dict[str, Rows]], None, None]:
    """Yield `tokenize` of each batch, in order, with at most two batches per process in memory."""
    global _work
    if processes <= 1:
        yield from map(tokenize, batches)
        return
    _work, waiting = tokenize, deque[Any]()
    one_thread = {"TOKENIZERS_PARALLELISM": "false"}  # the cores have a worker each
    try:
        with ProcessPoolExecutor(processes, CHILDREN, os.environ.update, (one_thread,)) as pool:
            for batch in batches:
                waiting.append(pool.submit(_run_worker, batch))
                if len(waiting) > 2 * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except BrokenProcessPool:
        said = "a writer of token shards was killed, perhaps for memory; run the same command again"
        raise Unavailable(f"{folder}: {said}") from None


def _write_index(target: Target, kind: Kind, facts: dict[str, Any], jobs: list[ShardText]) -> None:
    """Write the index, last of all: the shards, their counts and the facts of the format."""
    folder, there, splits = target.folder, target.sizes(), {}
    records = [shards.read_record(folder, job.number, there) for job in jobs]
    assert None not in records, f"{folder}: a shard that was written is gone"
    for split in SPLITS:
        found = [
            {**record[split], **({"source": job.source} if job.source else {})}
            for job, record in zip(jobs, records, strict=True)
            if record and split in record
        ]
        splits[split] = {
            "shards": found,
            "counts": {name: sum(shard[name] for shard in found) for name in kind.counts},
            **kind.describe(folder, target.address, split, found),
        }
    write_json(folder / shards.INDEX, seal({**facts, "splits": splits}))
    tables = [path.name for path in folder.glob("*-lengths.npy")]
    tables += [f"{TOKENIZER}/{path.name}" for path in (folder / TOKENIZER).iterdir()]
    target.move(tables, shards.INDEX)
