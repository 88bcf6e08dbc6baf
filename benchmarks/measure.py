"""Measuring for every stage: models, interleaved runs, a synchronised clock, rates, baselines."""

import contextlib
import copy
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import yaml
from determined import core, pytorch
from torch import Tensor

from detalbert.corpus.api_text import find_services, read_service
from detalbert.engine import flops, optim
from detalbert.engine.determinism import choose_exact_kernels
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError
from detalbert.training.local import trial_context
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops
from pretrain.hparams import SIZE_KEYS, SIZES

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = yaml.safe_load((ROOT / "benchmarks" / "experiments.yaml").read_text())
# The published sizes, and two of our own that a CPU trains in no time.
_SIZES = {**SIZES, "tiny": (32, 2, 2, 16, 64), "small": (256, 4, 4, 128, 1024)}
SHAPES = {name: dict(zip(SIZE_KEYS, size, strict=True)) for name, size in _SIZES.items()}


class Different(Exception):
    """The two sides of a stage give different results, so their speeds cannot be compared."""


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def shape_of(options: Namespace, on_gpu: str = "xxlarge") -> str:
    """Return a key of SHAPES; auto is small on a CPU and `on_gpu` on a GPU."""
    auto = on_gpu if torch.cuda.is_available() else "small"
    return auto if options.shape == "auto" else str(options.shape)


def experiment(stage: str, **hyperparameters: Any) -> dict[str, Any]:
    """Return the experiment config of a stage, with further hyperparameters."""
    config: dict[str, Any] = copy.deepcopy(EXPERIMENTS[stage])
    config["hyperparameters"] |= hyperparameters
    return config


def documents(options: Namespace) -> list[str]:
    """Return the documents of `--text`, or botocore's, each on one line."""
    if options.text is not None:
        found = options.text.read_text(encoding="utf-8").splitlines()
    else:
        found = (text for service in find_services() for text in read_service(service))
    lines = (" ".join(text.split()) for text in found)
    if not (texts := list(islice(filter(None, lines), options.examples))):
        raise UserError(f"--text {options.text}: no text in it; give a file of documents")
    return texts


def run_python(*words: str, **env: str) -> str:
    """Run Python in the repository's root; return its output. Raises Different if it fails."""
    command: Any = {"args": [sys.executable, *words], "cwd": ROOT, "env": os.environ | env}
    done = subprocess.run(**command, capture_output=True, text=True)
    if done.returncode:
        raise Different(f"{words[0]} {words[1]}: status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def peak_and_source() -> tuple[float, str]:
    """Return the peak FLOP/s, at which the MFU is 1, and the source of the number."""
    name = torch.cuda.get_device_name() if device().type == "cuda" else ""
    if (known := flops.peak_flops(name, half=True)) is not None:
        return known, "data sheet, half precision"
    matrix = torch.rand(2048, 2048, device=device())
    seconds = interleave({"product": lambda: matrix @ matrix}, repeats=5)["product"]
    return 2 * 2048**3 / min(seconds), "measured: fp32 product of two 2048 x 2048 matrices"


def now() -> float:
    """Return the time in seconds after all work queued on the GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def interleave(sides: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each call, in turn to spread other load."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            began = now()
            call()
            seconds[name].append(now() - began)
    return seconds


def spread_of(values: list[float]) -> dict[str, Any]:
    """Return the median, the spread (greatest less least) and every repeat."""
    spread, repeats = float(max(values) - min(values)), list(map(float, values))
    return {"median": float(np.median(values)), "spread": spread, "repeats": repeats}


def compare(seconds: Mapping[str, list[float]], unit: str, amount: float) -> dict[str, Any]:
    """Return the `results` of both sides, which did `amount` units per run, and the `ratio`."""
    figure, results = f"{unit}_per_second", dict[str, Any]()
    for side, values in seconds.items():
        speeds = [amount / value for value in values]
        results[side] = {"seconds": spread_of(values), figure: spread_of(speeds)}
    ours, peer = (results[side][figure]["median"] for side in ("ours", "peer"))
    return {"results": results, "ratio": {figure: ours / peer}}


@contextlib.contextmanager
def context_of(
    config: dict[str, Any], folder: Path, group: core.DistributedContext | None = None
) -> Iterator[pytorch.PyTorchTrialContext]:
    """Yield a trial context as a training run creates it; its reports are written into `folder`."""
    choose_exact_kernels()
    group, metrics = group or core.DummyDistributedContext(), RunMetrics(folder, config["searcher"])
    with trial_context(group, metrics, LocalStops(group), config, 0, {}) as context:
        yield context


def pad(row: Mapping[str, Tensor], length: int, **columns: tuple[Tensor, int]) -> dict[str, Tensor]:
    """Return columns (values [T], fill) of a packed row as int64 [windows, length], and a mask."""
    real = torch.arange(length) < row["cu_seqlens"].diff()[:, None]
    padded = {"attention_mask": real.long()}
    for name, (values, fill) in columns.items():
        padded[name] = torch.full(real.shape, fill)
        padded[name][real] = values
    return padded


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


def train_in_turn(trial: StepTrial, peer: Any, batches: list[Any], turn: int = 1) -> Any:
    """Train on `batches` with both sides, `turn` steps of each at a time, on all processes.

    Return by side the seconds of each turn, what each step gave (the meter's sums of ours, the mean
    loss of the baseline's), and the peak memory of the first turn on a GPU.
    """

    def step(number: int, batch: list[Any]) -> Any:
        trial.meter.reset()
        trial.train_batch(batch, 0, number)
        trial.schedule.step()
        return trial.meter.per_slot_reduce()

    steps = {
        "ours": iter([partial(step, number, batch) for number, batch in enumerate(batches)]),
        "peer": iter([partial(peer.step, peer.batch(batch)) for batch in batches]),
    }
    done: dict[str, list[Any]] = {side: [] for side in steps}
    memory: dict[str, Any] = {}
    gpu = torch.cuda.is_available()

    def take(side: str) -> None:
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        done[side] += [each() for each in islice(steps[side], turn)]
        if gpu:
            memory.setdefault(side, {"peak_bytes": torch.cuda.max_memory_allocated()})
        if dist.is_initialized():
            dist.barrier()

    sides = {side: partial(take, side) for side in steps}
    return interleave(sides, len(batches) // turn), done, memory
