"""The plan as a report: the table, the recommended option case by case and as YAML, plots."""

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reports import prices as price_file
from reports.closed_form import LONGEST, candidates, expected
from reports.plan import HIGH, LOW, MIDDLE, Planned, pareto, percentile, recommended
from reports.plan_command import Settings
from reports.plots import pareto_plot, period_plot
from reports.reclaims import CASES, Constant
from reports.tables import Report, Table, frame, price_table

FORMATS = {
    **dict.fromkeys(("slots", "steps", "wait min"), "{:,.0f}"),
    **{f"{what} {part}": style for part in ("low", "high", "5 %", "95 %")
       for what, style in (("hours", "{:.2f}"), ("cost", "${:,.2f}"))},
    **dict.fromkeys(("windows/s", "tokens/s"), "{:,.2f}"),
    **dict.fromkeys(("hours", "reclaims", "lost h", "waiting h"), "{:.2f}"),
    **dict.fromkeys(("on demand at end", "in time"), "{:.0%}"),
    **dict.fromkeys(("cost", "on demand"), "${:,.2f}"),
    **dict.fromkeys(("$/1,000 windows", "$/1M tokens"), "${:.4f}"),
    "reclaims/h": "{:.3f}",
    "minutes": "{:.1f}",
}  # fmt: skip
NARROW = {
    "option": "{hardware}\n{market}, {slots} slots",
    "hours": "{hours}",
    "low-high h": "{hours low}-{hours high}",
    "cost": "{cost}",
    "low-high $": "{cost low}-{cost high}",
    "on demand": "{on demand}",
}
NARROW_CASES = {
    "case": "{case}",
    "reclaims/h": "{reclaims/h}",
    "wait min": "{wait min}",
    "hours": "{hours}",
    "5-95 % h": "{hours 5 %}-{hours 95 %}",
    "cost": "{cost}",
    "5-95 % $": "{cost 5 %}-{cost 95 %}",
}


def plan_report(
    settings: Settings,
    work: float,
    planned: Sequence[Planned],
    notes: Sequence[str],
    today: datetime.date,
) -> Report:
    front, best = pareto(planned), recommended(planned, settings.deadline)
    rows = [_row(settings, work, p, planned, i in front) for i, p in enumerate(planned)]
    full = frame(sorted(rows, key=lambda row: row["cost"]))
    drop = ["in time"] if settings.deadline is None else []
    drop += ["on demand at end"] if math.isinf(settings.fallback_seconds) else []
    full = full.drop(columns=drop)
    short = full[(full["front"] == "*") | ((full["front"] != "*").cumsum() <= 10)]
    name = f"{best.option.hardware}, {best.option.market}"
    tables = [
        Table("Options: the front (*: none is both faster and cheaper) and the ten cheapest more",
              short, FORMATS, narrow=NARROW),
        Table(f"Recommended: {name}", _cases(settings, best), FORMATS, narrow=NARROW_CASES),
        Table("All options", full, FORMATS, long=True),
    ]  # fmt: skip
    used = {p.option.price.instance: p.option.price for p in planned}
    shown = [p for p in planned if math.isfinite(p.cost)]
    plots = [pareto_plot(shown, [planned[i] for i in sorted(front)], settings.deadline)]
    tried, curves = _periods(settings, best)
    if tried:
        tables.insert(2, Table(f"Checkpoint period for {name}", frame(tried), FORMATS))
        plots.append(period_plot(curves))
    tables.append(price_table(list(used.values())))
    own = [*notes, *price_file.notes(list(used.values()), today)]
    kind = "windows" if settings.tokens is None else "tokens"
    title = f"What {work:,.0f} {kind} would take and cost"
    yaml = snippet(settings, best)
    return Report(title, tables, method(settings, planned), own, plots, yaml, best.cost)


def _row(
    settings: Settings, work: float, p: Planned, planned: Sequence[Planned], front: bool
) -> dict[str, Any]:
    option, middle = p.option, p.outcomes[MIDDLE]
    key = (option.price.instance, option.slots)
    (same,) = (q for q in planned
               if not q.option.spot and (q.option.price.instance, q.option.slots) == key)  # fmt: skip
    unit = ("tokens/s", "$/1M tokens", 1e6) if settings.tokens else (
        "windows/s", "$/1,000 windows", 1e3)  # fmt: skip
    return {
        "front": "*" if front else "",
        "hardware": option.hardware,
        "market": option.market,
        "slots": option.slots,
        "hours low": percentile(p.outcomes[LOW].hours, 5),
        "hours": p.hours,
        "hours high": p.late(HIGH),
        "cost low": percentile(p.outcomes[LOW].cost, 5),
        "cost": p.cost,
        "cost high": percentile(p.outcomes[HIGH].cost, 95),
        "on demand": same.cost,
        unit[1]: p.cost / work * unit[2],
        unit[0]: option.throughput,
        "speed": option.speed,
        "reclaims": float(middle.reclaims.mean()),
        "lost h": float(middle.lost_hours.mean()),
        "waiting h": float(middle.waited_hours.mean()),
        "on demand at end": float(middle.fell_back.mean()) if option.spot else None,
        "minutes": p.jobs[MIDDLE].period_seconds / 60 if option.spot else None,
        "steps": p.period_steps if option.spot else None,
        "in time": _in_time(settings, p, MIDDLE),
    }


