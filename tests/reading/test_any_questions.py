"""Questions in files as they may be: form, compression, encoding, ending and values are drawn.

A file gives the questions that were written, made by hand, or ends in one line: never in other
ones, and never in a traceback. It may be refused only if neither its bytes nor its name nor
data.form tell its form.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.settings import forms
from detalbert.squad.windows import Example
from tests.conftest import max_examples
from tests.reading.files import Row, read_questions
from tests.reading.shapes import CHARACTERS, Shape, content_of, shapes, write

Place = Callable[[int], Any]  # writes a number of characters: as int, float or text
NAMES = {
    "question": "Frage",
    "context": "Text",
    "answer": "Antwort",
    "answers": "Antworten",
    "id": "Nr",
    "title": "Titel",
    "answer_start": "Stelle",
    "is_impossible": "ohne",
}
texts = st.text(CHARACTERS, min_size=1, max_size=12).filter(str.strip)


@st.composite
def spans(draw: st.DrawFn, context: str) -> tuple[str, int]:
    start = draw(st.integers(0, len(context) - 1))
    end = draw(st.integers(start + 1, len(context)))
    assume(context[start:end].strip())
    return context[start:end], start


@st.composite
def questions(draw: st.DrawFn) -> Example:
    context = draw(texts)
    answers = draw(st.lists(spans(context), max_size=2))
    title = draw(st.sampled_from(["", "A title", "東"]))
    return Example("", title, context, draw(texts), tuple(answers))


@st.composite
def examples(draw: st.DrawFn) -> list[Example]:
    """Draw questions with ids that are numbers, or texts."""
    unnamed = draw(st.lists(questions(), min_size=1, max_size=4))
    count = len(unnamed)
    numbers = st.integers(-3, 10**12).map(str)
    kind = draw(st.sampled_from([texts, numbers]))
    names = draw(st.lists(kind, min_size=count, max_size=count, unique=True))
    return [example._replace(id=name) for example, name in zip(unnamed, names, strict=True)]


def as_list(example: Example, place: Place) -> Row:
    answers = example.answers or ()
    return {"answers": [{"text": text, "answer_start": place(start)} for text, start in answers]}


def as_columns(example: Example, place: Place) -> Row:
    answers = example.answers or ()
    starts = [place(start) for _, start in answers]
    return {"answers": {"text": [text for text, _ in answers], "answer_start": starts}}


def as_marked_spans(example: Example, place: Place) -> Row:
    """As annotation tools write them."""
    answers = [
        {"start": place(start), "end": place(start + len(text)), "text": text}
        for text, start in example.answers or ()
    ]
    return {"answers": answers}


def as_bare_spans(example: Example, place: Place) -> Row:
    row = as_marked_spans(example, place)
    bare = [{"start": span["start"], "end": span["end"]} for span in row["answers"]]
    return {"answers": bare}


def as_json(example: Example, place: Place) -> Row:
    return {"answers": json.dumps(as_list(example, place)["answers"])}


def as_repr(example: Example, place: Place) -> Row:
    return {"answers": repr(as_columns(example, place)["answers"])}


def as_flat(example: Example, place: Place) -> Row:
    """A text and its place side by side, as in sheets."""
    for text, start in example.answers or ():
        return {"answer": text, "answer_start": place(start)}
    return {"answer": "", "answer_start": None}


STYLES = (as_list, as_columns, as_marked_spans, as_bare_spans, as_json, as_repr, as_flat)
# Here an empty value says that there is no answer; an empty list may be of an unlabelled question.
UNMARKED = (as_columns, as_repr, as_flat)
FLAGS = {
    "none": lambda flag: {"is_impossible": flag},
    "bool": lambda flag: {"is_impossible": flag},
    "number": lambda flag: {"is_impossible": int(flag)},
    "float": lambda flag: {"is_impossible": float(flag)},
    "text": lambda flag: {"is_impossible": str(flag).lower()},
    "capitals": lambda flag: {"is_impossible": str(flag).upper()},
}


class Writing(NamedTuple):
    """How the values of a question are written."""

    style: Callable[[Example, Place], Row]
    place: Place
    flag: str
    names: str
    has_id: bool
    is_number: bool


writings = st.builds(
    Writing,
    style=st.sampled_from(STYLES),
    place=st.sampled_from([int, float, str]),
    flag=st.sampled_from(sorted(FLAGS)),
    names=st.sampled_from(["ours", "capitals", "theirs"]),
    has_id=st.booleans(),
    is_number=st.booleans(),
)


def row_of(example: Example, writing: Writing) -> Row:
    row: Row = {"question": example.question}
    row |= writing.style(example, writing.place)
    if writing.flag != "none" or writing.style not in UNMARKED:
        row |= FLAGS[writing.flag](not example.answers)
    if writing.has_id:
        row["id"] = int(example.id) if writing.is_number and is_number(example) else example.id
    return row


def is_number(example: Example) -> bool:
    """Whether an id is one that a number writes: 7, but not 007."""
    return re.fullmatch("0|-?[1-9][0-9]*", example.id) is not None


def renamed(row: Row, names: str) -> Row:
    if names == "capitals":
        return {name.capitalize(): value for name, value in row.items()}
    if names == "theirs":
        return {NAMES[name]: value for name, value in row.items()}
    return row


def columns_of(row: Row) -> dict[str, str]:
    """Return the names that `data.columns` must give: those of a row that are not ours."""
    return {name: own for name, own in NAMES.items() if own in row}


def is_taken_for_a_list(text: str) -> bool:
    """Return whether an answer is a list of answers in JSON, or as Python prints it."""
    return text.strip()[:1] in ("[", "{") and ('"' in text or "'" in text)


@given(examples(), shapes(), writings)
@max_examples(50)
def test_questions_of_any_file(
    tmp_path_factory: pytest.TempPathFactory,
    expected: list[Example],
    shape: Shape,
    writing: Writing,
) -> None:
    if writing.style is as_flat:
        # A row has one answer at most.
        expected = [example._replace(answers=(example.answers or ())[:1]) for example in expected]
        for example in expected:
            assume(not any(is_taken_for_a_list(text) for text, _ in example.answers or ()))

    # A column of Arrow has values of one type.
    if shape.form in (forms.PARQUET, forms.ARROW) and not all(map(is_number, expected)):
        writing = writing._replace(is_number=False)

    rows = []
    articles = []
    for example in expected:
        row = row_of(example, writing)
        about = {"context": example.context, "title": example.title}
        rows.append(renamed(about | row, writing.names))
        paragraph = renamed({"context": example.context}, writing.names)
        paragraph["qas"] = [renamed(row, writing.names)]
        article = renamed({"title": example.title}, writing.names)
        articles.append(article | {"paragraphs": [paragraph]})
    if not writing.has_id:
        expected = [e._replace(id=str(number)) for number, e in enumerate(expected, 1)]

    path = write(tmp_path_factory.mktemp("questions"), shape, content_of(shape, rows, articles))
    try:
        examples = read_questions(
            path,
            columns=columns_of(rows[0]),
            form=shape.form if shape.is_told else None,
        )
    except UserError as error:
        # A cell of tabs and line ends may be rows that a quote has swallowed.
        assert not shape.is_known or "holds lines that look like rows" in str(error)
    else:
        assert examples == expected
