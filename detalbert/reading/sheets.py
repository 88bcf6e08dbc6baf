"""Rows of a spreadsheet, .xlsx by openpyxl and .ods by its XML, as texts that a person sees.

An answer must stand in its text word for word, so 1500 that is shown as 1,500 is read as 1,500. In
.ods each cell has its shown text beside its value. In .xlsx it has a value and a format
(cell_formats.py), and a formula only in a second reading: the price of a formula without a stored
value being an error. Libraries for .ods give the values alone; its rows are few lines of XML.

The header is the first row with one of the names that are needed, so a title may stand above it;
without such a row it is the first that is not empty, as for a table of text. A place names the
sheet, as a workbook has several with equal numbers of rows.
"""

import itertools
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple
from xml.etree import ElementTree

from detalbert.errors import Cure, UserError
from detalbert.reading.cell_formats import displayed
from detalbert.reading.notes import Notes
from detalbert.reading.tables import column_names
from detalbert.settings.forms import XLSX

_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"

# Of a sheet, in Excel and in LibreOffice; a damaged file may ask for billions.
MOST_ROWS = 1_048_576
MOST_COLUMNS = 16_384
MOST_CHARACTERS = 32_767  # of a cell of .xlsx
_ABOVE = 20  # rows above the header, at most
_EXACT = 10**15  # numbers from here on have more digits than spreadsheets keep
_LONG = "numbers have more than 15 digits, which spreadsheets round; write ids as text"
_CUT = f"texts have the {MOST_CHARACTERS:,} characters at which Excel cuts them"
_ERROR = "cells have an error in place of a value"
_MERGED = "of merged cells the first has it"


class Sheet(NamedTuple):
    """The sheet of a workbook that is read."""

    where: str  # the file, for messages
    name: str
    others: str  # names of the other sheets
    notes: Notes  # as for `sheet_rows`

    def place(self, number: int) -> str:
        """Return the place of a row."""
        return f"sheet {self.name!r}, row {number}"

    def note_number(self, value: float, number: int) -> None:
        """Note a number of more digits than spreadsheets keep."""
        if abs(value) >= _EXACT:
            self.notes.add(_LONG, self.place(number))

    def too_large(self, number: int) -> UserError:
        return UserError(
            f"{self.place(number)}: more than {MOST_ROWS:,} rows or {MOST_COLUMNS:,} columns",
            key=self.where,
            cure="the file is damaged; save it again in its program",
        )

    def no_value(self, number: int, place: int) -> UserError:
        return UserError(
            f"{self.place(number)}: the formula in {_column(place)}{number} has no stored value",
            key=self.where,
            cure="open the file in its program and save it, or put the value in its place",
        )


class Line(NamedTuple):
    """A row of a sheet, to its last cell that is not empty."""

    number: int  # as programs show it
    cells: list[str]


Lines = Iterator[Line]


