"""`scaling`: what N GPUs or machines reach of N times one."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from cluster.prices import load_prices
from cluster.published import METHOD, TABLES, points
from detalbert.errors import UserError
from reports.plots import scaling_plot
from reports.report import Report, Table, frame
from reports.run import Run
from reports.runs import Document

FORMATS = {"N": "{}", "throughput": "{:,.2f}", "efficiency": "{:.1%}", "sequences/s": "{:,.1f}"}
FORMATS |= {"MFU": "{:.2f}", "forwards a step": "{:.1f}"}
FORMATS |= {"workers": "{}", "added to none": "{:+.1%}"}


def scaling_report(
    series: Sequence[tuple[str, Run]], published: bool, pretraining: Sequence[tuple[str, Document]]
) -> Report:
    """Args: series: runs and what their series are called. pretraining: as `pretraining_tables`.

    Raises UserError for runs that are not one series, or of which nothing is known yet.
    """
    rows, tables = list(_measured(series)), list[Table]()
    for label, found in pretraining:
        try:
            own, more = pretraining_tables(found, label)
        except (KeyError, TypeError, ValueError, AttributeError):
            said = "not all that python -m benchmarks pretrain writes; run it anew"
            raise UserError(f"{found.file}: {said}") from None
        rows, tables = rows + own, tables + more
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
    tables = [Table("Scaling", found, FORMATS), *tables, *(published_tables() if published else [])]
    notes = [f"{name}: one point alone has no efficiency" for name in single]
    plots = [scaling_plot(many)] if len(many) else []
    return Report("How throughput scales", tables, METHOD, notes, plots)


def efficiency(found: pd.DataFrame) -> pd.DataFrame:
    """With T(N) / (N x T(1)), in order of N; the first of a series is 1 by definition."""
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


def pretraining_tables(found: Document, label: str) -> tuple[list[dict[str, Any]], list[Table]]:
    """A result of `python -m benchmarks pretrain`: its points, its steps and its loader.

    Args: label: what its series are called; empty: the model and the device.
    """
    content = found.content
    model, device = content["settings"]["shape"], content["device"]["name"]
    name = label or f"pretraining {model} on {device}"

    def rates(where: str, key: str = "sequences_per_second") -> pd.Series:
        entries = found.at(where, dict)
        return pd.Series({e: found.number(f"{where}.{e}.{key}.median") for e in entries})

    rows: list[dict[str, Any]] = []
    for kind in content["scaling"]:
        row = {"series": f"{name}, {kind}, sequences/s over processes", "source": "measured"}
        for count, rate in rates(f"scaling.{kind}").items():
            rows.append({**row, "N": int(count), "throughput": rate})
    loader = rates("loader").rename(int).sort_index()
    forwards = pd.Series({side: facts["forwards"] for side, facts in content["results"].items()})
    steps = {"forwards a step": forwards, "sequences/s": rates("results")}
    steps["MFU"] = rates("results", "mfu")
    workers = {"workers": loader.index, "sequences/s": loader}
    workers["added to none"] = loader / loader[0] - 1
    titles = {"Pretraining steps, measured": steps, "The loader alone, measured": workers}
    frames = {title: pd.DataFrame({"run": name, **each}) for title, each in titles.items()}
    return rows, [Table(title, each, FORMATS) for title, each in frames.items()]


def published_tables() -> list[Table]:
    """As published; where machines and hours are, with what they would cost today."""
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
