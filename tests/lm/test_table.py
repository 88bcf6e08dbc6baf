"""The table of a sharded checkpoint: read wherever it was written, and as data."""

import copy
import enum
import io
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

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


def entry(dtype: str, shape: list[int], *chunks: tuple[Any, ...]) -> dict[str, Any]:
    names = "offsets", "sizes", "file", "start", "bytes"
    found = [dict(zip(names, chunk, strict=True)) for chunk in chunks]
    return {"dtype": dtype, "shape": shape, "chunks": found}


HALVES = [([2 * rank, 0], [2, 3], f"__{rank}_0.distcp", 7, 99) for rank in (0, 1)]
TENSORS = {"model.weight": entry("bfloat16", [4, 3], *HALVES)}
TENSORS |= {"step": entry("int64", [], ([], [], "__0_0.distcp", 106, 50))}


@pytest.fixture
def table(tmp_path: Path) -> Metadata:
    """That of TENSORS, which lie in tmp_path."""
    (tmp_path / TABLE).write_text(json.dumps(TENSORS))
    return read_table(tmp_path)


def as_3_13(table: Metadata) -> bytes:
    content = pickled(table, pickle.Pickler, protocol=3)
    return content.replace(b"cpathlib\n", b"cpathlib._local\n")


PYTHONS = {"this": lambda table: pickled(table, pickle.Pickler), "3.11.2": pickled, "3.13": as_3_13}


@pytest.mark.parametrize("python", PYTHONS)
def test_a_table_is_read_whatever_python_wrote_it(python, table, tmp_path):
    (tmp_path / ".metadata").write_bytes(PYTHONS[python](table))
    assert find_table(tmp_path).name == TABLE
    (tmp_path / TABLE).unlink()
    found = read_table(tmp_path)
    assert found.state_dict_metadata == table.state_dict_metadata
    assert found.storage_data == table.storage_data
    (tmp_path / ".metadata").unlink()
    with pytest.raises(UserError, match="tensors.json: not loaded: No such file"):
        read_table(tmp_path)
    write_table(tmp_path, found)
    assert json.loads((tmp_path / TABLE).read_text()) == TENSORS


def calls(module: str, name: str, *arguments: str) -> bytes:
    """A pickle that calls `module.name`; arguments as pickle's opcodes."""
    return f"c{module}\n{name}\n({''.join(arguments)}tR.".encode()


_ENUM = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
GETATTR = "builtins", "getattr"
PLANTED = {
    "system": (calls("os", "system", "S'touch pwned'\n"), "more than tensors: os.system"),
    "a class": (calls(*GETATTR, "ctorch\nSize\n", "S'__reduce__'\n"), "builtins.getattr"),
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
    tensors = copy.deepcopy(TENSORS)
    tensor = tensors["model.weight"]
    (tensor if key in tensor else tensor["chunks"][0])[key] = value
    (tmp_path / TABLE).write_text(json.dumps(tensors))
    with pytest.raises(UserError, match="tensors.json: not loaded: .*; give another checkpoint$"):
        read_table(tmp_path)


@pytest.mark.parametrize("name", [TABLE, ".metadata"])
def test_damage_is_one_line(name, table, tmp_path):
    """Wherever bits flip or the file ends: another error than this would be a traceback."""
    if name == ".metadata":
        write_as_before(tmp_path)
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
