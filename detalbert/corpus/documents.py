"""Documents as tokens for a causal language model, without loss of text.

An end-of-text token ends each document; the tokens that the tokenizer itself puts before a text
(Llama's <s>) begin it, so that a model is trained on what transformers and servers feed it.
`document_ptr` holds where documents begin, so a shard can be cut into windows of any length.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.blocks import Segments
from detalbert.corpus.shards import DOCUMENT, OPEN, Columns, Kind, Rows
from detalbert.corpus.words import WordEncoder


def begin_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that a tokenizer's own call puts before a text; most have none."""
    text = "a"
    with_special = tokenizer(text)["input_ids"]
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    # What is before the text's own tokens, wherever they begin.
    for count in range(len(with_special) - len(plain) + 1):
        if with_special[count : count + len(plain)] == plain:
            return with_special[:count]
    return []


def document_kind(tokenizer: PreTrainedTokenizerBase) -> "DocumentKind":
    """Return the kind of a tokenizer's documents."""
    return DocumentKind(tokenizer.eos_token_id, begin_tokens(tokenizer))


class DocumentKind(Kind):
    """Documents, each between the tokens `begin_of_text` and the token `end_of_text`."""

    counts = "documents", "tokens", "text_bytes"
    exact = True

    def __init__(self, end_of_text: int, begin_of_text: Sequence[int] = ()) -> None:
        self.end_of_text = end_of_text
        self.begin_of_text = list(begin_of_text)

    def facts(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        header = {
            "kind": "documents",
            **super().facts(tokenizer),
            "end_of_text": self.end_of_text,
        }
        if self.begin_of_text:
            header["begin_of_text"] = self.begin_of_text
        return header

    def backend(self, tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
        """Return one that truncates nothing, and reads "<|endoftext|>" in documents as text."""
        # A copy, as the tokenizer's owner may truncate.
        exact = copy.deepcopy(tokenizer.backend_tokenizer)
        exact.no_truncation()
        exact.no_padding()
        exact.encode_special_tokens = True
        return exact

    def find_cut(self, text: str) -> int:
        """Return the place after the last line end, or the end. Segments are encoded separately."""
        return text.rfind("\n") + 1 or len(text)

    def tokenize(self, encoder: WordEncoder, segments: Segments) -> Rows:
        ids, lengths = encoder(segments.texts)  # tokens of text, [R]
        ends = np.array(segments.ends)  # [R], whether a document ends with the segment
        begins = np.array([segments.starts, *segments.ends[:-1]])  # [R], or begins
        begin_size = len(self.begin_of_text)  # tokens

        # The places of the new tokens among those of text.
        stops = np.cumsum(lengths)
        starts = stops - lengths
        end_places = stops[ends]  # [documents that end]
        begin_places = np.repeat(starts[begins], begin_size)

        # Where one document ends and the next begins, values stay in this order.
        end_ids = np.full(len(end_places), self.end_of_text)
        begin_of_text = np.array(self.begin_of_text, dtype=end_ids.dtype)
        begin_ids = np.tile(begin_of_text, int(begins.sum()))
        ids = np.insert(
            ids,
            np.concatenate([end_places, begin_places]),
            np.concatenate([end_ids, begin_ids]),
        )  # [N]
        ends_with = np.where(ends, DOCUMENT, OPEN)
        return Rows(
            tokens=ids,
            lengths=lengths + ends + begins * begin_size,
            ends=ends_with.astype(np.uint8),
            text_bytes=sum(len(text.encode()) for text in segments.texts),
        )

    def columns(self) -> Columns:
        return DocumentColumns()


class DocumentColumns(Columns):
    """Tokens per document."""

    def __init__(self) -> None:
        self.open = 0  # tokens of a document that has not ended

    def add(self, rows: Rows) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        is_last = rows.ends == DOCUMENT  # [R]
        stops = np.cumsum(rows.lengths)[is_last]  # [D], of the documents that end
        lengths = np.diff(stops, prepend=-self.open)  # [D], the first with what was open
        tokens = len(rows.tokens)
        self.open += tokens - int(lengths.sum())
        counts = {
            "documents": len(lengths),
            "tokens": tokens,
            "text_bytes": rows.text_bytes,
        }
        return {"document_ptr": lengths}, counts
