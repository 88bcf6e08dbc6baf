"""How every stage is measured: options, models, taking turns, a synchronised clock, rates."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from determined import core, pytorch

from detalbert import atomic
from detalbert.corpus.api_text import find_services, read_service
from detalbert.engine import flops, optim
from detalbert.engine.determinism import choose_exact_kernels
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError, first_line
from detalbert.training.checkpoints import LocalCheckpoints
from detalbert.training.local import trial_context
from detalbert.training.metrics import RunMetrics
from detalbert.training.stopping import StopRequest
from pretrain.hparams import SIZE_KEYS, SIZES

SEARCHER = {"name": "single", "metric": "loss", "smaller_is_better": True}
ROOT = Path(__file__).resolve().parents[1]
# The published sizes, and two of our own that a CPU trains in no time.
_SIZES = {**SIZES, "tiny": (32, 2, 2, 16, 64), "small": (256, 4, 4, 128, 1024)}
SHAPES = {
    name: dict(zip(SIZE_KEYS, _SIZES[name], strict=True))
    for name in ("tiny", "small", "base", "large", "xxlarge")
}


class Different(Exception):
    """The two sides of a stage do not agree, so their speeds mean nothing."""


@dataclass(frozen=True)
class Options:
    """What a stage is run on: the flags of `python -m benchmarks`."""

    data: Path  # folder with train.json and dev.json of SQuAD's shape
    tokenizer: str  # folder or hub name
    workload: str = "finetuning"
    repeats: int = 5
    examples: int | None = None  # at most so many questions of each file, or documents
    windows: int = 48  # windows of one optimizer step
    shape: str = "auto"  # key of SHAPES; auto: small on a CPU
    text: Path | None = None  # one document per line; default: botocore's
    model: Path | None = None  # model folder for `finetune`; default: the embedded model
    before: Path | None = None  # checkout of an earlier commit, the baseline of `serve`


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def shape_of(options: Options, on_gpu: str = "xxlarge") -> str:
    """Return a key of SHAPES; auto is small on a CPU and `on_gpu` on a GPU."""
    name = options.shape
    if name == "auto":
        name = on_gpu if device().type == "cuda" else "small"
    if name not in SHAPES:
        raise UserError(f"--shape {name}: no such shape; choose one of {', '.join(SHAPES)}")
    return name


def documents(options: Options) -> list[str]:
    """Return the documents of `--text`, each on one line; UserError if there are none."""
    found = chain.from_iterable(map(read_service, find_services()))
    if options.text is not None:
        try:
            found = chain(options.text.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--text {options.text}: cannot read it: {first_line(error)}") from None
    lines = (" ".join(text.split()) for text in found)
    if not (texts := list(islice(filter(None, lines), options.examples))):
        raise UserError(f"--text {options.text}: no text in it; give a file of documents")
    return texts


def peak_flops() -> tuple[float, str]:
    """Return the FLOP/s that an MFU of 1 would reach, and where the number is from."""
    name = torch.cuda.get_device_name() if device().type == "cuda" else ""
    if (known := flops.peak_flops(name, half=True)) is not None:
        return known, "data sheet, half precision"
    matrix, seconds = torch.rand(2048, 2048, device=device()), []
    for _ in range(6):
        began = now()
        matrix @ matrix
        seconds.append(now() - began)
    return 2 * 2048**3 / min(seconds), "measured: fp32 product of two 2048 x 2048 matrices"


def now() -> float:
    """Seconds on a clock that waits until the device has done all it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def interleave(
    sides: Mapping[str, Callable[[], Any]], repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of each call: every side `warm_up` times unmeasured, then in turn, `repeats` times.

    Taking turns spreads whatever else the machine does over both sides.
    """
    for call in sides.values():
        for _ in range(warm_up):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            began = now()
            call()
            seconds[name].append(now() - began)
    return seconds


def spread_of(values: list[float]) -> dict[str, Any]:
    """Median, spread (greatest less least) and every repeat."""
    return {
        "median": float(np.median(values)),
        "spread": float(max(values) - min(values)),
        "repeats": [float(value) for value in values],
    }


def rates(seconds: Mapping[str, list[float]], **amounts: float) -> dict[str, dict[str, Any]]:
    """Per side seconds, and for each amount `<name>_per_second`."""
    return {
        side: {"seconds": spread_of(values)}
        | {f"{x}_per_second": spread_of([n / s for s in values]) for x, n in amounts.items()}
        for side, values in seconds.items()
    }


def ratio_of(results: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, float]:
    """How many times the baseline's median ours is, by the figure's name."""
    return {name: results["ours"][name]["median"] / results["peer"][name]["median"]}


@contextlib.contextmanager
def context_of(
    config: dict[str, Any], folder: Path, group: core.DistributedContext | None = None
) -> Iterator[pytorch.PyTorchTrialContext]:
    """Determined's context, as a run makes it; it writes into `folder`."""
    choose_exact_kernels()
    group = group or core.DummyDistributedContext()
    metrics = RunMetrics(folder, config["searcher"])
    checkpoints = LocalCheckpoints(group, metrics, {}, {})
    with trial_context(group, checkpoints, metrics, StopRequest(group), config, 0) as context:
        context._current_batch_idx = 0  # the trial loop counts it
        yield context


def train_step(trial: StepTrial, batch: list[Any], step: int) -> None:
    """One optimizer step of ours."""
    trial.meter.reset()
    trial.train_batch(batch, 0, step)
    trial.schedule.step()


class Baseline:
    """A model of transformers, with the optimizer, schedule and clipping of a trial."""

    def __init__(self, trial: Any, model: Any) -> None:
        self.hparams, self.dtype, self.device = trial.hparams, trial.dtype, device()
        self.model = model.to(self.device).train()
        groups = optim.parameter_groups(self.model, self.hparams.weight_decay)
        name, rate = self.hparams.optimizer, self.hparams.learning_rate()
        self.optimizer = optim.build_optimizer(name, groups, rate, self.hparams.beta2)
        self.schedule = optim.build_scheduler(self.optimizer, trial.steps, trial.warmup)
        half = self.dtype is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=half)

    def autocast(self) -> Any:
        enabled = self.dtype is not torch.float32
        return torch.autocast(self.device.type, self.dtype, enabled=enabled)

    def update(self) -> None:
        """Clip and step, once all gradients are there."""
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.hparams.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write the file whole or not at all; UserError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.whole_file(path) as file:
            file.write(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"--json {path}: cannot write it: {first_line(error)}") from None
