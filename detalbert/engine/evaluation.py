"""Loss and best spans of a packed row, the same in training, validation and prediction.

Losses and spans are taken over a grid of windows, which only logits are padded to: a few bytes per
token, where a padded batch would run the whole model on padding.
"""

import torch.nn.functional as F
from torch import Tensor

from detalbert.engine.forward import Forward
from detalbert.engine.rows import SpanRow, SquadRow, to_device
from detalbert.settings.hparams import HParams
from detalbert.squad.decoding import Candidates, best_spans, window_grid


def evaluate_row(
    forward: Forward, row: SquadRow, hparams: HParams, labelled: bool = True
) -> tuple[Candidates, Tensor]:
    """Return the best spans of all n windows, and their losses, fp32 [n]; [0] if not `labelled`."""
    row = to_device(row, forward.device)
    start_logits, end_logits = forward(row)
    if labelled:
        losses = row_losses(row, start_logits, end_logits)
    else:
        losses = start_logits.new_empty(0)
    spans = best_spans(
        start_logits, end_logits, row, hparams.n_best_size, hparams.max_answer_length
    )
    return spans, losses


def row_losses(row: SpanRow, start_logits: Tensor, end_logits: Tensor) -> Tensor:
    """Return the mean of start and end cross-entropy in nats per window, over its tokens, fp32 [n].

    Equal to transformers' span loss of each window alone, without padding; 0 if the positions are
    -100. Logits are [T], any float type. Does not block on the device.
    """

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        # In float32: a sum over hundreds of tokens in half precision would lose the last digits.
        grid = window_grid(
            logits.float(), cu_seqlens=row["cu_seqlens"], max_length=row["max_length"]
        )
        return F.cross_entropy(grid, target, reduction="none")

    start_losses = loss(start_logits, row["start_positions"])
    end_losses = loss(end_logits, row["end_positions"])
    return (start_losses + end_losses) / 2
