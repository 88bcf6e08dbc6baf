"""Prediction of a file of questions by all slots of a Determined trial.

Chunks of questions are parts; ranks answer them in turn. After each round of parts all ranks save
their answers so far into one checkpoint, at which the trial may be preempted; a restart, on any
number of ranks, answers the rest. At the end rank 0 joins the parts to the files that one process
would write.

Every rank holds all questions, though it answers its parts only: so ranks share no order but the
file's. Determined's `torch_batch_process` was not taken: its checkpoints hold a count of steps, and
not the answers, so a restart on other slots would leave out questions in silence.
"""

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from determined import core

from detalbert.engine.cpu import set_threads
from detalbert.engine.rows import CHUNK
from detalbert.errors import UserError
from detalbert.files import write_json
from detalbert.inference.answering import Answered, answer
from detalbert.inference.file_questions import Questions
from detalbert.inference.find import find
from detalbert.inference.model import Trained, choose_threshold, load_model
from detalbert.inference.predict_file import (
    PREDICTIONS,
    UNCALIBRATED_LINE,
    score_table,
    write_answers,
)
from detalbert.squad.windows import Example
from detalbert.sums import Json
from detalbert.training import master
from detalbert.training.local import Ranks

ROUNDS = 20  # checkpoints of a file, if nothing interrupts it
REQUEST = "request.json"  # in a checkpoint: what its parts are answers to
log = logging.getLogger(__name__)


def answer_on_all_slots(
    name: str,
    data: str,
    *,
    changes: Sequence[str],
    threshold: str | None,
    threads: int | Literal["auto"],
    raw: bool,
) -> None:
    """Answer this rank's parts of `predict.py --model NAME --data DATA` in a trial. Collective.

    Args:
        changes, threshold, threads, raw: `--set`, `--threshold`, `--threads`, `--raw`.

    Raises:
        UserError: as `load_model` and `predict` do, on all ranks, and if the checkpoint has
            answers to other questions.
    """
    # One slot without a launcher, or a process for each slot of torch's launcher.
    launched = "RANK" in os.environ
    distributed = core.DistributedContext.from_torch_distributed() if launched else None
    with core.init(distributed=distributed) as context:
        ranks = Ranks(context.distributed)
        set_threads(threads, context.distributed)
        trained = _load(name, ranks, raw)
        null_threshold = choose_threshold(trained, threshold)

        # A fault of the file is found on all ranks, before the first answer.
        questions = Questions(trained, data, changes)
        examples = ranks.on_all(list, questions)
        request = {
            "model": name,
            "data": data,
            "questions": len(examples),
            "fingerprint": questions.source.fingerprint,
            "threshold": null_threshold,
            "raw": raw,
        }
        if ranks.is_chief:
            # By which the run can be told from others on the master.
            master.keep_resolved({"prediction": request})
            master.extend_name(f"{Path(name).name}, {Path(data).name}")
        with tempfile.TemporaryDirectory() as folder:
            _answer_parts(context, questions, examples, request, Path(folder))


def _load(name: str, ranks: Ranks, raw: bool) -> Trained:
    """Load the model on this rank's device. Collective."""
    model = ranks.on_all(find, name)
    # The registry may get a version in between.
    if len(set(ranks.distributed.allgather(model.name))) > 1:
        problem = "resolves to different checkpoints on different ranks"
        raise UserError(problem, key=f"--model {name}", cure="name a version")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", ranks.distributed.local_rank)
    trained = load_model(str(model), device=device)
    return trained.uncalibrated() if raw else trained


