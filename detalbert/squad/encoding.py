"""Fast tokenizers by name; texts as token ids in flat arrays, and the special tokens that a
tokenizer puts around a pair.

Only numbers are kept of the encodings: as objects, those of all texts of SQuAD would take
gigabytes. So texts are encoded a chunk at a time.
"""

import contextlib
import hashlib
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from detalbert import hub
from detalbert.errors import UserError, as_user_error, first_line

_CHUNK = 2000  # texts at a time


class Tokens(NamedTuple):
    """The N tokens of n texts, one text after another."""

    ids: np.ndarray  # int32 [N]
    ptr: np.ndarray  # int64 [n + 1], text i is ids[ptr[i]:ptr[i + 1]]
    offsets: np.ndarray  # int32 [N, 2], characters of the text, half open; [0, 2] if not requested
    lengths: np.ndarray  # int64 [n], tokens of each text
    cut: int  # texts that had more tokens


class PairLayout(NamedTuple):
    """The R parts of an encoded pair: special tokens before the question, the question, special
    tokens between, the context, and each special token after it.
    """

    special_ids: np.ndarray  # int32, all special tokens
    lengths: np.ndarray  # int64 [R], tokens of each part; 0 of the question and the context
    types: np.ndarray  # int64 [R], token type of each part


def named_tokenizer(
    name: str, *needed: str, kind: str = "", key: str = "data.tokenizer"
) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of a folder, a checkpoint of this package, or a hub name, without
    truncation and padding.

    Args:
        name: the folder, checkpoint or hub name.
        needed: special tokens that it must have, such as "mask_token".
        kind: of models that have these, for messages.
        key: of the config that holds the name, for messages.

    Raises:
        UserError: it does not load, is not fast or lacks a token.
        Unavailable: the network fails.
    """
    from transformers import AutoTokenizer  # imports torch, which what writes shards does without

    hub.check_model_folder(Path(hub.find_local(name)))
    with hub.hub_errors(f"{name!r} does not load as a tokenizer", key=key):
        tokenizer = hub.load_named(AutoTokenizer.from_pretrained, name, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise UserError(
            f"{name!r} has no fast tokenizer",
            key=key,
            cure="give a tokenizer.json",
        )
    # Those of sentence encoders cut and pad each text. Windows have rules of their own, and the sum
    # of a tokenizer must not depend on whether it has encoded something.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    for token in needed:
        if getattr(tokenizer, token) is None:
            raise UserError(f"{name!r} has no {token}", key=key, cure=f"give that of {kind}")
    return tokenizer


def tokenizer_sum(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 (hex) of a fast tokenizer: its tokens, merges, normalizer."""
    text = tokenizer.backend_tokenizer.to_str()
    return hashlib.sha256(text.encode()).hexdigest()


def tokenizing() -> contextlib.AbstractContextManager[None]:
    """Convert whatever a tokenizer raises in the block, even a panic, to UserError."""
    return as_user_error(
        lambda error: UserError(
            f"the tokenizer fails on a text ({first_line(error)})", cure="give another"
        )
    )


def encode(
    backend: Tokenizer,
    texts: Sequence[str],
    with_offsets: bool = True,
    longest: int | None = None,
) -> Tokens:
    """Encode texts without special tokens.

    Args:
        backend: without truncation and padding.
        texts: the texts.
        with_offsets: whether to return the tokens' characters, which takes longer.
        longest: tokens at which a text is cut, without offsets only; None: at none.

    Raises:
        UserError: the tokenizer panics.
    """
    encode_batch = backend.encode_batch if with_offsets else backend.encode_batch_fast
    ids = [np.zeros(0, dtype=np.int32)]
    offsets = [np.zeros((0, 2), dtype=np.int32)]
    lengths: list[int] = []
    for begin in range(0, len(texts), _CHUNK):
        with tokenizing():
            encodings = encode_batch(texts[begin : begin + _CHUNK], add_special_tokens=False)
        lengths += [len(encoding) for encoding in encodings]
        chunk_ids = chain.from_iterable(encoding.ids[:longest] for encoding in encodings)
        ids.append(np.fromiter(chunk_ids, dtype=np.int32))
        if with_offsets:
            pairs = chain.from_iterable(encoding.offsets for encoding in encodings)
            numbers = np.fromiter(chain.from_iterable(pairs), dtype=np.int32)
            offsets.append(numbers.reshape(-1, 2))

    uncut_lengths = np.array(lengths, dtype=np.int64)  # [n]
    cut_lengths = uncut_lengths if longest is None else np.minimum(uncut_lengths, longest)
    return Tokens(
        ids=np.concatenate(ids),
        ptr=np.append(0, np.cumsum(cut_lengths)),
        offsets=np.concatenate(offsets),
        lengths=cut_lengths,
        cut=int((cut_lengths < uncut_lengths).sum()),
    )


def ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return begins[i], begins[i] + 1, ... for lengths[i] numbers, for every i; int64. begins [7,
    3], lengths [2, 3] gives [7, 8, 3, 4, 5].
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    # Number t of the result is its range's begin, plus t, less what the ranges before it have.
    shifts = np.repeat(begins - ends + lengths, lengths)
    return shifts + np.arange(len(shifts))


def pair_layout(tokenizer: PreTrainedTokenizerBase) -> PairLayout:
    """Return the layout, found by encoding a pair. Leaves truncation and padding off.

    Raises:
        UserError: the tokenizer is slow, or does not lay a pair out as question and context with
            [CLS] first or last.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"tokenizer {type(tokenizer).__name__} is not a fast one",
            cure="use one that has a tokenizer.json",
        )
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    with tokenizing():
        pair = backend.encode("a", "a")

    # The text of each token, "." for a special one: ".0.1." of BERT.
    texts = "".join("." if text is None else str(text) for text in pair.sequence_ids)
    match = re.fullmatch(r"(\.*)0+(\.*)1+(\.*)", texts)
    if match is None or not (match[1] or pair.ids[-1] == tokenizer.cls_token_id):
        raise UserError(
            f"tokenizer {type(tokenizer).__name__} does not lay a pair out as question and context "
            "with [CLS] first or last",
            cure="use one of BERT's kind",
        )
    is_special = np.array([text == "." for text in texts])
    ids = np.array(pair.ids, dtype=np.int32)
    types = np.array(pair.type_ids)

    # The first token of each part, and its length.
    before, between, after = map(len, match.groups())
    begins = [0, match.end(1), match.start(2), match.end(2)]
    begins += range(match.start(3), len(texts))
    lengths = [before, 0, between, 0] + [1] * after
    return PairLayout(
        special_ids=ids[is_special],
        lengths=np.array(lengths),
        types=types[begins],
    )
