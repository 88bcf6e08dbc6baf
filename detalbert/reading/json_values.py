"""The rows of a JSON file of any size, one of them in memory: a list, `data` of a mapping, rows one
after another, or what pandas writes: `split`, `index` and, its default, `columns`. The columns of
that are all in memory, as their rows are only complete at the end of the file. The labels of its
rows are in them under LABEL, if they are more than numbers of rows.

Python's parser takes complete texts. So a value is parsed from the text that is there; if that
fails, as much text again is read and the value parsed once more. The price is that a value of many
megabytes is parsed several times, in all at most about twice its length.
"""

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping

from detalbert.errors import UserError
from detalbert.reading.lines import Decoder

LABEL = "index of pandas"  # a name that no column has
_PIECE = 1 << 16  # characters of text that are parsed at once, at least
# What JSON takes for white space; str.isspace takes more.
_SPACE = re.compile(r"[ \t\r\n]*")
_AFTER = set(" \t\r\n,:]}")  # the characters that can follow a JSON value
_DECODER = json.JSONDecoder()


class JsonValues:
    """JSON text that is parsed as it is read.

    Args:
        where: the file, for messages.
        blocks: its content in UTF-8.
        names: of columns that rows may have, in small letters: by them a frame is known.
    """

    def __init__(self, where: str, blocks: Iterator[bytes], names: Collection[str] = ()) -> None:
        self.where = where
        self.blocks = blocks
        self.names = names
        self.decoder = Decoder(where)
        self.text = ""  # read from the file
        self.at = 0  # the place in it up to which it is parsed
        self.lines = 1  # number of the line on which `text` begins
        self.is_over = False  # whether all of the file is read

    def rows(self) -> Iterator[object]:
        """Yield the rows. Raises UserError, naming the line, where the text is not JSON."""
        while self._peek():
            if self._peek() == "[":
                yield from self._elements()
            elif self._peek() == "{":
                yield from self._mapping()
            else:
                raise self._broken("expecting a mapping or a list")

    def _mapping(self) -> Iterator[object]:
        """Yield the elements of the list `data` of a mapping; without one, the mapping's rows."""
        row: dict[str, object] = {}
        has_data = False
        for _ in self._items(begin="{", end="}"):
            key = self._value()
            if not isinstance(key, str):
                raise self._broken("expecting a key in quotes")
            self._need(":")
            # SQuAD's shape: articles are rows, and what is behind the list is skipped.
            if key == "data" and self._peek() == "[":
                has_data = True
                labels = _labels(row.get("index")) if "columns" in row else []
                for element, label in itertools.zip_longest(self._elements(), labels):
                    yield self._name_cells(element, row.get("columns"), label)
            elif has_data:
                self._value()
            else:
                row[key] = self._value()
        if has_data:
            return
        if is_frame(row):
            yield from frame_rows(row, self.names)
        else:
            yield row

    def _name_cells(self, row: object, columns: object, label: str | None) -> object:
        """Return a row of pandas' `split`, a list of cells, by the names of its columns, with its
        label, if any; another row as it is. Raises UserError if two columns have one name.
        """
        if not isinstance(row, list) or not isinstance(columns, list) or len(row) != len(columns):
            return row
        cells = dict(zip(map(str, columns), row, strict=True))
        if len(cells) < len(columns):
            names = [str(name) for name in columns]
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"two columns are named {twice!r}", key=self.where, cure="rename one")
        return _labelled(cells, label)

    def _elements(self) -> Iterator[object]:
        for _ in self._items(begin="[", end="]"):
            yield self._value()

    def _peek(self) -> str:
        """Return the next character that is not white space, "" at the end."""
        while True:
            space = _SPACE.match(self.text, self.at)
            assert space is not None  # it matches nothing, too
            self.at = space.end()
            if self.at < len(self.text) or not self._read():
                return self.text[self.at : self.at + 1]

    def _skip(self, character: str) -> bool:
        """Return whether `character` comes next; if so, skip it."""
        is_next = self._peek() == character
        self.at += is_next
        return is_next

    def _need(self, character: str) -> None:
        if not self._skip(character):
            raise self._broken(f"expecting {character!r}")

    def _items(self, begin: str, end: str) -> Iterator[None]:
        """Yield before every item from `begin` to `end`, and skip the commas between them."""
        self._need(begin)
        goes_on = not self._skip(end)
        while goes_on:
            yield
            goes_on = not self._skip(end)
            if goes_on:
                self._need(",")

    def _value(self) -> object:
        """Return the next value, and move behind it. Read on until all of it is there."""
        self._peek()
        may_continue = True
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, idx=self.at)
                # More text may turn the number 1 into 12 or 1.5.
                if not may_continue or self.text[end : end + 1] in _AFTER:
                    self.at = end
                    return value
            except (ValueError, RecursionError) as error:  # wrong, or it goes on in the file
                if not may_continue:
                    self.at = getattr(error, "pos", self.at)
                    raise self._broken(getattr(error, "msg", str(error))) from None
            may_continue = self._read()

    def _read(self) -> bool:
        """Read as much again as is not parsed, so that a value is parsed few times; return whether
        there was more.
        """
        # What is parsed is dropped, so that memory holds one value.
        self.lines += self.text.count("\n", 0, self.at)
        unparsed = self.text[self.at :]
        wanted = max(_PIECE, len(unparsed))

        # At the end of the file, the decoder reports a character that is not complete.
        pieces: list[str] = []
        while sum(map(len, pieces)) < wanted and not self.is_over:
            block = next(self.blocks, b"")
            self.is_over = not block
            pieces.append(self.decoder(block, last=self.is_over))
        text = "".join(pieces)
        self.text = unparsed + text
        self.at = 0
        return bool(text)

    def _broken(self, fault: str) -> UserError:
        line = self.lines + self.text.count("\n", 0, self.at)
        return UserError(f"line {line} is not JSON ({fault})", key=self.where, cure="correct it")


