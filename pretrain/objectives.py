"""Masked language model and sentence order over packed rows: logits, losses, accuracy.

The sum over a batch, divided by its hidden tokens and by its pairs, is the loss that the library's
AlbertForPreTraining gives for the same examples padded; but the vocabulary is only scored where a
token is hidden: [M, V] logits in place of [T, V], a seventh of the work and of the memory.
"""

from typing import Any, Dict, Mapping, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batches import Row
from packing import model_inputs
from pretrain.examples import NO_LABEL

_UNKNOWN_EVERY = 7  # a made-up row has every 7th token hidden, about 15 %


def read_pretraining(
    model: nn.Module, row: Mapping[str, Any], tokens: int
) -> Tuple[Tensor, Tensor]:
    """Logits of the hidden tokens [M, V] and of every window's sentence order [n, 2].

    `forward.Forward` calls it. A row without labels (`made_up_row`) gets about as many as usual.
    """
    hidden = model.albert(**model_inputs(model, row)).last_hidden_state[0]  # [T, h]
    masked = row.get("masked")
    if masked is None:
        masked = torch.arange(0, tokens, _UNKNOWN_EVERY, device=hidden.device)
    windows = len(row["sop_labels"]) if "sop_labels" in row else len(row["cu_seqlens"]) - 1
    first = hidden[row["cu_seqlens"][:windows].long()]  # [n, h], of every [CLS]
    pooled = model.albert.pooler_activation(model.albert.pooler(first))
    return model.predictions(hidden[masked]), model.sop_classifier(pooled)


def token_losses(logits: Tensor, row: Row) -> Tensor:
    """Cross-entropy of every hidden token in nats, fp32 [M]."""
    return F.cross_entropy(logits.float(), row["mlm_labels"], reduction="none")


def order_losses(logits: Tensor, row: Row) -> Tensor:
    """Cross-entropy of every window's order in nats, fp32 [n]; 0 for a window without a pair."""
    labels = row["sop_labels"]
    return F.cross_entropy(logits.float(), labels, ignore_index=NO_LABEL, reduction="none")


def score_row(mlm: Tensor, sop: Tensor, row: Row) -> Dict[str, Tensor]:
    """Sums over a row, scalars on its device: losses (float64), hits and counts (int64)."""
    pairs = row["sop_labels"] != NO_LABEL
    return {
        "mlm_loss": token_losses(mlm, row).double().sum(),
        "mlm_hits": (mlm.argmax(-1) == row["mlm_labels"]).sum(),
        "tokens": torch.tensor(len(row["mlm_labels"]), device=mlm.device),
        "sop_loss": order_losses(sop, row).double().sum(),
        "sop_hits": ((sop.argmax(-1) == row["sop_labels"]) & pairs).sum(),
        "pairs": pairs.sum(),
    }
