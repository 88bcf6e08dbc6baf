"""What `data.documents` names gives the very text; long documents are encoded in pieces."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus import documents
from detalbert.corpus.documents import Documents, split_long
from detalbert.corpus.sources import cut_parts, open_documents, read_exact, unpack_sizes
from detalbert.corpus.words import make_encoder
from detalbert.errors import UserError
from tests.corpus.documents import byte_tokenizer, write_lines
from tests.fakes.text import contexts

CODE = "def f(x):\n    if x:\n        return  1\r\n\n\nclass A:\n\tpass\n"


def read(address: Any, part_bytes: int = 300) -> list[str]:
    parts = unpack_sizes(open_documents(str(address), "data.documents", "train").parts)
    return [text for part in cut_parts(parts, part_bytes) for text, _ in read_exact(part)]


def test_every_source_gives_the_same_documents(tmp_path: Path) -> None:
    texts = [*contexts(20), CODE, " \n", "\ttab", "😀"]
    for suffix in (".jsonl", ".jsonl.zst", ".jsonl.gz"):
        assert read(write_lines(tmp_path / f"a{suffix}", texts)) == texts
    squad = {"data": [{"paragraphs": [{"context": text, "qas": []} for text in texts]}]}
    (tmp_path / "a.json").write_text(json.dumps(squad))
    assert read(tmp_path / "a.json") == texts
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    for number, text in enumerate(texts[:15]):
        (folder / f"{number:02}.txt").write_bytes(text.encode())
    write_lines(folder / "deep" / "b.jsonl.zst", texts[15:])
    (folder / "notes.md").write_text("not text")
    assert read(folder) == texts
    assert read(f"file://{folder}") == texts


def test_a_text_file_is_one_document_and_blank_lines_of_json_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(CODE.encode())
    assert read(tmp_path / "a.txt", 5) == [CODE]
    (tmp_path / "a.md").write_bytes(CODE.encode())  # named, not found in a folder
    assert read(tmp_path / "a.md", 5) == [CODE]
    (tmp_path / "a.jsonl").write_text('\n  \n{"text": ""}\n{"text": " "}\r\n\n')
    assert read(tmp_path / "a.jsonl") == [" "]


def test_half_a_surrogate_pair_is_a_replacement_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud83d b\\ud83d\\ude00"}\n')
    assert read(tmp_path / "a.jsonl") == ["a\ufffd b😀"]


def test_documents_on_s3(s3: Any, tmp_path: Path) -> None:
    client, faults = s3
    texts = contexts(60)
    for suffix in ("jsonl.zst", "txt"):
        path = tmp_path / f"a.{suffix}"
        write_lines(path, texts) if suffix != "txt" else path.write_text(CODE)
        client.put_object(Bucket="bucket", Key=f"documents/{path.name}", Body=path.read_bytes())
    faults.kinds = ["fine", "truncated"]
    assert read("s3://bucket/documents", 1500) == [*texts, CODE]


def test_a_missing_file_is_no_hub_name() -> None:
    with pytest.raises(UserError, match="data.documents: no/x.jsonl.zst: no such file"):
        open_documents("no/x.jsonl.zst", "data.documents", "train")


@given(st.text("ab\n", max_size=80), st.integers(1, 9))
def test_pieces_of_a_document_are_the_document(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_PIECE", size)
        pieces = split_long(text)
    assert "".join(pieces) == text and all(len(piece) <= size for piece in pieces)
    for piece in pieces[:-1]:  # a line where one ends, else all that is allowed
        assert piece.endswith("\n") or len(piece) == size and "\n" not in piece
    assert len(pieces) == 1 or len(text) > size


def test_tokens_are_the_tokenizers_and_end_of_text() -> None:
    encoder = make_encoder(byte_tokenizer().backend_tokenizer)
    texts = ["a long one\n" * 30, "b", "ü"]
    for piece in (1 << 18, 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(documents, "_PIECE", piece)
            patch.setattr(documents, "_AT_ONCE", 2 * piece)
            ids, lengths, sizes = Documents(end_of_text=0).tokenize(encoder, texts)
        wanted = [[*byte_tokenizer()(text)["input_ids"], 0] for text in texts]
        assert sizes.tolist() == [330, 1, 2] and lengths.sum() == len(ids)
        if piece > 20:  # else a line is cut, and its end may be another token
            assert ids.tolist() == sum(wanted, []) and lengths.tolist() == list(map(len, wanted))
