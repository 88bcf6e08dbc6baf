"""Prediction of a file of questions to the official files, with scores if it has answers."""

import contextlib
import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detalbert.atomic import whole_file, write_json, writing
from detalbert.engine.rows import CHUNK
from detalbert.errors import UserError
from detalbert.escapes import csv_cell
from detalbert.inference.answering import Answered, answer
from detalbert.inference.model import Trained
from detalbert.squad import sources
from detalbert.squad.calibration import given
from detalbert.squad.metrics import Tally
from detalbert.squad.question_stream import read_questions
from detalbert.squad.windows import Example, check_questions_fit
from detalbert.training.folder import ELSEWHERE, claim_folder
from detalbert.training.timeline import list_checkpoints
from detalbert.waiting import waiting

METRICS = "metrics.json"


def predict(trained: Trained, data: str, folder: Path, threshold: float) -> dict[str, float]:
    """Answer the questions of `data` into `folder`; return the scores, {} without any answers.

    `data` is a file (see `question_stream`), or as in a run's `data.validation`. `folder` receives
    predictions.json, predictions.csv, null_odds.json, nbest.json and, if the file has answers,
    metrics.json; each is atomic, and after an error none is written. Raises UserError if `folder`
    is a run's.
    """
    _check_folder(folder)
    questions = open_questions(data, trained.data.get("columns"))
    total = read_through(trained, data, questions)
    with claim_folder(folder):
        return write_answers(answer(trained, questions, threshold), total, folder, threshold)


def write_answers(
    chunks: Iterable[Answered], total: int, folder: Path, threshold: float
) -> dict[str, float]:
    """Write the files of `predict` from all questions' answers, in order; return the scores."""
    tally, losses, metrics = Tally(), [], {}
    with writing(folder, ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            names = ("predictions.json", "null_odds.json", "nbest.json")
            writers = [stack.enter_context(_json_mapping(folder / name)) for name in names]
            wait = stack.enter_context(waiting("answering", total, "questions"))
            file = stack.enter_context(whole_file(folder / "predictions.csv"))
            file.write("\ufeff")  # marks it as UTF-8 for spreadsheets
            table = csv.writer(file)
            table.writerow(("id", "question", "answer", "probability", "start", "end"))
            for chunk in chunks:
                results: Any = chunk.predictions, chunk.null_odds, chunk.n_best
                for add, values in zip(writers, results, strict=True):
                    add(values)
                table.writerows(_csv_rows(chunk))
                if known := [each for each in chunk.examples if each.answers is not None]:
                    tally.add(known, chunk.predictions, chunk.null_odds)
                    losses.append(chunk.losses)
                wait.update(len(chunk.examples))
        if losses:
            loss = float(np.concatenate(losses).mean(dtype=np.float64))
            metrics = {**tally.metrics(threshold), "loss": loss}
            write_json(folder / METRICS, metrics)
        else:
            _remove_scores(folder / METRICS)
    return metrics


def _remove_scores(path: Path) -> None:
    """Remove the scores that an earlier call wrote, of other questions; another file stays."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and {"exact", "f1", "total"} <= content.keys():
            path.unlink()


def _check_folder(folder: Path) -> None:
    """Raise UserError for the folder of a run, whose predictions and metrics would be lost."""
    if list_checkpoints(folder / "checkpoints"):
        lost = "its predictions and metrics would be replaced"
        raise UserError(f"--output-dir {folder}: a run's folder, {lost}; give another")


@dataclass(frozen=True)
class _File:
    """The questions of a file, read one at a time whenever they are iterated over."""

    path: Path
    columns: Mapping[str, str] | None  # the file's names of columns

    def __iter__(self) -> Iterator[Example]:
        return read_questions(self.path, self.columns)


def open_questions(data: str, columns: Mapping[str, str] | None = None) -> Iterable[Example]:
    """Return the questions of `data`, to be iterated over any number of times. `columns` are the
    file's names of columns.
    """
    try:
        path = sources.find_file(data, "validation", Path(".cache"))
        if path is not None:
            return _File(path, columns)
        source = sources.open_source(data, "validation", Path(".cache"), columns)
        examples, _ = sources.read_examples(source)
        return examples
    except UserError as error:
        raise type(error)(str(error).replace("data.validation", "--data")) from None


def read_through(trained: Trained, data: str, questions: Iterable[Example]) -> int:
    """Return the number of the questions of `data`. Raises UserError for the first that cannot be
    answered, so that a fault in the last row is found before the model runs.
    """
    unread, total = iter(questions), 0
    sizes = trained.hparams.max_seq_length, trained.hparams.doc_stride
    while chunk := list(itertools.islice(unread, CHUNK)):
        try:
            check_questions_fit(chunk, trained.tokenizer, *sizes)
        except UserError as error:
            raise UserError(f"{data}: {error}") from None
        total += len(chunk)
    return total


@contextlib.contextmanager
def _json_mapping(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that appends entries to a JSON mapping, each on a line, as `write_json`."""
    with whole_file(path) as file:
        before = itertools.chain(["{\n "], itertools.repeat(",\n "))

        def add(values: dict[str, Any]) -> None:
            for name, value in values.items():
                file.write(f"{next(before)}{_encode(name)}: {_encode(value)}")

        yield add
        file.write("\n}")


def _csv_rows(chunk: Answered) -> Iterator[Sequence[Any]]:
    for example in chunk.examples:
        prediction = chunk.predictions[example.id]
        entry, probability = given(chunk.n_best[example.id], prediction)
        start = entry["start"] + len(prediction) - len(prediction.lstrip())
        place = (start, start + len(prediction.strip())) if prediction else ("", "")
        cells = map(csv_cell, (example.id, example.question, prediction.strip()))
        yield *cells, f"{probability:.4f}", *place


# Without `indent`, ten times as fast.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def score_table(metrics: dict[str, float]) -> str:
    """Format the scores as a short table."""
    lines = [f"{'':14}{'questions':>9}{'exact':>9}{'f1':>9}"]
    for name, prefix in (("all", ""), ("answerable", "HasAns_"), ("unanswerable", "NoAns_")):
        if f"{prefix}total" in metrics:
            total, exact, f1 = (metrics[f"{prefix}{key}"] for key in ("total", "exact", "f1"))
            lines.append(f"{name:14}{total:9,}{exact:9.2f}{f1:9.2f}")
    exact, f1 = metrics["best_exact"], metrics["best_f1"]
    lines.append(f"{'best threshold':23}{exact:9.2f}{f1:9.2f}")
    places = (metrics["best_exact_thresh"], metrics["best_f1_thresh"])
    lines.append(f"{'  which is':23}" + "".join(f"{place:9.2f}" for place in places))
    return "\n".join(lines)
