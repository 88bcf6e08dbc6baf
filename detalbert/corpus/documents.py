"""Documents as tokens for a causal language model, without loss of text.

An end-of-text token ends each document. `document_ptr` holds where documents begin, so a shard can
be cut into windows of any length.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from detalbert.corpus.chunks import Arrays, Kind
from detalbert.corpus.shards import pointers
from detalbert.corpus.sources import Part, read_exact
from detalbert.corpus.words import WordEncoder

_PIECE = 1 << 18  # characters; a longer document is encoded in pieces
_AT_ONCE = 1 << 20  # characters that are encoded at once, about: it takes some 40 bytes for each


class Documents(Kind):
    """Documents, each followed by the token `end_of_text`."""

    chunk = {"lengths": "<i8", "sizes": "<i8"}
    counts = "documents", "tokens", "text_bytes"

    def __init__(self, end_of_text: int) -> None:
        self.end_of_text = end_of_text

    def read(self, part: Part) -> Iterator[tuple[str, int]]:
        return read_exact(part)

    def tokenize(self, encoder: WordEncoder, texts: list[str]) -> tuple[np.ndarray, ...]:
        """Return ids with end-of-text tokens, int32 [N]; tokens, UTF-8 bytes, int64 [D] each."""
        cut = [split_long(text) for text in texts]
        made = [encoder(pieces) for pieces in _group([piece for pieces in cut for piece in pieces])]
        ids, lengths = map(np.concatenate, zip(*made, strict=True))  # [N - D], [pieces]
        first = np.cumsum([0, *map(len, cut[:-1])])  # [D]: each document's first piece
        lengths = np.add.reduceat(lengths, first)  # [D]
        ids = np.insert(ids, np.cumsum(lengths), self.end_of_text)  # [N]
        sizes = np.array([len(text.encode()) for text in texts], np.int64)
        return ids, lengths + 1, sizes

    def columns(self, read: Callable[[str], Arrays]) -> list[tuple[str, str, Arrays]]:
        return [("document_ptr", "<i8", pointers(read("lengths")))]

    def count(self, columns: dict[str, Any], read: Callable[[str], Arrays]) -> dict[str, int]:
        return {
            "documents": columns["document_ptr"][2] - 1,
            "tokens": columns["tokens"][2],
            "text_bytes": sum(int(sizes.sum()) for sizes in read("sizes")),
        }


def split_long(text: str) -> list[str]:
    """Split `text` into segments of at most _PIECE characters, after a line end if there is one.
    Segments are encoded separately; the split depends on the text alone.
    """
    pieces, begin = [], 0
    while len(text) - begin > _PIECE:
        end = text.rfind("\n", begin, begin + _PIECE) + 1 or begin + _PIECE
        pieces.append(text[begin:end])
        begin = end
    return [*pieces, text[begin:]]


def _group(pieces: list[str]) -> list[list[str]]:
    groups, characters = [list[str]()], 0
    for piece in pieces:
        if characters >= _AT_ONCE:
            groups.append([])
            characters = 0
        groups[-1].append(piece)
        characters += len(piece)
    return groups
