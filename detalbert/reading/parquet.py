"""Parquet and Arrow files row by row, in little memory.

A file of some kB can hold gigabytes: a text that many rows share is in it once, in a dictionary. So
texts stay in their dictionaries while a batch is held, and a few rows at a time get their own. A
batch has as many rows as fit BATCH_BYTES by the file's own figures. A page, whose size is the
writer's choice, is read as a whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
from pyarrow import compute, ipc, parquet

from detalbert.errors import Cure, UserError

BATCH_BYTES = 16 << 20  # of a batch, and of the texts that some of its rows get
_ROWS = 64  # that get their texts at a time, at most
_BUFFER = 8 << 20  # bytes of a column that are read at a time
# A column of one of these types may hold texts.
_TEXTS = (
    pyarrow.types.is_string,
    pyarrow.types.is_large_string,
    pyarrow.types.is_string_view,
    pyarrow.types.is_binary,
    pyarrow.types.is_large_binary,
    pyarrow.types.is_binary_view,
    pyarrow.types.is_null,  # of a column without values
)


RawRow = dict[str, Any]  # values by the names of columns


def open_table(source: Path | BinaryIO) -> parquet.ParquetFile:
    """Return the table in a path or an open file, its texts read as dictionaries. Raises whatever
    pyarrow does for another file, and ValueError if two columns have one name.
    """
    metadata = parquet.read_metadata(source)
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    texts = [column.path for column in columns if column.logical_type.type == "STRING"]

    # Texts stay in their dictionaries, and columns are read in pieces.
    table = parquet.ParquetFile(
        source,
        metadata=metadata,
        read_dictionary=texts,
        buffer_size=_BUFFER,
        pre_buffer=False,
    )

    # Rows are mappings: of two columns with one name, one would be lost.
    for name, count in Counter(table.schema_arrow.names).items():
        if count > 1:
            raise ValueError(f"{count} columns are named {name!r}")
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
    if not any(is_text(kind) for is_text in _TEXTS):
        raise UserError(f"column {name!r} is {kind}, and no text", key=where, cure=cure)


def rows_of_table(
    table: parquet.ParquetFile, columns: Sequence[str], groups: Sequence[int] | None = None
) -> Iterator[RawRow]:
    """Yield the rows of a table of `open_table`, with the values of `columns` by name.

    Args:
        groups: numbers of row groups; default: all.
    """
    metadata = table.metadata
    if groups is None:
        groups = range(metadata.num_row_groups)
    for number in groups:
        group = metadata.row_group(number)
        row_bytes = group.total_byte_size // max(group.num_rows, 1)  # a shared text counts once
        batches = table.iter_batches(
            batch_size=_rows_within(row_bytes),
            row_groups=[number],
            columns=list(columns),
        )
        for batch in batches:
            yield from _rows_of_batch(table, batch)


def _rows_of_batch(table: parquet.ParquetFile, batch: pyarrow.RecordBatch) -> Iterator[RawRow]:
    """Yield the rows of a batch; some at a time get their texts out of the dictionaries."""
    batch = batch.cast(_without_views(batch.schema))  # no view of bytes can be taken

    # The schema of the file itself, whose texts are no dictionaries.
    file_schema = table.schema.to_arrow_schema()
    fields = [file_schema.field(name) for name in batch.schema.names]
    schema = _without_views(fields)

    # As many rows as fit BATCH_BYTES if each has the longest text.
    longest = max(map(_longest_text, batch.columns), default=0)
    count = min(_rows_within(longest), _ROWS)
    for begin in range(0, len(batch), count):
        end = min(begin + count, len(batch))
        # Copied, as the cast of a slice gives all lists of the batch their texts.
        rows = batch.take(pyarrow.array(range(begin, end)))
        yield from rows.cast(schema).to_pylist()


def _without_views(fields: Iterable[pyarrow.Field]) -> pyarrow.Schema:
    """Return a schema with texts and bytes in place of views, to which pyarrow casts nothing."""
    return pyarrow.schema(map(_without_view, fields))


def _without_view(field: pyarrow.Field) -> pyarrow.Field:
    kind = field.type
    if pyarrow.types.is_string_view(kind):
        return field.with_type(pyarrow.string())
    if pyarrow.types.is_binary_view(kind):
        return field.with_type(pyarrow.binary())
    if pyarrow.types.is_struct(kind):
        members = [_without_view(member) for member in kind]
        return field.with_type(pyarrow.struct(members))
    if pyarrow.types.is_list(kind):
        items = _without_view(kind.value_field)
        return field.with_type(pyarrow.list_(items))
    return field


def _rows_within(row_bytes: int) -> int:
    """Return how many rows of `row_bytes` fit BATCH_BYTES, at least one."""
    return max(BATCH_BYTES // max(row_bytes, 1), 1)


def _longest_text(column: pyarrow.Array) -> int:
    """Return the bytes of the longest text in a column's dictionaries, at any depth."""
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        return compute.max(compute.binary_length(column.dictionary)).as_py() or 0
    if pyarrow.types.is_struct(kind):
        return max(map(_longest_text, column.flatten()), default=0)
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return _longest_text(column.values)
    return 0
