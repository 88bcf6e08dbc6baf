"""Documents of the parts of a source, one after another, none of them kept."""

import itertools
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from detalbert.corpus import api_text
from detalbert.corpus.blocks import Block, drop_empty, mark_last, strip
from detalbert.corpus.sources import Part, contexts, generated, hub_rows, open_parquet
from detalbert.errors import UserError, all_lines, as_user_error
from detalbert.reading.forms import read_content
from detalbert.reading.lines import Decoder, Lines, without_line_end
from detalbert.reading.notes import Notes
from detalbert.reading.parquet import rows_of_table
from detalbert.reading.rows import rows_of_file
from detalbert.reading.storage import as_file
from detalbert.reading.tables import table_rows
from detalbert.settings import forms

_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold and UTF-8 not
_PIECE = 1 << 20  # characters of a document that are held at a time, about
# Forms of which only the file's start shows where a document begins.
_STREAMS = (forms.TABLE, "blank_line", "lines")
_NO_TEXT = "rows have no text and are left out"


class TextReader:
    """Reads parts. Consecutive ranges of a compressed file or a table continue one stream; one that
    begins before its end restarts at the file's first byte.
    """

    def __init__(self, count: Callable[[int], None] = lambda size: None) -> None:
        self.count = count
        self.notes = Notes()  # what a user should know of the text
        self.stream = ""  # the file that is streamed
        self.end = 0  # up to which byte
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
        if _kind(part) in _PARSERS:
            return self._from_lines(part)
        return (Block(text, ends=True) for text in _values(part, self.notes))

    def _from_lines(self, part: Part) -> Iterator[Block]:
        """Yield the documents that begin in the part; the last may end after it."""
        # Whether it can only be read from the file's start.
        whole = part.is_packed or _kind(part) in _STREAMS
        goes_on = whole and part.address == self.stream and part.begin >= self.end
        if not goes_on:
            self.at = 0 if whole else max(0, part.begin - 1)
            file = as_file(_blocks(part, self.at))
            lines = Lines(part.address, file, self._move)
            if part.begin and not whole:
                # A line that began before the part: what follows the byte before it, to a line end.
                lines.skip()
            parse = _PARSERS[_kind(part)]
            self.documents = parse(part, lines, self.notes)
        self.stream = part.address
        self.end = part.end
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


def _kind(part: Part) -> str:
    """Return the form without its number of lines."""
    return "lines" if part.form.endswith(" lines") else part.form


def _decoded(part: Part) -> Iterator[str]:
    """Yield the text of a file in blocks."""
    decoder = Decoder(part.address)
    for content in _blocks(part):
        yield decoder(content, last=False)
    yield decoder(b"", last=True)


def _between_blank_lines(part: Part, lines: Lines, notes: Notes) -> Iterator[Block]:
    pieces: list[str] = []  # of the document, with the end of its last line
    begins = True  # whether all of the line so far is white space
    for text, ends in lines.pieces():
        if not begins or text.strip():
            pieces.append(text)
            if sum(map(len, pieces)) > _PIECE:
                text = "".join(pieces)
                # The last two characters may be a line end, which the document has not.
                yield Block(text[:-2], ends=False)
                pieces = [text[-2:]]
            begins = ends
        elif pieces:
            yield Block(without_line_end("".join(pieces)), ends=True)
            pieces = []
    yield Block(without_line_end("".join(pieces)), ends=True)


def _numbers_of_lines(part: Part, lines: Lines, notes: Notes) -> Iterator[Block]:
    """Yield documents of as many lines as the part's form says: "100 lines"."""
    number = int(part.form.partition(" ")[0])
    pieces: list[str] = []  # of the document
    count = 0  # of its lines
    size = 0  # of its pieces, characters
    for text, ends in lines.pieces():
        pieces.append(text)
        count += ends
        size += len(text)
        if count == number:
            yield Block(without_line_end("".join(pieces)), ends=True)
            pieces = []
            count = 0
            size = 0
        elif size > _PIECE:
            text = "".join(pieces)
            # The last two characters may be a line end, which the document has not.
            yield Block(text[:-2], ends=False)
            pieces = [text[-2:]]
            size = 2
    yield Block(without_line_end("".join(pieces)), ends=True)


def _each_line(part: Part, lines: Lines, notes: Notes) -> Iterator[Block]:
    for text, ends in lines.pieces():
        yield Block(without_line_end(text), ends)