def _answer_parts(
    context: core.Context,
    questions: Questions,
    examples: list[Example],
    request: Json,
    folder: Path,
) -> None:
    """Answer what no earlier start of the trial has answered, and join the answers. Collective.

    Args:
        examples: all of the questions.
        request: what must not change between a trial's starts.
        folder: of this rank; gets a file for each part that it has.
    """
    distributed = context.distributed
    chunks = [examples[start : start + CHUNK] for start in range(0, len(examples), CHUNK)]
    checkpoint = master.task().latest_checkpoint
    answered: set[int] = set()
    if checkpoint is not None:
        with context.checkpoint.restore_path(checkpoint) as path:
            if (path / PREDICTIONS).exists():
                _say(f"everything is answered already, in checkpoint {checkpoint}")
                return
            answered = _restore(path, request, folder, is_chief=distributed.rank == 0)
    if distributed.rank == 0:
        write_json(folder / REQUEST, request)

    # The other parts are dealt anew: the number of ranks may have changed.
    remaining = [part for part in range(len(chunks)) if part not in answered]
    per_round = distributed.size * max(1, len(remaining) // (ROUNDS * distributed.size))
    _say(f"answering {len(remaining)} of {len(chunks)} parts on {distributed.size} slot(s)")
    for start in range(0, len(remaining), per_round):
        parts = remaining[start : start + per_round][distributed.rank :: distributed.size]
        own = (example for part in parts for example in chunks[part])
        answers = answer(questions.trained, own, request["threshold"])
        for part, part_answers in zip(parts, answers, strict=True):
            values = part_answers._asdict()
            del values["examples"]
            values["losses"] = part_answers.losses.tolist()
            write_json(folder / _name(part), values)

        # All ranks save together, so that a checkpoint has all answers so far.
        done = len(chunks) - len(remaining[start + per_round :])
        metadata = {"steps_completed": done}
        checkpoint = context.checkpoint.upload(folder, metadata, shard=True)
        _say(f"{done} of {len(chunks)} parts are answered: checkpoint {checkpoint}")
        if distributed.rank == 0:
            context.train.report_progress(done / len(chunks))
        if context.preempt.should_preempt():
            return
    if distributed.rank == 0 and checkpoint is not None:
        _join(context, questions, chunks, request["threshold"], checkpoint)


def _restore(path: Path, request: Json, folder: Path, is_chief: bool) -> set[int]:
    """Return the parts that a checkpoint in `path` has; rank 0 copies them into `folder`."""
    if json.loads((path / REQUEST).read_text()) != request:
        problem = "its answers are of another model, file or threshold"
        raise UserError(problem, key="the trial's checkpoint", cure="start a new experiment")
    files = sorted(path.glob("part-*.json"))
    for file in files if is_chief else ():
        (folder / file.name).write_bytes(file.read_bytes())
    return {int(file.stem.removeprefix("part-")) for file in files}


def _join(
    context: core.Context,
    questions: Questions,
    chunks: list[list[Example]],
    threshold: float,
    checkpoint: str,
) -> None:
    """Write the files of a single process from all parts, into a last checkpoint."""
    with (
        context.checkpoint.restore_path(checkpoint, core.DownloadMode.NoSharedDownload) as parts,
        tempfile.TemporaryDirectory() as folder,
    ):
        outcome = write_answers(_read(parts, chunks), questions, Path(folder), threshold)
        steps = len(chunks) + 1
        stored = context.checkpoint.upload(folder, {"steps_completed": steps})
    if outcome.metrics:
        context.train.report_validation_metrics(steps, outcome.metrics)
        _say(score_table(outcome))
    if not questions.trained.is_calibrated:
        _say(UNCALIBRATED_LINE)
    _say(f"predictions are in checkpoint {stored}: det checkpoint download {stored}")


def _read(folder: Path, chunks: list[list[Example]]) -> Iterator[Answered]:
    """Yield the answers in the folder of a checkpoint, in the order of the questions."""
    for part, examples in enumerate(chunks):
        values = json.loads((folder / _name(part)).read_text())
        losses = np.array(values.pop("losses"), dtype=np.float32)
        yield Answered(examples, losses=losses, **values)


def _name(part: int) -> str:
    return f"part-{part:06d}.json"


def _say(text: str) -> None:
    """Log `text` on rank 0."""
    if os.environ.get("RANK", "0") == "0":
        log.info("%s", text)
