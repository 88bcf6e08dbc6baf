"""A trial of this package's experiment, parsed once: what the checks and the planner work on."""

import contextlib
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cluster.expconf import RANGES
from cluster.fleet import slots_of
from cluster.masterconf import Pool
from cluster.published import KNOWN_WINDOWS
from detalbert.settings.hparams import StepHParams
from detalbert.settings.schema import at, mapping
from detalbert.training.workload import Workload
from workloads import choose


class Job(NamedTuple):
    """One trial, with what is known of where it runs."""

    config: dict[str, Any]
    workload: Workload
    hparams: StepHParams
    slots: int
    pool: Pool | None  # None: not known
    root: Path  # parent folder of relative model folders

    @property
    def windows(self) -> int | None:
        """Training windows of an epoch; None where the data must be read to know."""
        return KNOWN_WINDOWS.get(str(at(self.config, "data.train")))

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the run; None where the data must be read to know."""
        if self.hparams.max_steps is not None or self.windows is None:
            return self.hparams.max_steps
        return math.ceil(self.windows * self.hparams.epochs / self.hparams.global_batch_size)


def parse_jobs(config: dict[str, Any], pool: Pool | None, root: Path) -> Iterator[Job]:
    """Yield the trials at a search's corners. Raises UserError if a section is invalid."""
    workload, slots = choose(config), max(1, slots_of(config))
    workload.parsers.data(config.get("data"))
    for values in samples(mapping(config.get("hyperparameters"))):
        hparams = workload.parsers.hyperparameters(values)
        yield Job(config, workload, hparams, slots, pool, root)


def samples(hyperparameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trials at a search's corners (at most 1024): all choices, both ends of ranges."""
    corners = itertools.product(*map(_ends, hyperparameters.values()))
    found = itertools.islice(corners, 1024)
    return [dict(zip(hyperparameters, corner, strict=True)) for corner in found]


def _ends(value: Any) -> list[Any]:
    """Return all choices of a hyperparameter or the ends of its range; [None] if it is wrong."""
    facts = mapping(value)
    ends: list[Any]
    kind, ends = facts.get("type"), [facts.get(name) for name in ("minval", "maxval")]
    if kind == "categorical":
        return facts["vals"] if isinstance(facts.get("vals"), list) and facts["vals"] else [None]
    if kind == "log":
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):  # told elsewhere
            return [math.pow(facts["base"], power) for power in ends]
        return [None]
    if kind == "const":
        return [facts.get("val")]
    return ends if kind in RANGES else [value]
