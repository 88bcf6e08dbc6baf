"""Long documents in blocks: sentences, tokens and splits of the whole text, in bounded memory."""

import contextlib
import itertools
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from detalbert.corpus import learn_tokenizer, read_text
from detalbert.corpus.blocks import Block, Segment, Segments, cut_segments, find_space, strip
from detalbert.corpus.documents import DocumentKind
from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.held_out import decide
from detalbert.corpus.sentences import find_sentence_end, split_sentences
from detalbert.corpus.shards import Kind, is_held_out
from detalbert.corpus.sources import open_text
from detalbert.corpus.words import WordEncoder
from detalbert.errors import UserError
from detalbert.reading import lines as read_lines
from detalbert.reading import storage
from detalbert.settings.text import SourceConfig
from tests.conftest import ROOT, Script, max_examples
from tests.corpus.documents import join, read
from tests.corpus.test_words import BACKEND, albert_like
from tests.fakes.questions import TOKENIZERS
from tests.fakes.text import contexts

LETTERS = [
    *"aB1.!? \n'\"”)([“À中",
    ". ",
    ".\n",
    "Dr. ",
    "e.g. ",
    " \n ",
    "Mr.\nA",
    "\u3000",
    "é",
    "😀",
    "。",
    "？”",
    "」",
    "। ",
    "λ; ",
    " г.",
    "am 3.",
    "Ж",
    "« ",
    "”. ",
]
TEXTS = st.lists(st.sampled_from(LETTERS), max_size=50).map("".join)
LENGTHS = st.integers(1, 60)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=20)


@given(TEXTS, st.integers(1, 60), st.booleans())
@max_examples(600)
def test_a_text_is_cut_between_sentences(text: str, size: int, starts: bool) -> None:
    stop = find_sentence_end(text[:size])
    if stop is not None:
        parts = split_sentences(text[:stop], starts) + split_sentences(text[stop:], starts=False)
        assert parts == split_sentences(text, starts)
        assert text[stop - 1].isspace()


def in_blocks(documents: list[str], sizes: list[int]) -> Iterator[Block]:
    """The documents in blocks of these sizes, in turn, some of them empty."""
    lengths = itertools.cycle(sizes)
    for text in documents:
        while len(text) > (length := next(lengths)):
            yield Block(text[:length], ends=False)
            text = text[length:]
        yield Block(text, ends=True)


@given(st.lists(TEXTS, max_size=4), SIZES)
def test_blocks_are_stripped_as_the_whole_is(documents: list[str], sizes: list[int]) -> None:
    texts = [text.strip() for text in documents]
    assert join(strip(in_blocks(documents, sizes))) == [text for text in texts if text]


@given(TEXTS, SIZES, st.integers(1, 30))
def test_segments_depend_on_the_text_alone(text: str, sizes: list[int], longest: int) -> None:
    kind = ExampleKind(16)
    cut = [
        list(cut_segments(in_blocks([text], some), kind.find_cut, longest))
        for some in (sizes, [1000])
    ]
    assert cut[0] == cut[1]
    assert "".join(one.text for one in cut[0]) == text
    assert all(len(one.text) <= longest for one in cut[0])
    assert [one.starts for one in cut[0]] == [True] + [False] * (len(cut[0]) - 1)
    assert [one.ends for one in cut[0]] == [False] * (len(cut[0]) - 1) + [True]


def columns_of(kind: Kind, backend: Any, segments: list[Segment], batch: int) -> dict[str, list]:
    """Tokens and columns of a shard whose segments are tokenized `batch` at a time."""
    encoder, columns = WordEncoder(backend), kind.columns()
    made: dict[str, list] = {"tokens": []}
    for first in range(0, len(segments), batch):
        some = segments[first : first + batch]
        texts, ends = [one.text for one in some], [one.ends for one in some]
        rows = kind.tokenize(encoder, Segments(texts, ends, some[0].starts))
        made["tokens"] += rows.tokens.tolist()
        for name, values in columns.add(rows)[0].items():
            made.setdefault(name, []).extend(values.tolist())
    return made


