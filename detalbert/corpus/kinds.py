"""Kinds of shards: how documents become columns. `examples` for ALBERT, `documents` for a language
model.
"""

import hashlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.words import WordEncoder
from detalbert.squad.encoding import tokenizer_sum

SPLITS = ("train", "validation")


class Rows(NamedTuple):
    """Some consecutive documents of a split, tokenized. No column crosses a document, so a shard
    does not depend on how its documents were grouped.
    """

    tokens: np.ndarray  # [N]
    columns: dict[str, np.ndarray]  # those ending in _ptr hold lengths, which become offsets
    counts: dict[str, int]


class Kind(ABC):
    """A format of shards. `counts` are the keys of `Rows.counts`."""

    counts: ClassVar[tuple[str, ...]]
    exact: ClassVar[bool]  # whether text is read unchanged: see `sources.Part`

    def facts(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Return all that a shard's bytes depend on besides its text."""
        return {"tokenizer": tokenizer_sum(tokenizer)}

    def backend(self, tokenizer: PreTrainedTokenizerBase) -> Any:
        """Return the `tokenizers.Tokenizer` that encodes the text."""
        return tokenizer.backend_tokenizer

    @abstractmethod
    def tokenize(self, encoder: WordEncoder, texts: list[str]) -> Rows:
        """Tokenize at least one document."""

    def describe(
        self, folder: Path, address: str, split: str, shards: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return additional facts on a split, whose shards are at `address`, for the index."""
        return {}


def is_held_out(text: str, share: float) -> bool:
    """Return whether a document is held out, by a hash of its text, so copies stay in one split."""
    if share in (0.0, 1.0):
        return bool(share)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
