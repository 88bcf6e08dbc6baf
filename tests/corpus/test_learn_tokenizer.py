"""Tokenizers learned from text."""

import random
from pathlib import Path
from typing import Any

import pytest

from detalbert.corpus import learn_tokenizer
from detalbert.corpus.chunks import is_held_out
from detalbert.corpus.learn_tokenizer import own_tokenizer
from detalbert.corpus.sources import open_text, read_documents
from detalbert.corpus.words import treats_words_apart
from detalbert.errors import UserError
from detalbert.settings.text import parse_text_config
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.masking import read_vocabulary
from tests.fakes.damage import flip


def learn(text: Path, cache: Path, **more: Any) -> Path:
    values = {"text": str(text), "vocab_size": 400, "cache_dir": str(cache), **more}
    return own_tokenizer(parse_text_config(values), positions=128)


def sentences(count: int) -> list[str]:
    ships = [f"{name} number {i}" for i in range(count) for name in ("Zanto", "Belmira")]
    return [f"The {ship} sails. It carries salt." for ship in ships]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(sentences(50)))
    return path


def test_the_same_text_gives_the_same_pieces(text: Path, tmp_path: Path) -> None:
    one, other = learn(text, tmp_path / "a"), learn(text, tmp_path / "b")
    assert (one / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
    assert one.name == other.name and learn(text, tmp_path / "a") == one
    assert learn(text, tmp_path / "a", vocab_size=300) != one
    assert [path.name for path in (tmp_path / "a").glob(".*.writing-*")] == []


@pytest.mark.parametrize("name", ["tokenizer.json", "sums.json"])
def test_a_damaged_one_is_learned_anew(name: str, text: Path, tmp_path: Path, caplog: Any) -> None:
    folder = learn(text, tmp_path)
    before = (folder / "tokenizer.json").read_bytes()
    flip(folder / name, random.Random(0))
    assert learn(text, tmp_path) == folder and learn(text, tmp_path) == folder
    line = f"{folder}: {name} is not as it was written; it is learned anew"
    assert caplog.messages == [line]
    (folder / "sums.json").unlink()  # of commit 596c121
    assert learn(text, tmp_path) == folder and caplog.messages == [line]
    assert (folder / "tokenizer.json").read_bytes() == before


def test_a_learned_tokenizer_is_like_alberts(text: Path, tmp_path: Path) -> None:
    tokenizer = named_tokenizer(str(learn(text, tmp_path)))
    assert len(tokenizer) <= 400 and tokenizer.model_max_length == 128
    assert tokenizer.tokenize("the ZANTO") == ["▁the", "▁zanto"]
    pair = tokenizer("The Zanto.", "Salt.", return_token_type_ids=True)
    names = tokenizer.convert_ids_to_tokens(pair["input_ids"])
    assert names[0] == "[CLS]" and names.count("[SEP]") == 2
    assert pair["token_type_ids"] == [0] * (names.index("[SEP]") + 1) + [1] * 3
    assert treats_words_apart(tokenizer.backend_tokenizer)
    special = read_vocabulary(tokenizer)
    assert (special.cls, special.sep, special.mask) == tuple(
        tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]", "[MASK]"])
    )


def test_held_out_documents_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    lines = sentences(40)
    held = next(line for line in (f"Ⓩ {i}: ꙮ ꙮ ꙮ" for i in range(1000)) if is_held_out(line, 0.1))
    path.write_text("\n".join([*lines, *[held] * 50]))
    unseen = named_tokenizer(str(learn(path, tmp_path, validation_fraction=0.1)))
    seen = named_tokenizer(str(learn(path, tmp_path, validation_fraction=0.0)))
    assert "ꙮ" not in unseen.get_vocab() and "ꙮ" in seen.get_vocab()


def test_a_sample_of_much_text_is_spread_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"part{i // 100} line {i}" for i in range(1000)))
    monkeypatch.setattr(learn_tokenizer, "_PART", 1000)
    monkeypatch.setattr(learn_tokenizer, "_SAMPLE", 8000)
    parts, size = open_text(str(path), "data.text", 1000, "train").parts, path.stat().st_size
    found = set(learn_tokenizer._sample(parts, size, 0.0, read_documents))
    assert sum(map(len, found)) < 9000
    assert {line.split()[0] for line in found} == {f"part{i}" for i in range(10)}


def test_a_folder_that_cannot_be_written(text: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the tokenizer"):
        learn(text, tmp_path / "file" / "cache")
