"""Answers of a row, in the shapes in which people and their tools write them.

| shape | written by |
| --- | --- |
| `answer`: a text, a number, a list of texts; `answer_start` beside it | sheets, Kaggle |
| `answers`: [{"text", "answer_start"}], [{"text", "start", "end"}] | SQuAD, annotation tools |
| `answers`: {"text": [...], "answer_start": [...]} | `datasets` |
| `detected_answers`: [{"char_spans": [[first, last]]}] | MRQA |
| one of these as a text: JSON, or as Python prints it | tables |

Nothing is guessed: a text that holds none of these is an answer itself, and what cannot be one is a
fault.
"""

import ast
import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

# How pandas prints an array inside a cell.
_ARRAY = re.compile(r"array\((\[.*?\])(?:,\s*dtype=[\w'<>]+)?\)", flags=re.DOTALL)
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


def is_empty(value: object) -> bool:
    """Return whether a value is one of those that stand for none: null, NaN, a blank text."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or isinstance(value, str) and not value.strip()


def read_flag(value: object) -> bool | None:
    """Return `is_impossible`; None if it is empty. Raises LabelError if it is no truth value."""
    if is_empty(value):
        return None
    word = str(value).strip().lower().removesuffix(".0")
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise LabelError(f"is_impossible is {value!r:.40}; write true or false")


def read_labels(row: Mapping[str, object]) -> list[Label] | None:
    """Return the answers of a row under the names of COLUMNS; an empty list if it says that there
    are none, None if it says nothing of answers.

    Raises:
        LabelError: a value is no answer.
    """
    starts = row.get("answer_start")  # where the answers do not say it themselves
    answers = _from_text(row.get("answers"), name="answers")
    if answers not in ([], {}) and not is_empty(answers):
        return _from_value(answers, starts=starts)
    if "answer" not in row:
        return None
    answer = _from_text(row["answer"], name="answer")
    return _from_value(answer, starts=starts)


def _from_value(value: object, starts: object) -> list[Label]:
    """Return the labels of `answers` or `answer` in any of their shapes."""
    # One mapping of columns: {"text": [...], "answer_start": [...]}.
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        own_starts = value.get("answer_start", value.get("start"))
        return _from_columns(value["text"], starts if own_starts is None else own_starts)

    # Texts, or one text.
    labels = value if isinstance(value, list) else [value]
    if not any(isinstance(label, dict) for label in labels):
        return _from_columns(value, starts=starts)

    # Mappings, or one mapping, whose start may be in the row's own column.
    if isinstance(value, dict) and "answer_start" not in value and "start" not in value:
        labels = [{**value, "answer_start": starts}]
    return _from_list(labels)


def _from_text(value: object, name: str) -> object:
    """Return the list or mapping that a text holds as JSON or as Python prints it; the value itself
    if it holds none that could be answers.
    """
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    text = value.strip()
    if text.count("array(") <= _MAX_ARRAYS:
        text = _ARRAY.sub(r"\1", text)

    # JSON first, as it is faster, and most tools write it.
    for read in (json.loads, ast.literal_eval):
        try:
            parsed = read(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return parsed if _may_be_answers(parsed, name) else value
    return value


def _may_be_answers(value: object, name: str) -> bool:
    """Return whether a list or mapping has a shape of answers; "[12]" in a text is a text."""
    if isinstance(value, dict):
        return "text" in value
    if not isinstance(value, list):
        return False
    if not value:
        return name == "answers"  # it says that there are none
    return all(map(_may_be_answer, value))


def _may_be_answer(label: object) -> bool:
    if isinstance(label, dict):
        return "text" in label or "start" in label
    return isinstance(label, str)


def _from_columns(texts: object, starts: object) -> list[Label]:
    """Return labels of a text, or of several, and of their starts."""
    texts = texts if isinstance(texts, list) else [texts]
    starts = _from_text(starts, name="answer_start")
    if isinstance(starts, str) and starts.strip().startswith("["):
        starts = _read_numbers(starts)
    # One start is that of the first answer.
    if not isinstance(starts, list):
        starts = [starts] + [None] * (len(texts) - 1)
    if texts and starts and len(texts) != len(starts):
        raise LabelError(f"answer_start has {len(starts)} places for {len(texts)} answers")

    labels = []
    for text, start in itertools.zip_longest(texts, starts[: len(texts)]):
        if not is_empty(text):
            answer = _read_text(text)
            labels.append(Label(answer, start=_read_place(start, name="answer_start")))
    return labels


def _read_numbers(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        problem = f"answer_start is {text!r:.40}; write a number, or a list of numbers"
        raise LabelError(problem) from None


def _from_list(answers: list[object]) -> list[Label]:
    """Return labels of a list of texts, or of mappings of SQuAD or of an annotation tool."""
    labels = []
    for answer in answers:
        if isinstance(answer, dict):
            label = _from_mapping(answer)
            if label is not None:
                labels.append(label)
        else:
            labels += _from_columns([answer], starts=None)
    return labels


def _from_mapping(answer: dict[str, object]) -> Label | None:
    """Return the label of a mapping; None if its text is empty, as some write that there is none.

    An annotation tool's has `start` and `end`, and may leave out the text.
    """
    if "char_spans" in answer:
        return _from_span(answer["char_spans"])
    end = None
    if "answer_start" not in answer:
        end = _read_place(answer.get("end"), name="end")
    text = answer.get("text")
    has_text = not is_empty(text)
    has_span = end is not None and text is None
    if not has_text and not has_span:
        if "text" not in answer:
            raise LabelError("an answer needs a text")
        return None
    start = answer.get("answer_start", answer.get("start"))
    place = _read_place(start, name="answer_start")
    return Label(_read_text(text) if has_text else None, start=place, end=end)


def _from_span(spans: object) -> Label:
    """Return the label of MRQA's `char_spans`: first and last character of each of its places."""
    try:
        first, last = spans[0]  # type: ignore[index]  # a list, or the error below
        return Label(None, start=int(first), end=int(last) + 1)
    except (TypeError, ValueError, LookupError):
        problem = f"char_spans is {spans!r:.40}; write [[first character, last character]]"
        raise LabelError(problem) from None


def _read_text(value: object) -> str:
    """Return an answer as a text; a number, which pandas makes a float, as a sheet shows it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LabelError(f"an answer needs a text, and this is {value!r:.40}")
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if is_whole else str(value)


def _read_place(value: object, name: str) -> int | None:
    """Return a number of characters, however it is written; None if it is empty."""
    if is_empty(value):
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number.is_integer():
        raise LabelError(f"{name} is {value!r:.40}; write a number of characters")
    return int(number)
