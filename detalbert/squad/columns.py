"""Columns of questions: the names that a source has for ours, and the answers in them.

Ours are accepted in any case, and others are named in `data.columns`. A column that seems to be one
of ours and would be passed over is an error: with a place that nobody reads, a label is wrong.

| column | holds |
| --- | --- |
| `answers` | [{text, answer_start}, ...], {text: [...], answer_start: [...]}, or a list of texts |
| `answer` | a text, with `answer_start` beside it, or one of the above |

In a cell of a table a list or mapping is JSON. Nothing is guessed: a text that is none of these is
an answer itself, and what cannot be one is an error.
"""

import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from detalbert.errors import UserError, nearest
from detalbert.reading.records import Row
from detalbert.settings.hparams import COLUMNS
from detalbert.squad.sources import Reading

OF_ANSWERS = ("answer", "answers", "answer_start", "is_impossible")
BAD_LABEL = "bad answer"
# Names of values that may be the place of an answer.
START_NAME = re.compile("start|offset|begin", re.IGNORECASE)
_FLAGS = {
    "true": True,
    "1": True,
    "yes": True,
    "false": False,
    "0": False,
    "no": False,
}
# What a list in a cell may hold.
_ANSWERS = (str, dict)
_STARTS = (int, float, type(None))
# Names of columns that may be one of ours, beside an `answer`.
_SIMILAR = {
    "answer_start": START_NAME,
    "is_impossible": re.compile("impossible|answerable|no.?answer", re.IGNORECASE),
}
log = logging.getLogger(__name__)


class Columns:
    """A source's own names of columns, by ours.

    Args:
        reading: how the source is read.
        answers_needed: whether it must have answers.
    """

    def __init__(self, reading: Reading, answers_needed: bool) -> None:
        self.columns = reading.columns
        self.answers_needed = answers_needed
        self.may_lack_answers = "" in reading.no_answer
        self.plans: dict[tuple[str, ...], dict[str, str]] = {}  # most rows have the same names

    def rename(self, row: Row, place: str) -> Row:
        """Return the values of a row under our names.

        Raises:
            UserError: a column is missing, there twice, or would be passed over.
        """
        names = tuple(row)
        plan = self.plans.get(names)
        if plan is None:
            plan = self._find(names, place)
            self._check_answers(names, plan, place)
            self.plans[names] = plan
        return {name: row[own] for name, own in plan.items()}

    def _find(self, names: tuple[str, ...], place: str) -> dict[str, str]:
        """Return the own names of those of our columns that are among `names`."""
        plan = {}
        for name in COLUMNS:
            matches = [own for own in names if own.lower() == name]
            if name in self.columns:
                matches = [own for own in names if own == self.columns[name]]
            if len(matches) > 1:
                raise UserError(
                    f"{' and '.join(matches)} could be the {name}",
                    key=place,
                    cure=f"name it in data.columns: {{{name}: ...}}",
                )
            if matches:
                plan[name] = matches[0]
            elif name in ("question", "context"):
                raise self._missing(name, names, place)
        return plan

    def _check_answers(self, names: tuple[str, ...], plan: Mapping[str, str], place: str) -> None:
        """Raise UserError if there are no answers that are needed, or if a column seems to be of
        the answers and is not read.
        """
        if plan.keys().isdisjoint(("answer", "answers", "is_impossible")):
            is_similar = any("answer" in own.lower() for own in names)
            error = self._missing("answer", names, place)
            if self.answers_needed and (is_similar or not self.may_lack_answers):
                raise error
            if is_similar:
                log.warning("%s; so no scores", error)
        for name, pattern in _SIMILAR.items():
            if "answer" not in plan or name in plan:
                continue
            for own in names:
                if pattern.search(own) and own not in plan.values():
                    raise UserError(
                        f"column {own!r} may be the {name}, and is not read",
                        key=place,
                        cure=f"set data.columns: {{{name}: {own}}} if it means the same, and "
                        "not the opposite; else rename it",
                    )

    def check_all(self, where: str) -> None:
        """Raise UserError if no row has a column that the user has named, but for answers that are
        not needed.
        """
        seen = {name for plan in self.plans.values() for name in plan}
        for name in self.columns.keys() - seen:
            if self.plans and (self.answers_needed or name not in OF_ANSWERS):
                raise self._missing(name, next(iter(self.plans)), where)

    def _missing(self, name: str, names: tuple[str, ...], where: str) -> UserError:
        own = self.columns.get(name, name)
        cure = f"name it in data.columns: {{{name}: ...}}; {nearest(own, names)}"
        if name == "answer":
            cure += '; data.no_answer: [""] if a row without it has no answer'
        return UserError(
            f"no column {own!r} (there: {', '.join(names):.200})",
            key=where,
            cure=cure,
        )


