"""What `data.documents` names gives the very text, compressed or not; pieces of long documents."""

import copy
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from detalbert.corpus.blocks import SEGMENT, Block, Segments, cut_segments
from detalbert.corpus.documents import DocumentKind, document_kind
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.shards import Kind
from detalbert.corpus.sources import open_text, unpack_sizes
from detalbert.corpus.words import WordEncoder
from detalbert.errors import UserError
from detalbert.reading import forms, storage
from detalbert.settings.text import SourceConfig
from lm.inference.complete import encode_prompt
from tests.corpus.documents import CODE, byte_tokenizer, join, read, write_lines


@given(st.lists(st.text("ab\n", min_size=1, max_size=30)), st.integers(1, 9))
def test_lines_do_not_depend_on_blocks(blocks: list[str], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "BLOCK", size)
        lines = list(storage.as_file(block.encode() for block in blocks))
    assert lines == "".join(blocks).encode().splitlines(keepends=True)


def test_a_text_file_is_one_document_and_blank_lines_of_json_are_none(tmp_path: Path) -> None:
    for name in ("a.txt", "a.md"):  # named, not found in a folder
        (tmp_path / name).write_bytes(CODE.encode())
        assert read(tmp_path / name, 5) == [CODE]
    (tmp_path / "a.jsonl").write_text('\n  \n{"text": ""}\n{"text": " "}\r\n\n')
    assert read(tmp_path / "a.jsonl", 300) == [" "]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n') * 3)  # several frames
    assert read(tmp_path / "a.jsonl.gz", 300) == ["a"] * 3
    # Half a surrogate pair is a replacement character.
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud83d b\\ud83d\\ude00"}\n')
    assert read(tmp_path / "a.jsonl", 300) == ["a\ufffd b😀"]


def segments(texts: list[str], kind: Kind, longest: int = SEGMENT) -> Segments:
    """`texts`, documents, as a writer hands them to `kind`."""
    blocks = (Block(text, ends=True) for text in texts)
    cut = list(cut_segments(blocks, kind.find_cut, longest))
    return Segments([one.text for one in cut], [one.ends for one in cut])


@given(st.text("ab\n", max_size=80), st.integers(1, 9))
def test_pieces_of_a_document_are_the_document(text: str, size: int) -> None:
    pieces = segments([text], DocumentKind(0), size).texts
    assert "".join(pieces) == text and all(len(piece) <= size for piece in pieces)
    for piece in pieces[:-1]:  # a line where one ends, else all that is allowed
        assert piece.endswith("\n") or len(piece) == size and "\n" not in piece
    assert len(pieces) == 1 or len(text) > size


def test_tokens_are_the_tokenizers_and_end_of_text() -> None:
    encoder, kind = WordEncoder(byte_tokenizer().backend_tokenizer), DocumentKind(end_of_text=0)
    texts = ["a long one\n" * 30, "b", "ü"]
    for longest in (SEGMENT, 20):
        rows = kind.tokenize(encoder, segments(texts, kind, longest))
        columns, counts = kind.columns().add(rows)
        lengths = columns["document_ptr"]
        wanted = [[*byte_tokenizer()(text)["input_ids"], 0] for text in texts]
        assert counts == {"documents": 3, "tokens": len(rows.tokens), "text_bytes": 333}
        assert lengths.sum() == len(rows.tokens)
        if longest > 20:  # else a line is cut, and its end may be another token
            assert rows.tokens.tolist() == sum(wanted, [])
            assert lengths.tolist() == list(map(len, wanted))


TEXTS = [f"{i} " + "x" * (i * 37 % 900) for i in range(300)]


def test_parts_in_a_row_read_a_file_once(tmp_path: Path, monkeypatch: Any) -> None:
    """Also where lines are longer than blocks and parts."""
    path = write_lines(tmp_path / "a.jsonl.zst", TEXTS)
    monkeypatch.setattr(storage, "BLOCK", 64)
    opened = []

    def read_stored(address: str, begin: int, end: int) -> Iterator[bytes]:
        opened.append(address)
        return storage.read(address, begin, end)

    monkeypatch.setattr(forms, "read", read_stored)
    assert read(path, 50) == TEXTS
    # Its first bytes as they are and unpacked, for its size, and to read it.
    assert len(opened) == 4
    (part,) = unpack_sizes(open_text(SourceConfig(str(path)), "key", "train", exact=True), tmp_path)
    reader = TextReader()
    assert [join(reader.read(part)) for _ in range(2)] == [TEXTS, TEXTS]  # from its start again


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
def test_damage_is_one_line(suffix: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / f"a.jsonl{suffix}", TEXTS)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=f"{path}: damaged, or cut off .*; copy it again"):
        read(path, 1000)
    path.write_bytes(b'{"text": "a"}')  # not compressed, as its first bytes say
    assert read(path, 1000) == ["a"]


def test_a_document_begins_as_the_tokenizers_own_call(tmp_path: Path) -> None:
    """As Llama's and Gemma's do; across segments and batches, once for each document."""
    tokenizer = copy.deepcopy(byte_tokenizer())
    begin, end = tokenizer.convert_tokens_to_ids(["z", "<|endoftext|>"])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="z $A", pair="z $A $B", special_tokens=[("z", begin)]
    )
    kind = document_kind(tokenizer)
    assert (kind.begin_of_text, document_kind(byte_tokenizer()).begin_of_text) == ([begin], [])
    texts = ["one two", "three", "four\nfive"]
    own = [token for text in texts for token in [*tokenizer(text)["input_ids"], end]]
    encoder = WordEncoder(kind.backend(tokenizer))
    whole = kind.tokenize(encoder, segments(texts, kind))
    assert whole.tokens.tolist() == own
    assert whole.lengths.tolist() == [len(tokenizer(text)["input_ids"]) + 1 for text in texts]
    # A document of two batches begins in the first and ends in the second.
    batches = [Segments(["four\n"], [False]), Segments(["five"], [True], starts=False)]
    rows = [kind.tokenize(encoder, batch) for batch in batches]
    tokens = [token for row in rows for token in row.tokens.tolist()]
    assert tokens == [*tokenizer("four\nfive")["input_ids"], end]
    assert encode_prompt(tokenizer, "one") == tokenizer("one")["input_ids"]
