"""The rows of a file in any form, each with its place, one at a time.

The place goes along as data, not as text: a message on ten rows of a file names the file once.
"""

import io
import json
from collections.abc import Collection, Iterator
from functools import partial
from typing import BinaryIO, NamedTuple

from detalbert.errors import Cure, UserError, all_lines, as_user_error
from detalbert.reading.forms import Content, read_content
from detalbert.reading.json_values import json_rows
from detalbert.reading.lines import Lines
from detalbert.reading.notes import Notes
from detalbert.reading.parquet import open_table, rows_of_arrow, rows_of_table
from detalbert.reading.sheets import sheet_rows
from detalbert.reading.storage import as_file, open_ranges
from detalbert.reading.tables import LONGEST_CELL, table_rows
from detalbert.settings.forms import ARROW, JSON, JSON_LINES, SHEETS, TABLE


class RowPlace(NamedTuple):
    """The place of a row; as a text it is that of messages, `FILE: ROW`."""

    file: str
    row: str = ""  # "row 7", "line 7", "sheet 'A', row 7"; "" for the file as a whole

    def __str__(self) -> str:
        return f"{self.file}: {self.row}" if self.row else self.file


Rows = Iterator[tuple[RowPlace, object]]


def rows_of_file(
    content: Content,
    notes: Notes,
    needed: Collection[str] = (),
    longest: int = LONGEST_CELL,
) -> Rows:
    """Yield the rows of a file, with their places.

    A row is a mapping, unless JSON has something else; `data` of SQuAD's shape has articles.

    Args:
        content: the file.
        notes: gets what a user should know of the rows.
        needed: names of columns, in small letters, that no row of a table may lack; by them a
            frame of pandas is known in JSON, and the header of a spreadsheet.
        longest: characters of a table's cell, at most.

    Raises:
        UserError: the content is not of the form, with the line where there are lines.
    """
    address = content.file.address
    if content.form == JSON_LINES:
        yield from _json_lines(content)
    elif content.form == JSON:
        rows = json_rows(address, read_content(content), names=needed)
        for number, row in enumerate(rows, start=1):
            yield RowPlace(address, f"row {number}"), row
    elif content.form == TABLE:
        lines = _open_lines(content).cut_at_carriage_returns()
        table = table_rows(address, lines, notes=notes, needed=needed, longest=longest)
        for line, row in table:
            yield RowPlace(address, f"line {line}"), row
    else:
        for row_place, row in _binary(content, notes, needed):
            yield RowPlace(address, row_place), row


def _open_lines(content: Content) -> Lines:
    return Lines(content.file.address, file=as_file(read_content(content)))


def _json_lines(content: Content) -> Rows:
    address = content.file.address
    for number, (_, line) in enumerate(_open_lines(content), start=1):
        # The number is that of an editor: blank lines count.
        if not line.strip():
            continue
        place = RowPlace(address, f"line {number}")
        yield place, parse_row(line, place)


def parse_row(line: str, place: RowPlace, cure: str | Cure = "correct it") -> object:
    """Return the value of a line of JSON. Raises UserError if it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error))
        raise UserError(f"{place} is not JSON ({reason})", cure=cure) from None


def _binary(
    content: Content, notes: Notes, needed: Collection[str]
) -> Iterator[tuple[str, object]]:
    # All in the block, as a damaged file may be found at any of its rows.
    with as_user_error(partial(_unreadable, content)):
        source = open_content(content)
        if content.form in SHEETS:
            yield from sheet_rows(
                content.file.address,
                source=source,
                form=content.form,
                sheet=content.sheet,
                notes=notes,
                needed=needed,
            )
            return
        if content.form == ARROW:
            rows = rows_of_arrow(source)
        else:
            table = open_table(source, where=content.file.address)
            rows = rows_of_table(table, columns=table.schema_arrow.names)
        for number, row in enumerate(rows, start=1):
            yield f"row {number}", row


def _unreadable(content: Content, error: BaseException) -> UserError:
    return UserError(
        f"not a whole {content.form} file ({all_lines(error)})",
        key=content.file.address,
        cure="save it again as .xlsx or .ods" if content.form in SHEETS else "fix it",
    )


def open_content(content: Content) -> BinaryIO:
    """Return the content of a file for random access; that of a packed one is in memory."""
    if content.is_packed:
        return io.BytesIO(b"".join(read_content(content)))
    return open_ranges(content.file)
