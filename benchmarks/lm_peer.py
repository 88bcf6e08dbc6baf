"""The peer of `lm`: transformers' own way to split a model over processes, `DistributedConfig`.

Windows of equal length in a batch, the library's attention and loss, and torch's clipping, as a
careful user would write it.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from detalbert.engine import optim
from lm.gradients import clip
from lm.packed import CausalRow
from lm.trial import LmTrial

# The name of a split in `hyperparameters.layout`, and the library's for the same.
SPLITS = {"shard": "fsdp_size", "tensor": "tp_size"}
Batch = list[tuple[Tensor, Tensor]]  # per micro-batch the tokens and the token after each, [B, L]


class Peer:
    """The weights in `folder`, split over all processes, and the optimizer of `trial`."""

    def __init__(self, folder: Path, split: str, trial: LmTrial) -> None:
        processes = torch.distributed.get_world_size()
        model = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="sdpa", dtype=torch.float32
        )
        # What from_pretrained does with a distributed_config; that needs accelerate for its device.
        config, _, mesh = model.prepare_distribute_model({SPLITS[split]: processes})
        self.model = model.maybe_distribute_model(model, config, mesh).train()
        # torch's raises where some parameters are split and some are not.
        self.clip = clip if split == "tensor" else torch.nn.utils.clip_grad_norm_
        self.hparams = hparams = trial.hparams
        groups = optim.parameter_groups(self.model, hparams.weight_decay)
        rate = hparams.learning_rate()
        self.optimizer = optim.build_optimizer(hparams.optimizer, groups, rate, hparams.beta2)
        self.schedule = optim.build_scheduler(self.optimizer, trial.steps, trial.warmup)

    def batch(self, rows: Sequence[CausalRow]) -> Batch:
        """The same windows in the same micro-batches; each window is one piece, so none is cut."""
        shape = -1, self.hparams.max_seq_length
        return [(row["input_ids"].view(shape), row["targets"].view(shape)) for row in rows]

    def step(self, batch: Batch) -> Tensor:
        """One optimizer step; the mean loss of this process's windows, a scalar."""
        total = sum(len(tokens) for tokens, _ in batch)
        mean = torch.zeros(())
        for tokens, targets in batch:
            output = self.model(tokens, labels=targets, shift_labels=targets, use_cache=False)
            loss = output.loss * (len(tokens) / total)
            loss.backward()
            mean += loss.detach()
        self.clip(self.model.parameters(), self.hparams.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return mean
