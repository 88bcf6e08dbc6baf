"""Answers of a row, in the shapes in which people and their tools write them.

| shape | written by |
| --- | --- |
| `answer`: a text, a number, a list of texts; `answer_start` beside it | sheets, Kaggle |
| `answers`: [{"text", "answer_start"}], [{"text", "start", "end"}] | SQuAD, annotation tools |
| `answers`: {"text": [...], "answer_start": [...]} | `datasets` |
| `detected_answers`: [{"char_spans": [[first, last]]}] | MRQA; in columns on the hub |
| one of these as a text: JSON, or as Python prints it | tables |

Nothing is guessed: a text that holds none of these is an answer itself, and what cannot be one is a
fault.
"""

import ast
import contextlib
import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# How pandas prints an array inside a cell.
_ARRAY = re.compile(r"array\((\[.*?\])(?:,\s*dtype=[\w'<>]+)?\)", flags=re.DOTALL)
# How it prints one alone: texts or numbers without commas.
_ITEM = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+\.?"""
_PRINTED = re.compile(rf"\[\s*(?:{_ITEM})(?:\s+(?:{_ITEM}))+\s*\]", flags=re.DOTALL)
# Whole numbers with signs between thousands, as sheets show them.
_THOUSANDS = re.compile(r"\d{1,3}(?:[,.'’\s]\d{3})+")
_MAX_ARRAYS = 100  # in a cell: the time of a search for them grows with the square
_YES = ("true", "1", "yes", "t", "y")
_NO = ("false", "0", "no", "f", "n")
# Names of an answer's first character, without signs, spaces and capitals.
OF_STARTS = re.compile(
    "(answers?|ans|span|char)*start(ing)?s?(at|char|index|idx|pos|position|offset)*s?"
    "|(answer|ans)(char)?(begin|offset|pos|position)s?"
)
# Names of an answer's text, written in the same way, beside `answer` and `text`.
OF_TEXTS = re.compile("answertext")
ANSWERABLE = "answerable"  # a column that says the opposite of is_impossible


class LabelError(ValueError):
    """A value that is no label: the message says what it should be."""


class Label(NamedTuple):
    """An answer as it is written, before it is sought in its context."""

    text: str | None  # None: the characters from `start` to `end`
    start: int | None = None
    end: int | None = None


def is_empty(value: object) -> bool:
    """Return whether a value is one of those that stand for none: null, NaN, a blank text."""
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or isinstance(value, float) and math.isnan(value)


def letters_of(name: str) -> str:
    """Return a name without signs, spaces and capitals: "answerstart" of "Answer start"."""
    return re.sub(r"[\W_]", "", name).lower()


def read_impossible(row: Mapping[str, object]) -> bool | None:
    """Return `is_impossible` of a row, or what its ANSWERABLE says of it; None if both are empty.

    Raises:
        LabelError: one is no truth value.
    """
    answerable = _read_flag(row, ANSWERABLE)
    impossible = _read_flag(row, "is_impossible")
    if impossible is None and answerable is not None:
        return not answerable
    return impossible


def _read_flag(row: Mapping[str, object], name: str) -> bool | None:
    value = row.get(name)
    if value is None or isinstance(value, bool):  # as most rows have it
        return value
    if is_empty(value):
        return None
    word = str(value).strip().lower().removesuffix(".0")
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise LabelError(f"{name} is {value!r:.40}; write true or false")


def read_labels(row: Mapping[str, object]) -> list[Label] | None:
    """Return the answers of a row under the names of COLUMNS; an empty list if it says that there
    are none, None if it says nothing of answers.

    Raises:
        LabelError: a value is no answer.
    """
    starts = row.get("answer_start")  # where the answers do not say it themselves
    answers = _from_text(row.get("answers"), name="answers")
    says_nothing = answers in ([], {}) or is_empty(answers)
    labels = [] if says_nothing else _labels_of(answers, starts)
    if not labels and "answer" in row:
        return _labels_of(_from_text(row["answer"], name="answer"), starts)

    # Two empty lists are SQuAD 2.0 in columns, one may be of a question without labels.
    is_hub_row = answers == [] and _from_text(starts, name="answers") == []
    return None if says_nothing and not is_hub_row else labels


def _labels_of(answers: object, starts: object) -> list[Label]:
    labels = map(_read_label, _as_mappings(answers, starts))
    return [label for label in labels if label is not None]


def _as_mappings(value: object, starts: object) -> list[dict[str, object]]:
    """Return `answers` or `answer` in any shape as mappings of SQuAD or of an annotation tool."""
    value = _with_text(value)
    labels = value if isinstance(value, list) else [value]
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        # One mapping of columns: {"text": [...], "answer_start": [...]}.
        if "char_spans" in value:
            spans = value["char_spans"]
            labels = spans if isinstance(spans, list) else [spans]
            return [{"char_spans": span} for span in labels]
        own_starts = _start_of(value)
        starts = starts if own_starts is None else own_starts
        labels = value["text"]
    elif isinstance(value, dict):
        # One mapping, whose start may be in the row's own column.
        return [value if "start" in value else {"answer_start": starts, **value}]
    elif dict in map(type, labels):
        mappings = [label if isinstance(label, dict) else {"text": label} for label in labels]
        return [_with_text(mapping) for mapping in mappings]

    # Texts, or one text. One start is that of the first answer.
    if isinstance(starts, str) and starts.strip().startswith("["):
        parsed = _parse(starts)
        starts = parsed if isinstance(parsed, list) else _read_place(starts, name="answer_start")
    if not isinstance(starts, list):
        starts = [starts] + [None] * (len(labels) - 1)
    if labels and starts and len(labels) != len(starts):
        raise LabelError(f"answer_start has {len(starts)} places for {len(labels)} answers")
    pairs = itertools.zip_longest(labels, starts[: len(labels)])
    return [{"text": text, "answer_start": start} for text, start in pairs]


def _with_text(value: Any) -> Any:
    """Return a mapping of answers with its text, or list of texts, as 'text', whatever it is called
    (OF_TEXTS); any other value as it is.
    """
    if not isinstance(value, dict) or "text" in value:
        return value
    renamed = {}
    for name in value:
        is_text = OF_TEXTS.fullmatch(letters_of(name))
        renamed["text" if is_text else name] = value[name]
    return renamed


def _from_text(value: object, name: str) -> object:
    """Return the list or mapping that a text holds as JSON or as Python prints it; the value itself
    if it holds none that could be answers.
    """
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    parsed = _parse(value)
    return parsed if _may_be_answers(parsed, name) else value


def _parse(value: str) -> object:
    """Return the value that a text holds as JSON or as Python prints it; None if it holds none."""
    text = value.strip()
    if _PRINTED.fullmatch(text):  # Python would join its texts
        return [ast.literal_eval(item) for item in re.findall(_ITEM, text)]
    if text.count("array(") <= _MAX_ARRAYS:
        text = _ARRAY.sub(r"\1", text)
    # JSON first, as it is faster, and most tools write it.
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return read(text)
    return None


def _may_be_answers(value: object, name: str) -> bool:
    """Return whether a list or mapping has a shape of answers; "[12]" in a text is a text."""
    if isinstance(value, dict):
        return _may_be_answer(value) and "text" in _with_text(value)
    if not isinstance(value, list):
        return False
    # An empty list says that there are none.
    return all(map(_may_be_answer, value)) if value else name == "answers"


def _may_be_answer(label: object) -> bool:
    if isinstance(label, dict):
        # Python prints mappings whose names are numbers, too.
        has_names = all(isinstance(name, str) for name in label)
        return has_names and ("text" in _with_text(label) or "start" in label)
    return isinstance(label, str)


def _read_label(answer: dict[str, object]) -> Label | None:
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
            raise LabelError(f"an answer needs a text as 'text' (there: {', '.join(answer):.60})")
        return None
    place = _read_place(_start_of(answer), name="answer_start")
    return Label(_read_text(text) if has_text else None, start=place, end=end)


def _start_of(answer: dict[str, object]) -> object:
    """Return the start, or the list of starts, of a mapping of answers; None without one."""
    for name in ("answer_start", "start"):
        if name in answer:
            return answer[name]
    starts = (answer[name] for name in answer if OF_STARTS.fullmatch(letters_of(name)))
    return next(starts, None)


def _from_span(spans: object) -> Label:
    """Return the label of MRQA's `char_spans`: first and last character of each of its places, or
    in columns {"start": [...], "end": [...]}.
    """
    try:
        if isinstance(spans, dict):
            spans = list(zip(spans["start"], spans["end"], strict=True))
        first, last = spans[0]  # type: ignore[index]  # a list, or the error below
        return Label(None, start=int(first), end=int(last) + 1)
    except (TypeError, ValueError, LookupError, OverflowError):
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
    if type(value) is int:  # as most rows have it
        return value
    if is_empty(value):
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) and not number.is_integer() and _THOUSANDS.fullmatch(value.strip()):
        number = float(re.sub(r"\D", "", value))
    if not number.is_integer():
        raise LabelError(f"{name} is {value!r:.40}; write a number of characters")
    return int(number)
