"""Documents of the parts of a source, one after another, none of them kept.

Where a document of lines begins shows in the text before it only. So a parser yields, with each
block, the byte behind what it has read; behind the last block of a document the next one begins,
and the part that has this byte has the document. Parsers are told nothing of parts.
"""

import contextlib
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from detalbert.corpus import api_text
from detalbert.corpus.blocks import Block, drop_empty, mark_last, strip
from detalbert.corpus.sources import (
    Part,
    contexts,
    find_name,
    generated,
    hub_rows,
    name_text_key,
    open_parquet,
)
from detalbert.errors import Cure, UserError, all_lines, as_user_error
from detalbert.reading.forms import ENDINGS, Content, ending_of, read_content
from detalbert.reading.lines import Lines, without_line_end
from detalbert.reading.notes import Notes
from detalbert.reading.packing import Decoder
from detalbert.reading.parquet import rows_of_table
from detalbert.reading.rows import RowPlace, parse_row, rows_of_file
from detalbert.reading.storage import as_file
from detalbert.reading.tables import table_rows
from detalbert.settings import forms

_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold and UTF-8 not
_PIECE = 1 << 20  # characters of a document that are held at a time, about
# Forms of which only the file's start shows where a document begins.
_STREAMS = (forms.TABLE, "blank_line", "lines")
_NO_TEXT = "rows have no text and are left out"
_NO_VALUES = ("",)
# What databases, pandas and R write into a table for a missing value; other forms have null.
_NULLS = frozenset(["", *r"\N NULL null NA N/A n/a #N/A <NA> NaN nan None".split()])
_FIRST_ROWS = 1000  # of a file, in which the key of the text is looked for


class TextReader:
    """Reads parts. Consecutive ranges of a compressed file or a table continue one stream; one that
    begins before its end restarts at the file's first byte.
    """

    def __init__(self, count: Callable[[int], None] = lambda size: None) -> None:
        self.count = count
        self.notes = Notes()  # what a user should know of the text
        self.stream = ""  # the file that is streamed
        self.end = 0  # up to which byte
        # Of the stream, which the next part may continue.
        self.begin = 0  # the byte of its content at which the next document begins
        self.blocks: Placed = iter(())

    def read(self, part: Part) -> Iterator[Block]:
        """Yield the documents of `part` that are not empty, in blocks; lone surrogates become
        U+FFFD. Raises UserError, naming file and byte, if one cannot be read.
        """
        blocks = self._counted(part)
        return drop_empty(blocks) if part.exact else strip(blocks)

    def _counted(self, part: Part) -> Iterator[Block]:
        """Yield the part's blocks and count them; in all it counts as its bytes."""
        characters = 0
        for block in self._documents(part):
            self.count(len(block.text))
            characters += len(block.text)
            if not block.text.isascii():
                text = _SURROGATE.sub("\ufffd", block.text)
                block = Block(text, ends=block.ends)
            yield block
        self.count(part.text_bytes - characters)

    def _documents(self, part: Part) -> Iterator[Block]:
        if part.form == "file":
            return mark_last(_decoded(part))
        if _kind(part) in _PARSERS:
            return self._from_lines(part)
        return (Block(text, ends=True) for text in _values(part, self.notes))

    def _from_lines(self, part: Part) -> Iterator[Block]:
        """Yield the documents that begin in the part; the last may end after it."""
        # Whether it can only be read from the file's start.
        is_streamed = part.is_packed or _kind(part) in _STREAMS
        continues = is_streamed and part.address == self.stream and part.begin >= self.end
        if not continues:
            lines = _open_lines(part, is_streamed)
            self.begin = lines.begin
            self.blocks = _PARSERS[_kind(part)](part, lines, self.notes)

        self.stream = part.address
        self.end = part.end

        # A stream may stand before the part, at the file's start or behind a part that was skipped.
        while self.begin < part.end:
            is_own = self.begin >= part.begin
            for byte, block in self.blocks:
                if is_own:
                    yield block
                if block.ends:
                    self.begin = byte
                    break
            else:  # the end of the file
                return


def _open_lines(part: Part, is_streamed: bool) -> Lines:
    """Return the lines of a part's file, from the first one that begins in the part, or from the
    file's start if it is streamed.
    """
    if is_streamed or not part.begin:
        return Lines(part.address, file=as_file(_line_blocks(part)))
    # A line that began before the part: what follows the byte before it, to a line end.
    begin = part.begin - 1
    lines = Lines(part.address, file=as_file(_line_blocks(part, begin)), begin=begin)
    lines.skip()
    return lines


