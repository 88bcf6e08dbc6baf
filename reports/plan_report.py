"""The plan as a report: the table, the recommended option case by case and as YAML, plots."""

import dataclasses
import datetime
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reports import prices as price_file
from reports.closed_form import candidates
from reports.plan import HIGH, MIDDLE, Planned, pareto, recommended
from reports.plan_command import Settings
from reports.plots import pareto_plot, period_plot
from reports.reclaims import CASES
from reports.simulate import simulate
from reports.tables import Report, Table, frame, price_table

_HOURS, _MONEY = "{:.2f}", "${:,.2f}"
_PARTS = ("", " low", " high", " 5 %", " 95 %")
FORMATS = {
    **{f"hours{part}": _HOURS for part in _PARTS},
    **{f"cost{part}": _MONEY for part in _PARTS},
    **dict.fromkeys(("windows/s", "tokens/s", "reclaims", "lost h", "waiting h"), _HOURS),
    **dict.fromkeys(("slots", "steps", "wait min"), "{:,.0f}"),
    **dict.fromkeys(("on demand at end", "in time", "in time high"), "{:.0%}"),
    **dict.fromkeys(("$/1,000 windows", "$/1M tokens"), "${:.4f}"),
    **{"on demand": _MONEY, "$/h": _MONEY, "reclaims/h": "{:.3f}", "minutes": "{:.1f}"},
}
NARROW = {"option": "{hardware}\n{market}, {slots} slots", "hours": "{hours}",
          "low-high h": "{hours low}-{hours high}", "cost": "{cost}",
          "low-high $": "{cost low}-{cost high}", "on demand": "{on demand}"}  # fmt: skip
NARROW_CASES = {"case": "{case}", "reclaims/h": "{reclaims/h}", "wait min": "{wait min}",
                "hours": "{hours}", "95 % within": "{hours 95 %}", "cost": "{cost}",
                "95 % within $": "{cost 95 %}", "reclaims": "{reclaims}"}  # fmt: skip
README = Path(__file__).parent / "README.md"


def plan_report(
    settings: Settings,
    work: float,
    planned: Sequence[Planned],
    notes: Sequence[str],
    today: datetime.date,
) -> Report:
    front, best = pareto(planned), recommended(planned, settings.deadline)
    fixed = {
        (p.option.price.instance, p.option.slots): p.cost for p in planned if not p.option.spot
    }
    rows = [_row(settings, work, p, fixed, i in front) for i, p in enumerate(planned)]
    full = frame(sorted(rows, key=lambda row: row["cost"])).dropna(axis=1, how="all")
    short = full[(full["front"] == "*") | ((full["front"] != "*").cumsum() <= 10)]
    name = f"{best.option.hardware}, {best.option.market}"
    head = "Options: the front (*: none is both faster and cheaper) and the ten cheapest more"
    tables = [
        Table(head, short, FORMATS, narrow=NARROW),
        Table(f"Recommended: {name}", frame(_cases(best)), FORMATS, narrow=NARROW_CASES),
        Table("All options", full, FORMATS, long=True),
    ]
    shown = [p for p in planned if math.isfinite(p.cost)]
    plots = [pareto_plot(shown, [planned[i] for i in sorted(front)], settings.deadline)]
    if tried := _periods(best):
        tables.append(Table(f"Checkpoint period for {name}", frame(tried), FORMATS, long=True))
        curves = {
            what: [
                (row["minutes"], row[f"cost {what}"])
                for row in tried
                if math.isfinite(row[f"cost {what}"])
            ]
            for what in ("middle", "high")
        }
        plots += [period_plot(curves)] if all(len(curve) > 1 for curve in curves.values()) else []
    used = list({p.option.price.instance: p.option.price for p in planned}.values())
    kind = "windows" if settings.tokens is None else "tokens"
    title = f"What {work:,.0f} {kind} would take and cost"
    own = [*notes, *price_file.notes(used, today)]
    tables.append(price_table(used))
    return Report(title, tables, method(), own, plots, snippet(settings, best), best.cost)


