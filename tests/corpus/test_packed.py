"""Compressed files are read as what is in them, in parts of any size, and each once."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus import packed, storage
from detalbert.corpus.sources import cut_parts, open_documents, read_exact, unpack_sizes
from detalbert.errors import UserError
from tests.conftest import max_examples
from tests.corpus.documents import write_lines

TEXTS = [f"{i} " + "x" * (i * 37 % 900) for i in range(300)]


def documents(address: Any, part_bytes: int) -> list[str]:
    parts = unpack_sizes(open_documents(str(address), "data.documents", "train").parts)
    return [text for part in cut_parts(parts, part_bytes) for text, _ in read_exact(part)]


@given(st.integers(20, 5000), st.integers(40, 4000), st.sampled_from([".zst", ".gz"]))
@max_examples(20)
def test_parts_share_out_every_line_once(
    tmp_path_factory: Any, part_bytes: int, block: int, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("packed") / f"a.jsonl{suffix}"
    write_lines(path, TEXTS[:60])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "BLOCK", block)
        assert documents(path, part_bytes) == TEXTS[:60]


def test_parts_in_a_row_read_a_file_once(tmp_path: Path, monkeypatch: Any) -> None:
    """Also where lines are longer than blocks and parts. Each process has a stream of its own."""
    path = write_lines(tmp_path / "a.jsonl.zst", TEXTS)
    monkeypatch.setattr(storage, "BLOCK", 64)
    opened = []
    read = storage.read
    monkeypatch.setattr(storage, "read", lambda *a: (opened.append(a), read(*a))[1])
    assert documents(path, 50) == TEXTS
    assert len(opened) == 2  # for its size, and to read it
    monkeypatch.setattr(packed.os, "getpid", lambda: 1)
    assert list(packed.read(str(path), path.stat().st_size, 9, 9))[0][:3] != b""
    assert len(opened) == 3


def test_several_frames_are_one_file(tmp_path: Path) -> None:
    line = b'{"text": "a"}\n'
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(line) * 3)
    assert documents(tmp_path / "a.jsonl.gz", 1000) == ["a"] * 3


def damage(content: bytes, how: str) -> bytes:
    if how == "truncated":
        return content[: len(content) // 2]
    return json.dumps({"text": "not compressed"}).encode()


@pytest.mark.parametrize("how", ["truncated", "not compressed"])
@pytest.mark.parametrize("suffix", [".zst", ".gz"])
def test_damage_is_one_line(suffix: str, how: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / f"a.jsonl{suffix}", TEXTS)
    path.write_bytes(damage(path.read_bytes(), how))
    with pytest.raises(UserError, match=f"{path}: damaged, or not what its name says: .*copy it"):
        documents(path, 1000)
