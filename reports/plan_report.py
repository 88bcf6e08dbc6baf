"""The plan as a report: the table, the recommended option case by case and as YAML, plots."""

import dataclasses
import math
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reports import prices as price_file
from reports.plan import Planned, figures, pareto, recommended
from reports.plan_command import Settings
from reports.plots import pareto_plot, period_plot
from reports.simulate import candidates
from reports.tables import Report, Table, frame, price_table

_STYLES = {
    "{:.2f}": "hours windows/s tokens/s reclaims lost-h waiting-h",
    "${:,.2f}": "cost on-demand $/h",
    "{:,.0f}": "slots steps wait-min",
    "{:.1f}": "minutes",
    "{:.3f}": "reclaims/h",
    "{:.0%}": "in-time",
    "${:.4f}": "$/1,000-windows $/1,000,000-tokens",
}
FORMATS = {
    name.replace("-", " ") + part: style
    for style, names in _STYLES.items() for name in names.split()
    for part in ("", " low", " middle", " high", " 5 %", " 95 %")
}  # fmt: skip
NARROW = {"option, slots": "{hardware} {front}\n{market}, {slots}", "hours": "{hours}",
          "low-high h": "{hours low}-{hours high}", "$": "{cost}",
          "low-high $": "{cost low}-{cost high}", "on demand $": "{on demand}"}  # fmt: skip
NARROW_CASES = {"case": "{case}", "reclaims/h": "{reclaims/h}", "wait min": "{wait min}",
                "hours": "{hours}", "95 % within": "{hours 95 %}", "$": "{cost}",
                "95 % within $": "{cost 95 %}", "reclaims": "{reclaims}"}  # fmt: skip
README = Path(__file__).parent / "README.md"


def plan_report(
    settings: Settings, work: float, planned: Sequence[Planned], notes: Sequence[str], today: date
) -> Report:
    front, best = pareto(planned), recommended(planned, settings.deadline)
    kind, many = ("windows", 1000) if settings.tokens is None else ("tokens", 1_000_000)
    fixed = {p.option.hardware: p.cost for p in planned if not p.option.spot}
    rows = [
        _row(p) | {"front": "*" if p in front else "", "on demand": fixed[p.option.hardware],
                   f"$/{many:,} {kind}": p.cost / work * many, f"{kind}/s": p.option.throughput}
        for p in planned
    ]  # fmt: skip
    full = frame(sorted(rows, key=lambda row: row["cost"])).dropna(axis=1, how="all")
    short = full[(full["front"] == "*") | ((full["front"] != "*").cumsum() <= 10)]
    name = f"{best.option.hardware}, {best.option.market}"
    head = "Options: the front (*: none is both faster and cheaper) and the ten cheapest more"
    used = list({p.option.price.instance: p.option.price for p in planned}.values())
    cases = frame(list(best.cases.values()))
    tables = [
        Table(head, short, FORMATS, narrow=NARROW),
        Table(f"Recommended: {name}", cases, FORMATS, narrow=NARROW_CASES),
        Table("All options", full, FORMATS, long=True),
        price_table(used),
    ]
    shown = [p for p in planned if math.isfinite(p.cost)]
    plots = [pareto_plot(shown, front, settings.deadline)]
    if best.option.spot:
        tried = _periods(best)
        tables.insert(-1, Table(f"Checkpoint period for {name}", tried, FORMATS, long=True))
        curves = {case: tried[["minutes", f"cost {case}"]].to_numpy(dtype=float)
                  for case in ("middle", "high")}  # fmt: skip
        plots.append(period_plot(curves))
    title = f"What {work:,.0f} {kind} would take and cost"
    own = [*notes, *price_file.notes(used, today)]
    return Report(title, tables, method(), own, plots, snippet(settings, best), best.cost)


def _row(p: Planned) -> dict[str, Any]:
    option, middle = p.option, p.cases["middle"]
    row = {"front": "", "hardware": option.hardware, "market": option.market, "slots": option.slots}
    for what in ("hours", "cost"):
        row[what] = middle[what]
        if option.spot:
            row[f"{what} low"] = min(case[f"{what} 5 %"] for case in p.cases.values())
            row[f"{what} high"] = max(case[f"{what} 95 %"] for case in p.cases.values())
    row |= {"on demand": None, "speed": option.speed}
    row |= {name: middle.get(name) for name in ("in time", "reclaims", "lost h", "waiting h")}
    if option.spot:
        row |= {"steps": p.steps, "minutes": p.job.period_seconds / 60}
    return row


def _periods(p: Planned) -> pd.DataFrame:
    """The chosen period beside others, simulated."""
    steps = candidates(p.job, p.step_seconds)
    rows = []
    for count in np.unique([*steps[np.geomspace(1, len(steps), 9).astype(int) - 1], p.steps]):
        job = dataclasses.replace(p.job, period_seconds=float(count * p.step_seconds))
        row = {"steps": int(count), "minutes": job.period_seconds / 60}
        for case in ("middle", "high"):
            found = figures(job, p.markets[case])
            row |= {f"{what} {case}": found[what] for what in ("hours", "cost")}
        rows.append(row | {"chosen": "*" if count == p.steps else ""})
    return frame(rows)


def snippet(settings: Settings, best: Planned) -> str:
    """What to write into the experiment's YAML for the recommended option."""
    option, late, worst = best.option, *(best.cases[c]["hours 95 %"] for c in ("middle", "high"))
    missed = settings.deadline is not None and late > settings.deadline
    advice = "  # checkpoint_period: once per epoch, the default"
    if option.spot:
        minutes = f"# steps, {best.job.period_seconds / 60:.0f} min"
        advice = f"  checkpoint_period: {best.steps}  {minutes}\n  spot_notice: true"
    return (
        f"# {option.hardware}, {option.market}: {best.hours:.2f} h, ${best.cost:,.2f} expected;\n"
        f"# 95 % of runs within {late:.2f} h, at the high rate within {worst:.2f} h"
        f"{'; MISSES THE DEADLINE' if missed else ''}\nhyperparameters:\n{advice}\n"
        f"resources:\n  slots_per_trial: {option.slots}\n"
        f"  resource_pool: <<a pool of {option.price.instance}, {option.market}>>"
    )


def method() -> list[str]:
    """The rules, as reports/README.md has them under "How a plan is made", without markup."""
    text = README.read_text(encoding="utf-8").split("## How a plan is made\n")[1].split("\n## ")[0]
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"\*\*|`", "", text))
    return [" ".join(point.split()) for point in text.split("\n- ")[1:]]
