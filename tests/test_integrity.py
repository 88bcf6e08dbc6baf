"""Sums: files are read once on every machine, and again when they may be others."""

import os
from pathlib import Path

import pytest

from detalbert import integrity
from detalbert.integrity import checksum, find_change, find_damaged, is_sealed, seal, write_facts


@pytest.fixture
def sums(tmp_path) -> dict[Path, str]:
    """Two files, a and b."""
    sums = {}
    for name in ("a", "b"):
        path = tmp_path / name
        path.write_text(name * 9)
        sums[path] = checksum(path)
    return sums


def reads(sums: dict[Path, str], *places: Path) -> list[str]:
    """The names of the files that are read, and found as they were written."""
    names: list[str] = []

    def note_and_sum(path: Path) -> str:
        names.append(path.name)
        return checksum(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integrity, "checksum", note_and_sum)
        assert find_damaged(sums, *places) == []
    return sorted(names)


def assert_read_once(sums: dict[Path, str], place: Path) -> None:
    assert reads(sums, place) == ["a", "b"]
    assert reads(sums, place) == []


def test_a_machine_reads_files_once(sums, tmp_path):
    assert_read_once(sums, tmp_path / "place")


def test_files_of_another_time_or_inode_or_machine_are_read_again(sums, tmp_path, monkeypatch):
    place = tmp_path / "place"
    file = tmp_path / "a"
    assert_read_once(sums, place)
    os.utime(file, ns=(1, 1))
    assert_read_once(sums, place)

    same_content = tmp_path / "other"
    same_content.write_bytes(file.read_bytes())
    os.utime(same_content, ns=(1, 1))
    same_content.replace(file)  # another inode
    assert_read_once(sums, place)

    monkeypatch.setattr(integrity, "_machine", lambda: "another")
    assert_read_once(sums, place)


def test_where_no_place_can_be_written_files_are_read_again(sums, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    for _ in range(2):
        assert reads(sums, blocked) == ["a", "b"]
    assert reads(sums, blocked, tmp_path / "place") == ["a", "b"]
    assert reads(sums, blocked, tmp_path / "place") == []


@pytest.mark.parametrize("kind", ["other", "cut", "missing", "device", "folder"])
def test_damage_is_found_and_not_taken_for_checked(kind, sums, tmp_path):
    path = tmp_path / "a"
    path.unlink()
    match kind:
        case "other":
            path.write_text("aaaaaaaab")
        case "cut":
            path.write_text("aaaaaaaa")
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
    for _ in range(2):
        assert find_damaged(sums, tmp_path / "place") == [path]
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


def test_a_seal_is_of_all_values():
    assert is_sealed(seal(seal({"a": 1})))
    assert not is_sealed({**seal({"a": 1}), "b": 2})
