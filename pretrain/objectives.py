"""Objectives over packed rows: masked language model, sentence order, span selection.

The losses are those of transformers' AlbertForPreTraining and AlbertForQuestionAnswering, or of
AutoModelForMaskedLM, for the same examples, padded. But logits are computed for masked tokens only,
[M, V] and not [T, V].
"""

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertForPreTraining, PreTrainedModel

from detalbert.engine.attention import model_inputs
from detalbert.engine.evaluation import row_losses
from detalbert.engine.rows import Row
from detalbert.squad.decoding import window_grid
from pretrain.encoders import masked_logits
from pretrain.examples import NO_LABEL, PretrainRow

# Of masked tokens, pairs and spans.
LABELS: Final = ("mlm_labels", "sop_labels", "start_positions")
# Every 7th token of a dummy row is masked, about 15 %.
_MASKED_EVERY = 7


class AlbertForSpanPreTraining(AlbertForPreTraining):
    """ALBERT with a third head, for start and end of a span, which fine-tuning continues with."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()


def read_pretraining(
    model: PreTrainedModel, row: PretrainRow | Row, tokens: int
) -> tuple[Tensor, ...]:
    """Return logits of the masked tokens [M, V], and of an ALBERT of sentence order [n, 2] and, if
    it has a span head, of start and end [T, 2].

    Args:
        model: ALBERT with its heads, or a model with a masked language model's head.
        row: on the device, maybe padded; in one without labels about 15 % are masked.
        tokens: T, its real tokens.
    """
    masked: Any = row.get("masked")
    if masked is None:
        masked = torch.arange(0, tokens, _MASKED_EVERY, device=row["input_ids"].device)
    if not isinstance(model, AlbertForPreTraining):
        return (masked_logits(model, row, masked),)
    hidden = model.albert(**model_inputs(model, row)).last_hidden_state[0]  # [T, h]

    # A window begins with [CLS], of which its order is read; padding windows come last.
    cls_places = row["cu_seqlens"][: len(row["windows"])].long()  # [n]
    pooled = model.albert.pooler(hidden[cls_places])
    pooled = model.albert.pooler_activation(pooled)  # [n, h]
    mlm_logits = model.predictions(hidden[masked])
    order_logits = model.sop_classifier(pooled)
    if not isinstance(model, AlbertForSpanPreTraining):
        return mlm_logits, order_logits
    span_logits = model.qa_outputs(hidden)[:tokens]
    return mlm_logits, order_logits, span_logits


def label_losses(
    row: PretrainRow,
    mlm_logits: Tensor,
    order_logits: Tensor | None = None,
    span_logits: Tensor | None = None,
) -> list[Tensor]:
    """Return the cross-entropy in nats, fp32, of each masked token [M] and, if there are such
    logits, of each window's order [n] and the mean of start and end [n]; 0 without a label.
    """
    # Softmax and sums are in fp32, whatever the logits are in.
    losses = [F.cross_entropy(mlm_logits.float(), row["mlm_labels"], reduction="none")]
    if order_logits is not None:
        losses.append(F.cross_entropy(order_logits.float(), row["sop_labels"], reduction="none"))
    if span_logits is not None:
        start_logits = span_logits[:, 0]
        end_logits = span_logits[:, 1]
        losses.append(row_losses(row, start_logits, end_logits))
    return losses


def count_labels(row: PretrainRow) -> Tensor:
    """Return the numbers of masked tokens, pairs and spans of a row, on its device, int64 [3]."""
    counts = []
    for name in LABELS:
        is_labelled = row[name] != NO_LABEL
        counts.append(is_labelled.sum())
    return torch.stack(counts)


def score_row(
    row: PretrainRow,
    mlm_logits: Tensor,
    order_logits: Tensor | None = None,
    span_logits: Tensor | None = None,
) -> Tensor:
    """Return loss, correct predictions and number of labels of each objective, summed over a row,
    float64 [objectives, 3].
    """
    losses = label_losses(
        row, mlm_logits=mlm_logits, order_logits=order_logits, span_logits=span_logits
    )
    correct = [mlm_logits.argmax(-1) == row["mlm_labels"]]
    if order_logits is not None:
        correct.append(order_logits.argmax(-1) == row["sop_labels"])
    if span_logits is not None:
        # Each end is the likeliest token of its window, and both must be right.
        starts = _likeliest_places(row, span_logits[:, 0])
        ends = _likeliest_places(row, span_logits[:, 1])
        correct.append((starts == row["start_positions"]) & (ends == row["end_positions"]))
    # One sum per objective and column, so that rows add up to a split.
    columns = [
        torch.stack([loss.double().sum() for loss in losses]),
        torch.stack([is_correct.double().sum() for is_correct in correct]),
        count_labels(row)[: len(losses)].double(),
    ]
    return torch.stack(columns, dim=1)


def _likeliest_places(row: PretrainRow, logits: Tensor) -> Tensor:
    """Return the place of each window's largest logit, counted from its start, int64 [n]; `logits`
    are [T].
    """
    grid = window_grid(logits, row["cu_seqlens"], row["max_length"])  # [n, longest]
    return grid.argmax(-1)
