"""Prediction of a file of questions to the official files, with scores if it has answers.

The file is read while it is answered, so a fault in its last row comes late; nothing has its name
before the last answer. That buys memory that does not grow with the file.
"""

import contextlib
import csv
import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from detalbert.errors import UserError
from detalbert.escapes import csv_cell
from detalbert.files import whole_files, writing
from detalbert.hub import STATE_DICT
from detalbert.inference.answering import Answered, answer
from detalbert.inference.file_questions import Questions, TrainingQuestions
from detalbert.inference.model import Trained
from detalbert.progress import waiting
from detalbert.squad.calibration import given
from detalbert.squad.error_groups import GROUPS, find_group
from detalbert.squad.metrics import Tally
from detalbert.squad.windows import Example
from detalbert.training.folder import ELSEWHERE, claim_folder
from detalbert.training.manifest import MANIFEST
from detalbert.training.metrics_file import METRICS_FILE

PREDICTIONS = "predictions.json"
NULL_ODDS = "null_odds.json"
N_BEST = "nbest_predictions.json"
TABLE = "predictions.csv"
WRITTEN = (PREDICTIONS, NULL_ODDS, N_BEST, TABLE, METRICS_FILE)
UNCALIBRATED_LINE = (
    "uncalibrated: no validation shows that these probabilities hold; they only rank answers"
)
# Columns of TABLE behind the user's own.
_COLUMNS = ("answer", "probability", "calibration", "error", "trained_on", "left_out")
# Prefixes in metrics.json of the questions that the model was trained on, and of the others.
TRAINED_ON = "trained_on_"
HELD_OUT = "held_out_"


class Outcome(NamedTuple):
    """Scores of a file of answers."""

    metrics: dict[str, float]  # {} without known answers
    errors: Counter[str]  # wrong answers by their group


def predict(trained: Trained, questions: Questions, folder: Path, threshold: float) -> Outcome:
    """Answer questions into `folder`.

    `folder` receives the files of WRITTEN, metrics.json if the questions have answers; they get
    their names together, after the last answer.

    Args:
        threshold: null odds above which the model abstains.

    Raises:
        UserError: `check_folder` refuses the folder, or a question cannot be answered.
    """
    check_folder(folder, questions.data)
    with claim_folder(folder):
        chunks = answer(trained, questions, threshold)
        return write_answers(chunks, questions, folder, threshold)


def check_folder(folder: Path, data: str) -> None:
    """Raise UserError if a prediction into `folder` would replace what no prediction wrote.

    A folder of answers has the lock file of `claim_folder`, and nothing of a run.
    """
    key = f"--output-dir {folder}"
    marks = ("checkpoints", "config.yaml", "step-*", MANIFEST, STATE_DICT)
    if any(any(folder.glob(mark)) for mark in marks):
        problem = "a run's folder, its predictions and metrics would be replaced"
        raise UserError(problem, key=key, cure="give another")
    is_own = (folder / ".lock").exists()
    for path in (folder / name for name in WRITTEN):
        if path.exists() and not (is_own and path.absolute() != Path(data).absolute()):
            problem = f"predict.py did not write its {path.name}"
            raise UserError(problem, key=key, cure="give another")


def write_answers(
    chunks: Iterable[Answered], questions: Questions, folder: Path, threshold: float
) -> Outcome:
    """Write the files of `predict`.

    Args:
        chunks: the answers to all questions, in order.
        questions: where they are from, with their rows and those left out.
    """
    trained = questions.trained
    scores = _Scores(TrainingQuestions(trained.data))
    with writing(folder, ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)

        # All files are written as the answers come, and get their names after the last one.
        with (
            whole_files() as open_file,
            _json_mapping(open_file(folder / PREDICTIONS)) as add_predictions,
            _json_mapping(open_file(folder / NULL_ODDS)) as add_null_odds,
            _json_mapping(open_file(folder / N_BEST)) as add_n_best,
            waiting("answering", unit="questions") as wait,
        ):
            table = _AnswerTable(open_file(folder / TABLE), questions, scores.training)
            for chunk in chunks:
                add_predictions(chunk.predictions)
                add_null_odds(chunk.null_odds)
                add_n_best(chunk.n_best)
                scores.add(chunk)
                table.add(chunk)
                wait.update(len(chunk.examples))
            table.add_left_out()
            metrics = scores.metrics(threshold)
            if metrics:
                json.dump(metrics, open_file(folder / METRICS_FILE), indent=1)
        # Scores that stand beside these answers must be theirs.
        if not metrics:
            (folder / METRICS_FILE).unlink(missing_ok=True)
    return Outcome(metrics, scores.errors)


