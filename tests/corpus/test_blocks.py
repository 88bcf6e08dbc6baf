"""Long documents in blocks: sentences, tokens and splits of the whole text."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
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
from tests.conftest import max_examples
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
    " »",
    "\u00a0» ",
    "«\u202f",
    "봐.",
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
        before = split_sentences(text[:stop], starts)
        after = split_sentences(text[stop:], starts=False)
        assert before + after == split_sentences(text, starts)
        assert text[stop - 1].isspace()


def in_blocks(documents: list[str], sizes: list[int]) -> Iterator[Block]:
    """Yield the documents in blocks of these sizes, in turn, some of them empty."""
    lengths = itertools.cycle(sizes)
    for text in documents:
        length = next(lengths)
        while len(text) > length:
            yield Block(text[:length], ends=False)
            text = text[length:]
            length = next(lengths)
        yield Block(text, ends=True)


@given(st.lists(TEXTS, max_size=4), SIZES)
def test_blocks_are_stripped_as_the_whole_is(documents: list[str], sizes: list[int]) -> None:
    texts = [text.strip() for text in documents]
    assert join(strip(in_blocks(documents, sizes))) == [text for text in texts if text]


@given(TEXTS, SIZES, st.integers(1, 30))
def test_segments_depend_on_the_text_alone(text: str, sizes: list[int], longest: int) -> None:
    find_cut = ExampleKind(16).find_cut

    segments = list(cut_segments(in_blocks([text], sizes), find_cut, longest))

    assert segments == list(cut_segments(in_blocks([text], [1000]), find_cut, longest))
    assert "".join(segment.text for segment in segments) == text
    assert all(len(segment.text) <= longest for segment in segments)
    others = [False] * (len(segments) - 1)
    assert [segment.starts for segment in segments] == [True, *others]
    assert [segment.ends for segment in segments] == [*others, True]


Columns = dict[str, list[int]]  # of a shard, with its tokens


def columns_of(kind: Kind, backend: Tokenizer, segments: list[Segment], size: int) -> Columns:
    """Return tokens and columns of a shard whose segments are tokenized `size` at a time."""
    encoder = WordEncoder(backend)
    columns = kind.columns()
    result: Columns = {"tokens": []}
    for first in range(0, len(segments), size):
        batch = segments[first : first + size]
        texts = [segment.text for segment in batch]
        ends = [segment.ends for segment in batch]
        rows = kind.tokenize(encoder, Segments(texts, ends, batch[0].starts))
        result["tokens"] += rows.tokens.tolist()
        added, _ = columns.add(rows)
        for name, values in added.items():
            result.setdefault(name, []).extend(values.tolist())
    return result


def whole_examples(backend: Tokenizer, documents: list[str], capacity: int) -> Columns:
    """Return the columns of ALBERT's examples, one sentence after another."""
    tokens: list[int] = []
    sentences = []  # their tokens
    sentence_counts: list[int] = []  # of each example
    token_counts: list[int] = []
    for text in documents:
        used = capacity  # a document begins an example
        for sentence in split_sentences(text):
            ids = backend.encode(sentence, add_special_tokens=False).ids
            tokens += ids
            for begin in range(0, len(ids), capacity):
                size = len(ids[begin : begin + capacity])
                if used + size > capacity:
                    sentence_counts.append(0)
                    token_counts.append(0)
                    used = 0
                sentences.append(size)
                sentence_counts[-1] += 1
                token_counts[-1] += size
                used += size
    return {
        "tokens": tokens,
        "sentences": sentences,
        "sentence_ptr": sentence_counts,
        "token_ptr": token_counts,
    }


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
    if all(segment.ends or segment.text[-1].isspace() for segment in segments):
        expected = whole_examples(BACKENDS[name], documents, capacity=13)
        assert columns_of(kind, BACKENDS[name], segments, batch) == expected


@pytest.mark.parametrize("name", ["albert", "wordpiece"])
@given(st.lists(WORDS, min_size=30, max_size=200).map(" ".join), SIZES, st.integers(1, 5))
@max_examples(40)
def test_a_sentence_of_any_length_is_encoded_in_segments(
    name: str, text: str, sizes: list[int], batch: int
) -> None:
    """Cut before a space, it has the tokens of the whole with a tokenizer that drops spaces."""
    kind = ExampleKind(max_seq_length=16)
    segments = list(cut_segments(in_blocks([text], sizes), kind.find_cut, 40))
    expected = whole_examples(BACKENDS[name], [text], capacity=13)
    assert columns_of(kind, BACKENDS[name], segments, batch) == expected


