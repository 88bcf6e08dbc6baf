"""Rows of a spreadsheet, .xlsx by openpyxl and .ods by its XML, as texts that a person sees.

An answer must stand in its text word for word, so 1500 that is shown as 1,500 is read as 1,500. In
.ods each cell has its shown text beside its value. In .xlsx it has a value and a format
(cell_formats.py). Libraries for .ods read all of a file into memory, or the values alone; its rows
are few lines of a parser in Python.

The first row that is not empty is the header, as for a table of text.
"""

import itertools
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.etree import ElementTree

from detalbert.errors import Cure, UserError
from detalbert.reading.cell_formats import displayed
from detalbert.reading.notes import Notes
from detalbert.reading.tables import column_names
from detalbert.settings.forms import XLSX

_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"

# Of a sheet, in Excel and in LibreOffice; a damaged file may ask for billions.
MOST_ROWS = 1_048_576
MOST_COLUMNS = 16_384
_MERGED = "of merged cells the first has it"
NumberedRows = Iterator[tuple[int, list[str]]]


def sheet_rows(
    where: str,
    source: BinaryIO,
    form: str,
    sheet: str | None,
    notes: Notes,
) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yield the rows of a sheet that are not empty, with their numbers in it.

    Args:
        where: the file, for messages.
        source: its content.
        form: XLSX or ODS.
        sheet: name of the sheet; default: the first.
        notes: gets columns without a name.

    Raises:
        UserError: there is no such sheet, a formula has no value, a cell is under no name, or a
            name is there twice.
        Exception: whatever the parsers raise for a damaged file.
    """
    read = _xlsx_rows if form == XLSX else _ods_rows
    names: list[str] = []
    for number, cells in read(where, source, sheet):
        if not any(cells):
            continue
        if not names:
            names = column_names(where, cells)
            if not all(names):
                notes.add(f"columns have no name; {_MERGED}", f"row {number}")
            continue
        for place, (cell, name) in enumerate(itertools.zip_longest(cells, names, fillvalue="")):
            if cell and not name:
                raise UserError(
                    f"row {number}: cell {_column(place)}{number} is under no name of the header "
                    f"({_MERGED})",
                    key=where,
                    cure="give each column its name in the first row, in a cell of its own",
                )
        named_cells = itertools.zip_longest(names, cells[: len(names)], fillvalue="")
        yield number, {name: cell for name, cell in named_cells if name}


def _column(place: int) -> str:
    """Return the letters of a column, counted from 0: A, B, ..., Z, AA."""
    letters = ""
    number = place + 1
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def _no_sheet(where: str, sheet: str | None, names: list[str]) -> UserError:
    return UserError(
        f"no sheet {sheet!r} (there: {', '.join(names):.200})",
        key=where,
        cure=Cure("correct data.sheet", by_flag="correct --sheet"),
    )


def _too_large(where: str, number: int) -> UserError:
    return UserError(
        f"row {number}: more than {MOST_ROWS:,} rows or {MOST_COLUMNS:,} columns",
        key=where,
        cure="the file is damaged; save it again in its program",
    )


def _no_value(where: str, number: int, place: int) -> UserError:
    return UserError(
        f"row {number}: the formula in {_column(place)}{number} has no stored value",
        key=where,
        cure="open the file in its program and save it, or put the value in its place",
    )


def _without_empty_end(cells: list[str]) -> list[str]:
    while cells and not cells[-1]:
        cells.pop()
    return cells


def import_openpyxl() -> Any:
    """Return openpyxl, for which only those wait who have sheets. Raises UserError without it."""
    try:
        import openpyxl
    except ImportError:
        raise UserError(
            "openpyxl is not installed, which reads and writes .xlsx",
            cure="pip install openpyxl",
        ) from None
    return openpyxl


def _open_xlsx(source: BinaryIO, **options: bool) -> Any:
    openpyxl = import_openpyxl()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # styles that it does not know
        return openpyxl.load_workbook(source, **options)


def _choose(workbook: Any, sheet: str | None) -> Any:
    """Return a worksheet; None if there is no such sheet."""
    for worksheet in workbook.worksheets:
        if sheet in (None, worksheet.title):
            return worksheet
    return None


def _xlsx_rows(where: str, source: BinaryIO, sheet: str | None) -> NumberedRows:
    # A cell has its formula or the value stored for it, by how the workbook is opened.
    values = _open_xlsx(source, read_only=True, data_only=True)
    formulas = _open_xlsx(source, read_only=True)
    value_sheet = _choose(values, sheet)
    formula_sheet = _choose(formulas, sheet)
    if value_sheet is None:
        raise _no_sheet(where, sheet, names=[other.title for other in values.worksheets])
    for worksheet in (value_sheet, formula_sheet):
        worksheet.reset_dimensions()  # some programs write wrong ones
    rows = zip(value_sheet.iter_rows(), formula_sheet.iter_rows(), strict=True)
    for number, (value_cells, formula_cells) in enumerate(rows, start=1):
        if number > MOST_ROWS:
            raise _too_large(where, number)
        texts = []
        for place, (cell, formula) in enumerate(zip(value_cells, formula_cells, strict=True)):
            if cell.value is None and formula.value is not None:
                raise _no_value(where, number, place)
            texts.append(displayed(cell))
        yield number, _without_empty_end(texts)


def _ods_rows(where: str, source: BinaryIO, sheet: str | None) -> NumberedRows:
    names: list[str] = []  # of the sheets so far
    number = 0  # of the last row
    is_chosen = False
    with zipfile.ZipFile(source) as archive, archive.open("content.xml") as content:
        for event, element in ElementTree.iterparse(content, events=("start", "end")):
            if event == "start" and element.tag == f"{_TABLE}table":
                name = element.get(f"{_TABLE}name", "")
                is_chosen = name == sheet or sheet is None and not names
                names.append(name)
            elif event == "end" and element.tag == f"{_TABLE}table-row":
                if is_chosen:
                    repeats = int(element.get(f"{_TABLE}number-rows-repeated", 1))
                    cells = _ods_cells(where, element, number + 1)
                    # Only rows without text are repeated a million times.
                    if repeats < 1 or cells and number + repeats > MOST_ROWS:
                        raise _too_large(where, number + 1)
                    for repeated in range(repeats if cells else 0):
                        yield number + 1 + repeated, cells
                    number += repeats
                element.clear()
    if sheet is not None and sheet not in names:
        raise _no_sheet(where, sheet, names)


def _ods_cells(where: str, row: ElementTree.Element, number: int) -> list[str]:
    """Return the texts of a row, to its last cell with one."""
    texts: list[str] = []
    empty = 0  # cells behind these
    for cell in row:
        # A cell that a merged one covers may have a text that nobody sees.
        is_seen = cell.tag == f"{_TABLE}table-cell"
        paragraphs = [_ods_text(part) for part in cell.findall(f"{_TEXT}p") if is_seen]
        text = "\n".join(paragraphs)
        repeats = int(cell.get(f"{_TABLE}number-columns-repeated", 1))
        if repeats < 1 or text and len(texts) + empty + repeats > MOST_COLUMNS:
            raise _too_large(where, number)
        if text:
            texts += [""] * empty + [text] * repeats
            empty = 0
        elif cell.get(f"{_TABLE}formula") and not cell.get(f"{_OFFICE}value-type"):
            raise _no_value(where, number, place=len(texts) + empty)
        else:
            empty += repeats
    return texts


def _ods_text(element: ElementTree.Element) -> str:
    """Return the text of a paragraph, in which elements stand for spaces, tabs and line breaks."""
    text = element.text or ""
    for part in element:
        if part.tag == f"{_TEXT}s":
            text += " " * int(part.get(f"{_TEXT}c", 1))
        elif part.tag == f"{_TEXT}tab":
            text += "\t"
        elif part.tag == f"{_TEXT}line-break":
            text += "\n"
        else:
            text += _ods_text(part)
        text += part.tail or ""
    return text
