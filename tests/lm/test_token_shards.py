"""Documents -> token shards: the very text; the same bytes however and from what they are made."""

import dataclasses
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lm.data
from detalbert.corpus import chunks, writer
from detalbert.corpus.chunks import is_held_out
from detalbert.corpus.reader import Shards
from detalbert.errors import UserError
from lm.data import load_text, load_tokenizer, write_documents
from lm.settings import parse_documents_config
from tests.conftest import max_examples
from tests.corpus.documents import byte_tokenizer, documents_config, read_back, write, write_lines
from tests.fakes.text import TOKENIZER, contexts, sums

TEXTS = contexts(400)
ODD = ["\t", "\r\n", "    ", "\n\n", "😀", "é", "<|endoftext|>", "\x00", "a", "If x:", "\u2028"]
DOCUMENTS = st.lists(st.lists(st.sampled_from(ODD) | st.text(max_size=4), min_size=1), min_size=1)


def bins(folder: Path) -> dict[str, str]:
    return {name: value for name, value in sums(folder).items() if name.endswith(".bin")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards of TEXTS as JSON lines, from one process."""
    folder = tmp_path_factory.mktemp("made")
    return write(write_lines(folder / "a.jsonl", TEXTS), folder, shard_mib=0.01)


@given(DOCUMENTS.map(lambda texts: ["".join(text) for text in texts]), st.booleans())
@max_examples(60)
def test_shards_hold_the_very_text(tmp_path_factory: Any, texts: list[str], zst: bool) -> None:
    folder = tmp_path_factory.mktemp("text")
    path = write_lines(folder / ("a.jsonl" + ".zst" * zst), texts)
    shards = write(path, folder, shard_mib=1e-5, validation_fraction=0.0)
    wanted = [text for text in texts if text]
    assert read_back(shards, "train") == wanted
    counts = Shards(str(shards), "train", documents_config("generated", folder)).counts
    assert counts["documents"] == len(wanted)
    assert counts["text_bytes"] == len("".join(wanted).encode())


def test_some_documents_are_held_out(made: Path) -> None:
    for split, out in (("train", False), ("validation", True)):
        assert read_back(made, split) == [text for text in TEXTS if is_held_out(text, 0.01) == out]
    assert len(list(made.glob("train-*.bin"))) > 3


def test_documents_of_their_own_are_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Train.")
    (tmp_path / "b.txt").write_text("Held out.")
    shards = write(tmp_path / "a.txt", tmp_path, validation_documents=str(tmp_path / "b.txt"))
    assert read_back(shards, "train") == ["Train."]
    assert read_back(shards, "validation") == ["Held out."]


@pytest.mark.parametrize("suffix, processes", [("", 2), (".zst", 1), (".gz", 2)])
def test_compressed_and_by_more_processes_the_bytes_are_the_same(
    suffix: str,
    processes: int,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fork: None,
) -> None:
    """In chunks of another size, too."""
    monkeypatch.setattr(chunks, "_LEAST", 3_000)
    monkeypatch.setattr(chunks, "_BATCH", 1_000)
    path = write_lines(tmp_path / f"a.jsonl{suffix}", TEXTS)
    assert bins(write(path, tmp_path, processes, shard_mib=0.01)) == bins(made)
    assert not [path for path in tmp_path.rglob(".*.*") if path.is_file()]


def test_a_folder_of_compressed_files_is_as_one_of_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: None
) -> None:
    """Shards end within files, files within shards; each file is read by one process at a time."""
    monkeypatch.setattr(chunks, "_LEAST", 2_000)
    found = []
    for suffix in ("", ".zst"):
        (tmp_path / f"text{suffix}").mkdir()
        for number, cut in enumerate((slice(0, 150), slice(150, 160), slice(160, 161))):
            path = tmp_path / f"text{suffix}" / f"{number}.jsonl{suffix}"
            write_lines(path, TEXTS[cut])
        found.append(write(tmp_path / f"text{suffix}", tmp_path, 2, shard_mib=0.004))
    assert bins(found[0]) == bins(found[1]) and len(bins(found[0])) > 4


def test_a_second_start_does_not_measure_compressed_files_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "a.jsonl.zst", TEXTS)
    folder = write(path, tmp_path, shard_mib=0.01)
    (folder / "index.json").unlink()
    (folder / "jobs" / "00001.json").unlink()
    monkeypatch.setattr(writer, "unpack_sizes", lambda parts: 1 / 0)
    assert write(path, tmp_path, shard_mib=0.01) == folder
    assert bins(folder) == bins(made)


def test_ids_beyond_two_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("Some text.")
    monkeypatch.setattr(type(byte_tokenizer()), "__len__", lambda self: 70_000)
    shards = write(tmp_path / "a.txt", tmp_path, validation_fraction=0.0)
    monkeypatch.undo()
    assert read_back(shards, "train") == ["Some text."]
    columns = Shards(str(shards), "train", documents_config("generated", tmp_path)).columns(0)
    assert columns["tokens"].dtype == np.uint32


def start_slowly(documents: Path, folder: Path) -> int:
    """The process id of two writers and their parent, so slow that a cut falls anywhere; their
    chunks are others, too."""
    write_chunk = writer.write_chunk

    def slow(*args: Any) -> None:
        time.sleep(0.03)
        write_chunk(*args)

    if pid := os.fork():
        return pid
    os.setsid()
    writer.write_chunk, chunks._LEAST = slow, 5_000
    config = documents_config(documents, folder, shard_mib=0.01)
    write_documents(config, byte_tokenizer(), folder, processes=2)
    os._exit(0)


def test_killed_at_random_moments_the_shards_are_the_same(tmp_path: Path, fork: None) -> None:
    """Real SIGKILLs of the whole process group; a compressed file and a plain one."""
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl.zst", TEXTS)
    write_lines(tmp_path / "in" / "b.jsonl", TEXTS[::-1])
    uncut = write(tmp_path / "in", tmp_path, shard_mib=0.01)
    cut, dice, kills = tmp_path / "cut", random.Random(0), 0
    while not (cut / "index.json").exists():
        pid = start_slowly(tmp_path / "in", cut)
        done, ended = len(list(cut.glob("jobs/*.json"))), 0
        while not ended and len(list(cut.glob("jobs/*.json"))) == done:
            ended, _ = os.waitpid(pid, os.WNOHANG)
            time.sleep(0.005)  # so that every start gets further
        time.sleep(dice.uniform(0, 0.2))
        if not ended:
            kills += 1
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert kills >= 3
    assert bins(cut) == bins(uncut)


BAD = [
    ("a.csv", b"x", "no .txt, .jsonl, .json, .jsonl.zst, .jsonl.gz file below"),
    ("a.txt", b"fine\n\xff\xfe\n", "a.txt: not UTF-8 at byte 0"),
    (
        "a.jsonl",
        b'{"text": "a"}\n{"title": "b"}\n',
        "a.jsonl: the line at byte 14 is not JSON with",
    ),
    ("a.jsonl.zst", b'{"text": "a"}\n', "a.jsonl.zst: damaged, or not what its name says: "),
    ("a.jsonl.gz", b"", "data.documents: 0 tokens fill no window of 64 + 1; give more text"),
    ("a.jsonl", b"\n\n", "data.documents: 0 tokens fill no window of 64 + 1; give more text"),
    ("a.txt", b"Short.", "data.documents: 5 tokens fill no window of 64 + 1; give more text, or"),
]


@pytest.mark.parametrize("name, content, said", BAD)
def test_bad_text_is_one_line(
    name: str, content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    data = documents_config(
        tmp_path / "in", tmp_path, tokenizer=str(tmp_path / "tokenizer"), validation_fraction=0.0
    )
    with pytest.raises(UserError) as raised:
        load_text(data, 64)
    assert said in str(raised.value)
    whole = "tokens fill" in said
    assert bool(list(tmp_path.rglob("index.json"))) == whole


def test_shards_of_others_are_refused(made: Path, tmp_path: Path) -> None:
    from tests.fakes.text import write as write_examples

    byte_tokenizer().save_pretrained(tmp_path / "same")
    data = {"shards": str(made), "tokenizer": str(tmp_path / "same")}
    text = load_text(parse_documents_config(data), 32)
    assert len(text.train) > len(text.validation) > 0
    (tmp_path / "a.txt").write_text("A line. Another.")
    learn = {"tokenizer": None, "vocab_size": 300}
    other = load_tokenizer(documents_config(tmp_path / "a.txt", tmp_path, **learn))
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="data.tokenizer: .*other' is not the one that the shards"):
        load_text(parse_documents_config({**data, "tokenizer": str(tmp_path / "other")}), 32)
    with pytest.raises(UserError, match="data.tokenizer: .* has no end-of-text token"):
        load_text(parse_documents_config({**data, "tokenizer": TOKENIZER}), 32)
    data["shards"] = str(write_examples(tmp_path / "a.txt", tmp_path))
    with pytest.raises(UserError, match="data.shards: .*: holds examples, and documents are"):
        load_text(parse_documents_config(data), 32)
    with pytest.raises(UserError, match="another text, tokenizer or length"):
        write_documents(documents_config(tmp_path / "a.txt", tmp_path), byte_tokenizer(), made)


def test_nothing_is_held_out_of_little_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text of one document. " * 20)
    byte_tokenizer().save_pretrained(tmp_path / "t")
    with pytest.raises(UserError, match="data.validation_documents: 0 tokens .*or raise "):
        load_text(documents_config(tmp_path / "a.txt", tmp_path, tokenizer=str(tmp_path / "t")), 8)


def test_an_own_tokenizer_loses_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    path = write_lines(tmp_path / "a.jsonl.zst", [*TEXTS, "".join(ODD)])
    data = documents_config(path, tmp_path, tokenizer=None, vocab_size=350)
    tokenizer = load_tokenizer(data)
    assert len(tokenizer) == 350 and tokenizer.eos_token == tokenizer.bos_token == "<|endoftext|>"
    assert load_tokenizer(data).name_or_path == tokenizer.name_or_path
    held_out: list[float] = []
    monkeypatch.setattr(lm.data, "named_tokenizer", lambda _: None)
    monkeypatch.setattr(lm.data, "own_byte_tokenizer", lambda _, n, held, at: held_out.append(held))
    for validation in (None, str(path)):
        load_tokenizer(dataclasses.replace(data, validation_documents=validation))
    assert held_out == [data.validation_fraction, 0.0]
    for text in ["".join(ODD), "中文\x07"]:
        assert tokenizer.decode(tokenizer.backend_tokenizer.encode(text).ids) == text
