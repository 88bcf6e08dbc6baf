"""Tokens from distinct words: those of the ordinary call, or the ordinary call itself."""

from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from detalbert.squad import encoding
from detalbert.squad.encoding import Tokens, encode, encode_whole, treats_words_apart
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS, read_squad


def albert_like(*parts: Any, splitter: Any = None) -> tokenizers.Tokenizer:
    """A small Unigram tokenizer built as ALBERT's is, or of other parts."""
    pieces = "<unk> \u2581 \u2581the \u2581ri ver r i v e c a f s".split()
    scores = [(piece, -float(n)) for n, piece in enumerate(pieces)]
    backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=False))
    default = (normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents())
    backend.normalizer = normalizers.Sequence(list(parts or (*default, normalizers.Lowercase())))
    backend.pre_tokenizer = splitter or pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False)])
    return backend


# Marks, joiners, spaces of all kinds, letters that change their length, a token that takes spaces.
ODD = [*" \t\n\u00a0\u3000\u0301\u200d\u200b\u0000\u00ad\u00b4", "  ", "[MASK]"]
ODD += "river the Café ﬁ İ ß 가 東 ' '' , “ \U0001f468".split()
BACKENDS = {
    "albert": albert_like(),
    "nfc": albert_like(normalizers.NFC()),
    "bert": TOKENIZERS["bert"].backend_tokenizer,
}


def assert_equal(ours: Tokens, whole: Tokens) -> None:
    for a, b in zip(ours, whole, strict=True):
        assert np.array_equal(a, b) and a.dtype == b.dtype


@pytest.mark.parametrize("kind", sorted(BACKENDS))
@given(st.lists(st.lists(st.sampled_from(ODD), max_size=12).map("".join), min_size=1, max_size=9))
@max_examples(150)
def test_words_give_the_tokens_of_the_ordinary_call(kind: str, texts: list[str]) -> None:
    assert treats_words_apart(BACKENDS[kind])
    assert_equal(encoding._encode_words(BACKENDS[kind], texts), encode_whole(BACKENDS[kind], texts))


def test_lines_and_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(ODD[i:]) for i in range(len(ODD))]
    whole = encode_whole(BACKENDS["albert"], texts)
    monkeypatch.setattr(encoding, "_LINE", 5)
    monkeypatch.setattr(encoding, "_CHUNK", 3)
    assert_equal(encoding._encode_words(BACKENDS["albert"], texts), whole)


@pytest.mark.parametrize(
    "backend",
    [
        albert_like(splitter=pre_tokenizers.Metaspace()),  # keeps white space
        albert_like(
            splitter=pre_tokenizers.Sequence(
                [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]
            )
        ),
        albert_like(normalizers.Replace(" the", "x")),
        albert_like(normalizers.Replace(tokenizers.Regex("e r"), "x")),
        TOKENIZERS["roberta"].backend_tokenizer,
    ],
)
def test_tokenizers_that_look_beyond_a_word_get_the_ordinary_call(backend: Any) -> None:
    assert not treats_words_apart(backend)
    texts = ["the river  the", " river the ", ""]
    assert_equal(encode(backend, texts), encode_whole(backend, texts))


def test_a_sample_that_differs_brings_the_ordinary_call(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = albert_like(normalizers.Replace("r t", "x"))  # joins two words
    monkeypatch.setattr(encoding, "treats_words_apart", lambda _: True)
    texts = ["the river the"] * 40
    whole = encode_whole(backend, texts)
    assert not np.array_equal(encoding._encode_words(backend, texts).ids, whole.ids)
    assert_equal(encode(backend, texts), whole)


def test_all_real_texts(shared: Any) -> None:
    backend = AutoTokenizer.from_pretrained(str(shared / "albert-tokenizer")).backend_tokenizer
    assert treats_words_apart(backend)
    for name in ("train", "dev"):
        examples = read_squad(shared / "squad" / f"{name}.json")
        texts = [*dict.fromkeys(e.context for e in examples), *(e.question for e in examples)]
        assert_equal(encode(backend, texts), encode_whole(backend, texts))