def split_long(text: str, longest: int) -> list[str]:
    """Return the segments of a language model's document, from its whole text."""
    segments = []
    begin = 0
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
    kind = DocumentKind(end_of_text=0)
    backend = BACKENDS[name]
    segments = list(cut_segments(in_blocks(documents, sizes), kind.find_cut, longest))

    tokens: list[int] = []
    lengths = []
    for text in documents:
        before = len(tokens)
        for segment in split_long(text, longest):
            tokens += backend.encode(segment, add_special_tokens=False).ids
        tokens.append(0)  # end of text
        lengths.append(len(tokens) - before)
    expected = {"tokens": tokens, "document_ptr": lengths}
    assert columns_of(kind, backend, segments, batch) == expected


@given(st.lists(TEXTS, min_size=1, max_size=5), st.floats(0, 1), st.integers(1, 30))
def test_long_documents_are_held_out_by_their_whole_text(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], share: float, longest: int
) -> None:
    folder = tmp_path_factory.mktemp("held_out")
    segments = list(cut_segments(in_blocks(documents, [7]), find_space, longest))

    decided = list(decide(segments, share, folder))

    assert [segment for _, segment in decided] == segments
    by_document = [held_out for held_out, segment in decided if segment.ends]
    for text, held_out in zip(documents, by_document, strict=True):
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

    def learn(longest: int) -> tuple[int, str]:
        """Return the number of segments, and the tokenizer learned of them."""
        monkeypatch.setattr(learn_tokenizer, "_SEGMENT", longest)
        texts = list(learn_tokenizer._sample(parts, len(text), 0.0, tmp_path))
        assert "".join(texts) == text
        if of_bytes:
            tokenizer = learn_tokenizer.train_byte_bpe(texts, 500)
        else:
            tokenizer = learn_tokenizer.train_bpe(texts, 500, 64)
        return len(texts), tokenizer.backend_tokenizer.to_str()

    count, tokenizer = learn(1 << 16)
    assert count == 1
    count, tokenizer_of_segments = learn(100)
    assert count > 1
    assert tokenizer_of_segments == tokenizer


LINES = st.lists(st.sampled_from([*"ab\n é中😀\t\r", "\n\n", "\n \n", "abcdefghij"]), max_size=40)


@pytest.mark.slow
@example("   中", 5, 1, 20)  # whose first 5 bytes end within a character
@example("a\n      b\n\nc", 5, 1, 20)  # a line that begins with a piece of white space
@given(LINES.map("".join), st.integers(5, 12), st.integers(1, 9), st.integers(20, 60))
@max_examples(150)
def test_lines_and_files_of_any_length_are_read_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, text: str, piece: int, block: int, part_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_lines, "PIECE", piece)
        patch.setattr(read_text, "_PIECE", piece)
        patch.setattr(storage, "BLOCK", block)
        for article, documents in split_by_rules(text).items():
            for exact in (True, False):
                texts = documents if exact else [document.strip() for document in documents]
                read_back = read(path, part_bytes, exact, article) if text else []
                assert read_back == [text for text in texts if text]


def split_by_rules(text: str) -> dict[str, list[str]]:
    """Return the documents of a text by `data.article`, cut by regular expressions."""
    documents = {"file": [text]}
    if "\r" in text[:-1] and "\n" not in text:  # an old Mac's
        text = text.replace("\r", "\n")
    lines = re.split(r"\r?\n", text)
    documents["line"] = lines
    documents["blank_line"] = re.split(r"(?:^|\r?\n)(?:[^\S\n]*(?:\n|$))+", text)

    # Three lines are joined by their own ends.
    line_ends = [*re.findall(r"\r?\n", text), ""]
    with_ends = [line + end for line, end in zip(lines, line_ends, strict=True)]
    documents["3 lines"] = []
    for begin in range(0, len(with_ends), 3):
        three = "".join(with_ends[begin : begin + 3])
        documents["3 lines"].append(re.sub(r"\r?\n\Z", "", three))
    return documents


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
