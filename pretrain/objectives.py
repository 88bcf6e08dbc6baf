"""Objectives over packed rows: masked language model, sentence order, span selection.

The losses are those of transformers' AlbertForPreTraining and AlbertForQuestionAnswering, or of
AutoModelForMaskedLM, for the same examples, padded. But logits are computed for masked tokens only,
[M, V] and not [T, V].
"""

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AlbertForPreTraining, PreTrainedModel

from detalbert.engine.forward import row_losses
from detalbert.engine.inputs import model_inputs
from detalbert.engine.rows import Row
from detalbert.squad.windows import window_grid
from pretrain.encoders import AlbertForSpanPreTraining, masked_logits
from pretrain.examples import NO_LABEL, PretrainRow

# Of masked tokens, pairs and spans.
LABELS: Final = ("mlm_labels", "sop_labels", "start_positions")
# Every 7th token of a dummy row is masked, about 15 %.
_MASKED_EVERY = 7


def read_pretraining(
    model: PreTrainedModel,
    row: PretrainRow | Row,
    tokens: int,
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
        masked = torch.arange(
            start=0,
            end=tokens,
            step=_MASKED_EVERY,
            device=row["input_ids"].device,
        )
    if not isinstance(model, AlbertForPreTraining):
        mlm_logits = masked_logits(model, row, masked)
        return (mlm_logits,)
    inputs = model_inputs(model, row)
    output = model.albert(**inputs)
    hidden = output.last_hidden_state[0]  # [T, h]

    # A window begins with [CLS], of which its order is read; those of padding come last.
    windows = len(row["windows"])
    cls_places = row["cu_seqlens"][:windows].long()  # [n]
    pooled = model.albert.pooler(hidden[cls_places])
    pooled = model.albert.pooler_activation(pooled)  # [n, h]
    mlm_logits = model.predictions(hidden[masked])
    order_logits = model.sop_classifier(pooled)
    if not isinstance(model, AlbertForSpanPreTraining):
        return mlm_logits, order_logits
    span_logits = model.qa_outputs(hidden)[:tokens]
    return mlm_logits, order_logits, span_logits


def label_losses(row: PretrainRow, *logits: Tensor) -> list[Tensor]:
    """Return the cross-entropy in nats, fp32, of each masked token [M] and, if there are such
    logits, of each window's order [n] and the mean of start and end [n]; 0 without a label.

    Args:
        row: with its labels.
        logits: as of `read_pretraining`.
    """
    # Softmax and sums are in fp32, whatever the logits are in.
    mlm_logits, *others = logits
    mlm_losses = _label_loss(mlm_logits, row["mlm_labels"])
    losses = [mlm_losses]
    if others:
        order_losses = _label_loss(others[0], row["sop_labels"])
        losses.append(order_losses)
    for span_logits in others[1:]:
        start_logits, end_logits = span_logits.unbind(1)  # [T] each
        span_losses = row_losses(row, start_logits, end_logits)
        losses.append(span_losses)
    return losses


def _label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.float(),
        labels,
        reduction="none",
    )


def count_labels(row: PretrainRow) -> Tensor:
    """Return the numbers of masked tokens, pairs and spans of a row, on its device, int64 [3]."""
    counts = []
    for name in LABELS:
        is_label = row[name] != NO_LABEL
        counts.append(is_label.sum())
    return torch.stack(counts)


def score_row(row: PretrainRow, *logits: Tensor) -> Tensor:
    """Return loss, correct predictions and number of labels of each objective, summed over a row,
    float64 [objectives, 3]; `logits` are those of `read_pretraining`.
    """
    mlm_logits, *others = logits
    right_tokens = mlm_logits.argmax(-1) == row["mlm_labels"]
    correct = [right_tokens]
    if others:
        right_orders = others[0].argmax(-1) == row["sop_labels"]
        correct.append(right_orders)
    for span_logits in others[1:]:
        # Each end is the likeliest token of its window, and both must be right.
        start_logits, end_logits = span_logits.unbind(1)
        is_start = _likeliest(start_logits, row) == row["start_positions"]
        is_end = _likeliest(end_logits, row) == row["end_positions"]
        correct.append(is_start & is_end)

    # One sum per objective and column, so that rows add up to a split.
    losses = label_losses(row, *logits)
    counts = count_labels(row)
    sums = []
    for loss, is_correct, count in zip(losses, correct, counts, strict=False):
        columns = [
            loss.sum(dtype=torch.float64),
            is_correct.sum(dtype=torch.float64),
            count.double(),
        ]
        sums.append(torch.stack(columns))
    return torch.stack(sums)


def _likeliest(logits: Tensor, row: PretrainRow) -> Tensor:
    """Return each window's token with the largest of `logits` [T], counted from its start, [n]."""
    grid = window_grid(
        logits,
        row["cu_seqlens"],
        row["max_length"],
    )
    return grid.argmax(-1)
