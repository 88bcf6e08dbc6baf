"""Where an answer stands in its text, by its text alone, in a file of questions."""

from pathlib import Path
from typing import Any

import pytest

from detalbert.reading.notes import Notes
from detalbert.squad.question_stream import FOLDED, INSIDE, MARKS, REPEATED
from tests.reading.files import read_questions, table


def one_row(folder: Path, context: str, answer: Any) -> Path:
    """A table of one question."""
    path = folder / "a.csv"
    text = table([{"question": "Who?", "context": context, "answer": answer}])
    path.write_text(text, encoding="utf-8", newline="")
    return path


# A context, an answer, its place, and the note of it.
ANSWERS_FOUND: dict[str, tuple[str, Any, tuple[str, int], str]] = {
    "a note's number": ("Salt was dear [12] then.", "[12]", ("[12]", 14), ""),
    "a number": ("It had 12 oars.", 12, ("12", 7), ""),
    "composed": ("In Ko\u0308ln am Rhein.", "K\u00f6ln", ("Ko\u0308ln", 3), FOLDED),
    "ligatures": (
        "The \ufb01rst o\ufb03cer.",
        "first officer",
        ("\ufb01rst o\ufb03cer", 4),
        FOLDED,
    ),
    "quotes": ("The “Zanto’s” crew.", '"Zanto\'s" crew', ("“Zanto’s” crew", 4), FOLDED),
    "dash": ("In 1912–14.", "1912-14", ("1912–14", 3), FOLDED),
    "soft hyphen": ("A har\u00adbour.", "harbour", ("har\u00adbour", 2), FOLDED),
    "zero width": ("A har\u200bbour.", "harbour", ("har\u200bbour", 2), FOLDED),
    "full stop": ("By Bo Li, then.", "Bo Li.", ("Bo Li", 3), FOLDED),
    "full width": ("In １９１２.", "1912", ("１９１２", 3), FOLDED),
    "a longer word": ("東京都は首都。", "京都", ("京都", 1), INSIDE),
    "a word": ("東京都は首都。京都も。", "京都", ("京都", 7), ""),
    "between words": ("A party for art", "art", ("art", 12), ""),
    "within a word": ("A party", "art", ("art", 3), INSIDE),
    "of the same case": ("Art and art, ART", "art", ("art", 8), ""),
    "of other case and spaces": ("The  Old\ntown", "the old town", ("The  Old\ntown", 0), ""),
    "twice": ("one two one", " one ", ("one", 0), REPEATED),
    "end marks": ("It took 27 days.", "27 days!!", ("27 days", 8), FOLDED),
}


@pytest.mark.parametrize("name", ANSWERS_FOUND)
def test_where_an_answer_stands(name: str, tmp_path: Path) -> None:
    context, answer, place, note = ANSWERS_FOUND[name]
    notes = Notes()
    (example,) = read_questions(one_row(tmp_path, context, answer), notes)
    assert example.answers == (place,)
    assert dict(notes.counts) == ({note: 1} if note else {})


def test_a_mark_that_stands_in_a_text_is_told(tmp_path: Path) -> None:
    """A hyphen may be an answer, and it may be a mark."""
    path = one_row(tmp_path, "A twenty-first ship.", "-")
    notes = Notes()
    assert read_questions(path, notes)[0].answers == (("-", 8),)
    assert notes.counts[MARKS] == 1
    assert read_questions(path, no_answer=["-"])[0].answers == ()


def test_a_cell_of_200_000_characters(tmp_path: Path) -> None:
    context = "word " * 40_000 + "end."
    path = one_row(tmp_path, context, "end")
    assert read_questions(path)[0].answers == (("end", 200_000),)
