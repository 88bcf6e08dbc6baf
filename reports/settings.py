"""Settings of `plan`: numbers of its flags, and `--throughput`."""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from cluster.machines import gpu_of
from cluster.prices import Price
from cluster.published import FINE_TUNING
from detalbert.errors import UserError


@dataclass(frozen=True)
class Settings:
    """Numbers of a plan: each is a flag, whose limits and help are in flags.yaml."""

    windows: float | None = None
    tokens: float | None = None
    epochs: float = 2.0
    deadline: float | None = None  # hours
    batch: float | None = None  # windows or tokens per step; None: as published
    checkpoint_seconds: float = 25.0
    checkpoint_period: int | None = None  # steps; None: the best
    restart_seconds: float = 60.0
    boot_seconds: float = 180.0
    image_seconds: float = 120.0
    wait_seconds: float | None = None  # None: as recorded
    notice_read: float = 0.0  # share of the reclaims
    hourly: float | None = None  # reclaims per machine-hour; None: as recorded
    runs: int = 10_000
    seed: int = 0


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


DEFAULTS = {_flag(each.name): each.default for each in fields(Settings)}


def parse_settings(args: argparse.Namespace) -> Settings:
    """Return the settings. Raises UserError if two contradict each other."""
    found = {name: value for name, value in vars(args).items() if value is not None}
    for group in (("windows", "tokens", "data"), ("hourly", "trace"), ("wait_seconds", "trace")):
        if len(both := [_flag(name) for name in group if name in found]) > 1:
            raise UserError(f"{' and '.join(both)}: give one of them")
    if "epochs" in found and "data" not in found:
        raise UserError("--epochs: only --data has epochs; give both")
    return Settings(**{e.name: found[e.name] for e in fields(Settings) if e.name in found})


def number(flag: str, low: float, high: float, whole: bool = False) -> Callable[[str], float]:
    """Return a parser of a flag's number that raises UserError, naming the flag, if invalid."""

    def read(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            kind = "whole number" if whole else "number"
            raise UserError(f"{flag} {text}: expected a {kind} from {low:,.10g} to {high:,.10g}")
        return value

    return read


class Speed(NamedTuple):
    """Windows (or tokens) per second at any slot count, from measurements at some.

    Between two measured slot counts the rate per slot is interpolated over log2(slots); beyond them
    the nearest is kept. On other GPUs it is scaled by peak half-precision FLOP/s, which assumes the
    same utilization: marked as modelled.
    """

    points: Mapping[int, float]
    teraflops: float  # of one GPU that was measured
    sources: Mapping[tuple[int, str], str]  # slots, instance -> "measured" or "published"
    unit: float  # 1, or the tokens of a window

    def at(self, slots: int, price: Price) -> tuple[float, str]:
        """Return the rate, and whether it is measured, published or modelled."""
        if price.teraflops is None:
            raise UserError(f"{price.instance}: its GPU is not known; give teraflops in --prices")
        known = sorted(self.points)
        rates = [self.points[count] / count for count in known]
        per_slot = float(np.interp(math.log2(slots), np.log2(known), rates))
        rate = per_slot * slots * price.teraflops / self.teraflops
        return rate, self.sources.get((slots, price.instance), "modelled")

    def batch(self, slots: int) -> float:
        """Return the windows (or tokens) per step of the published runs."""
        return (256 if slots >= 16 else 48) * self.unit

    def fits(self, price: Price, slots: int) -> bool:
        return True


def parse_speed(text: str | None, prices: Mapping[str, Price], unit: float = 1) -> Speed:
    """Parse `1=2,8=15.8@p3.16xlarge`; for None, the published V100 figures times `unit`."""
    parts, _, instance = (text or "").partition("@")
    instance = instance or "p3.16xlarge"
    gpu = gpu_of(instance)
    teraflops = gpu.teraflops if gpu else prices[instance].teraflops if instance in prices else None
    if teraflops is None:
        raise UserError(f"--throughput @{instance}: an instance whose GPU is not known")
    if text is None:
        points = {row.slots: row.throughput * unit for row in FINE_TUNING}
        sources = {(row.slots, row.instance): "published" for row in FINE_TUNING}
        return Speed(points, teraflops, sources, unit)
    found: dict[int, float] = {}
    for part in parts.split(","):
        slots, _, value = part.partition("=")
        try:
            count, rate = int(slots), float(value)
        except ValueError:
            count, rate = 0, math.nan
        if count < 1 or not 1e-6 <= rate <= 1e12 or count in found:
            wanted = "SLOTS=RATE,...@INSTANCE, each number of slots once, rates from 1e-6 to 1e12"
            raise UserError(f"--throughput {part}: expected {wanted}")
        found[count] = rate
    return Speed(found, teraflops, {(count, instance): "measured" for count in found}, unit)