def _in_time(settings: Settings, p: Planned, case: int) -> float | None:
    if settings.deadline is None:
        return None
    return float((p.outcomes[case].hours <= settings.deadline).mean())


def _cases(settings: Settings, p: Planned) -> Any:
    """A row for each case of one option."""
    rows = []
    for case, market, job, outcome in zip(CASES, p.markets, p.jobs, p.outcomes, strict=True):
        alike = market.alike()
        row = {
            "case": case.name,
            "reclaims/h": alike.hourly,
            "wait min": alike.wait_seconds / 60,
            "$/machine-hour": job.price,
        }
        for what, sample in (("hours", outcome.hours), ("cost", outcome.cost)):
            row |= {what: float(sample.mean()), f"{what} 5 %": percentile(sample, 5)}
            row |= {f"{what} 95 %": percentile(sample, 95)}
        row["reclaims"] = float(outcome.reclaims.mean())
        row["lost h"] = float(outcome.lost_hours.mean())
        row["waiting h"] = float(outcome.waited_hours.mean())
        row["in time"] = _in_time(settings, p, CASES.index(case))
        rows.append(row)
    found = frame(rows)
    return found.drop(columns="in time") if settings.deadline is None else found


def _periods(
    settings: Settings, p: Planned
) -> tuple[list[dict[str, Any]], Mapping[str, Sequence[tuple[float, float]]]]:
    """Some periods beside the chosen one, and the cost over all of them, by closed form."""
    rates = {case.name: market.alike() for case, market in zip(CASES, p.markets, strict=True)}
    if not p.option.spot or not all(market.hourly for market in rates.values()):
        return [], {}
    steps = candidates(p.jobs[MIDDLE], p.step_seconds)
    steps = np.unique([*steps[np.geomspace(1, len(steps), 60).astype(int) - 1], p.period_steps])
    found = {name: expected(job, market, steps * p.step_seconds)
             for (name, market), job in zip(rates.items(), p.jobs, strict=True)}  # fmt: skip
    minutes = steps * p.step_seconds / 60
    near = np.searchsorted(steps, [p.period_steps * share for share in (0.25, 0.5, 1, 2, 4)])
    rows = [
        {"steps": int(steps[i]), "minutes": float(minutes[i])}
        | {f"{what} {name}": float(getattr(found[name], what)[i])
           for what in ("hours", "cost") for name in ("low", "high")}
        | {"chosen": "*" if steps[i] == p.period_steps else ""}
        for i in sorted({min(int(i), len(steps) - 1) for i in near})
    ]  # fmt: skip
    curves = {name: [(m, c) for m, c in zip(minutes, found[name].cost, strict=True)
                     if math.isfinite(c)] for name in rates}  # fmt: skip
    return rows, {name: points for name, points in curves.items() if len(points) > 1}


def snippet(settings: Settings, best: Planned) -> str:
    """What to write into the experiment's YAML for the recommended option."""
    option, late = best.option, best.late()
    missed = settings.deadline is not None and late > settings.deadline
    lines = [
        f"# {option.hardware}, {option.market}: {best.hours:.2f} h, ${best.cost:,.2f} expected, "
        f"95 % of runs within {late:.2f} h ({best.late(HIGH):.2f} h at the high rate)"
        + ("; MISSES THE DEADLINE" if missed else ""),
        "hyperparameters:",
    ]
    if option.spot:
        minutes = best.jobs[MIDDLE].period_seconds / 60
        lines.append(f"  checkpoint_period: {best.period_steps}  # steps, {minutes:.0f} min")
        lines.append("  spot_notice: true")
    else:
        lines.append("  # checkpoint_period: once per epoch, the default")
    lines += ["resources:", f"  slots_per_trial: {option.slots}"]
    lines.append(f"  resource_pool: <<a pool of {option.price.instance}, {option.market}>>")
    return "\n".join(lines)


def method(settings: Settings, planned: Sequence[Planned]) -> list[str]:
    recorded = "; ".join(
        f"{case.name} {case.hourly:g} an hour and {case.wait_seconds / 60:g} min ({case.source})"
        for case in CASES
    )
    return [
        "Work over speed. Modelled speeds are interpolated over slots and scaled by peak "
        "arithmetic to other GPUs, at equal utilisation and network: measure before you pay.",
        f"Reclaims per machine-hour and mean waits for capacity, recorded: {recorded}. Given "
        "ones (--hourly, --trace) stand in all three cases. Spot prices: the lowest, the median "
        "and the highest seen.",
        f"{settings.runs:,} runs of each option and case, seed {settings.seed}, by the rules of "
        "reports/README.md. Hours and cost: the mean of the middle case; low: 5 % of the runs of "
        "the low case are below it; high: 95 % of the high case are.",
        "AWS charges nothing for a spot machine that it takes back in its first hour.",
        f"Checkpoint period: never above {LONGEST / 60:g} min of work nor half the run, and at the "
        "high rate within 10 % of the least cost; of those the shortest time at the middle rate.",
        "The master, storage, network and validation are not priced.",
    ]
