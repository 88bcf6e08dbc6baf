"""One run of a workload, wherever it is known from: a publication, a folder, a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Run:
    """What the reports say of a run. None: not known, shown as a dash, never as zero.

    `cost` is always derived (prices x machine-hours), `throughput` in windows a second.
    """

    name: str
    hardware: str  # 8 x p3.16xlarge
    slots: int
    pool: str  # on demand, spot, or a cluster's pool
    throughput: float | None
    hours: float  # from the first start to the last end, waits included where they are known
    windows: float  # trained on and kept
    lost_hours: float | None = None  # training that interruptions threw away
    restarts: int | None = None  # starts after the first
    rate: float | None = None  # dollars an hour, all machines
    cost: float | None = None
    exact: float | None = None
    f1: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)  # dollars by what they paid for
    notes: tuple[str, ...] = ()
    running: bool = False

    @property
    def cost_per_thousand(self) -> float | None:
        """Dollars per 1,000 windows."""
        return None if self.cost is None or not self.windows else self.cost / self.windows * 1000
