"""Workbooks as people have them: hidden sheets, titles above the header, long numbers, formulas."""

import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from detalbert.corpus.opened import open_texts
from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from detalbert.settings.text import parse_text_config
from tests.reading.files import read_documents, read_questions
from tests.reading.test_sheets import HEADER, NAMES, ROWS, TYPE, change_member, excel

OFFICE = f'xmlns:office="{NAMES}:office:1.0" xmlns:style="{NAMES}:style:1.0"'
ENDINGS = [".xlsx", ".ods"]
Sheet = list[list[Any]]


def ods_cell(value: Any) -> str:
    kind = "string" if isinstance(value, str) else f'float" office:value="{value}'
    return (
        f'<table:table-cell office:value-type="{kind}"><text:p>{value}</text:p></table:table-cell>'
    )


def ods(path: Path, sheets: dict[str, Sheet], hidden: tuple[str, ...]) -> None:
    """Write sheets as LibreOffice does: whether one is hidden is in the style of its table."""
    styles = tables = ""
    for name, rows in sheets.items():
        shown = "false" if name in hidden else "true"
        styles += f'<style:style style:name="{name}" style:family="table">'
        styles += f'<style:table-properties table:display="{shown}"/></style:style>'
        tables += f'<table:table table:name="{name}" table:style-name="{name}">'
        for row in rows:
            cells = "".join(map(ods_cell, row)) or "<table:table-cell/>"
            tables += f"<table:table-row>{cells}</table:table-row>"
        tables += "</table:table>"
    spaces = f'{OFFICE} xmlns:table="{NAMES}:table:1.0" xmlns:text="{NAMES}:text:1.0"'
    content = (
        f"<office:document-content {spaces}><office:automatic-styles>{styles}"
        f"</office:automatic-styles><office:body><office:spreadsheet>{tables}"
        "</office:spreadsheet></office:body></office:document-content>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", TYPE)
        archive.writestr("content.xml", content)


def xlsx(path: Path, sheets: dict[str, Sheet], hidden: tuple[str, ...]) -> None:
    workbook = openpyxl.Workbook()
    workbook.remove(workbook.active)
    for name, rows in sheets.items():
        worksheet = workbook.create_sheet(name)
        worksheet.sheet_state = "hidden" if name in hidden else "visible"
        for row in rows:
            worksheet.append(row)
    workbook.save(path)


def make_book(path: Path, sheets: dict[str, Sheet], hidden: tuple[str, ...] = ()) -> Path:
    write = xlsx if path.suffix == ".xlsx" else ods
    write(path, sheets, hidden)
    return path


def ids(path: Path, notes: Notes | None = None, **keys: Any) -> list[str]:
    return [example.id for example in read_questions(path, notes, **keys)]


