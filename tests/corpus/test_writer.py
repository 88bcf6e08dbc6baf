"""Text -> shards: the same bytes with any processes, chunks and kills; bad text is one line."""

import json
import os
import random
import re
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from detalbert.corpus import shards, writer
from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.reader import Corpus
from detalbert.corpus.sentences import split_sentences
from detalbert.corpus.writer import write_shards
from detalbert.errors import Unavailable, UserError
from detalbert.squad.tokenizer import named_tokenizer
from tests.conftest import ROOT, Script
from tests.fakes.damage import flip
from tests.fakes.runs import wait_for
from tests.fakes.text import LENGTH, TOKENIZER, contexts, sums, text_config, write


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*.*") if path.is_file()]


def test_shards_hold_the_text_and_do_not_depend_on_processes(
    corpus_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: None
) -> None:
    """Nor on which documents are tokenized at a time."""
    values = {"shard_mib": 0.02, "validation_fraction": 0.1}
    one = write(corpus_text, tmp_path / "1", **values)
    monkeypatch.setattr(writer, "_BATCH", 1_000)
    assert sums(one) == sums(write(corpus_text, tmp_path / "2", 2, **values))
    assert not leftovers(tmp_path)
    tokenizer, data = named_tokenizer(TOKENIZER), text_config(corpus_text, tmp_path, **values)
    found = []
    for split in ("train", "validation"):
        corpus = Corpus(str(one), split, data)
        assert len(corpus.shards) > 3 and corpus.counts["tokens"] == corpus.table[:, 0].sum()
        for number in range(len(corpus)):
            ids, sentences = corpus.example(number)
            assert sentences.sum() == len(ids) == corpus.table[number, 0]
            found += ids.tolist()
    assert 0.05 < corpus.counts["documents"] / 1201 < 0.15
    lines = corpus_text.read_text().split("\n")
    wanted = [sentence for line in lines for sentence in split_sentences(line)]
    encoded = tokenizer(wanted, add_special_tokens=False)["input_ids"]
    assert sorted(found) == sorted(token for ids in encoded for token in ids)
    with pytest.raises(UserError, match="another text, tokenizer or length"):
        write_shards(data, tokenizer, ExampleKind(LENGTH + 1), str(one), processes=1)


@pytest.mark.parametrize("name", ["train-00001.bin", "train-lengths.npy", "index.json"])
def test_what_is_damaged_is_written_again_with_one_line(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(contexts(60)))
    caplog.set_level("WARNING")
    dice, again = random.Random(0), partial(write, tmp_path / "a.txt", tmp_path, shard_mib=0.002)
    folder = again()
    before = sums(folder)
    for _ in range(3):
        flip(folder / name, dice)
        again()
        line = f"{folder / name}: not as it was written; writing it again"
        assert (sums(folder), caplog.messages) == (before, [line])
        caplog.clear()
    flip(folder / "jobs" / "00000.json", dice)
    (folder / "index.json").unlink()
    again()
    assert sums(folder) == before


def test_the_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    """And nothing that a user has there."""
    (tmp_path / "a.txt").write_text("\n".join(contexts(9)))
    folder = write(tmp_path / "a.txt", tmp_path)
    kept = set(folder.rglob("*"))
    mark = ".detalbert-tmp-0123456789abcdef-"
    left = f"{mark}train-00001.bin {mark}index.json {mark}train-lengths.npy jobs/{mark}00001.json"
    for name in (".train-00001.bin.orig", ".plan.json.bak"):  # the user's
        (folder / name).touch()
        kept.add(folder / name)
    for name in left.split():
        (folder / name).touch()
    (folder / "index.json").unlink()
    write(tmp_path / "a.txt", tmp_path)
    assert set(folder.rglob("*")) == kept


def test_the_command_has_no_torch_nor_its_workers(tmp_path: Path, real_python: str) -> None:
    """They are forks of it. The tokenizer's class is found by a child, which ends before."""
    data = {"text": "generated", "tokenizer": TOKENIZER, "cache_dir": str(tmp_path)}
    hparams = {"size": "tiny", "max_seq_length": LENGTH}
    (tmp_path / "c.yaml").write_text(json.dumps({"hyperparameters": hparams, "data": data}))
    code = "import sys; from detalbert.corpus.__main__ import main\n"
    code += "sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    command = [real_python, "-c", code, str(tmp_path / "c.yaml"), "--output", str(tmp_path / "o")]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / "o" / "index.json").is_file()


