"""One run of a workload, from any source: a publication, a folder, a cluster."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import PurePosixPath
from typing import Any

SAME_WORK = 0.05  # windows of two preprocessings of the same data differ by a per cent


def _shown(head: str, style: str = "", default: Any = None) -> Any:
    """Return a field that has a column: its head, and the format of its numbers."""
    return field(default=default, metadata={"head": head, "style": style})


@dataclass(frozen=True, kw_only=True)
class Run:
    """Facts that the reports show of a run. None: unknown, shown as a dash, never as zero. Costs
    are always derived: prices x machine-hours.
    """

    name: str = _shown("run", default=MISSING)
    hardware: str = _shown("hardware", default=MISSING)  # 8 x p3.16xlarge
    slots: int = _shown("slots", "{}", MISSING)
    pool: str = _shown("pool", default=MISSING)  # on demand, spot, or a cluster's pool
    throughput: float | None = _shown("windows/s", "{:,.2f}")
    # From the first start to the last end, pauses included.
    hours: float = _shown("elapsed h", "{:,.2f}", MISSING)
    worked: float | None = _shown("worked h", "{:,.2f}")  # machines were held; None: `hours`
    lost_hours: float | None = _shown("lost h", "{:,.2f}")
    stops: Mapping[str, int] | None = _shown("stops", "{}")  # interruptions by kind
    rate: float | None = _shown("$/hour", "${:,.2f}")  # of work, all machines
    cost: float | None = _shown("cost", "${:,.2f}")
    low: float | None = _shown("low", "${:,.2f}")  # the cost at the lowest spot price seen,
    high: float | None = _shown("high", "${:,.2f}")  # and at the highest
    on_demand: float | None = _shown("on demand", "${:,.2f}")  # the same hours, on demand
    stopped: float | None = _shown("interruptions", "${:,.2f}")  # lost, boot, idle, restart
    exact: float | None = _shown("EM", "{:,.2f}")
    f1: float | None = _shown("F1", "{:,.2f}")
    windows: float  # trained on and kept
    model: str | None = None
    data: str | None = None
    tokens: float | None = None  # of a window, padding left out
    parts: Mapping[str, float] = field(default_factory=dict)  # dollars by what they paid for
    notes: tuple[str, ...] = ()
    running: bool = False
    elsewhere: str = ""  # where it was measured, if not on its hardware

    def unlike(self, base: "Run") -> str:
        """Return why the two runs cannot be compared; empty if they can."""
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
    """Return a model's common name: albert/albert-xxlarge-v2 gives albert-xxlarge."""
    return re.sub(r"-v\d+$", "", PurePosixPath(str(name)).name.lower()) if name else None


def data_name(data: Mapping[str, object]) -> str | None:
    """Return the name of the data.

    SQuAD 2.0 has two names, which count as one; the first part of a file is other data.
    """
    train, first = data.get("train") or data.get("text"), data.get("max_train_examples")
    if not isinstance(train, str):
        return None
    name = "SQuAD 2.0" if re.search(r"squad_v2$|train-v2\.0\.json$", train) else train
    return f"{name}, first {first}" if first else name
