"""The table of a sharded checkpoint: read as data, whatever it holds."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.metadata import Metadata

from detalbert.errors import UserError
from detalbert.training.table import TABLE, read_table, write_table


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


def test_a_table_is_written_as_it_was_read(table: Metadata, tmp_path: Path) -> None:
    (tmp_path / TABLE).unlink()
    with pytest.raises(UserError, match="tensors.json: not loaded: No such file"):
        read_table(tmp_path)
    write_table(tmp_path, table)
    assert json.loads((tmp_path / TABLE).read_text()) == TENSORS


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


def test_damage_is_one_line(table: Metadata, tmp_path: Path) -> None:
    """Wherever bits flip or the file ends: another error than this would be a traceback."""
    content = (tmp_path / TABLE).read_bytes()
    dice = random.Random(1)
    refused = 0
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(dice.choice([1, 1, 4])):
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        (tmp_path / TABLE).write_bytes(damaged[: dice.choice([len(damaged), len(damaged) // 2])])
        try:
            read_table(tmp_path)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < len(str(tmp_path)) + 200
    assert refused > 50