def whole_examples(backend: Any, documents: list[str], capacity: int) -> dict[str, list]:
    """The columns of ALBERT's examples, one sentence after another."""
    made: dict[str, list] = {"tokens": [], "sentences": [], "sentence_ptr": [], "token_ptr": []}
    for text in documents:
        used = capacity
        for sentence in split_sentences(text):
            ids = backend.encode(sentence, add_special_tokens=False).ids
            made["tokens"] += ids
            for begin in range(0, len(ids), capacity):
                size = len(ids[begin : begin + capacity])
                if used + size > capacity:
                    made["sentence_ptr"].append(0)
                    made["token_ptr"].append(0)
                    used = 0
                made["sentences"].append(size)
                made["sentence_ptr"][-1] += 1
                made["token_ptr"][-1] += size
                used += size
    return made


STOPS = st.sampled_from([". ", "! ", ".\n", "\n\n", '." ', ".) ", " "])
WORDS = st.sampled_from("the river cafe ca. Dr. bank, (old) rivers [MASK] a 1066 café c".split())
SENTENCES = st.lists(WORDS, min_size=1, max_size=9).map(lambda words: " ".join(words).capitalize())
PROSE = st.lists(st.tuples(SENTENCES, STOPS).map("".join), min_size=1).map("".join)
BACKENDS = {
    "albert": albert_like(),
    "wordpiece": TOKENIZERS["bert"].backend_tokenizer,
    "metaspace": albert_like(splitter=pre_tokenizers.Metaspace()),
    "bytes": BACKEND,
}


@pytest.mark.parametrize("name", BACKENDS)
@given(st.lists(PROSE, min_size=1, max_size=3), st.integers(120, 200), st.integers(1, 5))
@max_examples(40)
def test_examples_of_segments_are_those_of_the_whole(
    name: str, documents: list[str], longest: int, batch: int
) -> None:
    """Where no sentence is as long as a segment, for every tokenizer."""
    kind = ExampleKind(max_seq_length=16)
    documents = [text.strip() for text in documents]
    segments = list(cut_segments(in_blocks(documents, [50]), kind.find_cut, longest))
    if all(one.ends or one.text[-1].isspace() for one in segments):
        wanted = whole_examples(BACKENDS[name], documents, capacity=13)
        assert columns_of(kind, BACKENDS[name], segments, batch) == wanted


@pytest.mark.parametrize("name", ["albert", "wordpiece"])
@given(st.lists(WORDS, min_size=30, max_size=200).map(" ".join), SIZES, st.integers(1, 5))
@max_examples(40)
def test_a_sentence_of_any_length_is_encoded_in_segments(
    name: str, text: str, sizes: list[int], batch: int
) -> None:
    """Cut before a space, it has the tokens of the whole with a tokenizer that drops spaces."""
    kind = ExampleKind(max_seq_length=16)
    segments = list(cut_segments(in_blocks([text], sizes), kind.find_cut, 40))
    wanted = whole_examples(BACKENDS[name], [text], capacity=13)
    assert columns_of(kind, BACKENDS[name], segments, batch) == wanted


def test_a_real_tokenizer_has_the_same_examples(shared: Path) -> None:
    backend = Tokenizer.from_file(str(shared / "albert-tokenizer" / "tokenizer.json"))
    text = "\n".join(contexts(200))
    flat = text.replace(".", "").replace("\n", " ")
    kind = ExampleKind(max_seq_length=128)
    for document, longest in ((text, 3000), (flat, 3000)):
        segments = list(cut_segments(in_blocks([document], [700]), kind.find_cut, longest))
        assert len(segments) > 10
        made = columns_of(kind, backend, segments, batch=3)
        assert made == whole_examples(backend, [document], capacity=125)


def split_long(text: str, longest: int) -> list[str]:
    """The segments of a language model's document, from its whole text."""
    segments, begin = [], 0
    while len(text) - begin > longest:
        end = text.rfind("\n", begin, begin + longest) + 1 or begin + longest
        segments.append(text[begin:end])
        begin = end
    return [*segments, text[begin:]]


