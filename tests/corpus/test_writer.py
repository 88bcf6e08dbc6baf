"""Text -> shards: all sources, the same bytes however it was cut, damaged and foreign shards."""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from detalbert.corpus import pieces, words
from detalbert.corpus.pieces import Job, cut_examples, cut_job, group_spans, size_of
from detalbert.corpus.reader import Corpus
from detalbert.corpus.sentences import _ABBREVIATION, split_sentences
from detalbert.corpus.sources import Span, documents, open_text
from detalbert.corpus.writer import write_corpus
from detalbert.errors import UserError
from detalbert.settings.text import TextConfig, parse_text_config
from detalbert.squad import world
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.examples import ExampleOrder, Examples
from pretrain.hparams import parse_pretrain_hparams
from pretrain.masking import read_vocabulary
from tests.conftest import ROOT

TOKENIZER = "embedded/albert-tiny"


def data(text: Any, folder: Path, **more: Any) -> TextConfig:
    values = {"text": str(text), "tokenizer": TOKENIZER, "cache_dir": str(folder / "cache"), **more}
    return parse_text_config(values)


def write(text: Any, folder: Path, processes: int = 1, **more: Any) -> Path:
    config = data(text, folder, **more)
    return write_corpus(config, named_tokenizer(TOKENIZER), 96, processes=processes)


def sums(folder: Path) -> dict[str, str]:
    """Of everything that readers read."""
    files = [*folder.glob("*.bin"), *folder.glob("*.npy"), folder / "index.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def contexts(paragraphs: int) -> list[str]:
    document = world.generate("train", seed=3, paragraphs=paragraphs)
    return [p["context"] for article in document["data"] for p in article["paragraphs"]]


@pytest.fixture(scope="module")
def corpus_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 documents, one per line, some blank."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n".join([*contexts(1200), "", "  ", "One. Two."]))
    return path


def test_every_source_gives_the_same_documents(tmp_path: Path) -> None:
    texts = contexts(40)
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("\n".join(texts))
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
    squad = {"data": [{"paragraphs": [{"context": t, "qas": []} for t in texts]}]}
    (tmp_path / "a.json").write_text(json.dumps(squad))
    (tmp_path / "folder" / "1.txt").write_text("\n".join(texts[:15]))
    (tmp_path / "folder" / "deep" / "2.jsonl").write_text(
        "\n".join(json.dumps({"text": t}) for t in texts[15:])
    )
    (tmp_path / "folder" / "notes.md").write_text("not text")
    for name in ("a.txt", "a.jsonl", "a.json", "folder", f"file://{tmp_path}/a.txt"):
        address = name if "://" in name else str(tmp_path / name)
        for part in (300, 1 << 20):
            spans = open_text(address, "data.text", part, "train").spans
            found = [text for span in spans for text, _ in documents(span)]
            assert found == texts, (name, part)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x85\u2028\u2029\x0b"
                                      "\x0c\x1c\x1d\x1e"), max_size=30), max_size=12),
       st.integers(1, 40), st.booleans())  # fmt: skip
@hypothesis_settings(max_examples=150, deadline=None)
def test_spans_share_out_every_line_once(
    tmp_path_factory: Any, lines: list[str], part: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(("\n".join(lines) + "\n" * ends).encode())
    if not path.stat().st_size:
        return
    spans = open_text(str(path), "data.text", part, "train").spans
    found = [text for span in spans for text, _ in documents(span)]
    assert found == [line.strip() for line in lines if line.strip()]


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60), st.integers(5, 30))
def test_examples_hold_what_fits_of_one_document(sentences: Any, capacity: int) -> None:
    if sentences:
        sentences[-1] = (sentences[-1][0], True)
    lengths, counts = cut_examples([n for n, _ in sentences], [e for _, e in sentences], capacity)
    assert lengths.sum() == sum(n for n, _ in sentences) and counts.sum() == len(lengths)
    pieces = np.split(lengths, np.cumsum(counts)[:-1]) if len(counts) else []
    assert all(0 < piece.sum() <= capacity for piece in pieces)
    ends = np.cumsum([n for n, _ in sentences])[[e for _, e in sentences]] if sentences else []
    assert set(ends) - {0} <= {0, *np.cumsum([piece.sum() for piece in pieces])}  # no example spans


