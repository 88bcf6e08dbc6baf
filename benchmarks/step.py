"""Whole optimizer steps of a model.

Ours is `SquadTrial.train_batch` itself, outside of Determined's loop. The peer is the library's
model over padded rows: its default attention, autocast, micro-batches, and the same optimizer,
schedule and clipping; and the library's loss with the padding left out, so that both are equal.
"""

import contextlib
import copy
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from determined import core, pytorch
from transformers import AutoModelForQuestionAnswering

from benchmarks.measure import Different, Options, interleave, now, rates, ratio_of, spread_of
from benchmarks.shapes import SHAPES, peak_flops, shape_of
from data import SquadData
from detalbert.engine import optim
from detalbert.engine.determinism import choose_exact_kernels
from detalbert.engine.flops import training_flops
from detalbert.engine.rows import Row
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError
from detalbert.settings.hparams import parse_hparams
from detalbert.training.checkpoints import LocalCheckpoints
from detalbert.training.local import trial_context
from detalbert.training.metrics import RunMetrics
from detalbert.training.stopping import StopRequest
from model_def import SquadTrial

MICRO = 12  # padded windows in one forward of the peer
BUDGET = 16e9  # bytes: the memory of a V100
SEARCHER = {"name": "single", "metric": "f1", "smaller_is_better": False}


def squad_data(options: Options, cache: str) -> dict[str, Any]:
    """`data:` of an experiment on the files of `--data`."""
    return {
        "train": str(options.data / "train.json"),
        "validation": str(options.data / "dev.json"),
        "tokenizer": options.tokenizer,
        "cache_dir": cache,
        "max_train_examples": options.examples,
        "max_validation_examples": options.examples,
    }


@contextlib.contextmanager
def trial_of(options: Options, **hyperparameters: Any) -> Iterator[SquadTrial]:
    """The trial as a run makes it, before its first step; it leaves nothing behind."""
    values = {
        "model_config": SHAPES[shape_of(options)],
        "global_batch_size": options.windows,
        "max_steps": options.steps,
        "num_workers": 0,
        "seed": 42,
        **hyperparameters,
    }
    with tempfile.TemporaryDirectory() as folder:
        data = squad_data(options, folder)
        for name in ("train", "validation"):
            if not Path(data[name]).is_file():
                raise UserError(f"--data {options.data}: no {Path(data[name]).name} in it")
        config = {"hyperparameters": values, "data": data, "searcher": SEARCHER}
        hparams = parse_hparams(values)
        loaded = SquadData.load(data, hparams)
        with context_of(config, Path(folder) / "run") as context:
            trial = SquadTrial(context, (hparams, loaded))
            trial.meter.reset()
            trial.model.train()
            yield trial


@contextlib.contextmanager
def context_of(config: dict[str, Any], folder: Path) -> Iterator[pytorch.PyTorchTrialContext]:
    """Determined's context for one process, as a run makes it; it writes into `folder`."""
    choose_exact_kernels()
    alone = core.DummyDistributedContext()
    metrics = RunMetrics(folder, config["searcher"])
    checkpoints = LocalCheckpoints(alone, metrics, {}, {})
    with trial_context(alone, checkpoints, metrics, StopRequest(alone), config, 0) as context:
        context._current_batch_idx = 0  # the trial loop counts it
        yield context


def train_step(trial: StepTrial, batch: list[Row], step: int) -> None:
    """One optimizer step of ours; `last_loss` reads its loss, and waits for the device."""
    trial.meter.reset()
    trial.train_batch(batch, 0, step)
    trial.schedule.step()


def last_loss(trial: StepTrial) -> float:
    """Mean loss of the windows of the last step."""
    total, windows, *_ = trial.meter.per_slot_reduce()
    return total / windows


