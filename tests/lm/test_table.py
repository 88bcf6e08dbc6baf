"""The table of a sharded checkpoint: read wherever it was written, and as data."""

import enum
import io
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
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from detalbert.errors import UserError
from detalbert.training.table import TABLE, find_table, read_table, write_table


class Pickler311(pickle.Pickler):
    """Pickles a member of an enum as CPython 3.11.2 does; later ones name its value."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return getattr, (type(value), value.name)
        return NotImplemented


def pickled(
    metadata: Metadata, kind: type[pickle.Pickler] = Pickler311, protocol: int = 4
) -> bytes:
    """`.metadata` as torch writes it with a Python of this kind."""
    metadata.storage_meta = StorageMeta(Path("folder"), "id")
    metadata.planner_data = {name: tuple(name.split(".")) for name in metadata.state_dict_metadata}
    buffer = io.BytesIO()
    kind(buffer, protocol).dump(metadata)
    return buffer.getvalue()


def write_as_before(folder: Path) -> None:
    """Turn the table of a checkpoint into that of 596c121 on CPython 3.11.2."""
    (folder / ".metadata").write_bytes(pickled(read_table(folder)))
    (folder / TABLE).unlink()


def table() -> Metadata:
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


_LOCAL = b"cpathlib._local\n"


def as_3_13() -> bytes:
    content = pickled(table(), pickle.Pickler, protocol=3).replace(b"cpathlib\n", _LOCAL)
    assert _LOCAL + b"PosixPath\n" in content
    return content


TABLES = {
    "ours": None,
    "this Python": pickled(table(), pickle.Pickler),
    "3.11.2": pickled(table()),
    "3.13": as_3_13(),
}


@pytest.mark.parametrize("content", TABLES.values(), ids=TABLES)
def test_a_table_is_read_whatever_python_wrote_it(content, tmp_path):
    with pytest.raises(UserError, match="tensors.json: not loaded: No such file"):
        read_table(tmp_path)
    if content:
        (tmp_path / ".metadata").write_bytes(content)
    else:
        write_table(tmp_path, table())
        assert find_table(tmp_path).name == "tensors.json"
    found, wanted = read_table(tmp_path), table()
    assert found.state_dict_metadata == wanted.state_dict_metadata
    assert found.storage_data == wanted.storage_data


def calls(module: str, name: str, *arguments: str) -> bytes:
    """A pickle that calls `module.name`; arguments as pickle's opcodes."""
    return f"c{module}\n{name}\n({''.join(arguments)}tR.".encode()


_ENUM = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
GETATTR = "builtins", "getattr"
PLANTED = {
    "system": (calls("os", "system", "S'touch pwned'\n"), "more than tensors: os.system"),
    "eval": (calls("builtins", "eval", 'S\'open("pwned", "w")\'\n'), "builtins.eval"),
    "a class": (calls(*GETATTR, "ctorch\nSize\n", "S'__reduce__'\n"), "builtins.getattr"),
    "no member": (calls(*GETATTR, _ENUM, "S'__class__'\n"), "'__class__'"),
    "beyond a member": (calls(*GETATTR, _ENUM, "S'mro'\n"), "'mro'; give another checkpoint"),
    "Python 2's getattr": (calls("__builtin__", "getattr", _ENUM, "S'mro'\n"), "__builtin__"),
}


@pytest.mark.parametrize("content, said", PLANTED.values(), ids=PLANTED)
def test_nothing_in_a_table_runs(content, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_table(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/.metadata: not loaded: ")
    assert said in str(refused.value) and [p.name for p in tmp_path.iterdir()] == [".metadata"]


CHANGES: dict[str, list[Any]] = {
    "file": ["../__0_0.distcp", "/__0_0.distcp", "code/__0_0.distcp", "__0_0.distcp\n", None],
    "offsets": [[-1, 0], [0.5, 0], [False, 0]],
    "sizes": [[5, 3], [2, 3, 1], [1, 3]],  # beyond the tensor, a dimension more, a hole
    "start": ["7", 2**70],
    "bytes": [-1],
    "dtype": ["complex64", "load"],
    "shape": [[4, 4]],
    "chunks": [None],
}


@pytest.mark.parametrize("key, value", [(key, one) for key in CHANGES for one in CHANGES[key]])
def test_a_table_that_does_not_make_sense_is_refused(key, value, tmp_path):
    write_table(tmp_path, table())
    tensors = json.loads((tmp_path / "tensors.json").read_text())
    tensor = tensors["model.weight"]
    (tensor if key in tensor else tensor["chunks"][0])[key] = value
    (tmp_path / "tensors.json").write_text(json.dumps(tensors))
    with pytest.raises(UserError, match="tensors.json: not loaded: .*; give another checkpoint$"):
        read_table(tmp_path)


@pytest.mark.parametrize("name", ["tensors.json", ".metadata"])
def test_damage_is_one_line(name, tmp_path):
    """Wherever bits flip or the file ends: another error than this would be a traceback."""
    write_table(tmp_path, table())
    if name == ".metadata":
        (tmp_path / "tensors.json").unlink()
        (tmp_path / name).write_bytes(pickled(table(), Pickler311))
    content, dice, refused = (tmp_path / name).read_bytes(), random.Random(1), 0
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(dice.choice([1, 1, 4])):
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        (tmp_path / name).write_bytes(damaged[: dice.choice([len(damaged), len(damaged) // 2])])
        try:
            read_table(tmp_path)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < len(str(tmp_path)) + 200
    assert refused > 50