def test_sentences() -> None:
    assert split_sentences('Dr. Who came. "Who?" He left.') == [
        "Dr. Who came.",
        '"Who?"',
        "He left.",
    ]
    assert split_sentences("In the U.S. Army of 1.5 men.\nNew line") == [
        "In the U.S. Army of 1.5 men.", "New line",
    ]  # fmt: skip
    assert split_sentences(" \n ") == []


_LETTERS = st.sampled_from([*"aB1.!? \n'\"”)([“À", ". ", ".\n", "Dr. ", "e.g. "])


@given(st.lists(_LETTERS, max_size=40).map("".join))
@hypothesis_settings(max_examples=500, deadline=None)
def test_sentences_end_where_the_rule_says(text: str) -> None:
    """The rule as it would be written if speed did not matter."""
    end = re.compile(r"""(?<=[.!?])(["'”’)\]]*)\s+(?=["'“‘(\[]?[A-Z0-9À-Þ])|\n+""")
    sentences, begin = [], 0
    for found in end.finditer(text):
        stop = found.end(1) if found.group(1) is not None else found.start()
        if not _ABBREVIATION.search(text, max(begin, stop - 12), stop):
            sentences.append(text[begin:stop].strip())
            begin = found.end()
    sentences.append(text[begin:].strip())
    assert split_sentences(text) == [sentence for sentence in sentences if sentence]


def test_shards_hold_the_text_and_do_not_depend_on_processes(
    corpus_text: Path, tmp_path: Path
) -> None:
    one = write(corpus_text, tmp_path / "1", shard_mib=0.02, validation_fraction=0.1)
    two = write(corpus_text, tmp_path / "2", 2, shard_mib=0.02, validation_fraction=0.1)
    assert sums(one) == sums(two)
    tokenizer = named_tokenizer(TOKENIZER)
    found = []
    for split in ("train", "validation"):
        corpus = Corpus(str(one), split, data(corpus_text, tmp_path))
        assert len(corpus.shards) > 3 and corpus.counts["tokens"] == corpus.table[:, 0].sum()
        for number in range(len(corpus)):
            ids, sentences = corpus.example(number)
            assert sentences.sum() == len(ids) == corpus.table[number, 0]
            found.append(ids.tolist())
    wanted = [
        tokenizer(sentence, add_special_tokens=False)["input_ids"]
        for line in corpus_text.read_text().split("\n")
        for sentence in split_sentences(line)
    ]
    flat = sorted(token for ids in found for token in ids)
    assert flat == sorted(token for ids in wanted for token in ids)
    held = Corpus(str(one), "validation", data(corpus_text, tmp_path)).counts["documents"]
    assert 0.05 < held / 1201 < 0.15


def test_where_a_shard_is_cut_into_pieces_changes_no_byte(
    corpus_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write(corpus_text, tmp_path / "1", validation_fraction=0.1)
    monkeypatch.setattr(pieces, "_LEAST", 3_000)
    monkeypatch.setattr(pieces, "_BATCH", 1_000)
    assert sums(one) == sums(write(corpus_text, tmp_path / "2", validation_fraction=0.1))
    assert not list(tmp_path.rglob(".piece*"))


def test_one_shard_has_pieces_for_many_processes() -> None:
    """17 MB are one shard at the usual size."""
    for address, size in (("a.txt", 17 << 20), ("hub:x", 4_400)):
        spans = (Span(address, 0, size, size),)
        cut = cut_job(Job(0, spans, 0.0))
        assert 30 < len(cut) <= 35 and max(size_of(piece.spans) for piece in cut) < 1 << 20
        parts = [span for piece in cut for span in piece.spans]
        assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])]
        assert parts[-1].end == size
    many = cut_job(Job(0, tuple(Span(f"{i}.jsonl", 0, 999, 999) for i in range(3_000)), 0.0))
    assert len(many) < 15 and sum(len(piece.spans) for piece in many) == 3_000
    assert len(cut_job(Job(0, (Span("a.json", 0, 1 << 30, 1 << 30),), 0.0))) == 1  # read whole
    rows = [Span("hub:x", at, at + 500_000, 6_000_000) for at in range(0, 6_000_000, 500_000)]
    assert len(group_spans(rows, 500_000 * 4_000)) == 12  # rows are not bytes


