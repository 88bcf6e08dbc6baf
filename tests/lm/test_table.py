"""The table of a sharded checkpoint: read wherever it was written, and as data."""

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from detalbert.errors import UserError
from detalbert.training.table import find_table, read_table, write_table
from tests.lm.tables import Pickler311, pickled


def table() -> Metadata:
    """A tensor in two chunks, of two ranks, and a number."""
    size = torch.Size
    halves = [ChunkStorageMetadata(size([row, 0]), size([2, 3])) for row in (0, 2)]
    number = ChunkStorageMetadata(size([]), size([]))
    kinds = [TensorProperties(dtype) for dtype in (torch.bfloat16, torch.int64)]
    entries = {
        "model.weight": TensorStorageMetadata(kinds[0], size([4, 3]), halves),
        "step": TensorStorageMetadata(kinds[1], size([]), [number]),
    }
    places = {
        MetadataIndex("model.weight", [row, 0], row): _StorageInfo(f"__{row // 2}_0.distcp", 7, 99)
        for row in (0, 2)
    }
    places[MetadataIndex("step", [])] = _StorageInfo("__0_0.distcp", 106, 50)
    return Metadata(entries, storage_data=places)


def same(one: Metadata, other: Metadata) -> bool:
    entries = one.state_dict_metadata == other.state_dict_metadata
    return entries and one.storage_data == other.storage_data


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_table(tmp_path, table())
    assert find_table(tmp_path).name == "tensors.json" and same(read_table(tmp_path), table())


_LOCAL = b"cpathlib._local\n"


def as_3_13() -> bytes:
    """Where PosixPath is of another module, which no other version has."""
    content = pickled(table(), pickle.Pickler, protocol=3).replace(b"cpathlib\n", _LOCAL)
    assert _LOCAL + b"PosixPath\n" in content
    return content


@pytest.mark.parametrize(
    "content",
    [pickled(table()), pickled(table(), pickle.Pickler), as_3_13()],
    ids=["3.11.2", "this Python", "3.13"],
)
def test_a_pickled_table_is_read_whatever_python_wrote_it(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    assert same(read_table(tmp_path), table())


def test_the_pickle_is_that_of_3_11_2() -> None:
    """So the test before tries what it says."""
    content, own = pickled(table()), pickled(table(), pickle.Pickler)
    assert b"getattr" in content and (own == content or b"getattr" not in own)


def calls(module: str, name: str, *arguments: str) -> bytes:
    """A pickle that calls `module.name`; arguments as pickle's opcodes."""
    return f"c{module}\n{name}\n({''.join(arguments)}tR.".encode()


_ENUM = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
PLANTED = {
    "system": (calls("os", "system", "S'touch pwned'\n"), "more than tensors: os.system"),
    "eval": (calls("builtins", "eval", 'S\'open("pwned", "w")\'\n'), "builtins.eval"),
    "getattr of a class": (
        calls("builtins", "getattr", "ctorch\nSize\n", "S'__reduce__'\n"),
        "more than tensors: builtins.getattr",
    ),
    "getattr of a string": (calls("builtins", "getattr", "S'a'\n", "S'join'\n"), "getattr"),
    "no member": (calls("builtins", "getattr", _ENUM, "S'__class__'\n"), "'__class__'"),
    "getattr beyond a member": (
        calls("builtins", "getattr", _ENUM, "S'mro'\n"),
        "not loaded: 'mro'; give another checkpoint",
    ),
    "Python 2's getattr": (calls("__builtin__", "getattr", _ENUM, "S'mro'\n"), "__builtin__"),
}


@pytest.mark.parametrize("content, said", PLANTED.values(), ids=PLANTED)
def test_nothing_in_a_table_runs(
    content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_table(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/.metadata: not loaded: ")
    assert said in str(refused.value) and [p.name for p in tmp_path.iterdir()] == [".metadata"]


CHANGES: dict[str, Any] = {
    "another folder": ("file", "../__0_0.distcp"),
    "an absolute name": ("file", "/__0_0.distcp"),
    "a folder in it": ("file", "code/__0_0.distcp"),
    "another line": ("file", "__0_0.distcp\n"),
    "no name": ("file", None),
    "before the tensor": ("offsets", [-1, 0]),
    "beyond the tensor": ("sizes", [5, 3]),
    "a dimension more": ("sizes", [2, 3, 1]),
    "a hole": ("sizes", [1, 3]),
    "half a row": ("offsets", [0.5, 0]),
    "a truth": ("offsets", [False, 0]),
    "text": ("start", "7"),
    "before the file": ("bytes", -1),
    "too large": ("start", 2**70),
    "type": ("dtype", "complex64"),
    "no type": ("dtype", "load"),
    "another shape": ("shape", [4, 4]),
    "no chunks": ("chunks", None),
}


@pytest.mark.parametrize("key, value", CHANGES.values(), ids=CHANGES)
def test_a_table_that_does_not_make_sense_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    write_table(tmp_path, table())
    tensors = json.loads((tmp_path / "tensors.json").read_text())
    tensor = tensors["model.weight"]
    (tensor if key in tensor else tensor["chunks"][0])[key] = value
    (tmp_path / "tensors.json").write_text(json.dumps(tensors))
    with pytest.raises(UserError, match="tensors.json: not loaded: .*; give another checkpoint$"):
        read_table(tmp_path)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tensors.json: not loaded: No such file"):
        read_table(tmp_path)


@pytest.mark.parametrize("name", ["tensors.json", ".metadata"])
def test_damage_is_one_line(name: str, tmp_path: Path) -> None:
    """Wherever bits flip or the file ends: another error than this would be a traceback."""
    write_table(tmp_path, table())
    if name == ".metadata":
        (tmp_path / "tensors.json").rename(tmp_path / "old")
        (tmp_path / name).write_bytes(pickled(table(), Pickler311))
    content, dice, refused = (tmp_path / name).read_bytes(), random.Random(1), 0
    for _ in range(500):
        damaged = bytearray(content)
        for _ in range(dice.choice([1, 1, 4])):
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        (tmp_path / name).write_bytes(damaged[: dice.choice([len(damaged), len(damaged) // 2])])
        try:
            read_table(tmp_path)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < len(str(tmp_path)) + 200
    assert refused > 250
