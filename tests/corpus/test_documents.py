"""What `data.documents` names gives the very text, compressed or not; pieces of long documents."""

import copy
import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing

from detalbert.corpus.blocks import SEGMENT, Block, Segments, cut_segments
from detalbert.corpus.documents import document_kind
from detalbert.corpus.read_text import TextReader
from detalbert.corpus.shards import Kind
from detalbert.corpus.sources import open_text, unpack_sizes
from detalbert.corpus.words import WordEncoder
from detalbert.reading import forms, storage
from detalbert.settings.text import SourceConfig
from lm.inference.complete import encode_prompt
from tests.corpus.documents import byte_tokenizer, join, read, write_lines


def test_json_lines_may_be_blank_and_their_files_have_several_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n  \n{"text": ""}\n{"text": " "}\r\n\n')
    assert read(path, part_bytes=300) == [" "]

    # Half a surrogate pair is a replacement character.
    path.write_text('{"text": "a\\ud83d b\\ud83d\\ude00"}\n')
    assert read(path, part_bytes=300) == ["a\ufffd b😀"]

    frame = gzip.compress(b'{"text": "a"}\n')
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(frame * 3)
    assert read(path, part_bytes=300) == ["a"] * 3


def segments(texts: list[str], kind: Kind, longest: int = SEGMENT) -> Segments:
    """Return `texts`, documents, as a writer hands them to `kind`."""
    blocks = (Block(text, ends=True) for text in texts)
    cut = list(cut_segments(blocks, kind.find_cut, longest))
    return Segments([segment.text for segment in cut], [segment.ends for segment in cut])


TEXTS = [f"{i} " + "x" * (i * 37 % 900) for i in range(300)]


def test_parts_in_a_row_read_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where lines are longer than blocks and parts."""
    path = write_lines(tmp_path / "a.jsonl.zst", TEXTS)
    monkeypatch.setattr(storage, "BLOCK", 64)
    opened = []

    def read_stored(address: str, begin: int, end: int) -> Iterator[bytes]:
        opened.append(address)
        return storage.read(address, begin, end)

    monkeypatch.setattr(forms, "read", read_stored)

    assert read(path, part_bytes=50) == TEXTS

    # Its first bytes as they are and unpacked, for its size, and to read it.
    assert len(opened) == 4
    text = open_text(SourceConfig(str(path)), "key", "train", exact=True)
    (part,) = unpack_sizes(text, tmp_path)
    reader = TextReader()
    assert join(reader.read(part)) == TEXTS
    assert join(reader.read(part)) == TEXTS  # from its start again


def test_a_document_begins_as_the_tokenizers_own_call(tmp_path: Path) -> None:
    """As Llama's and Gemma's do; across segments and batches, once for each document."""
    tokenizer = copy.deepcopy(byte_tokenizer())
    begin, end = tokenizer.convert_tokens_to_ids(["z", "<|endoftext|>"])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="z $A", pair="z $A $B", special_tokens=[("z", begin)]
    )
    kind = document_kind(tokenizer)
    assert kind.begin_of_text == [begin]
    assert document_kind(byte_tokenizer()).begin_of_text == []

    texts = ["one two", "three", "four\nfive"]
    documents = [[*tokenizer(text)["input_ids"], end] for text in texts]
    encoder = WordEncoder(kind.backend(tokenizer))
    rows = kind.tokenize(encoder, segments(texts, kind))
    assert rows.tokens.tolist() == list(itertools.chain.from_iterable(documents))
    assert rows.lengths.tolist() == [len(document) for document in documents]

    # A document of two batches begins in the first and ends in the second.
    batches = [Segments(["four\n"], [False]), Segments(["five"], [True], starts=False)]
    tokens = []
    for batch in batches:
        tokens += kind.tokenize(encoder, batch).tokens.tolist()
    assert tokens == documents[-1]
    assert encode_prompt(tokenizer, "one") == tokenizer("one")["input_ids"]
