"""The spot market: when machines are taken back, and how long until there are some again."""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from detalbert.errors import UserError


class Case(NamedTuple):
    """How spot may go: reclaims per machine-hour, the mean wait for capacity in seconds."""

    name: str
    hourly: float
    wait_seconds: float
    source: str


# Recorded on V100s by github.com/skypilot-org/spot-traces ("Can't be late", NSDI 2024): machines
# lost over machine-hours up, and how long the capacity was gone on average. 23 traces of 2022 and
# 2023 have 0.06 to 1.39 an hour. No newer type is recorded: that they fare alike is assumed.
CASES = (
    Case("low", 0.060, 120.0, "us-east-2a, August 2023; the wait is assumed"),
    Case("middle", 0.236, 3600.0, "us-west-2c, August 2023"),
    Case("high", 1.390, 14160.0, "us-east-1a, February 2023; the wait: us-east-1f, August 2023"),
)


@dataclass(frozen=True)
class Constant:
    """Memoryless: `hourly` reclaims per machine-hour, and exponential waits for capacity.

    `together` is the share of the reclaims that take all machines of a job at once; the others
    take one. Jobs on 16 recorded machines were stopped as often as those on one (0.5 to 0.6 an
    hour), so a zone's machines do go together.
    """

    hourly: float
    wait_seconds: float = 0.0
    together: float = 1.0

    def rate(self, machines: int) -> float:
        """Reclaims a second that stop a job on so many machines."""
        return self.hourly * (self.together + (1 - self.together) * machines) / 3600

    def out(self, machines: int) -> float:
        """The share of time in which there is no capacity."""
        busy = self.rate(machines) * self.wait_seconds
        return busy / (1 + busy)

    def all_at_once(self, machines: int) -> bool:
        return self.together == 1 or machines == 1

    def begin(self, rng: np.random.Generator, runs: int) -> np.ndarray:
        """Where on the clock each run begins, in seconds."""
        return np.zeros(runs)

    def first_wait(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Seconds from a random moment until the machines can be had."""
        found = rng.random(now.size) >= self.out(machines)
        return np.where(found, 0.0, self.wait(rng, now, machines))

    def wait(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Seconds from a reclaim until the machines can be had."""
        return rng.exponential(self.wait_seconds, now.size) if self.wait_seconds else 0.0 * now

    def next(
        self, rng: np.random.Generator, now: np.ndarray, machines: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds from `now` to the first reclaim (infinite: none), and how many it takes."""
        rate = self.rate(machines)
        if rate == 0:
            return np.full(now.shape, np.inf), np.ones(now.shape, dtype=int)
        every = rng.random(now.size) * rate * 3600 < self.hourly * self.together
        return rng.exponential(1 / rate, now.shape), np.where(every, machines, 1)

    def alike(self) -> "Constant":
        return self


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded capacity, replayed in a circle from a random moment, outages and all.

    Args:
        seconds: when the number of machines changed, rising from 0.
        machines: how many there were from then on.
        length: the end of the recording, in seconds.
    """

    seconds: np.ndarray
    machines: np.ndarray
    length: float

    def all_at_once(self, machines: int) -> bool:
        return machines == 1

    def begin(self, rng: np.random.Generator, runs: int) -> np.ndarray:
        """As `Constant.begin`: a random moment of the recording."""
        return rng.uniform(0, self.length, runs)

    def first_wait(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """As `Constant.first_wait`. Raises UserError where there never were so many machines."""
        if machines > self.machines.max():
            raise UserError(
                f"--trace: it has {self.machines.max()} machines at most, the job needs {machines};"
                " record a wider one, or give --hourly"
            )
        return self.wait(rng, now, machines)

    def wait(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """As `Constant.wait`: the rest of the outage."""
        lap, moment = np.divmod(now, self.length)
        enough = self.machines[self._index(moment)] >= machines
        back = self.seconds[self.machines >= machines]
        later = np.append(back, back[0] + self.length)
        return np.where(enough, 0.0, later[np.searchsorted(back, moment, "right")] - moment)

    def next(
        self, rng: np.random.Generator, now: np.ndarray, machines: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Constant.next`. Of the machines there were, each is as likely taken as another."""
        before = np.roll(self.machines, 1)
        drops = np.flatnonzero(self.machines < before)
        moment = now % self.length
        short = self.machines[self._index(moment)] < machines
        seconds = np.where(short, 0.0, np.inf)
        taken = np.full(now.shape, machines)
        index = np.searchsorted(self.seconds[drops], moment, "right")
        left = np.flatnonzero(~short) if drops.size else np.array([], dtype=int)
        while left.size:
            laps, which = np.divmod(index[left], drops.size)
            at = drops[which]
            others = before[at] - machines
            hit = rng.hypergeometric(machines, others, before[at] - self.machines[at])
            seconds[left] = laps * self.length + self.seconds[at] - moment[left]
            taken[left], index[left] = hit, index[left] + 1
            left = left[hit == 0]
        return seconds, taken

    def alike(self) -> Constant:
        """The constant rate and the mean outage of the recording, to choose a period by."""
        spans = np.diff(np.append(self.seconds, self.length))
        lost = np.maximum(np.roll(self.machines, 1) - self.machines, 0)
        up = float((self.machines * spans).sum()) / 3600
        full = self.machines == self.machines.max()
        outages = int((np.roll(full, 1) & ~full).sum())
        gone = float(spans[~full].sum()) / max(outages, 1)
        return Constant(float(lost.sum()) / up, gone)

    def _index(self, moment: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.seconds, moment, side="right") - 1


Market = Constant | Trace


def load_trace(path: Path) -> Trace:
    """A recording: a CSV, or a JSON file of skypilot-org/spot-traces.

    The CSV has the columns `hours`, rising from 0, and `machines`, how many there were from then
    on; its last row is the end. The JSON has `metadata.gap_seconds` and `data`, a number for each
    gap. Raises UserError naming the line of a row that is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            content = json.loads(text)
            gap = content["metadata"]["gap_seconds"] / 3600
            counts = [*content["data"], 0]
            rows = [{"hours": i * gap, "machines": n} for i, n in enumerate(counts)]
        else:
            rows = list(csv.DictReader(text.splitlines()))
    except (OSError, ValueError, LookupError, TypeError, csv.Error, RecursionError):
        raise UserError(f"{path}: cannot read it as a trace; see reports/README.md") from None
    found: list[tuple[float, float]] = []
    for number, row in enumerate(rows, start=2):
        try:
            hours, machines = float(row["hours"]), float(row["machines"])
        except (KeyError, TypeError, ValueError, OverflowError):
            hours = machines = math.nan
        rising = hours > found[-1][0] if found else hours == 0
        if not (rising and math.isfinite(hours) and machines >= 0 and machines.is_integer()):
            raise UserError(
                f"{path}: line {number}: expected hours, rising from 0, and a number of machines"
            )
        found.append((hours, machines))
    if len(found) < 2 or not any(machines for _, machines in found[:-1]):
        raise UserError(f"{path}: expected two rows or more, and machines in one of them")
    times, counts = np.array(found).T
    return Trace(times[:-1] * 3600, counts[:-1].astype(int), float(times[-1]) * 3600)
