"""Answers of a row, in the shapes in which people and their tools write them.

| shape | written by |
| --- | --- |
| `answer`: a text, a number, a list of texts; `answer_start` beside it | sheets, Kaggle |
| `answers`: [{"text", "answer_start"}], [{"text", "start", "end"}] | SQuAD, annotation tools |
| `answers`: {"text": [...], "answer_start": [...]} | `datasets` |
| one of these as a text: JSON, or as Python prints it | tables |

Nothing is guessed: a text that holds none of these is an answer itself, and what cannot be one is a
fault.
"""

import ast
import itertools
import json
import math
import re
from typing import Any, NamedTuple

# How pandas prints an array inside a cell.
_ARRAY = re.compile(r"array\((\[.*?\])(?:,\s*dtype=[\w'<>]+)?\)", re.DOTALL)
_MAX_ARRAYS = 100  # in a cell: the time of a search for them grows with the square
_YES = ("true", "1", "yes")
_NO = ("false", "0", "no")


class LabelError(ValueError):
    """A value that is no label: the message says what it should be."""


class Label(NamedTuple):
    """An answer as it is written, before it is sought in its context."""

    text: str | None  # None: the characters from `start` to `end`
    start: int | None = None
    end: int | None = None


def is_empty(value: Any) -> bool:
    """Return whether a value is one of those that stand for none: null, NaN, a blank text."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or isinstance(value, str) and not value.strip()


def read_flag(value: Any) -> bool | None:
    """Return `is_impossible`; None if it is empty. Raises LabelError if it is no truth value."""
    if is_empty(value):
        return None
    word = str(value).strip().lower().removesuffix(".0")
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise LabelError(f"is_impossible is {value!r:.40}; write true or false")


def read_labels(row: dict[str, Any]) -> list[Label] | None:
    """Return the answers of a row under the names of COLUMNS; an empty list if it says that there
    are none, None if it says nothing of answers.

    Raises:
        LabelError: a value is no answer.
    """
    starts = row.get("answer_start")  # where the answers do not say it themselves
    answers = _from_text(row.get("answers"), "answers")
    if answers not in ([], {}) and not is_empty(answers):
        return _from_value(answers, starts)
    if "answer" not in row:
        return None
    return _from_value(_from_text(row["answer"], "answer"), starts)


def _from_value(value: Any, starts: Any) -> list[Label]:
    """Return the labels of `answers` or `answer` in any of their shapes."""
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        own = value.get("answer_start", value.get("start"))
        return _from_columns(value["text"], starts if own is None else own)
    labels = value if isinstance(value, list) else [value]
    mappings = [label for label in labels if isinstance(label, dict)]
    if not mappings:
        return _from_columns(value, starts)
    if isinstance(value, dict) and "answer_start" not in value and "start" not in value:
        labels = [{**value, "answer_start": starts}]
    return _from_list(labels)


def _from_text(value: Any, name: str) -> Any:
    """Return the list or mapping that a text holds as JSON or as Python prints it; the value itself
    if it holds none that could be answers.
    """
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    text = value.strip()
    if text.count("array(") <= _MAX_ARRAYS:
        text = _ARRAY.sub(r"\1", text)
    for read in (json.loads, ast.literal_eval):
        try:
            held = read(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return held if _may_be_answers(held, name) else value
    return value


def _may_be_answers(held: Any, name: str) -> bool:
    """Return whether a list or mapping has a shape of answers; "[12]" in a text is a text."""
    if isinstance(held, dict):
        return "text" in held
    if not isinstance(held, list):
        return False
    is_none = not held and name == "answers"
    return (
        is_none
        or bool(held)
        and all(
            isinstance(label, str)
            or isinstance(label, dict)
            and bool({"text", "start"} & label.keys())
            for label in held
        )
    )


def _from_columns(texts: Any, starts: Any) -> list[Label]:
    """Return labels of a text, or of several, and of their starts."""
    texts = texts if isinstance(texts, list) else [texts]
    starts = _from_text(starts, "answer_start")
    if isinstance(starts, str) and starts.strip().startswith("["):
        starts = _read_numbers(starts)
    if not isinstance(starts, list):
        starts = [starts] + [None] * (len(texts) - 1)
    if texts and starts and len(texts) != len(starts):
        raise LabelError(f"answer_start has {len(starts)} places for {len(texts)} answers")

    labels = []
    for text, start in itertools.zip_longest(texts, starts[: len(texts)]):
        if not is_empty(text):
            answer = _read_text(text)
            place = _read_place(start, "answer_start")
            labels.append(Label(answer, place))
    return labels


def _read_numbers(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        problem = f"answer_start is {text!r:.40}; write a number, or a list of numbers"
        raise LabelError(problem) from None


def _from_list(answers: list[Any]) -> list[Label]:
    """Return labels of a list of texts, or of mappings of SQuAD or of an annotation tool."""
    labels = []
    for answer in answers:
        if not isinstance(answer, dict):
            labels += _from_columns([answer], None)
            continue
        start = answer.get("answer_start", answer.get("start"))
        end = _read_place(answer.get("end"), "end") if "answer_start" not in answer else None
        text = answer.get("text")
        if is_empty(text) and (end is None or text is not None):
            if "text" not in answer:
                raise LabelError("an answer needs a text")
            continue  # as some write that there is none
        start = _read_place(start, "answer_start")
        labels.append(Label(None if is_empty(text) else _read_text(text), start, end))
    return labels


def _read_text(value: Any) -> str:
    """Return an answer as a text; a number, which pandas makes a float, as a sheet shows it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LabelError(f"an answer needs a text, and this is {value!r:.40}")
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if is_whole else str(value)


def _read_place(value: Any, name: str) -> int | None:
    """Return a number of characters, however it is written; None if it is empty."""
    if is_empty(value):
        return None
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number.is_integer():
        raise LabelError(f"{name} is {value!r:.40}; write a number of characters")
    return int(number)
