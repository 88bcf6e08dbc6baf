"""Documents as tokens for a causal language model, without loss of text.

An end-of-text token ends each document. `document_ptr` holds where documents begin, so a shard can
be cut into windows of any length.
"""

import copy
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.blocks import Segments
from detalbert.corpus.shards import DOCUMENT, OPEN, Columns, Kind, Rows
from detalbert.corpus.words import WordEncoder


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

    def find_cut(self, text: str) -> int:
        """Return the place after the last line end, or the end. Segments are encoded separately."""
        return text.rfind("\n") + 1 or len(text)

    def tokenize(self, encoder: WordEncoder, segments: Segments) -> Rows:
        ids, lengths = encoder(segments.texts)  # [N - D], [R]
        ends = np.array(segments.ends)
        ids = np.insert(ids, np.cumsum(lengths)[ends], self.end_of_text)  # [N]
        size = sum(len(text.encode()) for text in segments.texts)
        marks = np.where(ends, DOCUMENT, OPEN).astype(np.uint8)
        return Rows(ids, lengths=lengths + ends, ends=marks, text_bytes=size)

    def columns(self) -> Columns:
        return DocumentColumns()


class DocumentColumns(Columns):
    """Tokens per document."""

    def __init__(self) -> None:
        self.open = 0  # tokens of a document that has not ended

    def add(self, rows: Rows) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        stops = np.cumsum(rows.lengths)[rows.ends == DOCUMENT]  # [D]
        lengths = np.diff(stops, prepend=-self.open)  # [D]
        self.open += len(rows.tokens) - int(lengths.sum())
        sizes = len(lengths), len(rows.tokens), rows.text_bytes
        counts = dict(zip(DocumentKind.counts, sizes, strict=True))
        return {"document_ptr": lengths}, counts
