"""Text -> a corpus: processes share the chunks of its jobs; the index comes last."""

import contextlib
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from detalbert.atomic import whole_file, write_json
from detalbert.corpus.chunks import SPLITS, Chunk, Job, Plan, chunk_path, cut_job, write_chunk
from detalbert.corpus.shards import FORMAT, is_done, join_chunks, record_path, sweep
from detalbert.corpus.sources import Text, group_parts, open_text, size_of
from detalbert.corpus.storage import writing
from detalbert.corpus.words import WordEncoder
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.processes import count_cores, end_with_parent
from detalbert.settings.text import TextConfig
from detalbert.squad.tokenizer import tokenizer_sum

_EXAMPLES = 1 << 16  # lengths of so many are read at a time
_TEXT_PER_TOKEN_BYTE = 2.2  # English: some 4.5 characters per token, which takes two bytes


def write_corpus(
    data: TextConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    folder: Path | None = None,
    processes: int | None = None,
) -> Path:
    """The folder of the shards of `data.text`; writes what is missing.

    Args: folder: default: one below `data.cache_dir`, whose name is a hash of all that its bytes
    depend on, so another text or tokenizer has another. processes: default: one per core.
    Raises UserError for text that cannot be read and a folder that cannot be written.
    """
    part_bytes = max(1, int(data.shard_mib * (1 << 20) * _TEXT_PER_TOKEN_BYTE))
    texts = _open_texts(data, part_bytes)
    facts = {
        "format": FORMAT,
        "max_seq_length": max_seq_length,
        "tokenizer": tokenizer_sum(tokenizer),
        "part_bytes": part_bytes,
        "held_out": 0.0 if "validation" in texts else data.validation_fraction,
        "text": {key: text.fingerprint for key, text in texts.items()},
    }
    if folder is None:
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
        folder = Path(data.cache_dir) / f"shards-{key}"
    with writing(folder, "token shards"):
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"):
            _check_same(folder, facts)
            if not (folder / "index.json").is_file():
                jobs = _plan_jobs(texts, part_bytes, facts["held_out"])
                _run(Plan(folder, tokenizer, max_seq_length), jobs, processes)
                _write_index(folder, facts, len(jobs))
    return folder


def _open_texts(data: TextConfig, part_bytes: int) -> dict[str, Text]:
    """Text by what it is for. Without "validation", some documents of "text" are held out."""
    texts = {"text": open_text(data.text, "data.text", part_bytes, "train")}
    if data.validation is not None or data.text == "generated":
        name = data.validation or data.text
        texts["validation"] = open_text(name, "data.validation", part_bytes, "validation")
    return texts


def _check_same(folder: Path, facts: dict[str, Any]) -> None:
    """Refuse to mix two texts in one folder that the user named."""
    try:
        if json.loads((folder / "plan.json").read_text()) != facts:
            raise UserError(
                f"{folder}: holds shards of another text, tokenizer or length; give a fresh folder"
            )
    except (FileNotFoundError, ValueError):
        write_json(folder / "plan.json", facts)


def _plan_jobs(texts: dict[str, Text], part_bytes: int, held_out: float) -> list[Job]:
    groups = [(group, held_out) for group in group_parts(texts["text"].parts, part_bytes)]
    if "validation" in texts:
        groups += [(group, 1.0) for group in group_parts(texts["validation"].parts, part_bytes)]
    return [Job(number, *group) for number, group in enumerate(groups)]


def _run(plan: Plan, jobs: list[Job], processes: int | None) -> None:
    sweep(plan.folder)
    todo = [cut_job(job) for job in jobs if not is_done(plan.folder, job.number)]
    total = sum(size_of(job.parts) for job in jobs)
    missing = sum(size_of(chunk.parts) for chunks in todo for chunk in chunks)
    processes = min(processes or count_cores(), sum(map(len, todo)))
    with tqdm(
        total=total, initial=total - missing, unit="B", unit_scale=True, desc="token shards",
        file=sys.stderr, disable=None, dynamic_ncols=True,
    ) as bar:  # fmt: skip
        if processes > 1:
            _run_parallel(plan, todo, processes, bar)
            return
        encoder = WordEncoder(plan.tokenizer.backend_tokenizer)
        for chunks in todo:
            for chunk in chunks:
                write_chunk(plan, chunk, encoder)
                bar.update(size_of(chunk.parts))
            _join_written(plan, [chunks])


