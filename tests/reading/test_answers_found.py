"""Where an answer stands in its text, by its text alone, in a file of questions."""

from pathlib import Path
from typing import Any

import pytest

from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from detalbert.squad.question_stream import A_MARK, FOLDED, INSIDE, MARKS, REPEATED
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
    "composed in Bengali": (
        "\u09ae\u09c7\u09be",
        "\u09ae\u09cb",
        ("\u09ae\u09c7\u09be", 0),
        FOLDED,
    ),
    "narrow kana": (
        "\uff76\uff9e\uff97\uff7dを割る",
        "ガラス",
        ("\uff76\uff9e\uff97\uff7d", 0),
        FOLDED,
    ),
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
    # Vowel signs, accents and joiners are inside words; so are the signs of numbers.
    "Hindi": ("रामायण में राम थे।", "राम", ("राम", 11), ""),
    "Tamil": ("தமிழ்நாடு தமிழ் மொழி.", "தமிழ்", ("தமிழ்", 10), ""),
    "Bengali": ("বাংলাদেশে বাংলা ভাষা।", "বাংলা", ("বাংলা", 10), ""),
    "Arabic with vowels": ("كِتَابُهُ هو كِتَاب جديد", "كِتَاب", ("كِتَاب", 13), ""),
    "Persian": ("او می\u200cرود تا رود بزرگ.", "رود", ("رود", 13), ""),
    "an accent apart": ("cafe\u0301s and cafe bars", "cafe", ("cafe", 11), ""),
    "an accent cut off": ("A cafe\u0301.", "cafe", ("cafe", 2), INSIDE),
    "within a word of Hindi": ("रामायण में", "राम", ("राम", 0), INSIDE),
    "a particle of Korean": ("도자기를 팔았다.", "도자기", ("도자기", 0), INSIDE),
    "letters beside Korean": ("새 iPhone은 iPhones", "iphone", ("iPhone", 2), ""),
    "letters beside Thai": ("ซื้อiPhoneใหม่", "iphone", ("iPhone", 4), ""),
    "a decimal": ("It is 2.5 m wide and 5 m long.", "5", ("5", 21), ""),
    "within a decimal": ("The pipe is 2.5 m long.", "5", ("5", 14), INSIDE),
    "a thousand": ("Of 1,500 people 500 left.", "500", ("500", 16), ""),
    "a thousand of France": ("De 1\u202f500, 500 partent.", "500", ("500", 10), ""),
    "a thousand of Switzerland": ("Von 1’500 gingen 500.", "500", ("500", 17), ""),
    "a date": ("Am 12.03.1912 kamen 12 Schiffe.", "12", ("12", 20), ""),
    "a date of ISO": ("On 1912-03-12 came 12 ships.", "12", ("12", 19), ""),
    "a time": ("At 12:30 some 30 came.", "30", ("30", 14), ""),
    "a number at the end of a sentence": ("In 1912. 5 came, 12.", "1912", ("1912", 3), ""),
    "digits of Arabic": ("٢٫٥ ثم ٥", "٥", ("٥", 7), ""),
    "a name of code": ("The user_id and an id.", "id", ("id", 19), ""),
    "of other case in a word": ("The bankers of a bank.", "BANK", ("bank", 17), ""),
    # Signs that stand for one another.
    "Hebrew": ("של צה״ל כאן", 'צה"ל', ("צה״ל", 3), FOLDED),
    "directions": ("In \u200f1912\u200f came", "\u200f1912\u200e,", ("1912", 4), FOLDED),
    "Ukrainian": ("Це п\u02bcять.", "п'ять", ("п\u02bcять", 3), FOLDED),
    "a danda": ("वह राम था", "राम।", ("राम", 3), FOLDED),
    "an Arabic comma": ("في بغداد ثم", "بغداد،", ("بغداد", 3), FOLDED),
    "Arabic letters in Persian": ("این کتابی است", "كتابي", ("کتابی", 4), FOLDED),
    "end marks": ("It took 27 days.", "27 days!!", ("27 days", 8), FOLDED),
}


@pytest.mark.parametrize("name", ANSWERS_FOUND)
def test_where_an_answer_stands(name: str, tmp_path: Path) -> None:
    context, answer, place, note = ANSWERS_FOUND[name]
    notes = Notes()
    (example,) = read_questions(one_row(tmp_path, context, answer), notes)
    assert example.answers == (place,)
    assert dict(notes.counts) == ({note: 1} if note else {})


@pytest.mark.parametrize("answer", ["NA", "Nan", "NATIONAL B"])
def test_another_case_within_a_word_is_no_place(answer: str, tmp_path: Path) -> None:
    path = one_row(tmp_path, "Ada ran the national finance bank of Bo.", answer)
    with pytest.raises(UserError, match="is not in its context"):
        read_questions(path)


def test_a_mark_that_stands_in_a_text_is_told(tmp_path: Path) -> None:
    """A hyphen may be an answer, and it may be a mark."""
    path = one_row(tmp_path, "A twenty-first ship.", "-")
    notes = Notes()
    assert read_questions(path, notes)[0].answers == (("-", 8),)
    assert notes.counts[MARKS] == 1
    assert read_questions(path, no_answer=["-"])[0].answers == ()


@pytest.mark.parametrize("mark", ["nan", "None", "no answer", "N/A", "NULL"])
def test_a_usual_mark_that_stands_in_a_text_is_told(mark: str, tmp_path: Path) -> None:
    path = one_row(tmp_path, "The finance of none, null and N/A got no answer.", mark)
    notes = Notes()
    assert read_questions(path, notes)[0].answers != ()
    assert notes.counts[A_MARK % (f"'{mark}'", f"'{mark}'")] == 1
    assert read_questions(path, no_answer=[mark])[0].answers == ()


def test_a_cell_of_200_000_characters(tmp_path: Path) -> None:
    context = "word " * 40_000 + "end."
    path = one_row(tmp_path, context, "end")
    assert read_questions(path)[0].answers == (("end", 200_000),)
