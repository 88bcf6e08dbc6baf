"""Objectives over packed rows: masked language model, sentence order, span selection.

The losses are those of transformers' AlbertForPreTraining and AlbertForQuestionAnswering for the
same examples, padded. But logits are computed for masked tokens only, [M, V] and not [T, V].
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AlbertForPreTraining

from detalbert.engine.attention import model_inputs
from detalbert.engine.evaluation import row_losses, window_grid
from detalbert.engine.rows import Row
from pretrain.examples import NO_LABEL, PretrainRow

_MASKED_EVERY = 7  # every 7th token of a dummy row is masked, about 15 %


class AlbertForSpanPreTraining(AlbertForPreTraining):
    """ALBERT with a third head, for start and end of a span, which fine-tuning continues with."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()


def read_pretraining(model: Any, row: PretrainRow | Row, tokens: int) -> tuple[Tensor, ...]:
    """Return logits of the masked tokens [M, V] and of sentence order [n, 2], and, if the model has
    a span head, of start and end [T, 2]. In a row without labels about 15 % are masked.
    """
    hidden = model.albert(**model_inputs(model, row)).last_hidden_state[0]  # [T, h]
    masked = row.get("masked")
    if masked is None:
        masked = torch.arange(0, tokens, _MASKED_EVERY, device=hidden.device)
    labels: Any = row.get("sop_labels")
    windows = len(row["cu_seqlens"]) - 1 if labels is None else len(labels)
    first = hidden[row["cu_seqlens"][:windows].long()]  # [n, h], of every [CLS]
    pooled = model.albert.pooler_activation(model.albert.pooler(first))
    logits = model.predictions(hidden[masked]), model.sop_classifier(pooled)  # [M, V], [n, 2]
    return (*logits, model.qa_outputs(hidden)[:tokens]) if hasattr(model, "qa_outputs") else logits


def token_losses(logits: Tensor, row: PretrainRow) -> Tensor:
    """Return the cross-entropy of each masked token in nats, fp32 [M]."""
    return F.cross_entropy(logits.float(), row["mlm_labels"], reduction="none")


def order_losses(logits: Tensor, row: PretrainRow) -> Tensor:
    """Return cross-entropy of each window's order in nats, fp32 [n]; 0 for one without a pair."""
    labels = row["sop_labels"]
    return F.cross_entropy(logits.float(), labels, ignore_index=NO_LABEL, reduction="none")


def span_losses(logits: Tensor, row: PretrainRow) -> Tensor:
    """Return mean cross-entropy of start and end per window in nats, fp32 [n]; 0 without a span."""
    return row_losses(row, logits[:, 0], logits[:, 1])


def score_row(row: PretrainRow, mlm: Tensor, sop: Tensor, *spans: Tensor) -> dict[str, Tensor]:
    """Return sums over a row, scalars on its device: losses (float64), hits and counts (int64)."""
    pairs = row["sop_labels"] != NO_LABEL
    sums = {
        "mlm_loss": token_losses(mlm, row).double().sum(),
        "mlm_hits": (mlm.argmax(-1) == row["mlm_labels"]).sum(),
        "tokens": torch.full((), len(row["mlm_labels"]), device=mlm.device),
        "sop_loss": order_losses(sop, row).double().sum(),
        "sop_hits": ((sop.argmax(-1) == row["sop_labels"]) & pairs).sum(),
        "pairs": pairs.sum(),
    }
    for logits in spans:
        starts, ends = (  # [n] each
            window_grid(logits[:, i], row["cu_seqlens"], row["max_length"]).argmax(-1)
            for i in range(2)
        )
        right = (starts == row["start_positions"]) & (ends == row["end_positions"])
        sums["span_loss"] = span_losses(logits, row).double().sum()
        sums["span_hits"] = right.sum()
        sums["spans"] = (row["start_positions"] != NO_LABEL).sum()
    return sums
