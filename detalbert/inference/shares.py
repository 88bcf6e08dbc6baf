"""Answers to a file of questions from all ranks of a Determined trial: `configs/predict.yaml`.

A part is CHUNK questions, which `answer` runs together, so results do not depend on the rank. The
remaining parts are distributed to the ranks in turn. Every few minutes, and on preemption by the
master, all ranks save their answers so far into one checkpoint; a restart, on any number of ranks,
answers the rest. At the end rank 0 joins the parts to the files that one process would write.

Every rank reads all questions, though it answers its parts only: reading costs little beside the
model, and so ranks share no order but the file's.
"""

import itertools
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from determined import core
from determined.core import DownloadMode

from detalbert.engine.cpu import set_threads
from detalbert.engine.rows import CHUNK
from detalbert.errors import UserError
from detalbert.files import write_json
from detalbert.inference.answering import Answered, answer
from detalbert.inference.find import find
from detalbert.inference.model import (
    Trained,
    choose_probabilities,
    choose_threshold,
    load_model,
)
from detalbert.inference.predict_file import Questions, write_answers
from detalbert.inference.references import JsonObject, describe_reference
from detalbert.inference.score_table import UNCALIBRATED_LINE, score_table
from detalbert.log import silence
from detalbert.progress import PERIOD as SILENCE
from detalbert.records import Row
from detalbert.squad.windows import Example
from detalbert.training import master
from detalbert.training.local import Ranks
from detalbert.training.manifest import find_fault
from detalbert.training.uploads import UploadedParts

PERIOD = 300.0  # seconds between checkpoints
ASKED = "asked.json"  # in a checkpoint: what its parts are answers to
PREDICTIONS = "predictions.json"
log = logging.getLogger(__name__)


def answer_on_all_slots(
    name: str,
    data: str,
    open_questions: Callable[[Trained], Questions],
    *,
    threshold: str | None,
    threads: int | Literal["auto"],
    raw: bool,
) -> None:
    """Answer this rank's parts of `predict.py --model NAME --data DATA` in a trial. Collective.

    Args:
        open_questions: returns the questions of `--data`, which is `data`, for a model.
        threshold, threads, raw: `--threshold`, `--threads`, `--raw`.

    Raises:
        UserError: as `load_model` and `predict` do, of a question on all ranks, and if the
            checkpoint has answers to other questions.
    """
    # One slot without a launcher, or a process for each slot of torch's launcher.
    launched = "RANK" in os.environ
    distributed = core.DistributedContext.from_torch_distributed() if launched else None
    mode = core.PreemptMode.WorkersAskMaster  # a slot asks after each part, in its own time
    with (
        core.init(distributed=distributed, preempt_mode=mode) as context,
        tempfile.TemporaryDirectory() as folder,
    ):
        distributed = context.distributed
        set_threads(threads, distributed)
        if distributed.rank == 0:
            context.train.set_status("loading")
            log.info("loading the model %s and the questions of %s", name, data)
        model = _find_same(name, distributed)
        trained = load_model(str(model), device=_device(distributed))
        null_threshold = choose_threshold(trained, threshold)
        trained = choose_probabilities(trained, raw)

        # Every rank reads all questions, so that all fail, or none does.
        questions = open_questions(trained)
        total = Ranks(distributed).on_all(questions.read_through, trained)
        request: JsonObject = {
            "model": model.name,
            "questions": questions.stamp(),
            "raw": raw,
            "total": total,
            "threshold": null_threshold,
            "chunk": CHUNK,
        }
        if distributed.rank == 0:
            _record(name, data, request)

        # Answer what an earlier allocation of the trial has left.
        job = _Job(
            context,
            asked=request,
            source=questions,
            own=Path(folder),
            calibrated=trained.is_calibrated,
        )
        if job.restore(master.task().latest_checkpoint):
            chunks = answer(trained, job.questions(), null_threshold)
            job.run(zip(job.remaining, chunks, strict=True))


def _find_same(name: str, distributed: core.DistributedContext) -> Path:
    """Return the model's folder; raise UserError if ranks find different ones: the registry may get
    a version in between. Collective.
    """
    folder = find(name)
    if len(set(distributed.allgather(folder))) > 1:
        problem = "resolves to different checkpoints on different ranks"
        raise UserError(problem, key=f"--model {name}", cure="name a version")
    return folder


