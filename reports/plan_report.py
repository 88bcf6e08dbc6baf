"""The plan as a report: the table, the recommended option's YAML, the Pareto front in a plot."""

import dataclasses
import datetime
import math
from collections.abc import Sequence

import numpy as np

from reports import prices as price_file
from reports.closed_form import expected, young_period
from reports.plan import Planned, Settings, candidates, pareto, percentile, recommended
from reports.plots import pareto_plot, period_plot
from reports.reclaims import Constant
from reports.simulate import simulate
from reports.tables import Report, Table, frame, price_table

FORMATS = {
    **dict.fromkeys(("slots", "steps", "hours 5-95 %", "cost 5-95 %"), "{}"),
    **dict.fromkeys(("windows/s", "hours", "reclaims"), "{:.2f}"),
    **dict.fromkeys(("on demand at end", "in time"), "{:.0%}"),
    "cost": "${:,.2f}",
    "lost h": "{:.3f}",
    "checkpoint min": "{:.1f}",
}

# A checkpoint period in seconds; its cost by closed form and by simulation; the standard error.
Tried = tuple[float, float | None, float, float]


def plan_report(
    settings: Settings, planned: Sequence[Planned], notes: Sequence[str], today: datetime.date
) -> Report:
    front = pareto(planned)
    best = recommended(planned, settings.deadline_hours)
    tried = _tried(settings, best)
    rows = [_row(p, i in front, settings.deadline_hours) for i, p in enumerate(planned)]
    rows.sort(key=lambda row: row["cost"])
    full = frame(rows)
    unused = ["in time"] if settings.deadline_hours is None else []
    unused += ["on demand at end"] if math.isinf(settings.fallback_seconds) else []
    full = full.drop(columns=unused)
    chosen = full[full["front"] == "*"].drop(columns="front")
    near = full[full["front"] != "*"].drop(columns="front").head(10)
    tables = [
        Table("The Pareto front: no other option is both faster and cheaper", chosen, FORMATS),
        Table("The ten cheapest beside it", near, FORMATS),
        _period_table(settings, best, tried),
        Table("All options", full, FORMATS, long=True),
    ]
    used = {p.option.price.instance: p.option.price for p in planned}
    tables.append(price_table(list(used.values())))
    shown = [p for p in planned if math.isfinite(p.cost)]
    plots = [pareto_plot(shown, [planned[i] for i in sorted(front)], settings.deadline_hours)]
    if curves := _curves(tried):
        plots.append(period_plot(curves))
    title = f"What {settings.windows:,.0f} windows would take and cost"
    own = [_agreement(planned), *notes, *price_file.notes(list(used.values()), today)]
    return Report(title, tables, method(settings), own, plots, snippet(settings, best))


def _row(planned: Planned, front: bool, deadline: float | None) -> dict[str, object]:
    option, outcome = planned.option, planned.outcome
    hours, cost = ([percentile(a, 5), percentile(a, 95)] for a in (outcome.hours, outcome.cost))
    return {
        "front": "*" if front else "",
        "hardware": f"{option.machines} x {option.price.instance}",
        "market": option.market,
        "slots": option.slots,
        "windows/s": option.throughput,
        "speed": option.speed,
        "hours": planned.hours,
        "hours 5-95 %": f"{hours[0]:.2f}-{hours[1]:.2f}",
        "cost": planned.cost,
        "cost 5-95 %": f"{cost[0]:,.2f}-{cost[1]:,.2f}",
        "reclaims": float(outcome.reclaims.mean()),
        "lost h": float(outcome.lost_hours.mean()),
        "on demand at end": float(outcome.fell_back.mean()) if option.spot else None,
        "checkpoint min": planned.job.period_seconds / 60 if option.spot else None,
        "steps": planned.period_steps if option.spot else None,
        "in time": None if deadline is None else float((outcome.hours <= deadline).mean()),
        "on demand wins above": _break_even(planned.break_even),
    }


def _break_even(hazard: float | None) -> str:
    """Reclaims per machine at which on demand costs the same."""
    if hazard is None:
        return "-"
    if math.isinf(hazard):
        return "never"
    if hazard <= 0:
        return "always"
    return f"1 per {1 / hazard:,.1f} machine-hours"


def _hazard(settings: Settings, planned: Planned) -> float:
    """Reclaims per machine-hour that lose work."""
    return settings.reclaims(planned.option.price).hazard * (1 - settings.notice_read)


def _tried(settings: Settings, planned: Planned) -> list[Tried]:
    """The recommended option at every candidate period, with all the runs."""
    hazard = _hazard(settings, planned)
    if not planned.option.spot or hazard == 0:
        return []
    reclaims = settings.reclaims(planned.option.price)
    exact = isinstance(reclaims, Constant) and planned.closed is not None
    tried = []
    for period in candidates(planned.job, hazard, planned.step_seconds):
        job = dataclasses.replace(planned.job, period_seconds=period)
        cost = simulate(job, reclaims, settings.runs, settings.seed).cost
        error = float(cost.std() / math.sqrt(cost.size)) if np.isfinite(cost).all() else math.inf
        closed = expected(job, reclaims.hazard).cost if exact else None
        tried.append((period, closed, float(cost.mean()), error))
    return tried


