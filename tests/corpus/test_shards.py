"""Text -> shards -> text: a plain reference, any parts, workers and kills, damage, a bucket."""

import json
import os
import random
import signal
import subprocess

import numpy as np
import pytest

from detalbert.corpus import write as writer
from detalbert.corpus.__main__ import main
from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.read import Corpus, Shards
from detalbert.corpus.sentences import split_sentences
from detalbert.corpus.text import is_held_out
from detalbert.corpus.write import write_shards
from detalbert.errors import Unavailable, UserError
from detalbert.squad.encoding import named_tokenizer
from detalbert.sums import seal
from tests.conftest import ROOT
from tests.corpus import documents
from tests.corpus.documents import byte_tokenizer, documents_config, write_config
from tests.fakes.damage import flip
from tests.fakes.runs import wait_for
from tests.fakes.s3 import bucket
from tests.fakes.text import LENGTH, TOKENIZER, contexts, sums, text_config, write

TEXTS = contexts(120)
SMALL = {"shard_mib": 0.004, "validation_fraction": 0.1}


@pytest.fixture
def text(tmp_path):
    """Three files of TEXTS, a document per line, and blank lines: several volumes and shards."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number, begin, end in ((0, 0, 80), (1, 80, 85), (2, 85, 120)):
        content = "\n".join(["", *TEXTS[begin:end], "  \n"])
        (folder / f"{number}.txt").write_text(content)
    return folder


def plain_examples(text):
    """Yield the examples of a document by a plain loop: token ids, and tokens per sentence."""
    tokenizer = named_tokenizer(TOKENIZER)
    capacity = LENGTH - 3
    ids = []
    lengths = []
    for sentence in split_sentences(text):
        tokens = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        for begin in range(0, len(tokens), capacity):
            piece = tokens[begin : begin + capacity]
            if len(ids) + len(piece) > capacity:
                yield ids, lengths
                ids, lengths = [], []
            ids = ids + piece
            lengths = [*lengths, len(piece)]
    if ids:
        yield ids, lengths


@pytest.mark.parametrize("split", ["train", "validation"])
def test_examples_are_those_of_a_plain_loop(split, text, tmp_path):
    long_text = " ".join(["no end"] * 200)
    (text / "2.txt").write_text("\n".join([*TEXTS[85:], long_text]))
    folder = write(text, tmp_path, **SMALL)
    corpus = Corpus(str(folder), split, text_config(text, tmp_path, **SMALL))

    expected = []
    for document in [*TEXTS, long_text]:
        if is_held_out(document, 0.1) == (split == "validation"):
            expected += list(plain_examples(document.strip()))

    examples = [corpus.example(number) for number in range(len(corpus.table))]
    assert [(ids.tolist(), lengths.tolist()) for ids, lengths in examples] == expected
    assert corpus.count("tokens") == corpus.table[:, 0].sum()
    assert len(corpus.shards) > 2


@pytest.mark.parametrize("split", ["train", "validation"])
def test_documents_are_those_of_the_tokenizers_call(split, text, tmp_path):
    folder = documents.write(text, tmp_path, article="line", **SMALL)
    shards = Shards(str(folder), split, documents_config(text, tmp_path))

    expected = []
    tokenizer = byte_tokenizer()
    for document in TEXTS:
        if is_held_out(document, 0.1) == (split == "validation"):
            expected.append([*tokenizer(document)["input_ids"], tokenizer.eos_token_id])

    ids = []
    for number in range(len(shards.shards)):
        columns = shards.columns(number)
        ids += np.split(columns["tokens"], columns["document_ptr"][1:-1])
    assert [document.tolist() for document in ids] == expected
    assert shards.count("documents") == len(expected)
    assert all(shard["source"] == "" for shard in shards.shards)


def test_parts_and_workers_give_the_bytes_of_one_writer(text, tmp_path, fork):
    """In any order, one of them twice, and more parts than volumes."""
    config = text_config(text, tmp_path, **SMALL)
    kind = ExampleKind(named_tokenizer(TOKENIZER), LENGTH)
    whole = tmp_path / "whole"
    write_shards(config, kind, str(whole), processes=1)

    for count in (3, 20):
        folder = tmp_path / f"{count}"
        for number in (3, 1, 3, *range(4, count + 1)):
            assert not write_shards(config, kind, str(folder), 1, (number, count))
            assert not (folder / "index.json").exists()
        assert write_shards(config, kind, str(folder), 2, (2, count))
        assert sums(folder) == sums(whole)
    by_three = tmp_path / "by three"
    write_shards(config, kind, str(by_three), processes=3)
    assert sums(by_three) == sums(whole)


# Each process stands still after some of the ten batches, and says so.
CUT = """
import os, runpy, sys, time
from detalbert.corpus.examples import ExampleKind
os.setsid()
pid, batches = sys.argv[1], iter(range(int(sys.argv[2])))
sys.argv[1:3] = []
tokenize = ExampleKind.tokenize

def tokenize_some(*args):
    if next(batches, None) is None:
        open(f"{pid}.still", "w").close()
        time.sleep(600)
    return tokenize(*args)

