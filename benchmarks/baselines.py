"""Baselines of a step: a model of transformers with a trial's weights, optimizer and schedule."""

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import AlbertForPreTraining, AutoModelForCausalLM, AutoModelForQuestionAnswering

from benchmarks import measure
from benchmarks.measure import device
from detalbert.engine import optim
from pretrain.trial import PretrainTrial


class Baseline:
    """A model of transformers with a trial's optimizer, schedule and clipping.

    Subclasses turn packed rows into micro-batches and compute the terms of their loss.
    """

    def __init__(self, trial: Any, model: Any) -> None:
        self.hparams, self.dtype, self.device = trial.hparams, trial.dtype, device()
        self.model = model.to(self.device).train()
        groups = optim.parameter_groups(self.model, self.hparams.weight_decay)
        name, rate = self.hparams.optimizer, self.hparams.learning_rate()
        self.optimizer = optim.build_optimizer(name, groups, rate, self.hparams.beta2)
        self.schedule = optim.build_scheduler(self.optimizer, trial.steps, trial.warmup)
        half = self.dtype is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=half)

    def forward(self, **inputs: Any) -> Any:
        enabled = self.dtype is not torch.float32
        with torch.autocast(self.device.type, self.dtype, enabled=enabled):
            return self.model(**inputs)

    def losses(self, micro: dict[str, Tensor]) -> Tensor:
        """Return the terms of a micro-batch's loss, fp32 [terms]."""
        raise NotImplementedError

    def step(self, micros: list[dict[str, Tensor]]) -> float:
        """Run one optimizer step and return the mean loss of its windows.

        `gradient_weights` and `loss_weights` [terms] of a micro-batch weight the terms of its loss.
        """
        exact = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)  # the ordinary way is the faster kernels
        mean = torch.zeros((), device=self.device)
        for micro in micros:
            micro = {name: values.to(self.device) for name, values in micro.items()}
            losses = self.losses(micro)
            self.scaler.scale(losses @ micro["gradient_weights"]).backward()
            mean += losses.detach() @ micro["loss_weights"]
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.hparams.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()
        torch.use_deterministic_algorithms(exact)
        return float(mean)


class Padded(Baseline):
    """The trial's weights in the model of transformers, over padded rows."""

    def __init__(self, trial: Any) -> None:
        self.pretraining = isinstance(trial, PretrainTrial)
        self.labels = ("labels", "sop") if self.pretraining else ("start", "end")
        self.pad_id = trial.data.tokenizer.pad_token_id or 0
        config = copy.deepcopy(trial.model.config)
        kind: Any = AlbertForPreTraining if self.pretraining else AutoModelForQuestionAnswering
        make = kind._from_config if self.pretraining else kind.from_config
        model = make(config, attn_implementation="sdpa")
        model.load_state_dict(trial.model.state_dict())
        super().__init__(trial, model)

    def batch(self, rows: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return packed rows as padded micro-batches, int64 [windows, max_seq_length]."""
        micros = [self._padded(row) for row in rows]
        counts = torch.tensor([[(m[x] >= 0).sum() for x in self.labels] for m in micros])
        windows = torch.tensor([len(micro["input_ids"]) for micro in micros])
        share = 1.0 if self.pretraining else 0.5  # the mean of start and end
        for micro, count, part in zip(micros, counts, windows / windows.sum(), strict=True):
            micro["gradient_weights"] = share / counts.sum(0).clamp(min=1)
            micro["loss_weights"] = share * part / count.clamp(min=1)
        return micros

    def _padded(self, row: dict[str, Tensor]) -> dict[str, Tensor]:
        columns = {"input_ids": (row["input_ids"], self.pad_id)}
        columns["token_type_ids"] = row["token_type_ids"], 0
        if self.pretraining:
            labels = torch.full_like(row["input_ids"], -100)
            labels[row["masked"]] = row["mlm_labels"]
            columns["labels"], whole = (labels, -100), {"sop": row["sop_labels"]}
        else:
            whole = {name: row[f"{name}_positions"] for name in ("start", "end")}
        return measure.pad(row, self.hparams.max_seq_length, **columns) | whole

    def losses(self, micro: dict[str, Tensor]) -> Tensor:
        """Return the sum of each loss term, padding excluded, fp32 [2]."""
        taken = ("input_ids", "token_type_ids", "attention_mask")
        output = self.forward(**{name: micro[name] for name in taken})
        if self.pretraining:
            logits = [output.prediction_logits.transpose(1, 2), output.sop_logits]
        else:
            ends, padding = (output.start_logits, output.end_logits), micro["attention_mask"] == 0
            logits = [x.float().masked_fill(padding, -torch.inf) for x in ends]
        pairs = zip(logits, self.labels, strict=True)
        sums = [F.cross_entropy(x.float(), micro[name], reduction="sum") for x, name in pairs]
        return torch.stack(sums)


class Causal(Baseline):
    """The initial weights in the model of transformers, sharded over all processes."""

    def __init__(self, trial: Any) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(
            trial.hparams.model, attn_implementation="sdpa", dtype=torch.float32
        )
        if dist.get_world_size() > 1:
            # What from_pretrained does with a distributed_config; that needs accelerate.
            config, _, mesh = model.prepare_distribute_model({"fsdp_size": dist.get_world_size()})
            model = model.maybe_distribute_model(model, config, mesh)
        super().__init__(trial, model)

    def batch(self, rows: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return micro-batches: tokens and the token after each, int64 [windows, length]."""
        shape, total = (-1, self.hparams.max_seq_length), sum(len(row["input_ids"]) for row in rows)
        micros = []
        for row in rows:
            micro = {name: row[name].view(shape) for name in ("input_ids", "targets")}
            share = torch.tensor([len(row["input_ids"]) / total])
            micros.append({**micro, "gradient_weights": share, "loss_weights": share})
        return micros

    def losses(self, micro: dict[str, Tensor]) -> Tensor:
        """Return the mean over the micro-batch's tokens."""
        labels = {"labels": micro["targets"], "shift_labels": micro["targets"]}
        return self.forward(input_ids=micro["input_ids"], use_cache=False, **labels).loss[None]