SLOW = """
import sys, time
from detalbert.corpus import pieces, writer
from pretrain import __main__
if sys.argv[1] != "0":  # give a cut time to fall anywhere; the pieces are others, too
    write = writer.write_piece
    pieces._LEAST = 5_000
    def slow(*a):
        time.sleep(float(sys.argv[1]))
        write(*a)
    writer.write_piece = slow
sys.exit(__main__.main(sys.argv[2:]))
"""


def test_cut_at_random_moments_the_shards_are_the_same(corpus_text: Path, tmp_path: Path) -> None:
    """Real SIGKILLs of the whole process group, two writers, until it is done."""
    config = tmp_path / "c.yaml"
    values = {"text": str(corpus_text), "tokenizer": TOKENIZER, "shard_mib": 0.02}
    config.write_text(json.dumps({"hyperparameters": {"size": "tiny", "max_seq_length": 96},
                                  "data": values}))  # fmt: skip

    def start(pause: float, output: Path) -> subprocess.Popen:
        command = [sys.executable, "-c", SLOW, str(pause), "--config", str(config), "--output"]
        return subprocess.Popen([*command, str(output), "--processes", "2"], cwd=ROOT,
                                stdout=subprocess.DEVNULL, start_new_session=True)  # fmt: skip

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
            time.sleep(0.005)  # the libraries are loaded, and writing goes on
        time.sleep(dice.uniform(0, 0.5))
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        if kills == 4:
            assert start(0, cut).wait(timeout=300) == 0
            break
    assert kills >= 2
    assert sums(tmp_path / "uncut") == sums(cut)
    assert not [*cut.glob(".*.bin.*"), *cut.glob(".piece*")]


def make_examples(folder: Path, config: TextConfig) -> Examples:
    hparams = parse_pretrain_hparams({"size": "tiny", "max_seq_length": 96})
    vocabulary = read_vocabulary(named_tokenizer(TOKENIZER))
    return Examples(Corpus(str(folder), "train", config), vocabulary, hparams)


