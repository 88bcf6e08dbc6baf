"""Token ids and character offsets of texts, as flat arrays: N tokens of n texts."""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from detalbert.errors import Panic, UserError, first_line, panics_raised

_CHUNK = 2000  # texts at a time; bounds the memory of the encoding objects
_FEW = 2  # a question and its context


class Tokens(NamedTuple):
    """The N tokens of n texts, one text after another."""

    ids: np.ndarray  # int32 [N]
    ptr: np.ndarray  # int64 [n + 1], text i is ids[ptr[i]:ptr[i + 1]]
    offsets: np.ndarray  # int32 [N, 2], characters of the text, half open; [0, 2]: not requested


def tokenizer_sum(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 (hex) of a fast tokenizer: its tokens, merges, normalizer."""
    text = tokenizer.backend_tokenizer.to_str()
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def tokenizing() -> Iterator[None]:
    """Convert a panic of a tokenizer in the block to UserError."""
    try:
        with panics_raised():
            yield
    except Panic as error:
        raise UserError(
            f"the tokenizer fails on a text ({first_line(error)})", cure="give another"
        ) from None


def ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return begins[i], begins[i] + 1, ... for lengths[i] numbers, for every i; int64. begins [7,
    3], lengths [2, 3] gives [7, 8, 3, 4, 5].
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    # Number t of the result is its range's begin, plus t, less what the ranges before it have.
    shift = begins - (ends - lengths)
    return np.repeat(shift, lengths) + np.arange(total)


def encode(backend: Tokenizer, texts: Sequence[str], with_offsets: bool = True) -> Tokens:
    """Encode texts without special tokens, `_CHUNK` at a time.

    Args:
        backend: without truncation and padding.
        texts: the texts.
        with_offsets: whether to return the tokens' characters, which takes longer.

    Raises:
        UserError: the tokenizer panics.
    """
    encode_batch = backend.encode_batch if with_offsets else backend.encode_batch_fast
    ids = [np.zeros(0, dtype=np.int32)]
    lengths = [0]
    offsets = [np.zeros((0, 2), dtype=np.int32)]
    for begin in range(0, len(texts), _CHUNK):
        chunk = list(texts[begin : begin + _CHUNK])
        with tokenizing():
            if len(chunk) <= _FEW:  # `encode_batch` takes longer to start threads
                encodings = [backend.encode(text, add_special_tokens=False) for text in chunk]
            else:
                encodings = encode_batch(chunk, add_special_tokens=False)

        # Flat arrays of the chunk: ids [N], offsets [N, 2].
        lengths += [len(encoding) for encoding in encodings]
        chunk_ids = chain.from_iterable(encoding.ids for encoding in encodings)
        ids.append(np.fromiter(chunk_ids, dtype=np.int32))
        if with_offsets:
            pairs = chain.from_iterable(encoding.offsets for encoding in encodings)
            numbers = np.fromiter(chain.from_iterable(pairs), dtype=np.int32)
            offsets.append(numbers.reshape(-1, 2))
    return Tokens(
        ids=np.concatenate(ids),
        ptr=np.cumsum(lengths, dtype=np.int64),
        offsets=np.concatenate(offsets),
    )
