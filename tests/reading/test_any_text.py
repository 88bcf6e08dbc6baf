"""Text in files as they may be: as test_any_questions has it for questions."""

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.settings import forms
from tests.conftest import max_examples
from tests.reading.files import read_documents
from tests.reading.shapes import CHARACTERS, VARIANTS, Shape, content_of, shapes, write

# Line ends; with "none" the last line has none.
PLAIN = {forms.TEXT: ("\n", "\r\n", "none")}
texts = st.text(CHARACTERS, max_size=12)
_BLANK = re.compile(r"\n\s*\n")


def check(address: Any, expected: list[str], shape: Shape, **options: Any) -> None:
    """Assert that the documents are those that are not blank, or that the file may be refused."""
    form = shape.form if shape.is_told else None
    expected = [document.strip() for document in expected if document.strip()]
    try:
        documents = read_documents(address, form=form, **options)
    except UserError as error:
        # A cell of tabs and line ends may be rows that a quote has swallowed.
        assert not shape.is_known or "holds lines that look like rows" in str(error)
    else:
        assert documents == expected or not shape.is_known


@given(st.lists(texts | st.none(), min_size=1, max_size=6), shapes(VARIANTS), st.integers(1, 99))
@max_examples(50)
def test_rows_of_any_file(
    tmp_path_factory: pytest.TempPathFactory,
    written: list[str | None],
    shape: Shape,
    part_bytes: int,
) -> None:
    """A row without a text is passed over in every form."""
    rows = [{"id": str(number), "text": text} for number, text in enumerate(written, 1)]
    articles = [{"title": "", "paragraphs": [{"context": text, "qas": []}]} for text in written]
    content = content_of(shape, rows, articles)
    path = write(tmp_path_factory.mktemp("text"), shape, content)

    check(path, [text or "" for text in written], shape, part_bytes=part_bytes)


@given(
    st.lists(texts.map(lambda text: _BLANK.sub(" ", text)), min_size=1, max_size=6),
    shapes(PLAIN),
    st.sampled_from(["line", "blank_line", "file", "2 lines"]),
    st.integers(1, 99),
)
@max_examples(50)
def test_plain_text_of_any_file(
    tmp_path_factory: pytest.TempPathFactory,
    written: list[str],
    shape: Shape,
    article: str,
    part_bytes: int,
) -> None:
    line_end = "\n" if shape.variant == "none" else shape.variant
    if article in ("line", "2 lines"):
        written = [re.sub(r"[\r\n]", " ", document) for document in written]
    if article == "blank_line":
        written = [re.sub(r"[\r\n]+", line_end, document.strip()) for document in written]
    between = line_end * 2 if article == "blank_line" else line_end
    text = between.join(written)
    if shape.variant != "none":
        text += line_end
    assume(text.strip()[:1] not in ("{", "["))  # else it may be JSON
    path = write(tmp_path_factory.mktemp("text"), shape, text)

    expected = written
    if article == "file":
        expected = [text]
    elif article == "2 lines":
        pairs = [written[begin : begin + 2] for begin in range(0, len(written), 2)]
        expected = [line_end.join(pair) for pair in pairs]
    check(path, expected, shape, article=article, part_bytes=part_bytes)
