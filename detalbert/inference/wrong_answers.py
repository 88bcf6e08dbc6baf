"""Wrong answers grouped by what is wrong with them: errors.csv, and a table for the terminal.

They are what people look at next. A group says where to look: at the threshold, the labels, or the
places at which spans end. The rows are those of predictions.csv, so that both read alike.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from detalbert.inference.answer_table import AnswerTable, free_name
from detalbert.inference.answering import Answered
from detalbert.inference.workbook import Row
from detalbert.squad.error_groups import GROUPS, LABEL, find_group
from detalbert.squad.questions import NOT_IN_CONTEXT, LeftOut


class WrongAnswers:
    """Writes the rows of wrong answers as they come, and counts them.

    Args:
        write: appends a row.
        counts: gets the number of wrong answers by group.
    """

    def __init__(self, write: Callable[[Row], object], counts: Counter[str]) -> None:
        self.write = write
        self.counts = counts
        self.shows_texts = False  # labels and context, which only a table's own columns have

    def write_header(self, table: AnswerTable) -> None:
        """Write the columns of `table`, whose first rows are written, behind `group`."""
        self.shows_texts = table.own == ["id", "question"]
        header = [free_name("group", table.header), *table.header]
        if self.shows_texts:
            header += ["labels", "context"]
        self.write(header)

    def add(self, chunk: Answered, rows: list[Row]) -> None:
        """Write those of some questions whose answers are known; `rows`: of all of them."""
        for example, row in zip(chunk.examples, rows, strict=True):
            if example.answers is None:
                continue
            labels = [text for text, _ in example.answers]
            group = find_group(labels, chunk.predictions[example.id])
            if group:
                self._write(group, row, labels=" | ".join(labels), context=example.context)

    def add_left_out(self, question: LeftOut, row: Row) -> None:
        """Write a question that was left out because its label is not in its text."""
        if question.kind == NOT_IN_CONTEXT:
            self._write(LABEL, row)

    def _write(self, group: str, row: Row, labels: str = "", context: str = "") -> None:
        self.counts[group] += 1
        cells = [group, *row]
        if self.shows_texts:
            cells += [labels, context]
        self.write(cells)


def remove_errors(path: Path) -> None:
    """Remove the wrong answers of an earlier call, of other questions; another file stays."""
    with contextlib.suppress(OSError):
        with path.open(encoding="utf-8", errors="replace") as file:
            is_ours = re.match("\ufeff(model_)*group,", file.readline(100))
        if is_ours:
            path.unlink()


def format_counts(counts: Counter[str]) -> str:
    """Format the number of wrong answers by group as a short table."""
    lines = [f"{'wrong answers':32}{'questions':>9}"]
    for group in GROUPS:
        if counts[group]:
            lines.append(f"{group:32}{counts[group]:9,}")
    lines.append(f"{'all':32}{counts.total():9,}")
    return "\n".join(lines)
