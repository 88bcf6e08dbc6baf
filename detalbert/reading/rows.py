"""The rows of a file in any form, each with its place, one at a time."""

import io
import json
from collections.abc import Collection, Iterator
from typing import Any

from detalbert.errors import UserError, all_lines, as_user_error
from detalbert.reading.forms import Content, read_content
from detalbert.reading.json_values import JsonValues
from detalbert.reading.lines import Lines
from detalbert.reading.notes import Notes
from detalbert.reading.parquet import open_table, rows_of_arrow, rows_of_table
from detalbert.reading.storage import as_file, open_ranges
from detalbert.reading.tables import LONGEST_CELL, table_rows
from detalbert.settings.forms import ARROW, JSON, JSON_LINES, PARQUET, TABLE

Rows = Iterator[tuple[str, Any]]  # each with its place, for messages


def rows_of_file(
    content: Content,
    notes: Notes,
    needed: Collection[str] = (),
    longest: int = LONGEST_CELL,
) -> Rows:
    """Yield the rows of a file, with their places.

    A row is a mapping, unless JSON has something else; `data` of SQuAD's shape has articles.

    Args:
        notes: gets what a user should know of them.
        needed: names of columns, in small letters, that no row of a table may lack.
        longest: characters of a table's cell, at most.

    Raises:
        UserError: the content is not of the form, with the line where there are lines.
    """
    where = content.file.address
    if content.form == JSON_LINES:
        yield from _json_lines(content)
    elif content.form == JSON:
        values = JsonValues(where, read_content(content)).rows()
        for number, row in enumerate(values, 1):
            yield f"{where}: row {number}", row
    elif content.form == TABLE:
        lines = Lines(where, as_file(read_content(content)))
        pieces = lines.cut_at_carriage_returns()
        for line, row in table_rows(where, pieces, notes, needed, longest):
            yield f"{where}: line {line}", row
    elif content.form in (PARQUET, ARROW):
        yield from _columnar(content)
    else:
        raise UserError(f"{where}: plain text has no rows; correct data.form")


def _json_lines(content: Content) -> Rows:
    where = content.file.address
    lines = Lines(where, as_file(read_content(content)))
    for number, (_, line) in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", str(error))
            raise UserError(f"{where}: line {number} is not JSON ({reason}); correct it") from None
        yield f"{where}: line {number}", row


def _columnar(content: Content) -> Rows:
    where = content.file.address

    def unreadable(error: BaseException) -> UserError:
        return UserError(f"{where}: not a whole {content.form} file ({all_lines(error)}); fix it")

    with as_user_error(unreadable):
        source = open_content(content)
        if content.form == ARROW:
            rows = rows_of_arrow(source)
        else:
            table = open_table(source)
            rows = rows_of_table(table, table.schema_arrow.names)
        for number, row in enumerate(rows, 1):
            yield f"{where}: row {number}", row


def open_content(content: Content) -> Any:
    """Return the content of a file for random access; that of a packed one is in memory."""
    if content.is_packed:
        return io.BytesIO(b"".join(read_content(content)))
    return open_ranges(content.file)