@pytest.mark.parametrize("name", BACKENDS)
@given(
    st.lists(TEXTS.filter(bool), min_size=1, max_size=4),
    SIZES,
    st.integers(1, 60),
    st.integers(1, 5),
)
@max_examples(40)
def test_documents_of_segments_are_those_of_the_whole(
    name: str, documents: list[str], sizes: list[int], longest: int, batch: int
) -> None:
    kind, backend = DocumentKind(end_of_text=0), BACKENDS[name]
    segments = list(cut_segments(in_blocks(documents, sizes), kind.find_cut, longest))
    wanted: dict[str, list] = {"tokens": [], "document_ptr": []}
    for text in documents:
        encoded = backend.encode_batch(split_long(text, longest), add_special_tokens=False)
        ids = [token for one in encoded for token in one.ids]
        wanted["tokens"] += [*ids, 0]
        wanted["document_ptr"].append(len(ids) + 1)
    assert columns_of(kind, backend, segments, batch) == wanted


@given(st.lists(TEXTS, min_size=1, max_size=5), st.floats(0, 1), st.integers(1, 30))
def test_long_documents_are_held_out_by_their_whole_text(
    tmp_path_factory: Any, documents: list[str], share: float, longest: int
) -> None:
    folder = tmp_path_factory.mktemp("held_out")
    segments = list(cut_segments(in_blocks(documents, [7]), find_space, longest))
    decided = list(decide(segments, share, folder))
    assert [segment for _, segment in decided] == segments
    ends = [held_out for held_out, segment in decided if segment.ends]
    for text, held_out in zip(documents, ends, strict=True):
        assert is_held_out(text, held_out) == is_held_out(text, share)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("of_bytes", [False, True])
