"""Text -> shards: the same bytes with any processes, chunks and kills; bad text is one line."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from detalbert.corpus import chunks
from detalbert.corpus.reader import Corpus
from detalbert.corpus.sentences import split_sentences
from detalbert.corpus.shards import sweep
from detalbert.corpus.writer import write_corpus
from detalbert.errors import UserError
from detalbert.squad.tokenizer import named_tokenizer
from tests.conftest import ROOT
from tests.fakes.damage import flip
from tests.fakes.text import LENGTH, TOKENIZER, contexts, sums, text_config, write


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*.*") if path.is_file()]


def test_shards_hold_the_text_and_do_not_depend_on_processes(
    corpus_text: Path, tmp_path: Path, fork: None
) -> None:
    one = write(corpus_text, tmp_path / "1", shard_mib=0.02, validation_fraction=0.1)
    two = write(corpus_text, tmp_path / "2", 2, shard_mib=0.02, validation_fraction=0.1)
    assert sums(one) == sums(two)
    tokenizer = named_tokenizer(TOKENIZER)
    found = []
    for split in ("train", "validation"):
        corpus = Corpus(str(one), split, text_config(corpus_text, tmp_path))
        assert len(corpus.shards) > 3 and corpus.counts["tokens"] == corpus.table[:, 0].sum()
        for number in range(len(corpus)):
            ids, sentences = corpus.example(number)
            assert sentences.sum() == len(ids) == corpus.table[number, 0]
            found += ids.tolist()
    assert 0.05 < corpus.counts["documents"] / 1201 < 0.15
    wanted = [
        token
        for line in corpus_text.read_text().split("\n")
        for sentence in split_sentences(line)
        for token in tokenizer(sentence, add_special_tokens=False)["input_ids"]
    ]
    assert sorted(found) == sorted(wanted)


def test_where_a_shard_is_cut_into_chunks_changes_no_byte(
    corpus_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write(corpus_text, tmp_path / "1", validation_fraction=0.1)
    monkeypatch.setattr(chunks, "_LEAST", 3_000)
    monkeypatch.setattr(chunks, "_BATCH", 1_000)
    assert sums(one) == sums(write(corpus_text, tmp_path / "2", validation_fraction=0.1))
    assert not leftovers(tmp_path)


def test_a_folder_takes_one_text(corpus_text: Path, tmp_path: Path) -> None:
    tokenizer, folder = named_tokenizer(TOKENIZER), tmp_path / "shards"
    data = text_config(corpus_text, tmp_path, shard_mib=0.02)
    write_corpus(data, tokenizer, LENGTH, folder, processes=1)
    (folder / "index.json").unlink()
    with pytest.raises(UserError, match="another text, tokenizer or length"):
        write_corpus(data, tokenizer, LENGTH + 1, folder, processes=1)


@pytest.mark.parametrize("name", ["train-00001.bin", "train-lengths.npy", "index.json"])
def test_what_is_damaged_is_written_again_with_one_line(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(contexts(60)))
    dice, again = random.Random(0), partial(write, tmp_path / "a.txt", tmp_path, shard_mib=0.002)
    folder = again()
    before = sums(folder)
    for _ in range(8):
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
    """Those of earlier versions too: .piece-*, and files that end in a process number."""
    kept = [".lock", "plan.json", "train-00000.bin", "train-lengths.npy", "jobs/00000.json"]
    left = (
        ".chunk-00000-00001.npz ..chunk-00000-00002.npz.x1 .train-00001.bin.x1 .index.json.x1 "
        ".train-lengths.npy.x1 jobs/.00001.json.x1 .piece-00000-00001.npz .train-00001.bin.77 "
        ".piece-00000-00002.npz.77"
    )
    (tmp_path / "jobs").mkdir()
    for name in kept + left.split():
        (tmp_path / name).touch()
    sweep(tmp_path)
    files = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")]
    assert sorted(files) == sorted(kept)


SLOW = """
import runpy, sys, time
from detalbert.corpus import chunks, writer
pause = float(sys.argv.pop(1))
if pause:  # slow, so that a cut falls anywhere; its chunks are others, too
    write = writer.write_chunk
    chunks._LEAST = 5_000
    def slow(*a):
        time.sleep(pause)
        write(*a)
    writer.write_chunk = slow
runpy.run_module("pretrain", run_name="__main__")
"""
ENDED = "; run the same command to write the shards that are missing\n"


def test_cut_at_random_moments_the_shards_are_the_same(
    corpus_text: Path, tmp_path: Path, fork: None
) -> None:
    """Real signals to the whole process group, two writers, until it is done."""
    data = {"text": str(corpus_text), "tokenizer": TOKENIZER, "shard_mib": 0.02}
    hparams = {"size": "tiny", "max_seq_length": LENGTH}
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"hyperparameters": hparams, "data": data}))

    def start(pause: float, output: Path) -> subprocess.Popen:
        options = ["--config", config, "--output", output, "--processes", "2"]
        command = [sys.executable, "-c", SLOW, str(pause), *options]
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **streams)

    assert start(0, tmp_path / "uncut").wait(timeout=300) == 0
    dice = random.Random(0)
    cut = tmp_path / "cut"
    kills = 0
    for _ in range(30):
        process = start(0.2, cut)
        while not (cut / "plan.json").exists() and process.poll() is None:
            time.sleep(0.02)
        started = len(list(cut.glob("jobs/*.json")))
        while len(list(cut.glob("jobs/*.json"))) == started and process.poll() is None:
            time.sleep(0.005)  # the libraries are loaded, and writing continues
        time.sleep(dice.uniform(0, 0.5))
        if process.poll() is not None:
            break
        number = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[kills % 3]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        said = process.communicate(timeout=60)[1]
        if process.returncode == 0:
            break
        if number != signal.SIGKILL:
            assert said == f"INFO: stopped by {number.name}{ENDED}"
            assert process.returncode == 128 + number
        kills += 1
        if kills == 4:
            assert start(0, cut).wait(timeout=300) == 0
            break
    assert kills >= 3
    assert sums(tmp_path / "uncut") == sums(cut)
    assert not leftovers(cut)


BAD_TEXT = [
    ("a.txt", b"fine\n\xff\xfe\n", "not UTF-8 at byte 5"),
    ("a.jsonl", b'{"text": "a"}\n{"title": "b"}\n', "line at byte 14"),
    ("a.jsonl", b'{"text": 3}\n', "is no text"),
    ("a.json", b'{"data": 3}', "SQuAD's shape"),
    ("a.json", b"[", "SQuAD's shape"),
]


@pytest.mark.parametrize(
    ("name", "content", "said", "processes"),
    [("a.csv", b"x", "no .txt, .jsonl, .json file", 1)]
    + [(*bad, processes) for bad in BAD_TEXT for processes in (1, 2)],
)
def test_bad_text_is_one_line(
    name: str, content: bytes, said: str, processes: int, tmp_path: Path, fork: None
) -> None:
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

    monkeypatch.setattr("detalbert.corpus.writer.write_chunk", full)
    with pytest.raises(UserError, match="write token shards: No space left on device; free space"):
        write(corpus_text, tmp_path, processes, shard_mib=0.02)
