"""Text -> shards: the same bytes with any processes, chunks and kills; bad text is one line."""

import math
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from detalbert.corpus import shards, writer
from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.reader import Corpus
from detalbert.corpus.sentences import split_sentences
from detalbert.corpus.writer import write_shards
from detalbert.errors import Unavailable, UserError
from detalbert.squad.tokenizer import named_tokenizer
from tests.conftest import ROOT, Script
from tests.corpus.documents import write_config
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
    folder = write(corpus_text, tmp_path / "1", processes=1, **values)
    monkeypatch.setattr(writer, "_BATCH", 1_000)
    by_two = write(corpus_text, tmp_path / "2", processes=2, **values)
    assert sums(folder) == sums(by_two)
    assert not leftovers(tmp_path)

    # The two splits together have all tokens of the text.
    tokenizer = named_tokenizer(TOKENIZER)
    data = text_config(corpus_text, tmp_path, **values)
    tokens = []
    for split in ("train", "validation"):
        corpus = Corpus(str(folder), split, data)
        assert len(corpus.shards) > 3
        assert corpus.counts["tokens"] == corpus.table[:, 0].sum()
        for number in range(len(corpus)):
            ids, sentences = corpus.example(number)
            assert sentences.sum() == len(ids) == corpus.table[number, 0]
            tokens += ids.tolist()
    assert 0.05 < corpus.counts["documents"] / 1201 < 0.15  # of the validation
    expected = []
    for line in corpus_text.read_text().split("\n"):
        for sentence in split_sentences(line):
            expected += tokenizer(sentence, add_special_tokens=False)["input_ids"]
    assert sorted(tokens) == sorted(expected)

    with pytest.raises(UserError, match="another text, tokenizer or length"):
        write_shards(data, tokenizer, ExampleKind(LENGTH + 1), str(folder), processes=1)


