"""Rows of files, by the endings of their names.

Nothing is guessed from a file's content: what is not as the ending says is an error of one line,
and so is a row that does not fit its header. The price is that a title above a header, or a file
of another program, has to be saved as CSV first.
"""

import csv
import gc
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from detalbert.addresses import BUFFER, as_text, ending_of, open_bytes, unreadable
from detalbert.errors import UserError, as_user_error

Row = dict[str, Any]  # values by the names of columns
Rows = Iterator[tuple[str, Any]]  # each with its place in the file
Cells = Iterator[tuple[str, list[str]]]  # of a table, each row with its place
_QUOTED = re.compile(r'"[^"]*"')
_LINE_END = re.compile(r"\r\n|\r|\n")
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
        raise ValueError(f"{place}: {len(cells)} cells under {len(names)} names")
    if cells == names:
        raise ValueError(f"{place}: the header once more")
    if "" in names:
        for name, cell in zip(names, cells, strict=True):
            if not name and cell and not cell.isdecimal():  # pandas numbers its rows
                raise ValueError(f"{place}: {cell!r:.40} is under no name")


def _read_table(file: Any) -> Rows:
    return _name_cells(_split_lines(as_text(file)))


def _split_lines(lines: Iterable[str]) -> Cells:
    """Yield the cells of CSV. The separator is the most frequent one of the header, outside of
    quotes.
    """
    separator = ""
    has_warned = False
    for number, record in _join_lines(lines):
        if not separator:
            # A header's names have none of the other separators, mostly.
            outside_quotes = _QUOTED.sub("", record)
            separator = max(",;\t|", key=outside_quotes.count)
        try:
            (cells,) = csv.reader([record], delimiter=separator, strict=True)
            rows = _count_rows(record, cells, separator)
        except (csv.Error, ValueError) as error:
            raise ValueError(f"line {number}: {error}") from None
        yield f"line {number}", cells
        if rows == 2 and not has_warned:
            has_warned = True
            file = getattr(lines, "name", "a table")
            log.warning("%s: line %d: a quote may have made one row of two", file, number)


def _join_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the records of CSV that are not blank, each with the number of its first line: a line,
    or several until a quote is closed.
    """
    record = ""
    begin = 1
    quotes = 0
    for number, line in enumerate(lines, start=1):
        record += line
        quotes += line.count('"')
        if quotes % 2 == 0:
            if not record.isspace():
                yield begin, record
            record = ""
            begin = number + 1
    if record:
        raise ValueError(f"line {begin}: a quote is not closed")


def _count_rows(record: str, cells: list[str], separator: str) -> int:
    """Return how many rows a record may be of which a quote that nobody meant made one.

    Raises:
        ValueError: a quote hides separators, or more than two rows.
    """
    if "\0" in record:
        raise ValueError("a NUL character")
    # In 5"a, b",c a separator is missing before the quote, and the comma is taken for one.
    separators = len(cells) - 1
    if any('"' in cell for cell in cells):
        outside_quotes = _QUOTED.sub("", record)
        if outside_quotes.count(separator) != separators:
            raise ValueError("a quote is inside a cell without quotes")

    # Each line has the separators of a row. A space follows the commas of prose.
    lines = _LINE_END.split(record.rstrip("\r\n"))
    counts = {line.count(separator) - line.count(f"{separator} ") for line in lines}
    if len(lines) == 1 or counts != {separators} or not separators:
        return 1
    if len(lines) > 2:
        raise ValueError("a cell in quotes holds lines that look like rows")
    return len(lines)


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
    return _number(rows)


def _number(rows: Iterable[Any]) -> Rows:
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _read_parquet(file: Any) -> Rows:
    """Yield the rows of a Parquet file, few at a time: of a text in many rows it holds one."""
    from pyarrow import parquet

    table = parquet.ParquetFile(file, buffer_size=BUFFER)
    _check_names(table.schema_arrow.names, place="the schema")
    batches = table.iter_batches(batch_size=16)
    return _number(row for batch in batches for row in batch.to_pylist())


def _read_sheet(file: Any, sheet: str | None = None) -> Rows:
    import openpyxl  # takes a while, and few have sheets

    # Row by row: else a sheet takes fifty times its size.
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
            is_whole = isinstance(cell.value, float) and cell.value.is_integer()
            value = int(cell.value) if is_whole else cell.value
            cells.append("" if value is None else str(value))
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
