"""A packed row through the model: logits, losses, the best spans. What training, validation and
prediction share, so that they cannot come apart."""

from typing import Any, Tuple

import torch
from torch import Tensor, nn

from batches import Row
from decoding import Candidates, best_spans
from hparams import HParams
from packing import answer_logits, window_losses


def to_device(row: Row, device: torch.device) -> Row:
    """`row` with its tensors on `device`."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in row.items()
    }


def row_logits(model: nn.Module, row: Row, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
    """Start and end logits [T] of a row on the model's device, computed in `dtype`."""
    with torch.autocast(row["input_ids"].device.type, dtype, enabled=dtype is not torch.float32):
        return answer_logits(model, row)


def row_losses(row: Row, start: Tensor, end: Tensor) -> Tensor:
    """Loss of every window of the row, fp32 [n]."""
    positions = row["start_positions"], row["end_positions"]
    return window_losses(start, end, row["cu_seqlens"], *positions, row["max_length"])


def evaluate_row(
    model: nn.Module, row: Row, hparams: HParams, dtype: torch.dtype, device: Any
) -> Tuple[Candidates, Tensor]:
    """The best spans of every window of a row of n, on the host, and losses, fp32 [n].

    Where questions carry no answers the losses are those of "no answer".
    """
    row = to_device(row, device)
    start, end = row_logits(model, row, dtype)
    losses = row_losses(row, start, end)
    return best_spans(start, end, row, hparams.n_best_size, hparams.max_answer_length), losses
