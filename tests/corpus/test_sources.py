"""Text of every kind gives the same documents, however it is cut into parts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus.sources import open_text, read_documents
from tests.conftest import max_examples
from tests.fakes.text import contexts

NO_LINE_END = st.characters(
    codec="utf-8", exclude_characters="\n\r\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"
)


def documents(address: Any, part_bytes: int) -> list[str]:
    parts = open_text(str(address), "data.text", part_bytes, "train").parts
    return [text for part in parts for text, _ in read_documents(part)]


@pytest.mark.parametrize("part_bytes", [300, 1 << 20])
def test_every_source_gives_the_same_documents(part_bytes: int, tmp_path: Path) -> None:
    texts = contexts(40)
    jsonl = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("\n".join(texts))
    (tmp_path / "a.jsonl").write_text("\n".join(jsonl))
    squad = {"data": [{"paragraphs": [{"context": text, "qas": []} for text in texts]}]}
    (tmp_path / "a.json").write_text(json.dumps(squad))
    (tmp_path / "folder" / "1.txt").write_text("\n".join(texts[:15]))
    (tmp_path / "folder" / "deep" / "2.jsonl").write_text("\n".join(jsonl[15:]))
    (tmp_path / "folder" / "notes.md").write_text("not text")
    for name in ("a.txt", "a.jsonl", "a.json", "folder"):
        assert documents(tmp_path / name, part_bytes) == texts, name
    assert documents(f"file://{tmp_path}/a.txt", part_bytes) == texts


@given(st.lists(st.text(NO_LINE_END, max_size=30), max_size=12), st.integers(1, 40), st.booleans())
@max_examples(150)
def test_parts_share_out_every_line_once(
    tmp_path_factory: Any, lines: list[str], part_bytes: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(("\n".join(lines) + "\n" * ends).encode())
    if path.stat().st_size:
        assert documents(path, part_bytes) == [line.strip() for line in lines if line.strip()]


def test_text_is_read_through_faults(s3: Any) -> None:
    client, faults = s3
    texts = contexts(60)
    client.put_object(Bucket="bucket", Key="text/1.txt", Body="\n".join(texts[:30]).encode())
    client.put_object(Bucket="bucket", Key="text/2.txt", Body="\n".join(texts[30:]).encode())
    client.put_object(Bucket="bucket", Key="textbook.txt", Body=b"Not below text/.")
    faults.kinds = ["fine", "500", "truncated"]
    assert documents("s3://bucket/text", 1500) == texts
    assert faults.done["truncated"] and faults.done["500"]
