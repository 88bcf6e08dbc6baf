"""Throughput of a number of slots of a GPU type."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cluster.machines import gpu_of
from cluster.prices import Price
from cluster.published import FINE_TUNING
from detalbert.errors import UserError

WANTED = "SLOTS=RATE,...@INSTANCE, each number of slots once, rates from 1e-6 to 1e12"


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
            raise UserError(f"--throughput {part}: expected {WANTED}")
        found[count] = rate
    return Speed(found, teraflops, {(count, instance): "measured" for count in found})
