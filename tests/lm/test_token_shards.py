"""Documents -> token shards: the very text; the same bytes however and from what they are made."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus import learn_tokenizer, sources, writer
from detalbert.corpus.documents import DocumentKind
from detalbert.corpus.reader import Shards
from detalbert.corpus.shards import is_held_out
from detalbert.errors import UserError
from detalbert.squad.tokenizer import named_tokenizer
from lm.corpus import load_tokenizer
from lm.data import LmText
from tests.conftest import max_examples
from tests.corpus.documents import byte_tokenizer, documents_config, read_back, write, write_lines
from tests.fakes.text import TOKENIZER, contexts, sums
from tests.fakes.text import write as write_examples

TEXTS = contexts(300)
ODD = ["\t", "\r\n", "    ", "\n\n", "😀", "é", "<|endoftext|>", "\x00", "a", "If x:", "\u2028"]
DOCUMENTS = st.lists(st.lists(st.sampled_from(ODD) | st.text(max_size=4), min_size=1), min_size=1)


def bins(folder: Path) -> dict[str, str]:
    return {name: value for name, value in sums(folder).items() if name.endswith(".bin")}


def write_texts(folder: Path, suffix: str = "", processes: int = 1) -> Path:
    """The shards of TEXTS in three files: shards end within files, files within shards."""
    (folder / "text").mkdir()
    for number, some in enumerate((TEXTS[:150], TEXTS[150:160], TEXTS[160:])):
        write_lines(folder / "text" / f"{number}.jsonl{suffix}", some)
    return write(folder / "text", folder, processes, shard_mib=0.01)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return write_texts(tmp_path_factory.mktemp("made"))


@given(DOCUMENTS.map(lambda texts: ["".join(text) for text in texts]), st.booleans())
@max_examples(25)
def test_shards_hold_the_very_text(tmp_path_factory, texts, zst):
    folder = tmp_path_factory.mktemp("text")
    path = write_lines(folder / ("a.jsonl" + ".zst" * zst), texts)
    shards = write(path, folder, shard_mib=5e-5, validation_fraction=0.0)
    wanted = [text for text in texts if text]
    assert read_back(shards, "train") == wanted
    counts = Shards(str(shards), "train", documents_config("generated", folder)).counts
    assert counts["documents"] == len(wanted)
    assert counts["text_bytes"] == len("".join(wanted).encode())


def test_some_documents_are_held_out(made, tmp_path):
    for split, out in (("train", False), ("validation", True)):
        assert read_back(made, split) == [text for text in TEXTS if is_held_out(text, 0.01) == out]
    assert len(list(made.glob("train-*.bin"))) > 3
    (tmp_path / "a.txt").write_text("Train.")
    (tmp_path / "b.txt").write_text("Held out.")  # documents of their own
    shards = write(tmp_path / "a.txt", tmp_path, validation_documents=str(tmp_path / "b.txt"))
    for split, text in (("train", "Train."), ("validation", "Held out.")):
        assert read_back(shards, split) == [text]


@pytest.mark.parametrize("suffix, processes", [("", 2), (".zst", 1), (".gz", 2)])
def test_compressed_and_by_more_processes_the_bytes_are_the_same(
    suffix, processes, made, tmp_path, monkeypatch, fork
):
    monkeypatch.setattr(writer, "_BATCH", 1_000)
    folder = write_texts(tmp_path, suffix, processes)
    assert bins(folder) == bins(made)
    assert not [path for path in tmp_path.rglob(".*.*") if path.is_file()]
    if suffix:  # a second start does not measure compressed files again
        (folder / "index.json").unlink()
        (folder / "jobs" / "00001.json").unlink()
        monkeypatch.setattr(sources, "_measure", lambda parts: 1 / 0)
        assert write(tmp_path / "text", tmp_path, processes, shard_mib=0.01) == folder
        assert bins(folder) == bins(made)


def test_ids_beyond_two_bytes(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("Some text.")
    monkeypatch.setattr(type(byte_tokenizer()), "__len__", lambda self: 70_000)
    shards = write(tmp_path / "a.txt", tmp_path, validation_fraction=0.0)
    monkeypatch.undo()
    assert read_back(shards, "train") == ["Some text."]
    columns = Shards(str(shards), "train", documents_config("generated", tmp_path)).columns(0)
    assert columns["tokens"].dtype == np.uint32


FEW = "tokens fill no window of 64 + 1; give more text"
BAD = [
    ("a.jsonl.gz", b"", f"data.documents: 0 {FEW}"),
    ("a.jsonl", b"\n\n", f"data.documents: 0 {FEW}"),
    ("a.txt", b"Short.", f"data.documents: 5 {FEW}, or"),
]


@pytest.mark.parametrize("name, content, said", BAD)
def test_too_little_text_is_one_line(name, content, said, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    given = {"tokenizer": own_copy(tmp_path), "validation_fraction": 0.0}
    with pytest.raises(UserError) as raised:
        load_text(vars(documents_config(tmp_path / "in", tmp_path, **given)), 64)
    assert said in str(raised.value)


def test_a_source_without_a_window_is_one_line(tmp_path):
    sources = [{"source": str(tmp_path / f"{name}.txt"), "name": name} for name in ("few", "many")]
    for each, words in zip(sources, (1, 200), strict=True):
        Path(each["source"]).write_text("Short. " * words)
    given = {"tokenizer": own_copy(tmp_path), "validation_documents": sources[1]["source"]}
    values = vars(documents_config(tmp_path, tmp_path, **given)) | {"documents": sources}
    with pytest.raises(UserError, match="source few fills no window of 64"):
        load_text(values, 64)


def load_text(values: dict[str, Any], length: int) -> LmText:
    return LmText.load(values, SimpleNamespace(max_seq_length=length, across_documents=False))


def own_copy(folder: Path) -> str:
    byte_tokenizer().save_pretrained(folder / "same")
    return str(folder / "same")


def test_shards_of_others_are_refused(made, tmp_path):
    data = {"shards": str(made), "tokenizer": own_copy(tmp_path)}
    text = load_text(data, 32)
    assert len(text.train) > len(text.validation) > 0
    windows = len(text.train)
    assert text.summary()[1:] == (windows, 32 * windows, len(text.validation))
    (tmp_path / "a.txt").write_text("A line. Another.")
    learn = {"tokenizer": None, "vocab_size": 300}
    other = load_tokenizer(documents_config(tmp_path / "a.txt", tmp_path, **learn), named_tokenizer)
    other.save_pretrained(tmp_path / "other")
    examples = str(write_examples(tmp_path / "a.txt", tmp_path))
    for changes, said in (
        ({"tokenizer": str(tmp_path / "other")}, "tokenizer: .*other' is not the one that the sh"),
        ({"tokenizer": TOKENIZER}, "data.tokenizer: .* has no eos_token"),
        ({"shards": examples}, "data.shards: .*: holds examples, and documents are"),
    ):
        with pytest.raises(UserError, match=said):
            load_text({**data, **changes}, 32)
    alone = documents_config(tmp_path / "a.txt", tmp_path, tokenizer=data["tokenizer"])
    with pytest.raises(UserError, match="another text, tokenizer or length"):
        writer.write_shards(alone, byte_tokenizer(), DocumentKind(0), str(made))
    # Nothing is held out of little text.
    with pytest.raises(UserError, match="data.validation_documents: 0 tokens .*or raise "):
        load_text(vars(alone), 3)


def test_an_own_tokenizer_loses_nothing(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl.zst", [*TEXTS, "".join(ODD)])
    data = documents_config(path, tmp_path, tokenizer=None, vocab_size=350)
    own = load_tokenizer(data, named_tokenizer)
    assert len(own) == 350 and own.eos_token == own.bos_token == "<|endoftext|>"
    assert load_tokenizer(data, named_tokenizer).name_or_path == own.name_or_path
    held_out: list[float] = []
    monkeypatch.setattr(learn_tokenizer, "own_tokenizer", lambda _, held, __: held_out.append(held))
    for validation in (None, str(path)):
        load_tokenizer(dataclasses.replace(data, validation_documents=validation), Mock())
    assert held_out == [data.validation_fraction, 0.0]
    for text in ["".join(ODD), "中文\x07"]:
        assert own.decode(own.backend_tokenizer.encode(text).ids) == text
