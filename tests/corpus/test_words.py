"""Sentences put together from words have the tokens of the ordinary call."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus import words
from detalbert.corpus.sentences import split_sentences
from detalbert.squad.tokenizer import named_tokenizer
from tests.conftest import max_examples
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
