"""Recorded use of a cluster: allocations, trials, and the lives of machines.

Plain values without a master: `records` fills them, and tests draw them. They say what was
recorded, and nothing of dollars or of who pays.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import pandas as pd

Moment: TypeAlias = pd.Timestamp
HOUR = pd.Timedelta(hours=1)
SLACK = pd.Timedelta(minutes=5)  # between the end of a machine and what the master says of it
PATIENCE = 1200.0  # seconds to boot or idle; Determined's defaults where a pool says nothing


class Stretch(Protocol):
    """Any record with a start and an end: an allocation, an entry, a machine's life."""

    @property
    def start(self) -> Moment: ...

    @property
    def end(self) -> Moment: ...


class Span(NamedTuple):
    """A stretch of time."""

    start: Moment
    end: Moment

    @property
    def hours(self) -> float:
        return float((self.end - self.start) / HOUR)


class Selection(NamedTuple):
    """Experiments of a master, and a span of time; fields are named as flags are."""

    experiment: Sequence[int] = ()
    workspace: str | None = None
    project: str | None = None
    since: Moment | None = None  # all that ran from then on
    until: Moment | None = None  # None: now
    master: str | None = None
    user: str | None = None

    @classmethod
    def of(cls, flags: object) -> "Selection":
        return cls(*(getattr(flags, name) for name in cls._fields))


class Allocation(NamedTuple):
    """One start of a task: `slots` on `nodes` in all, held from `start` to `end`."""

    id: str
    start: Moment
    end: Moment
    pool: str
    nodes: tuple[str, ...]  # agent ids, which are EC2 instance ids where Determined started them
    slots: float = 1
    owner: int | str = 0  # an experiment, or kind and user of a task that is none
    exit: str = ""  # why it ended and what requested that, as the master says it; empty: unknown
    launched: Moment | None = None  # of a prediction: when its script was started

    @property
    def task(self) -> str:
        return self.id.rpartition(".")[0]

    def during(self, moment: Moment) -> bool:
        return self.start <= moment <= self.end

    @property
    def slots_each(self) -> float:
        """Slots on one machine."""
        return self.slots / max(len(self.nodes), 1)


class TrainingReport(NamedTuple):
    """`windows` since the report before, in `seconds`, and tokens per second."""

    time: Moment
    windows: float
    seconds: float
    tokens: float


class Trial(NamedTuple):
    """One trial, as the master has it."""

    id: int
    state: str
    allocations: tuple[Allocation, ...]  # in order of start
    checkpoints: tuple[Moment, ...]
    windows: float  # in all; of a prediction, questions
    reports: tuple[TrainingReport, ...]  # those that have a speed, in order
    scores: Mapping[str, float]  # of the best validation
    restarts: int = 0  # failures that the master counted
    hparams: Mapping[str, Any] = {}
    steps: int = 0


class Experiment(NamedTuple):
    """One experiment and its trials."""

    id: int
    name: str
    user: str
    labels: tuple[str, ...]
    model: str | None
    config: Mapping[str, Any]
    slots: int  # per trial
    pool: str
    trials: tuple[Trial, ...]

    @property
    def allocations(self) -> list[Allocation]:
        return [allocation for trial in self.trials for allocation in trial.allocations]


class Entry(NamedTuple):
    """A raw entry: one workload of an experiment, or the life of an agent or an instance."""

    kind: str
    experiment: int
    name: str  # user, agent id or instance id (the same on EC2)
    start: Moment
    end: Moment
    slots: int | None = None  # of a machine; None: not recorded


class RecordedPool(NamedTuple):
    """A resource pool as the master describes it."""

    instance: str  # empty if it is not on EC2
    spot: bool
    boot: float = PATIENCE
    idle: float = PATIENCE
    own: bool = False  # the master starts none of its machines
    region: str = ""  # of AWS; empty if it is not on EC2
    slots: int | None = None  # of one machine; None: the master does not say it
    name: str = ""


