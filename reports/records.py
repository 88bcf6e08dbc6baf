"""Plain values of what ran on a cluster: queries.py reads them of a master, tests draw them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pandas as pd

Moment: TypeAlias = pd.Timestamp

SLACK = pd.Timedelta(minutes=5)


class Owner(NamedTuple):
    """Who pays for an allocation."""

    name: str  # of the experiment, or the kind of task
    user: str = ""
    label: str = ""
    experiment: int = 0  # 0: none
    trial: int = 0


class Allocation(NamedTuple):
    """One start of a task, which held `slots` on `nodes` in all."""

    id: str
    start: Moment
    end: Moment
    pool: str
    nodes: Sequence[str]  # agent ids; empty if this user may not see them
    slots: float
    owner: Owner
    running: bool = False
    exit: str = ""  # the master's reason; empty: not recorded

    def has(self, moment: Moment) -> bool:
        return self.start < moment <= self.end

    @property
    def slots_each(self) -> float:
        """Slots on one machine."""
        return self.slots / (len(self.nodes) or 1)


class TrainingReport(NamedTuple):
    """`windows` since the report before, in `seconds` of training."""

    time: Moment
    windows: float
    seconds: float


class Trial(NamedTuple):
    """A trial, or a task that is none; all that it has is in order of time."""

    owner: Owner
    state: str
    allocations: Sequence[Allocation]
    reports: list[TrainingReport] = []
    checkpoints: Sequence[Moment] = ()
    run: Mapping[str, Any] = {}  # what it did, in the shape of runs.py


class MachineLife(NamedTuple):
    """A stretch of time in which a machine was paid, or connected."""

    name: str
    start: Moment
    end: Moment
    slots: float
    launched: bool = True  # by the master; else it is one of your own


class RecordedPool(NamedTuple):
    """A resource pool. The master launches its machines unless they are your own."""

    name: str
    machine: str = ""  # INSTANCE or INSTANCE:spot; empty: your own
    region: str = ""
    # A machine that no task holds is there no longer than this for the sake of its tasks.
    patience: pd.Timedelta = SLACK


class Records(NamedTuple):
    """Selected experiments, and whatever else used the same machines."""

    trials: Sequence[Trial]
    pools: Mapping[str, RecordedPool]
    until: Moment
    since: Moment | None = None
    whole: bool = False  # all that the cluster's machines cost since `since`
    machines: Sequence[MachineLife] = ()
