"""Documents of the parts of a source, one after another, none of them kept."""

import itertools
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from detalbert.corpus import api_text, storage
from detalbert.corpus.sources import Part, contexts, generated, hub_rows, open_parquet
from detalbert.errors import UserError
from detalbert.squad.parquet import rows_of_table
from detalbert.squad.rows import table_rows

_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold and UTF-8 not
_CELL = 1 << 30  # characters of a table's cell
_STREAMS = ("csv", "blank_line")  # only the file's start shows where a document begins


class TextReader:
    """Reads parts. Consecutive ranges of a compressed file or a table continue one stream; one that
    begins before its end restarts at the file's first byte.
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
        whole = part.packed or part.form in _STREAMS  # can only be read from the file's start
        if not whole or part.address != self.stream or part.begin < self.end:
            self.at = 0 if whole else max(0, part.begin - 1)
            file = storage.as_file(_blocks(part, self.at))
            if part.begin and not whole:
                # A line that began before the part: what follows the byte before it, to a line end.
                self.at += len(file.readline())
            self.documents = _PARSERS[part.form](part, self._lines(part, file))
        self.stream, self.end = part.address, part.end
        while self.at < part.end:
            at, text = self.at, next(self.documents, None)
            if text is None:
                return
            if at >= part.begin:
                yield text

    def _lines(self, part: Part, file: Any) -> Iterator[tuple[int, str]]:
        """Yield (byte, line), and count them."""
        while line := file.readline():
            at, self.at = self.at, self.at + len(line)
            yield at, _decode(line, part, at)


Lines = Iterator[tuple[int, str]]


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
        _check_column(part, row)
        yield row[part.text_key] or ""


_PARSERS: dict[str, Callable[[Part, Lines], Iterator[str]]] = {
    "line": lambda part, lines: (line.removesuffix("\n") for _, line in lines),
    "blank_line": _between_blank_lines,
    "jsonl": _json_lines,
    "csv": _table,
}


def _json(part: Part) -> list[str]:
    """Return the texts of a list of rows, or the contexts of SQuAD's shape."""
    try:
        found = json.loads(b"".join(_blocks(part)))
        if not isinstance(found, list):
            found = [{part.text_key: text} for text in contexts(found)]
        return [_text_of(row, part) for row in found]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = f"neither a JSON list of rows with {part.text_key!r} nor of SQuAD's shape"
        raise UserError(f"{part.address}: {said} (data > paragraphs > context)") from None


def _parquet(part: Part) -> Iterator[str]:
    with open_parquet(part.address) as table:
        _check_column(part, table.schema_arrow.names)
        sizes = [table.metadata.row_group(n).num_rows for n in range(table.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        groups = range(bisect_right(ends, part.begin), bisect_left(ends, part.end) + 1)
        rows = rows_of_table(table, [part.text_key], groups)
        first = ends[groups[0]] - sizes[groups[0]]
        for row in itertools.islice(rows, part.begin - first, part.end - first):
            yield row[part.text_key] or ""


def _text_of(row: Any, part: Part) -> str:
    text = row[part.text_key]
    if not isinstance(text, str):
        raise TypeError(f"its {part.text_key!r} is no text")
    return text


def _blocks(part: Part, begin: int = 0) -> Iterator[bytes]:
    """Yield the file's content from `begin` on, which is 0 if it is packed."""
    if part.packed:
        return storage.unpack(part.address, part.packed)
    return storage.read(part.address, begin, part.size)


def _check_column(part: Part, names: Collection[str]) -> None:
    if part.text_key not in names:
        there = ", ".join(map(str, names))
        raise UserError(f"{part.address}: no column {part.text_key!r} (there: {there:.100})")


def _decode(content: bytes, part: Part, at: int) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{part.address}: not UTF-8 at byte {at}; fix the file") from None
