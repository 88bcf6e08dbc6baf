"""Whole optimizer steps: of fine-tuning, of pretraining, or of a language model.

Ours is the trial's `train_batch`, outside of Determined's loop. The baseline is the model of
transformers over the same windows in the same micro-batches, padded: its default attention,
autocast, and the same optimizer, schedule and clipping. The loss leaves the padding out, so that
both are equal; the first step's are compared. Inputs are on the host beforehand.
"""

import contextlib
import copy
import tempfile
from collections.abc import Iterator
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
    Baseline,
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
from detalbert.errors import UserError
from model_def import SquadTrial
from pretrain.trial import PretrainTrial

JOINED = 32  # documents of the text in one, so that most windows are full
Tensors = dict[str, torch.Tensor]


@contextlib.contextmanager
def trial_of(options: Options) -> Iterator[Any]:
    """The trial as a run makes it, before its first step; it leaves nothing behind."""
    pretraining = options.workload == "pretraining"
    shape = shape_of(options, "base" if pretraining else "xxlarge")
    values: dict[str, Any] = {"model_config": dict(SHAPES[shape]), "num_workers": 0, "seed": 42}
    values |= {"global_batch_size": options.windows, "max_steps": options.repeats + 1}
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


class Padded(Baseline):
    """The trial's weights in the model of transformers, over padded rows."""

    def __init__(self, trial: Any) -> None:
        self.pretraining = isinstance(trial, PretrainTrial)
        self.pad = trial.data.tokenizer.pad_token_id or 0
        config = copy.deepcopy(trial.model.config)
        kind: Any = AlbertForPreTraining if self.pretraining else AutoModelForQuestionAnswering
        make = kind._from_config if self.pretraining else kind.from_config
        model = make(config, attn_implementation="sdpa")
        model.load_state_dict(trial.model.state_dict())
        super().__init__(trial, model)

    def batch(self, rows: list[Any]) -> list[Tensors]:
        """Packed rows of T tokens as padded micro-batches: int64 [windows, max_seq_length]."""
        return [self._padded(row) for row in rows]

    def _padded(self, row: Tensors) -> Tensors:
        length = self.hparams.max_seq_length
        real = torch.arange(length) < row["cu_seqlens"].diff()[:, None]  # [windows, length]
        columns = {"attention_mask": real.long()}
        flat = {"input_ids": (row["input_ids"], self.pad)}
        flat["token_type_ids"] = row["token_type_ids"], 0
        if self.pretraining:
            labels = torch.full_like(row["input_ids"], -100)
            labels[row["masked"]] = row["mlm_labels"]
            flat["labels"], columns["sop"] = (labels, -100), row["sop_labels"]
        else:
            columns |= {name: row[f"{name}_positions"] for name in ("start", "end")}
        for name, (values, fill) in flat.items():
            columns[name] = torch.full(real.shape, fill)
            columns[name][real] = values
        return columns

    def step(self, micros: list[Tensors]) -> float:
        """One optimizer step; returns the mean loss of its windows."""
        exact = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)  # the ordinary way is the faster kernels
        mean = torch.zeros((), device=self.device)
        labels = ("labels", "sop") if self.pretraining else ("start", "end")
        counts = [sum(int((m[name] >= 0).sum()) for m in micros) for name in labels]
        windows = sum(len(micro["input_ids"]) for micro in micros)
        for micro in micros:
            sums = self._sums({k: x.to(self.device) for k, x in micro.items()}, labels)
            loss = torch.stack([x / max(n, 1) for x, n in zip(sums, counts, strict=True)]).sum()
            self.scaler.scale(loss).backward()
            for total, name in zip(sums, labels, strict=True):
                share = len(micro["input_ids"]) / windows
                mean += total.detach() * share / (micro[name] >= 0).sum().clamp(min=1)
        self.update()
        torch.use_deterministic_algorithms(exact)
        return float(mean)

    def _sums(self, inputs: Tensors, labels: tuple[str, ...]) -> list[torch.Tensor]:
        """The sum of each part of the loss, padding left out, in fp32."""
        taken = ("input_ids", "token_type_ids", "attention_mask")
        with self.autocast():
            output = self.model(**{name: inputs[name] for name in taken})
        if self.pretraining:
            logits, share = [output.prediction_logits.transpose(1, 2), output.sop_logits], 1.0
        else:  # the mean of start and end
            padding, share = ~inputs["attention_mask"].bool(), 0.5
            ends = output.start_logits, output.end_logits
            logits = [x.float().masked_fill(padding, -torch.inf) for x in ends]
        pairs = zip(logits, labels, strict=True)
        return [share * F.cross_entropy(x.float(), inputs[y], reduction="sum") for x, y in pairs]


def step(options: Options) -> dict[str, Any]:
    """Windows per second and MFU of both sides; tokens per second of a language model."""
    if options.workload == "lm":
        return lm.step(options)
    with trial_of(options) as trial:
        peer = Padded(trial)
        batches = list(islice(trial.build_training_data_loader(), options.repeats + 1))
        padded = [peer.batch(rows) for rows in batches]
        first = _first_step(trial, peer, batches[0], padded[0])
        rows_left, padded_left = enumerate(batches[1:], 1), iter(padded[1:])

        def ours() -> None:
            number, rows = next(rows_left)
            train_step(trial, rows, number)

        sides = {"ours": ours, "peer": lambda: peer.step(next(padded_left))}
        seconds = measure.interleave(sides, options.repeats, warm_up=0)
        results = rates(seconds, windows=options.windows)
        peak, source = measure.peak_flops()
        flops = [sum(trial.row_flops(row) for row in rows) for rows in batches[1:]]
        tokens = sum(len(row["input_ids"]) for rows in batches[1:] for row in rows)
        for side, taken in seconds.items():
            mfu = [f / s / peak for f, s in zip(flops, taken, strict=True)]
            results[side] |= {"mfu": spread_of(mfu), "first_step_seconds": first["seconds"][side]}
        settings = {
            "workload": options.workload,
            "shape": shape_of(options, "base" if peer.pretraining else "xxlarge"),
            "windows": options.windows,
            "tokens_per_window": tokens / options.windows / options.repeats,
            "precision": str(trial.dtype),
            "max_tokens_per_forward": trial.hparams.max_tokens_per_forward,
            "peak_flops": {"value": peak, "from": source},
            "first_losses": first["losses"],
        }
    ratio = ratio_of(results, "windows_per_second")
    return {"results": results, "ratio": ratio, "settings": settings, "memory": first["memory"]}


def _first_step(trial: Any, peer: Padded, rows: Any, padded: Any) -> dict[str, Any]:
    """Both warm-ups, from equal weights: their losses must be equal to rounding."""
    gpu, seconds, memory = torch.cuda.is_available(), dict[str, float](), dict[str, Any]()
    sides: dict[str, Any] = {
        "ours": lambda: train_step(trial, rows, 0),
        "peer": lambda: peer.step(padded),
    }
    for side, call in sides.items():
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        began = now()
        theirs = call()
        seconds[side] = now() - began
        if gpu:
            memory[side] = {"peak_bytes": torch.cuda.max_memory_allocated()}
    total, windows, *_ = trial.meter.per_slot_reduce()
    ours, allowed = total / windows, 1e-4 if trial.dtype is torch.float32 else 2e-2
    if not abs(ours - theirs) <= allowed * abs(theirs):
        raise Different(f"step: the first loss is {ours}, the baseline's {theirs}")
    losses = [ours, theirs]
    return {"seconds": seconds, "losses": losses, "memory": memory or "not measured"}
