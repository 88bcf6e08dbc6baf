"""Baseline of a step: a model of transformers with a trial's weights, optimizer and schedule."""

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import AlbertForPreTraining, AutoModelForCausalLM, AutoModelForQuestionAnswering

from benchmarks.measure import device, pad
from detalbert.engine import optim

# Terms of the loss by workload, each with its logits in the model's output.
TERMS = {
    "finetuning": {"start": "start_logits", "end": "end_logits"},
    "pretraining": {"masked": "prediction_logits", "order": "sop_logits"},
    "lm": {"next": "logits"},
}


class Baseline:
    """The model over padded windows, with the trial's optimizer, schedule and clipping."""

    def __init__(self, trial: Any, workload: str) -> None:
        self.workload, self.terms = workload, TERMS[workload]
        self.hparams, self.dtype, self.device = trial.hparams, trial.dtype, device()
        self.pad_id = trial.data.tokenizer.pad_token_id or 0
        self.model = make_model(trial, workload).to(self.device).train()
        groups = optim.parameter_groups(self.model, self.hparams.weight_decay)
        name, rate = self.hparams.optimizer, self.hparams.learning_rate()
        self.optimizer = optim.build_optimizer(name, groups, rate, self.hparams.beta2)
        steps = self.optimizer, self.hparams, trial.steps, trial.warmup
        self.schedule = optim.build_scheduler(*steps)
        half = self.dtype is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=half)

    def batch(self, rows: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return packed rows as padded micro-batches, int64 [windows, max_seq_length], with weights
        of the sums of each term [terms]: in the gradient, and in the mean over windows.
        """
        micros = [self._padded(row) for row in rows]
        counts = torch.tensor([[(m[x] >= 0).sum() for x in self.terms] for m in micros])
        windows = torch.tensor([len(micro["input_ids"]) for micro in micros])
        share = 0.5 if self.workload == "finetuning" else 1.0  # of a term
        for micro, count, part in zip(micros, counts, windows / windows.sum(), strict=True):
            micro["gradient_weights"] = share / counts.sum(0).clamp(min=1)
            micro["loss_weights"] = share * part / count.clamp(min=1)
        return micros

    def _padded(self, row: dict[str, Tensor]) -> dict[str, Tensor]:
        columns, whole = {"input_ids": (row["input_ids"], self.pad_id)}, {}
        if self.workload == "lm":
            columns["next"] = row["targets"], -100
        else:
            columns["token_type_ids"] = row["token_type_ids"], 0
        if self.workload == "pretraining":
            labels = torch.full_like(row["input_ids"], -100)
            labels[row["masked"]] = row["mlm_labels"]
            columns["masked"], whole = (labels, -100), {"order": row["sop_labels"]}
        if self.workload == "finetuning":
            whole = {name: row[f"{name}_positions"] for name in self.terms}
        return pad(row, self.hparams.max_seq_length, **columns) | whole

    def losses(self, micro: dict[str, Tensor]) -> Tensor:
        """Return the sum of each loss term, padding excluded, fp32 [terms]."""
        taken = ["input_ids"]
        if self.workload != "lm":  # whose windows are full
            taken += ["token_type_ids", "attention_mask"]
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32):
            output = self.model(**{name: micro[name] for name in taken})
        sums = []
        for name, key in self.terms.items():
            logits = output[key].float()
            if self.workload == "finetuning":
                logits = logits.masked_fill(micro["attention_mask"] == 0, -torch.inf)
            labels = micro[name].flatten()
            sums.append(F.cross_entropy(logits.flatten(0, -2), labels, reduction="sum"))
        return torch.stack(sums)

    def step(self, micros: list[dict[str, Tensor]]) -> float:
        """Run one optimizer step and return the mean loss of its windows."""
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


def make_model(trial: Any, workload: str) -> Any:
    """Return the trial's model in transformers; a language model is sharded over all processes."""
    model: Any
    if workload == "lm":
        model = AutoModelForCausalLM.from_pretrained(
            trial.hparams.model, attn_implementation="sdpa", dtype=torch.float32
        )
        if dist.get_world_size() > 1:
            # What from_pretrained does with a distributed_config; that needs accelerate.
            config, _, mesh = model.prepare_distribute_model({"fsdp_size": dist.get_world_size()})
            model = model.maybe_distribute_model(model, config, mesh)
        return model
    pretraining: Any = AlbertForPreTraining._from_config
    make = pretraining if workload == "pretraining" else AutoModelForQuestionAnswering.from_config
    model = make(copy.deepcopy(trial.model.config), attn_implementation="sdpa")
    model.load_state_dict(trial.model.state_dict())
    return model
