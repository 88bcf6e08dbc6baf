"""The bytes of text that tokens stand for, by kind of tokenizer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lm.token_bytes import token_bytes
from tests.conftest import max_examples

END = "<|end|>"
BYTES = {f"<0x{number:02X}>": number for number in range(256)}


def fast(tokenizer: Tokenizer) -> Any:
    tokenizer.add_special_tokens([END])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def byte_level() -> Any:
    """As GPT-NeoX's: bytes, a merge, and two spaces as an added token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "th"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("  ", normalized=False)])
    return fast(tokenizer)


def byte_fallback() -> Any:
    """As Llama 2's: a sign for spaces, and bytes for what the vocabulary lacks."""
    letters = ["\u2581", "t", "h", "th", "\u00e9", "\u2581t"]
    vocabulary = BYTES | {letter: 256 + number for number, letter in enumerate(letters)}
    merges = [("t", "h"), ("\u2581", "t")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return fast(tokenizer)


def lowercase() -> Any:
    tokenizer = Tokenizer(models.WordLevel({"the": 0, "?": 1}, unk_token="?"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return fast(tokenizer)


EXACT = {"byte level": byte_level(), "byte fallback": byte_fallback()}


@pytest.mark.parametrize("kind", EXACT)
@given(text=st.text(st.sampled_from("th  é€x\n"), max_size=30) | st.text(max_size=30))
@max_examples(100)
def test_the_tokens_of_a_text_have_its_bytes(kind: str, text: str) -> None:
    tokenizer = EXACT[kind]
    text = text.replace(END, "").replace("\u2581", "")
    (sizes,) = token_bytes(tokenizer, len(tokenizer) + 9, [0.5])
    ids = tokenizer(text)["input_ids"]
    assert sizes[[*ids, tokenizer.eos_token_id]].sum() == len(text.encode())
    assert len(sizes) == len(tokenizer) + 9


def test_tokens_of_a_changed_text_have_their_sources_average() -> None:
    tokenizer = lowercase()
    sizes = token_bytes(tokenizer, 4, [3.5, 2.0])
    assert sizes.tolist() == [[3.5, 3.5, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]]
