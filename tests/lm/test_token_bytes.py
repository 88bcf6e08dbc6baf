"""The bytes of text that tokens stand for, by kind of tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lm.token_bytes import token_bytes
from tests.conftest import max_examples

END = "<|end|>"
SPACE = "\u2581"


def as_fast(tokenizer):
    tokenizer.add_special_tokens([END, "<|pad|>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def byte_level():
    """As GPT-NeoX's: bytes, a merge, and two spaces as an added token."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("  ", normalized=False)])
    return as_fast(tokenizer)


def byte_fallback():
    """As Llama 2's: a sign for spaces, and bytes for what the vocabulary lacks."""
    tokens = [f"<0x{number:02X}>" for number in range(256)]
    tokens += [SPACE, "t", "h", "th", "\u00e9", f"{SPACE}t"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[("t", "h"), (SPACE, "t")],
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
        ]
    )
    return as_fast(tokenizer)


def lowercase():
    """Its decoder does not give a text's bytes back."""
    tokenizer = Tokenizer(models.WordLevel({"the": 0, "?": 1}, unk_token="?"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return as_fast(tokenizer)


EXACT = {"byte level": byte_level(), "byte fallback": byte_fallback()}


@pytest.mark.parametrize("kind", EXACT)
@given(text=st.text(st.sampled_from("th  é€x\n"), max_size=30) | st.text(max_size=30))
@max_examples(100)
def test_the_tokens_of_a_text_have_its_bytes(kind, text):
    tokenizer = EXACT[kind]
    text = text.replace(END, "").replace(SPACE, "")
    rows = len(tokenizer) + 9  # a model may have more than the vocabulary
    (sizes,) = token_bytes(tokenizer, rows, [0.5])
    assert len(sizes) == rows
    ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    assert sizes[ids].sum() == len(text.encode())


def test_tokens_of_a_changed_text_have_their_sources_average():
    tokenizer = lowercase()
    sizes = token_bytes(tokenizer, 4, [3.5, 2.0])
    assert sizes.tolist() == [[3.5, 3.5, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]]
