"""The baseline: training as the examples of transformers do it, on padded windows.

One loop for all stages: the library's model, attention and loss, torch's AdamW, a linear schedule,
clipping. Micro-batches are padded to their longest window, and their gradients are accumulated. A
window of a language model is one segment: attention within documents is this package's alone.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from benchmarks.measure import device

NO_LABEL = -100

# Arguments of a model of transformers, labels included: int64 [windows, length] or [windows].
Batch = dict[str, Tensor]


class Baseline:
    """A model with what trains it.

    Args:
        model: in fp32, on its device.
        learning_rate: of the first step; it falls linearly.
        steps: after which it is 0.
        half: whether products are in bf16.
    """

    def __init__(
        self, model: PreTrainedModel, learning_rate: float, steps: int, half: bool
    ) -> None:
        self.model = model.train()
        self.half = half
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=learning_rate,
            weight_decay=0.0,
        )
        self.schedule = get_linear_schedule_with_warmup(
            self.optimizer,
            num_warmup_steps=0,
            num_training_steps=steps,
        )

    def step(self, batches: list[Batch]) -> float:
        """Run one optimizer step over micro-batches; return the mean loss of its windows."""
        windows = sum(len(batch["input_ids"]) for batch in batches)
        losses = []
        for batch in batches:
            share = len(batch["input_ids"]) / windows
            loss = share * self.loss(batch)
            loss.backward()
            losses.append(loss.detach())

        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return float(sum(losses))

    def loss(self, batch: Batch) -> Tensor:
        """Return the model's own loss of a micro-batch; of spans, padding excluded."""
        output = self.forward(batch)
        if "labels" in batch:
            return output.loss

        # The library's softmax takes in the padding.
        is_padding = batch["attention_mask"] == 0  # [windows, length]
        start_logits = output.start_logits.float().masked_fill(is_padding, -torch.inf)
        end_logits = output.end_logits.float().masked_fill(is_padding, -torch.inf)
        start_loss = F.cross_entropy(start_logits, batch["start_positions"])
        end_loss = F.cross_entropy(end_logits, batch["end_positions"])
        return (start_loss + end_loss) / 2

    def forward(self, batch: Batch) -> Any:
        """Return the output of transformers, with its loss."""
        with torch.autocast(device().type, torch.bfloat16, enabled=self.half):
            return self.model(**batch)


def pad(row: dict[str, Any]) -> Batch:
    """Return a packed row of a trial as a micro-batch on the device, padded to its longest window
    with zeros, which are masked.
    """
    lengths = row["cu_seqlens"].diff()  # [windows]
    places = torch.arange(int(lengths.max()))
    is_real = places < lengths[:, None]  # [windows, length]

    def grid(values: Tensor, fill: int = 0) -> Tensor:
        # The real places of the grid, row by row, are those of the packed row.
        padded = torch.full(is_real.shape, fill)
        padded[is_real] = values
        return padded

    batch = {"input_ids": grid(row["input_ids"])}
    if "targets" in row:
        # A language model, whose windows are full and need no mask.
        targets = grid(row["targets"])
        batch["labels"] = targets
        batch["shift_labels"] = targets
    else:
        batch["attention_mask"] = is_real.long()
        batch["token_type_ids"] = grid(row["token_type_ids"])
    if "mlm_labels" in row:
        # A label at every token, as transformers takes them.
        labels = torch.full_like(row["input_ids"], NO_LABEL)
        labels[row["masked"]] = row["mlm_labels"]
        batch["labels"] = grid(labels, fill=NO_LABEL)
        batch["sentence_order_label"] = row["sop_labels"]
    elif "start_positions" in row:
        batch["start_positions"] = row["start_positions"]
        batch["end_positions"] = row["end_positions"]
    return {name: values.to(device()) for name, values in batch.items()}