class Fault(Exception):
    """A fault of one question. Its arguments: a kind, in few words for counts, and the problem."""


class Label(NamedTuple):
    """An answer as it is written, and its first character in the context, if that is given."""

    text: str
    start: int | None


def is_empty(value: object) -> bool:
    """Return whether a value is one of those that stand for none: null, NaN, a blank text."""
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or value != value


def read_flag(value: object) -> bool | None:
    """Return a truth value, however it is written; None if it is empty. Raises Fault for others."""
    if is_empty(value):
        return None
    word = str(value).strip().lower().removesuffix(".0")
    if word not in _FLAGS:
        raise Fault(BAD_LABEL, f"is_impossible is {value!r:.40}; write true or false")
    return _FLAGS[word]


def read_labels(row: Mapping[str, Any]) -> list[Label] | None:
    """Return the answers of a row under our names; [] if it says that there are none, None if it
    says nothing of answers.

    Raises:
        Fault: a value is no answer.
    """
    starts = _parse_cell(row.get("answer_start"), of=_STARTS)
    answers = _parse_cell(row.get("answers"), of=_ANSWERS)
    if answers == [] == starts:
        return []  # SQuAD 2.0 in columns
    if is_empty(answers) or answers in ([], {}):
        if "answer" not in row:
            return None
        answers = _parse_cell(row["answer"], of=_ANSWERS)
        if is_empty(answers):
            return []

    # Bring each shape to a list of answers and one of starts.
    if isinstance(answers, dict) and isinstance(answers.get("text"), list):
        starts = answers.get("answer_start", starts)
        answers = answers["text"]
    if not isinstance(answers, list):
        answers = [answers]
    if not isinstance(starts, list):
        starts = [starts, *[None] * (len(answers) - 1)]  # one start is that of the first answer
    if answers and len(starts) != len(answers):
        raise Fault(BAD_LABEL, f"answers: {len(answers)}, of answer_start: {len(starts)}")
    labels = []
    for answer, start in zip(answers, starts, strict=False):
        label = _read_label(answer, start)
        if label.text:
            labels.append(label)
    return labels


def _parse_cell(value: object, of: tuple[type, ...]) -> object:
    """Return the list or mapping of answers that a cell holds as JSON, else the value: "[12]" is a
    text.
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return value
    if isinstance(parsed, dict):
        return parsed if "text" in parsed else value
    return parsed if all(isinstance(item, of) for item in parsed) else value


def _read_label(answer: object, start: object) -> Label:
    """Return the label of a text, a number or a mapping; with an empty text, if it says so."""
    if isinstance(answer, dict):
        if "text" not in answer:
            names = ", ".join(answer)
            raise Fault(BAD_LABEL, f"an answer needs a 'text' (there: {names:.60})")
        # Its own start is the answer's.
        places = [name for name in answer if START_NAME.search(name)]
        if "answer_start" in answer:
            start = answer["answer_start"]
        elif places == ["start"]:
            start = answer["start"]
        elif places:
            raise Fault(BAD_LABEL, f"{places[0]!r} is not read; write answer_start in its place")
        answer = answer["text"]
    if is_empty(answer):
        return Label("", start=None)
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        raise Fault(BAD_LABEL, f"an answer needs a text, and this is {answer!r:.40}")
    return Label(str(answer), start=_read_start(start))


def _read_start(value: Any) -> int | None:
    """Return a number of characters, however it is written; None if it is empty or -1."""
    if is_empty(value):
        return None
    try:
        start = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        start = math.nan
    if not start.is_integer():
        raise Fault(BAD_LABEL, f"answer_start is {value!r:.40}; write a number of characters")
    return None if start == -1 else int(start)
