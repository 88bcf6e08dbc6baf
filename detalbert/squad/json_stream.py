"""Streaming of a long JSON mapping, one element of one of its lists at a time."""

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from detalbert.errors import UserError

_PIECE = 1 << 16  # characters read at a time
_SPACE = re.compile(r"[ \t\r\n]*")
_AFTER = set(" \t\r\n,:]}")  # the characters that can follow a JSON value


class JsonText:
    """A JSON mapping in a file: iterates over one of its lists with one element in memory."""

    def __init__(self, where: str, file: TextIO) -> None:
        self.where, self.file = where, file
        self.text = ""  # read from the file; the part from `at` on is not used yet
        self.at = 0
        self.lines = 1  # number of the line on which `text` begins
        self.decoder = json.JSONDecoder()

    def elements(self, key: str) -> Iterator[Any]:
        """Yield the elements of the list `key` of the mapping; skip the other keys."""
        missing = self._not_squad(f"no list {key!r} at the top")
        found = False
        if not self._next("{"):
            raise missing
        for _ in self._items("}"):
            name = self._value()
            self._need(":")
            if name != key:
                self._value()
                continue
            found = True
            if not self._next("["):
                raise missing
            for _ in self._items("]"):
                yield self._value()
        if not found:
            raise missing
        if self._peek():
            raise self._broken("more text after its end")

    def _peek(self) -> str:
        """Return the next character that is not white space, "" at the end."""
        while True:
            self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) or not self._more():
                return self.text[self.at : self.at + 1]

    def _next(self, character: str) -> bool:
        """Return whether `character` comes next; if so, skip it."""
        found = self._peek() == character
        self.at += found
        return found

    def _need(self, character: str) -> None:
        if not self._next(character):
            raise self._broken(f"expecting {character!r}")

    def _items(self, end: str) -> Iterator[None]:
        """Yield before every item up to `end`, and skip the commas between them."""
        more = not self._next(end)
        while more:
            yield
            if more := not self._next(end):
                self._need(",")
                if self._peek() == end:
                    raise self._broken("a comma with nothing after it")

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except RecursionError:
                raise self._broken("nested too deep") from None
            except ValueError as error:  # the text so far ends inside a value, or is wrong
                used = getattr(error, "pos", self.at) - self.at
                if not self._more():
                    self.at = used
                    raise self._broken(getattr(error, "msg", str(error))) from None
                continue
            used = end - self.at
            # More text may turn the number 1 into 12 or 1.5.
            if self.text[end : end + 1] in _AFTER or not self._more():
                self.at += used
                return value

    def _more(self) -> bool:
        """Read as much again as is in memory, to parse a value few times; False at the end."""
        piece = self.file.read(max(_PIECE, len(self.text) - self.at))
        self.lines += self.text.count("\n", 0, self.at)
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(piece)

    def _broken(self, fault: str) -> UserError:
        line = self.lines + self.text.count("\n", 0, self.at)
        return self._not_squad(f"line {line}: {fault}")

    def _not_squad(self, fault: str) -> UserError:
        return UserError(
            f"{self.where}: not SQuAD JSON ({fault}); give SQuAD JSON, JSON lines (.jsonl) or CSV "
            "(.csv)"
        )
