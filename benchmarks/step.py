"""Optimizer steps: fine-tuning, pretraining, or a language model.

Ours is the trial's `train_batch`; the baseline is the model of transformers over the same windows,
padded, with the same optimizer. Its loss excludes the padding, so that both first losses are equal.
"""

import contextlib
import copy
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AlbertForPreTraining, AutoModelForQuestionAnswering

from benchmarks import lm, measure
from benchmarks.measure import SHAPES, Baseline, Different, compare
from model_def import SquadTrial
from pretrain.trial import PretrainTrial

JOINED = 32  # documents of the text in one, so that most windows are full


@contextlib.contextmanager
def trial_of(options: Namespace, shape: str) -> Iterator[Any]:
    """Yield a trial as a training run creates it, before its first step; files are temporary."""
    sizes = {"global_batch_size": options.windows, "max_steps": options.repeats + 1}
    config = measure.experiment("step", model_config=dict(SHAPES[shape]), **sizes)
    values, data = config["hyperparameters"], config["data"]
    with tempfile.TemporaryDirectory() as folder:
        data |= {"tokenizer": options.tokenizer, "cache_dir": folder}
        if options.workload == "pretraining":
            lines, text = measure.documents(options), Path(folder) / "text.txt"
            joined = (" ".join(lines[i : i + JOINED]) for i in range(0, len(lines), JOINED))
            text.write_text("\n".join(joined), encoding="utf-8")
            data |= {"text": str(text), "validation": str(text)}  # the latter is not read
            values["model_config"]["classifier_dropout_prob"] = 0.0
            values["max_seq_length"] = 128 if shape in ("tiny", "small") else 512
        else:
            for split, name in (("train", "train.json"), ("validation", "dev.json")):
                data[split] = str(options.data / name)
                data[f"max_{split}_examples"] = options.examples
        kind = PretrainTrial if options.workload == "pretraining" else SquadTrial
        with measure.context_of(config, Path(folder) / "run") as context:
            trial = kind(context)
            trial.model.train()
            yield trial


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


def step(options: Namespace) -> dict[str, Any]:
    """Measure windows per second and MFU of both sides; for a language model, tokens per second."""
    if options.workload == "lm":
        return lm.lm(options, processes=1)
    shape = measure.shape_of(options, "base" if options.workload == "pretraining" else "xxlarge")
    with trial_of(options, shape) as trial:
        batches = list(islice(trial.build_training_data_loader(), options.repeats + 1))
        seconds, done, memory = measure.train_in_turn(trial, Padded(trial), batches)
        peak, source = measure.peak_and_source()
    (total, windows, *_), theirs = done["ours"][0], done["peer"][0]
    losses, allowed = [total / windows, theirs], 1e-4 if trial.dtype is torch.float32 else 2e-2
    if not abs(losses[0] - theirs) <= allowed * abs(theirs):
        raise Different(f"step: the first loss is {losses[0]}, the baseline's {theirs}")
    measured = {side: taken[1:] for side, taken in seconds.items()}
    result = compare(measured, "windows", options.windows)
    flops = [sum(trial.row_flops(row) for row in batch) for batch in batches[1:]]
    for side, taken in measured.items():
        mfu = [f / s / peak for f, s in zip(flops, taken, strict=True)]
        more = {"mfu": measure.spread_of(mfu), "first_step_seconds": seconds[side][0]}
        result["results"][side] |= more
    tokens = sum(len(row["input_ids"]) for batch in batches[1:] for row in batch)
    settings = {"workload": options.workload, "shape": shape, "windows": options.windows}
    settings |= {"tokens_per_window": tokens / options.windows / options.repeats}
    settings |= {"precision": str(trial.dtype), "first_losses": losses}
    settings |= {"max_tokens_per_forward": trial.hparams.max_tokens_per_forward}
    settings |= {"peak_flops": {"value": peak, "from": source}}
    return {**result, "settings": settings, "memory": memory or "not measured"}
