"""Texts put together from words have the tokens of the ordinary call, byte-level tokenizers too."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from detalbert.corpus.learn_tokenizer import END_OF_TEXT, train_byte_bpe
from detalbert.corpus.words import ByteWordEncoder, WordEncoder, make_encoder
from detalbert.squad.tokenizer import named_tokenizer
from tests.conftest import max_examples
from tests.fakes.text import TOKENIZER, contexts

# Pieces of letters that Python's re does not know as such, too.
LEARN = ["it's we're I'll 12 1234 \t\tx = y;\n\n    z", "a中a t\u0250t " * 400]
BACKEND = train_byte_bpe([*contexts(60), *LEARN], 600)
BACKEND = BACKEND.backend_tokenizer
ODD = [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\x0b",
    "\x1c",
    "\x85",
    "\u00a0",
    "'",
    "'s",
    "'ll",
    "'S",
    "it",
]
ODD += [
    "the",
    "Ünï",
    "x\u0301",
    "²",
    "12",
    "٣",
    "½",
    "_",
    "-",
    "“",
    "…",
    "×",
    "😀",
    "中",
    "ª",
    "\x00",
]
ODD += [END_OF_TEXT, "<|endof", "\u2028", "\u0250", "\u024f", "\ufffd"]
TEXTS = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=3)), max_size=14).map("".join)


@given(st.lists(TEXTS, max_size=5), st.booleans())
@example([f"a{END_OF_TEXT}b"], False)
@example(["a中a", "t\u0250t"], False)
@max_examples(200)
def test_words_are_looked_up_as_they_would_be_encoded(texts: list[str], special: bool) -> None:
    backend = Tokenizer.from_str(BACKEND.to_str())
    backend.encode_special_tokens = special
    encoder = make_encoder(backend)
    assert isinstance(encoder, ByteWordEncoder)
    for _ in range(2):  # first with unknown words, then with known ones
        ids, lengths = encoder(texts)
        wanted = backend.encode_batch(texts, add_special_tokens=False)
        assert lengths.tolist() == [len(one) for one in wanted]
        assert ids.tolist() == [token for one in wanted for token in one.ids]
        if special:
            assert [backend.decode(one.ids, skip_special_tokens=False) for one in wanted] == texts


def change(**parts: Any) -> Tokenizer:
    backend = Tokenizer.from_str(BACKEND.to_str())
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


@pytest.mark.parametrize(
    "backend",
    [
        change(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        change(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        change(normalizer=normalizers.Lowercase()),
        named_tokenizer(TOKENIZER).backend_tokenizer,
    ],
)
def test_others_get_the_ordinary_call(backend: Any) -> None:
    assert type(make_encoder(backend)) is WordEncoder
