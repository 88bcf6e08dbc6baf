"""Spreadsheets: read as a person sees them, and written back."""

import datetime
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from detalbert.atomic import whole_files
from detalbert.errors import UserError
from detalbert.inference.workbook import open_workbook
from detalbert.reading.forms import recognise
from detalbert.reading.notes import Notes
from detalbert.reading.rows import rows_of_file
from detalbert.reading.storage import list_files
from tests.reading.files import read_questions

HEADER = ["question", "context", "answer"]
ROWS = [
    ["Who wrote it?", "Ada wrote the book.\nIt has 1,500 pages.", "Ada"],
    ["How many pages?", "It has 1,500 pages.", "1,500"],
    ["Who paid?", "The book  was free.", ""],
]
TYPE = "application/vnd.oasis.opendocument.spreadsheet"
NAMES = "urn:oasis:names:tc:opendocument:xmlns"
# As LibreOffice 24.2 writes it: a comment, a date, spaces, empty cells and rows to the sheet's end.
LIBRE = f"""<?xml version="1.0" encoding="UTF-8"?>
<office:document-content xmlns:office="{NAMES}:office:1.0" xmlns:table="{NAMES}:table:1.0"
 xmlns:text="{NAMES}:text:1.0"><office:body><office:spreadsheet>
<table:table table:name="Notes"><table:table-column/><table:table-row>
<table:table-cell office:value-type="string"><text:p>nothing</text:p></table:table-cell>
</table:table-row></table:table>
<table:table table:name="Questions"><table:table-header-rows><table:table-row>
<table:table-cell office:value-type="string"><text:p>question</text:p></table:table-cell>
<table:table-cell office:value-type="string"><text:p>context</text:p></table:table-cell>
<table:table-cell HEADER office:value-type="string"><text:p>answer</text:p></table:table-cell>
<table:covered-table-cell><text:p>hidden</text:p></table:covered-table-cell>
</table:table-row></table:table-header-rows>
<table:table-row table:number-rows-repeated="2"><table:table-cell
 table:number-columns-repeated="16384"/></table:table-row>
<table:table-row>
<table:table-cell office:value-type="string"><office:annotation><text:p>ask Bo</text:p>
</office:annotation><text:p>When?</text:p></table:table-cell>
<table:table-cell office:value-type="string"><text:p>It<text:s text:c="2"/>was <text:span
>09.03.2024</text:span>.</text:p><text:p>So.</text:p></table:table-cell>
<table:table-cell CELL</table:table-cell>
<table:table-cell table:number-columns-repeated="16381"/>
</table:table-row>
<table:table-row table:number-rows-repeated="1048572"><table:table-cell
 table:number-columns-repeated="16384"/></table:table-row>
</table:table></office:spreadsheet></office:body></office:document-content>
"""
DATE = 'office:value-type="date" office:date-value="2024-03-09"><text:p>09.03.2024</text:p>'


def libre(path: Path, header: str = "", cell: str = DATE) -> Path:
    content = LIBRE.replace("HEADER", header).replace("CELL", cell)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", TYPE)
        archive.writestr("content.xml", content)
    return path


def excel(path: Path, *rows: list[Any], title: str = "Sheet") -> openpyxl.Workbook:
    workbook = openpyxl.Workbook()
    workbook.active.title = title
    for row in rows:
        workbook.active.append(row)
    workbook.save(path)
    return workbook


def change_member(path: Path, name: str, old: bytes, new: bytes) -> None:
    """Replace bytes in a file of a workbook."""
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    assert old in members[name]
    members[name] = members[name].replace(old, new)
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def read_rows(path: Path, sheet: str | None = None, notes: Notes | None = None) -> dict[str, Any]:
    """The rows of a sheet by their places in it."""
    (file,) = list_files(str(path), "data.train")
    content = recognise(file, sheet=sheet)
    rows = rows_of_file(content, notes or Notes())
    return {place.row.partition(", ")[2]: row for place, row in rows}