@pytest.mark.parametrize("name", ["train-00001.bin", "train-lengths.npy", "index.json"])
def test_what_is_damaged_is_written_again_with_one_line(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    text = tmp_path / "a.txt"
    text.write_text("\n".join(contexts(60)))
    folder = write(text, tmp_path, shard_mib=0.002)
    before = sums(folder)
    dice = random.Random(0)
    for _ in range(3):
        flip(folder / name, dice)
        write(text, tmp_path, shard_mib=0.002)
        assert sums(folder) == before
        assert caplog.messages == [f"{folder / name}: not as it was written; writing it again"]
        caplog.clear()

    # A damaged record of a job, before the index is there.
    flip(folder / "jobs" / "00000.json", dice)
    (folder / "index.json").unlink()
    write(text, tmp_path, shard_mib=0.002)
    assert sums(folder) == before


def test_the_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    """And nothing that a user has there."""
    (tmp_path / "a.txt").write_text("\n".join(contexts(9)))
    folder = write(tmp_path / "a.txt", tmp_path)
    for name in (".train-00001.bin.orig", ".plan.json.bak"):  # the user's
        (folder / name).touch()
    before = set(folder.rglob("*"))
    for target in ("train-00001.bin", "index.json", "train-lengths.npy", "jobs/00001.json"):
        path = folder / target
        path.with_name(f".detalbert-tmp-0123456789abcdef-{path.name}").touch()
    (folder / "index.json").unlink()

    write(tmp_path / "a.txt", tmp_path)

    assert set(folder.rglob("*")) == before


def test_the_command_has_no_torch_nor_its_workers(tmp_path: Path, real_python: str) -> None:
    """They are forks of it. The tokenizer's class is found by a child, which ends before."""
    config = write_config(tmp_path, "generated")
    code = "import sys; from detalbert.corpus.__main__ import main\n"
    code += "sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    command = [real_python, "-c", code, str(config), "--output", str(tmp_path / "o")]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / "o" / "index.json").is_file()


# Slow, so that a cut falls anywhere; its batches are others, too. Once it has written `limit`
# shards it stands still in the middle of the next: a test that is late to kill it is not too late.
SLOW = """
import os, runpy, sys, time
from detalbert.corpus import shards, writer
from detalbert.corpus.examples import ExampleKind
os.setsid()
pid, pause, limit = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
sys.argv[1:4] = []
tokenize, writer._BATCH = ExampleKind.tokenize, 5_000
ExampleKind.tokenize = lambda *a: (time.sleep(pause), tokenize(*a))[1]

add, write_job, written = shards._Shard.add, shards.write_job, []
def stand_still(shard, rows):
    add(shard, rows)
    if len(written) >= limit:
        time.sleep(3600)
shards._Shard.add = stand_still
shards.write_job = lambda *a: (write_job(*a), written.append(a))[0]

open(pid, "w").write(str(os.getpid()))
runpy.run_module("detalbert.corpus", run_name="__main__")
"""
ENDED = "; run the same command to write the shards that are missing\n"


def test_cut_at_random_moments_the_shards_are_the_same(
    corpus_text: Path, tmp_path: Path, script: Script
) -> None:
    """Real signals to the whole process group, two writers, until it is done."""
    config = write_config(tmp_path, str(corpus_text), shard_mib=0.02)
    pid = tmp_path / "pid"
    cut = tmp_path / "cut"

    def start(pause: float, limit: float) -> subprocess.Popen:
        command = [*script(SLOW), str(pid), str(pause), str(limit)]
        command += [str(config), "--output", str(cut), "--workers", "2"]
        return subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def written() -> int:
        return len(list(cut.glob("jobs/*.json")))

    dice = random.Random(0)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        before = written()
        process = start(0.1, limit=2)
        wait_for(lambda before=before: written() > before)
        time.sleep(dice.uniform(0, 0.2))
        os.killpg(int(pid.read_text()), number)
        _, log = process.communicate(timeout=60)
        if number != signal.SIGKILL:
            assert log.endswith(f"INFO: stopped by {number.name}{ENDED}")
            assert process.returncode == 128 + number
        assert not (cut / "index.json").exists()

    process = start(0, limit=math.inf)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert re.findall(r"^\w+", output, re.M) == ["train", "validation"]
    assert sums(write(corpus_text, tmp_path, shard_mib=0.02)) == sums(cut)
    assert not leftovers(cut)


BAD_TEXT = [
    ("a.pdf", b"x", "no file of data below", 1),
    ("a.csv", b"id,body\n1,x\n", "line 2 has no 'text' .there: id, body", 1),
    ("a.csv", b'text\n"x\n', "a.csv: line 2: unexpected end of data", 1),
    ("a.parquet", b"PAR1", "not a whole Parquet file", 1),
    ("a.txt", b"fine\n\xff\xfe\n", "not UTF-8 at byte 5", 1),
    ("a.txt", b"fine\n\xff\xfe\n", "not UTF-8 at byte 5", 2),
    ("a.jsonl", b'{"text": "a"}\n["b"]\n', "line at byte 14 is no mapping with a 'text'", 1),
    ("a.jsonl", b'{"title": "b"}\n{"title": "c"}\n', "byte 0 has no 'text' .there: title", 1),
    ("a.jsonl", b'{"text": 3}\n', "'text' is int, and no text", 1),
    ("a.json", b'{"data": 3}', "has no 'text' .there: data", 1),
    ("a.json", b"[", "line 1 is not JSON", 2),
]


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize(("name", "content", "problem", "processes"), BAD_TEXT)
def test_bad_text_is_one_line(
    name: str,
    content: bytes,
    problem: str,
    processes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "_BATCH", 1)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / name).write_bytes(content)
    if processes == 2:
        (folder / "b.txt").write_text("Fine. Text.\n")

    with pytest.raises(UserError, match=problem):
        write(folder, tmp_path, processes, shard_mib=1e-6)

    assert not list(tmp_path.rglob("index.json"))
    assert not leftovers(tmp_path)


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