ExampleKind.tokenize = tokenize_some
open(pid, "w").write(str(os.getpid()))
runpy.run_module("detalbert.corpus", run_name="__main__")
"""


def test_killed_at_drawn_moments_the_shards_are_the_same(text, tmp_path, script):
    """Real signals to the whole process group, two workers, until it is done."""
    config = write_config(tmp_path, str(text), **SMALL)
    pid = tmp_path / "pid"
    still = tmp_path / "pid.still"
    cut = tmp_path / "cut"

    def start(batches):
        command = [*script(CUT), str(pid), str(batches)]
        command += [str(config), "--output", str(cut), "--workers", "2"]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    dice = random.Random(0)
    for number in (signal.SIGKILL, signal.SIGTERM):
        still.unlink(missing_ok=True)
        process = start(dice.randrange(1, 4))
        wait_for(still.exists)
        os.killpg(int(pid.read_text()), number)
        _, log = process.communicate(timeout=300)
        assert not (cut / "index.json").exists()
    assert process.returncode == 128 + signal.SIGTERM
    assert "run the same command to write the shards that are missing" in log

    assert start(10).wait(timeout=300) == 0
    assert sums(cut) == sums(write(text, tmp_path, **SMALL))


@pytest.mark.parametrize("name", ["train-00000-00000.tokens.npy", "volume-00000.json"])
def test_what_is_damaged_is_written_again(name, text, tmp_path):
    folder = write(text, tmp_path, **SMALL)
    before = sums(folder)
    flip(folder / name, random.Random(0))
    write(text, tmp_path, **SMALL)
    assert sums(folder) == before


def test_what_a_killed_one_left_goes_from_complete_shards(text, tmp_path):
    """Of which nothing is written again."""
    folder = write(text, tmp_path, **SMALL)
    (folder / ".detalbert-tmp-index.json-01234abc").mkdir()
    write(text, tmp_path, **SMALL)
    assert list(folder.glob(".detalbert*")) == []


def test_a_folder_with_other_files_is_refused_and_untouched(text, tmp_path):
    other_plan = write(text, tmp_path, **SMALL)
    other_files = tmp_path / "mine"
    other_files.mkdir()
    (other_files / "notes.txt").write_text("mine")
    kind = ExampleKind(named_tokenizer(TOKENIZER), LENGTH + 1)

    for folder in (other_plan, other_files):
        before = {path.name for path in folder.iterdir()} - {".lock-1-of-1"}
        with pytest.raises(UserError, match="holds other files, or shards of another text"):
            write_shards(text_config(text, tmp_path, **SMALL), kind, str(folder), processes=1)
        assert {path.name for path in folder.iterdir()} - {".lock-1-of-1"} == before


def change_index(path, **values):
    """Change an index, with a sum that is right."""
    index = json.loads(path.read_text())
    del index["sha256"]
    path.write_text(json.dumps(seal({**index, **values})))


def rename_file(name):
    return lambda folder: change_index(folder / "index.json", files={name: "0" * 64})


DAMAGE = {
    "missing": lambda folder: (folder / "train-00000-00000.tokens.npy").unlink(),
    "a bit": lambda folder: flip(folder / "train-00000-00000.examples.npy", random.Random(0)),
    "index": lambda folder: flip(folder / "index.json", random.Random(1)),
    "no index": lambda folder: (folder / "index.json").unlink(),
    "cut": lambda folder: (folder / "index.json").write_text('{"format": 2'),
    "format": lambda folder: change_index(folder / "index.json", format=99),
    "absolute": rename_file("/dev/zero"),
    "above": rename_file("../train-00000-00000.tokens.npy"),
    "above the tokenizer": rename_file("tokenizer/../../x"),
    "another's": rename_file("notes.txt"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shards_are_one_line(damage, text, tmp_path):
    folder = write(text, tmp_path, **SMALL)
    DAMAGE[damage](folder)
    with pytest.raises(UserError, match=str(folder)) as error:
        Corpus(str(folder), "train", text_config("generated", tmp_path))
    problem = str(error.value)
    assert "write the shards again" in problem or "repeat the command" in problem


@pytest.fixture
def s3(monkeypatch):
    with bucket(monkeypatch) as served:
        yield served


def test_a_bucket_is_written_and_read_as_a_folder(s3, text, tmp_path, capsys):
    """Parts meet in it; the shards of another config are not added to these."""
    config = write_config(tmp_path, str(text), **SMALL)
    command = [str(config), "--output", "s3://bucket/shards", "--workers", "1"]
    for part in ("3/3", "1/3", "2/3"):
        assert "train" not in capsys.readouterr().out
        assert main([*command, "--part", part]) == 0
    assert capsys.readouterr().out.startswith("train ")
    assert main([*command, "--set", "data.shard_mib=1"]) == 2
    assert "give a fresh folder" in capsys.readouterr().err

    folder = write(text, tmp_path, **SMALL)
    data = text_config(text, tmp_path)
    local = Corpus(str(folder), "train", data)
    remote = Corpus("s3://bucket/shards", "train", data)
    assert remote.index == local.index
    for number in range(len(local.table)):
        for values, expected in zip(remote.example(number), local.example(number), strict=True):
            assert np.array_equal(values, expected)


def test_a_killed_worker_is_one_line(text, tmp_path, monkeypatch, fork):
    monkeypatch.setattr(ExampleKind, "tokenize", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    monkeypatch.setattr(writer, "_BATCH", 1_000)
    with pytest.raises(Unavailable, match="tokenizes was killed, .*run the same command again"):
        write(text, tmp_path, 2)


def test_a_full_disk_is_one_line(text, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(UserError, match="token shards .*No space left.*free space"):
        write(text, tmp_path)


def test_the_command_has_no_torch(tmp_path, real_python):
    """Nor have its workers, which are forks. A child finds the tokenizer's class, and ends."""
    config = write_config(tmp_path, "generated")
    code = "import sys; from detalbert.corpus.__main__ import main\n"
    code += "sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    command = [real_python, "-c", code, str(config), "--output", str(tmp_path / "o")]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / "o" / "index.json").is_file()
