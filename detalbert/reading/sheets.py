"""Rows of a spreadsheet, .xlsx by openpyxl and .ods by its XML, as texts that a person sees.

An answer must stand in its text word for word, so 1500 that is shown as 1,500 is read as 1,500. In
.ods each cell has its shown text beside its value. In .xlsx it has a value and a format
(cell_formats.py). Libraries for .ods read all of a file into memory, or the values alone; its rows
are few lines of a parser in Python.

The header is the first row with one of the names that are needed, so a title may stand above it;
without such a row it is the first that is not empty, as for a table of text. A place names the
sheet, as a workbook has several with equal numbers of rows.
"""

import itertools
import re
import warnings
import zipfile
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NamedTuple
from xml.etree import ElementTree

from detalbert.errors import Cure, UserError
from detalbert.reading.cell_formats import displayed
from detalbert.reading.notes import Notes
from detalbert.reading.storage import BLOCK
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
# A cell that ends behind its formula, or behind an empty value.
_NO_VALUE = re.compile(
    rb"(</(\w+:)?f>|<(\w+:)?f\b[^>]*/>)\s*(<(\w+:)?v\s*/>|<(\w+:)?v></(\w+:)?v>)?\s*</(\w+:)?c>"
)
_OVERLAP = 1024  # bytes of a block that are searched with the next one
_ABOVE = 20  # rows above the header, at most
_EXACT = 10**15  # numbers from here on have more digits than spreadsheets keep
_LONG = "numbers have more than 15 digits, which spreadsheets round; write ids as text"
_CUT = f"texts have the {MOST_CHARACTERS:,} characters at which Excel cuts them"
_ERROR = "cells have an error in place of a value"
_MERGED = "of merged cells the first has it"


class Line(NamedTuple):
    """A row of a sheet, to its last cell that is not empty."""

    place: str
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
    sheets = _Sheets(where, wanted=sheet, notes=notes)
    lines = _xlsx_lines(source, sheets) if form == XLSX else _ods_lines(source, sheets)
    filled = (line for line in lines if any(line.cells))
    header = None
    names: list[str] = []
    for line in _from_header(filled, needed, notes):
        if header is None:
            header = line
            names = column_names(f"{where}: {header.place}", header.cells)
            if not all(names):
                notes.add(f"columns have no name; {_MERGED}", header.place)
            continue
        _check_line(where, line, header, names)
        if MOST_CHARACTERS in map(len, line.cells):
            notes.add(_CUT, line.place)
        cells = itertools.zip_longest(names, line.cells[: len(names)], fillvalue="")
        yield line.place, {name: cell for name, cell in cells if name}
    if header is None:
        raise sheets.empty()


def _from_header(lines: Lines, needed: Collection[str], notes: Notes) -> Lines:
    """Return the rows from the header on."""
    above: list[Line] = []
    for line in itertools.islice(lines, _ABOVE + 1):
        is_wider = all(_count(line.cells) > _count(other.cells) for other in above)
        if is_wider and any(cell.strip().lower() in needed for cell in line.cells):
            for other in above:
                notes.add("rows above the header are passed over", other.place)
            return itertools.chain([line], lines)
        above.append(line)
    return itertools.chain(above, lines)


def _count(cells: list[str]) -> int:
    return sum(map(bool, cells))


def _check_line(where: str, line: Line, header: Line, names: list[str]) -> None:
    """Raise UserError if a cell is under no name of the header."""
    for place, (cell, name) in enumerate(itertools.zip_longest(line.cells, names, fillvalue="")):
        if not cell or name:
            continue
        # A single name is a title, and the names are below it.
        if _count(names) == 1:
            title = "".join(names)
            raise UserError(
                f"row {header.number} ({title!r:.60}) is read as the header, and {line.place} "
                "looks like it",
                key=where,
                cure="delete the rows above it",
            )
        cell_name = f"{_column(place)}{line.number}"
        raise UserError(
            f"{line.place}: cell {cell_name} is under no name of the header ({_MERGED})",
            key=where,
            cure=f"give each column its name in row {header.number}, in a cell of its own",
        )


def _column(place: int) -> str:
    """Return the letters of a column, counted from 0: A, B, ..., Z, AA."""
    letters = ""
    number = place + 1
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


class _Sheets:
    """The sheets of a workbook, of which one is read; what is noted of it.

    Args:
        where: the file, for messages.
        wanted: name of the sheet; None: the first that is not hidden.
        notes: as for `sheet_rows`.
    """

    def __init__(self, where: str, wanted: str | None, notes: Notes) -> None:
        self.where = where
        self.wanted = wanted
        self.notes = notes
        self.chosen: str | None = None
        self.others: list[str] = []

    def place(self, number: int) -> str:
        """Return the place of a row in the sheet that is read."""
        return f"sheet {self.chosen!r}, row {number}"

    def choose(self, name: str, is_hidden: bool) -> bool:
        """Return whether the next sheet is the one that is read."""
        if self.wanted is None:
            is_chosen = self.chosen is None and not is_hidden
        else:
            is_chosen = name == self.wanted
        if is_chosen:
            self.chosen = name
        else:
            self.others.append(f"{name} (hidden)" if is_hidden else name)
        return is_chosen

    def check(self) -> None:
        """Raise UserError if none is read; note the others, unless the user has named one."""
        names = ", ".join(self.others)
        if self.chosen is None and not self.others:
            raise UserError(
                "no sheet that can be read",
                key=self.where,
                cure="save it as an ordinary .xlsx (not Strict Open XML)",
            )
        if self.chosen is None:
            which = "sheet that is not hidden" if self.wanted is None else f"sheet {self.wanted!r}"
            raise UserError(
                f"no {which} (there: {names:.200})",
                key=self.where,
                cure=Cure("correct data.sheet", by_flag="correct --sheet"),
            )
        if self.wanted is None and self.others:
            self.notes.counts[f"sheets are passed over: {names:.200}"] = len(self.others)

    def empty(self) -> UserError:
        """Return the error for a sheet without a row."""
        names = ", ".join(self.others) or "none"
        return UserError(
            f"sheet {self.chosen!r} is empty (other sheets: {names:.200})",
            key=self.where,
            cure=Cure("name another in data.sheet", by_flag="name another in --sheet"),
        )

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


