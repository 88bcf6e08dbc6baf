"""Prediction of a file of questions to the official files, with scores if it has answers.

The file is read twice: once to the end, so that a fault in its last row ends the command before the
model runs, and once to be answered. Reading again costs little beside the model, and what is in
memory does not grow with the file.
"""

import contextlib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from detalbert.engine.rows import CHUNK
from detalbert.errors import UserError
from detalbert.files import whole_files, writing
from detalbert.hub import STATE_DICT
from detalbert.inference.answer_table import AnswerTable, csv_writer, open_tables
from detalbert.inference.answering import Answered, answer
from detalbert.inference.model import Trained
from detalbert.inference.wrong_answers import WrongAnswers, remove_errors
from detalbert.progress import waiting
from detalbert.records import Row
from detalbert.squad.metrics import Tally
from detalbert.squad.questions import LeftOut, read_examples
from detalbert.squad.sources import Reading, open_source
from detalbert.squad.windows import Example, check_questions_fit
from detalbert.training.folder import ELSEWHERE, claim_folder
from detalbert.training.manifest import MANIFEST
from detalbert.training.metrics_file import METRICS_FILE
from detalbert.training.timeline import list_checkpoints

ERRORS = "errors.csv"
# What a folder of answers gets.
WRITTEN = (
    "predictions.json",
    "predictions.csv",
    "null_odds.json",
    "nbest.json",
    METRICS_FILE,
    ERRORS,
)
log = logging.getLogger(__name__)


def predict(
    trained: Trained,
    questions: "Questions",
    folder: Path,
    threshold: float,
    workbook: Path | None = None,
    errors: Counter[str] | None = None,
) -> dict[str, float]:
    """Answer questions into `folder`; return the scores, {} without any answers.

    `folder` receives predictions.json, predictions.csv, null_odds.json, nbest.json and, if the file
    has answers, metrics.json; each is atomic, and after an error none is written.

    Args:
        threshold: null odds above which the model abstains.
        workbook: gets predictions.csv as .xlsx or .ods.
        errors: gets the number of wrong answers by group; `folder` then gets errors.csv.

    Raises:
        UserError: `folder` is a run's, or a question cannot be answered.
    """
    _check_folder(folder)
    _check_input(questions.data, folder, workbook)
    total = questions.read_through(trained)
    cells: dict[str, Row] = {}
    with claim_folder(folder):
        return write_answers(
            answer(trained, questions.examples(cells), threshold),
            total=total,
            folder=folder,
            threshold=threshold,
            calibrated=trained.is_calibrated,
            left_out=questions.left_out,
            cells=cells,
            workbook=workbook,
            errors=errors,
        )


