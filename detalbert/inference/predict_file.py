"""Prediction of a file of questions to the official files, with scores if it has answers.

All answers are in memory before the first is written, a few kilobytes for each question. That buys
files of one set of answers: a fault in the last row leaves nothing behind.
"""

import csv
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from detalbert.errors import UserError
from detalbert.escapes import csv_cell
from detalbert.files import whole_files, writing
from detalbert.hub import STATE_DICT
from detalbert.inference.answering import Answered, answer, join
from detalbert.inference.file_questions import Questions, TrainingQuestions
from detalbert.inference.model import Trained
from detalbert.progress import waiting
from detalbert.squad.calibration import given
from detalbert.squad.error_groups import find_group
from detalbert.squad.metrics import score
from detalbert.squad.windows import Example
from detalbert.training.folder import ELSEWHERE, claim_folder
from detalbert.training.manifest import MANIFEST
from detalbert.training.metrics_file import METRICS_FILE

PREDICTIONS = "predictions.json"
NULL_ODDS = "null_odds.json"
N_BEST = "nbest_predictions.json"
TABLE = "predictions.csv"
WRITTEN = (
    PREDICTIONS,
    NULL_ODDS,
    N_BEST,
    TABLE,
    METRICS_FILE,
)
UNCALIBRATED_LINE = (
    "uncalibrated: no validation shows that these probabilities hold; they only rank answers"
)
# Columns of TABLE behind the user's own.
_COLUMNS = (
    "answer",
    "probability",
    "calibration",
    "error",
    "trained_on",
    "left_out",
)


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
        chunks = []
        with waiting("answering", unit="questions") as wait:
            for chunk in answer(trained, questions, threshold):
                chunks.append(chunk)
                wait.update(len(chunk.examples))
        return write_answers(join(chunks), questions, folder, threshold)


def check_folder(folder: Path, data: str) -> None:
    """Raise UserError if a prediction into `folder` would replace what no prediction wrote.

    A folder of answers has the lock file of `claim_folder`, and nothing of a run.
    """
    key = f"--output-dir {folder}"
    marks = (
        "checkpoints",
        "config.yaml",
        "step-*",
        MANIFEST,
        STATE_DICT,
    )
    if any(any(folder.glob(mark)) for mark in marks):
        problem = "a run's folder, its predictions and metrics would be replaced"
        raise UserError(problem, key=key, cure="give another")
    is_own = (folder / ".lock").exists()
    for path in (folder / name for name in WRITTEN):
        if path.exists() and not (is_own and path.absolute() != Path(data).absolute()):
            problem = f"predict.py did not write its {path.name}"
            raise UserError(problem, key=key, cure="give another")


def write_answers(
    answers: Answered, questions: Questions, folder: Path, threshold: float
) -> Outcome:
    """Write the files of `predict`.

    Args:
        answers: to all questions.
        questions: where they are from, with their rows and those left out.
    """
    training = TrainingQuestions(questions.trained.data)
    metrics = score_answers(answers, training, threshold)
    errors = {example.id: _error_of(example, answers) for example in answers.examples}
    with writing(folder, ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)
        with whole_files() as open_file:
            _write_mapping(open_file(folder / PREDICTIONS), answers.predictions)
            _write_mapping(open_file(folder / NULL_ODDS), answers.null_odds)
            _write_mapping(open_file(folder / N_BEST), answers.n_best)
            _write_table(open_file(folder / TABLE), answers, questions, training, errors)
            if metrics:
                json.dump(metrics, open_file(folder / METRICS_FILE), indent=1)
        # Scores that stand beside these answers must be theirs.
        if not metrics:
            (folder / METRICS_FILE).unlink(missing_ok=True)
    return Outcome(metrics, errors=Counter(errors.values()))