# Slow, so that a cut falls anywhere; its batches are others, too.
SLOW = """
import os, runpy, sys, time
from detalbert.corpus import shards, writer
from detalbert.corpus.examples import ExampleKind
os.setsid()
pid, pause = sys.argv[1], float(sys.argv[2])
sys.argv[1:3] = []
tokenize, writer._BATCH = ExampleKind.tokenize, 5_000
ExampleKind.tokenize = lambda *a: (time.sleep(pause), tokenize(*a))[1]
open(pid, "w").write(str(os.getpid()))
runpy.run_module("detalbert.corpus", run_name="__main__")
"""
ENDED = "; run the same command to write the shards that are missing\n"


def test_cut_at_random_moments_the_shards_are_the_same(
    corpus_text: Path, tmp_path: Path, script: Script
) -> None:
    """Real signals to the whole process group, two writers, until it is done."""
    values = {"text": str(corpus_text), "tokenizer": TOKENIZER, "shard_mib": 0.02}
    hparams = {"size": "tiny", "max_seq_length": LENGTH}
    config, pid, cut = tmp_path / "c.yaml", tmp_path / "pid", tmp_path / "cut"
    config.write_text(json.dumps({"hyperparameters": hparams, "data": values}))

    def start(pause: float) -> subprocess.Popen:
        options = [str(config), "--output", str(cut), "--workers", "2"]
        command = [*script(SLOW), str(pid), str(pause), *options]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=ROOT, **pipes)

    def written() -> int:
        return len(list(cut.glob("jobs/*.json")))

    dice = random.Random(0)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        begun, process = written(), start(0.1)
        wait_for(lambda begun=begun: written() > begun)
        time.sleep(dice.uniform(0, 0.2))
        os.killpg(int(pid.read_text()), number)
        said = process.communicate(timeout=60)[1]
        if number != signal.SIGKILL:
            assert said.endswith(f"INFO: stopped by {number.name}{ENDED}")
            assert process.returncode == 128 + number
        assert not (cut / "index.json").exists()
    process = start(0)
    shown = process.communicate(timeout=300)[0]
    assert process.returncode == 0 and re.findall(r"^\w+", shown, re.M) == ["train", "validation"]
    assert sums(write(corpus_text, tmp_path, shard_mib=0.02)) == sums(cut)
    assert not leftovers(cut)


BAD_TEXT = [
    ("a.pdf", b"x", "no file of data below", 1),
    ("a.csv", b"id,body\n1,x\n", "line 2 has no 'text' .there: id, body", 1),
    ("a.csv", b'text\n"x\n', "a.csv: line 2: unexpected end of data", 1),
    ("a.parquet", b"PAR1", "not a whole Parquet file", 1),
    ("a.txt", b"fine\n\xff\xfe\n", "not UTF-8 at byte 5", 1),
    ("a.txt", b"fine\n\xff\xfe\n", "not UTF-8 at byte 5", 2),
    ("a.jsonl", b'{"text": "a"}\n{"title": "b"}\n', "line at byte 14", 1),
    ("a.jsonl", b'{"text": 3}\n', "'text' is int, and no text", 1),
    ("a.json", b'{"data": 3}', "has no 'text' .there: data", 1),
    ("a.json", b"[", "line 1 is not JSON", 2),
]


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize("name, content, said, processes", BAD_TEXT)
def test_bad_text_is_one_line(
    name: str,
    content: bytes,
    said: str,
    processes: int,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(writer, "_BATCH", 1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    if processes == 2:
        (tmp_path / "in" / "b.txt").write_text("Fine. Text.\n")
    with pytest.raises(UserError, match=said):
        write(tmp_path / "in", tmp_path, processes, shard_mib=1e-6)
    assert not list(tmp_path.rglob("index.json")) and not leftovers(tmp_path)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_is_one_line(
    processes: int, corpus_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: None
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards._Shard, "add", full)
    monkeypatch.setattr(writer, "_BATCH", 1_000)
    with pytest.raises(UserError, match="write token shards .No space left on device.; free space"):
        write(corpus_text, tmp_path, processes, shard_mib=0.02)


def test_a_killed_worker_is_one_line(
    corpus_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: None
) -> None:
    monkeypatch.setattr(ExampleKind, "tokenize", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    monkeypatch.setattr(writer, "_BATCH", 1_000)
    with pytest.raises(Unavailable, match="a writer of token shards was killed, .*same command"):
        write(corpus_text, tmp_path, 2)
    assert not leftovers(tmp_path)
