"""Texts put together from words have the tokens of the ordinary call; tokenizers are learned."""

import json
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
from tests.fakes.questions import TOKENIZERS
from tests.fakes.text import contexts


def check(encoder: WordEncoder, sentences: list[str]) -> list[tokenizers.Encoding]:
    """That the encoder gives what the ordinary call does, which is returned."""
    ids, lengths = encoder(sentences)
    wanted = encoder.backend.encode_batch(sentences, add_special_tokens=False)
    assert lengths.tolist() == [len(one) for one in wanted]
    assert ids.tolist() == [token for one in wanted for token in one.ids]
    return wanted


def test_words_are_looked_up_as_they_would_be_encoded(shared: Path, monkeypatch: Any) -> None:
    """Real text, a real tokenizer, odd white space; and a memory that starts over."""
    monkeypatch.setattr(words, "_MOST_WORDS", 300)
    squad = json.loads((shared / "squad" / "dev.json").read_text())["data"]
    text = [p["context"] for article in squad for p in article["paragraphs"]][::4]
    sentences = [sentence for one in text for sentence in split_sentences(one)]
    sentences += ["a  b", " a", "", "tab\tand\u00a0space", "[MASK] here", "caf\u00e9 \u0301x"]
    encoder = WordEncoder(named_tokenizer(str(shared / "albert-tokenizer")).backend_tokenizer)
    assert encoder.word_rule == "apart"
    for at in range(0, len(sentences), 100):
        check(encoder, sentences[at : at + 100])


def in_turn(splitter: Any) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), splitter])


def albert_like(*parts: Any, splitter: Any = None) -> tokenizers.Tokenizer:
    """A small Unigram tokenizer built as ALBERT's is, or of other parts."""
    pieces = "<unk> \u2581 \u2581the \u2581ri ver r i v e c a f s".split()
    scores = [(piece, -float(n)) for n, piece in enumerate(pieces)]
    backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=False))
    default = (normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents())
    backend.normalizer = normalizers.Sequence(list(parts or (*default, normalizers.Lowercase())))
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
        wanted = check(encoder, texts)
        if special:
            assert [backend.decode(one.ids, skip_special_tokens=False) for one in wanted] == texts


def change(**parts: Any) -> Tokenizer:
    backend = Tokenizer.from_str(BACKEND.to_str())
    for name, part in parts.items():
        setattr(backend, name, part)
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


SHIPS = [f"The {s} {i} sails. It carries salt." for i in range(50) for s in ("Zanto", "Belmira")]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SHIPS))
    return path


def test_the_same_text_gives_the_same_pieces(text: Path, tmp_path: Path) -> None:
    one, other = learn(text, tmp_path / "a"), learn(text, tmp_path / "b")
    assert (one / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
    assert one.name == other.name and learn(text, tmp_path / "a") == one
    assert learn(text, tmp_path / "a", vocab_size=300) != one
    with pytest.raises(UserError, match="cannot write the tokenizer"):
        learn(text, text / "cache")
    assert not list((tmp_path / "a").glob(".detalbert-tmp-*"))


@pytest.mark.parametrize("name", ["tokenizer.json", "sums.json"])
def test_a_damaged_one_is_learned_anew(name: str, text: Path, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("WARNING")
    folder = learn(text, tmp_path)
    before = (folder / "tokenizer.json").read_bytes()
    flip(folder / name, random.Random(0))
    assert learn(text, tmp_path) == folder and learn(text, tmp_path) == folder
    line = f"{folder}: {name} is not as it was written; it is learned anew"
    assert caplog.messages == [line]
    assert (folder / "tokenizer.json").read_bytes() == before


def test_one_of_another_text_is_learned_anew(text: Path, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("WARNING")
    folder = learn(text, tmp_path)
    before = (folder / "tokenizer.json").read_bytes()
    other = learn(text, tmp_path, vocab_size=300)
    shutil.rmtree(folder)
    other.rename(folder)
    assert learn(text, tmp_path) == folder
    line = f"{folder}: sums.json is not as it was written; it is learned anew"
    assert caplog.messages == [line] and (folder / "tokenizer.json").read_bytes() == before


def test_a_learned_tokenizer_is_like_alberts(text: Path, tmp_path: Path) -> None:
    tokenizer = named_tokenizer(str(learn(text, tmp_path)))
    assert len(tokenizer) <= 400 and tokenizer.model_max_length == 128
    assert tokenizer.tokenize("the ZANTO") == ["▁the", "▁zanto"]
    pair = tokenizer("The Zanto.", "Salt.", return_token_type_ids=True)
    names = tokenizer.convert_ids_to_tokens(pair["input_ids"])
    assert names[0] == "[CLS]" and names.count("[SEP]") == 2
    assert pair["token_type_ids"] == [0] * (names.index("[SEP]") + 1) + [1] * 3
    assert find_word_rule(tokenizer.backend_tokenizer) == "apart"
    special, marks = read_vocabulary(tokenizer), ["[CLS]", "[SEP]", "[MASK]"]
    assert [special.cls, special.sep, special.mask] == tokenizer.convert_tokens_to_ids(marks)


def test_held_out_documents_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    held = next(line for line in (f"Ⓩ {i}: ꙮ ꙮ ꙮ" for i in range(1000)) if is_held_out(line, 0.1))
    path.write_text("\n".join([*SHIPS, *[held] * 50]))
    unseen = named_tokenizer(str(learn(path, tmp_path, validation_fraction=0.1)))
    seen = named_tokenizer(str(learn(path, tmp_path, validation_fraction=0.0)))
    assert "ꙮ" not in unseen.get_vocab() and "ꙮ" in seen.get_vocab()


def test_a_sample_of_much_text_is_spread_over_it(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"part{i // 100} line {i}" for i in range(1000)))
    monkeypatch.setattr(learn_tokenizer, "_PART", 1000)
    monkeypatch.setattr(learn_tokenizer, "_SAMPLE", 8000)
    parts = open_text(SourceConfig(str(path)), "data.text", "train").parts
    size = path.stat().st_size
    found = set(learn_tokenizer._sample(parts, size, 0.0, tmp_path))
    assert sum(map(len, found)) < 9000
    assert {line.split()[0] for line in found} == {f"part{i}" for i in range(10)}
