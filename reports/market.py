"""The spot market: when machines are reclaimed, and how long until capacity returns."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from detalbert.errors import UserError


@dataclass(frozen=True)
class Constant:
    """Memoryless market: `hourly` reclaims of a job, and exponential waits for capacity.

    A reclaim takes all machines of a job: jobs on 16 recorded machines were stopped as often as
    those on one (0.5 to 0.6 per hour), so the machines of a zone are reclaimed together.
    """

    hourly: float
    wait_seconds: float = 0.0
    length = 0.0  # of a recording

    @property
    def rate(self) -> float:
        """Reclaims per second."""
        return self.hourly / 3600

    def first_wait(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Draw seconds from a random moment until the machines are available."""
        busy = self.rate * self.wait_seconds
        out = rng.random(now.size) < busy / (1 + busy)
        return np.where(out, self.wait(rng, now, machines), 0.0)

    def wait(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Draw seconds from a reclaim until the machines are available."""
        return rng.exponential(self.wait_seconds, now.size)

    def next(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Draw seconds from `now` to the first reclaim."""
        return rng.exponential(1 / max(self.rate, 1e-300), now.shape)

    def alike(self) -> "Constant":
        return self


# How spot may go, recorded on V100s by github.com/skypilot-org/spot-traces ("Can't be late", NSDI
# 2024): machines lost over machine-hours up, and how long the capacity was gone on average. 23
# traces of 2022 and 2023 have 0.06 to 1.39 an hour. No newer type is recorded: that they fare alike
# is assumed.
CASES = {
    "low": Constant(0.060, 120.0),  # us-east-2a, August 2023; the wait is assumed
    "middle": Constant(0.236, 3600.0),  # us-west-2c, August 2023
    "high": Constant(1.390, 14160.0),  # us-east-1a, February 2023; wait: us-east-1f, August 2023
}


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded capacity, replayed cyclically from a random moment, including outages.

    From `seconds` (ascending from 0) on there were so many `machines`, until `length` in seconds.
    """

    seconds: np.ndarray
    machines: np.ndarray
    length: float

    def wait(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Return seconds until the machines are available; raise UserError if they never are."""
        if machines > self.machines.max():
            raise UserError(
                f"--trace: it has {self.machines.max()} machines at most, the job needs {machines};"
                " record a wider one, or give --hourly"
            )
        moment = now % self.length
        back = self.seconds[self.machines >= machines]
        later = np.append(back, back[0] + self.length)[np.searchsorted(back, moment, "right")]
        return np.where(self._at(moment) >= machines, 0.0, later - moment)

    first_wait = wait

    def next(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Draw seconds from `now` to the first reclaim; it takes recorded machines at random."""
        moment, before = now % self.length, np.roll(self.machines, 1)
        drops = np.flatnonzero(self.machines < before)
        stop = np.where(self._at(moment) < machines, moment, np.inf)
        index = np.searchsorted(self.seconds[drops], moment, "right")
        left = np.flatnonzero(np.isinf(stop) & (drops.size > 0))
        while left.size:
            laps, which = np.divmod(index[left], drops.size)
            at = drops[which]
            others, fewer = before[at] - machines, before[at] - self.machines[at]
            hit = rng.hypergeometric(machines, others, fewer) > 0
            stop[left[hit]] = (laps * self.length + self.seconds[at])[hit]
            index[left] += 1
            left = left[~hit]
        return stop - moment

    def alike(self) -> Constant:
        """Return the recording's mean rate and outage, for the choice of a period."""
        spans = np.diff(np.append(self.seconds, self.length))
        lost = np.maximum(np.roll(self.machines, 1) - self.machines, 0).sum()
        short = self.machines < self.machines.max()
        outages = max(int((short & ~np.roll(short, 1)).sum()), 1)
        hours = float((self.machines * spans).sum()) / 3600
        return Constant(float(lost) / hours, float(spans[short].sum()) / outages)

    def _at(self, moment: np.ndarray) -> np.ndarray:
        return self.machines[np.searchsorted(self.seconds, moment, "right") - 1]


Market = Constant | Trace


def load_trace(path: Path) -> Trace:
    """Load a CSV, or a JSON file of skypilot-org/spot-traces; see "How a plan is made". Raises
    UserError, naming the row, if it is invalid.
    """
    wrong = "a CSV with numbers in the columns hours and machines, or a JSON file of spot-traces"
    try:
        if path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            counts = np.array([*content["data"], 0], dtype=float)
            hours = np.arange(len(counts)) * float(content["metadata"]["gap_seconds"]) / 3600
        else:
            table = pd.read_csv(path, skipinitialspace=True)
            hours, counts = (table[name].to_numpy(dtype=float) for name in ("hours", "machines"))
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        raise UserError(f"{path}: expected {wrong}") from None
    fine = np.isfinite(hours) & (np.diff(hours, prepend=-1.0) > 0) & (counts >= 0) & (counts < 1e6)
    fine &= (counts == np.floor(counts)) & ((np.arange(len(hours)) > 0) | (hours == 0))
    wrong = f"row {int(fine.argmin()) + 1}: expected hours, rising from 0, and whole machines"
    wrong = "expected two rows or more, and machines in one of them" if fine.all() else wrong
    if not fine.all() or len(hours) < 2 or not counts[:-1].any():
        raise UserError(f"{path}: {wrong}")
    return Trace(hours[:-1] * 3600, counts[:-1].astype(int), float(hours[-1]) * 3600)
