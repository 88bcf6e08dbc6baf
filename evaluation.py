"""A packed row through the model: logits, losses, the best spans. What training, validation and
prediction share, so that they cannot come apart."""

from typing import Tuple

import torch
from torch import Tensor

from detalbert.settings.hparams import HParams
from detalbert.squad.decoding import Candidates, best_spans
from forward import Forward
from packing import window_losses
from rows import Row


def to_device(row: Row, device: torch.device) -> Row:
    """`row` with its tensors on `device`."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in row.items()
    }


def row_losses(row: Row, start: Tensor, end: Tensor) -> Tensor:
    """Loss of every window of the row, fp32 [n]."""
    positions = row["start_positions"], row["end_positions"]
    return window_losses(start, end, row["cu_seqlens"], *positions, row["max_length"])


def evaluate_row(run: Forward, row: Row, hparams: HParams) -> Tuple[Candidates, Tensor]:
    """The best spans of every window of a row of n, and losses, fp32 [n].

    Where questions carry no answers the losses are those of "no answer".
    """
    row = to_device(row, run.device)
    start, end = run(row)
    losses = row_losses(row, start, end)
    return best_spans(start, end, row, hparams.n_best_size, hparams.max_answer_length), losses
