"""All jobs of a text, shared out over processes; then the index that makes them a corpus."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Dict, List, Optional

import filelock
import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from hparams import Unavailable, UserError
from pretrain.hparams import PretrainData
from pretrain.shards import FORMAT, SPLITS, Job, Plan, group_spans, is_done, record_path, run_job
from pretrain.sources import Text, open_text
from pretrain.words import WordEncoder
from run_folder import write_json

_TEXT_PER_TOKEN_BYTE = 2.2  # English: some 4.5 characters a piece, which takes two bytes


def tokenizer_sum(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the fast tokenizer: pieces, merges, normalizer."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def write_corpus(
    data: PretrainData,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    folder: Optional[Path] = None,
    processes: Optional[int] = None,
) -> Path:
    """The folder of the shards of `data.text`, written unless it is whole already.

    Args: folder: default: one below `data.cache_dir` that is named after all that its bytes
    depend on, so another text or tokenizer has another. processes: default: one per core.
    Raises UserError for text that cannot be read and a folder that cannot be written.
    """
    part = max(1, int(data.shard_mib * (1 << 20) * _TEXT_PER_TOKEN_BYTE))
    texts = _open_texts(data, part)
    facts = {
        "format": FORMAT,
        "max_seq_length": max_seq_length,
        "tokenizer": tokenizer_sum(tokenizer),
        "part_bytes": part,
        "held_out": 0.0 if "validation" in texts else data.validation_fraction,
        "text": {key: text.fingerprint for key, text in texts.items()},
    }
    if folder is None:
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
        folder = Path(data.cache_dir) / f"shards-{key}"
    try:
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"):
            _check_same(folder, facts)
            if not (folder / "index.json").is_file():
                jobs = _plan_jobs(texts, part, facts["held_out"])
                _run(Plan(folder, tokenizer, max_seq_length), jobs, processes)
                _write_index(folder, facts, len(jobs))
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write token shards: {error.strerror or error}; free space, or set "
            "data.cache_dir"
        ) from None
    return folder


def _open_texts(data: PretrainData, part: int) -> Dict[str, Text]:
    """Text by what it is for. Without "validation" a part of "text" is held out."""
    texts = {"text": open_text(data.text, "data.text", part, "train")}
    if data.validation is not None or data.text == "generated":
        name = data.validation or data.text
        texts["validation"] = open_text(name, "data.validation", part, "validation")
    return texts


def _check_same(folder: Path, facts: Dict[str, Any]) -> None:
    """Refuse to mix two texts in one folder that the user named."""
    try:
        if json.loads((folder / "plan.json").read_text()) != facts:
            raise UserError(
                f"{folder}: holds shards of another text, tokenizer or length; give a fresh folder"
            )
    except (FileNotFoundError, ValueError):
        write_json(folder / "plan.json", facts)


def _plan_jobs(texts: Dict[str, Text], part: int, held_out: float) -> List[Job]:
    groups = [(group, held_out) for group in group_spans(texts["text"].spans, part)]
    if "validation" in texts:
        groups += [(group, 1.0) for group in group_spans(texts["validation"].spans, part)]
    return [Job(number, *group) for number, group in enumerate(groups)]


def _run(plan: Plan, jobs: List[Job], processes: Optional[int]) -> None:
    _sweep(plan.folder)
    todo = [job for job in jobs if not is_done(plan.folder, job.number)]
    sizes = {job.number: sum(span.end - span.begin for span in job.spans) for job in jobs}
    total = sum(sizes.values())
    done = total - sum(sizes[job.number] for job in todo)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processes = min(processes or cores or 1, len(todo))
    with tqdm(
        total=total, initial=done, unit="B", unit_scale=True, desc="token shards",
        file=sys.stderr, disable=None, dynamic_ncols=True,
    ) as bar:  # fmt: skip
        if processes <= 1:
            encoder = WordEncoder(plan.tokenizer.backend_tokenizer)
            for job in todo:
                for size in run_job(plan, job, encoder):
                    bar.update(size)
        else:
            _run_parallel(plan, todo, processes, bar)


def _sweep(folder: Path) -> None:
    """Remove what killed processes had not finished."""
    for left in folder.glob(".*.bin.*"):
        left.unlink(missing_ok=True)


def _run_parallel(plan: Plan, jobs: List[Job], processes: int, bar: tqdm) -> None:
    """Workers take the next job by a shared counter; no queue, so none waits for a dead parent."""
    context = multiprocessing.get_context("fork")
    counter, progress = context.Value("q", 0), context.Value("q", 0)
    pipes = [context.Pipe(duplex=False) for _ in range(processes)]
    workers = [
        context.Process(target=_work, args=(plan, jobs, counter, progress, send, os.getpid()))
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
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
        _sweep(plan.folder)
    for (receive, _), worker in zip(pipes, workers, strict=True):
        if receive.poll():
            kind, text = receive.recv()
            raise {"user": UserError, "unavailable": Unavailable}.get(kind, RuntimeError)(text)
        if worker.exitcode not in (0, -15):
            raise Unavailable(
                f"{plan.folder}: a writer of token shards was killed (exit {worker.exitcode}), "
                "perhaps for memory; run the same command to go on, or lower data.shard_mib"
            )


def _work(plan: Plan, jobs: List[Job], counter: Any, progress: Any, send: Any, parent: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread: the cores have a worker each
    try:
        encoder = WordEncoder(plan.tokenizer.backend_tokenizer)
        while True:
            with counter.get_lock():
                number = counter.value
                counter.value += 1
            if number >= len(jobs):
                return
            for size in run_job(plan, jobs[number], encoder):
                with progress.get_lock():
                    progress.value += size
                if os.getppid() != parent:  # killed: its next run does the rest
                    os._exit(1)
    except UserError as error:
        send.send(("unavailable" if isinstance(error, Unavailable) else "user", str(error)))
    except OSError as error:
        problem = f"{plan.folder}: cannot write token shards: {error.strerror or error}"
        send.send(("user", f"{problem}; free space, or set data.cache_dir"))
    except BaseException:
        send.send(("bug", traceback.format_exc()))
    else:
        return
    with contextlib.suppress(OSError):
        send.close()
    os._exit(3)


def _write_index(folder: Path, facts: Dict[str, Any], jobs: int) -> None:
    """`index.json`, last of all: what shards there are, and the length of every example."""
    records = [json.loads(record_path(folder, number).read_text()) for number in range(jobs)]
    splits = {}
    for split in SPLITS:
        shards = [record[split] for record in records if split in record]
        lengths = [_lengths(folder / shard["name"], shard["columns"]) for shard in shards]
        table = np.concatenate([np.zeros((0, 2), "<u2"), *lengths])
        path = folder / f"{split}-lengths.npy"
        with path.open("wb") as file:
            np.save(file, table)
            file.flush()
            os.fsync(file.fileno())
        names = ("examples", "documents", "sentences", "tokens")
        splits[split] = {
            "shards": shards,
            "counts": {name: sum(shard[name] for shard in shards) for name in names},
            "lengths_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    write_json(folder / "index.json", {**facts, "splits": splits})


def _lengths(path: Path, columns: Dict[str, Any]) -> np.ndarray:
    """Text tokens and sentences of every example of a shard, uint16 [E, 2]."""
    both = []
    for name in ("token_ptr", "sentence_ptr"):
        dtype, offset, count = columns[name]
        pointer = np.memmap(path, dtype, "r", offset, (count,))
        both.append(np.diff(pointer).astype("<u2"))
    return np.stack(both, axis=1)
