"""How much there is to do, and how fast a number of slots of some GPU does it."""

import math
from collections.abc import Mapping
from pathlib import Path

from cluster.machines import gpu_of
from detalbert.errors import UserError
from reports.published import FINE_TUNING


def count_windows(train: str, config: Path) -> int:
    """Windows of a SQuAD-shaped file, cut as the experiment config says (tokenizer, lengths)."""
    from data import load_split, load_tokenizer
    from detalbert.settings import experiment
    from detalbert.settings.hparams import parse_data_config, parse_hparams

    loaded = experiment.load(config)
    hparams = parse_hparams(experiment.single_values(loaded.get("hyperparameters") or {}))
    data = parse_data_config({**(loaded.get("data") or {}), "train": train})
    return load_split(data, "train", load_tokenizer(data, hparams), hparams).counts["windows"]


class Speed:
    """Windows a second at any slot count, from measurements at some.

    Between two measured slot counts the throughput per slot is interpolated over log2(slots);
    beyond them the nearest is kept. On other GPUs it is scaled by peak half-precision arithmetic,
    which assumes the same utilisation: a model, and marked as one.
    """

    def __init__(self, points: Mapping[int, float], instance: str, kind: str = "measured") -> None:
        self.points = dict(sorted(points.items()))
        self.instance = instance
        self.kind = kind

    def at(self, slots: int, instance: str) -> tuple[float, str]:
        """Windows a second, and whether that is measured, published or modelled."""
        per_slot = self._per_slot(slots)
        here, there = gpu_of(self.instance), gpu_of(instance)
        if here is None or there is None:
            raise UserError(f"{instance}: its GPU is not known (cluster/machines.py); leave it out")
        known = slots in self.points and here.name == there.name
        scale = there.teraflops / here.teraflops
        return per_slot * slots * scale, self.kind if known else "modelled"

    def _per_slot(self, slots: int) -> float:
        counts = list(self.points)
        if slots <= counts[0]:
            return self.points[counts[0]] / counts[0]
        if slots >= counts[-1]:
            return self.points[counts[-1]] / counts[-1]
        above = next(count for count in counts if count >= slots)
        below = counts[counts.index(above) - 1]
        share = math.log2(slots / below) / math.log2(above / below)
        low, high = self.points[below] / below, self.points[above] / above
        return low + (high - low) * share


def parse_speed(text: str | None) -> Speed:
    """`1=2,8=15.8@p3.16xlarge`, or the published V100 figures where nothing is given."""
    if text is None:
        points = {row.slots: row.throughput for row in FINE_TUNING}
        return Speed(points, "p3.16xlarge", "published")
    points_text, _, instance = text.partition("@")
    found: dict[int, float] = {}
    for part in points_text.split(","):
        slots, _, value = part.partition("=")
        try:
            found[int(slots)] = float(value)
        except ValueError:
            raise UserError(
                f"--throughput {part}: expected SLOTS=WINDOWS_PER_SECOND,...@INSTANCE"
            ) from None
    bad = [n for n, v in found.items() if n < 1 or not (v > 0 and math.isfinite(v))]
    if bad:
        raise UserError(f"--throughput {bad[0]}={found[bad[0]]:g}: both must be greater than 0")
    instance = instance or "p3.16xlarge"
    if gpu_of(instance) is None:
        raise UserError(f"--throughput @{instance}: an instance whose GPU is not known")
    return Speed(found, instance)