def write_answers(
    chunks: Iterable[Answered],
    total: int,
    folder: Path,
    threshold: float,
    calibrated: bool,
    left_out: Sequence[LeftOut],
    cells: dict[str, Row],
    workbook: Path | None = None,
    errors: Counter[str] | None = None,
) -> dict[str, float]:
    """Write the files of `predict`; return the scores.

    Args:
        chunks: the answers to all questions, in order.
        total: number of questions.
        calibrated: whether a validation shows that the probabilities hold.
        left_out: questions without an answer, which predictions.csv lists at its end.
        cells: gets the rows of the questions' table with the questions; see `AnswerTable`.
        workbook: gets predictions.csv as .xlsx or .ods.
        errors: as for `predict`.
    """
    tally = Tally()
    losses = []
    metrics: dict[str, float] = {}
    outputs = [str(path) for path in (folder, workbook) if path]
    with writing(" and ".join(outputs), ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)

        # All files are written as the answers come, and get their names after the last one.
        with (
            whole_files() as open_file,
            _json_mapping(open_file(folder / "predictions.json")) as add_predictions,
            _json_mapping(open_file(folder / "null_odds.json")) as add_null_odds,
            _json_mapping(open_file(folder / "nbest.json")) as add_n_best,
            waiting("answering", total=total, unit="questions") as wait,
            open_tables(folder / "predictions.csv", workbook, open_file) as write,
        ):
            wrong = None
            if errors is not None:
                wrong = WrongAnswers(csv_writer(open_file(folder / ERRORS)), errors)
            table = AnswerTable(
                write, calibrated=calibrated, cells=cells, has_left_out=bool(left_out)
            )
            for chunk in chunks:
                add_predictions(chunk.predictions)
                add_null_odds(chunk.null_odds)
                add_n_best(chunk.n_best)
                is_first = not table.header
                rows = table.add(chunk)
                if wrong is not None:
                    if is_first:
                        wrong.write_header(table)
                    wrong.add(chunk, rows)
                labelled = [example for example in chunk.examples if example.answers is not None]
                if labelled:
                    # Spans: the best thresholds do not depend on the one in use.
                    tally.add(labelled, chunk.spans, chunk.null_odds)
                    losses.append(chunk.losses)
                wait.update(len(chunk.examples))

            # Questions without an answer come last; their ids may be those of others.
            for question in left_out:
                row = table.add_left_out(question)
                if wrong is not None:
                    wrong.add_left_out(question, row)

            if losses:
                metrics = tally.metrics(threshold)
                metrics["loss"] = float(np.concatenate(losses).mean(dtype=np.float64))
                json.dump(metrics, open_file(folder / METRICS_FILE), indent=1)

        # Scores and errors that stand beside these answers must be theirs.
        if not metrics:
            _remove_scores(folder / METRICS_FILE)
        if errors is None:
            remove_errors(folder / ERRORS)
    return metrics