class Records(NamedTuple):
    """Records of a span of time. Those of machines go beyond it: bills are shared, then cut."""

    experiments: tuple[Experiment, ...]
    pools: Mapping[str, RecordedPool]
    until: Moment  # the end of the span
    entries: tuple[Entry, ...] = ()
    others: tuple[Allocation, ...] = ()  # on the same machines, of tasks that are not named
    notes: Sequence[str] = ()
    since: Moment | None = None  # the span's begin, of the whole cluster; None: named experiments
    now: Moment | None = None  # the end of what still runs, if it is after `until`

    @property
    def allocations(self) -> list[Allocation]:
        allocations = list[Allocation]()
        for experiment in self.experiments:
            allocations += experiment.allocations
        return allocations

    def cut(self, start: Moment, end: Moment) -> tuple[Moment, Moment]:
        """Return the part of a stretch of time that is in the span; of no length if none is."""
        start = start if self.since is None else max(start, self.since)
        return start, max(start, min(end, self.until))

    def inside(self, allocation: Allocation) -> Allocation:
        """Return the part of an allocation that is in the span; of no length if none is."""
        start, end = self.cut(allocation.start, allocation.end)
        return allocation._replace(start=start, end=end)

    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the length of the part of a stretch of time that is in the span."""
        left, right = self.cut(start, end)
        return float((right - left).total_seconds())

    def has(self, moment: Moment) -> bool:
        """Return whether a moment is in the span."""
        # What ends at the begin of the span belongs to the span before: sums add up.
        return (self.since is None or self.since < moment) and moment <= self.until

    def connected(self) -> dict[str, list[Entry]]:
        """Return the agents' stretches of time on machines that the master did not launch."""
        agents = self._by_name("agent")
        for name in self._by_name("instance"):
            agents.pop(name, None)
        return agents

    def lives(self) -> dict[str, Entry]:
        """Return the machines whose launch was recorded, by name; several entries of one merged.

        Its agent's end counts, unless the master terminated the machine just before: otherwise the
        kind is "vanished". A machine that no agent ran on is given up after `PATIENCE`.
        """
        agents = self._by_name("agent")
        lives = dict[str, Entry]()
        for name, entries in self._by_name("instance").items():
            if name.startswith("sir-"):  # a spot request
                continue
            start, end = whole_span(entries)

            # When its agent was last seen; of one that no agent ran on, when it was given up.
            agent_end = end
            if name in agents:
                _, agent_end = whole_span(agents[name])
            elif agents and end >= (self.now or self.until):
                end = min(end, start + pd.Timedelta(seconds=PATIENCE) + SLACK)
                agent_end = end

            # A terminated machine's agent is missed a moment later: the entry's end is the better.
            terminated = end <= agent_end <= end + SLACK
            lives[name] = entries[0]._replace(
                kind="vanished" if agent_end < end else "instance",
                start=start,
                end=end if terminated else agent_end,
            )
        return lives

    def _by_name(self, kind: str) -> dict[str, list[Entry]]:
        """Return the entries of machines of one kind, by machine."""
        machines = defaultdict[str, list[Entry]](list)
        for entry in self.entries:
            if entry.kind == kind:
                machines[entry.name].append(entry)
        return dict(machines)


def whole_span(stretches: Sequence[Stretch]) -> Span:
    """Return the first start and the last end of allocations, entries or lives."""
    starts = [stretch.start for stretch in stretches]
    ends = [stretch.end for stretch in stretches]
    return Span(min(starts), max(ends))


def merge_spans(stretches: Iterable[Stretch]) -> list[Span]:
    """Return start and end of allocations or entries in order, those that touch as one."""
    merged = list[Span]()
    for start, end in sorted((stretch.start, stretch.end) for stretch in stretches):
        # It overlaps the last one, or touches it: both become one.
        if merged and start <= merged[-1].end:
            start, last = merged.pop()
            end = max(last, end)
        merged.append(Span(start, end))
    return merged