class _Scores:
    """Scores and wrong answers of the questions whose answers are known.

    Args:
        training: tells which questions the model was trained on.
    """

    def __init__(self, training: TrainingQuestions) -> None:
        self.training = training
        self.tallies = {prefix: Tally() for prefix in ("", TRAINED_ON, HELD_OUT)}
        self.losses: list[np.ndarray] = []  # fp32 [windows] each
        self.errors: Counter[str] = Counter()

    def add(self, chunk: Answered) -> None:
        """Count the answers to some questions."""
        labelled = [example for example in chunk.examples if example.answers is not None]
        if not labelled:
            return
        trained_on = [example for example in labelled if self.training.has(example)]
        held_out = [example for example in labelled if not self.training.has(example)]
        for tally, part in zip(
            self.tallies.values(), (labelled, trained_on, held_out), strict=True
        ):
            # Spans: the best thresholds do not depend on the one in use.
            tally.add(part, chunk.spans, chunk.null_odds)
        self.losses.append(chunk.losses)
        self.errors.update(error_of(example, chunk) for example in labelled)

    def metrics(self, threshold: float) -> dict[str, float]:
        """Return all scores; {} without known answers."""
        if not self.losses:
            return {}
        metrics = self.tallies[""].metrics(threshold)
        metrics["loss"] = float(np.concatenate(self.losses).mean(dtype=np.float64))
        parts = {name: self.tallies[name].metrics(threshold) for name in (TRAINED_ON, HELD_OUT)}
        if parts[TRAINED_ON]["total"]:
            for prefix, part in parts.items():
                metrics |= {f"{prefix}{name}": part[name] for name in ("exact", "f1", "total")}
        return metrics


def error_of(example: Example, chunk: Answered) -> str:
    """Return the group of a wrong answer; "" if it is right, or that is not known."""
    if example.answers is None:
        return ""
    labels = [text for text, _ in example.answers]
    return find_group(labels, chunk.predictions[example.id])


class _AnswerTable:
    """The rows of predictions.csv, written as the answers come, below a header.

    Who asks from a sheet wants it back with the answers beside it: of questions from a table a row
    begins with the table's own columns, in their order; of others with id and question.
    """

    def __init__(self, file: TextIO, questions: Questions, training: TrainingQuestions) -> None:
        file.write("\ufeff")  # marks it as UTF-8 for spreadsheets
        self.writer = csv.writer(file)
        self.questions = questions
        self.training = training
        self.calibration = "calibrated" if questions.trained.is_calibrated else "uncalibrated"
        self.own: list[str] = []  # the first columns, known with the first row

    def add(self, chunk: Answered) -> None:
        """Write the answers to some questions, without the white space around them."""
        for example in chunk.examples:
            prediction = chunk.predictions[example.id]
            entry = given(chunk.n_best[example.id], prediction)
            is_trained_on = self.training.has(example)
            self._write(
                id=example.id,
                question=example.question,
                answer=prediction.strip(),
                probability=f"{entry['probability']:.4f}",
                calibration=self.calibration,
                error=error_of(example, chunk),
                trained_on={True: "yes", False: "no", None: ""}[is_trained_on],
            )

    def add_left_out(self) -> None:
        """Write the questions without an answer; their ids may be those of others."""
        for question in self.questions.left_out:
            self._write(id=question.name, left_out=question.problem)

    def _write(self, **cells: str) -> None:
        default = {name: cells.get(name, "") for name in ("id", "question")}
        own = self.questions.cells.pop(cells["id"], default)
        if not self.own:
            self.own = list(own)
            names = [_free_name(name, self.own) for name in _COLUMNS]
            self.writer.writerow([*self.own, *names])
        row = [own.get(column) or "" for column in self.own]
        row += [cells.get(column, "") for column in _COLUMNS]
        self.writer.writerow([csv_cell(str(value)) for value in row])


def _free_name(name: str, columns: Collection[str]) -> str:
    """Return the name of a new column: `name`, or `model_name` if the table has one of that name,
    as `answer` or, for who reads the file again, `Answer`.
    """
    taken = {column.lower() for column in columns}
    while name in taken:
        name = f"model_{name}"
    return name


@contextlib.contextmanager
def _json_mapping(file: TextIO) -> Iterator[Callable[[Mapping[str, object]], None]]:
    """Yield a function that appends entries to a JSON mapping, each on a line, as `write_json`."""
    separators = itertools.chain(["{\n "], itertools.repeat(",\n "))

    def add(entries: Mapping[str, object]) -> None:
        # Entry by entry: the n-best lists of a large file do not fit in memory.
        for name, value in entries.items():
            file.write(f"{next(separators)}{_encode(name)}: {_encode(value)}")

    yield add
    file.write("\n}")


# Without `indent`, ten times as fast.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def score_table(outcome: Outcome) -> str:
    """Format the scores, and the number of wrong answers by group, as short tables."""
    metrics = outcome.metrics
    parts = {
        "all": "",
        "answerable": "HasAns_",
        "unanswerable": "NoAns_",
        "trained on": TRAINED_ON,
        "held out": HELD_OUT,
    }
    lines = [f"{'':14}{'questions':>9}{'exact':>9}{'f1':>9}"]
    for name, prefix in parts.items():
        if metrics.get(f"{prefix}total"):
            total, exact, f1 = (metrics[f"{prefix}{key}"] for key in ("total", "exact", "f1"))
            lines.append(f"{name:14}{total:9,}{exact:9.2f}{f1:9.2f}")
    for name, key in {"best threshold": "best_{}", "  which is": "best_{}_thresh"}.items():
        exact, f1 = metrics[key.format("exact")], metrics[key.format("f1")]
        lines.append(f"{name:23}{exact:9.2f}{f1:9.2f}")
    for group in GROUPS:
        if outcome.errors[group]:
            lines.append(f"{group:32}{outcome.errors[group]:9,}")
    return "\n".join(lines)
