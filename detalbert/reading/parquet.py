"""Parquet and Arrow files row by row, in little memory.

A file of some kB can hold gigabytes: a text that many rows share is in it once, in a dictionary. So
a few rows are read at a time, and fewer if the file's own figures say that they are large. A page,
whose size is the writer's choice, is read as a whole.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
from pyarrow import ipc, parquet

from detalbert.errors import Cure, UserError
from detalbert.reading.tables import check_different

BATCH_BYTES = 16 << 20  # of the rows that are read at a time
_ROWS = 16  # that are read at a time, at most
_BUFFER = 8 << 20  # bytes of a column that are read at a time
# Types of columns that may hold texts; null is that of a column without values.
_TEXTS = "string large_string string_view binary large_binary binary_view null".split()

RawRow = dict[str, Any]  # values by the names of columns


def open_table(source: Path | BinaryIO, where: str) -> parquet.ParquetFile:
    """Return the table in a path or an open file; `where` names it in messages. Raises whatever
    pyarrow does for another file, and UserError if two columns have one name.
    """
    # Columns are read in pieces.
    table = parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False)
    # Rows are mappings: of two columns with one name, one would be lost.
    check_different(where, table.schema_arrow.names)
    return table


def rows_of_arrow(source: BinaryIO) -> Iterator[RawRow]:
    """Yield the rows of an open Arrow file or stream, as `datasets` saves one. Raises whatever
    pyarrow does for another file.
    """
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    if is_file:
        reader = ipc.open_file(source)
        batches = map(reader.get_batch, range(reader.num_record_batches))
    else:
        batches = iter(ipc.open_stream(source))
    for batch in batches:
        batch.validate(full=True)  # places of texts outside the file would end the process
        for begin in range(0, len(batch), _ROWS):
            rows = batch.slice(offset=begin, length=_ROWS)
            yield from rows.to_pylist()


def check_text_column(schema: pyarrow.Schema, name: str, where: str, cure: Cure) -> None:
    """Raise UserError unless the column `name` is there and holds texts, or bytes that may be."""
    if name not in schema.names:
        names = ", ".join(schema.names)
        raise UserError(f"no column {name!r} (there: {names:.100})", key=where, cure=cure)
    kind = schema.field(name).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) not in _TEXTS:
        raise UserError(f"column {name!r} is {kind}, and no text", key=where, cure=cure)


def rows_of_table(
    table: parquet.ParquetFile, columns: Sequence[str], groups: Sequence[int] | None = None
) -> Iterator[RawRow]:
    """Yield the rows of a table of `open_table`, with the values of `columns` by name.

    Args:
        groups: numbers of row groups; default: all.
    """
    for number in range(table.num_row_groups) if groups is None else groups:
        group = table.metadata.row_group(number)
        row_bytes = group.total_byte_size // max(group.num_rows, 1)  # a shared text counts once
        batches = table.iter_batches(
            batch_size=max(1, min(_ROWS, BATCH_BYTES // (row_bytes + 1))),
            row_groups=[number],
            columns=list(columns),
        )
        for batch in batches:
            yield from batch.to_pylist()
