"""Prediction of a file of questions to the official files, with scores if it has answers."""

import contextlib
import csv
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detalbert.atomic import whole_file, write_json, writing
from detalbert.engine.rows import CHUNK
from detalbert.errors import UserError
from detalbert.escapes import csv_cell
from detalbert.inference.answering import Answered, answer
from detalbert.inference.model import Trained
from detalbert.reading.notes import Notes
from detalbert.squad.calibration import given
from detalbert.squad.metrics import Tally
from detalbert.squad.question_stream import LeftOut, file_examples
from detalbert.squad.sources import DEFAULT, Reading, open_source, read_examples
from detalbert.squad.windows import Example, check_questions_fit
from detalbert.training.folder import ELSEWHERE, claim_folder
from detalbert.training.timeline import list_checkpoints
from detalbert.waiting import waiting

METRICS = "metrics.json"
log = logging.getLogger(__name__)


def predict(
    trained: Trained, questions: "Questions", folder: Path, threshold: float
) -> dict[str, float]:
    """Answer questions into `folder`; return the scores, {} without any answers.

    `folder` receives predictions.json, predictions.csv, null_odds.json, nbest.json and, if the file
    has answers, metrics.json; each is atomic, and after an error none is written. Raises UserError
    if `folder` is a run's.
    """
    _check_folder(folder)
    total = questions.read_through(trained)
    with claim_folder(folder):
        chunks = answer(trained, questions, threshold)
        return write_answers(chunks, total, folder, threshold, questions.left_out)


def write_answers(
    chunks: Iterable[Answered],
    total: int,
    folder: Path,
    threshold: float,
    left_out: Sequence[LeftOut] = (),
) -> dict[str, float]:
    """Write the files of `predict` from all questions' answers, in order; return the scores.

    Args:
        left_out: questions without an answer, which predictions.csv lists at its end.
    """
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
            columns = ["id", "question", "answer", "probability", "start", "end"]
            table.writerow([*columns, "left_out"] if left_out else columns)
            for chunk in chunks:
                results: Any = chunk.predictions, chunk.null_odds, chunk.n_best
                for add, values in zip(writers, results, strict=True):
                    add(values)
                table.writerows(_csv_rows(chunk))
                if known := [each for each in chunk.examples if each.answers is not None]:
                    tally.add(known, chunk.predictions, chunk.null_odds)
                    losses.append(chunk.losses)
                wait.update(len(chunk.examples))
            for question in left_out:
                name, problem = csv_cell(question.name), csv_cell(question.problem)
                table.writerow([name, *[""] * 5, problem])
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


# What predict.py calls keys of a config.
_FLAGS = {
    "data.validation": "--data",
    "set data.skip_invalid: true": "take --skip-invalid",
    "data.columns": "--columns",
    "set data.form: ": "take --form ",
    "data.form": "--form",
}


class Questions:
    """The questions of a file, read one at a time whenever they are iterated over.

    Args:
        data: a file, or as in a run's `data.validation`.
        reading: how it is read.
        skip_invalid: leave out what cannot be answered; default: it is an error.
    """

    def __init__(self, data: str, reading: Reading = DEFAULT, skip_invalid: bool = False) -> None:
        self.data = data
        self.reading = reading
        self.skip_invalid = skip_invalid
        self.left_out: list[LeftOut] = []  # by `read_through`
        self._unfit: set[str] = set()  # ids of questions that no window holds
        with _naming_flags():
            self._source = open_source(data, "validation", Path(".cache"), reading)

    def __iter__(self) -> Iterator[Example]:
        examples = self._read(Notes(), [] if self.skip_invalid else None)
        return (example for example in examples if example.id not in self._unfit)

    def stamp(self) -> str:
        """Return what changes with the questions and how they are read."""
        stamp = self._source.fingerprint if self._source.contents else self.data
        return f"{stamp} without faulty ones" if self.skip_invalid else stamp

    def _read(self, notes: Notes, left_out: list[LeftOut] | None) -> Iterable[Example]:
        if not self._source.contents:
            return read_examples(self._source, left_out, notes=notes)
        columns, no_answer = self.reading.columns, self.reading.no_answer
        return file_examples(self._source.contents, columns, no_answer, notes, left_out)

    def read_through(self, trained: Trained) -> int:
        """Return the number of questions, and log what a user should know of them.

        Raises:
            UserError: for the first that cannot be answered, so that a fault in the last row is
                found before the model runs.
        """
        self.left_out.clear()
        self._unfit.clear()
        notes = Notes()
        total = 0
        left_out = self.left_out if self.skip_invalid else None
        with _naming_flags():
            for chunk in _chunks(self._read(notes, left_out)):
                total += len(chunk) - self._check_fit(trained, chunk)
        for text, count in notes.texts().items():
            log.warning("%s: %s %s", self.data, f"{count:,}", text)
        if self.left_out:
            first = f"{self.left_out[0].where}: {self.left_out[0].problem}"
            log.warning("%s questions are left out; the first: %s", len(self.left_out), first)
        if not total:
            raise UserError(f"{self.data}: no question that can be answered")
        return total

    def _check_fit(self, trained: Trained, chunk: list[Example]) -> int:
        """Return how many of some questions no window holds. Raises UserError for the first of
        them, unless such are left out.
        """
        sizes = trained.hparams.max_seq_length, trained.hparams.doc_stride
        try:
            check_questions_fit(chunk, trained.tokenizer, *sizes)
            return 0
        except UserError as error:
            if not self.skip_invalid:
                raise UserError(f"{self.data}: {error}") from None
            if len(chunk) > 1:
                return sum(self._check_fit(trained, [example]) for example in chunk)
            (example,) = chunk
            self._unfit.add(example.id)
            self.left_out.append(LeftOut(self.data, example.id, "too long", str(error)))
            return 1


def _chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Yield the questions, at most CHUNK at a time."""
    unread = iter(examples)
    chunk = list(itertools.islice(unread, CHUNK))
    while chunk:
        yield chunk
        chunk = list(itertools.islice(unread, CHUNK))


@contextlib.contextmanager
def _naming_flags() -> Iterator[None]:
    """Let an error name predict.py's flags where it names keys of a config."""
    try:
        yield
    except UserError as error:
        text = re.sub(r"data\.columns: \{(\w+): \.\.\.\}", r"--columns \1=...", str(error))
        for key, flag in _FLAGS.items():
            text = text.replace(key, flag)
        raise type(error)(text) from None


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