def _period_table(settings: Settings, best: Planned, tried: Sequence[Tried]) -> Table:
    option, hazard = best.option, _hazard(settings, best)
    where = f"{option.machines} x {option.price.instance}, {option.market}"
    young = young_period(best.job.checkpoint_seconds, hazard, option.machines) / 60
    title = f"Checkpoint period for {where}"
    if option.spot and math.isfinite(young):
        title += f" (Young: {young:.1f} min)"
    rows = [
        {
            "minutes": period / 60,
            "steps": round(period / best.step_seconds),
            "closed form": closed,
            "simulated": cost,
            "standard error": error,
            "chosen": "*" if math.isclose(period, best.job.period_seconds) else "",
        }
        for period, closed, cost, error in tried
    ]
    only = {"minutes": best.job.period_seconds / 60, "steps": best.period_steps, "chosen": "*"}
    rows = rows or [only]
    money = "${:,.3f}"
    styles = {"minutes": "{:.1f}", "steps": "{}"}
    styles |= dict.fromkeys(("closed form", "simulated", "standard error"), money)
    return Table(title, frame(rows), styles)


def _curves(every: Sequence[Tried]) -> dict[str, list[tuple[float, float]]]:
    tried = [row for row in every if math.isfinite(row[2])]
    if len(tried) < 2:
        return {}
    curves = {"simulated": [(period / 60, cost) for period, _, cost, _ in tried]}
    if all(closed is not None for _, closed, _, _ in tried):
        curves["closed form"] = [(period / 60, closed) for period, closed, _, _ in tried]
    return curves


def _agreement(planned: Sequence[Planned]) -> str:
    verdicts = [p.agrees() for p in planned if p.option.spot and p.agrees() is not None]
    if not verdicts:
        return "no closed form exists for these settings (trace, fallback or some notices read)"
    return (
        f"{sum(verdicts)} of {len(verdicts)} simulated mean times have the closed form in their "
        "99 % interval; one in a hundred may miss it by chance"
    )


def snippet(settings: Settings, best: Planned) -> str:
    """What to write into the experiment's YAML for the recommended option."""
    option = best.option
    late = percentile(best.outcome.hours, 95)
    missed = settings.deadline_hours is not None and late > settings.deadline_hours
    lines = [
        f"# {option.machines} x {option.price.instance}, {option.market}: {best.hours:.2f} h, "
        f"${best.cost:,.2f} expected, 95 % of runs within {late:.2f} h"
        + ("; MISSES THE DEADLINE" if missed else ""),
        "hyperparameters:",
    ]
    if option.spot:
        minutes = best.job.period_seconds / 60
        lines.append(f"  checkpoint_period: {best.period_steps}  # steps, {minutes:.0f} min")
        lines.append("  spot_notice: true")
    else:
        lines.append("  # checkpoint_period: once per epoch, the default")
    lines += ["resources:", f"  slots_per_trial: {option.slots}"]
    lines.append(f"  resource_pool: <<a pool of {option.price.instance}, {option.market}>>")
    return "\n".join(lines)


def method(settings: Settings) -> list[str]:
    return [
        f"Work is {settings.windows:,.0f} windows over windows a second; modelled speeds are "
        "interpolated over slots and scaled by peak arithmetic to other GPUs, at equal "
        "utilisation and network; measure before you pay. Unless --pool names them, jobs over "
        "several machines are planned on machines of 8 slots only.",
        f"{settings.runs:,} runs of every option, seed {settings.seed}. Any machine's reclaim "
        "stops all slots; work since the last checkpoint is lost unless the notice was read "
        f"({settings.notice_read:.0%} of them); then 25 s detection, a wait for capacity "
        f"({settings.wait_seconds:g} s on average, exponential), {settings.boot_seconds:g} s boot, "
        f"{settings.image_seconds:g} s image, {settings.restart_seconds:g} s to the first step. "
        "Machines that stay are paid while they idle, up to 20 min.",
        "Reclaims: a trace, a rate of --hourly, or the Spot Advisor's monthly band at its upper "
        "edge (the open band taken as 40 %), as a constant hazard: 10 % a month is "
        "-ln(1 - 0.10) / 730.5 = 1.44e-4 per machine-hour. Machines are independent; in truth "
        "reclaims come in bursts, which a trace replays.",
        "Checkpoint period: the cheapest of eleven around Daly's estimate (2006) and of one "
        "checkpoint in all, by the closed form (Bougeret et al. 2011) where it is exact and by "
        "simulation elsewhere.",
        "On demand wins above: the reclaim rate at which the expected spot cost, without notice "
        "and with the period fitted to the rate, equals the on-demand cost of the same machines.",
        "The master, storage, network and validation are not priced.",
    ]