def test_a_tokenizer_learned_in_segments_is_that_of_the_whole(
    of_bytes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(contexts(120)).replace(" was ", " \u0301was\t'll  ")
    (tmp_path / "a.txt").write_text(text)
    source = SourceConfig(str(tmp_path / "a.txt"))
    parts = open_text(source, "data.text", "train", of_bytes, article="file").parts
    made = []
    for longest in (1 << 16, 100):
        monkeypatch.setattr(learn_tokenizer, "_SEGMENT", longest)
        texts = list(learn_tokenizer._sample(parts, len(text), 0.0, tmp_path))
        assert "".join(texts) == text and (len(texts) == 1) == (longest > 100)
        train = learn_tokenizer.train_byte_bpe if of_bytes else learn_tokenizer.train_bpe
        tokenizer = train(texts, 500) if of_bytes else train(texts, 500, 64)
        made.append(tokenizer.backend_tokenizer.to_str())
    assert made[0] == made[1]


LINES = st.lists(st.sampled_from([*"ab\n é中😀\t\r", "\n\n", "\n \n", "abcdefghij"]), max_size=40)


@given(LINES.map("".join), st.integers(5, 12), st.integers(1, 9), st.integers(20, 60))
@max_examples(150)
def test_lines_and_files_of_any_length_are_read_in_pieces(
    tmp_path_factory: Any, text: str, piece: int, block: int, part_bytes: int
) -> None:
    """A line of white space alone is never longer than a piece here; see `_between_blank_lines`."""
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(text.encode())
    lines = re.split(r"\r?\n", text)
    enclosed = re.split(r"(?:^|\r?\n)(?:[^\S\n]*(?:\n|$))+", text)
    wanted = {"line": lines, "blank_line": enclosed, "file": [text]}
    ends = re.findall(r"\r?\n", text) + [""]
    both = list(map("".join, zip(lines, ends, strict=True)))  # lines with their ends
    groups = ["".join(both[begin : begin + 3]) for begin in range(0, len(both), 3)]
    wanted["3 lines"] = [re.sub(r"\r?\n\Z", "", group) for group in groups]
    if any(len(line.encode()) > 4 and not line[:4].strip() for line in lines):
        del wanted["blank_line"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_lines, "PIECE", piece)
        patch.setattr(read_text, "_PIECE", piece)
        patch.setattr(storage, "BLOCK", block)
        for article, documents in wanted.items():
            for exact in (True, False):
                found = read(path, part_bytes, exact, article) if text else []
                some = documents if exact else [one.strip() for one in documents]
                assert found == [one for one in some if one]


@pytest.mark.parametrize("article", ["line", "blank_line", "file"])
@pytest.mark.parametrize("broken", [b"\xff", b"\xc3", "中".encode()[:2]])
def test_the_byte_that_is_not_utf8_is_named(
    article: str, broken: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_lines, "PIECE", 4)
    monkeypatch.setattr(storage, "BLOCK", 4)
    for before in range(1, 12):
        for after in (b"", b"a\n"):
            content = b"\xc3\xa9" * (before // 2) + b"a" * (before % 2) + broken + after
            (tmp_path / "a.txt").write_bytes(content)
            with pytest.raises(UserError, match=f"a.txt: not UTF-8 at byte {before}; save"):
                read(tmp_path / "a.txt", 1000, True, article)


# In one process, which is also the worker. Its peak is measured from where the work begins.
PEAK = """
from pathlib import Path
from detalbert.corpus.learn_tokenizer import own_tokenizer
from tests.corpus import documents
from tests.fakes import text

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

path, folder = Path({path!r}), Path({folder!r})
data = documents.documents_config(path, folder, tokenizer=None, vocab_size=600)
work = {{
    "documents": lambda: documents.write(path, folder),
    "examples": lambda: text.write(path, folder, article="file"),
    "tokenizer": lambda: own_tokenizer(data, 0.01),
}}
documents.byte_tokenizer()
Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
before = peak()
work[{kind!r}]()
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("kind", ["documents", "examples", "tokenizer"])
def test_memory_does_not_grow_with_a_document(kind: str, tmp_path: Path, script: Script) -> None:
    """One of 8 MB; if it were read and encoded as a whole: 78, 70 and 690 MiB."""
    path = tmp_path / "a.txt"
    text = "\n".join(contexts(600))
    path.write_text(text * (8_000_000 // len(text)))
    source = PEAK.format(path=str(path), folder=str(tmp_path), kind=kind)
    shown = subprocess.run(script(source), capture_output=True, text=True, timeout=600)
    assert shown.returncode == 0, shown.stderr
    assert float(shown.stdout) < 55


@pytest.mark.soak
@pytest.mark.parametrize("size", [24_000_000, 1 << 30])
@pytest.mark.parametrize("name", ["pretrain_local", "lm_local"])
def test_a_writer_has_at_most_400_mib(
    name: str, size: int, tmp_path: Path, real_python: str
) -> None:
    """The command with two workers: each process that writes, and not the child that loads the
    tokenizer, which imports torch and ends before.
    """
    path = tmp_path / "a.txt"
    words = sorted(set(" ".join(contexts(600)).split()))
    dice = random.Random(0)
    with path.open("w") as file:
        while file.tell() < size:
            sentence = " ".join(dice.choices(words, k=dice.randrange(4, 30)))
            file.write(sentence.capitalize() + dice.choice([". ", "? ", ".\n"]))
    key = "text" if name == "pretrain_local" else "documents"
    settings = [f"data.{key}={path}", "data.article=file", f"data.cache_dir={tmp_path}"]
    options = [word for setting in settings for word in ("--set", setting)]
    command = [real_python, "-m", "detalbert.corpus", f"configs/{name}.yaml", "--workers", "2"]
    process = subprocess.Popen([*command, "--output", str(tmp_path / "o"), *options], cwd=ROOT)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for number in [process.pid, *(each.pid for each in psutil.Process(process.pid).children())]:
            with contextlib.suppress(OSError, StopIteration):
                peaks[number] = peak_of(number)
        time.sleep(0.1)
    assert process.returncode == 0
    *writers, loader = sorted(peaks.values())
    assert len(writers) == 3 and max(writers) < 400, (writers, loader)


def peak_of(process: int) -> int:
    """The most that a process had resident, in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10
