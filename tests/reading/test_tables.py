"""Tables with the pollutions of the Pollock benchmark (Vitagliano et al., VLDB 2023): the rows as
they are meant, or with a note, or one line that names the row; never other rows in silence.
"""

import csv
import io

import pytest

from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from detalbert.reading.tables import table_rows

NAMES = ("id", "question", "context", "note")
ADA = ("1", "Who?", 'Ada, "the first",\nwrote it.', "")
BO = ("2", "Where?", "In town, by 5.", "")
HEADER = "id,question,context,note\n"
FIRST = '1,Who?,"Ada, ""the first"",\nwrote it.",\n'  # of two lines
SECOND = '2,Where?,"In town, by 5.",\n'
CLEAN = HEADER + FIRST + SECOND

FEWER = "rows have fewer cells than the header"
MORE = "rows end in a separator that the header has not; see that their cells fit its names"
REPEATED = "rows repeat the header and are left out"


def read(text: str, needed: tuple[str, ...] = ()) -> tuple[list[tuple], dict[str, int]]:
    """The rows of a table, and what is noted of them."""
    notes = Notes()
    lines = io.StringIO(text, newline="")
    rows = [tuple(row.values()) for _, row in table_rows("a.csv", lines, notes, needed)]
    return rows, notes.texts()