@pytest.mark.parametrize("name", ["a.xlsx", "a.ods", "no_ending"])
def test_what_is_written_is_read(name, tmp_path):
    path = tmp_path / name
    formula = ["=1+1 is what?", "'=1+1' and\ttabs,\n  spaces & <tags>", "-2"]
    with whole_files() as open_file, open_workbook(path, open_file) as append:
        for row in (HEADER, *ROWS, formula):
            append(row)
    expected = [dict(zip(HEADER, row, strict=True)) for row in (*ROWS, formula)]
    assert read_rows(path) == {f"row {number}": row for number, row in enumerate(expected, 2)}


def test_numbers_and_dates_are_as_excel_shows_them(tmp_path):
    moment = datetime.datetime(2024, 3, 9, 15, 4, 5)
    day = datetime.datetime(2024, 3, 9)
    shown = {
        "1,500": (1500, "#,##0"),
        "12.5%": (0.125, "0.0%"),
        "3.14": (3.14159, "0.00"),
        "12 km": (12, '0" km"'),
        "€ 5.00": (5, "[$€-407] #,##0.00"),
        "-5.50": (-5.5, "0.00;[Red]-0.00"),
        "(5)": (-5, "#,##0_);(#,##0)"),
        "-3.50": (-3.5, "0.00"),
        "-7": (-7, "General"),
        "0.0": (0, "0.0;-0.0"),
        "none": (0, '0;-0;"none"'),
        "3": (2.5, "0"),
        "0.13": (0.125, "0.00"),
        "13%": (0.125, "0%"),
        "1.01": (1.005, "0.00"),
        "00042": (42, "00000"),
        "2.5": (2.5, "0.##"),
        "1500000": (1.5e6, '0.0,,"M"'),  # scaled: without a format
        "5551234567": (5551234567, "(000) 000-0000"),
        "0.00001": (1e-5, "General"),
        "30:00:00": (datetime.timedelta(hours=30), "[h]:mm:ss"),
        "90:00": (datetime.timedelta(minutes=90), "[mm]:ss"),
        "1912": (1912, "General"),
        "0.3": (0.1 + 0.2, "General"),
        "123456789012": (123456789012, "General"),
        "1.5": (1.5, "# ?/?"),
        "TRUE": (True, "General"),
        "007": ("007", "@"),
        "09.03.2024": (day, "dd.mm.yyyy"),
        "2024-03-09": (day, "mm-dd-yy"),  # Excel's name for the reader's own format
        "9 of March 2024, 3:04 PM": (moment, 'd" of "mmmm yyyy, h:mm AM/PM'),
        "Sat 15:04:05": (moment, "ddd hh:mm:ss"),
        "09:05": (datetime.time(9, 5), "hh:mm"),
    }
    workbook = excel(tmp_path / "a.xlsx", ["value"], *[[value] for value, _ in shown.values()])
    for number, (_, form) in enumerate(shown.values(), start=2):
        workbook.active.cell(number, 1).number_format = form
    workbook.save(tmp_path / "a.xlsx")
    rows = read_rows(tmp_path / "a.xlsx")
    assert [row["value"] for row in rows.values()] == list(shown)


def test_a_sheet_of_libreoffice(tmp_path):
    path = libre(tmp_path / "a.ods")
    expected = {"question": "When?", "context": "It  was 09.03.2024.\nSo.", "answer": "09.03.2024"}
    assert read_rows(path, sheet="Questions") == {"row 4": expected}
    assert read_rows(path) == {}  # the first sheet has a header alone


@pytest.mark.parametrize("ending", [".xlsx", ".ods"])
def test_a_formula_without_a_value_is_told(ending, tmp_path):
    path = tmp_path / f"a{ending}"
    if ending == ".ods":
        libre(path, cell='table:formula="of:=[.A1]">')
        cell = "C4"
    else:
        excel(path, HEADER, ["Who?", "Ada.", "=A1"])
        cell = "C2"
    with pytest.raises(UserError) as error:
        read_rows(path, sheet="Questions" if ending == ".ods" else None)
    assert str(error.value).startswith(f"{path}: sheet ")
    assert f", row {cell[1]}: the formula in {cell} has no stored value; " in str(error.value)


