"""Prediction of a file of questions to the official files, with scores if it has answers.

All answers are in memory before the first is written, a few kilobytes for each question. That buys
files of one set of answers: a fault in the last row leaves nothing behind.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from detalbert.addresses import check_there
from detalbert.errors import UserError
from detalbert.escapes import csv_cell
from detalbert.files import check_own, write_own, writing
from detalbert.hub import STATE_DICT
from detalbert.inference.answering import Answered, answer, join
from detalbert.inference.file_questions import Questions
from detalbert.inference.model import Trained
from detalbert.reading.records import READERS
from detalbert.squad.calibration import given
from detalbert.squad.error_groups import find_group
from detalbert.squad.metrics import score
from detalbert.training.folder import ELSEWHERE, METRICS_FILE, claim_folder
from detalbert.training.questions import TrainingQuestions

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
CURE = "move it away, or give another --output-dir"
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
        chunks = list(answer(trained, questions, threshold))
        return write_answers(join(chunks), questions, folder, threshold)


def check_folder(folder: Path, data: str) -> None:
    """Raise UserError if nothing is at `data`, or if a prediction into `folder` would replace what
    no prediction wrote, or the questions in `data`, or mix with the files of a run.
    """
    check_there(data, "--data", endings=READERS)
    key = f"--output-dir {folder}"
    if (folder / "checkpoints").exists() or (folder / STATE_DICT).exists():
        raise UserError("a run's folder", key=key, cure="give another")
    if Path(data).name in WRITTEN and Path(data).absolute().parent == folder.absolute():
        raise UserError(f"--data {data} would be replaced", key=key, cure="give another")
    check_own(folder, WRITTEN, CURE)


def write_answers(
    answers: Answered, questions: Questions, folder: Path, threshold: float
) -> Outcome:
    """Write the files of `predict`.

    Args:
        answers: to all questions.
        questions: where they are from, with their rows and those left out.
    """
    training = TrainingQuestions(questions.trained.data)
    language = questions.config.language
    metrics = score_answers(answers, training, threshold, language)
    errors = dict.fromkeys(answers.predictions, "")  # also of those that are not labelled
    for example in answers.examples:
        if example.answers is not None:
            labels = [text for text, _ in example.answers]
            errors[example.id] = find_group(labels, answers.predictions[example.id], language)
    texts = {
        PREDICTIONS: _format_mapping(answers.predictions),
        NULL_ODDS: _format_mapping(answers.null_odds),
        N_BEST: _format_mapping(answers.n_best),
        TABLE: _format_table(answers, questions, training, errors),
    }
    if metrics:
        texts[METRICS_FILE] = json.dumps({**metrics, "language": language}, indent=1)
    with writing(folder, ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)
        write_own(folder, texts)
        # Scores that stand beside these answers must be theirs.
        if not metrics:
            (folder / METRICS_FILE).unlink(missing_ok=True)
    return Outcome(metrics, errors=Counter(errors.values()))


def score_answers(
    answers: Answered, training: TrainingQuestions, threshold: float, language: str
) -> dict[str, float]:
    """Return scores of all labelled questions, of those trained on and of the others; {} if none
    is labelled.
    """
    labelled = [example for example in answers.examples if example.answers is not None]
    if not labelled:
        return {}
    # Spans: the best thresholds do not depend on the one in use.
    metrics = score(labelled, answers.spans, answers.null_odds, threshold, language)
    held_out = [example for example in labelled if not training.has(example)]
    if len(held_out) < len(labelled):
        trained_on = [example for example in labelled if training.has(example)]
        for prefix, part in (("trained_on_", trained_on), ("held_out_", held_out)):
            scores = score(part, answers.spans, answers.null_odds, threshold, language)
            metrics |= {f"{prefix}{name}": scores[name] for name in ("exact", "f1", "total")}
    return metrics


def _format_mapping(entries: Mapping[str, object]) -> str:
    """Return a JSON mapping, each entry on a line."""
    # Without `indent`, ten times as fast.
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    lines = [f" {encode(name)}: {encode(value)}" for name, value in entries.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _format_table(
    answers: Answered,
    questions: Questions,
    training: TrainingQuestions,
    errors: Mapping[str, str],
) -> str:
    """Return predictions.csv: the answered questions, then those left out.

    Who asks from a sheet wants it back with the answers beside it: of questions from a table a row
    begins with the table's own columns, in their order; of others with id and question.
    """
    rows = []
    yes_or_no = {True: "yes", False: "no", None: ""}
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
    file = io.StringIO()
    writer = csv.writer(file)
    names = [f"model_{name}" if name in taken else name for name in _COLUMNS]
    writer.writerow([*first, *names])
    for row in rows:
        own = questions.cells.pop(row["id"], row)
        texts = [own.get(column) or "" for column in first]
        texts += [row.get(column, "") for column in _COLUMNS]
        writer.writerow([csv_cell(str(text)) for text in texts])
    return "\ufeff" + file.getvalue()  # the mark says to spreadsheets that it is UTF-8


def score_table(outcome: Outcome) -> str:
    """Format the scores, and the number of wrong answers by group, as short tables."""
    metrics = outcome.metrics
    parts = {
        "all": "",
        "answerable": "HasAns_",
        "unanswerable": "NoAns_",
        "trained on, so too high": "trained_on_",
        "held out": "held_out_",
    }
    lines = [f"{'':32}{'questions':>9}{'exact':>9}{'f1':>9}"]
    for name, prefix in parts.items():
        total = metrics.get(f"{prefix}total")
        if total:
            exact, f1 = metrics[f"{prefix}exact"], metrics[f"{prefix}f1"]
            lines.append(f"{name:32}{total:9,}{exact:9.2f}{f1:9.2f}")
    # It is of these very questions: on others it gives less.
    for name, end in {"best threshold, fitted to these": "", "  which is": "_thresh"}.items():
        exact, f1 = metrics[f"best_exact{end}"], metrics[f"best_f1{end}"]
        lines.append(f"{name:41}{exact:9.2f}{f1:9.2f}")
    for group, count in outcome.errors.most_common():
        if group:
            lines.append(f"{group:32}{count:9,}")
    return "\n".join(lines)
