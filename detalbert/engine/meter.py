"""What a run measures of its training between two reports."""

import math
import time
from collections.abc import Iterable

import torch
from determined import pytorch

from detalbert.engine.flops import peak_flops
from detalbert.engine.rows import Row


class TrainingMeter(pytorch.MetricReducer):
    """Mean loss and throughput of the steps since the last report. Loss sums stay on the device.

    Args: epoch: steps of an epoch, with the fraction.
    """

    def __init__(self, epoch: float) -> None:
        self.epoch = epoch
        self.step = 0  # of the whole run
        self.throughput = {"windows": 0, "tokens": 0, "seconds": 0.0}  # of all slots, last report

    def epochs(self, step: int) -> float:
        """How often the data was gone through: 100 steps of 256 of 132,198 windows are 0.1937."""
        return step / self.epoch

    def reset(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.windows = self.tokens = 0
        self.began = time.monotonic()

    def update(self, row: Row, losses: torch.Tensor) -> None:
        self.losses.append(losses.detach().sum())
        self.windows += len(losses)
        self.tokens += len(row["input_ids"])

    def per_slot_reduce(self) -> tuple[float, int, int, float]:
        total = float(torch.stack(self.losses).sum()) if self.losses else 0.0
        return total, self.windows, self.tokens, time.monotonic() - self.began

    def cross_slot_reduce(self, per_slot: list[tuple[float, int, int, float]]) -> dict[str, float]:
        loss, windows, tokens = (sum(slot[i] for slot in per_slot) for i in range(3))
        seconds = max(slot[3] for slot in per_slot)
        self.throughput = {"windows": windows, "tokens": tokens, "seconds": seconds}
        return {
            "loss": loss / max(windows, 1),
            "examples_per_second": windows / seconds,
            "epochs": self.epochs(self.step),
        }


class Utilization(pytorch.MetricReducer):
    """How far the steps since the last report used their GPUs.

    `mfu` is the share of all that the slots' GPUs could do (flops.peak_flops) that the model's
    products over real tokens needed; what checkpointing computes again is no part of it (Chowdhery
    et al. 2022, arXiv:2204.02311, section 4.1). It is left out where a GPU or the model is not
    known. `memory_gib` is the most that a slot's tensors took at a time.

    Nothing here waits for a device. Args: half: whether products are in fp16 or bf16.
    """

    def __init__(self, meter: TrainingMeter, device: torch.device, half: bool) -> None:
        self.meter, self.device = meter, device
        self.peak = peak_flops(torch.cuda.get_device_name(device), half)
        self.flops = 0.0

    def reset(self) -> None:
        self.flops = 0.0
        torch.cuda.reset_peak_memory_stats(self.device)

    def add(self, flops: Iterable[float | None]) -> None:
        """Count rows; None is unknown."""
        self.flops += sum(math.nan if found is None else found for found in flops)

    def per_slot_reduce(self) -> tuple[float, float, int]:
        return self.flops, self.peak or math.nan, torch.cuda.max_memory_allocated(self.device)

    def cross_slot_reduce(self, per_slot: list[tuple[float, float, int]]) -> dict[str, float]:
        flops, peak = (sum(slot[i] for slot in per_slot) for i in (0, 1))
        mfu = flops / (peak * self.meter.throughput["seconds"])
        metrics = {"memory_gib": max(slot[2] for slot in per_slot) / 2**30}
        return metrics if math.isnan(mfu) else {"mfu": mfu, **metrics}
