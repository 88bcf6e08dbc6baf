"""Writing of a corpus: processes share the chunks of its jobs; the index is written last."""

import contextlib
import hashlib
import itertools
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import filelock
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from detalbert.atomic import write_json
from detalbert.corpus.chunks import (
    SPLITS,
    Chunk,
    Plan,
    ShardText,
    chunk_path,
    cut_job,
    write_chunk,
)
from detalbert.corpus.examples import Examples
from detalbert.corpus.reader import remove_damaged
from detalbert.corpus.shards import FORMAT, is_done, join_chunks, read_record, sweep
from detalbert.corpus.sources import (
    Part,
    Text,
    cut_parts,
    group_parts,
    open_text,
    size_of,
    unpack_sizes,
)
from detalbert.corpus.storage import writing
from detalbert.corpus.words import make_encoder
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.integrity import is_sealed, seal
from detalbert.processes import CHILDREN, count_cores
from detalbert.settings.text import TextConfig
from detalbert.squad.tokenizer import tokenizer_sum

_TEXT_PER_TOKEN_BYTE = 2.2  # English: some 4.5 characters per token, which takes two bytes


def write_corpus(
    data: TextConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    folder: Path | None = None,
    processes: int | None = None,
) -> Path:
    """Write `data.text` as shards of ALBERT examples; return their folder. See `write_shards`."""
    part_bytes = text_bytes(data.shard_mib)
    texts = _open_texts(data, part_bytes)
    facts = {
        "format": FORMAT,
        "max_seq_length": max_seq_length,
        "tokenizer": tokenizer_sum(tokenizer),
        "part_bytes": part_bytes,
        "held_out": 0.0 if "validation" in texts else data.validation_fraction,
        "text": {key: text.fingerprint for key, text in texts.items()},
    }
    folder = folder or shards_folder(Path(data.cache_dir), facts)
    write_shards(Plan(folder, tokenizer, Examples(max_seq_length)), facts, texts, processes)
    return folder


def text_bytes(shard_mib: float) -> int:
    """Return the approximate bytes of text for a shard of `shard_mib` MiB of tokens."""
    return max(1, int(shard_mib * (1 << 20) * _TEXT_PER_TOKEN_BYTE))


def shards_folder(cache: Path, facts: dict[str, Any]) -> Path:
    """Return the default folder of shards, which depends on `facts`."""
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return cache / f"shards-{key}"


def write_shards(
    plan: Plan, facts: dict[str, Any], texts: dict[str, Text], processes: int | None = None
) -> None:
    """Write missing or damaged shards of `texts["text"]` and, if present, ["validation"].

    Args:
        facts: all that the shards' bytes depend on, with `part_bytes` of text per shard and the
            fraction `held_out` of documents for validation.
        processes: default: one per core.

    Raises:
        UserError: if text cannot be read or the folder cannot be written.
    """
    folder = plan.folder
    with writing(folder, "token shards"):
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"):
            _check_same(folder, facts)
            remove_damaged(folder)
            if not (folder / "index.json").is_file():
                jobs = _plan_jobs(folder, texts, facts)
                _run(plan, jobs, processes)
                _write_index(plan, facts, len(jobs))


def _open_texts(data: TextConfig, part_bytes: int) -> dict[str, Text]:
    """Open the texts by purpose. Without "validation", some documents of "text" are held out."""
    assert data.text is not None  # `data.shards` is
    texts = {"text": open_text(data.text, "data.text", part_bytes, "train")}
    if data.validation is not None or data.text == "generated":
        name = data.validation or data.text
        texts["validation"] = open_text(name, "data.validation", part_bytes, "validation")
    return texts


def _check_same(folder: Path, facts: dict[str, Any]) -> None:
    """Raise UserError if the folder holds shards of another text, tokenizer or length."""
    try:
        if json.loads((folder / "plan.json").read_text()) != facts:
            raise UserError(
                f"{folder}: holds shards of another text, tokenizer or length; give a fresh folder"
            )
    except (FileNotFoundError, ValueError):
        write_json(folder / "plan.json", facts)


def _plan_jobs(folder: Path, texts: dict[str, Text], facts: dict[str, Any]) -> list[ShardText]:
    part_bytes, jobs = facts["part_bytes"], list[ShardText]()
    for key, parts in _unpack_sizes(folder, texts).items():
        held_out = 1.0 if key == "validation" else facts["held_out"]
        groups = group_parts(list(cut_parts(parts, part_bytes)), part_bytes)
        jobs += [ShardText(len(jobs) + n, group, held_out) for n, group in enumerate(groups)]
    return jobs


def _unpack_sizes(folder: Path, texts: dict[str, Text]) -> dict[str, list[Part]]:
    """Return the ranges of `texts` with uncompressed sizes, cached in a file as that is slow."""
    if not any(part.packed for text in texts.values() for part in text.parts):
        return {key: text.parts for key, text in texts.items()}
    path = folder / "sizes.json"
    try:
        sizes = json.loads(path.read_text())
        if not is_sealed(sizes):
            raise ValueError
    except (FileNotFoundError, ValueError, AttributeError):
        found = {key: unpack_sizes(text.parts) for key, text in texts.items()}
        sizes = {key: [part.size for part in parts] for key, parts in found.items()}
        write_json(path, seal(sizes))
    return {
        key: [p._replace(end=n, size=n) for p, n in zip(text.parts, sizes[key], strict=True)]
        for key, text in texts.items()
    }


