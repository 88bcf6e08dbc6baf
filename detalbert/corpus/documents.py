"""Documents as tokens for a causal language model, without loss of text.

An end-of-text token ends each document. `document_ptr` holds where documents begin, so a shard can
be cut into windows of any length.
"""

import copy
import itertools
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.shards import Kind, Rows
from detalbert.corpus.sources import group
from detalbert.corpus.words import WordEncoder

_PIECE = 1 << 18  # characters; a longer document is encoded in pieces
_AT_ONCE = 1 << 20  # characters that are encoded at once, about: it takes some 40 bytes for each


class DocumentKind(Kind):
    """Documents, each followed by the token `end_of_text`."""

    counts = "documents", "tokens", "text_bytes"
    exact = True

    def __init__(self, end_of_text: int) -> None:
        self.end_of_text = end_of_text

    def facts(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        return {"kind": "documents", **super().facts(tokenizer), "end_of_text": self.end_of_text}

    def backend(self, tokenizer: PreTrainedTokenizerBase) -> Any:
        """Return one that truncates nothing, and reads "<|endoftext|>" in documents as text."""
        exact = copy.deepcopy(tokenizer.backend_tokenizer)
        exact.no_truncation()
        exact.no_padding()
        exact.encode_special_tokens = True
        return exact

    def tokenize(self, encoder: WordEncoder, texts: list[str]) -> Rows:
        cut = [split_long(text) for text in texts]
        made = map(encoder, group(itertools.chain.from_iterable(cut), len, _AT_ONCE))
        ids, lengths = map(np.concatenate, zip(*made, strict=True))  # [N - D], [pieces]
        first = np.cumsum([0, *map(len, cut[:-1])])  # [D]: each document's first piece
        lengths = np.add.reduceat(lengths, first)  # [D]
        ids = np.insert(ids, np.cumsum(lengths), self.end_of_text)  # [N]
        size = sum(len(text.encode()) for text in texts)
        counts = {"documents": len(texts), "tokens": len(ids), "text_bytes": size}
        return Rows(ids, {"document_ptr": lengths + 1}, counts)


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
