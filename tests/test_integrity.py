"""Sums: files are read once on every machine, and again when they may be others."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detalbert import integrity
from detalbert.integrity import checksum, find_change, find_damaged, is_sealed, seal, write_facts


@pytest.fixture
def sums(tmp_path) -> dict[Path, str]:
    files = [tmp_path / "a", tmp_path / "b"]
    return {path: path.write_text(path.name * 9) and checksum(path) for path in files}


def reads(sums: dict[Path, str], *places: Path) -> list[str]:
    """The names of the files that are read, and found as they were written."""
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integrity, "checksum", lambda path: seen.append(path.name) or checksum(path))
        assert find_damaged(sums, *places) == []
    return sorted(seen)


def test_a_machine_reads_files_once(sums, tmp_path, monkeypatch):
    first, place = next(iter(sums)), tmp_path / "place"
    assert reads(sums, place) == ["a", "b"] and reads(sums, place) == []
    os.utime(first, ns=(1, 1))
    assert reads(sums, place) == ["a", "b"] and reads(sums, place) == []
    (tmp_path / "other").write_bytes(first.read_bytes())
    os.utime(tmp_path / "other", ns=(1, 1))
    (tmp_path / "other").replace(first)  # another inode
    assert reads(sums, place) == ["a", "b"]
    monkeypatch.setattr(integrity, "_machine", lambda: "another")
    assert reads(sums, place) == ["a", "b"] and reads(sums, place) == []


def test_where_no_place_can_be_written_files_are_read_again(sums, tmp_path):
    (tmp_path / "blocked").write_text("")
    for _ in range(2):
        assert reads(sums, tmp_path / "blocked") == ["a", "b"]
    assert reads(sums, tmp_path / "blocked", tmp_path / "place") == ["a", "b"]
    assert reads(sums, tmp_path / "blocked", tmp_path / "place") == []


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "other": lambda path: path.write_text("aaaaaaaab"),
    "cut": lambda path: path.write_text("aaaaaaaa"),
    "missing": lambda path: path.unlink(),
    "device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_not_taken_for_checked(kind, sums, tmp_path):
    DAMAGE[kind](tmp_path / "a")
    for _ in range(2):
        assert find_damaged(sums, tmp_path / "place") == [tmp_path / "a"]
    assert not (tmp_path / "place").exists()


def test_facts_and_the_files_beside_them(tmp_path):
    path = tmp_path / "facts.json"
    (tmp_path / "a").write_text("a")
    write_facts(path, {"loss": float("nan"), "nested": {"b": [1.5, None]}})
    assert find_change(path) is None
    content = path.read_text()
    for changed in (content.replace("1.5", "1.6"), content[:-1], "[]", "\x00", '{"files": {}}'):
        path.write_text(changed)
        assert find_change(path) == "facts.json"
    path.write_text(content)
    (tmp_path / "a").write_text("b")
    assert find_change(path) == "a"
    assert is_sealed(seal(seal({"a": 1}))) and not is_sealed({**seal({"a": 1}), "b": 2})
