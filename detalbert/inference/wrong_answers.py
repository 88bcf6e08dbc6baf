"""Wrong answers grouped by what is wrong with them: errors.csv, and a table for the terminal.

They are what people look at next. A group says where to look: at the threshold, the labels, or the
places at which spans end.
"""

import contextlib
import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detalbert.atomic import whole_file
from detalbert.escapes import csv_cell
from detalbert.inference.answering import Answered
from detalbert.squad.calibration import given
from detalbert.squad.error_groups import GROUPS, LABEL, find_group
from detalbert.squad.question_stream import NOT_IN_CONTEXT, LeftOut

_COLUMNS = ("group", "id", "question", "answer", "probability", "labels", "context")


class WrongAnswers:
    """Writes the rows of wrong answers as they come, and counts them.

    Args:
        writer: a csv.writer.
        counts: gets the number of wrong answers by group.
    """

    def __init__(self, writer: Any, counts: Counter[str]) -> None:
        self.writer = writer
        self.counts = counts

    def add(self, chunk: Answered) -> None:
        """Write those of some questions whose answers are known."""
        for example in chunk.examples:
            if example.answers is None:
                continue
            labels = [text for text, _ in example.answers]
            prediction = chunk.predictions[example.id]
            group = find_group(labels, prediction)
            if group:
                _, probability = given(chunk.n_best[example.id], prediction)
                texts = [prediction.strip(), f"{probability:.4f}", " | ".join(labels)]
                self._write(group, example.id, example.question, *texts, example.context)

    def add_left_out(self, question: LeftOut) -> None:
        """Write a question that was left out because its label is not in its text."""
        if question.kind == NOT_IN_CONTEXT:
            self._write(LABEL, question.name, "", "", "", question.problem, "")

    def _write(self, group: str, *texts: str) -> None:
        self.counts[group] += 1
        self.writer.writerow([group, *map(csv_cell, texts)])


@contextlib.contextmanager
def open_errors(path: Path, counts: Counter[str] | None) -> Iterator[WrongAnswers | None]:
    """Yield what writes wrong answers into a CSV file; None without counts. Raises OSError if that
    fails.
    """
    if counts is None:
        yield None
        return
    with whole_file(path) as file:
        file.write("\ufeff")  # marks it as UTF-8 for spreadsheets
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        yield WrongAnswers(writer, counts)


def format_counts(counts: Counter[str]) -> str:
    """Format the number of wrong answers by group as a short table."""
    lines = [f"{'wrong answers':32}{'questions':>9}"]
    for group in GROUPS:
        if counts[group]:
            lines.append(f"{group:32}{counts[group]:9,}")
    lines.append(f"{'all':32}{counts.total():9,}")
    return "\n".join(lines)
