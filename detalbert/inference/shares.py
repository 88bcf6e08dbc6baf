"""Prediction of a file of questions by all slots of a Determined trial.

Every rank answers its share of the parts, and sends the answers to rank 0, which writes the files
of a single process, as one checkpoint. There is no checkpoint before that: a trial that is
preempted or fails starts over, as SQuAD's questions take minutes, and no partial answers can be
taken for all. Every rank holds all questions: so ranks share no order but the file's.
"""

import itertools
import logging
import os
import tempfile
from argparse import Namespace
from pathlib import Path

import torch
from determined import core

from detalbert.engine.cpu import set_threads
from detalbert.engine.rows import CHUNK
from detalbert.errors import UserError
from detalbert.inference.answering import Answered, answer, join
from detalbert.inference.file_questions import Questions
from detalbert.inference.find import find
from detalbert.inference.model import Trained, choose_threshold, load_model
from detalbert.inference.predict_file import (
    UNCALIBRATED_LINE,
    score_table,
    write_answers,
)
from detalbert.squad.example import Example
from detalbert.training import master
from detalbert.training.local import Ranks

log = logging.getLogger(__name__)


def answer_on_all_slots(args: Namespace) -> None:
    """Answer this rank's parts of `predict.py --model NAME --data DATA` in a trial. Collective.

    Args:
        args: predict.py's flags.

    Raises:
        UserError: as `load_model` and `predict` do, on all ranks.
    """
    # One slot without a launcher, or a process for each slot of torch's launcher.
    launched = "RANK" in os.environ
    distributed = core.DistributedContext.from_torch_distributed() if launched else None
    with core.init(distributed=distributed) as context:
        ranks = Ranks(context.distributed)
        set_threads(args.threads, context.distributed)
        trained = _load(args.model, ranks)
        threshold = choose_threshold(trained, args.threshold)

        # A fault of the file is found on all ranks, before the first answer.
        questions = Questions(trained, args.data, args.set or ())
        examples = ranks.on_all(list, questions)
        if context.distributed.rank == 0:
            # By which the run can be told from others on the master.
            request = {
                "model": args.model,
                "data": args.data,
                "questions": len(examples),
                "fingerprint": questions.source.fingerprint,
                "threshold": threshold,
            }
            master.keep_resolved({"prediction": request})
            master.extend_name(f"{Path(args.model).name}, {Path(args.data).name}")
        parts = _answer_parts(
            context,
            ranks,
            questions,
            examples,
            threshold,
        )
        if parts is not None:
            _write(context, join(parts), questions, threshold)


def _load(name: str, ranks: Ranks) -> Trained:
    """Load the model on this rank's device. Collective."""
    model = ranks.on_all(find, name)
    # The registry may get a version in between.
    if len(set(ranks.distributed.allgather(model.name))) > 1:
        problem = "resolves to different checkpoints on different ranks"
        raise UserError(problem, key=f"--model {name}", cure="name a version")
    if torch.cuda.is_available():
        torch.cuda.set_device(ranks.distributed.local_rank)
    return load_model(str(model))


def _answer_parts(
    context: core.Context,
    ranks: Ranks,
    questions: Questions,
    examples: list[Example],
    threshold: float,
) -> list[Answered] | None:
    """Answer every size-th part of `examples` on each rank. Collective.

    Returns:
        On rank 0 the answers to all, in order; None on the others, and if the trial is preempted.
    """
    rank = context.distributed.rank
    size = context.distributed.size
    parts = [examples[start : start + CHUNK] for start in range(0, len(examples), CHUNK)]
    own = itertools.chain.from_iterable(parts[rank::size])
    answers = answer(questions.trained, own, threshold)
    answered: list[Answered] = []
    if rank == 0:
        log.info("questions: %s, slots: %s", len(examples), size)
    for first in range(0, len(parts), size):
        # In the last round some ranks have nothing to answer.
        part = ranks.on_all(next, answers, None)
        if part is not None:
            answered.append(part)
        if rank == 0:
            context.train.report_progress(min(1.0, (first + size) / len(parts)))
        if context.preempt.should_preempt():
            return None
    gathered = context.distributed.gather(answered)
    if gathered is None:
        return None
    rounds = itertools.zip_longest(*gathered)
    return [part for part in itertools.chain.from_iterable(rounds) if part is not None]


def _write(
    context: core.Context, answers: Answered, questions: Questions, threshold: float
) -> None:
    """Write the files of a single process as the trial's one checkpoint, and report the scores."""
    steps = len(answers.examples)
    with tempfile.TemporaryDirectory() as folder:
        outcome = write_answers(answers, questions, Path(folder), threshold)
        stored = context.checkpoint.upload(folder, {"steps_completed": steps})
    if outcome.metrics:
        context.train.report_validation_metrics(steps, outcome.metrics)
        log.info("%s", score_table(outcome))
    if not questions.trained.is_calibrated:
        log.info("%s", UNCALIBRATED_LINE)
    log.info("predictions are in checkpoint %s: det checkpoint download %s", stored, stored)