def test_the_value_of_a_formula_is_read(tmp_path):
    path = tmp_path / "a.xlsx"
    excel(path, HEADER, ["Who?", "Ada.", "=B2"])
    # Excel stores the value beside the formula; openpyxl writes none.
    change_member(path, "xl/worksheets/sheet1.xml", b"<v />", b"<v>7</v>")
    assert read_rows(path)["row 2"]["answer"] == "7"


def test_numbers_of_rows_need_no_name(tmp_path):
    """As `DataFrame.to_excel` writes them."""
    path = tmp_path / "a.xlsx"
    excel(path, [None, *HEADER], *([number, *row] for number, row in enumerate(ROWS)))
    notes = Notes()
    numbered = read_rows(path, notes=notes)
    excel(path, HEADER, *ROWS)
    assert numbered == read_rows(path)
    assert not notes.texts()
    excel(path, [None, *HEADER], ["a", *ROWS[0]])
    with pytest.raises(UserError, match="cell A2 is under no name"):
        read_rows(path)


def test_merged_cells_of_a_header_are_told(tmp_path):
    path = tmp_path / "a.xlsx"
    workbook = excel(path, ["question", "context", None, "answer"], ROWS[0])
    workbook.active["C2"] = None
    workbook.active["D2"] = "Ada"
    workbook.active.merge_cells("B1:C1")
    workbook.save(path)
    notes = Notes()
    assert len(read_rows(path, notes=notes)) == 1
    (text,) = notes.texts()
    told = "columns have no name; of merged cells the first has it"
    assert text == f"{told} (the first: sheet 'Sheet', row 1)"

    # A cell below the second of them has no name.
    workbook.active["C2"] = "?"
    workbook.save(path)
    with pytest.raises(UserError) as error:
        read_rows(path)
    message = "row 2: cell C2 is under no name of the header in row 1 (of merged cells the first"
    assert message in str(error.value)


@pytest.mark.parametrize("damage", [b"", b"\x00" * 50])
@pytest.mark.parametrize("ending", [".xlsx", ".ods"])
def test_a_damaged_sheet_is_one_line(damage, ending, tmp_path):
    path = tmp_path / f"a{ending}"
    with whole_files() as open_file, open_workbook(path, open_file) as append:
        append(HEADER)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + damage)
    with pytest.raises(
        UserError, match=f"not a whole {ending[1:]} file .*; save it again as .xlsx"
    ):
        read_rows(path)


def test_a_fault_names_the_row_of_the_sheet(tmp_path):
    excel(tmp_path / "a.xlsx", HEADER, [], ROWS[0], ["Who?", "Ada.", "Bo"])
    with pytest.raises(UserError) as error:
        read_questions(tmp_path / "a.xlsx")
    assert "a.xlsx: sheet 'Sheet', row 4: question 2: answer 'Bo' is not in its" in str(error.value)


def test_a_text_longer_than_a_cell_of_excel_is_cut(tmp_path, caplog):
    for name, length in {"a.xlsx": 32_767, "a.ods": 40_000}.items():
        with whole_files() as open_file, open_workbook(tmp_path / name, open_file) as append:
            append(["context"])
            append(["x" * 40_000])
        assert len(read_rows(tmp_path / name)["row 2"]["context"]) == length
    (record,) = caplog.records
    assert "1 text(s) are cut to the 32,767 characters" in record.getMessage()


@pytest.mark.parametrize("repeats", ["300000000", "-3"])
@pytest.mark.parametrize("what", ["columns", "rows"])
def test_a_damaged_count_of_cells_is_refused(what, repeats, tmp_path):
    with whole_files() as open_file, open_workbook(tmp_path / "a.ods", open_file) as append:
        append(["question", "context"])
        append(["Who?", "Ada."])
    cell = b"<table:table-cell" if what == "columns" else b"<table:table-row"
    count = f' table:number-{what}-repeated="{repeats}"'.encode()
    change_member(tmp_path / "a.ods", "content.xml", cell, cell + count)
    with pytest.raises(UserError, match="row 1: more than 1,048,576 rows or 16,384 columns"):
        read_rows(tmp_path / "a.ods")
