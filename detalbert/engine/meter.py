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
    """Means of finite losses and norms, throughput, and use of GPUs, since the last report.

    Losses and norms stay on the device until then. `mfu` is the FLOPs of the model's products over
    real tokens, without recomputation, divided by the peak of the ranks' GPUs (Chowdhery et al.
    2022, arXiv:2204.02311, section 4.1); omitted if a GPU or the model is not known. `memory_gib`
    is the peak memory of a rank's tensors.

    Args:
        epoch: steps per epoch, a fraction.
        device: the model's.
        half: whether products are in fp16 or bf16.
    """

    def __init__(self, epoch: float, device: torch.device, half: bool) -> None:
        self.epoch, self.device = epoch, device
        self.step = 0  # of the whole run
        self.throughput = {"windows": 0, "tokens": 0, "seconds": 0.0}  # of all slots, last report
        peak = peak_flops(torch.cuda.get_device_name(device), half) if self.on_a_gpu else None
        self.peak = peak or math.nan

    @property
    def on_a_gpu(self) -> bool:
        return self.device.type == "cuda"

    def epochs(self, step: int) -> float:
        """Return the epochs at `step`: 100 steps of 256 of 132,198 windows are 0.1937."""
        return step / self.epoch

    def reset(self) -> None:
        self.losses: list[torch.Tensor] = []  # of each row, their sum
        self.counts: list[int] = []  # of each row, its windows
        self.norms: list[torch.Tensor] = []  # of each step's gradient, over all ranks
        self.windows = self.tokens = 0
        self.flops = 0.0
        self.began = time.monotonic()
        if self.on_a_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def update(self, row: Row, losses: torch.Tensor) -> None:
        self.losses.append(losses.detach().sum())
        self.counts.append(len(losses))
        self.windows += len(losses)
        self.tokens += len(row["input_ids"])

    def add_flops(self, flops: Iterable[float | None]) -> None:
        """Add the FLOPs of rows; None is unknown."""
        self.flops += sum(math.nan if found is None else found for found in flops)

    def per_slot_reduce(self) -> dict[str, float]:
        losses = torch.stack(self.losses) if self.losses else torch.zeros(0)
        finite = losses.isfinite()
        return {
            "loss": float(losses[finite].sum()),
            "counted": sum(itertools.compress(self.counts, finite.tolist())),
            "windows": self.windows,
            "tokens": self.tokens,
            "seconds": time.monotonic() - self.began,
            "flops": self.flops,
            "peak": self.peak,
            "memory": torch.cuda.max_memory_allocated(self.device) if self.on_a_gpu else 0,
        }

    def cross_slot_reduce(self, per_slot: list[Any]) -> dict[str, float]:
        total = {name: sum(slot[name] for slot in per_slot) for name in per_slot[0]}
        seconds = max(slot["seconds"] for slot in per_slot)
        self.throughput = {key: total[key] for key in ("windows", "tokens")} | {"seconds": seconds}
        metrics = {
            "loss": total["loss"] / total["counted"] if total["counted"] else math.nan,
            "examples_per_second": total["windows"] / seconds,
            "epochs": self.epochs(self.step),
            **self.gradient_norms(),
        }
        if self.on_a_gpu:
            metrics["memory_gib"] = max(slot["memory"] for slot in per_slot) / 2**30
            if not math.isnan(mfu := total["flops"] / (total["peak"] * seconds)):
                metrics["mfu"] = mfu
        return metrics

    def gradient_norms(self) -> dict[str, float]:
        """Return `grad_norm`, the mean of finite norms, and `skipped_steps` if there are any."""
        norms = torch.stack(self.norms).cpu() if self.norms else torch.zeros(0)
        finite = norms[norms.isfinite()]
        found = {"grad_norm": float(finite.mean())} if len(finite) else {}
        skipped = len(norms) - len(finite)
        return {**found, "skipped_steps": skipped} if skipped else found
