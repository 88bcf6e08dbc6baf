"""Rows as files: in every form, compression and encoding that people have."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from detalbert.reading import packing
from detalbert.reading.notes import Notes
from detalbert.settings import forms
from detalbert.squad.question_stream import LeftOut
from detalbert.squad.sources import Reading, open_source, read_examples
from detalbert.squad.windows import Example
from tests.corpus.documents import read

Row = dict[str, Any]

MARKS = {
    "utf-8": b"",
    "utf-8-sig": b"",  # the codec writes its own
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
}
# Endings that promise a form, by the form.
ENDINGS = {
    forms.JSON_LINES: (".jsonl", ".ndjson"),
    forms.JSON: (".json",),
    forms.TABLE: (".csv", ".tsv"),
    forms.PARQUET: (".parquet",),
    forms.ARROW: (".arrow",),
    forms.TEXT: (".txt", ".md"),
}
PACKED = {"": "", "gzip": ".gz", "zstd": ".zst", "long": ".zst", "bz2": ".bz2", "xz": ".xz"}


def read_questions(
    path: Path,
    notes: Notes | None = None,
    left_out: list[LeftOut] | None = None,
    **keys: Any,
) -> list[Example]:
    """The questions of a file to train; `keys` are those of Reading."""
    source = open_source(str(path), "train", Path(), Reading(**keys))
    return read_examples(source, notes=notes, left_out=left_out)


read_documents = partial(read, exact=False)


def json_lines(rows: Sequence[Any], line_end: str = "\n") -> str:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    return "".join(line + line_end for line in lines)


def table(
    rows: Sequence[Row],
    separator: str = ",",
    line_end: str = "\r\n",
    quoting: int = csv.QUOTE_MINIMAL,
) -> str:
    """A table as Python's csv writes it, with a cell for each name of the first row."""
    text = io.StringIO(newline="")
    names = list(rows[0]) if rows else []
    writer = csv.DictWriter(
        text, names, delimiter=separator, lineterminator=line_end, quoting=quoting
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def parquet(rows: Sequence[Row]) -> bytes:
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), content, row_group_size=3)
    return content.getvalue()


def arrow(rows: Sequence[Row], is_stream: bool = False) -> bytes:
    """An Arrow file, or a stream, which `datasets` writes."""
    content = io.BytesIO()
    batch = pyarrow.Table.from_pylist(list(rows))
    new = pyarrow.ipc.new_stream if is_stream else pyarrow.ipc.new_file
    with new(content, batch.schema) as writer:
        writer.write_table(batch, max_chunksize=2)
    return content.getvalue()


def broken_arrow() -> bytes:
    """An Arrow stream with a text whose end is far outside its bytes."""
    size = 4660
    content = arrow([{"text": "a" * size}], is_stream=True)
    # Its numbers come after the metadata.
    before, ends, after = content.rpartition(struct.pack("<ii", 0, size))
    assert ends
    return before + struct.pack("<ii", 0, 1 << 30) + after


def encode(text: str, encoding: str) -> bytes:
    return MARKS[encoding] + text.encode(encoding)


def pack(members: Sequence[bytes], compression: str) -> bytes:
    """Compress each member, and join them: gzip members, zstd frames, streams of bz2 or xz."""
    compress = {
        "": bytes,
        "gzip": gzip.compress,
        "zstd": packing.zstd.compress,
        "long": long_frame,
        "bz2": bz2.compress,
        "xz": lzma.compress,
    }
    return b"".join(map(compress[compression], members))


def long_frame(content: bytes) -> bytes:
    """A frame of zstd with the window of `--long=31`, its blocks not compressed."""
    exponent = 31 - 10
    blocks = [content[begin : begin + 100_000] for begin in range(0, len(content), 100_000)]
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, exponent << 3])
    for number, block in enumerate(blocks or [b""], 1):
        is_last = number >= len(blocks)
        frame += (len(block) << 3 | is_last).to_bytes(3, "little") + block
    return frame
