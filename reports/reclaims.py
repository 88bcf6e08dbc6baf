"""When spot machines are taken back: at a constant rate, or as a recorded trace had it."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detalbert.errors import UserError


@dataclass(frozen=True)
class Constant:
    """Memoryless: `hazard` reclaims per machine-hour, machines independent of each other."""

    hazard: float

    def start(self, rng: np.random.Generator, runs: int) -> np.ndarray:
        """Where on the clock each run begins, in seconds."""
        return np.zeros(runs)

    def next(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Seconds from `now` to the first reclaim of any of `machines`; infinite: none comes."""
        if self.hazard == 0:
            return np.full(now.shape, np.inf)
        return rng.exponential(3600 / (self.hazard * machines), now.shape)


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded reclaims, replayed in a circle from a random moment, bursts and all.

    Args:
        seconds: when one of the watched machines was taken, rising, from 0 to `length`.
        machines: how many were watched. A job on fewer is hit by each event with that share.
    """

    seconds: np.ndarray
    length: float
    machines: int

    @property
    def hazard(self) -> float:
        """Reclaims per machine-hour, on average."""
        return len(self.seconds) / (self.machines * self.length / 3600)

    def start(self, rng: np.random.Generator, runs: int) -> np.ndarray:
        """As `Constant.start`: a random moment of the recording."""
        return rng.uniform(0, self.length, runs)

    def next(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """As `Constant.next`. Raises UserError for a job that is wider than the recording."""
        if machines > self.machines:
            raise UserError(
                f"--trace: it watched {self.machines} machines, the job needs {machines}; "
                "record a wider one, or give --hourly"
            )
        if not len(self.seconds):
            return np.full(now.shape, np.inf)
        skipped = rng.geometric(machines / self.machines, now.shape) - 1
        lap, moment = np.divmod(now, self.length)
        laps, index = np.divmod(
            np.searchsorted(self.seconds, moment, side="right") + skipped, len(self.seconds)
        )
        return np.maximum((lap + laps) * self.length + self.seconds[index] - now, 0.0)


Reclaims = Constant | Trace


def load_trace(path: Path) -> Trace:
    """A CSV with the columns `hours` (since the recording began) and `event`.

    One row `machines` whose hours are the number of machines watched, one row `end` at the length
    of the recording, and one row `reclaim` for every machine that was taken.
    Raises UserError naming the line of a row that is none of these.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        raise UserError(f"{path}: cannot read it as CSV; give --trace") from None
    found: dict[str, list[float]] = {"machines": [], "end": [], "reclaim": []}
    for number, row in enumerate(rows, start=2):
        try:
            hours = float(row["hours"])
            found[row["event"].strip()].append(hours)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(
                f"{path}: line {number}: expected hours and one of machines, end, reclaim"
            ) from None
        if not (math.isfinite(hours) and hours >= 0):
            raise UserError(f"{path}: line {number}: {hours:g} hours; expected 0 or more")
    if len(found["machines"]) != 1 or len(found["end"]) != 1:
        raise UserError(f"{path}: expected one row with machines and one with end")
    (machines,), (end,) = found["machines"], found["end"]
    if machines < 1 or not machines.is_integer() or end <= max([0.0, *found["reclaim"]]):
        raise UserError(f"{path}: machines must be 1 or more, and end after the last reclaim")
    return Trace(np.sort(np.array(found["reclaim"])) * 3600, end * 3600, int(machines))
