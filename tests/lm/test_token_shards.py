"""Token shards of a language model: the very text; what is refused; an own tokenizer."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus.documents import DocumentKind
from detalbert.corpus.read import Shards
from detalbert.corpus.write import write_shards
from detalbert.errors import UserError
from detalbert.squad.tokenizer import named_tokenizer
from lm.corpus import load_tokenizer
from lm.data import LmText
from lm.hparams import LmHParams
from tests.conftest import max_examples
from tests.corpus.documents import byte_tokenizer, documents_config, read_back, write, write_lines
from tests.fakes.text import TOKENIZER, contexts
from tests.fakes.text import write as write_examples

TEXTS = contexts(300)
ODD = ["\t", "\r\n", "    ", "\n\n", "😀", "é", "<|endoftext|>", "\x00", "a", "If x:", "\u2028"]
ODD_TEXTS = st.lists(st.sampled_from(ODD) | st.text(max_size=4), min_size=1).map("".join)


def read_shards(shards: Path, folder: Path) -> Shards:
    return Shards(str(shards), "train", documents_config("generated", folder))


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    """The shards of TEXTS."""
    folder = tmp_path_factory.mktemp("made")
    return write(write_lines(folder / "a.jsonl", TEXTS), folder, shard_mib=0.01)


@given(st.lists(ODD_TEXTS, min_size=1), st.sampled_from(["a.jsonl", "a.jsonl.zst"]))
@max_examples(25)
def test_shards_hold_the_very_text(tmp_path_factory, texts, name):
    folder = tmp_path_factory.mktemp("text")
    path = write_lines(folder / name, texts)

    shards = write(path, folder, shard_mib=5e-5, validation_fraction=0.0)

    expected = [text for text in texts if text and not text.isspace()]
    assert read_back(shards, "train") == expected
    read = read_shards(shards, folder)
    assert read.count("documents") == len(expected)
    assert read.count("text_bytes") == len("".join(expected).encode())


def test_validation_documents_of_their_own_are_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("Train.")
    (tmp_path / "b.txt").write_text("Held out.")
    shards = write(tmp_path / "a.txt", tmp_path, validation_documents=str(tmp_path / "b.txt"))
    assert read_back(shards, "train") == ["Train."]
    assert read_back(shards, "validation") == ["Held out."]


def test_ids_beyond_two_bytes(tmp_path):
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.add_tokens([f"<{number}>" for number in range(1 << 16)])
    text = tmp_path / "a.txt"
    text.write_text("Some<65535>")
    config = documents_config(text, tmp_path, validation_fraction=0.0)
    shards = Path(write_shards(config, DocumentKind(tokenizer)))
    tokens = read_shards(shards, tmp_path).columns(0)["tokens"]
    assert tokens.dtype == np.uint32
    assert tokens[-2] == len(tokenizer) - 1
    assert tokenizer.decode(tokens[:-1].tolist()) == "Some<65535>"


def load_text(values: dict[str, Any], length: int) -> LmText:
    return LmText.load(
        values, LmHParams(model_config={"model_type": "gpt2"}, max_seq_length=length)
    )


def own_copy(folder: Path) -> str:
    """A folder with the byte-level tokenizer."""
    byte_tokenizer().save_pretrained(folder / "same")
    return str(folder / "same")


FILLS_NONE = "tokens fill no window of 64 + 1; give more text"
TOO_LITTLE = [
    ("a.jsonl.gz", b"", f"data.documents: 0 {FILLS_NONE}"),
    ("a.jsonl", b"\n\n", f"data.documents: 0 {FILLS_NONE}"),
    ("a.txt", b"Short.", f"data.documents: 5 {FILLS_NONE}, or"),
]


@pytest.mark.parametrize("name, content, problem", TOO_LITTLE)
def test_too_little_text_is_one_line(name, content, problem, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / name).write_bytes(content)
    config = documents_config(
        folder, tmp_path, tokenizer=own_copy(tmp_path), validation_fraction=0.0
    )
    with pytest.raises(UserError) as raised:
        load_text(vars(config), 64)
    assert problem in str(raised.value)


def test_a_source_without_a_window_is_one_line(tmp_path):
    few = tmp_path / "few.txt"
    few.write_text("Short. ")
    many = tmp_path / "many.txt"
    many.write_text("Short. " * 200)
    config = documents_config(
        tmp_path, tmp_path, tokenizer=own_copy(tmp_path), validation_documents=str(many)
    )
    documents = [
        {"source": str(few), "name": "few"},
        {"source": str(many), "name": "many"},
    ]
    with pytest.raises(UserError, match="source few fills no window of 64"):
        load_text({**vars(config), "documents": documents}, 64)


def test_shards_are_taken_as_they_are(shards, tmp_path):
    text = load_text({"shards": str(shards), "tokenizer": own_copy(tmp_path)}, 32)
    windows = len(text.train)
    summary = text.summary()
    assert windows > len(text.validation) > 0
    assert summary.windows == windows
    assert summary.tokens == 32 * windows
    assert summary.validation_windows == len(text.validation)


def test_shards_of_others_are_refused(shards, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("A line. Another.")
    learn = documents_config(text, tmp_path, tokenizer=None, vocab_size=300)
    other = tmp_path / "other"
    load_tokenizer(learn, named_tokenizer).save_pretrained(other)
    examples = write_examples(text, tmp_path)
    data = {"shards": str(shards), "tokenizer": own_copy(tmp_path)}

    with pytest.raises(UserError, match="tokenizer: .*other' is not that of the sh"):
        load_text({**data, "tokenizer": str(other)}, 32)
    with pytest.raises(UserError, match="data.tokenizer: .* has no eos_token"):
        load_text({**data, "tokenizer": TOKENIZER}, 32)
    with pytest.raises(UserError, match="data.shards: .*: holds examples, and documents are"):
        load_text({**data, "shards": str(examples)}, 32)

    config = documents_config(text, tmp_path, tokenizer=data["tokenizer"])
    with pytest.raises(UserError, match="another text, tokenizer or length"):
        write_shards(config, DocumentKind(byte_tokenizer()), str(shards))
    # Nothing is held out of little text.
    with pytest.raises(UserError, match="data.validation_documents: 0 tokens .*or raise "):
        load_text(vars(config), 3)


def test_an_own_tokenizer_loses_nothing(tmp_path):
    path = write_lines(tmp_path / "a.jsonl.zst", [*TEXTS, "".join(ODD)])
    data = documents_config(path, tmp_path, tokenizer=None, vocab_size=350)
    tokenizer = load_tokenizer(data, named_tokenizer)
    assert len(tokenizer) == 350
    assert tokenizer.eos_token == tokenizer.bos_token == "<|endoftext|>"
    assert load_tokenizer(data, named_tokenizer).name_or_path == tokenizer.name_or_path
    for text in ["".join(ODD), "中文\x07"]:
        ids = tokenizer.backend_tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text
