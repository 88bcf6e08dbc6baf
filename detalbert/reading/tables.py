"""Tables: CSV and the sheets of workbooks, whose first row names the columns.

A row has a cell for each column. A quote that nobody meant swallows rows, which no reader of CSV
sees: a row of several lines, each of which looks like a row, is refused or told.
"""

import csv
import io
import itertools
import logging
import re
import zipfile
from collections.abc import Iterator
from typing import Any, TextIO

from detalbert.addresses import as_text, check_unpacked
from detalbert.errors import counted

Rows = Iterator[tuple[str, Any]]  # each with its place in the file
Cells = Iterator[tuple[str, list[str]]]  # of a table, each row with its place
_QUOTED = re.compile(r'"[^"]*"')
csv.field_size_limit(1 << 30)  # characters of a cell
log = logging.getLogger(__name__)


def read_csv(file: Any) -> Rows:
    """Yield the rows of CSV, whatever separates its cells. Raises ValueError, with the line."""
    return _name_cells(_split_lines(as_text(file)))


def read_sheet(file: Any, sheet: str | None = None) -> Rows:
    """Yield the rows of a workbook's sheet.

    Args:
        file: the open workbook.
        sheet: its title; default: the first.

    Raises:
        ValueError: there is none of this title, or a row does not fit.
    """
    import openpyxl  # takes a while, and few have sheets

    # Row by row: else a sheet takes fifty times its size.
    with zipfile.ZipFile(file) as parts:
        unpacked = sum(part.file_size for part in parts.infolist())
        check_unpacked(unpacked, packed=file.seek(0, io.SEEK_END))
    workbook = openpyxl.load_workbook(file, read_only=True)
    titles = workbook.sheetnames
    title = sheet or titles[0]
    place = f"sheet {title!r}"
    if titles != [title]:
        place += f" of {', '.join(titles):.200} (data.sheet)"
    if title not in titles:
        raise ValueError(f"no {place}")
    return _name_cells(_read_cells(workbook[title], place))


def _read_cells(sheet: Any, place: str) -> Cells:
    """Yield the cells of a sheet, as Python prints them, at least as many as in its first row."""
    sheet.reset_dimensions()  # some programs write wrong ones
    width = 0
    for number, row in enumerate(sheet.iter_rows(), start=1):
        cells = []
        for cell in row:
            if cell.data_type in ("f", "e"):
                raise ValueError(f"{place}, row {number}: a formula, or an error; save its value")
            cells.append("" if cell.value is None else str(cell.value))
        width = width or len(cells)
        cells += [""] * (width - len(cells))
        yield f"{place}, row {number}", cells


def _name_cells(table: Cells) -> Rows:
    """Yield the rows of a table that are not empty; the first of them names the columns."""
    names: list[str] = []
    for place, cells in table:
        if names and any(cells):
            _check_cells(cells, names, place)
            yield place, dict(zip(names, cells, strict=True))
        elif any(cells):
            names = [cell.strip() for cell in cells]
            check_names(names, place)


def check_names(names: list[str], place: str) -> None:
    """Raise ValueError, with the place of the names, if two columns have the same."""
    for name in names:
        if name and names.count(name) > 1:
            raise ValueError(f"{place}: two columns are named {name!r}")


def _check_cells(cells: list[str], names: list[str], place: str) -> None:
    if len(cells) != len(names):
        raise ValueError(
            f"{place}: {counted(len(cells), 'cell')} under {counted(len(names), 'name')}"
        )
    if cells == names:
        raise ValueError(f"{place}: the header once more")
    if "" in names:
        for name, cell in zip(names, cells, strict=True):
            if not name and cell and not cell.isdecimal():  # pandas numbers its rows
                raise ValueError(f"{place}: {cell!r:.40} is under no name")


def _split_lines(lines: TextIO) -> Cells:
    """Yield the cells of CSV, without its blank lines. The separator is the most frequent one of
    the header, outside of quotes.
    """
    head = []
    quotes = 0
    for line in lines:
        head.append(line)
        quotes += line.count('"')
        if quotes % 2 == 0 and not line.isspace():
            break
    # A header's names have none of the other separators, mostly.
    outside_quotes = _QUOTED.sub("", "".join(head))
    separator = max(",;\t|", key=outside_quotes.count)

    record: list[str] = []  # the lines of a row

    def recorded() -> Iterator[str]:
        for line in itertools.chain(head, lines):
            if "\0" in line:
                raise csv.Error("a NUL character")
            record.append(line)
            yield line

    reader = csv.reader(recorded(), delimiter=separator, strict=True)
    first = 1  # line of the row
    has_warned = False
    try:
        for cells in reader:
            place = f"line {first}"
            if _may_be_two(record, cells, separator) and not has_warned:
                has_warned = True
                log.warning("%s: %s: a quote may have made one row of two", lines.name, place)
            if not all(map(str.isspace, record)):
                yield place, cells
            first += len(record)
            record.clear()
    except csv.Error as error:
        raise ValueError(f"line {first}: {error}") from None


def _may_be_two(record: list[str], cells: list[str], separator: str) -> bool:
    """Return whether a quote that nobody meant may have made one row of two.

    Args:
        record: the lines of the row.

    Raises:
        csv.Error: a quote hides separators, or more than two rows.
    """
    # In 5"a, b",c a separator is missing before the quote, and the comma is taken for one.
    separators = len(cells) - 1
    if any('"' in cell for cell in cells):
        outside_quotes = _QUOTED.sub("", "".join(record))
        if '"' in outside_quotes or outside_quotes.count(separator) != separators:
            raise csv.Error("a quote is inside a cell without quotes")

    # Each line has the separators of a row. A space follows the commas of prose.
    counts = {line.count(separator) - line.count(f"{separator} ") for line in record}
    if len(record) == 1 or counts != {separators} or not separators:
        return False
    if len(record) > 2:
        raise csv.Error("a cell in quotes holds lines that look like rows")
    return True