def _row(
    settings: Settings, work: float, p: Planned, fixed: dict[tuple[str, int], float], front: bool
) -> dict[str, Any]:
    option, spot, means = p.option, p.option.spot, p.outcomes[MIDDLE].mean()
    bounds = {
        f"{what} {name}": pick(p.bound(what, share, i) for i in range(len(CASES))) if spot else None
        for what in ("hours", "cost")
        for name, pick, share in (("low", min, 0.05), ("high", max, 0.95))
    }
    kind, thousands = ("windows", "1,000 ") if settings.tokens is None else ("tokens", "1M ")
    row = {
        "front": "*" if front else "",
        "hardware": option.hardware,
        "market": option.market,
        "slots": option.slots,
        **{key: value for what in ("hours", "cost") for key, value in
           ((what, means[what]), *((k, v) for k, v in bounds.items() if k.startswith(what)))},
        "on demand": fixed[option.price.instance, option.slots],
        f"$/{thousands}{kind}": means["cost"] / work * (1e3 if kind == "windows" else 1e6),
        f"{kind}/s": option.throughput,
        "speed": option.speed,
        **{name: means[name] for name in ("reclaims", "lost h", "waiting h")},
        "on demand at end": means["on demand at end"] if spot else None,
        "minutes": p.job.period_seconds / 60 if spot else None,
        "steps": p.steps if spot else None,
    }  # fmt: skip
    for name, case in (("in time", MIDDLE), ("in time high", HIGH)):
        late = settings.deadline is not None and p.outcomes[case]["hours"] <= settings.deadline
        row[name] = None if settings.deadline is None else float(np.mean(late))
    return row


def _cases(p: Planned) -> list[dict[str, Any]]:
    """A row for each case of one option."""
    rows = []
    prices = p.option.price.spot_range() if p.option.spot else [p.job.price] * len(CASES)
    for index, (case, market) in enumerate(zip(CASES, p.markets, strict=True)):
        alike, means = market.alike(), p.outcomes[index].mean()
        row = {"case": case.name, "reclaims/h": alike.hourly, "wait min": alike.wait_seconds / 60}
        row["$/h"] = prices[index]
        for what in ("hours", "cost"):
            row |= {what: means[what], f"{what} 5 %": p.bound(what, 0.05, index)}
            row |= {f"{what} 95 %": p.bound(what, 0.95, index)}
        rows.append(row | {name: means[name] for name in ("reclaims", "lost h", "waiting h")})
    return rows


def _periods(p: Planned) -> list[dict[str, Any]]:
    """The chosen period beside others, simulated."""
    if not p.option.spot:
        return []
    steps = candidates(p.job, p.step_seconds)
    some = steps[np.geomspace(1, len(steps), 9).astype(int) - 1]
    rows = []
    for count in np.unique([*some, p.steps]):
        job = dataclasses.replace(p.job, period_seconds=float(count * p.step_seconds))
        row = {"steps": int(count), "minutes": job.period_seconds / 60}
        for case in (MIDDLE, HIGH):
            found = simulate(job, p.markets[case], job.rules.runs, job.rules.seed).mean()
            row |= {f"{what} {CASES[case].name}": found[what] for what in ("hours", "cost")}
        rows.append(row | {"chosen": "*" if count == p.steps else ""})
    return rows


def snippet(settings: Settings, best: Planned) -> str:
    """What to write into the experiment's YAML for the recommended option."""
    option, late, worst = best.option, best.bound("hours", 0.95), best.bound("hours", 0.95, HIGH)
    missed = settings.deadline is not None and late > settings.deadline
    minutes = best.job.period_seconds / 60
    lines = [
        f"# {option.hardware}, {option.market}: {best.hours:.2f} h, ${best.cost:,.2f} expected;",
        f"# 95 % of runs within {late:.2f} h, at the high rate within {worst:.2f} h"
        + ("; MISSES THE DEADLINE" if missed else ""),
        "hyperparameters:",
        *([f"  checkpoint_period: {best.steps}  # steps, {minutes:.0f} min", "  spot_notice: true"]
          if option.spot else ["  # checkpoint_period: once per epoch, the default"]),
        "resources:",
        f"  slots_per_trial: {option.slots}",
        f"  resource_pool: <<a pool of {option.price.instance}, {option.market}>>",
    ]  # fmt: skip
    return "\n".join(lines)


def method() -> list[str]:
    """The rules, as reports/README.md has them under "How a plan is made", without markup."""
    text = README.read_text(encoding="utf-8").split("## How a plan is made\n")[1].split("\n## ")[0]
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"\*\*|`", "", text))
    return [" ".join(point.split()) for point in text.split("\n- ")[1:]]
