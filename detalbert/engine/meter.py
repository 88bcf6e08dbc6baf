"""Measurements of training between two reports."""

import itertools
import math
import time
from collections.abc import Iterable
from typing import Any

import torch
from determined import pytorch

from detalbert.engine.flops import peak_flops
from detalbert.engine.rows import Row


class TrainingMeter(pytorch.MetricReducer):
    """Means of finite losses and gradient norms, and throughput, since the last report.

    Losses and norms stay on the device until then. `epoch` is the steps per epoch, a fraction.
    """

    def __init__(self, epoch: float) -> None:
        self.epoch = epoch
        self.step = 0  # of the whole run
        self.throughput = {"windows": 0, "tokens": 0, "seconds": 0.0}  # of all slots, last report

    def epochs(self, step: int) -> float:
        """Return the epochs at `step`: 100 steps of 256 of 132,198 windows are 0.1937."""
        return step / self.epoch

    def reset(self) -> None:
        self.losses: list[torch.Tensor] = []  # of each row, their sum
        self.counts: list[int] = []  # of each row, its windows
        self.norms: list[torch.Tensor] = []  # of each step's gradient, over all ranks
        self.windows = self.tokens = 0
        self.began = time.monotonic()

    def update(self, row: Row, losses: torch.Tensor) -> None:
        self.losses.append(losses.detach().sum())
        self.counts.append(len(losses))
        self.windows += len(losses)
        self.tokens += len(row["input_ids"])

    def per_slot_reduce(self) -> tuple[float, int, int, int, float]:
        losses = torch.stack(self.losses) if self.losses else torch.zeros(0)
        finite = losses.isfinite()
        counted = sum(itertools.compress(self.counts, finite.tolist()))
        seconds = time.monotonic() - self.began
        return float(losses[finite].sum()), counted, self.windows, self.tokens, seconds

    def cross_slot_reduce(self, per_slot: list[Any]) -> dict[str, float]:
        loss, counted, windows, tokens = (sum(slot[i] for slot in per_slot) for i in range(4))
        seconds = max(slot[4] for slot in per_slot)
        self.throughput = {"windows": windows, "tokens": tokens, "seconds": seconds}
        return {
            "loss": loss / counted if counted else math.nan,
            "examples_per_second": windows / seconds,
            "epochs": self.epochs(self.step),
            **self.gradient_norms(),
        }

    def gradient_norms(self) -> dict[str, float]:
        """Return `grad_norm`, the mean of finite norms, and `skipped_steps` if there are any."""
        norms = torch.stack(self.norms).cpu() if self.norms else torch.zeros(0)
        finite = norms[norms.isfinite()]
        found = {"grad_norm": float(finite.mean())} if len(finite) else {}
        skipped = len(norms) - len(finite)
        return {**found, "skipped_steps": skipped} if skipped else found


class Utilization(pytorch.MetricReducer):
    """GPU utilization of the steps since the last report.

    `mfu` is the FLOPs of the model's products over real tokens, without recomputation, divided by
    the peak of the ranks' GPUs (Chowdhery et al. 2022, arXiv:2204.02311, section 4.1); omitted if a
    GPU or the model is not known. `memory_gib` is the peak memory of a rank's tensors. `half`:
    products are in fp16 or bf16.
    """

    def __init__(self, meter: TrainingMeter, device: torch.device, half: bool) -> None:
        self.meter, self.device = meter, device
        self.peak = peak_flops(torch.cuda.get_device_name(device), half)
        self.flops = 0.0

    def reset(self) -> None:
        self.flops = 0.0
        torch.cuda.reset_peak_memory_stats(self.device)

    def add(self, flops: Iterable[float | None]) -> None:
        """Add the FLOPs of rows; None is unknown."""
        self.flops += sum(math.nan if found is None else found for found in flops)

    def per_slot_reduce(self) -> tuple[float, float, int]:
        return self.flops, self.peak or math.nan, torch.cuda.max_memory_allocated(self.device)

    def cross_slot_reduce(self, per_slot: list[tuple[float, float, int]]) -> dict[str, float]:
        flops, peak = (sum(slot[i] for slot in per_slot) for i in (0, 1))
        mfu = flops / (peak * self.meter.throughput["seconds"])
        metrics = {"memory_gib": max(slot[2] for slot in per_slot) / 2**30}
        return metrics if math.isnan(mfu) else {"mfu": mfu, **metrics}