QUESTIONS = [HEADER, *ROWS]
OTHER = [HEADER, ROWS[0]]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_hidden_sheet_is_read_only_by_name(ending: str, tmp_path: Path) -> None:
    sheets = {"Lists": OTHER, "Questions": QUESTIONS, "Notes": [["see below"]]}
    path = make_book(tmp_path / f"a{ending}", sheets, hidden=("Lists",))
    notes = Notes()
    assert ids(path, notes) == ["1", "2", "3"]
    assert notes.texts() == {"sheets are passed over: Lists (hidden), Notes": 2}

    # Named sheets need no note on the others.
    notes = Notes()
    assert ids(path, notes, sheet="Lists") == ["1"]
    assert notes.texts() == {}
    with pytest.raises(UserError) as error:
        ids(path, sheet="List")
    assert str(error.value) == (
        f"{path}: no sheet 'List' (there: Lists (hidden), Questions, Notes); correct data.sheet"
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_title_above_the_header_is_passed_over(ending: str, tmp_path: Path) -> None:
    sheets = {"Q": [["Questions of March 2024"], [], *QUESTIONS]}
    path = make_book(tmp_path / f"a{ending}", sheets)
    notes = Notes()
    examples = read_questions(path, notes)
    assert [example.question for example in examples] == [row[0] for row in ROWS]
    texts = {"rows above the header are passed over (the first: sheet 'Q', row 1)": 1}
    assert notes.texts() == texts
    assert read_documents(path, text_key="context") == [row[1] for row in ROWS]


def test_a_header_is_sought_in_the_first_21_rows(tmp_path: Path) -> None:
    titles = [[f"Line {number} of a preface"] for number in range(1, 22)]
    path = make_book(tmp_path / "a.xlsx", {"Q": [*titles[:20], *QUESTIONS]})
    assert ids(path) == ["1", "2", "3"]
    path = make_book(tmp_path / "b.xlsx", {"Q": [*titles, *QUESTIONS]})
    with pytest.raises(UserError, match=r"no column 'question' \(there: Line 1 of a preface\)"):
        ids(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_names_that_are_not_known_below_a_title_are_told(ending: str, tmp_path: Path) -> None:
    sheets = {"Q": [["Fragen im März"], [], ["Frage", "Text", "Antwort"], *ROWS]}
    path = make_book(tmp_path / f"a{ending}", sheets)
    with pytest.raises(UserError, match="cell B3 is under no name of the header in row 1") as error:
        ids(path)
    assert "delete rows above the header" in str(error.value)
    # With their names given they are known.
    columns = {"question": "Frage", "context": "Text", "answer": "Antwort"}
    assert ids(path, columns=columns) == ["1", "2", "3"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_row_that_has_a_name_in_it_is_no_header(ending: str, tmp_path: Path) -> None:
    """A row counts as the header only if it is wider than all above it."""
    rows = [["Frage", "Text", "Antwort"], ["answer", "An answer is one.", "answer"]]
    path = make_book(tmp_path / f"a{ending}", {"Q": rows})
    with pytest.raises(UserError, match=r"no column 'question' \(there: Frage, Text, Antwort\)"):
        ids(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_long_numbers_are_told(ending: str, tmp_path: Path) -> None:
    rows = [["id", *HEADER], [2**60, *ROWS[0]], [999_999_999_999_999, *ROWS[1]]]
    path = make_book(tmp_path / f"a{ending}", {"Q": rows})
    notes = Notes()
    # openpyxl writes 15 digits, as Excel keeps; this .ods has all of them in its text.
    first = "1152921504606850000" if ending == ".xlsx" else str(2**60)
    assert ids(path, notes) == [first, "999999999999999"]
    text = "numbers have more than 15 digits, which spreadsheets round; write ids as text"
    assert notes.texts() == {f"{text} (the first: sheet 'Q', row 2)": 1}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_empty_sheet_is_told_with_the_others(ending: str, tmp_path: Path) -> None:
    path = make_book(tmp_path / f"a{ending}", {"Sheet1": [], "Data": QUESTIONS})
    with pytest.raises(UserError) as error:
        ids(path)
    message = f"{path}: sheet 'Sheet1' is empty (other sheets: Data); name another in data.sheet"
    assert str(error.value) == message


SHEET = "xl/worksheets/sheet1.xml"


def test_a_formula_that_gives_an_empty_text_has_a_value(tmp_path: Path) -> None:
    """As Excel stores =IF(B2="","",B2): a text without characters."""
    path = tmp_path / "a.xlsx"
    excel(path, HEADER, ["Who?", "Ada.", "=IF(B9,B9,)"])
    old = b'<c r="C2"><f>IF(B9,B9,)</f><v />'
    change_member(path, SHEET, old, b'<c r="C2" t="str"><f>B9</f><v/>')
    (example,) = read_questions(path)
    assert example.answers == ()


def test_a_formula_without_a_value_is_told_behind_empty_cells(tmp_path: Path) -> None:
    """Cells with a border and no value are no formulas."""
    path = tmp_path / "a.xlsx"
    workbook = excel(path, HEADER, ["Who?", "Ada.", "Ada"], ["Who?", "Ada.", "x"], ["?", "=B2"])
    border = openpyxl.styles.Border(top=openpyxl.styles.Side("thin"))
    workbook.active["C3"] = None
    for name in ("C3", "D3", "E2"):
        workbook.active[name].border = border
    workbook.save(path)
    with pytest.raises(UserError, match="sheet 'Sheet', row 4: the formula in B4 has no stored"):
        ids(path)


def test_errors_of_formulas_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    excel(path, HEADER, ["Who?", "Ada.", "Ada"], ["#REF!", "Ada.", ""])
    notes = Notes()
    assert ids(path, notes) == ["1", "2"]
    texts = {"cells have an error in place of a value (the first: sheet 'Sheet', row 3)": 1}
    assert notes.texts() == texts


def test_a_sheet_of_a_file_without_sheets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("question,context,answer\nWho?,Ada.,Ada\n")
    with pytest.raises(UserError) as error:
        ids(path, sheet="Questions")
    assert str(error.value) == f"data.sheet: {path} is no spreadsheet; leave it out"


def test_a_sheet_of_texts_is_refused_only_if_none_has_sheets(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("text\nAda met Bo.\n")
    values = {"text": str(table), "sheet": "Q", "tokenizer": "x"}
    with pytest.raises(UserError, match=r"data\.sheet: .*a\.csv is no spreadsheet; leave it out"):
        open_texts(parse_text_config(values), exact=False)
    book = make_book(tmp_path / "b.xlsx", {"P": [["notes"]], "Q": [["text"], ["Bo met Cy."]]})
    values["text"] = [{"source": str(table)}, {"source": str(book)}]
    texts = open_texts(parse_text_config(values), exact=False)
    assert [opened.name for opened in texts] == ["a", "b"]


def test_a_line_break_of_windows_is_a_line_break(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    excel(path, HEADER, ["Who?", "Ada left.\nBo stayed.", "Bo"])
    change_member(path, SHEET, b"left.", b"left._x000D_")
    (example,) = read_questions(path)
    assert example.context == "Ada left.\nBo stayed."


def test_texts_that_excel_may_have_cut_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    excel(path, HEADER, ["Who?", "Ada met " + "Bo " * 20_000, "Ada"])
    notes = Notes()
    assert ids(path, notes) == ["1"]
    text = "texts have the 32,767 characters at which Excel cuts them"
    assert notes.texts() == {f"{text} (the first: sheet 'Sheet', row 2)": 1}


OOXML = b"http://schemas.openxmlformats.org/"
STRICT = b"http://purl.oclc.org/ooxml/"


def test_other_workbooks_of_excel_are_refused(tmp_path: Path) -> None:
    """Strict Open XML, which openpyxl reads as a workbook without sheets, and .xlsb."""
    path = tmp_path / "a.xlsx"
    excel(path, *OTHER)
    for kind in (b"spreadsheetml/%smain", b"officeDocument/%srelationships"):
        old = OOXML + kind % b"2006/"
        change_member(path, "xl/workbook.xml", old, STRICT + kind % b"")
    relations = OOXML + b"officeDocument/2006/relationships/worksheet"
    strict = STRICT + b"officeDocument/relationships/worksheet"
    change_member(path, "xl/_rels/workbook.xml.rels", relations, strict)
    with pytest.raises(UserError, match="no sheet that can be read; save it as an ordinary .xlsx"):
        ids(path)
    change_member(path, "[Content_Types].xml", b"sheet.main+xml", b"sheet.binary.main")
    with pytest.raises(UserError, match="not a whole xlsx file .*; save it again as .xlsx or .ods"):
        ids(path)