class Padded:
    """The peer: the same weights in the library's model, rows padded to max_seq_length."""

    def __init__(self, trial: SquadTrial) -> None:
        self.hparams, self.dtype = trial.hparams, trial.dtype
        self.device = trial.context.device
        self.windows = trial.data.train.windows
        self.pad = trial.data.tokenizer.pad_token_id or 0
        model = AutoModelForQuestionAnswering.from_config(
            copy.deepcopy(trial.model.config), attn_implementation="sdpa"
        )
        model.load_state_dict(trial.model.state_dict())
        self.model = model.to(self.device).train()
        groups = optim.parameter_groups(model, self.hparams.weight_decay)
        rate = self.hparams.learning_rate()
        self.optimizer = optim.build_optimizer(
            self.hparams.optimizer, groups, rate, self.hparams.beta2
        )
        self.schedule = optim.build_scheduler(self.optimizer, trial.steps, trial.warmup)
        half = self.dtype is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=half)

    def batch(self, chosen: np.ndarray) -> list[dict[str, torch.Tensor]]:
        """The windows of a step as micro-batches of padded rows, int64 [MICRO, length]."""
        micros = []
        for at in range(0, len(chosen), MICRO):
            row = self.windows.pack(chosen[at : at + MICRO])
            lengths = np.diff(row["cu_seqlens"])
            real = np.arange(self.hparams.max_seq_length) < lengths[:, None]
            columns = {"attention_mask": real.astype(np.int64)}
            for name, fill in (("input_ids", self.pad), ("token_type_ids", 0)):
                columns[name] = np.full(real.shape, fill, np.int64)
                columns[name][real] = row[name]
            columns.update({k: row[k] for k in ("start_positions", "end_positions")})
            micros.append({name: torch.from_numpy(x) for name, x in columns.items()})
        return micros

    def step(self, micros: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        """One optimizer step; returns the mean loss of its windows, on the device."""
        exact = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)  # the ordinary way is the faster kernels
        try:
            return self._step(micros)
        finally:
            torch.use_deterministic_algorithms(exact)

    def _step(self, micros: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        total = sum(len(micro["input_ids"]) for micro in micros)
        mean = torch.zeros((), device=self.device)
        enabled = self.dtype is not torch.float32
        for micro in micros:
            inputs = {k: x.to(self.device, non_blocking=True) for k, x in micro.items()}
            targets = inputs.pop("start_positions"), inputs.pop("end_positions")
            with torch.autocast(self.device.type, self.dtype, enabled=enabled):
                output = self.model(**inputs)
            ends = output.start_logits, output.end_logits
            loss = sum(_span_loss(x, inputs, y) for x, y in zip(ends, targets, strict=True))
            loss = loss * (len(targets[0]) / total / 2)
            self.scaler.scale(loss).backward()
            mean += loss.detach()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.hparams.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()
        return mean


def _span_loss(
    logits: torch.Tensor, inputs: dict[str, torch.Tensor], target: torch.Tensor
) -> torch.Tensor:
    """The library's own loss but for one thing: its softmax takes in the padding."""
    real = inputs["attention_mask"].bool()
    return F.cross_entropy(logits.float().masked_fill(~real, -torch.inf), target)


def step(options: Options) -> dict[str, Any]:
    """Whole optimizer steps of `options.windows` windows; inputs are on the host beforehand."""
    with trial_of(options) as trial:
        device, peer = trial.context.device, Padded(trial)
        batches = list(islice(trial.build_training_data_loader(), options.repeats + 1))
        chosen = [np.concatenate([row["windows"].numpy() for row in rows]) for rows in batches]
        padded = [peer.batch(windows) for windows in chosen]
        turn = {"ours": 0, "peer": 0}

        def ours() -> None:
            train_step(trial, batches[turn["ours"]], turn["ours"])
            turn["ours"] += 1

        def theirs() -> None:
            peer.step(padded[turn["peer"]])
            turn["peer"] += 1

        first = _first_step(trial, peer, batches[0], padded[0], device)
        turn.update(ours=1, peer=1)
        sides = {"ours": ours, "peer": theirs}
        seconds = interleave(sides, options.repeats, device, warm_up=0)
        lengths = [trial.data.train.windows.lengths[x] for x in chosen[1:]]
        results = rates(seconds, windows=options.windows)
        peak, source = peak_flops(device)
        for side, values in seconds.items():
            rate = _throughput(values, lengths, trial.model.config, peak)
            results[side].update(rate, first_step_seconds=first[side])
        measured = sides if device.type == "cuda" else {}
        memory = {name: _memory(call, turn) for name, call in measured.items()}
    return {
        "results": results,
        "ratio": {"windows_per_second": ratio_of(results, "windows_per_second")},
        "memory": memory or "not measured",
        "compile": _compiled(results),
        "settings": {
            **_settings(options, trial, lengths),
            "peak_flops": {"value": peak, "from": source},
            "first_losses": first["losses"],
        },
    }


def _throughput(
    seconds: list[float], lengths: list[np.ndarray], config: Any, peak: float
) -> dict[str, Any]:
    """Tokens a second, and the share of `peak` FLOP/s, of steps over windows of `lengths`."""
    tokens = [int(step.sum()) for step in lengths]
    flops = [training_flops(config, step) for step in lengths]
    return {
        "tokens_per_second": spread_of([n / s for n, s in zip(tokens, seconds, strict=True)]),
        "mfu": spread_of([f / s / peak for f, s in zip(flops, seconds, strict=True)]),
    }


def _settings(options: Options, trial: SquadTrial, lengths: list[np.ndarray]) -> dict[str, Any]:
    tokens = float(sum(step.sum() for step in lengths))
    return {
        "shape": shape_of(options),
        "windows": options.windows,
        "tokens_per_window": tokens / options.windows / len(lengths),
        "precision": str(trial.dtype),
        "max_tokens_per_forward": trial.hparams.max_tokens_per_forward,
        "peer_windows_per_forward": MICRO,
    }


def _first_step(
    trial: SquadTrial, peer: Padded, batch: list[Row], padded: Any, device: torch.device
) -> dict[str, Any]:
    """The warm-up, from equal weights, so its losses must be equal to rounding."""
    began = now(device)
    train_step(trial, batch, 0)
    middle = now(device)
    theirs = float(peer.step(padded))
    ended = now(device)
    ours = last_loss(trial)
    allowed = 1e-4 if trial.dtype is torch.float32 else 2e-2
    if abs(ours - theirs) > allowed * abs(theirs):
        raise Different(f"step: the first loss is {ours}, the peer's {theirs}")
    return {"ours": middle - began, "peer": ended - middle, "losses": [ours, theirs]}


def _memory(call: Callable[[], None], turn: dict[str, int]) -> dict[str, Any]:
    """Peak bytes of one more step, and windows/s at a budget of 16 GB or that it does not fit."""
    device = torch.device("cuda", torch.cuda.current_device())
    result: dict[str, Any] = {"budget_bytes": BUDGET}
    for name in ("seconds", "seconds_at_budget"):
        turn.update(ours=0, peer=0)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            began = now(device)
            call()
            result[name] = now(device) - began
        except torch.cuda.OutOfMemoryError:
            result[name] = "out of memory"
        result.setdefault("peak_bytes", torch.cuda.max_memory_allocated())
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, BUDGET / total))
    torch.cuda.set_per_process_memory_fraction(1.0)
    return result


def _compiled(results: dict[str, Any]) -> dict[str, Any]:
    """What the first step took beyond a usual one, and how many graphs were compiled."""
    stats = torch._dynamo.utils.counters["stats"]
    ours = results["ours"]
    return {
        "seconds": max(0.0, ours["first_step_seconds"] - ours["seconds"]["median"]),
        "graphs": int(stats.get("unique_graphs", 0)),
    }
