"""The table of answers: predictions.csv, and the workbook of --output.

Who asks from a sheet wants it back with the answers beside it: of questions from a table a row
begins with the table's own columns, in their order; of others with id and question.
"""

import contextlib
import csv
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TextIO

from detalbert.escapes import csv_cell
from detalbert.files import OpenFile
from detalbert.inference.answering import Answered
from detalbert.inference.workbook import Row, open_workbook
from detalbert.records import Row as RawRow
from detalbert.squad.calibration import given
from detalbert.squad.questions import LeftOut
from detalbert.squad.windows import Example

_ANSWER = ("answer", "probability", "calibration", "start", "end")


@contextlib.contextmanager
def open_tables(
    table: Path, workbook: Path | None, open_file: OpenFile
) -> Iterator[Callable[[Row], object]]:
    """Yield a function that appends a row to a CSV file and to a workbook, if any; `open_file` is
    of `whole_files`.

    Raises:
        UserError: a library for the workbook is not installed.
        OSError: a file cannot be written.
    """
    write_csv = csv_writer(open_file(table))
    if workbook is None:
        yield write_csv
        return
    with open_workbook(workbook, open_file) as append:

        def write(row: Row) -> None:
            write_csv(row)
            append(row)

        yield write


def csv_writer(file: TextIO) -> Callable[[Row], object]:
    """Return a function that appends a row to a new CSV file for spreadsheets."""
    file.write("\ufeff")  # marks it as UTF-8 for spreadsheets
    writer = csv.writer(file)
    return lambda row: writer.writerow([_csv_value(value) for value in row])


def _csv_value(value: str | int | float) -> str | int:
    if isinstance(value, str):
        return csv_cell(value)
    return f"{value:.4f}" if isinstance(value, float) else value


def free_name(name: str, columns: Collection[str]) -> str:
    """Return the name of a new column: `name`, or `model_name` if the table has one of that name,
    as `answer` or, for who reads the file again, `Answer`.
    """
    taken = {column.lower() for column in columns}
    while name in taken:
        name = f"model_{name}"
    return name


class AnswerTable:
    """The rows of answers, written as they come, below a header.

    Args:
        write: appends a row.
        calibrated: whether a validation shows that the probabilities hold.
        cells: rows of the questions' table, by id; a row is removed when it is written.
        has_left_out: whether a last column says why questions are left out.
    """

    def __init__(
        self,
        write: Callable[[Row], object],
        calibrated: bool,
        cells: dict[str, RawRow],
        has_left_out: bool,
    ) -> None:
        self.write = write
        self.calibration = "calibrated" if calibrated else "uncalibrated"
        self.cells = cells
        self.has_left_out = has_left_out
        # Known with the first row: the first columns, and all of them.
        self.own: list[str] = []
        self.header: list[str] = []

    def add(self, chunk: Answered) -> list[Row]:
        """Write the answers to some questions; return their rows."""
        rows = []
        for example in chunk.examples:
            # Without a table, id and question stand for its row.
            own = {"id": example.id, "question": example.question}
            row = self.cells.pop(example.id, own)
            if not self.own:
                self._write_header(row)
            entry = self._answer_cells(example, chunk)
            rows.append(self._write(row, entry))
        return rows

    def add_left_out(self, question: LeftOut) -> Row:
        """Write a question without an answer, and why it has none; return its row."""
        row = self.cells.pop(question.name, {"id": question.name})
        empty = [""] * len(_ANSWER)
        return self._write(row, [*empty, question.problem])

    def _write_header(self, row: RawRow) -> None:
        self.own = list(row)
        names = [free_name(name, self.own) for name in _ANSWER]
        left_out = ["left_out"] if self.has_left_out else []
        self.header = [*self.own, *names, *left_out]
        self.write(self.header)

    def _write(self, row: RawRow, entry: Row) -> Row:
        own = [row.get(column) or "" for column in self.own]
        cells = [*own, *entry]
        cells += [""] * (len(self.header) - len(cells))  # why it is left out, of those that are not
        self.write(cells)
        return cells

    def _answer_cells(self, example: Example, chunk: Answered) -> Row:
        """Return the cells of _ANSWER, the answer without the white space around it."""
        prediction = chunk.predictions[example.id]
        answer_text = prediction.strip()
        entry = given(chunk.n_best[example.id], prediction)
        cells: list[str | int | float] = [
            answer_text,
            round(entry["probability"], 4),
            self.calibration,
        ]
        if not prediction:
            return [*cells, "", ""]

        # First character of the answer in the context, and the one after its last.
        start = entry["start"] + len(prediction) - len(prediction.lstrip())
        return [*cells, start, start + len(answer_text)]
