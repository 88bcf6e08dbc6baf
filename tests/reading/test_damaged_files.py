"""A file that is cut off, or has other bytes in it, is read or ends in one line: no traceback."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from tests.conftest import max_examples
from tests.reading import files
from tests.reading.files import Row
from tests.reading.shapes import VARIANTS, Shape, content_of, shapes, write

CONTEXT = 'Ada, "the first",\nwrote it in Köln.'
ROWS: list[Row] = [
    {
        "id": str(number),
        "question": "Who?",
        "context": CONTEXT,
        "text": CONTEXT,
        "answers": {"text": ["Ada"], "answer_start": [0]},
        "is_impossible": False,
    }
    for number in range(4)
]
ARTICLES: list[Row] = [{"title": "T", "paragraphs": [{"context": CONTEXT, "qas": ROWS}]}]
BYTES = st.binary(min_size=1, max_size=4) | st.sampled_from(
    [b"null", b"{}", b"[]", b"[", b'"', b",", b"\n", b"1", b"NaN", b"\0", b"\xff", b"\xd8\x00"]
)


@st.composite
def damages(draw: st.DrawFn) -> tuple[float, int, bytes]:
    """A place, as a fraction of a file, how many bytes go there, and what comes in their place."""
    return draw(st.floats(0, 1)), draw(st.integers(0, 8)), draw(BYTES | st.just(b""))


def damaged(content: bytes, damage: tuple[float, int, bytes], is_cut: bool) -> bytes:
    place, count, new = damage
    begin = round(place * len(content))
    return content[:begin] + new + (b"" if is_cut else content[begin + count :])


@given(shapes(VARIANTS), damages(), st.booleans(), st.booleans())
@max_examples(100)
def test_damage_is_no_traceback(
    tmp_path_factory: pytest.TempPathFactory,
    shape: Shape,
    damage: Any,
    is_cut: bool,
    is_inside: bool,
) -> None:
    """In the file, or in what is compressed there."""
    content = content_of(shape, ROWS, ARTICLES)
    if isinstance(content, str):
        content = files.encode(content, shape.encoding)
    if is_inside:
        content = damaged(content, damage, is_cut)
    folder = tmp_path_factory.mktemp("damaged") / "folder"
    folder.mkdir()
    path = write(folder, shape, content)
    if not is_inside:
        path.write_bytes(damaged(path.read_bytes(), damage, is_cut))
    form = shape.form if shape.is_told else None
    with contextlib.suppress(UserError):
        files.read_questions(path, form=form)
    with contextlib.suppress(UserError):
        files.read_documents(path, form=form)
