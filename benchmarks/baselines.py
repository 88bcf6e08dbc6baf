"""Baseline of a step: a model of transformers with a trial's weights, optimizer and schedule.

It trains as the examples of transformers do, on padded windows, without this package's rows,
attention and flat gradients. Only what is counted is ours, so that both sides do the same work.
"""

import copy
from collections.abc import Callable
from typing import cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import (
    AlbertForPreTraining,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from benchmarks.measure import device, pad
from detalbert.engine import optim
from detalbert.engine.trial import StepTrial
from pretrain.examples import NO_LABEL

# Terms of the loss by workload, each with its logits in the model's output.
TERMS = {
    "finetuning": {"start": "start_logits", "end": "end_logits"},
    "pretraining": {"masked": "prediction_logits", "order": "sop_logits"},
    "lm": {"next": "logits"},
}

MAKERS: dict[str, Callable[..., PreTrainedModel]] = {
    "finetuning": AutoModelForQuestionAnswering.from_config,
    "pretraining": AlbertForPreTraining._from_config,  # no Auto class makes one
    "lm": AutoModelForCausalLM.from_config,
}

# A micro-batch: columns [windows, max_seq_length], labels, weights.
Micro = dict[str, Tensor]


class Baseline:
    """The model over padded windows, with the trial's optimizer, schedule and clipping."""

    def __init__(self, trial: StepTrial, workload: str) -> None:
        self.workload = workload
        self.terms = TERMS[workload]
        self.hparams = trial.hparams
        self.dtype = trial.dtype
        self.device = device()
        tokenizer = cast(PreTrainedTokenizerBase, trial.data.tokenizer)
        self.pad_id = tokenizer.pad_token_id or 0
        self.model = make_model(trial, workload).to(self.device).train()
        groups = optim.parameter_groups(
            self.model, decay=self.hparams.weight_decay, optimizer=self.hparams.optimizer
        )
        self.optimizer = optim.build_optimizer(
            self.hparams.optimizer,
            groups,
            lr=self.hparams.learning_rate(),
            beta2=self.hparams.beta2,
        )
        self.schedule = optim.build_scheduler(
            self.optimizer, self.hparams, total=trial.steps, warmup=trial.warmup
        )
        half = self.dtype is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=half)

    def batch(self, rows: list[Micro]) -> list[Micro]:
        """Return packed rows as padded micro-batches, int64 [windows, max_seq_length], with weights
        of the sums of each term [terms]: in the gradient, and in the mean over windows.
        """
        micros = [self._padded(row) for row in rows]
        # The gradient is of the mean over all labels of the step; the loss that is compared is the
        # mean over windows of their rows' means, as the trial reports it.
        counts = torch.tensor([self._count_labels(micro) for micro in micros])  # [micros, terms]
        windows = torch.tensor([len(micro["input_ids"]) for micro in micros])  # [micros]
        window_shares = windows / windows.sum()
        share = 0.5 if self.workload == "finetuning" else 1.0  # of a term
        gradient_weights = share / counts.sum(0).clamp(min=1)  # [terms]
        for number, micro in enumerate(micros):
            micro["gradient_weights"] = gradient_weights
            micro["loss_weights"] = share * window_shares[number] / counts[number].clamp(min=1)
        return micros

    def _count_labels(self, micro: Micro) -> list[int]:
        """Return the number of labels of each term."""
        return [int((micro[name] >= 0).sum()) for name in self.terms]

    def _padded(self, row: Micro) -> Micro:
        """Return columns of tokens padded, and those of windows as they are."""
        columns = {"input_ids": (row["input_ids"], self.pad_id)}
        labels: Micro = {}  # of windows
        if self.workload == "lm":
            columns["next"] = (row["targets"], NO_LABEL)
        else:
            columns["token_type_ids"] = (row["token_type_ids"], 0)
        if self.workload == "pretraining":
            # A label at every token, as transformers wants them.
            masked = torch.full_like(row["input_ids"], NO_LABEL)
            masked[row["masked"]] = row["mlm_labels"]
            columns["masked"] = (masked, NO_LABEL)
            labels = {"order": row["sop_labels"]}
        elif self.workload == "finetuning":
            labels = {name: row[f"{name}_positions"] for name in self.terms}
        return pad(row, length=self.hparams.max_seq_length, **columns) | labels

    def losses(self, micro: Micro) -> Tensor:
        """Return the sum of each loss term, padding excluded, fp32 [terms]."""
        # Positions are left to the model: they count from each window's start. Windows of a
        # language model are full, and need no mask.
        inputs = {"input_ids": micro["input_ids"]}
        if self.workload != "lm":
            inputs["token_type_ids"] = micro["token_type_ids"]
            inputs["attention_mask"] = micro["attention_mask"]
        half = self.dtype is not torch.float32
        with torch.autocast(self.device.type, self.dtype, enabled=half):
            output = self.model(**inputs)
        sums = []
        for name, key in self.terms.items():
            logits = output[key].float()
            if self.workload == "finetuning":
                logits = logits.masked_fill(micro["attention_mask"] == 0, -torch.inf)
            # Windows and, for tokens, places become one dimension: [labels, classes].
            labels = micro[name].flatten()
            sums.append(F.cross_entropy(logits.flatten(0, -2), labels, reduction="sum"))
        return torch.stack(sums)

    def step(self, micros: list[Micro]) -> float:
        """Run one optimizer step and return the mean loss of its windows."""
        # The ordinary way is the faster kernels.
        was_exact = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        mean = torch.zeros((), device=self.device)
        for micro in micros:
            micro = {name: values.to(self.device) for name, values in micro.items()}
            losses = self.losses(micro)
            self.scaler.scale(losses @ micro["gradient_weights"]).backward()
            mean += losses.detach() @ micro["loss_weights"]
        # The ordinary order: unscale, clip, step.
        self.scaler.unscale_(self.optimizer)
        if self.hparams.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.hparams.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()
        torch.use_deterministic_algorithms(was_exact)
        return float(mean)


def make_model(trial: StepTrial, workload: str) -> PreTrainedModel:
    """Return the trial's model in transformers; a language model is sharded over all processes."""
    if workload == "lm" and trial.hparams.model is not None:
        return _load_sharded(str(trial.hparams.model))
    make = MAKERS[workload]
    with device():
        model = make(
            copy.deepcopy(trial.model.config), attn_implementation="sdpa", dtype=torch.float32
        )
    # A language model's weights are DTensors, of one process here.
    weights = {}
    for name, value in trial.model.state_dict().items():
        weights[name] = value.full_tensor() if isinstance(value, DTensor) else value
    model.load_state_dict(weights)
    return model


def _load_sharded(folder: str) -> PreTrainedModel:
    """Return a language model in fp32, sharded over all processes."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="sdpa", dtype=torch.float32
    )
    processes = dist.get_world_size()
    if processes == 1:
        return model
    # What from_pretrained does with a distributed_config; that needs accelerate.
    config, _, mesh = model.prepare_distribute_model({"fsdp_size": processes})
    return model.maybe_distribute_model(model, config, mesh)
