"""Measurements of training between two reports.

Losses and norms stay on the device until a report, which reads them all at once: a look at each
would block at every step. The price is a list of scalars per report.
"""

import itertools
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from determined import pytorch
from torch import Tensor

from detalbert.engine.flops import peak_flops
from detalbert.engine.history import History


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
        # Over all ranks, of the last report.
        self.throughput: dict[str, float] = {"windows": 0, "tokens": 0, "seconds": 0.0}
        self.peak = math.nan  # FLOP/s
        if self.on_a_gpu:
            name = torch.cuda.get_device_name(device)
            self.peak = peak_flops(name, half) or math.nan

    @property
    def on_a_gpu(self) -> bool:
        return self.device.type == "cuda"

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
