"""Loss and best spans of a packed row, the same in training, validation and prediction."""

import torch
import torch.nn.functional as F
from torch import Tensor

from detalbert.engine.forward import Forward
from detalbert.engine.rows import SpanRow, SquadRow, to_device
from detalbert.settings.hparams import HParams
from detalbert.squad.decoding import Candidates, best_spans


def evaluate_row(
    forward: Forward, row: SquadRow, hparams: HParams, labelled: bool = True
) -> tuple[Candidates, Tensor]:
    """Return the best spans of all n windows, and their losses, fp32 [n]; [0] if not `labelled`."""
    row = to_device(row, forward.device)
    start, end = forward(row)
    losses = row_losses(row, start, end) if labelled else start.new_empty(0)
    return best_spans(start, end, row, hparams.n_best_size, hparams.max_answer_length), losses


def row_losses(row: SpanRow, start_logits: Tensor, end_logits: Tensor) -> Tensor:
    """Return the mean of start and end cross-entropy in nats per window, over its tokens, fp32 [n].

    Equal to transformers' span loss of each window alone, without padding; 0 if the positions are
    -100. Logits are [T], any float type. Does not block on the device.
    """

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        grid = window_grid(logits.float(), row["cu_seqlens"], row["max_length"])
        return F.cross_entropy(grid, target, reduction="none")

    return (loss(start_logits, row["start_positions"]) + loss(end_logits, row["end_positions"])) / 2


def window_grid(logits: Tensor, cu_seqlens: Tensor, max_length: int) -> Tensor:
    """Convert [T] to [n, max_length], one window per line, -inf past its end."""
    start, end = cu_seqlens[:-1, None].long(), cu_seqlens[1:, None].long()
    token = start + torch.arange(max_length, device=cu_seqlens.device)  # [n, max_length]
    return logits[token.clamp(max=len(logits) - 1)].masked_fill(token >= end, -torch.inf)