def _run(plan: Plan, jobs: list[ShardText], processes: int | None) -> None:
    sweep(plan.folder)
    todo = {job.number: cut_job(job) for job in jobs if not is_done(plan.folder, job.number)}
    tasks = _share_out([chunk for chunks in todo.values() for chunk in chunks])
    total = sum(size_of(job.parts) for job in jobs)
    missing = sum(size_of(chunk.parts) for chunks in tasks for chunk in chunks)
    processes = min(processes or count_cores(), len(tasks))
    look: Any = {"unit": "B", "unit_scale": True, "file": sys.stderr, "disable": None}
    look |= {"desc": "token shards", "dynamic_ncols": True}
    with tqdm(total=total, initial=total - missing, **look) as bar:
        if processes > 1:
            _run_parallel(plan, todo, tasks, processes, bar)
            return
        encoder = make_encoder(plan.tokenizer.backend_tokenizer)
        for chunk in itertools.chain.from_iterable(tasks):
            write_chunk(plan, chunk, encoder)
            bar.update(size_of(chunk.parts))
            _join_written(plan, todo)


def _share_out(chunks: list[Chunk]) -> list[list[Chunk]]:
    """Group chunks into tasks: one chunk, or all consecutive ones of one stream (see `packed`)."""
    tasks: list[list[Chunk]] = []
    for chunk in chunks:
        stream = chunk.parts[0].stream
        if stream and tasks and tasks[-1][0].parts[0].stream == stream:
            tasks[-1].append(chunk)
        else:
            tasks.append([chunk])
    return tasks


def _join_written(plan: Plan, todo: dict[int, list[Chunk]]) -> None:
    """Join jobs whose chunks are all written; drop them, and first written chunks, from `todo`."""
    for job, chunks in list(todo.items()):
        while chunk_path(plan.folder, job, chunks[0].number).exists():
            if len(chunks) == 1:
                join_chunks(plan, job, chunks[0].number + 1)
                del todo[job]
                break
            del chunks[0]


def _run_parallel(
    plan: Plan,
    todo: dict[int, list[Chunk]],
    tasks: list[list[Chunk]],
    processes: int,
    bar: tqdm,
) -> None:
    """Run workers that take tasks by a shared counter; join what they wrote in this process. A
    counter, unlike a queue, cannot block indefinitely if a worker is killed.
    """
    counter, progress = CHILDREN.Value("q", 0), CHILDREN.Value("q", 0)
    pipes = [CHILDREN.Pipe(duplex=False) for _ in range(processes)]
    workers = [
        CHILDREN.Process(target=_work, args=(plan, tasks, counter, progress, send))
        for _, send in pipes
    ]
    for worker in workers:
        worker.start()
    shown, alive = 0, True
    try:
        while alive:
            alive = all(worker.exitcode in (None, 0) for worker in workers)
            alive = alive and any(worker.exitcode is None for worker in workers)
            time.sleep(0.02)
            done = progress.value
            bar.update(done - shown)
            shown = done
            _join_written(plan, todo)
    finally:
        ended = [worker.exitcode for worker in workers]  # by themselves
        for worker in workers:
            worker.kill()
            worker.join()
        sweep(plan.folder)
    for (receive, _), exitcode in zip(pipes, ended, strict=True):
        _raise_what_ended(plan.folder, receive, exitcode)


def _raise_what_ended(folder: Path, receive: Any, exitcode: int | None) -> None:
    if receive.poll():
        kind, text = receive.recv()
        raise kind(text)
    if exitcode not in (0, None):
        raise Unavailable(
            f"{folder}: a writer of token shards was killed (exit {exitcode}), perhaps for memory; "
            "run the same command to go on"
        )


def _work(plan: Plan, tasks: list[list[Chunk]], counter: Any, progress: Any, send: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread: the cores have a worker each
    try:
        encoder = make_encoder(plan.tokenizer.backend_tokenizer)
        while True:
            with counter.get_lock():
                number = counter.value
                counter.value += 1
            if number >= len(tasks):
                return
            for chunk in tasks[number]:
                write_chunk(plan, chunk, encoder)
                with progress.get_lock():
                    progress.value += size_of(chunk.parts)
    except (UserError, OSError) as error:
        send.send((type(error) if isinstance(error, UserError) else OSError, first_line(error)))
    except BaseException:
        send.send((RuntimeError, traceback.format_exc()))
    else:
        return
    with contextlib.suppress(OSError):
        send.close()
    os._exit(3)


def _write_index(plan: Plan, facts: dict[str, Any], jobs: int) -> None:
    """Write `index.json`, last of all: the shards, their counts and the facts of the format."""
    records = [read_record(plan.folder, number) for number in range(jobs)]
    splits = {}
    for split in SPLITS:
        shards = [record[split] for record in records if split in record]
        splits[split] = {
            "shards": shards,
            "counts": {name: sum(shard[name] for shard in shards) for name in plan.kind.counts},
            **plan.kind.describe(plan.folder, split, shards),
        }
    write_json(plan.folder / "index.json", seal({**facts, "splits": splits}))
