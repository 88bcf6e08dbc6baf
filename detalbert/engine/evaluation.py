"""Evaluation of a packed row, the same in validation and prediction."""

from torch import Tensor

from detalbert.engine.forward import Forward
from detalbert.engine.losses import row_losses
from detalbert.engine.rows import SquadRow, to_device
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