def is_frame(mapping: Mapping[str, object]) -> bool:
    """Return whether a mapping is a frame of pandas, by columns or by index: mappings of equal keys
    in equal order.
    """
    parts = list(mapping.values())
    if not parts or not all(isinstance(part, dict) for part in parts):
        return False
    keys = [list(part) for part in parts if isinstance(part, dict)]
    return all(own == keys[0] for own in keys)


def frame_rows(frame: Mapping[str, object], names: Collection[str]) -> list[object]:
    """Return the rows of a frame of pandas; if no column has one of `names`, in small letters, the
    frame itself as the only row.
    """
    # {"0": {"question": ...}, "1": ...}
    rows = [part for part in frame.values() if isinstance(part, dict)]
    labels = list(frame)
    names_of_rows = list(rows[0])
    if any(name.lower() in names for name in frame):  # {"question": {"0": ..., "1": ...}, ...}
        columns = rows
        labels = names_of_rows
        rows = []
        for label in labels:
            cells = {name: part[label] for name, part in zip(frame, columns, strict=True)}
            rows.append(cells)
    elif not any(name.lower() in names for name in names_of_rows):
        return [frame]
    return list(itertools.starmap(_labelled, itertools.zip_longest(rows, _labels(labels))))


def _labelled(row: dict[str, object], label: str | None) -> dict[str, object]:
    return row if label is None else {LABEL: label, **row}


def _labels(index: object) -> list[str]:
    """Return the labels of a frame's rows; [] if they only count the rows, as pandas does by
    itself, or are numbers that repeat, as of frames that were put together.
    """
    if not isinstance(index, list):
        return []
    labels = list(map(str, index))
    numbers = list(map(str, range(len(labels))))
    are_texts = all(isinstance(label, str) for label in index)
    is_unique = len(set(labels)) == len(labels)
    return labels if labels != numbers and (are_texts or is_unique) else []