def _open_xlsx(source: BinaryIO, data_only: bool) -> Any:
    openpyxl = import_openpyxl()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # styles that it does not know
        return openpyxl.load_workbook(source, read_only=True, data_only=data_only)


def _xlsx_lines(source: BinaryIO, sheets: _Sheets) -> Lines:
    chosen: Any = None
    for worksheet in _open_xlsx(source, data_only=True).worksheets:
        is_hidden = worksheet.sheet_state != "visible"
        if sheets.choose(worksheet.title, is_hidden=is_hidden):
            chosen = worksheet
    sheets.check()
    chosen.reset_dimensions()  # some programs write wrong ones
    formulas = _formulas(source, sheet=chosen.title)
    may_lack_values = _may_lack_values(source)
    for number, cells in enumerate(chosen.iter_rows(), start=1):
        if number > MOST_ROWS:
            raise sheets.too_large(number)
        if may_lack_values:
            _check_values(cells, number=number, formulas=formulas, sheets=sheets)
        for cell in cells:
            if isinstance(cell.value, (int, float)):
                sheets.note_number(cell.value, number)
            elif cell.data_type == "e":
                sheets.notes.add(_ERROR, sheets.place(number))
        texts = _without_empty_end([displayed(cell) for cell in cells])
        yield Line(sheets.place(number), number, texts)


def _may_lack_values(source: BinaryIO) -> bool:
    """Return whether a formula of a workbook has no value or an empty text, by a search in its
    bytes: to parse them twice takes twice as long.
    """
    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            if not name.startswith("xl/worksheets/"):
                continue
            end = b""  # of the last block
            with archive.open(name) as sheet:
                while block := sheet.read(BLOCK):
                    if _NO_VALUE.search(end + block):
                        return True
                    end = block[-_OVERLAP:]
    return False


def _formulas(source: BinaryIO, sheet: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a sheet with formulas in place of the values stored for them."""
    worksheet = _open_xlsx(source, data_only=False)[sheet]
    worksheet.reset_dimensions()
    yield from enumerate(worksheet.iter_rows(), start=1)


def _check_values(
    cells: Any, number: int, formulas: Iterator[tuple[int, Any]], sheets: _Sheets
) -> None:
    """Raise UserError if a formula has no value."""
    # A text that is empty has another type; what is not in the file has no coordinate.
    empty = []
    for place, cell in enumerate(cells):
        if cell.value is None and cell.data_type == "n" and hasattr(cell, "coordinate"):
            empty.append(place)
    if not empty:
        return
    row = next(row for row_number, row in formulas if row_number == number)
    for place in empty:
        if row[place].value is not None:
            raise sheets.no_value(number, place)


def _ods_lines(source: BinaryIO, sheets: _Sheets) -> Lines:
    number = 0  # of the last row
    is_chosen = False
    hidden: set[str | None] = set()  # styles of tables that nobody sees
    with zipfile.ZipFile(source) as archive, archive.open("content.xml") as content:
        for event, element in ElementTree.iterparse(content, events=("start", "end")):
            if event == "end" and element.tag == f"{_STYLE}style":
                properties = element.find(f"{_STYLE}table-properties")
                if properties is not None and properties.get(f"{_TABLE}display") == "false":
                    hidden.add(element.get(f"{_STYLE}name"))
            elif event == "start" and element.tag == f"{_TABLE}table":
                name = element.get(f"{_TABLE}name", "")
                is_hidden = element.get(f"{_TABLE}style-name") in hidden
                is_chosen = sheets.choose(name, is_hidden=is_hidden)
            elif event == "end" and element.tag == f"{_TABLE}table-row":
                if is_chosen:
                    repeats = int(element.get(f"{_TABLE}number-rows-repeated", 1))
                    cells = _ods_cells(sheets, element, number=number + 1)
                    # Only rows without text are repeated a million times.
                    if repeats < 1 or cells and number + repeats > MOST_ROWS:
                        raise sheets.too_large(number + 1)
                    for repeated in range(number + 1, number + 1 + repeats if cells else 0):
                        yield Line(sheets.place(repeated), repeated, cells)
                    number += repeats
                element.clear()
    sheets.check()


def _ods_cells(sheets: _Sheets, row: ElementTree.Element, number: int) -> list[str]:
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
            raise sheets.too_large(number)
        if text:
            sheets.note_number(float(cell.get(f"{_OFFICE}value", 0)), number)
            texts += [""] * empty + [text] * repeats
            empty = 0
        elif cell.get(f"{_TABLE}formula") and not cell.get(f"{_OFFICE}value-type"):
            raise sheets.no_value(number, place=len(texts) + empty)
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
