"""Bytes of text that a token stands for, so that scores are per byte of the text that was scored.

Bytes per token of a whole text would be simpler, but count tokens that are no targets: the first of
each document, and what a capped validation leaves out. Documents' first tokens are not like others;
in short documents they are one of a hundred. The price is a table over the vocabulary.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a token that is a byte, in a vocabulary of SentencePiece
_LOSSLESS = {"Prepend", "Replace", "NFC"}  # normalizers that change no length of usual text


def token_bytes(
    tokenizer: PreTrainedTokenizerBase, vocabulary: int, averages: Sequence[float]
) -> np.ndarray:
    """Return the bytes of text (UTF-8) of each token, float64 [sources, vocabulary].

    They are exact for byte-level tokenizers (GPT-2, GPT-NeoX, Llama 3, Qwen), and for those of
    SentencePiece with byte fallback or without normalization. Others change the text before they
    split it: each of their tokens has its source's average. Special tokens have no bytes.

    Args:
        tokenizer: of the run, a fast one.
        vocabulary: tokens of the model, at least those of the tokenizer.
        averages: bytes of text per token that is not special, of each source.
    """
    count_bytes = _find_spelling(tokenizer)
    added = tokenizer.added_tokens_decoder
    table = np.zeros((len(averages), vocabulary))
    for token, number in tokenizer.get_vocab().items():
        if number in added:
            table[:, number] = len(added[number].content.encode())  # as it is in the text
        elif count_bytes is not None:
            table[:, number] = count_bytes(token)
        else:
            table[:, number] = averages
    # A model reads special tokens, but they are no text.
    special = [number for number, token in added.items() if token.special]
    table[:, special] = 0.0
    table[:, tokenizer.eos_token_id] = 0.0
    return table


def _find_spelling(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], int] | None:
    """Return the function from a token of the vocabulary to its bytes; None: they are not known."""
    steps = json.loads(tokenizer.backend_tokenizer.to_str())
    decoders = _kinds(steps["decoder"], "decoders")
    normalizers = _kinds(steps["normalizer"], "normalizers")
    # A normalizer that changes lengths leaves no way back from a token to its text.
    if not normalizers <= _LOSSLESS:
        return None
    if "ByteLevel" in decoders:
        return len  # a character per byte
    if decoders & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    return None


def _kinds(step: dict[str, Any] | None, parts: str) -> set[str]:
    """Return the types of a step of a tokenizer, or of its parts if it is a sequence."""
    if step is None:
        return set()
    steps = step[parts] if step["type"] == "Sequence" else [step]
    return {part["type"] for part in steps}


def _sentencepiece_bytes(token: str) -> int:
    if _BYTE.fullmatch(token):
        return 1
    return len(token.replace("\u2581", " ").encode())  # its sign for a space
