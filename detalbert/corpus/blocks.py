"""Documents in blocks of text, so that memory does not depend on their length.

A reader yields blocks of any size, as they come from a file; a value of a row is one block.
`cut_segments` cuts a document again, at places that a rule finds in its text alone. So what is made
of a document depends neither on the blocks nor on the file's form.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

SEGMENT = 1 << 18  # characters of a segment, at most
# Greedy: up to the last space between two printable characters of ASCII, or the last white space.
_BEFORE_SPACE = re.compile(r".*[!-~](?= [!-~])", flags=re.DOTALL)
_BEFORE_ANY_SPACE = re.compile(r".*\S(?=\s)", flags=re.DOTALL)


class Block(NamedTuple):
    """A part of a document's text, in order."""

    text: str
    ends: bool  # whether the document ends with it


class Segment(NamedTuple):
    """A part of a document's text of at most SEGMENT characters; a shorter document is one."""

    text: str
    starts: bool  # whether the document begins with it
    ends: bool


def mark_last(texts: Iterable[str]) -> Iterator[Block]:
    """Yield the text of one document as blocks, of which the last one ends it."""
    held = ""
    for text in texts:
        if held:
            yield Block(held, ends=False)
        held = text
    yield Block(held, ends=True)


def strip(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield documents without the white space around them, and without the empty ones.

    Within a document, white space after the first SEGMENT characters of it in a row is left out.
    """
    inside = False  # whether the next block continues a document
    space = ""  # the white space behind the last block of that
    for block in blocks:
        # White space at the end of a block is in the document if more text follows.
        text = space + block.text if inside else block.text.lstrip()
        body = text.rstrip()
        if body or inside and block.ends:
            yield block if body == block.text else Block(body, block.ends)
            inside = not block.ends
        space = text[len(body) :][:SEGMENT] if inside else ""


def drop_empty(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield documents without the empty ones."""
    inside = False
    for block in blocks:
        if block.text or inside:
            yield block
            inside = not block.ends


def cut_segments(
    blocks: Iterable[Block], find_cut: Callable[[str], int], longest: int | None = None
) -> Iterator[Segment]:
    """Yield documents in segments, which depend on the text alone.

    Args:
        blocks: the documents.
        find_cut: returns how many of a text's `longest` characters are a segment, at least 1, if
            the document is longer.
        longest: characters of a segment, at most; default: SEGMENT.
    """
    longest = longest or SEGMENT
    buffer = ""
    starts = True
    for text, ends in blocks:
        buffer = buffer + text if buffer else text
        # One more character than a segment shows that the document goes on.
        begin = 0
        while len(buffer) - begin > longest:
            stop = begin + find_cut(buffer[begin : begin + longest])
            yield Segment(buffer[begin:stop], starts=starts, ends=False)
            begin = stop
            starts = False
        if ends:
            text = buffer[begin:] if begin else buffer
            yield Segment(text, starts=starts, ends=True)
            buffer = ""
            starts = True
        else:
            buffer = buffer[begin:]


def find_space(text: str) -> int:
    """Return the place before the last space between two characters of ASCII; if there is none,
    before the last white space that follows something else; if there is none, the end.

    Tokenizers that drop white space, or join it to the word behind it (`ByteLevel`), have the same
    words on both sides of a place before white space as in the longer text.
    """
    place = _BEFORE_SPACE.match(text) or _BEFORE_ANY_SPACE.match(text)
    return place.end() if place else len(text)


class Segments(NamedTuple):
    """Consecutive segments of documents, which are tokenized at a time."""

    texts: list[str]
    ends: list[bool]  # of each: whether a document ends with it
    starts: bool = True  # whether the first one begins a document