def _line_blocks(part: Part, begin: int = 0) -> Iterator[bytes]:
    """Yield the file's content from `begin` on, as lines that end in line feeds."""
    blocks = _blocks(part, begin)
    if part.content is not None and part.content.has_carriage_returns:
        return (block.replace(b"\r", b"\n") for block in blocks)
    return blocks


def _kind(part: Part) -> str:
    """Return the form without its number of lines."""
    return "lines" if part.form.endswith(" lines") else part.form


def _decoded(part: Part) -> Iterator[str]:
    """Yield the text of a file in blocks."""
    decoder = Decoder(part.address)
    for content in _blocks(part):
        yield decoder(content, last=False)
    yield decoder(b"", last=True)


# Blocks of documents, each with the byte of the content behind what was read for it.
Placed = Iterator[tuple[int, Block]]


def _between_blank_lines(part: Part, lines: Lines, notes: Notes) -> Placed:
    pieces: list[str] = []  # of the document, with the end of its last line
    space: list[str] = []  # of a line of which all so far is white space
    is_blank = True  # whether the line is such
    for text, ends in lines.pieces():
        is_blank = is_blank and not text.strip()
        if is_blank:
            space.append(text)
        else:
            pieces += [*space, text]
            space = []
        if sum(map(len, pieces)) > _PIECE:
            block, pieces = _cut_off(pieces)
            yield lines.begin, block
        if is_blank and ends:
            space = []
            if pieces:
                yield lines.begin, _last_block(pieces)
                pieces = []
        is_blank = is_blank or ends
    yield lines.begin, _last_block(pieces)


def _numbers_of_lines(part: Part, lines: Lines, notes: Notes) -> Placed:
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
            yield lines.begin, _last_block(pieces)
            pieces = []
            count = 0
            size = 0
        elif size > _PIECE:
            block, pieces = _cut_off(pieces)
            yield lines.begin, block
            size = len(pieces[0])
    yield lines.begin, _last_block(pieces)


def _cut_off(pieces: list[str]) -> tuple[Block, list[str]]:
    """Return a block of the pieces of a document, and what is left of them: the last two
    characters may be a line end, which the document has not.
    """
    text = "".join(pieces)
    return Block(text[:-2], ends=False), [text[-2:]]


def _last_block(pieces: list[str]) -> Block:
    """Return the last block of a document, without the end of its last line."""
    text = "".join(pieces)
    return Block(without_line_end(text), ends=True)


def _each_line(part: Part, lines: Lines, notes: Notes) -> Placed:
    for text, ends in lines.pieces():
        yield lines.begin, Block(without_line_end(text), ends)


def _json_lines(part: Part, lines: Lines, notes: Notes) -> Placed:
    cure = Cure(
        "correct or delete it, or name another form in data.form", by_flag="correct or delete it"
    )
    for byte, line in lines:
        text = ""
        if line.strip():
            place = RowPlace(part.address, f"the line at byte {byte}")
            row = parse_row(line, place, cure)
            text = _text_of(row, part=part, place=place, notes=notes)
        yield lines.begin, Block(text, ends=True)


def _table(part: Part, lines: Lines, notes: Notes) -> Placed:
    rows = table_rows(
        part.address,
        lines.cut_at_carriage_returns(),
        notes=notes,
        needed=[part.text_key.lower()],
    )
    for line, row in rows:
        place = RowPlace(part.address, f"line {line}")
        text = _text_of(row, part=part, place=place, notes=notes, nulls=_NULLS)
        yield lines.begin, Block(text, ends=True)


