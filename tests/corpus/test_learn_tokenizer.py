"""Pieces learned from the text, and the real text that is on every machine."""

import re
from pathlib import Path
from typing import Any

import botocore
import pytest

from detalbert.corpus import api_text
from detalbert.corpus import learn_tokenizer as vocabulary
from detalbert.corpus.learn_tokenizer import own_tokenizer
from detalbert.corpus.pieces import is_held_out
from detalbert.corpus.sources import documents, open_text
from detalbert.errors import UserError
from detalbert.settings.text import parse_text_config
from detalbert.squad.encoding import treats_words_apart
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.masking import read_vocabulary

SERVICE = "sts"


def learn(text: Path, cache: Path, **more: Any) -> Path:
    values = {"text": str(text), "vocab_size": 400, "cache_dir": str(cache), **more}
    return own_tokenizer(parse_text_config(values), positions=128)


def sentences(count: int) -> list[str]:
    return [f"The {name} number {i} sails. It carries salt." for i in range(count)
            for name in ("Zanto", "Belmira")]  # fmt: skip


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
    assert [path.name for path in (tmp_path / "a").glob("tmp*")] == []


def test_pieces_are_what_the_other_rooms_expect(text: Path, tmp_path: Path) -> None:
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


def test_held_out_documents_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    lines = sentences(40)
    held = next(line for line in (f"Ⓩ {i}: ꙮ ꙮ ꙮ" for i in range(1000)) if is_held_out(line, 0.1))
    path.write_text("\n".join([*lines, *[held] * 50]))
    unseen = named_tokenizer(str(learn(path, tmp_path, validation_fraction=0.1)))
    seen = named_tokenizer(str(learn(path, tmp_path, validation_fraction=0.0)))
    assert "ꙮ" not in unseen.get_vocab() and "ꙮ" in seen.get_vocab()


def test_of_much_text_parts_from_all_over_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"part{i // 100} line {i}" for i in range(1000)))
    monkeypatch.setattr(vocabulary, "_PART", 1000)
    monkeypatch.setattr(vocabulary, "_SAMPLE", 8000)
    found = set(vocabulary._sample(open_text(str(path), "data.text", 1000, "train"), 0.0))
    assert sum(map(len, found)) < 9000
    assert {line.split()[0] for line in found} == {f"part{i}" for i in range(10)}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"text": "t.txt"}, "data.tokenizer: set either"),
        ({"text": "t.txt", "tokenizer": "x", "vocab_size": 400}, "data.tokenizer: set either"),
        ({"shards": "s", "vocab_size": 400}, "data.vocab_size: shards have"),
        ({"text": "t.txt", "vocab_size": 299}, "data.vocab_size: 299 must be at least 300"),
        ({"text": "t.txt", "vocab_size": 70_000}, "data.vocab_size: 70000 must be at least"),
    ],
)
def test_bad_values_name_their_key(values: Any, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        parse_text_config(values)


def test_a_folder_that_cannot_be_written(text: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the tokenizer"):
        learn(text, tmp_path / "file" / "cache")


def test_the_api_reference_is_prose_of_the_newest_versions() -> None:
    services = [path.parent.parent.name for path in api_text.find_services()]
    assert len(services) == len(set(services)) > 100 and services == sorted(services)
    path = next(path for path in api_text.find_services() if path.parent.parent.name == SERVICE)
    versions = sorted(folder.name for folder in path.parent.parent.iterdir() if folder.is_dir())
    assert path.parent.name == versions[-1]
    texts = api_text.read_service(path)
    assert len(texts) == len(set(texts)) > 20 and min(map(len, texts)) >= 200
    assert not any(re.search(r"</?\w+>|&\w+;|  |\n\n", text) for text in texts)
    assert any("temporary security credentials" in text for text in texts)


def test_the_api_reference_as_a_source() -> None:
    text = open_text("botocore", "data.text", 1 << 20, "train")
    assert text.fingerprint == f"botocore {botocore.__version__}"
    span = next(span for span in text.spans if f"/{SERVICE}/" in span.address)
    assert [document for document, _ in documents(span)] == api_text.read_service(
        Path(span.address.removeprefix("botocore:"))
    )
