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


def half(rank: int) -> dict[str, Any]:
    """The chunk of rank 0 or 1."""
    return {
        "offsets": [2 * rank, 0],
        "sizes": [2, 3],
        "file": f"__{rank}_0.distcp",
        "start": 7,
        "bytes": 99,
    }


STEP = {"offsets": [], "sizes": [], "file": "__0_0.distcp", "start": 106, "bytes": 50}
TENSORS = {
    "model.weight": {"dtype": "bfloat16", "shape": [4, 3], "chunks": [half(0), half(1)]},
    "step": {"dtype": "int64", "shape": [], "chunks": [STEP]},
}


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


CHUNK_CHANGES: dict[str, list[Any]] = {
    "file": ["../__0_0.distcp", "/__0_0.distcp", "code/__0_0.distcp", "__0_0.distcp\n", None],
    "offsets": [[-1, 0], [0.5, 0], [False, 0]],
    "sizes": [[5, 3], [2, 3, 1], [1, 3]],  # beyond the tensor, a dimension more, a hole
    "start": ["7", 2**70],
    "bytes": [-1],
}
TENSOR_CHANGES: dict[str, list[Any]] = {
    "dtype": ["complex64", "load"],
    "shape": [[4, 4]],
    "chunks": [None],
}


def pairs(changes: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    """Each key with each of its values."""
    pairs = []
    for key, values in changes.items():
        pairs += [(key, value) for value in values]
    return pairs


@pytest.mark.parametrize("key, value", pairs(CHUNK_CHANGES) + pairs(TENSOR_CHANGES))
def test_a_table_that_does_not_make_sense_is_refused(key, value, tmp_path):
    tensors: Any = copy.deepcopy(TENSORS)
    tensor = tensors["model.weight"]
    if key in TENSOR_CHANGES:
        tensor[key] = value
    else:
        tensor["chunks"][0][key] = value
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
        flips = dice.choice([1, 1, 4])
        for _ in range(flips):
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        size = dice.choice([len(damaged), len(damaged) // 2])
        (tmp_path / TABLE).write_bytes(damaged[:size])
        try:
            read_table(tmp_path)
        except UserError as error:
            refused += 1
            message = str(error)
            assert "\n" not in message
            assert len(message) < len(str(tmp_path)) + 200
    assert refused > 50
