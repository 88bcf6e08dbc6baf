"""Texts put together from words have the tokens of the ordinary call; tokenizers are learned."""

import itertools

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from detalbert.corpus import words
from detalbert.corpus.sentences import split_sentences
from detalbert.corpus.vocabulary import END_OF_TEXT, train_byte_bpe
from detalbert.corpus.words import WordEncoder
from detalbert.squad.encoding import named_tokenizer
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS, read_squad
from tests.fakes.text import contexts


def check(encoder, sentences):
    """Assert that the encoder gives what the ordinary call does; return that."""
    ids, lengths = encoder(sentences)
    encodings = encoder.backend.encode_batch(sentences, add_special_tokens=False)
    assert lengths.tolist() == [len(encoding) for encoding in encodings]
    expected = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
    assert ids.tolist() == list(expected)
    return encodings


def test_words_are_looked_up_as_they_would_be_encoded(golden_dir, monkeypatch):
    """Real text, a real tokenizer, odd white space; and a memory that starts over."""
    monkeypatch.setattr(words, "_MOST_TOKENS", 900)
    examples = read_squad(golden_dir / "dev.json")
    paragraphs = list(dict.fromkeys(example.context for example in examples))[::4]
    sentences = ["a  b", " a", "", "tab\tand\u00a0space", "[MASK] here", "caf\u00e9 \u0301x"]
    for paragraph in paragraphs:
        sentences += split_sentences(paragraph)

    encoder = WordEncoder(named_tokenizer(str(golden_dir / "albert-tokenizer")).backend_tokenizer)

    assert encoder.word_rule == "apart"
    for begin in range(0, len(sentences), 100):
        check(encoder, sentences[begin : begin + 100])


def in_turn(splitter):
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), splitter])


def albert_like(*normalizing, splitter=None):
    """Return a small Unigram tokenizer built as ALBERT's is, or of other normalizers."""
    tokens = "<unk> \u2581 \u2581the \u2581ri ver r i v e c a f s".split()
    scores = [(token, -float(number)) for number, token in enumerate(tokens)]
    backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=False))
    alberts = [
        normalizers.Replace("''", '"'),
        normalizers.NFKD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
    ]
    backend.normalizer = normalizers.Sequence(list(normalizing) or alberts)
    backend.pre_tokenizer = splitter or in_turn(pre_tokenizers.Metaspace())
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False)])
    return backend


# Marks, joiners, spaces of all kinds, letters that change their length, a token that takes spaces.
ODD = [*" \t\n\u00a0\u3000\u0301\u200d\u200b\u0000\u00ad\u00b4", "  ", "[MASK]", "<unk>x"]
ODD += "a b. (c) \u2581d river the Café ﬁ İ ß 가 東 ' '' , “ - \U0001f468".split()
BACKENDS = {
    "albert": albert_like(),
    "nfc": albert_like(normalizers.NFC()),
    "bert": TOKENIZERS["bert"].backend_tokenizer,
}


@pytest.mark.parametrize("kind", BACKENDS)
@given(st.lists(st.lists(st.sampled_from(ODD), max_size=12).map("".join), min_size=1, max_size=9))
@example(["river [MASK] the", "a [MASK]", "b.  <unk>x"])
@max_examples(80)
def test_words_give_the_tokens_of_the_ordinary_call(kind, texts):
    encoder = WordEncoder(BACKENDS[kind])
    assert encoder.word_rule == "apart"
    for _ in range(2):  # first with unknown words, then with known ones
        check(encoder, texts)


# Pieces of letters that Python's re does not know as such, too.
LEARN = ["it's we're I'll 12 1234 \t\tx = y;\n\n    z", "a中a t\u0250t " * 400]
BACKEND = train_byte_bpe([*contexts(60), *LEARN], 600).backend_tokenizer
BYTES = list(" \n\t\x0b\x1c\x85\u00a0'²٣½_-“…×😀中ª\x00\u2028\u0250\u024f\ufffd")
BYTES += ["  ", "\r\n", *"'s 'll 'S it the Ünï x\u0301 12 <|endof".split(), END_OF_TEXT]
PIECES = st.one_of(st.sampled_from(BYTES), st.text(max_size=3))


@given(st.lists(st.lists(PIECES, max_size=14).map("".join), max_size=5), st.booleans())
@example([f"a{END_OF_TEXT}b"], False)
@example(["a中a", "t\u0250t"], False)
@max_examples(80)
def test_byte_level_words_are_looked_up(texts, special):
    backend = Tokenizer.from_str(BACKEND.to_str())
    backend.encode_special_tokens = special
    encoder = WordEncoder(backend)
    assert encoder.word_rule == "bytes"
    for _ in range(2):  # first with unknown words, then with known ones
        encodings = check(encoder, texts)
        if special:
            for encoding, text in zip(encodings, texts, strict=True):
                assert backend.decode(encoding.ids, skip_special_tokens=False) == text
