"""`scaling`: the throughput of N GPUs or machines relative to N times that of one."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from cluster.prices import load_prices
from cluster.published import METHOD, TABLES, points
from detalbert.errors import UserError
from reports.plots import scaling_plot
from reports.report import Report, Table, frame
from reports.run import Run

FORMATS = {"N": "{}", "throughput": "{:,.2f}", "efficiency": "{:.1%}"}


def scaling_report(series: Sequence[tuple[str, Run]], published: bool) -> Report:
    """Return the scaling report; `series` are pairs of a series' name and a run. Raises UserError
    if runs do not belong to one series, or have no throughput yet.
    """
    rows = list(_measured(series))
    rows += points() if published else []
    if not rows:
        raise UserError("scaling: nothing to report; give --published, --run or --experiment")
    found = pd.DataFrame(rows)
    if (twice := found[found.duplicated(["series", "N"])]).size:
        name, units = twice[["series", "N"]].iloc[0]
        said = f"{name}: two throughputs for {units}; name the series apart, LABEL=PATH"
        raise UserError(said)
    found = efficiency(found)
    many = found[found.groupby("series")["N"].transform("size") > 1]
    single = found.loc[~found["series"].isin(many["series"]), "series"]
    tables = [Table("Scaling", found, FORMATS), *(published_tables() if published else [])]
    notes = [f"{name}: one point alone has no efficiency" for name in single]
    plots = [scaling_plot(many)] if len(many) else []
    return Report("How throughput scales", tables, METHOD, notes, plots)


def efficiency(found: pd.DataFrame) -> pd.DataFrame:
    """Add T(N) / (N x T(1)), in order of N; the first of a series is 1 by definition."""
    series = pd.Categorical(found["series"], found["series"].unique())
    found = found.assign(series=series).sort_values(["series", "N"]).astype({"series": str})
    each = found["throughput"] / found["N"]
    return found.assign(efficiency=each / each.groupby(found["series"]).transform("first"))


def _measured(series: Sequence[tuple[str, Run]]) -> Iterator[dict[str, Any]]:
    first: dict[str, Run] = {}
    for label, run in series:
        base = first.setdefault(label, run)
        if (run.model, run.data) != (base.model, base.data):
            raise UserError(f"{run.name}: not the model and data of {base.name}; give it a LABEL=")
        if run.throughput is None:
            raise UserError(f"{run.name}: no throughput in its records yet; wait for a report")
        yield {"series": label, "source": "measured", "N": run.slots, "throughput": run.throughput}


def published_tables() -> list[Table]:
    """Return the published tables; those with machines and hours also with today's cost."""
    known = load_prices()
    found = []
    for table in TABLES.values():
        rows = frame(table["rows"])
        if "hours" in rows:
            rows["machine-hours"] = rows["nodes"] * rows["hours"]
            today = rows["instance"].map(lambda name: known[name].on_demand)
            rows["EC2, on demand"] = rows["machine-hours"] * today
        found.append(Table(table["title"], rows, table["formats"]))
    return found
