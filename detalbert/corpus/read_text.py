"""Documents of the parts of a source, one after another, none of them kept."""

import codecs
import itertools
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from detalbert.corpus import api_text, storage
from detalbert.corpus.blocks import Block, drop_empty, mark_last, strip
from detalbert.corpus.sources import Part, contexts, generated, hub_rows, open_parquet
from detalbert.errors import UserError
from detalbert.squad.parquet import rows_of_table
from detalbert.squad.rows import table_rows

_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold and UTF-8 not
_CELL = 1 << 30  # characters of a table's cell
_PIECE = 1 << 20  # bytes of a line that are read at a time, at most
_STREAMS = ("csv", "blank_line")  # only the file's start shows where a document begins


class TextReader:
    """Reads parts. Consecutive ranges of a compressed file or a table continue one stream; one that
    begins before its end restarts at the file's first byte.
    """

    def __init__(self, count: Callable[[int], None] = lambda size: None) -> None:
        self.count = count
        self.stream, self.end = "", 0  # the file that is streamed, and up to which byte
        self.at = 0  # the byte of its content at which the next document begins
        self.documents: Iterator[Block] = iter(())

    def read(self, part: Part) -> Iterator[Block]:
        """Yield the documents of `part` that are not empty, in blocks; lone surrogates become
        U+FFFD. Raises UserError, naming file and byte, if one cannot be read.
        """
        blocks = self._counted(part)
        return drop_empty(blocks) if part.exact else strip(blocks)

    def _counted(self, part: Part) -> Iterator[Block]:
        done = 0
        for block in self._documents(part):
            self.count(len(block.text))
            done += len(block.text)
            if not block.text.isascii():
                block = Block(_SURROGATE.sub("\ufffd", block.text), block.ends)
            yield block
        self.count(part.text_bytes - done)

    def _documents(self, part: Part) -> Iterator[Block]:
        if part.form == "file":
            return mark_last(_decoded(part))
        if part.form in _PARSERS:
            return self._from_lines(part)
        return (Block(text, ends=True) for text in _values(part))

    def _from_lines(self, part: Part) -> Iterator[Block]:
        """Yield the documents that begin in the part; the last may end after it."""
        whole = part.packed or part.form in _STREAMS  # can only be read from the file's start
        if not whole or part.address != self.stream or part.begin < self.end:
            self.at = 0 if whole else max(0, part.begin - 1)
            lines = _Lines(part, storage.as_file(_blocks(part, self.at)), self._move)
            if part.begin and not whole:
                # A line that began before the part: what follows the byte before it, to a line end.
                lines.skip()
            self.documents = _PARSERS[part.form](part, lines)
        self.stream, self.end = part.address, part.end
        while self.at < part.end:
            begin = self.at
            for block in self.documents:
                if begin >= part.begin:
                    yield block
                if block.ends:
                    break
            else:
                return

    def _move(self, size: int) -> int:
        """Move `at` over `size` bytes; return where they begin."""
        self.at += size
        return self.at - size


class _Lines:
    """The lines of a file, in UTF-8. `move` takes the bytes that are read and returns where they
    begin.
    """

    def __init__(self, part: Part, file: Any, move: Callable[[int], int]) -> None:
        self.part, self.file, self.move = part, file, move

    def skip(self) -> None:
        """Read to the next line end."""
        content = b"-"
        while content and not content.endswith(b"\n"):
            content = self.file.readline(_PIECE)
            self.move(len(content))

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield lines, each with the byte at which it begins."""
        while line := self.file.readline():
            begin = self.move(len(line))
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(self.part, begin + error.start) from None
            yield begin, text

    def pieces(self) -> Iterator[Block]:
        """Yield lines with their line ends, those of more than _PIECE bytes in several blocks."""
        ends = True
        while content := self.file.readline(_PIECE):
            begin = self.move(len(content))
            if ends:  # the block before ended a line
                decoder = _Decoder(self.part, begin)
            # One that is shorter is the end of the file.
            ends = content.endswith(b"\n") or len(content) < _PIECE
            yield Block(decoder(content, last=ends), ends)
        if not ends:
            yield Block(decoder(b"", last=True), ends=True)


class _Decoder:
    """Text of consecutive bytes of a part's file in UTF-8, from the byte `at` on."""

    def __init__(self, part: Part, at: int) -> None:
        self.part, self.at = part, at
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def __call__(self, content: bytes, last: bool) -> str:
        """Return the text of the next bytes. Raises UserError if they are not UTF-8."""
        begun = len(self.decoder.getstate()[0])  # bytes of a character that is not complete
        try:
            text = self.decoder.decode(content, last)
        except UnicodeDecodeError as error:
            raise _not_utf8(self.part, self.at - begun + error.start) from None
        self.at += len(content)
        return text


def _not_utf8(part: Part, at: int) -> UserError:
    return UserError(f"{part.address}: not UTF-8 at byte {at}; fix the file")


def _decoded(part: Part) -> Iterator[str]:
    """Yield the text of a file in blocks."""
    decoder = _Decoder(part, 0)
    for content in _blocks(part):
        yield decoder(content, last=False)
    yield decoder(b"", last=True)


def _between_blank_lines(part: Part, lines: _Lines) -> Iterator[Block]:
    pieces: list[str] = []  # of the document, with the end of its last line
    begins = True  # whether all of the line so far is white space
    for text, ends in lines.pieces():
        if not begins or text.strip():
            pieces.append(text)
            if sum(map(len, pieces)) > _PIECE:
                text = "".join(pieces)
                yield Block(text[:-1], ends=False)
                pieces = [text[-1]]
            begins = ends
        elif pieces:
            yield Block("".join(pieces).removesuffix("\n"), ends=True)
            pieces = []
    yield Block("".join(pieces).removesuffix("\n"), ends=True)


def _json_lines(part: Part, lines: _Lines) -> Iterator[Block]:
    for at, line in lines:
        text = ""
        if line.strip():
            try:
                text = _text_of(json.loads(line), part)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                wanted = f"JSON with a {part.text_key!r} ({error})"
                raise UserError(f"{part.address}: the line at byte {at} is not {wanted}") from None
        yield Block(text, ends=True)


def _table(part: Part, lines: _Lines) -> Iterator[Block]:
    for row in table_rows(part.address, (line for _, line in lines), _CELL):
        _check_column(part, row)
        yield Block(row[part.text_key] or "", ends=True)


def _each_line(part: Part, lines: _Lines) -> Iterator[Block]:
    return (Block(text.removesuffix("\n"), ends) for text, ends in lines.pieces())


_PARSERS: dict[str, Callable[[Part, _Lines], Iterator[Block]]] = {
    "line": _each_line,
    "blank_line": _between_blank_lines,
    "jsonl": _json_lines,
    "csv": _table,
}


def _values(part: Part) -> Iterable[str]:
    """Return the documents of a source that has them as values, each of them whole."""
    if part.form == "generated":
        return generated(part.address)
    if part.form == "botocore":
        return api_text.read_service(Path(part.address))
    if part.form == "hub":
        rows = hub_rows(part.address, "data.text", part.text_key)
        return (rows[number][part.text_key] or "" for number in range(part.begin, part.end))
    return _parquet(part) if part.form == "parquet" else _json(part)


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