def test_an_epoch_sees_every_example_once_at_every_slot_count(
    corpus_text: Path, tmp_path: Path
) -> None:
    folder = write(corpus_text, tmp_path, shard_mib=0.02)
    examples = make_examples(folder, data(corpus_text, tmp_path))
    count = len(examples.lengths)
    seen = {}
    for slots in (1, 4):
        order = ExampleOrder(examples, 8, slots, seed=1, group=2)
        shares = [
            np.concatenate([order.share(step, slot) for slot in range(slots)])
            for step in range(2 * count // 8)
        ]
        seen[slots] = [sorted(map(tuple, share.tolist())) for share in shares]
    assert seen[1] == seen[4]
    tickets = [ticket for share in seen[1] for ticket in share]
    assert len(set(tickets)) == len(tickets)
    assert {n for epoch, n in tickets if epoch == 0} == set(range(count))
    # At any time only two groups of shards are read.
    order = ExampleOrder(examples, 8, 1, seed=1, group=2)
    numbers = np.array([order.share(step, 0)[0, 1] for step in range(20)])
    assert set(examples.corpus.shard_of(numbers)) <= set(order.groups(0)[0])


@pytest.mark.parametrize("damage", ["truncated", "index", "format", "lengths", "missing"])
def test_damaged_shards_are_refused(damage: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(contexts(30)))
    folder = write(tmp_path / "a.txt", tmp_path, validation_fraction=0.5)
    shard, index = folder / "train-00000.bin", folder / "index.json"
    if damage == "truncated":
        os.truncate(shard, 100)
    elif damage == "missing":
        shard.unlink()
    elif damage == "index":
        index.write_text(index.read_text()[:50])
    elif damage == "format":
        index.write_text(json.dumps({**json.loads(index.read_text()), "format": 99}))
    else:
        table = np.load(folder / "train-lengths.npy")
        np.save(folder / "train-lengths.npy", table + 1)
    from detalbert.corpus import reader as corpus

    corpus.read_index.cache_clear()
    with pytest.raises(UserError, match=str(folder)):
        Corpus(str(folder), "train", data("generated", tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"fine\n\xff\xfe\n", "not UTF-8 at byte 5"),
        ("a.jsonl", b'{"text": "a"}\n{"title": "b"}\n', "line at byte 14"),
        ("a.jsonl", b'{"text": 3}\n', "is no text"),
        ("a.json", b'{"data": 3}', "SQuAD's shape"),
        ("a.json", b"[", "SQuAD's shape"),
        ("a.csv", b"x", "no .txt, .jsonl, .json file"),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_bad_text_is_one_line(
    name: str, content: bytes, said: str, processes: int, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    if processes == 2:
        (tmp_path / "in" / "b.txt").write_text("Fine. Text.\n")
    if processes == 2 and name == "a.csv":
        return
    with pytest.raises(UserError, match=said):
        write(tmp_path / "in", tmp_path, processes, shard_mib=1e-6)
    assert not list(tmp_path.rglob("index.json"))
    assert not [*tmp_path.rglob("*.bin.*"), *tmp_path.rglob(".piece*")]


def test_words_are_looked_up_as_they_would_be_encoded(shared: Path, monkeypatch: Any) -> None:
    """Real text, a real tokenizer, odd white space; and a memory that starts over."""
    monkeypatch.setattr(words, "_MOST_WORDS", 300)
    backend = named_tokenizer(str(shared / "albert-tokenizer")).backend_tokenizer
    squad = json.loads((shared / "squad" / "dev.json").read_text())["data"]
    text = [p["context"] for article in squad for p in article["paragraphs"]][::4]
    sentences = [sentence for one in text for sentence in split_sentences(one)]
    sentences += ["a  b", " a", "", "tab\tand\u00a0space", "[MASK] here", "caf\u00e9 \u0301x"]
    encoder = words.WordEncoder(backend)
    assert encoder.apart
    for at in range(0, len(sentences), 100):
        batch = sentences[at : at + 100]
        ids, lengths = encoder(batch)
        wanted = backend.encode_batch(batch, add_special_tokens=False)
        assert lengths.tolist() == [len(one) for one in wanted]
        assert ids.tolist() == [token for one in wanted for token in one.ids]


ODD_WORDS = [
    "a",
    "b.",
    "(c)",
    "[MASK]",
    "<unk>x",
    "\u2581d",
    "caf\u00e9",
    "\u0301",
    "\u00a0",
    "\t",
    "-",
    "",
]


@given(st.lists(st.lists(st.sampled_from(ODD_WORDS), max_size=6).map(" ".join), max_size=6))
@hypothesis_settings(max_examples=300, deadline=None)
def test_a_tokenizer_that_keeps_the_space_gives_the_same(sentences: list[str]) -> None:
    """The embedded one: Metaspace alone, so that the tokens of a word hold the space before it."""
    backend = named_tokenizer(TOKENIZER).backend_tokenizer
    encoder = words.WordEncoder(backend)
    assert encoder.marks
    for _ in range(2):  # with its words unknown, and known
        ids, lengths = encoder(sentences)
        wanted = backend.encode_batch(sentences, add_special_tokens=False)
        assert lengths.tolist() == [len(one) for one in wanted]
        assert ids.tolist() == [token for one in wanted for token in one.ids]
