"""Whole optimizer steps: of fine-tuning, of pretraining, or of a language model.

Ours is the trial's `train_batch`, outside of Determined's loop. The baseline is the model of
transformers over the same windows in the same micro-batches, padded: its default attention,
autocast, and the same optimizer, schedule and clipping. The loss leaves the padding out, so that
both are equal; the first step's are compared. Inputs are on the host beforehand.
"""

import contextlib
import copy
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AlbertForPreTraining, AutoModelForQuestionAnswering

from benchmarks import lm, measure
from benchmarks.measure import (
    SEARCHER,
    SHAPES,
    Different,
    Options,
    context_of,
    now,
    rates,
    ratio_of,
    shape_of,
    spread_of,
    train_step,
)
from detalbert.engine import optim
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError
from model_def import SquadTrial
from pretrain.trial import PretrainTrial

JOINED = 32  # documents of the text in one, so that most windows are full
Tensors = dict[str, torch.Tensor]


@contextlib.contextmanager
def trial_of(options: Options) -> Iterator[StepTrial]:
    """The trial as a run makes it, before its first step; it leaves nothing behind."""
    pretraining = options.workload == "pretraining"
    shape = shape_of(options, "base" if pretraining else "xxlarge")
    values: dict[str, Any] = {"model_config": dict(SHAPES[shape]), "global_batch_size": options.windows}
    values |= {"max_steps": options.repeats + 1, "num_workers": 0, "seed": 42}
    with tempfile.TemporaryDirectory() as folder:
        data: dict[str, Any] = {"tokenizer": options.tokenizer, "cache_dir": folder}
        if pretraining:
            lines, text = measure.documents(options), Path(folder) / "text.txt"
            joined = (" ".join(lines[i : i + JOINED]) for i in range(0, len(lines), JOINED))
            text.write_text("\n".join(joined), encoding="utf-8")
            data |= {"text": str(text), "validation": str(text)}  # the latter is not read
            values["model_config"]["classifier_dropout_prob"] = 0.0
            values["max_seq_length"] = 128 if shape in ("tiny", "small") else 512
        else:
            for split, name in (("train", "train.json"), ("validation", "dev.json")):
                if not (options.data / name).is_file():
                    raise UserError(f"--data {options.data}: no {name} in it")
                data[split] = str(options.data / name)
                data[f"max_{split}_examples"] = options.examples
        config = {"hyperparameters": values, "data": data, "searcher": SEARCHER}
        kind = PretrainTrial if pretraining else SquadTrial
        with context_of(config, Path(folder) / "run") as context:
            trial = kind(context)
            trial.model.train()
            yield trial


class Padded:
    """The baseline: the trial's weights in the model of transformers, over padded rows."""

    def __init__(self, trial: StepTrial) -> None:
        self.hparams, self.dtype = trial.hparams, trial.dtype
        self.pretraining = isinstance(trial, PretrainTrial)
        self.pad = trial.data.tokenizer.pad_token_id or 0
        kind: Any = AlbertForPreTraining if self.pretraining else AutoModelForQuestionAnswering
        config = copy.deepcopy(trial.model.config)
        make = kind._from_config if self.pretraining else kind.from_config
        model = make(config, attn_implementation="sdpa")
        model.load_state_dict(trial.model.state_dict())
        self.model = model.to(measure.device()).train()
        groups = optim.parameter_groups(model, self.hparams.weight_decay)
        name, rate = self.hparams.optimizer, self.hparams.learning_rate()
        self.optimizer = optim.build_optimizer(name, groups, rate, self.hparams.beta2)
        self.schedule = optim.build_scheduler(self.optimizer, trial.steps, trial.warmup)
        self.scaler = torch.amp.GradScaler(
            measure.device().type, enabled=self.dtype is torch.float16
        )

    def batch(self, rows: list[Any]) -> list[Tensors]:
        """Packed rows of T tokens as padded micro-batches: int64 [windows, max_seq_length]."""
        return [self._padded(row) for row in rows]

    def _padded(self, row: Tensors) -> Tensors:
        length = self.hparams.max_seq_length
        real = torch.arange(length) < row["cu_seqlens"].diff()[:, None]  # [windows, length]
        columns = {"attention_mask": real.long()}
        flat = {"input_ids": row["input_ids"], "token_type_ids": row["token_type_ids"]}
        if self.pretraining:
            flat["labels"] = torch.full_like(row["input_ids"], -100)
            flat["labels"][row["masked"]] = row["mlm_labels"]
            columns["sop"] = row["sop_labels"]
        else:
            columns |= {name: row[f"{name}_positions"] for name in ("start", "end")}
        for (name, values), fill in zip(flat.items(), (self.pad, 0, -100), strict=False):
            columns[name] = torch.full(real.shape, fill)
            columns[name][real] = values
        return columns

    def step(self, micros: list[Tensors]) -> float:
        """One optimizer step; returns the mean loss of its windows."""
        exact = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)  # the ordinary way is the faster kernels
        mean = torch.zeros((), device=measure.device())
        names = ("labels", "sop") if self.pretraining else ("start", "end")
        counts = [sum(int((m[name] >= 0).sum()) for m in micros) for name in names]
        total = sum(len(m["input_ids"]) for m in micros)
        for micro in micros:
            parts = self._losses({k: x.to(measure.device()) for k, x in micro.items()})
            self.scaler.scale(sum(s / max(n, 1) for (s, _), n in zip(parts, counts))).backward()  # noqa: B905
            own = sum(s.detach() / max(n, 1) for s, n in parts)
            mean += own * (len(micro["input_ids"]) / total)
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.hparams.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()
        torch.use_deterministic_algorithms(exact)
        return float(mean)

    def _losses(self, inputs: Tensors) -> list[tuple[torch.Tensor, int]]:
        """Sum and count of each part of the loss, padding left out, in fp32."""
        taken = ("input_ids", "token_type_ids", "attention_mask")
        device, half = measure.device().type, self.dtype is not torch.float32
        with torch.autocast(device, self.dtype, enabled=half):
            output = self.model(**{name: inputs[name] for name in taken})
        if self.pretraining:
            pairs = (output.prediction_logits.flatten(0, 1), inputs["labels"].flatten())
            logits = [pairs, (output.sop_logits, inputs["sop"])]
        else:  # the mean of start and end; each is counted once per window
            real = inputs["attention_mask"].bool()
            ends = output.start_logits, output.end_logits
            masked = [x.float().masked_fill(~real, -torch.inf) / 1 for x in ends]
            logits = [(masked[0], inputs["start"]), (masked[1], inputs["end"])]
        share = 1.0 if self.pretraining else 0.5
        return [
            (share * F.cross_entropy(x.float(), y, ignore_index=-100, reduction="sum"),
             int((y >= 0).sum()))
            for x, y in logits
        ]  # fmt: skip