def _json_lines(part: Part, lines: Lines, notes: Notes) -> Iterator[Block]:
    for at, line in lines:
        text = ""
        if line.strip():
            where = f"{part.address}: the line at byte {at}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{where} is not JSON ({error}); correct or delete it, or name another form in "
                    "data.form"
                ) from None
            text = _text_of(row, part, where, notes)
        yield Block(text, ends=True)


def _table(part: Part, lines: Lines, notes: Notes) -> Iterator[Block]:
    needed = [part.text_key.lower()]
    rows = table_rows(part.address, lines.cut_at_carriage_returns(), notes, needed)
    for line, row in rows:
        where = f"{part.address}: line {line}"
        text = _text_of(row, part, where, notes)
        yield Block(text, ends=True)


_PARSERS: dict[str, Callable[[Part, Lines, Notes], Iterator[Block]]] = {
    "line": _each_line,
    "lines": _numbers_of_lines,
    "blank_line": _between_blank_lines,
    forms.JSON_LINES: _json_lines,
    forms.TABLE: _table,
}


def _values(part: Part, notes: Notes) -> Iterable[str]:
    """Return the documents of a source that has them as values, each of them whole."""
    if part.form == "generated":
        return generated(part.address)
    if part.form == "botocore":
        return api_text.read_service(Path(part.address))
    if part.form == "hub":
        return _hub(part, notes)
    if part.form == forms.PARQUET:
        return _parquet(part, notes)
    return _whole_file(part, notes)


def _hub(part: Part, notes: Notes) -> Iterator[str]:
    rows = hub_rows(part.address, "data.text", part.text_key)
    for number in range(part.begin, part.end):
        where = f"{part.address}: row {number}"
        yield _text_of(rows[number], part, where, notes)


def _whole_file(part: Part, notes: Notes) -> Iterator[str]:
    """Yield the texts of rows, or the contexts of SQuAD's articles."""
    assert part.content is not None
    for where, row in rows_of_file(part.content, notes):
        if isinstance(row, dict) and isinstance(row.get("paragraphs"), list):
            try:
                texts = contexts({"data": [row]})
            except (KeyError, TypeError):
                problem = "a paragraph has no context; correct it"
                raise UserError(f"{where}: {problem}") from None
            paragraphs = part._replace(text_key="context")
            for text in texts:
                yield _text_of({"context": text}, paragraphs, where, notes)
        else:
            yield _text_of(row, part, where, notes)


def _parquet(part: Part, notes: Notes) -> Iterator[str]:
    def unreadable(error: Exception) -> UserError:
        return UserError(f"{part.address}: not a whole Parquet file ({all_lines(error)}); fix it")

    with as_user_error(unreadable), open_parquet(part) as table:
        metadata = table.metadata
        sizes = [metadata.row_group(number).num_rows for number in range(table.num_row_groups)]
        ends = list(itertools.accumulate(sizes))  # rows up to the end of each group

        # The groups that hold the part's rows, and those of their rows.
        first_group = bisect_right(ends, part.begin)
        last_group = bisect_left(ends, part.end)
        groups = range(first_group, last_group + 1)
        rows = rows_of_table(table, [part.text_key], groups)
        before = ends[first_group] - sizes[first_group]
        part_rows = itertools.islice(rows, part.begin - before, part.end - before)
        for number, row in enumerate(part_rows, part.begin + 1):
            where = f"{part.address}: row {number}"
            yield _text_of(row, part, where, notes)


def _text_of(row: Any, part: Part, where: str, notes: Notes) -> str:
    """Return the text of a row, "" if it has none. Raises UserError if its value is no text."""
    key = part.text_key
    if not isinstance(row, dict):
        raise UserError(f"{where} is no mapping with a {key!r}; correct or delete it")
    if key not in row:
        there = ", ".join(map(str, row))
        cure = "correct it, or name the key of the text in text_key"
        raise UserError(f"{where} has no {key!r} (there: {there:.100}); {cure}")
    text = row[key]
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 at byte {error.start} of its {key!r}; correct or delete it"
            raise UserError(f"{where}: {problem}") from None
    if not text:
        text = "" if text is None else text
        notes.add(_NO_TEXT, where.removeprefix(f"{part.address}: "))
    if not isinstance(text, str):
        raise UserError(f"{where}: its {key!r} is {type(text).__name__}, and no text; correct it")
    return text


def _blocks(part: Part, begin: int = 0) -> Iterator[bytes]:
    """Yield the file's content from `begin` on, which is 0 if it is packed."""
    assert part.content is not None
    return read_content(part.content, begin)
