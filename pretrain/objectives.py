"""Objectives over packed rows: masked language model, sentence order, span selection.

The losses are those of transformers' AlbertForPreTraining and AlbertForQuestionAnswering for the
same examples, padded. But logits are computed for masked tokens only, [M, V] and not [T, V].
"""

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AlbertForPreTraining

from detalbert.engine.attention import model_inputs
from detalbert.engine.evaluation import row_losses, window_grid
from detalbert.engine.rows import Row
from pretrain.examples import NO_LABEL, PretrainRow

LABELS: Final = ("mlm_labels", "sop_labels", "start_positions")  # of tokens, pairs, spans
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
    first = hidden[row["cu_seqlens"][: len(row["windows"])].long()]  # [n, h], of every [CLS]
    pooled = model.albert.pooler_activation(model.albert.pooler(first))
    logits = model.predictions(hidden[masked]), model.sop_classifier(pooled)  # [M, V], [n, 2]
    return (*logits, model.qa_outputs(hidden)[:tokens]) if hasattr(model, "qa_outputs") else logits


def label_losses(row: PretrainRow, mlm: Tensor, sop: Tensor, *spans: Tensor) -> list[Tensor]:
    """Return the cross-entropy in nats, fp32, of each masked token [M] and of each window's order
    [n], and, if the model has a span head, the mean of start and end [n]; 0 without a label.
    """
    both = (mlm, row["mlm_labels"]), (sop, row["sop_labels"])
    losses = [F.cross_entropy(logits.float(), of, reduction="none") for logits, of in both]
    return [*losses, *(row_losses(row, logits[:, 0], logits[:, 1]) for logits in spans)]


def count_labels(row: PretrainRow) -> Tensor:
    """Return the numbers of masked tokens, pairs and spans of a row, on its device, int64 [3]."""
    return torch.stack([(row[name] != NO_LABEL).sum() for name in LABELS])


def score_row(row: PretrainRow, mlm: Tensor, sop: Tensor, *spans: Tensor) -> Tensor:
    """Return loss, correct predictions and number of labels of each objective, summed over a row,
    float64 [objectives, 3].
    """
    hits = [mlm.argmax(-1) == row["mlm_labels"], sop.argmax(-1) == row["sop_labels"]]
    for logits in spans:
        starts, ends = (  # [n] each
            window_grid(logits[:, i], row["cu_seqlens"], row["max_length"]).argmax(-1)
            for i in range(2)
        )
        hits.append((starts == row["start_positions"]) & (ends == row["end_positions"]))
    losses = label_losses(row, mlm, sop, *spans)
    sums = [torch.stack([values.double().sum() for values in both]) for both in (losses, hits)]
    return torch.stack([*sums, count_labels(row)[: len(losses)].double()], dim=1)
