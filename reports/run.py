"""One run of a workload, wherever it is known from: a publication, a folder, a cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

SAME_WORK = 0.05  # windows of two preprocessings of the same data differ by a per cent


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the reports say of a run. None: not known, shown as a dash, never as zero.

    Costs are always derived (prices x machine-hours); `throughput` is in windows a second.
    """

    name: str
    hardware: str  # 8 x p3.16xlarge
    slots: int
    pool: str  # on demand, spot, or a cluster's pool
    throughput: float | None
    hours: float  # from the first start to the last end, waits and pauses included
    windows: float  # trained on and kept
    model: str | None = None
    data: str | None = None
    worked: float | None = None  # hours in which machines were held; None: `hours`
    tokens: float | None = None  # of a window, padding left out
    rate: float | None = None  # dollars an hour of work, all machines
    cost: float | None = None
    low: float | None = None  # the cost at the lowest and at the highest spot price seen
    high: float | None = None
    on_demand: float | None = None  # the same machine-hours, on demand
    stopped: float | None = None  # dollars that interruptions took: lost, boot, idle, restart
    stops: Mapping[str, int] = field(default_factory=dict)  # interruptions by kind
    lost_hours: float | None = None
    exact: float | None = None
    f1: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)  # dollars by what they paid for
    notes: tuple[str, ...] = ()
    running: bool = False
    elsewhere: str = ""  # where it was measured, if not on its hardware

    def per(self, number: float, tokens: bool = False) -> float | None:
        """Dollars for `number` windows, or tokens."""
        work = self.windows * ((self.tokens or 0) if tokens else 1)
        return None if self.cost is None or not work else self.cost / work * number

    def unlike(self, base: "Run") -> str:
        """Why neither is faster or cheaper than the other; empty where that can be said."""
        if self is base:
            return self.elsewhere
        reasons = [f"{run.name} still runs" for run in (self, base) if run.running]
        reasons += [run.elsewhere for run in (self, base) if run.elsewhere]
        for what in ("model", "data"):
            mine, its = getattr(self, what), getattr(base, what)
            if mine != its:
                reasons.append(f"another {what} ({mine or 'not known'}, not {its or 'known'})")
        if abs(self.windows - base.windows) > SAME_WORK * base.windows:
            reasons.append(f"other work ({self.windows:,.0f} windows, not {base.windows:,.0f})")
        return "; ".join(dict.fromkeys(reasons))


def model_name(name: object) -> str | None:
    """albert/albert-xxlarge-v2 and albert-xxlarge are one model."""
    return re.sub(r"-v\d+$", "", PurePosixPath(str(name)).name.lower()) if name else None


def data_name(data: Mapping[str, object]) -> str | None:
    """SQuAD 2.0 has two names; a first part of a file is other data."""
    train, first = data.get("train") or data.get("text"), data.get("max_train_examples")
    if not isinstance(train, str):
        return None
    name = "SQuAD 2.0" if re.search(r"squad_v2$|train-v2\.0\.json$", train) else train
    return f"{name}, first {first}" if first else name
