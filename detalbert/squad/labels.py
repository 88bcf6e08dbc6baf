"""Answers of a row, in the shapes in which files have them.

| column | holds |
| --- | --- |
| `answers` | [{text, answer_start}, ...], {text: [...], answer_start: [...]}, or a list of texts |
| `answer` | a text, with `answer_start` beside it, or one of the above |

In a cell of a table a list or mapping is JSON. Nothing is guessed: a text that is none of these is
an answer itself, and what cannot be one is an error.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

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
        start = _start_of(answer, start)
        answer = answer["text"]
    if is_empty(answer):
        return Label("", start=None)
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        raise Fault(BAD_LABEL, f"an answer needs a text, and this is {answer!r:.40}")
    return Label(str(answer), start=_read_start(start))


def _start_of(answer: Mapping[str, object], start: object) -> object:
    """Return the start in a mapping, or else the one given. Raises Fault if it has another name."""
    if "answer_start" in answer:
        return answer["answer_start"]
    places = [name for name in answer if START_NAME.search(name)]
    if places not in ([], ["start"]):
        raise Fault(BAD_LABEL, f"{places[0]!r} is not read; write answer_start in its place")
    return answer["start"] if places else start


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
