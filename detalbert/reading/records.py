"""Rows of files, by the endings of their names.

Nothing is guessed from a file's content: what is not as the ending says is an error of one line,
and so is a row that does not fit its header. The price is that a title above a header, or a file
of another program, has to be saved as CSV first.
"""

import gc
import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from detalbert.addresses import BUFFER, as_text, check_unpacked, ending_of, open_bytes, unreadable
from detalbert.errors import UserError, as_user_error
from detalbert.reading.tables import Rows, check_names, read_csv, read_sheet

Row = dict[str, Any]  # values by the names of columns


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
        rows = READERS[ending](file) if sheet is None else read_sheet(file, sheet)
        for place, row in rows:
            if not isinstance(row, dict):
                raise ValueError(f"{place} is {type(row).__name__}, not a mapping of columns")
            yield f"{address}: {place}", row


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
    check_names(table.schema_arrow.names, place="the schema")
    number = 0
    unpacked = 0
    for batch in table.iter_batches(batch_size=4):
        unpacked += batch.nbytes
        check_unpacked(unpacked, packed=size)
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row


READERS: dict[str, Callable[[Any], Rows]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".xlsx": read_sheet,
    ".parquet": _read_parquet,
}
