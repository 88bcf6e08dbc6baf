"""Writing of a corpus: this process reads text and writes shards, one after another; workers
tokenize. The index is written last. Workers are forks, so nothing here imports torch.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterator
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
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.shards import SPLITS, Kind, Rows, Target, is_held_out
from detalbert.corpus.sources import Part, Text, cut_parts, group, open_text, size_of, unpack_sizes
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
    notes = _notes(data, texts)
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    cached = Path(data.cache_dir) / f"shards-{key[:24]}"
    target = Target(output or str(cached), data.cache_dir)
    folder = target.folder
    with writing(folder, what="token shards"):
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / ".lock", purpose=f"writes token shards to {folder}"):
            target.open()
            _check_same(folder, facts)
            target.move([], shards.PLAN)  # before any shard: so no other text's are added to these
            if target.remote is None:
                remove_damaged(folder)
            path = folder / shards.INDEX
            index = json.loads(path.read_text()) if path.is_file() else {}
            has_other_notes = {**index, **notes} != index
            if not index or output and has_other_notes:
                jobs = _plan_jobs(folder, texts, facts)
                _write_missing(target, jobs, kind, tokenizer, processes)
                tokenizer.save_pretrained(folder / TOKENIZER)
                _write_index(target, kind, {**facts, **notes}, jobs)
    return target.address


def _notes(data: CorpusConfig, texts: list["Opened"]) -> dict[str, Any]:
    """Return what the index says of the text besides what the shards' bytes depend on."""
    notes: dict[str, Any] = {}
    weights = {source.name: source.weight for source in data.training if source.weight}
    if weights:
        notes["weights"] = weights
    articles = [text.articles for _, _, text in texts if text.articles]
    if articles:
        notes["article"] = articles[0]
    return notes


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
    wanted = [("text", data.source, "train", source) for source in data.training]
    for source in data.held_out:
        wanted.append(("validation", data.held_out_source, "validation", source))
    opened = []
    for purpose, key, split, source in wanted:
        form = source.form or data.form
        text = open_text(source, f"data.{key}", split, exact, data.article, form)
        opened.append((purpose, source.name or "", text))
    return opened


def _fingerprints(texts: list[Opened]) -> dict[str, Any]:
    """Return the fingerprints by purpose, and by name where a purpose has a list of sources."""
    fingerprints: dict[str, Any] = {}
    for purpose, name, text in texts:
        if name:
            by_name = fingerprints.setdefault(purpose, {})
            by_name[name] = text.fingerprint
        else:
            fingerprints[purpose] = text.fingerprint
    return fingerprints


def _check_same(folder: Path, facts: dict[str, Any]) -> None:
    """Raise UserError if the folder holds shards of another text, tokenizer or length."""
    plan = folder / shards.PLAN
    index = read_sealed(folder / shards.INDEX) or {}  # facts and more; a damaged one is rewritten
    with contextlib.suppress(FileNotFoundError, ValueError):
        same_plan = json.loads(plan.read_text()) == facts
        same_index = not index or index == {**index, **facts}
        if same_plan and same_index:
            return
        problem = "holds shards of another text, tokenizer or length; give a fresh folder"
        raise UserError(f"{folder}: {problem}")
    write_json(plan, facts)


def _plan_jobs(folder: Path, texts: list[Opened], facts: dict[str, Any]) -> list[ShardText]:
    """Return the text of each shard: parts of one source, of some `part_bytes` together."""
    size = facts["part_bytes"]
    jobs: list[ShardText] = []
    for purpose, name, text in texts:
        held_out = 1.0 if purpose == "validation" else facts["held_out"]
        sources = unpack_sizes(text, folder)
        parts = cut_parts(sources, size)
        for members in group(parts, lambda part: part.text_bytes, size):
            jobs.append(ShardText(len(jobs), members, held_out, name))
    return jobs


def _write_missing(
    target: Target, jobs: list[ShardText], kind: Kind, tokenizer: Any, processes: int | None
) -> None:
    """Write the shards that have no record yet, and their records."""
    folder = target.folder
    sizes = target.sizes()
    sweep(folder, shards.FILES)
    sweep(folder / "jobs", r"\d{5,}\.json")
    todo = [job for job in jobs if shards.read_record(folder, job.number, sizes) is None]
    total = sum(size_of(job.parts) for job in jobs)
    missing = sum(size_of(job.parts) for job in todo)

    # No more processes than there are batches.
    batch_count = math.ceil(missing / _BATCH)
    processes = min(processes or count_cores(), batch_count)
    dtype = "<u2" if len(tokenizer) <= 1 << 16 else "<u4"
    encoder = WordEncoder(kind.backend(tokenizer))
    tokenize = partial(_tokenize, kind, encoder, dtype)
    with waiting("writing token shards", total, "B", total - missing) as wait:
        batches = _read_batches(todo, kind, folder, wait.update)
        made = map_in_processes(folder, tokenize, batches, processes)
        with contextlib.closing(made):  # which ends the processes
            for number, pairs in itertools.groupby(made, key=lambda pair: pair[0]):
                rows = (by_split for _, by_split in pairs)
                names = shards.write_job(folder, number, kind, rows)
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
        train, validation = SPLITS
        split = validation if is_held_out(text, batch.held_out) else train
        segments = by_split[split]
        segments.texts.append(text)
        segments.ends.append(ends)
    made = {}
    for split, segments in by_split.items():
        if segments.texts:
            rows = kind.tokenize(encoder, segments)
            made[split] = rows._replace(tokens=rows.tokens.astype(dtype))
    return batch.job, made


def _write_index(target: Target, kind: Kind, facts: dict[str, Any], jobs: list[ShardText]) -> None:
    """Write the index, last of all: the shards, their counts and the facts of the format."""
    folder = target.folder
    sizes = target.sizes()
    members: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for job in jobs:
        record = shards.read_record(folder, job.number, sizes)
        assert record is not None, f"{folder}: a shard that was written is gone"
        for split, shard in record.items():
            if job.source:
                shard["source"] = job.source
            members[split].append(shard)

    splits = {}
    for split, shard_facts in members.items():
        counts = {name: sum(shard[name] for shard in shard_facts) for name in kind.counts}
        description = kind.describe(folder, target.address, split, shard_facts)
        splits[split] = {"shards": shard_facts, "counts": counts, **description}
    index = seal({**facts, "splits": splits})
    write_json(folder / shards.INDEX, index)

    # The index makes the others count, so it goes last.
    names = [path.name for path in folder.glob("*-lengths.npy")]
    for path in (folder / TOKENIZER).iterdir():
        names.append(f"{TOKENIZER}/{path.name}")
    target.move(names, shards.INDEX)