def _remove_scores(path: Path) -> None:
    """Remove the scores that an earlier call wrote, of other questions; another file stays."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and {"exact", "f1", "total"} <= content.keys():
            path.unlink()


def _check_folder(folder: Path) -> None:
    """Raise UserError for the folder of a run, whose predictions and metrics would be lost."""
    is_run = bool(list_checkpoints(folder / "checkpoints") or list_checkpoints(folder))
    is_checkpoint = (folder / MANIFEST).exists() or (folder / STATE_DICT).exists()
    if is_run or is_checkpoint:
        problem = "a run's folder, its predictions and metrics would be replaced"
        raise UserError(problem, key=f"--output-dir {folder}", cure="give another")


def _check_input(data: str, folder: Path, workbook: Path | None) -> None:
    """Raise UserError if an output is the file of the questions, or cannot be written."""
    outputs = {f"--output-dir {folder}": [folder / name for name in WRITTEN]}
    if workbook is not None:
        key = f"--output {workbook}"
        outputs[key] = [workbook]
        if workbook.exists() and not workbook.is_file():
            raise UserError("it is no file", key=key, cure="give another")
        if not workbook.absolute().parent.is_dir():
            raise UserError("its folder is not there", key=key, cure="make it, or give another")
    source = Path(data)
    for key, paths in outputs.items():
        for path in paths:
            if source.is_file() and path.exists() and path.samefile(source):
                raise UserError(
                    "the questions of --data would be replaced", key=key, cure="give another"
                )


# Flags of predict.py by keys of a config.
_FLAGS = {
    "data.validation": "--data",
    "data.columns": "--columns",
    "data.sheet": "--sheet",
}


class Questions:
    """The questions of a file, read one at a time whenever they are iterated over.

    Args:
        data: a file, or as in a run's `data.validation`.
        reading: how it is read.
        skip_invalid: leave out what cannot be answered; default: it is an error.
    """

    def __init__(
        self, data: str, reading: Reading | None = None, skip_invalid: bool = False
    ) -> None:
        self.data = data
        self.skip_invalid = skip_invalid
        self.left_out: list[LeftOut] = []  # by `read_through`
        self._unfit: set[str] = set()  # ids of questions that no window holds
        with _naming_flags():
            self._source = open_source(
                data, split="validation", cache_dir=Path(".cache"), reading=reading or Reading()
            )

    @classmethod
    def as_trained(
        cls,
        trained: Trained,
        *,
        data: str,
        columns: Mapping[str, str],
        sheet: str | None,
        skip_invalid: bool,
    ) -> "Questions":
        """Return the questions of `data`, read as those that a model was trained on.

        Args:
            columns: the file's names of columns, in place of those of the training's file.
            sheet: of a spreadsheet; default: the first.
            skip_invalid: leave out what cannot be answered, as is done if the training did it.
        """
        config = trained.data
        reading = Reading(
            columns={**(config.get("columns") or {}), **columns},
            sheet=sheet,
            no_answer=tuple(config.get("no_answer") or ()),
        )
        skip_invalid = skip_invalid or bool(config.get("skip_invalid"))
        return cls(data, reading, skip_invalid=skip_invalid)

    def __iter__(self) -> Iterator[Example]:
        return self.examples()

    def examples(self, cells: dict[str, Row] | None = None) -> Iterator[Example]:
        """Return the questions; `cells` gets the row of each, by id, if they are of a table."""
        # `read_through` has told of faults: here they go nowhere.
        examples = self._read(left_out=[] if self.skip_invalid else None, cells=cells)
        return (example for example in examples if example.id not in self._unfit)

    def stamp(self) -> str:
        """Return a text that changes with the questions and how they are read."""
        stamp = self._source.fingerprint
        return f"{stamp} without faulty ones" if self.skip_invalid else stamp

    def _read(
        self,
        left_out: list[LeftOut] | None,
        counts: Counter[str] | None = None,
        cells: dict[str, Row] | None = None,
    ) -> Iterator[Example]:
        return read_examples(
            self._source,
            answers_needed=False,
            left_out=left_out,
            counts=counts,
            cells=cells,
        )

    def read_through(self, trained: Trained) -> int:
        """Return the number of questions, and log what a user should know of them.

        Raises:
            UserError: for the first that cannot be answered, so that a fault in the last row is
                found before the model runs.
        """
        self.left_out.clear()
        self._unfit.clear()
        counts: Counter[str] = Counter()
        total = 0
        with _naming_flags():
            examples = self._read(self.left_out if self.skip_invalid else None, counts)
            for chunk in _chunks(examples):
                total += len(chunk) - self._check_fit(trained, chunk)

        # Of each kind a line, however many questions of the file are of it.
        for text, count in (+counts).items():
            log.warning("%s: %s %s", self.data, f"{count:,}", text)
        if self.left_out:
            first = f"{self.left_out[0].where}: {self.left_out[0].problem}"
            log.warning("%s questions are left out; the first: %s", len(self.left_out), first)
        if not total:
            raise UserError("no question that can be answered", key=self.data)
        return total

    def _check_fit(self, trained: Trained, chunk: list[Example]) -> int:
        """Return how many of some questions no window holds.

        Raises:
            UserError: for the first of them, unless such are left out.
        """
        hparams = trained.hparams
        try:
            check_questions_fit(
                chunk,
                trained.tokenizer,
                max_seq_length=hparams.max_seq_length,
                doc_stride=hparams.doc_stride,
            )
            return 0
        except UserError as error:
            if not self.skip_invalid:
                key = f"{self.data}: {error.key}" if error.key else self.data
                raise error.under(key) from None
            problem = str(error)

        # Look for the questions at fault, one by one.
        if len(chunk) > 1:
            return sum(self._check_fit(trained, [example]) for example in chunk)
        (example,) = chunk
        self._unfit.add(example.id)
        self.left_out.append(LeftOut(self.data, example.id, kind="too long", problem=problem))
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
        raise error.under(_FLAGS.get(error.key, error.key)) from None


@contextlib.contextmanager
def _json_mapping(file: TextIO) -> Iterator[Callable[[Mapping[str, object]], None]]:
    """Yield a function that appends entries to a JSON mapping, each on a line, as `write_json`."""
    separators = itertools.chain(["{\n "], itertools.repeat(",\n "))

    def add(entries: Mapping[str, object]) -> None:
        # Entry by entry: nbest.json of a large file does not fit in memory.
        for name, value in entries.items():
            file.write(f"{next(separators)}{_encode(name)}: {_encode(value)}")

    yield add
    file.write("\n}")


# Without `indent`, ten times as fast.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