def step(options: Options) -> dict[str, Any]:
    """Windows per second and MFU of both sides."""
    if options.workload == "lm":
        return lm.step(options)
    with trial_of(options) as trial:
        peer = Padded(trial)
        batches = list(islice(trial.build_training_data_loader(), options.repeats + 1))
        padded = [peer.batch(rows) for rows in batches]
        first = _first_step(trial, peer, batches[0], padded[0])
        turns = {"ours": iter(enumerate(batches[1:], 1)), "peer": iter(enumerate(padded[1:], 1))}

        def ours() -> None:
            number, rows = next(turns["ours"])
            train_step(trial, rows, number)

        sides = {"ours": ours, "peer": lambda: peer.step(next(turns["peer"])[1])}
        seconds = measure.interleave(sides, options.repeats, warm_up=0)
        results = rates(seconds, windows=options.windows)
        peak, source = measure.peak_flops()
        flops = [sum(trial.row_flops(row) for row in rows) for rows in batches[1:]]
        tokens = [sum(len(row["input_ids"]) for row in rows) for rows in batches[1:]]
        for side, taken in seconds.items():
            results[side]["mfu"] = spread_of([f / s / peak for f, s in zip(flops, taken)])  # noqa: B905
            results[side]["first_step_seconds"] = first[side]
        settings = {
            "workload": options.workload,
            "shape": shape_of(options, "base" if peer.pretraining else "xxlarge"),
            "windows": options.windows,
            "tokens_per_window": sum(tokens) / options.windows / len(tokens),
            "precision": str(trial.dtype),
            "max_tokens_per_forward": trial.hparams.max_tokens_per_forward,
            "peak_flops": {"value": peak, "from": source},
            "first_losses": first["losses"],
        }
    ratio = ratio_of(results, "windows_per_second")
    return {"results": results, "ratio": ratio, "settings": settings, **first["memory"]}


def _first_step(trial: StepTrial, peer: Padded, rows: Any, padded: Any) -> dict[str, Any]:
    """Both warm-ups, from equal weights: their losses must be equal to rounding."""
    found: dict[str, Any] = {}
    peaks: dict[str, int] = {}
    for side in ("ours", "peer"):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        began = now()
        loss = peer.step(padded) if side == "peer" else train_step(trial, rows, 0)
        found[side] = now() - began
        peaks[side] = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    total, windows, *_ = trial.meter.per_slot_reduce()
    allowed = 1e-4 if trial.dtype is torch.float32 else 2e-2
    if not abs(total / windows - loss) <= allowed * abs(loss):
        raise Different(f"step: the first loss is {total / windows}, the baseline's {loss}")
    memory: Mapping[str, Any] = {side: {"peak_bytes": x} for side, x in peaks.items()}
    gpu = {"memory": memory} if torch.cuda.is_available() else {"memory": "not measured"}
    return {**found, "losses": [total / windows, loss], "memory": gpu}
