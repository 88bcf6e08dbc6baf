"""Texts put together from words have the tokens of the ordinary call; tokenizers are learned."""

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from detalbert.corpus import learn_tokenizer, words
from detalbert.corpus.learn_tokenizer import END_OF_TEXT, own_tokenizer, train_byte_bpe
from detalbert.corpus.sentences import split_sentences
from detalbert.corpus.shards import is_held_out
from detalbert.corpus.sources import open_text
from detalbert.corpus.words import WordEncoder, find_word_rule
from detalbert.errors import UserError
from detalbert.settings.text import SourceConfig, parse_text_config
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.masking import read_vocabulary
from tests.conftest import max_examples
from tests.fakes.damage import flip
from tests.fakes.questions import TOKENIZERS, read_squad
from tests.fakes.text import contexts


def check(encoder: WordEncoder, sentences: list[str]) -> list[tokenizers.Encoding]:
    """Assert that the encoder gives what the ordinary call does; return that."""
    ids, lengths = encoder(sentences)
    encodings = encoder.backend.encode_batch(sentences, add_special_tokens=False)
    assert lengths.tolist() == [len(encoding) for encoding in encodings]
    expected = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
    assert ids.tolist() == list(expected)
    return encodings


def test_words_are_looked_up_as_they_would_be_encoded(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real text, a real tokenizer, odd white space; and a memory that starts over."""
    monkeypatch.setattr(words, "_MOST_WORDS", 300)
    examples = read_squad(shared / "squad" / "dev.json")
    paragraphs = list(dict.fromkeys(example.context for example in examples))[::4]
    sentences = ["a  b", " a", "", "tab\tand\u00a0space", "[MASK] here", "caf\u00e9 \u0301x"]
    for paragraph in paragraphs:
        sentences += split_sentences(paragraph)

    encoder = WordEncoder(named_tokenizer(str(shared / "albert-tokenizer")).backend_tokenizer)

    assert encoder.word_rule == "apart"
    for begin in range(0, len(sentences), 100):
        check(encoder, sentences[begin : begin + 100])


def in_turn(splitter: Any) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), splitter])


def albert_like(*normalizing: Any, splitter: Any = None) -> tokenizers.Tokenizer:
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
def test_words_give_the_tokens_of_the_ordinary_call(kind: str, texts: list[str]) -> None:
    encoder = WordEncoder(BACKENDS[kind])
    assert encoder.word_rule == "apart"
    for _ in range(2):  # first with unknown words, then with known ones
        check(encoder, texts)


def test_sentences_with_something_odd_beside_a_space_stay_whole() -> None:
    """What a normalizer may join with the space, or drop: no tokenizer here does either."""
    odd = ["a \u0301b", "\u200da", "a\u0600 b", "a\u200bb", "a\u00adb", "a\x00b"]
    stay = WordEncoder(BACKENDS["bert"])._find_unsplit
    assert all(stay([*odd, "a\u0301 b"]))
    assert not any(stay(["a b", "caf\u00e9 \u201cb\u201d", "x\u6771y b"]))


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
def test_byte_level_words_are_looked_up(texts: list[str], special: bool) -> None:
    backend = Tokenizer.from_str(BACKEND.to_str())
    backend.encode_special_tokens = special
    encoder = WordEncoder(backend)
    assert encoder.word_rule == "bytes"
    for _ in range(2):  # first with unknown words, then with known ones
        encodings = check(encoder, texts)
        if special:
            for encoding, text in zip(encodings, texts, strict=True):
                assert backend.decode(encoding.ids, skip_special_tokens=False) == text


def change(**parts: Any) -> Tokenizer:
    """Return BACKEND with other components."""
    backend = Tokenizer.from_str(BACKEND.to_str())
    for name, component in parts.items():
        setattr(backend, name, component)
    return backend


OTHERS = [
    albert_like(splitter=pre_tokenizers.Metaspace()),  # keeps white space
    albert_like(splitter=in_turn(pre_tokenizers.Metaspace(prepend_scheme="first"))),
    albert_like(normalizers.Replace(" the", "x")),
    albert_like(normalizers.Replace(tokenizers.Regex("e r"), "x")),
    change(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    change(pre_tokenizer=pre_tokenizers.ByteLevel(False, use_regex=False)),
    change(normalizer=normalizers.Lowercase()),
]


@pytest.mark.parametrize("backend", OTHERS)
def test_words_are_found_only_where_that_is_known_to_be_right(backend: Any) -> None:
    assert find_word_rule(backend) == ""
    check(WordEncoder(backend), ["the river  the", " river the ", "", "The Cafe"])


def learn(text: Path, cache: Path, **more: Any) -> Path:
    values = {"text": str(text), "vocab_size": 400, "cache_dir": str(cache), **more}
    data = parse_text_config(values)
    return own_tokenizer(data, data.validation_fraction, positions=128)


SHIPS = []
for number in range(50):
    SHIPS.append(f"The Zanto {number} sails. It carries salt.")
    SHIPS.append(f"The Belmira {number} sails. It carries salt.")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SHIPS))
    return path


def test_the_same_text_gives_the_same_tokens(text: Path, tmp_path: Path) -> None:
    first = learn(text, tmp_path / "a")
    second = learn(text, tmp_path / "b")
    assert first.name == second.name
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()

    assert learn(text, tmp_path / "a") == first
    assert learn(text, tmp_path / "a", vocab_size=300) != first
    with pytest.raises(UserError, match="cannot write the tokenizer"):
        learn(text, text / "cache")
    assert not list((tmp_path / "a").glob(".detalbert-tmp-*"))


@pytest.mark.parametrize("name", ["tokenizer.json", "sums.json", "another's"])
def test_a_damaged_one_is_learned_anew(
    name: str, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    folder = learn(text, tmp_path)
    before = (folder / "tokenizer.json").read_bytes()
    if name == "another's":
        other = learn(text, tmp_path, vocab_size=300)
        shutil.rmtree(folder)
        other.rename(folder)
        name = "sums.json"
    else:
        flip(folder / name, random.Random(0))

    assert learn(text, tmp_path) == folder
    assert learn(text, tmp_path) == folder  # without another line

    line = f"{folder}: {name} is not as it was written; it is learned anew"
    assert caplog.messages == [line]
    assert (folder / "tokenizer.json").read_bytes() == before


def test_a_learned_tokenizer_is_like_alberts(text: Path, tmp_path: Path) -> None:
    tokenizer = named_tokenizer(str(learn(text, tmp_path)))

    assert len(tokenizer) <= 400
    assert tokenizer.model_max_length == 128
    assert tokenizer.tokenize("the ZANTO") == ["▁the", "▁zanto"]
    pair = tokenizer("The Zanto.", "Salt.", return_token_type_ids=True)
    tokens = tokenizer.convert_ids_to_tokens(pair["input_ids"])
    assert tokens[0] == "[CLS]"
    assert tokens.count("[SEP]") == 2
    first = tokens.index("[SEP]") + 1
    assert pair["token_type_ids"] == [0] * first + [1] * 3
    assert find_word_rule(tokenizer.backend_tokenizer) == "apart"
    vocabulary = read_vocabulary(tokenizer)
    marks = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]", "[MASK]"])
    assert [*vocabulary.prefix, *vocabulary.suffix, vocabulary.mask] == marks


def test_held_out_documents_are_not_read(tmp_path: Path) -> None:
    lines = (f"Ⓩ {number}: ꙮ ꙮ ꙮ" for number in range(1000))
    held_out = next(line for line in lines if is_held_out(line, 0.1))
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*SHIPS, *[held_out] * 50]))

    without = named_tokenizer(str(learn(path, tmp_path, validation_fraction=0.1)))
    with_it = named_tokenizer(str(learn(path, tmp_path, validation_fraction=0.0)))

    assert "ꙮ" not in without.get_vocab()
    assert "ꙮ" in with_it.get_vocab()


def test_a_sample_of_much_text_is_spread_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"part{number // 100} line {number}" for number in range(1000)))
    monkeypatch.setattr(learn_tokenizer, "_PART", 1000)
    monkeypatch.setattr(learn_tokenizer, "_SAMPLE", 8000)
    parts = open_text(SourceConfig(str(path)), "data.text", "train").parts

    sample = set(learn_tokenizer._sample(parts, path.stat().st_size, 0.0, tmp_path))

    assert sum(len(line) for line in sample) < 9000
    assert {line.split()[0] for line in sample} == {f"part{number}" for number in range(10)}