def _device(distributed: core.DistributedContext) -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", distributed.local_rank)
    return torch.device("cpu")


def _record(name: str, data: str, request: JsonObject) -> None:
    """Show on the master what is answered by which model: in the run's metadata and in the name of
    the experiment, by which two predictions differ in a list.
    """
    reference = describe_reference(name, uuid=request["model"])
    prediction = {
        "model": name,
        **reference,
        "data": data,
        "questions": request["total"],
        "threshold": request["threshold"],
        "threads": torch.get_num_threads(),
        "raw": request["raw"],
    }
    master.keep_resolved({"prediction": prediction})

    # A list of experiments should tell which version it was, also of `model:NAME`.
    model = name
    if "version" in reference and not name.endswith(f":{reference['version']}"):
        model = f"{name}:{reference['version']}"
    master.extend_name(f"{_last_part(model)}, {_last_part(data)}")


def _last_part(address: str) -> str:
    return address.rstrip("/").rsplit("/", 1)[-1]


class _Progress(NamedTuple):
    """Why a rank stopped answering for a moment."""

    ended: bool = False  # its parts are all answered
    preempted: bool = False  # the master stops the trial


class _Job:
    """Parts answered by this rank, in the folder `own`.

    Args:
        asked: what must not change between a trial's allocations: the model's folder name, the
            questions (SHA-256 of the file, or `--data` itself), their number, the threshold.
        source: the questions.
        own: gets a file for each part that this rank answers.
        calibrated: whether a validation shows that the model's probabilities hold.
    """

    def __init__(
        self,
        context: core.Context,
        asked: JsonObject,
        source: Questions,
        own: Path,
        calibrated: bool,
    ) -> None:
        self.context = context
        self.asked = asked
        self.source = source
        self.own = own
        self.calibrated = calibrated
        self.distributed = context.distributed
        self.is_chief = self.distributed.rank == 0
        self.parts = -(-asked["total"] // CHUNK)
        self.turns = slice(self.distributed.rank, None, self.distributed.size)
        self.remaining = list(range(self.parts))[self.turns]  # what this rank answers
        self.stored: str | None = None  # the newest checkpoint
        self.stored_parts = 0  # in it

    def restore(self, checkpoint: str | None) -> bool:
        """Copy this rank's share of the parts in `checkpoint`; return False if all are done."""
        if checkpoint is None:
            return True
        with self.context.checkpoint.restore_path(checkpoint) as path:
            if (path / PREDICTIONS).is_file():
                self.say(f"everything is answered already, in checkpoint {checkpoint}")
                return False

            # Take over whole parts only, and only answers to the same questions.
            _check(path, checkpoint)
            self._check_asked(json.loads((path / ASKED).read_text()))
            stored = sorted(part.name for part in path.glob("part-*.json"))
            for part in stored[self.turns]:
                shutil.copy(path / part, self.own)

        # The other parts are dealt anew: the number of ranks may have changed.
        unanswered = [part for part in range(self.parts) if _name(part) not in stored]
        self.remaining = unanswered[self.turns]
        self.stored = checkpoint
        self.stored_parts = len(stored)
        self.say(f"{len(stored)} of {self.parts} parts are answered already")
        return True

    def _check_asked(self, earlier: JsonObject) -> None:
        """Raise UserError if the answers so far are of another model or to other questions."""
        for key, value in earlier.items():
            now = self.asked.get(key)
            if now != value:
                problem = f"the answers so far are for {value}, and this is {now}"
                raise UserError(problem, key=key, cure="start a new experiment")

    def questions(self) -> Iterator[Example]:
        """Yield the questions that this rank answers, in order."""
        remaining = set(self.remaining)
        for number, example in enumerate(self.source):
            if number // CHUNK in remaining:
                yield example

    def run(self, answers: Iterator[tuple[int, Answered]]) -> None:
        """Answer and save until all is answered, or the master preempts the trial."""
        size = f"{self.asked['total']:,} questions in {self.parts} parts"
        self.say(f"answering {size} on {self.distributed.size} slot(s)", state="answering")

        # All ranks stop together, so that all of them save the same checkpoint.
        while True:
            ranks = self.distributed.allgather(self._answer(answers))
            self._store()
            if all(progress.ended for progress in ranks):
                break
            if any(progress.preempted for progress in ranks):
                if self.is_chief:
                    self.context.preempt.acknowledge_preemption_signal()
                    self.context.train.set_status("stopped")
                return
        if self.is_chief:
            self._join()

    def _answer(self, answers: Iterator[tuple[int, Answered]]) -> _Progress:
        """Answer for PERIOD seconds, or until no part is left or the master preempts the trial."""
        until = time.monotonic() + PERIOD
        while time.monotonic() < until:
            if self.context.preempt.should_preempt(auto_ack=False):
                return _Progress(preempted=True)
            part = next(answers, None)
            if part is None:
                return _Progress(ended=True)

            # A file for each part: a checkpoint is a folder of them.
            number, answered = part
            values = answered._asdict()
            del values["examples"]
            values["losses"] = answered.losses.tolist()
            write_json(self.own / _name(number), values)
            if self.is_chief:
                self._report()
        return _Progress()

    def _report(self) -> None:
        """Report the share of the parts that is answered, if all ranks are as fast as this one."""
        done = min(self.parts, self._own_parts() * self.distributed.size)
        self.context.train.report_progress(done / self.parts)
        if silence() > SILENCE:
            self.say(f"about {done} of {self.parts} parts are answered")

    def _own_parts(self) -> int:
        return len(list(self.own.iterdir()))

    def _store(self) -> None:
        """Save all ranks' parts so far into one checkpoint; rank 0 logs it. Collective."""
        # A checkpoint costs an upload: none without a new part.
        done = sum(self.distributed.allgather(self._own_parts()))
        if done == self.stored_parts:
            return
        store = UploadedParts(self.context.checkpoint, lambda path: set())
        with store.store_together({"steps_completed": done}, self.distributed) as (folder, name):
            for part in self.own.iterdir():
                os.link(part, folder / part.name)
            if self.is_chief:
                write_json(folder / ASKED, self.asked)
        self.stored = name
        self.stored_parts = done
        self.say(f"{done} of {self.parts} parts are answered: checkpoint {self.stored}")

    def _join(self) -> None:
        """Write the files of a single process from all parts in the last checkpoint."""
        checkpoint = self.context.checkpoint
        steps = self.parts + 1
        assert self.stored is not None

        # The last checkpoint has every rank's parts; the next one gets the files made of them.
        with (
            checkpoint.restore_path(self.stored, DownloadMode.NoSharedDownload) as parts,
            tempfile.TemporaryDirectory() as folder,
        ):
            _check(parts, self.stored)
            cells: dict[str, Row] = {}
            metrics = write_answers(
                self._read(parts, cells),
                total=self.asked["total"],
                folder=Path(folder),
                threshold=self.asked["threshold"],
                calibrated=self.calibrated,
                left_out=self.source.left_out,
                cells=cells,
            )
            stored = checkpoint.upload(folder, {"steps_completed": steps})
        if metrics:
            self.context.train.report_validation_metrics(steps, metrics)
            self.say(score_table(metrics))
        if not self.calibrated:
            self.say(UNCALIBRATED_LINE)
        where = f"predictions are in checkpoint {stored}: det checkpoint download {stored}"
        self.say(where, state="done")

    def _read(self, parts: Path, cells: dict[str, Row]) -> Iterator[Answered]:
        """Yield the answers in the folder of a checkpoint, in the order of the questions, whose
        rows `cells` gets.
        """
        questions = self.source.examples(cells)
        for number in range(self.parts):
            values = json.loads((parts / _name(number)).read_text())
            losses = np.array(values.pop("losses"), dtype=np.float32)
            examples = list(itertools.islice(questions, CHUNK))
            yield Answered(examples, losses=losses, **values)

    def say(self, text: str, state: str | None = None) -> None:
        """Log `text`, and set the trial's status to `state`, if any; on rank 0."""
        if self.is_chief:
            log.info("%s", text)
            if state:
                self.context.train.set_status(state)


def _check(path: Path, checkpoint: str) -> None:
    """Raise UserError if a checkpoint is not complete."""
    fault = find_fault(path)
    if fault is not None:
        cure = "start the experiment anew"
        raise UserError(fault, key=f"checkpoint {checkpoint}", cure=cure)


def _name(part: int) -> str:
    return f"part-{part:06d}.json"
