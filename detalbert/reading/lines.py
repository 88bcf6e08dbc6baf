"""Lines of a text file, with the byte at which each begins, and pieces of lines that are long.

Only the ASCII line feed ends a line: what Unicode calls line ends may be inside a text.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from detalbert.reading.packing import UTF8, Decoder, not_text

PIECE = 1 << 20  # bytes of a line that are read at a time, at most
# Lines of a table that end in a carriage return, alone or before a line feed.
_CARRIAGE_RETURNS = re.compile(rb"[^\r]*\r\n?|[^\r]+")


class Piece(NamedTuple):
    """A part of a line, with its line end if it has the last part."""

    text: str
    ends: bool  # whether the line ends with it


class Lines:
    """The lines of a file in UTF-8, read once from its start or from a later byte.

    Args:
        where: the file, for messages.
        file: its content from the byte `begin` on, as a binary file.
        begin: the byte at which the next line begins; it grows as lines are read.
    """

    def __init__(self, where: str, file: BinaryIO, begin: int = 0) -> None:
        self.where = where
        self.file = file
        self.begin = begin

    def skip(self) -> None:
        """Read to the next line end."""
        content = b"-"
        while content and not content.endswith(b"\n"):
            content = self.file.readline(PIECE)
            self.begin += len(content)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield lines with their line ends, each with the byte at which it begins."""
        while content := self.file.readline():
            begin = self.begin
            yield begin, self._decode(content)

    def _decode(self, content: bytes) -> str:
        begin = self.begin
        self.begin += len(content)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise not_text(self.where, encoding=UTF8, byte=begin + error.start) from None

    def pieces(self) -> Iterator[Piece]:
        """Yield lines with their line ends, those of more than PIECE bytes in several pieces."""
        ends = True
        while content := self.file.readline(PIECE):
            if content.endswith(b"\r"):  # a line end of two bytes stays in one piece
                content += self.file.readline(1)
            if ends:  # the piece before ended a line
                decoder = Decoder(self.where, self.begin)
            self.begin += len(content)
            # One that is shorter is the end of the file.
            ends = content.endswith(b"\n") or len(content) < PIECE
            yield Piece(decoder(content, last=ends), ends)
        if not ends:
            yield Piece(decoder(b"", last=True), ends=True)

    def cut_at_carriage_returns(self) -> Iterator[str]:
        """Yield lines as tables have them, which may end in a carriage return alone."""
        while content := self.file.readline():
            # Most files have none: the test is faster than the search.
            lines = _CARRIAGE_RETURNS.findall(content) if b"\r" in content else [content]
            for line in lines:
                yield self._decode(line)


def without_line_end(line: str) -> str:
    """Return a line without its end, which is a line feed or, as Windows writes it, two bytes."""
    if not line.endswith("\n"):
        return line
    return line.removesuffix("\n").removesuffix("\r")