def _join_written(plan: Plan, todo: list[list[Chunk]]) -> None:
    """Join the jobs at the front of `todo` whose chunks are all written, and take them off."""
    while todo and all(chunk_path(plan.folder, p.job, p.number).exists() for p in todo[0]):
        chunks = todo.pop(0)
        join_chunks(plan, chunks[0].job, len(chunks))


def _run_parallel(plan: Plan, todo: list[list[Chunk]], processes: int, bar: tqdm) -> None:
    """Workers take the next chunk by a shared counter: there is no queue to wait on for ever.

    This process joins what they wrote, in the order of the jobs.
    """
    chunks = [chunk for job in todo for chunk in job]
    context = multiprocessing.get_context("fork")
    counter, progress = context.Value("q", 0), context.Value("q", 0)
    pipes = [context.Pipe(duplex=False) for _ in range(processes)]
    workers = [
        context.Process(target=_work, args=(plan, chunks, counter, progress, send, os.getpid()))
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
        for worker in workers:
            worker.terminate()
            worker.join()
        sweep(plan.folder)
    for (receive, _), worker in zip(pipes, workers, strict=True):
        if receive.poll():
            kind, text = receive.recv()
            raise kind(text)
        if worker.exitcode not in (0, -15):
            raise Unavailable(
                f"{plan.folder}: a writer of token shards was killed (exit {worker.exitcode}), "
                "perhaps for memory; run the same command to go on"
            )


def _work(
    plan: Plan, chunks: list[Chunk], counter: Any, progress: Any, send: Any, parent: int
) -> None:
    end_with_parent(parent)  # the next run does the rest
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread: the cores have a worker each
    try:
        encoder = WordEncoder(plan.tokenizer.backend_tokenizer)
        while True:
            with counter.get_lock():
                number = counter.value
                counter.value += 1
            if number >= len(chunks):
                return
            write_chunk(plan, chunks[number], encoder)
            with progress.get_lock():
                progress.value += size_of(chunks[number].parts)
    except (UserError, OSError) as error:
        send.send((type(error) if isinstance(error, UserError) else OSError, first_line(error)))
    except BaseException:
        send.send((RuntimeError, traceback.format_exc()))
    else:
        return
    with contextlib.suppress(OSError):
        send.close()
    os._exit(3)


def _write_index(folder: Path, facts: dict[str, Any], jobs: int) -> None:
    """Write the lengths of all examples, and last of all `index.json`: what shards there are."""
    records = [json.loads(record_path(folder, number).read_text()) for number in range(jobs)]
    splits = {}
    for split in SPLITS:
        shards = [record[split] for record in records if split in record]
        names = ("examples", "documents", "sentences", "tokens")
        counts = {name: sum(shard[name] for shard in shards) for name in names}
        splits[split] = {
            "shards": shards,
            "counts": counts,
            "lengths_sha256": _write_lengths(folder, split, shards, counts["examples"]),
        }
    write_json(folder / "index.json", {**facts, "splits": splits})


def _write_lengths(folder: Path, split: str, shards: list[dict[str, Any]], examples: int) -> str:
    """Write text tokens and sentences of every example, uint16 [E, 2]; returns the SHA-256."""
    header = io.BytesIO()
    facts = {"descr": "<u2", "fortran_order": False, "shape": (examples, 2)}
    np.lib.format.write_array_header_1_0(header, facts)
    tables = (_lengths(folder / shard["name"], shard["columns"]) for shard in shards)
    blocks = (table.tobytes() for table in itertools.chain.from_iterable(tables))
    digest = hashlib.sha256()
    with whole_file(folder / f"{split}-lengths.npy", binary=True) as file:
        for block in itertools.chain((header.getvalue(),), blocks):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _lengths(path: Path, columns: dict[str, Any]) -> Iterator[np.ndarray]:
    """Text tokens and sentences of every example of a shard, uint16 [some, 2]."""
    examples = columns["token_ptr"][2] - 1
    for at in range(0, examples, _EXAMPLES):
        both = []
        for name in ("token_ptr", "sentence_ptr"):
            dtype, offset, _ = columns[name]
            count = min(_EXAMPLES, examples - at) + 1
            pointer = np.fromfile(path, dtype, count, offset=offset + 8 * at)  # [some + 1]
            both.append(np.diff(pointer).astype("<u2"))  # [some]
        yield np.stack(both, axis=1)
