"""Rows of files, by the endings of their names.

Nothing is guessed from a file's content: what is not as the ending says is an error of one line,
and so is a row that does not fit its header. The price is that a title above a header, or a file
of another program, has to be saved as CSV first.
"""

import csv
import gc
import io
import itertools
import json
import logging
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from detalbert.addresses import BUFFER, as_text, check_unpacked, ending_of, open_bytes, unreadable
from detalbert.errors import UserError, as_user_error, counted

Row = dict[str, Any]  # values by the names of columns
Rows = Iterator[tuple[str, Any]]  # each with its place in the file
Cells = Iterator[tuple[str, list[str]]]  # of a table, each row with its place
_QUOTED = re.compile(r'"[^"]*"')
csv.field_size_limit(1 << 30)  # characters of a cell
log = logging.getLogger(__name__)


def read_rows(address: str, sheet: str | None = None) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a file, each with its place for messages.

    Args:
        address: as `find_files` returns it.
        sheet: of a workbook; default: the first.

    Raises:
        UserError: it has another ending, is not as that says, or has a row that does not fit.
        Unavailable: a server fails.
    """
    ending = ending_of(address)
    if ending not in READERS:
        raise UserError(
            f"it does not end in {', '.join(READERS)}",
            key=address,
            cure="save it as one of these",
        )
    if sheet is not None and ending != ".xlsx":
        raise UserError(
            f"{address} is no workbook",
            key="data.sheet",
            cure="leave it out",
        )
    with as_user_error(unreadable(address)), open_bytes(address) as file:
        rows = READERS[ending](file) if sheet is None else _read_sheet(file, sheet)
        for place, row in rows:
            if not isinstance(row, dict):
                raise ValueError(f"{place} is {type(row).__name__}, not a mapping of columns")
            yield f"{address}: {place}", row


def _name_cells(table: Cells) -> Rows:
    """Yield the rows of a table that are not empty; the first of them names the columns."""
    names: list[str] = []
    for place, cells in table:
        if names and any(cells):
            _check_cells(cells, names, place)
            yield place, dict(zip(names, cells, strict=True))
        elif any(cells):
            names = [cell.strip() for cell in cells]
            _check_names(names, place)


def _check_names(names: list[str], place: str) -> None:
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


def _read_table(file: Any) -> Rows:
    return _name_cells(_split_lines(as_text(file)))


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
    has_warned = False
    try:
        for cells in reader:
            place = f"line {reader.line_num - len(record) + 1}"
            if _may_be_two(record, cells, separator) and not has_warned:
                has_warned = True
                log.warning("%s: %s: a quote may have made one row of two", lines.name, place)
            if not all(map(str.isspace, record)):
                yield place, cells
            record.clear()
    except csv.Error as error:
        number = reader.line_num - len(record) + 1
        raise ValueError(f"line {number}: {error}") from None


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


def _read_json_lines(file: Any) -> Rows:
    return _parse_lines(as_text(file))


def _parse_lines(lines: Iterable[str]) -> Rows:
    for number, line in enumerate(lines, start=1):
        if not line.isspace():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number} is not JSON ({error})") from None


def _read_json(file: Any) -> Rows:
    """Yield the rows of a list, of the list `data` of a mapping, or of JSON lines."""
    text = as_text(file).read()
    # Without the collector, which would look at all rows again and again: four times as fast.
    gc.disable()
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":  # after the first line of several
            raise
        return _parse_lines(io.StringIO(text, newline=""))
    finally:
        gc.enable()
    if isinstance(rows, dict):
        data = rows.get("data")
        rows = data if isinstance(data, list) else [rows]
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))


def _read_parquet(file: Any) -> Rows:
    """Yield the rows of a Parquet file, few at a time: of a text in many rows it holds one."""
    from pyarrow import parquet

    size = file.seek(0, io.SEEK_END)
    table = parquet.ParquetFile(file, buffer_size=BUFFER)
    _check_names(table.schema_arrow.names, place="the schema")
    number = 0
    unpacked = 0
    for batch in table.iter_batches(batch_size=4):
        unpacked += batch.nbytes
        check_unpacked(unpacked, packed=size)
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row


def _read_sheet(file: Any, sheet: str | None = None) -> Rows:
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


READERS: dict[str, Callable[[Any], Rows]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".xlsx": _read_sheet,
    ".parquet": _read_parquet,
}
