"""Documents of the parts of a source, one after another, none of them kept."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from detalbert.corpus import api_text, storage
from detalbert.corpus.sources import Part, contexts, generated, hub_rows, open_parquet
from detalbert.errors import UserError
from detalbert.squad.rows import table_rows

_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold and UTF-8 not
_ROWS = 1_000  # of a Parquet file, read at a time
_CELL = 1 << 30  # characters of a table's cell
_STREAMS = ("csv", "blank_line")  # only the file's start shows where a document begins


class TextReader:
    """Reads parts. Consecutive ranges of a compressed file or a table continue one stream; one that
    begins before it restarts at the file's first byte.
    """

    def __init__(self, count: Callable[[int], None] = lambda size: None) -> None:
        self.count = count
        self.stream, self.end = "", 0  # the file that is streamed, and up to which byte
        self.at = 0  # the byte of its content at which the next document begins
        self.documents: Iterator[str] = iter(())

    def read(self, part: Part) -> Iterator[str]:
        """Yield the documents of `part` that are not empty; lone surrogates become U+FFFD. Raises
        UserError, naming file and byte, if one cannot be read.
        """
        done = 0
        for text in self._documents(part):
            self.count(len(text))
            done += len(text)
            text = text if text.isascii() else _SURROGATE.sub("\ufffd", text)
            if text := text if part.exact else text.strip():
                yield text
        self.count(part.text_bytes - done)

    def _documents(self, part: Part) -> Iterable[str]:
        if part.form == "generated":
            return generated(part.address)
        if part.form == "botocore":
            return api_text.read_service(Path(part.address))
        if part.form == "hub":
            rows = hub_rows(part.address, "data.text", part.text_key)
            return (rows[number][part.text_key] or "" for number in range(part.begin, part.end))
        if part.form == "parquet":
            return _parquet(part)
        if part.form == "squad":
            return _json(part)
        if part.form == "file":
            return [_decode(b"".join(_blocks(part)), part, 0)]
        return self._from_lines(part)

    def _from_lines(self, part: Part) -> Iterator[str]:
        """Yield the documents that begin in the part; the last may end after it."""
        goes_on = part.address == self.stream and part.begin >= self.end
        if not (goes_on and (part.packed or part.form in _STREAMS)):
            self._open(part)
        self.end = part.end
        while self.at < part.end:
            at, text = self.at, next(self.documents, None)
            if text is None:
                return
            if at >= part.begin:
                yield text

    def _open(self, part: Part) -> None:
        """Begin a stream, at the file's start if it can only be read whole. Else a line that began
        before the part is passed over: what follows the byte before it, up to a line end.
        """
        whole = part.packed or part.form in _STREAMS
        self.stream = part.address if whole else ""
        self.at = 0 if whole else max(0, part.begin - 1)
        blocks = _blocks(part) if whole else storage.read(part.address, self.at, part.size)
        file = storage.as_file(blocks)
        if not whole and part.begin:
            self.at += len(file.readline())
        self.documents = _PARSERS[part.form](part, self._lines(part, file))

    def _lines(self, part: Part, file: Any) -> Iterator[tuple[int, str]]:
        """Yield (byte, line), and count them."""
        while line := file.readline():
            at, self.at = self.at, self.at + len(line)
            yield at, _decode(line, part, at)


Lines = Iterator[tuple[int, str]]


def _each_line(part: Part, lines: Lines) -> Iterator[str]:
    return (line.removesuffix("\n") for _, line in lines)


def _between_blank_lines(part: Part, lines: Lines) -> Iterator[str]:
    some: list[str] = []
    for _, line in lines:
        if line.strip():
            some.append(line)
        elif some:
            yield "".join(some).removesuffix("\n")
            some = []
    yield "".join(some).removesuffix("\n")


def _json_lines(part: Part, lines: Lines) -> Iterator[str]:
    for at, line in lines:
        text = ""
        if line.strip():
            try:
                text = _text_of(json.loads(line), part)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                wanted = f"JSON with a {part.text_key!r} ({error})"
                raise UserError(f"{part.address}: the line at byte {at} is not {wanted}") from None
        yield text


def _table(part: Part, lines: Lines) -> Iterator[str]:
    for row in table_rows(part.address, (line for _, line in lines), _CELL):
        if part.text_key not in row:
            there = ", ".join(map(str, row))
            raise UserError(f"{part.address}: no column {part.text_key!r} (there: {there:.100})")
        yield row[part.text_key] or ""


_PARSERS: dict[str, Callable[[Part, Lines], Iterator[str]]] = {
    "line": _each_line,
    "blank_line": _between_blank_lines,
    "jsonl": _json_lines,
    "csv": _table,
}


def _json(part: Part) -> list[str]:
    """Return the texts of a list of rows, or the contexts of SQuAD's shape."""
    try:
        found = json.loads(b"".join(_blocks(part)))
        if isinstance(found, list):
            return [_text_of(row, part) for row in found]
        texts = contexts(found)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{part.address}: neither a JSON list of rows with {part.text_key!r} nor of SQuAD's "
            "shape (data > paragraphs > context); text may be .txt or .jsonl too"
        ) from None
    return texts


def _parquet(part: Part) -> Iterator[str]:
    with open_parquet(part.address) as table:
        if part.text_key not in table.schema_arrow.names:
            there = ", ".join(table.schema_arrow.names)
            raise UserError(f"{part.address}: no column {part.text_key!r} (there: {there:.100})")
        first = 0
        for number in range(table.num_row_groups):
            begin, first = first, first + table.metadata.row_group(number).num_rows
            if first <= part.begin or begin >= part.end:
                continue
            for batch in table.iter_batches(_ROWS, [number], [part.text_key]):
                wanted = slice(max(0, part.begin - begin), max(0, part.end - begin))
                yield from (text or "" for text in batch.column(0).to_pylist()[wanted])
                begin += len(batch)


def _text_of(row: Any, part: Part) -> str:
    text = row[part.text_key]
    if not isinstance(text, str):
        raise TypeError(f"its {part.text_key!r} is no text")
    return text


def _blocks(part: Part) -> Iterator[bytes]:
    """Yield the file's content from its start."""
    if part.packed:
        return storage.unpack(part.address, part.packed)
    return storage.read(part.address, 0, part.size)


def _decode(content: bytes, part: Part, at: int) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{part.address}: not UTF-8 at byte {at}; fix the file") from None