_PARSERS: dict[str, Callable[[Part, Lines, Notes], Placed]] = {
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
    rows = hub_rows(part.address, key="data.text", text_key=part.text_key)
    for number in range(part.begin, part.end):
        place = RowPlace(part.address, f"row {number}")
        yield _text_of(rows[number], part=part, place=place, notes=notes)


def _whole_file(part: Part, notes: Notes) -> Iterator[str]:
    """Yield the texts of rows, or the contexts of SQuAD's articles."""
    assert part.content is not None
    for place, row in rows_of_file(part.content, notes, needed=[part.text_key.lower()]):
        if _is_article(row, part.text_key):
            try:
                texts = contexts({"data": [row]})
            except (KeyError, TypeError):
                raise UserError(
                    "a paragraph has no context", key=str(place), cure="correct it"
                ) from None
            # An article of SQuAD's shape: each context is a document.
            paragraphs = part._replace(text_key="context")
            for text in texts:
                yield _text_of({"context": text}, part=paragraphs, place=place, notes=notes)
        else:
            yield _text_of(row, part=part, place=place, notes=notes)


def _is_article(row: object, text_key: str) -> bool:
    """Return whether a row is an article of SQuAD's shape, with paragraphs and no text itself."""
    if not isinstance(row, dict) or find_name(row, text_key) is not None:
        return False
    return isinstance(row.get("paragraphs"), list)


def _parquet(part: Part, notes: Notes) -> Iterator[str]:
    def unreadable(error: Exception) -> UserError:
        return UserError(
            f"not a whole Parquet file ({all_lines(error)})", key=part.address, cure="fix it"
        )

    with as_user_error(unreadable), open_parquet(part) as table:
        sizes = [
            table.metadata.row_group(number).num_rows for number in range(table.num_row_groups)
        ]
        ends = list(itertools.accumulate(sizes))  # rows up to the end of each group

        # The groups that hold the part's rows, and those of their rows.
        first_group = bisect_right(ends, part.begin)
        groups = range(first_group, bisect_left(ends, part.end) + 1)
        column = find_name(table.schema_arrow.names, part.text_key)
        assert column is not None  # it was looked for when the file was opened
        rows = rows_of_table(table, columns=[column], groups=groups)
        rows_before = ends[first_group] - sizes[first_group]
        part_rows = itertools.islice(rows, part.begin - rows_before, part.end - rows_before)
        for number, row in enumerate(part_rows, start=part.begin + 1):
            place = RowPlace(part.address, f"row {number}")
            yield _text_of(row, part=part, place=place, notes=notes)


def _text_of(
    row: object,
    part: Part,
    place: RowPlace,
    notes: Notes,
    nulls: Collection[str] = _NO_VALUES,
) -> str:
    """Return the text of a row, "" if it is one of `nulls` or missing. Raises UserError if its
    value is no text.
    """
    key = part.text_key
    if not isinstance(row, dict):
        raise UserError(f"{place} is no mapping with a {key!r}", cure="correct or delete it")
    name = find_name(row, key)
    if name is None and not _is_left_out_if_null(part):
        names = ", ".join(map(str, row))
        raise UserError(f"{place} has no {key!r} (there: {names:.100})", cure=_cure_of_key(part))
    text = None if name is None else row[name]
    # Parquet may hold texts as bytes.
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"not UTF-8 at byte {error.start} of its {key!r}",
                key=str(place),
                cure="correct or delete it",
            ) from None
    if text is None or text in nulls:
        notes.add(_NO_TEXT, place.row)
        return ""
    if not isinstance(text, str):
        raise UserError(
            f"its {key!r} is {type(text).__name__}, and no text",
            key=str(place),
            cure="correct it",
        )
    return text


def _is_left_out_if_null(part: Part) -> bool:
    """Return whether rows without the key of the text have null for it, which Spark and BigQuery
    leave out of JSON.
    """
    if part.content is None or part.form not in (forms.JSON, forms.JSON_LINES):
        return False
    return _begins_with_key(part.content, part.text_key)


@lru_cache(maxsize=8)
def _begins_with_key(content: Content, key: str) -> bool:
    """Return whether one of a file's first rows has a key."""
    rows = rows_of_file(content, Notes(), needed=[key.lower()])
    with contextlib.suppress(UserError):  # of a line that is reached later, if at all
        for _, row in itertools.islice(rows, _FIRST_ROWS):
            if isinstance(row, dict) and find_name(row, key) is not None:
                return True
    return False


def _cure_of_key(part: Part) -> Cure:
    cure = f"correct it, or name the key of the text in {name_text_key(part)}"
    # Text that looks like JSON, under a name of text.
    if ENDINGS.get(ending_of(part.address)) == forms.TEXT:
        cure += ", or set data.form: text if its lines are the documents"
    cure += "; a pattern in place of a folder leaves the file out"
    return Cure(cure, by_flag="correct it")


def _blocks(part: Part, begin: int = 0) -> Iterator[bytes]:
    """Yield the file's content from `begin` on, which is 0 if it is packed."""
    assert part.content is not None
    return read_content(part.content, begin)
