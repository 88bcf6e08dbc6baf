"""Reports of training: what is measured between two of them, and what rank 0 prints of it, a
progress bar or periodic lines, beside the scores.

Losses and norms stay on the device until a report, which reads them all at once: a look at each
would block at every step. The price is a list of scalars per report.

A line has what fits the WebUI's log unbroken; what does not fit is left out, for it is charted.
"""

import itertools
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from determined import pytorch
from torch import Tensor

from detalbert.engine.flops import peak_flops
from detalbert.engine.history import History
from detalbert.progress import Bar

log = logging.getLogger(__name__)
LINE = 91  # characters that the WebUI shows unbroken at 1280 pixels, after container and rank
BAR = 55  # characters beside a bar: its name, a bar of some length, steps and time left
SETTLED = 5  # steps of a start, after its first report, before it says how long the rest takes


class TrainingMeter(pytorch.MetricReducer):
    """Means of finite losses and norms, throughput, and use of GPUs, since the last report.

    `mfu` is the FLOPs of the model's products over real tokens, without recomputation, divided by
    the peak of the ranks' GPUs (Chowdhery et al. 2022, arXiv:2204.02311, section 4.1); omitted if a
    GPU or the model is not known. `memory_gib` is the peak memory of a rank's tensors.

    Args:
        history: of the run, which counts its steps.
        epoch: steps per epoch, a fraction.
        device: the model's.
        half: whether products are in fp16 or bf16.
    """

    def __init__(self, history: History, epoch: float, device: torch.device, half: bool) -> None:
        self.history = history
        self.epoch = epoch
        self.device = device
        self.on_a_gpu = device.type == "cuda"
        # Over all ranks, of the last report.
        self.throughput: dict[str, float] = {"windows": 0, "tokens": 0, "seconds": 0.0}
        self.peak = math.nan  # FLOP/s
        if self.on_a_gpu:
            name = torch.cuda.get_device_name(device)
            self.peak = peak_flops(name, half) or math.nan

    def epochs(self, step: int) -> float:
        """Return the epochs at `step`: 100 steps of 256 of 132,198 windows are 0.1937."""
        return step / self.epoch

    def reset(self) -> None:
        self.losses: list[Tensor] = []  # of each row, their sum
        self.counts: list[int] = []  # of each row, its windows
        self.norms: list[Tensor] = []  # of each step's gradient, over all ranks
        self.windows = 0
        self.tokens = 0
        self.flops = 0.0
        self.began = time.monotonic()
        if self.on_a_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def update(self, row: Mapping[str, Any], losses: Tensor) -> None:
        """Count a row with the losses of its windows, [n]."""
        self.losses.append(losses.detach().sum())
        self.counts.append(len(losses))
        self.windows += len(losses)
        self.tokens += len(row["input_ids"])

    def add_flops(self, flops: Iterable[float | None]) -> None:
        """Add the FLOPs of rows; None is unknown."""
        self.flops += sum(math.nan if count is None else count for count in flops)

    def per_slot_reduce(self) -> dict[str, float]:
        losses = torch.stack(self.losses) if self.losses else torch.zeros(0)  # [rows]
        # Rows whose loss is not finite are of steps that are skipped. Other steps have such only if
        # a workload's own code returns them, and then the mean is what it is.
        finite = losses.isfinite()
        if "skipped_steps" not in self.gradient_norms():
            finite.fill_(True)
        counted = sum(itertools.compress(self.counts, finite.tolist()))
        return {
            "loss": float(losses[finite].sum()),
            "counted": counted,
            "windows": self.windows,
            "tokens": self.tokens,
            "seconds": time.monotonic() - self.began,
            "flops": self.flops,
            "peak": self.peak,
            "memory": torch.cuda.max_memory_allocated(self.device) if self.on_a_gpu else 0,
        }

    def cross_slot_reduce(self, per_slot: list[dict[str, float]]) -> dict[str, float]:
        total = {name: sum(slot[name] for slot in per_slot) for name in per_slot[0]}
        # Ranks wait for each other: the slowest one's seconds count.
        seconds = max(slot["seconds"] for slot in per_slot)
        self.throughput = {
            "windows": total["windows"],
            "tokens": total["tokens"],
            "seconds": seconds,
        }
        metrics = {
            "loss": total["loss"] / total["counted"] if total["counted"] else math.nan,
            "examples_per_second": total["windows"] / seconds,
            "epochs": self.epochs(self.history.step),
            **self.gradient_norms(),
        }
        if self.on_a_gpu:
            metrics["memory_gib"] = max(slot["memory"] for slot in per_slot) / 2**30
            mfu = total["flops"] / (total["peak"] * seconds)
            if not math.isnan(mfu):
                metrics["mfu"] = mfu
        return metrics

    def gradient_norms(self) -> dict[str, float]:
        """Return `grad_norm`, the mean of finite norms, and `skipped_steps` if there are any."""
        norms = torch.stack(self.norms).cpu() if self.norms else torch.zeros(0)  # [steps]
        finite = norms[norms.isfinite()]
        skipped_steps = len(norms) - len(finite)
        metrics = {}
        if len(finite):
            metrics["grad_norm"] = float(finite.mean())
        if skipped_steps:
            metrics["skipped_steps"] = skipped_steps
        return metrics


