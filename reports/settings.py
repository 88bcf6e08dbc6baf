"""Settings of `plan`, each with flag, unit, default and limits in one place, and `--throughput`."""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cluster.machines import gpu_of
from cluster.prices import Price
from cluster.published import FINE_TUNING
from detalbert.errors import UserError

DAY = 86_400.0


def _set(default: Any, text: str, low: float, high: float, whole: bool = False) -> Any:
    limits = {"low": low, "high": high, "whole": whole}
    return field(default=default, metadata={"help": text, "limits": limits})


@dataclass(frozen=True)
class Settings:
    """Each field is a flag of `plan`."""

    windows: float | None = _set(None, "windows to train on", 1, 1e12)
    tokens: float | None = _set(None, "tokens to train on, instead of windows", 1, 1e18)
    epochs: float = _set(2.0, "passes over --data", 1e-3, 1e6)
    deadline: float | None = _set(None, "hours within which a run must end", 1e-3, 1e6)
    batch: float | None = _set(None, "windows (or tokens) per step; 48, 256 from 16 slots", 1, 1e9)
    checkpoint_seconds: float = _set(25.0, "seconds to write a checkpoint", 1e-3, DAY)
    checkpoint_period: int | None = _set(None, "steps, instead of the best period", 1, 1e9, True)
    restart_seconds: float = _set(60.0, "seconds from container start to first step", 0, DAY)
    boot_seconds: float = _set(180.0, "seconds to boot a machine", 0, DAY)
    image_seconds: float = _set(120.0, "seconds to pull the image", 0, DAY)
    wait_seconds: float | None = _set(None, "mean wait for capacity (as recorded)", 0, 30 * DAY)
    notice_read: float = _set(0.0, "share of the reclaims whose notice is read", 0, 1)
    hourly: float | None = _set(None, "reclaims per machine-hour (as recorded)", 0, 60)
    runs: int = _set(10_000, "simulated runs per option and case", 10, 1e6, True)
    seed: int = _set(0, "seed of the random numbers", 0, 2**63, True)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting, with its check, and the flags of their sources."""
    for each in fields(Settings):
        default = "" if each.default is None else f" ({each.default:g})"
        check = number(_flag(each.name), **each.metadata["limits"])
        text = each.metadata["help"] + default
        parser.add_argument(_flag(each.name), type=check, metavar="N", help=text)
    add, slots = parser.add_argument, number("--slots", 1, 1024, whole=True)
    add("--data", metavar="FILE", help="count the windows of this SQuAD file")
    add("--config", type=Path, default=Path("configs/distributed64.yaml"), help="experiment config")
    add("--throughput", metavar="SLOTS=RATE,...@INSTANCE", help="per second; default: published")
    add("--pool", nargs="+", metavar="INSTANCE", help="default: all types that AWS still launches")
    add("--slots", nargs="+", metavar="N", type=slots, default=[], help="default: 1 4 8 16 32 64")
    add("--trace", type=Path, metavar="FILE", help="recorded capacity to replay")


def parse_settings(args: argparse.Namespace) -> Settings:
    """Return the settings. Raises UserError if two contradict each other."""
    found = {name: value for name, value in vars(args).items() if value is not None}
    for group in (("windows", "tokens", "data"), ("hourly", "trace"), ("wait_seconds", "trace")):
        if len(both := [_flag(name) for name in group if name in found]) > 1:
            raise UserError(f"{' and '.join(both)}: give one of them")
    if "epochs" in found and "data" not in found:
        raise UserError("--epochs: only --data has epochs; give both")
    return Settings(**{e.name: found[e.name] for e in fields(Settings) if e.name in found})


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


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
    layouts: Mapping[tuple[int, str], str]  # slots, instance -> "measured" or "published"

    def at(self, slots: int, price: Price) -> tuple[float, str]:
        """Return the rate, and whether it is measured, published or modelled."""
        if price.teraflops is None:
            raise UserError(f"{price.instance}: its GPU is not known; give teraflops in --prices")
        known = sorted(self.points)
        rates = [self.points[count] / count for count in known]
        per_slot = float(np.interp(math.log2(slots), np.log2(known), rates))
        rate = per_slot * slots * price.teraflops / self.teraflops
        return rate, self.layouts.get((slots, price.instance), "modelled")


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
        layouts = {(row.slots, row.instance): "published" for row in FINE_TUNING}
        return Speed(points, teraflops, layouts)
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
    return Speed(found, teraflops, {(count, instance): "measured" for count in found})
