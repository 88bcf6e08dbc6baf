"""Rows on their way to a device."""

import torch

from detalbert.engine.rows import to_device
from tests.fakes.encoders import make_row


def test_a_row_moves_with_all_its_tensors() -> None:
    row = make_row([3, 5])
    moved = to_device(row, torch.device("meta"))
    assert list(moved) == list(row) and moved["max_length"] == 5
    for name in row.keys() - {"max_length"}:
        assert moved[name].device.type == "meta" and moved[name].shape == row[name].shape
    here = to_device(row, torch.device("cpu"))
    assert all(here[name] is row[name] for name in row)  # no copy