@dataclass(eq=False)
class Progress(pytorch.PyTorchCallback):
    """Prints loss, learning rate, gradient norm, speed and time left; validations, checkpoints.

    The time left is estimated from this start's own steps, except its first report: those steps
    compile, warm caches, and wait for the loaders.

    Args:
        history: of the run, which counts its steps.
        steps: optimizer steps of the whole run.
        chief: whether this is rank 0, which alone prints.
        logged_metrics: names of the validation metrics to print, in this order.
    """

    history: History
    steps: int
    chief: bool
    logged_metrics: Sequence[str]
    bar: Bar | None = None  # while the loop runs
    _first_report: int | None = None  # step of this start's first report
    _seconds: float = 0.0  # spent training since then; no validation, no checkpoint

    def on_training_start(self) -> None:
        if self.chief:
            self.bar = Bar("training", total=self.steps, unit="steps", done=self.history.step)
        self._resumed_at = time.monotonic()

    def on_step(self) -> None:
        """Count the steps of the bar, or of the line after a long silence, between two reports."""
        if self.bar is not None:
            self.bar.update(self.history.step - self.bar.n)

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: Any) -> None:
        """Print a report: the means since the last one, given the metrics of each step."""
        step = self.history.step
        if self._first_report is None:
            self._first_report = step
        else:
            self._seconds += time.monotonic() - self._resumed_at
        if self.chief and avg_metrics.get("skipped_steps"):
            log.warning(
                "steps without a finite gradient, taken as zero: %d", avg_metrics["skipped_steps"]
            )

        values = format_report(avg_metrics, batch_metrics[-1], left=self._time_left())
        if self.bar is not None and sys.stderr.isatty():
            # Of standard error, where the bar is; standard output may be a file.
            room = os.get_terminal_size(sys.stderr.fileno()).columns - BAR
            self.bar.set_postfix_str(format_line("", values, room).strip())
        else:
            self.say(format_line(f"step {step}/{self.steps}", values))
            if self.bar is not None:
                self.bar.last_print_t = time.time()  # its line comes after a silence
        self._resumed_at = time.monotonic()

    def _time_left(self) -> str:
        """Return the time that the rest of the run takes, "" if it is not known, or on the bar."""
        steps_left = self.steps - self.history.step
        # The first steps of a start are slow, and say nothing of the rest.
        timed_steps = self.history.step - (self._first_report or 0)
        on_a_bar = self.bar is not None and sys.stderr.isatty()
        if on_a_bar or timed_steps < SETTLED or not steps_left:
            return ""
        return Bar.format_interval(self._seconds / timed_steps * steps_left)

    def on_validation_end(self, metrics: dict[str, float]) -> None:
        self._say_scores(f"validation at step {self.history.step}:", metrics)
        self._resumed_at = time.monotonic()

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.say(f"checkpoint at step {self.history.step}: {uuid}")
        self._resumed_at = time.monotonic()

    def on_trial_shutdown(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def say_best(self, best: Mapping[str, float]) -> None:
        """Log the best validation of a finished run."""
        self._say_scores(f"best validation (step {best['steps']:.0f}):", best)

    def _say_scores(self, head: str, metrics: Mapping[str, float]) -> None:
        scores = {name: f"{metrics[name]:.2f}" for name in self.logged_metrics if name in metrics}
        self.say(format_line(head, scores))

    def say(self, line: str) -> None:
        if self.chief:
            log.info("%s", line)


def format_report(
    means: Mapping[str, float], last_step: Mapping[str, float], left: str
) -> dict[str, str]:
    """Return the values of a report by the names they are printed under, most important first."""
    # The rate is of the last step: the mean of the report, which is charted, is an earlier step's.
    values = {"loss": f"{means['loss']:.4f}", "lr": f"{last_step['learning_rate_1e6'] / 1e6:.2e}"}
    if "grad_norm" in means:
        values["norm"] = f"{means['grad_norm']:.2f}"
    if "tokens_per_second" in means:
        values["tokens/s"] = f"{means['tokens_per_second']:.0f}"
    else:
        values["windows/s"] = f"{means['examples_per_second']:.1f}"
    if left:
        values["left"] = left
    # Of GPUs; last, as a line may have no room for them.
    if "mfu" in means:
        values["mfu"] = f"{means['mfu']:.2f}"
    if "memory_gib" in means:
        values["GiB"] = f"{means['memory_gib']:.1f}"
    return values


def format_line(head: str, values: Mapping[str, str], room: int = LINE) -> str:
    """Return `head` and the values, each under its name, that fit `room` characters: "validation at
    step 9:  exact 83.67  f1 84.27".
    """
    line = head
    for name, value in values.items():
        longer = f"{line}  {name} {value}"
        if len(longer) <= room:
            line = longer
    return line