def sheet_rows(
    where: str,
    source: BinaryIO,
    form: str,
    sheet: str | None,
    notes: Notes,
    needed: Collection[str] = (),
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a sheet that are not empty, with their places in the workbook.

    Args:
        where: the file, for messages.
        source: its content.
        form: XLSX or ODS.
        sheet: name of the sheet; default: the first that is not hidden.
        notes: gets columns without a name, long numbers, errors, and what is passed over.
        needed: names of columns, in small letters, by which the header is known.

    Raises:
        UserError: there is no such sheet, or nothing in it; a formula has no value, a cell is under
            no name, or a name is there twice.
        Exception: whatever the parsers raise for a damaged file.
    """
    open_sheet = _open_xlsx if form == XLSX else _open_ods
    opened, lines = open_sheet(source, where, sheet, notes)
    filled = (line for line in lines if any(line.cells))
    lines = _from_header(filled, needed, opened)
    header = next(lines, None)
    if header is None:
        raise UserError(
            f"sheet {opened.name!r} is empty (other sheets: {opened.others or 'none':.200})",
            key=where,
            cure=Cure("name another in data.sheet", by_flag="name another in --sheet"),
        )
    header_place = opened.place(header.number)
    names = column_names(f"{where}: {header_place}", header.cells)
    if not all(names[1:]):  # the first may have numbers of rows
        notes.add(f"columns have no name; {_MERGED}", header_place)
    for line in lines:
        place = opened.place(line.number)
        _check_line(line, header=header, names=names, place=place, where=where)
        if MOST_CHARACTERS in map(len, line.cells):
            notes.add(_CUT, place)
        cells = itertools.zip_longest(names, line.cells[: len(names)], fillvalue="")
        yield place, {name: cell for name, cell in cells if name}


def _from_header(lines: Lines, needed: Collection[str], sheet: Sheet) -> Lines:
    """Return the rows from the header on."""
    above: list[Line] = []
    for line in itertools.islice(lines, _ABOVE + 1):
        is_wider = all(_count(line.cells) > _count(other.cells) for other in above)
        if is_wider and any(cell.strip().lower() in needed for cell in line.cells):
            for other in above:
                sheet.notes.add("rows above the header are passed over", sheet.place(other.number))
            return itertools.chain([line], lines)
        above.append(line)
    return itertools.chain(above, lines)


def _count(cells: list[str]) -> int:
    return sum(map(bool, cells))


def _check_line(line: Line, header: Line, names: list[str], place: str, where: str) -> None:
    """Raise UserError if a cell is under no name of the header, but for a number of the row in the
    first column, as pandas writes it.
    """
    for column, (cell, name) in enumerate(itertools.zip_longest(line.cells, names)):
        is_row_number = column == 0 and cell is not None and cell.isdecimal()
        if cell and not name and not is_row_number:
            raise UserError(
                f"{place}: cell {_column(column)}{line.number} is under no name of the header in "
                f"row {header.number} ({_MERGED})",
                key=where,
                cure="give each column its name, in a cell of its own, and delete rows above the "
                "header",
            )


def _column(place: int) -> str:
    """Return the letters of a column, counted from 0: A, B, ..., Z, AA."""
    letters = ""
    number = place + 1
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def _choose(where: str, is_hidden: Mapping[str, bool], wanted: str | None, notes: Notes) -> Sheet:
    """Return the sheet that is read; note the others, unless the user has named one.

    Args:
        where, notes: as for `sheet_rows`.
        is_hidden: by the names of all sheets.
        wanted: name of the sheet; None: the first that is not hidden.
    """
    if not is_hidden:
        raise UserError(
            "no sheet that can be read",
            key=where,
            cure="save it as an ordinary .xlsx (not Strict Open XML)",
        )
    visible = [name for name, hidden in is_hidden.items() if not hidden]
    name = next(iter(visible), None) if wanted is None else wanted
    others = [
        f"{other} (hidden)" if hidden else other
        for other, hidden in is_hidden.items()
        if other != name
    ]
    names = ", ".join(others)
    if name is None or name not in is_hidden:
        which = "sheet that is not hidden" if name is None else f"sheet {name!r}"
        raise UserError(
            f"no {which} (there: {names:.200})",
            key=where,
            cure=Cure("correct data.sheet", by_flag="correct --sheet"),
        )
    if wanted is None and others:
        notes.counts[f"sheets are passed over: {names:.200}"] = len(others)
    return Sheet(where, name=name, others=names, notes=notes)


def _open_xlsx(
    source: BinaryIO, where: str, wanted: str | None, notes: Notes
) -> tuple[Sheet, Lines]:
    workbook = _load_workbook(source, data_only=True)
    is_hidden = {page.title: page.sheet_state != "visible" for page in workbook.worksheets}
    sheet = _choose(where, is_hidden, wanted=wanted, notes=notes)
    return sheet, _xlsx_lines(sheet, workbook[sheet.name], _formula_rows(source, sheet.name))


def _load_workbook(source: BinaryIO, data_only: bool) -> Any:
    import openpyxl  # takes a while, and few have sheets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # styles that it does not know
        return openpyxl.load_workbook(source, read_only=True, data_only=data_only)


def _formula_rows(source: BinaryIO, sheet: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a sheet with formulas in place of the values stored for them. The workbook
    is parsed again when the first of them is asked for: few sheets need it.
    """
    page = _load_workbook(source, data_only=False)[sheet]
    page.reset_dimensions()
    yield from enumerate(page.iter_rows(), start=1)


def _xlsx_lines(sheet: Sheet, page: Any, formula_rows: Iterator[tuple[int, Any]]) -> Lines:
    """Yield the rows of a sheet; `formula_rows`: the same ones with formulas."""
    page.reset_dimensions()  # some programs write wrong ones
    for number, cells in enumerate(page.iter_rows(), start=1):
        if number > MOST_ROWS:
            raise sheet.too_large(number)
        # A cell that is in the file and has no value: it is a formula, or only formatted.
        empty = []
        for place, cell in enumerate(cells):
            # A text that is empty has another type.
            if cell.value is None and cell.data_type == "n" and hasattr(cell, "coordinate"):
                empty.append(place)
        if empty:
            formulas = next(row for other, row in formula_rows if other == number)
            for place in empty:
                if formulas[place].value is not None:
                    raise sheet.no_value(number, place)
        for cell in cells:
            if isinstance(cell.value, (int, float)):
                sheet.note_number(cell.value, number)
            elif cell.data_type == "e":
                sheet.notes.add(_ERROR, sheet.place(number))
        texts = [displayed(cell) for cell in cells]
        while texts and not texts[-1]:
            texts.pop()
        yield Line(number, texts)


def _open_ods(
    source: BinaryIO, where: str, wanted: str | None, notes: Notes
) -> tuple[Sheet, Lines]:
    with zipfile.ZipFile(source) as archive:
        content = ElementTree.fromstring(archive.read("content.xml"))
    hidden_styles = set()
    for style in content.iter(f"{_STYLE}style"):
        properties = style.find(f"{_STYLE}table-properties")
        if properties is not None and properties.get(f"{_TABLE}display") == "false":
            hidden_styles.add(style.get(f"{_STYLE}name"))

    tables = {table.get(f"{_TABLE}name", ""): table for table in content.iter(f"{_TABLE}table")}
    is_hidden = {
        name: table.get(f"{_TABLE}style-name") in hidden_styles for name, table in tables.items()
    }
    sheet = _choose(where, is_hidden, wanted=wanted, notes=notes)
    return sheet, _ods_lines(sheet, tables[sheet.name])


def _ods_lines(sheet: Sheet, table: ElementTree.Element) -> Lines:
    number = 0  # of the last row
    for row in table.iter(f"{_TABLE}table-row"):
        repeats = int(row.get(f"{_TABLE}number-rows-repeated", 1))
        cells = _ods_cells(sheet, row, number=number + 1)
        # Only rows without text are repeated a million times.
        if repeats < 1 or cells and number + repeats > MOST_ROWS:
            raise sheet.too_large(number + 1)
        if cells:
            for repeated in range(number + 1, number + 1 + repeats):
                yield Line(repeated, cells)
        number += repeats


def _ods_cells(sheet: Sheet, row: ElementTree.Element, number: int) -> list[str]:
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
            raise sheet.too_large(number)
        if text:
            sheet.note_number(float(cell.get(f"{_OFFICE}value", 0)), number)
            texts += [""] * empty + [text] * repeats
            empty = 0
        elif cell.get(f"{_TABLE}formula") and not cell.get(f"{_OFFICE}value-type"):
            raise sheet.no_value(number, place=len(texts) + empty)
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
