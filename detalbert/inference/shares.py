"""Answers to a file of questions from all ranks of a Determined trial: `configs/predict.yaml`.

A part is CHUNK questions, which `answer` runs together, so results do not depend on the rank. The
remaining parts are distributed to the ranks in turn. Every few minutes, and on preemption by the
master, all ranks save their answers so far into one checkpoint; a restart, on any number of ranks,
answers the rest. At the end rank 0 joins the parts to the files that one process would write.
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
from typing import Any

import numpy as np
import torch
from determined import core
from determined.core import DownloadMode

from detalbert.atomic import write_json
from detalbert.engine.cpu import set_threads
from detalbert.engine.rows import CHUNK
from detalbert.errors import UserError
from detalbert.inference.answering import Answered, answer
from detalbert.inference.find import describe_reference, find
from detalbert.inference.model import (
    Trained,
    choose_probabilities,
    choose_threshold,
    load_model,
)
from detalbert.inference.predict_file import Questions, score_table, write_answers
from detalbert.log import silence
from detalbert.squad.windows import Example
from detalbert.training import master
from detalbert.training.local import Ranks
from detalbert.training.manifest import find_fault
from detalbert.training.uploads import UploadedParts
from detalbert.waiting import PERIOD as SILENCE

PERIOD = 300.0  # seconds between checkpoints
ASKED = "asked.json"  # in a checkpoint: what its parts are answers to
PREDICTIONS = "predictions.json"
log = logging.getLogger(__name__)


def answer_on_all_slots(
    name: str,
    data: str,
    open_questions: Callable[[Trained], Questions],
    wanted: str | None,
    threads: Any,
    raw: bool,
) -> None:
    """Answer this rank's parts of `predict.py --model NAME --data DATA` in a trial. Collective.

    Args:
        open_questions: returns the questions of `--data`, which is `data`, for a model.
        wanted, threads, raw: `--threshold`, `--threads`, `--raw`.

    Raises:
        UserError: as `load_model` and `predict` do, of a question on all ranks, and if the
            checkpoint has answers to other questions.
    """
    launched = "RANK" in os.environ
    distributed = core.DistributedContext.from_torch_distributed() if launched else None
    mode = core.PreemptMode.WorkersAskMaster  # a slot asks after each part, in its own time
    with (
        core.init(distributed=distributed, preempt_mode=mode) as context,
        tempfile.TemporaryDirectory() as own,
    ):
        distributed = context.distributed
        set_threads(threads, distributed)
        if distributed.rank == 0:
            context.train.set_status("loading")
            log.info("loading the model %s and the questions of %s", name, data)
        on_gpu = torch.cuda.is_available()
        device = torch.device("cuda", distributed.local_rank) if on_gpu else torch.device("cpu")
        folder = find(name)
        if len(set(distributed.allgather(folder))) > 1:  # the registry got a version in between
            raise UserError(f"--model {name}: it became another one; say which version")
        trained = load_model(str(folder), device)
        threshold = choose_threshold(trained, wanted)
        trained = choose_probabilities(trained, raw, said=distributed.rank == 0)
        questions = open_questions(trained)
        asked: dict[str, Any] = {"model": folder.name, "questions": questions.stamp(), "raw": raw}
        total = Ranks(distributed).on_all(questions.read_through, trained)
        asked |= {"total": total, "threshold": threshold, "chunk": CHUNK}
        if distributed.rank == 0:
            _record(name, data, asked)
        job = _Job(context, asked, questions, Path(own))
        if job.restore(master.task().latest_checkpoint):
            job.run(zip(job.mine, answer(trained, job.questions(), threshold), strict=True))


def _record(name: str, data: str, asked: dict[str, Any]) -> None:
    """Show on the master what is answered by which model: in the run's metadata and in the name of
    the experiment, by which two predictions differ in a list.
    """
    reference = describe_reference(name, uuid=asked["model"])
    facts = {
        "model": name,
        **reference,
        "data": data,
        "questions": asked["total"],
        "threshold": asked["threshold"],
        "threads": torch.get_num_threads(),
        "raw": asked["raw"],
    }
    master.keep_resolved({"prediction": facts})
    model = name
    if "version" in reference and not name.endswith(f":{reference['version']}"):
        model = f"{name}:{reference['version']}"
    master.extend_name(f"{_last_part(model)}, {_last_part(data)}")


def _last_part(address: str) -> str:
    return address.rstrip("/").rsplit("/", 1)[-1]


class _Job:
    """Parts answered by this rank, in the folder `own`.

    Args:
        asked: facts that must not change between a trial's allocations: the model's folder name,
            the questions (SHA-256 of the file, or `--data` itself), their number, the threshold.
        source: the questions.
    """

    def __init__(
        self, context: core.Context, asked: dict[str, Any], source: Questions, own: Path
    ) -> None:
        self.context, self.asked, self.source, self.own = context, asked, source, own
        self.distributed = context.distributed
        self.chief = self.distributed.rank == 0
        self.parts = -(-asked["total"] // CHUNK)
        self.turns = slice(self.distributed.rank, None, self.distributed.size)
        self.mine = list(range(self.parts))[self.turns]  # what this rank answers
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
            _check(path, checkpoint)
            for key, value in json.loads((path / ASKED).read_text()).items():
                if (now := self.asked.get(key)) != value:
                    said = f"{key}: the answers so far are for {value}, and this is {now}"
                    raise UserError(f"{said}; start a new experiment")
            there = sorted(part.name for part in path.glob("part-*.json"))
            for part in there[self.turns]:
                shutil.copy(path / part, self.own)
        self.mine = [n for n in range(self.parts) if _name(n) not in there][self.turns]
        self.stored, self.stored_parts = checkpoint, len(there)
        self.say(f"{len(there)} of {self.parts} parts are answered already")
        return True

    def questions(self) -> Iterator[Example]:
        """Yield the questions that this rank answers, in order."""
        mine = set(self.mine)
        for number, example in enumerate(self.source):
            if number // CHUNK in mine:
                yield example

    def run(self, answers: Iterator[tuple[int, Answered]]) -> None:
        """Answer and save until all is answered, or the master preempts the trial."""
        asked = f"{self.asked['total']:,} questions in {self.parts} parts"
        self.say(f"answering {asked} on {self.distributed.size} slot(s)", "answering")
        while True:
            everywhere = self.distributed.allgather(self._answer(answers))
            self._store()
            if all(ended for ended, _ in everywhere):
                break
            if any(stopped for _, stopped in everywhere):
                if self.chief:
                    self.context.preempt.acknowledge_preemption_signal()
                    self.context.train.set_status("stopped")
                return
        if self.chief:
            self._join()

    def _answer(self, answers: Iterator[tuple[int, Answered]]) -> tuple[bool, bool]:
        """Answer for PERIOD seconds; return whether none are left, and if the master preempts."""
        until = time.monotonic() + PERIOD
        while time.monotonic() < until:
            if self.context.preempt.should_preempt(auto_ack=False):
                return False, True
            if (found := next(answers, None)) is None:
                return True, False
            number, answered = found
            values = {**answered._asdict(), "losses": answered.losses.tolist()}
            del values["examples"]
            write_json(self.own / _name(number), values)
            if self.chief:
                done = min(self.parts, len(list(self.own.iterdir())) * self.distributed.size)
                self.context.train.report_progress(done / self.parts)
                if silence() > SILENCE:
                    self.say(f"about {done} of {self.parts} parts are answered")
        return False, False

    def _store(self) -> None:
        """Save all ranks' parts so far into one checkpoint; rank 0 logs it. Collective."""
        done = sum(self.distributed.allgather(len(list(self.own.iterdir()))))
        if done == self.stored_parts:
            return
        store = UploadedParts(self.context.checkpoint, lambda path: set())
        with store.store_together({"steps_completed": done}, self.distributed) as (folder, name):
            for part in self.own.iterdir():
                os.link(part, folder / part.name)
            if self.chief:
                write_json(folder / ASKED, self.asked)
        self.stored, self.stored_parts = name, done
        self.say(f"{done} of {self.parts} parts are answered: checkpoint {self.stored}")

    def _join(self) -> None:
        """Write the files of a single process from all parts in the last checkpoint."""
        checkpoint, steps = self.context.checkpoint, self.parts + 1
        total, threshold = self.asked["total"], self.asked["threshold"]
        assert self.stored is not None
        with (
            checkpoint.restore_path(self.stored, DownloadMode.NoSharedDownload) as parts,
            tempfile.TemporaryDirectory() as out,
        ):
            _check(parts, self.stored)
            metrics = write_answers(
                self._read(parts), total, Path(out), threshold, self.source.left_out
            )
            stored = checkpoint.upload(out, {"steps_completed": steps})
        if metrics:
            self.context.train.report_validation_metrics(steps, metrics)
            self.say(score_table(metrics))
        where = f"predictions are in checkpoint {stored}: det checkpoint download {stored}"
        self.say(where, "done")

    def _read(self, parts: Path) -> Iterator[Answered]:
        questions = iter(self.source)
        for number in range(self.parts):
            values = json.loads((parts / _name(number)).read_text())
            losses = np.array(values.pop("losses"), np.float32)
            examples = list(itertools.islice(questions, CHUNK))
            yield Answered(examples, losses=losses, **values)

    def say(self, text: str, state: str | None = None) -> None:
        if self.chief:
            log.info("%s", text)
            if state:
                self.context.train.set_status(state)


def _check(path: Path, checkpoint: str) -> None:
    if fault := find_fault(path):
        raise UserError(f"checkpoint {checkpoint}: {fault}; start the experiment anew")


def _name(part: int) -> str:
    return f"part-{part:06d}.json"