RIGHT = {
    "clean": CLEAN,
    "no line end at the end": CLEAN.rstrip("\n"),
    "two line ends at the end": f"{CLEAN}\n",
    "blank lines": f"\n\n{HEADER}\n{FIRST}\n{SECOND}",
    "empty rows": f"{HEADER},,,\n{FIRST},,,\n{SECOND},,,\n",
    "a separator behind each line": (
        "id,question,context,note,\n"
        '1,Who?,"Ada, ""the first"",\nwrote it.",,\n'
        '2,Where?,"In town, by 5.",,\n'
    ),
    "a column without a name": HEADER.replace("\n", ",\n") + FIRST + SECOND,
    "spaces behind separators": (
        "id, question, context, note\n"
        '1, Who?, "Ada, ""the first"",\nwrote it.", \n'
        '2, Where?, "In town, by 5.", \n'
    ),
    "a line for Excel": f"sep=,\r\n{CLEAN}",
    "a line for Excel in quotes": f'"sep=,"\n{CLEAN}',
    "names in quotes": CLEAN.replace("question,context", '"question","context"', 1),
    "semicolons": (
        'id;question;context;note\n1;Who?;"Ada, ""the first"",\nwrote it.";\n'
        "2;Where?;In town, by 5.;\n"
    ),
    "tabs": (
        'id\tquestion\tcontext\tnote\n1\tWho?\t"Ada, ""the first"",\nwrote it."\t\n'
        "2\tWhere?\tIn town, by 5.\t\n"
    ),
    "bars": (
        'id|question|context|note\n1|Who?|"Ada, ""the first"",\nwrote it."|\n'
        "2|Where?|In town, by 5.|\n"
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_rows(name: str) -> None:
    rows, notes = read(RIGHT[name])
    assert [row[:4] for row in rows] == [ADA, BO]
    assert not any(map(any, (row[4:] for row in rows)))
    assert notes in ({}, {f"{FEWER} (the first: line 2)": 2})


# Text, rows, and the note with its count.
TOLD = {
    "a separator too few": (
        f"{HEADER}1Who?,Ada did.,\n{SECOND}",
        [("1Who?", "Ada did.", "", None), BO],
        {f"{FEWER} (the first: line 2)": 1},
    ),
    "the last cell is missing": (
        f"{HEADER}{FIRST}2,Where?,In town.\n3,Why?,It rains.\n",
        [ADA, ("2", "Where?", "In town.", None), ("3", "Why?", "It rains.", None)],
        {f"{FEWER} (the first: line 4)": 2},
    ),
    "another separator": (
        f"{HEADER}{FIRST}2 Where? town \n",
        [ADA, ("2 Where? town ", None, None, None)],
        {f"{FEWER} (the first: line 4)": 1},
    ),
    "two headers": (CLEAN.replace("\n", f"\n{HEADER}", 1), [ADA, BO], {REPEATED: 1}),
    "two tables": (CLEAN + CLEAN, [ADA, BO, ADA, BO], {REPEATED: 1}),
    "a separator at the end of one row": (
        f"{HEADER}{FIRST}2,Where?,Town.,,\n",
        [ADA, ("2", "Where?", "Town.", "")],
        {f"{MORE} (the first: line 4)": 1},
    ),
    "a separator at the end of all rows": (
        "question,context\nWho?,Ada.,\nWhere?,Town.,\n",
        [("Who?", "Ada."), ("Where?", "Town.")],
        {f"{MORE} (the first: line 2)": 2},
    ),
    "two names in one": (
        "id,questioncontext,note\n1,Who?,Ada.,\n2,Where?,Town.,\n",
        [("1", "Who?", "Ada."), ("2", "Where?", "Town.")],
        {f"{MORE} (the first: line 2)": 2},
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_rows_with_a_note(name: str) -> None:
    text, expected, counts = TOLD[name]
    rows, notes = read(text)
    assert rows == expected
    assert [kind.startswith(told) for kind, told in zip(notes, counts, strict=True)] == [True]
    assert [*notes.values()] == [*counts.values()]


# Text, and the beginning of the line that refuses it.
REFUSED = {
    "a separator too many": (f"{HEADER}{FIRST}2,Where?,In town, by 5.,\n", "line 4: 5 cells under"),
    "the same in the first row": (f"{HEADER}1,Who?,Ada, the first,\n{SECOND}", "line 2: 5 cells"),
    "the same in the only row": (f"{HEADER}1,Who?,Ada, the first,\n", "line 2: 5 cells under 4"),
    "an empty cell too many": (f"{HEADER}{FIRST}2,,Where?,Town.,\n", "line 4: 5 cells under 4"),
    "the same, first": (f"{HEADER}1,,Who?,Ada.,\n{SECOND}", "line 2: 5 cells under 4 names"),
    "a separator behind the first row": ("text\nHello,\nBye.\n", "line 2: 2 cells under 1 names"),
    "two separators too many": (f"{HEADER}1,Who?,Ada.,,,\n", "line 2: 6 cells under 4 names"),
    "a quote too many": (f'{HEADER}1,Who?,"Ada" did.",\n{SECOND}', "line 2: ',' expected after"),
    "a quote that stays open": (f'{HEADER}{FIRST}2,Where?,"Town.,\n', "line 4: unexpected end"),
    "a separator too few at quotes": (
        f'{HEADER}1,Who?"Ada, the first",\n{SECOND}',
        "line 2: a quote is inside a cell without quotes",
    ),
    "backslashes for quotes": (f'{HEADER}1,Who?,"Ada, \\"first\\"",\n', "line 2: ',' expected"),
    "single quotes": (f"{HEADER}1,Who?,'Ada, the first',\n", "line 2: 5 cells under 4 names"),
    "spaces for separators": ("id question context\n1 Who? Ada, Bo\n", "line 2: 2 cells under 1"),
    "a preamble": (f"Made in May,,,\n,,,\n{CLEAN}", "line 3: 4 cells under 1 names"),
    "a wider table below": (f"{CLEAN}id,question,context,note,more\n", "line 5: 5 cells under 4"),
    "a name twice": ("question,context,answer,answer\na,b,b,\n", "two columns are named 'answer'"),
    "a value without a name": ("question,,context\nWho?,x,Ada\n", "line 2: 3 cells under 2 names"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_line_names_the_row(name: str) -> None:
    text, problem = REFUSED[name]
    with pytest.raises(UserError) as error:
        read(text)
    assert str(error.value).startswith(f"a.csv: {problem}")


# Rows that a quote at the start of a cell swallows, if it is taken for one of quoting.
SENTENCES = 'id,text\n1,"I saw it.\n2,He went.\n3,Then he left."\n4,End.\n'
PAIRS = 'question,context,note\nWho?,"Ada met Bo.,a\nWho?,Then she left.",b\nWho?,Bo.,c\n'
HIDDEN = "a cell in quotes holds lines that look like rows"
IN_QUOTES = 'id,text\n1,"""I saw it."\n2,He went.\n3,"Then he left."""\n4,End.\n'


@pytest.mark.parametrize("separator", list(",;\t|"))
def test_rows_in_a_quoted_cell_are_refused_or_told(separator: str) -> None:
    text = SENTENCES.replace(",", separator)
    with pytest.raises(UserError, match=f"^a.csv: line 2: {HIDDEN}; fix it: a text with sep"):
        read(text)
    # As the line says: quotes are doubled, in quotes.
    rows, notes = read(IN_QUOTES.replace(",", separator))
    assert [text for _, text in rows] == ['"I saw it.', "He went.", 'Then he left."', "End."]
    assert notes == {}

    # Two lines may be prose, but where tabs are in none.
    text = PAIRS.replace(",", separator)
    if separator == "\t":
        with pytest.raises(UserError, match=f"^a.csv: line 2: {HIDDEN}"):
            read(text)
    else:
        assert read(text)[1] == {f"{HIDDEN} (the first: line 2)": 1}


HONEST = [
    'id,text\n1,"He saw it,\nthen he left, and she, too,\nwent."\n',
    'text\n"One\ntwo\nthree"\n',
    'id,text\n1,"One, two\nthree, four\nfive, six"\n',
    'id;text\n1;"One\n\ntwo; three\n\nfour"\n',
    'id\ttext\n1\t"One\ntwo"\n2\t"a\tb"\n',
]


@pytest.mark.parametrize("text", HONEST)
def test_cells_of_several_lines_are_no_rows(text: str) -> None:
    rows, notes = read(text)
    expected = list(csv.reader(io.StringIO(text), delimiter=find_separator(text)))
    assert ([list(row) for row in rows], notes) == (expected[1:], {})


def find_separator(text: str) -> str:
    return next((mark for mark in ",;\t" if mark in text.splitlines()[0]), ",")


@pytest.mark.parametrize("separator", [",", "\t"])
def test_numbers_of_rows_need_no_name(separator: str) -> None:
    """As pandas and R write a table."""
    text = ",question,answer\n0,Who?,Ada\n1,Where?,\n".replace(",", separator)
    assert read(text)[0] == [("0", "Who?", "Ada"), ("1", "Where?", "")]
    for row in ("a,Who?,Ada", "1,2,Who?,Ada"):
        with pytest.raises(UserError, match="cells under 2 names"):
            read(text + row.replace(",", separator))


def test_a_row_without_a_needed_cell_is_refused() -> None:
    with pytest.raises(UserError, match="line 2: 3 cells under 4 names, and none for 'note'"):
        read(f"{HEADER}1,Who?,Ada.\n", needed=("note",))
    rows, _ = read(f"{HEADER}1,Who?,Ada.\n", needed=("context",))
    assert rows == [("1", "Who?", "Ada.", None)]


@pytest.mark.parametrize("text", ["", "\n\n", HEADER, "sep=;", f"sep=,\n{HEADER}"])
def test_a_table_without_rows(text: str) -> None:
    assert read(text) == ([], {})


def test_quotes_in_tabs_and_measures_stay() -> None:
    """Texts have no tabs, so quotes need no doubling there; a lone quote may be of inches."""
    rows, _ = read('question\tcontext\nHow long?\tA 5" pipe, a 6" pipe\n')
    assert rows == [("How long?", 'A 5" pipe, a 6" pipe')]
    rows, _ = read('question,context\nHow long?,A 5" pipe\n')
    assert rows == [("How long?", 'A 5" pipe')]
