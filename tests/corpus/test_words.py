"""Sentences put together from words have the tokens of the ordinary call."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from detalbert.corpus import words
from detalbert.corpus.sentences import split_sentences
from detalbert.corpus.words import treats_words_apart
from detalbert.squad.tokenizer import named_tokenizer
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS
from tests.fakes.text import TOKENIZER


def check(encoder: words.WordEncoder, sentences: list[str]) -> None:
    ids, lengths = encoder(sentences)
    wanted = encoder.backend.encode_batch(sentences, add_special_tokens=False)
    assert lengths.tolist() == [len(one) for one in wanted]
    assert ids.tolist() == [token for one in wanted for token in one.ids]


def test_words_are_looked_up_as_they_would_be_encoded(shared: Path, monkeypatch: Any) -> None:
    """Real text, a real tokenizer, odd white space; and a memory that starts over."""
    monkeypatch.setattr(words, "_MOST_WORDS", 300)
    squad = json.loads((shared / "squad" / "dev.json").read_text())["data"]
    text = [p["context"] for article in squad for p in article["paragraphs"]][::4]
    sentences = [sentence for one in text for sentence in split_sentences(one)]
    sentences += ["a  b", " a", "", "tab\tand\u00a0space", "[MASK] here", "caf\u00e9 \u0301x"]
    encoder = words.WordEncoder(named_tokenizer(str(shared / "albert-tokenizer")).backend_tokenizer)
    assert encoder.apart
    for at in range(0, len(sentences), 100):
        check(encoder, sentences[at : at + 100])


ODD_WORDS = ["a", "b.", "(c)", "[MASK]", "<unk>x", "\u2581d", "caf\u00e9", "\u0301", "\u00a0"]
ODD_WORDS += ["\t", "-", ""]


@given(st.lists(st.lists(st.sampled_from(ODD_WORDS), max_size=6).map(" ".join), max_size=6))
@max_examples(300)
def test_a_tokenizer_that_keeps_the_space_gives_the_same(sentences: list[str]) -> None:
    """The embedded one: Metaspace alone, so that the tokens of a word hold the space before it."""
    encoder = words.WordEncoder(named_tokenizer(TOKENIZER).backend_tokenizer)
    assert encoder.marks
    for _ in range(2):  # first with unknown words, then with known ones
        check(encoder, sentences)


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


@pytest.mark.parametrize("kind", sorted(BACKENDS))
@given(st.lists(st.lists(st.sampled_from(ODD), max_size=12).map("".join), min_size=1, max_size=9))
@max_examples(150)
def test_words_give_the_tokens_of_the_ordinary_call(kind: str, texts: list[str]) -> None:
    encoder = words.WordEncoder(BACKENDS[kind])
    assert treats_words_apart(BACKENDS[kind]) and encoder.apart
    check(encoder, texts)


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
    check(words.WordEncoder(backend), ["the river  the", " river the ", ""])


def test_sentences_with_something_odd_beside_a_space_stay_whole() -> None:
    """What a normalizer may join with the space, or drop: no tokenizer here does either."""
    odd = ["a \u0301b", "\u200da", "a\u0600 b", "a\u200bb", "a\u00adb", "a\x00b"]
    stay = words.WordEncoder(BACKENDS["bert"])._stay_whole
    assert stay([*odd, "a b", "caf\u00e9 \u201cb\u201d", "a\u0301 b", "x\u6771y b"]) == [
        *[True] * 6, *[False] * 2, True, False,
    ]  # fmt: skip