def score_answers(
    answers: Answered, training: TrainingQuestions, threshold: float
) -> dict[str, float]:
    """Return scores of all labelled questions, of those trained on and of the others; {} if none
    is labelled.
    """
    labelled = [example for example in answers.examples if example.answers is not None]
    if not labelled:
        return {}
    # Spans: the best thresholds do not depend on the one in use.
    metrics = score(labelled, answers.spans, answers.null_odds, threshold)
    metrics["loss"] = float(answers.losses.mean(dtype=np.float64))
    trained_on = [example for example in labelled if training.has(example)]
    if trained_on:
        held_out = [example for example in labelled if not training.has(example)]
        parts = {
            "trained_on_": trained_on,
            "held_out_": held_out,
        }
        for prefix, part in parts.items():
            scores = score(part, answers.spans, answers.null_odds, threshold)
            for name in ("exact", "f1", "total"):
                metrics[f"{prefix}{name}"] = scores[name]
    return metrics


def _error_of(example: Example, answers: Answered) -> str:
    """Return the group of a wrong answer; "" if it is right, or that is not known."""
    if example.answers is None:
        return ""
    labels = [text for text, _ in example.answers]
    return find_group(labels, answers.predictions[example.id])


def _write_mapping(file: TextIO, entries: Mapping[str, object]) -> None:
    """Write a JSON mapping, each entry on a line."""
    # Without `indent`, ten times as fast.
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    lines = [f" {encode(name)}: {encode(value)}" for name, value in entries.items()]
    file.write("{\n" + ",\n".join(lines) + "\n}")


def _write_table(
    file: TextIO,
    answers: Answered,
    questions: Questions,
    training: TrainingQuestions,
    errors: Mapping[str, str],
) -> None:
    """Write predictions.csv: the answered questions, then those left out.

    Who asks from a sheet wants it back with the answers beside it: of questions from a table a row
    begins with the table's own columns, in their order; of others with id and question.
    """
    rows = []
    yes_or_no = {
        True: "yes",
        False: "no",
        None: "",
    }
    for example in answers.examples:
        prediction = answers.predictions[example.id]
        entry = given(answers.n_best[example.id], prediction)
        row = {
            "id": example.id,
            "question": example.question,
            "answer": prediction.strip(),
            "probability": f"{entry['probability']:.4f}",
            "calibration": "calibrated" if questions.trained.is_calibrated else "uncalibrated",
            "error": errors[example.id],
            "trained_on": yes_or_no[training.has(example)],
        }
        rows.append(row)
    for question in questions.left_out:
        rows.append(
            {
                "id": question.name,
                "left_out": question.problem,
            }
        )

    # A question that is left out may have the id of another, whose cells are its own.
    first = questions.cells.get(rows[0]["id"], {"id": "", "question": ""})
    taken = {column.lower() for column in first}
    file.write("\ufeff")  # marks it as UTF-8 for spreadsheets
    writer = csv.writer(file)
    names = [f"model_{name}" if name in taken else name for name in _COLUMNS]
    writer.writerow([*first, *names])
    for row in rows:
        own = questions.cells.pop(row["id"], row)
        texts = [own.get(column) or "" for column in first]
        texts += [row.get(column, "") for column in _COLUMNS]
        writer.writerow([csv_cell(str(text)) for text in texts])


def score_table(outcome: Outcome) -> str:
    """Format the scores, and the number of wrong answers by group, as short tables."""
    metrics = outcome.metrics
    parts = {
        "all": "",
        "answerable": "HasAns_",
        "unanswerable": "NoAns_",
        "trained on": "trained_on_",
        "held out": "held_out_",
    }
    lines = [f"{'':14}{'questions':>9}{'exact':>9}{'f1':>9}"]
    for name, prefix in parts.items():
        if metrics.get(f"{prefix}total"):
            total, exact, f1 = (metrics[f"{prefix}{key}"] for key in ("total", "exact", "f1"))
            lines.append(f"{name:14}{total:9,}{exact:9.2f}{f1:9.2f}")
    for name, key in {"best threshold": "best_{}", "  which is": "best_{}_thresh"}.items():
        exact, f1 = metrics[key.format("exact")], metrics[key.format("f1")]
        lines.append(f"{name:23}{exact:9.2f}{f1:9.2f}")
    for group, count in outcome.errors.most_common():
        if group:
            lines.append(f"{group:32}{count:9,}")
    return "\n".join(lines)
