"""Sums: damage is found, and unchanged files are read once."""

import os

import pytest

from detalbert import sums
from detalbert.sums import checksum, find_change, is_sealed, load_json, seal, write_sums


@pytest.fixture
def folder(tmp_path):
    """A folder of two files, with their sums."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(name * 9)
    write_sums(tmp_path, key="key")
    return tmp_path


def count_reads(folder):
    """Return how many files are read to find no change."""
    names = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "checksum", lambda path: (names.append(path), checksum(path))[1])
        assert find_change(folder, key="key") is None
    return len(names)


def test_files_are_read_once_and_again_when_they_may_be_others(folder):
    file = folder / "a"
    assert [count_reads(folder) for _ in range(2)] == [2, 0]
    os.utime(file, ns=(1, 1))
    assert [count_reads(folder) for _ in range(2)] == [2, 0]
    file.rename(folder / "other")
    file.write_text("a" * 9)  # another inode
    os.utime(file, ns=(1, 1))
    assert [count_reads(folder) for _ in range(2)] == [2, 0]


@pytest.mark.parametrize("kind", ["device", "pipe", "deep", "large", "cut"])
def test_json_is_of_a_file_that_ends(kind, tmp_path):
    file = tmp_path / "a.json"
    match kind:
        case "device":
            file.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(file)
        case "deep":
            file.write_text("[" * 100_000)
        case "large":
            file.touch()
            os.truncate(file, 1 << 40)
        case "cut":
            file.write_text("[1")
    with pytest.raises((OSError, ValueError)):
        load_json(file)


@pytest.mark.parametrize("kind", ["other", "missing", "device", "folder", "unreadable"])
def test_damage_is_found_and_not_taken_for_checked(kind, folder, monkeypatch):
    file = folder / "a"
    file.unlink()
    match kind:
        case "other":
            file.write_text("aaaaaaaab")
        case "device":
            file.symlink_to("/dev/zero")
        case "folder":
            file.mkdir()
        case "unreadable":  # by its owner's rights, which root ignores

            def refuse(path):
                raise PermissionError(13, "Permission denied", str(path))

            file.write_text("aaaaaaaaa")
            monkeypatch.setattr(sums, "checksum", refuse)
    for _ in range(2):
        assert find_change(folder) == "a"


@pytest.mark.parametrize("content", ["x", "[]", "\0", '{"files": {}}', '{"files": 3}'])
def test_changed_sums_are_a_change(content, folder):
    assert find_change(folder, key="another") == "sums.json"
    (folder / "sums.json").write_text(content)
    assert find_change(folder) == "sums.json"


def test_a_seal_is_of_all_values():
    values = {"a": 1, "nested": {"b": [1.5, None, float("nan")]}}
    assert is_sealed(seal(seal(values)))
    assert not is_sealed({**seal(values), "b": 2})
