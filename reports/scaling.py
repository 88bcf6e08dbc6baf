"""`scaling`: what N GPUs or machines reach of N times one."""

from collections.abc import Sequence

from detalbert.errors import UserError
from reports.plots import scaling_plot
from reports.pretraining import Pretraining
from reports.prices import load_prices
from reports.published import METHOD, SCALING, TABLES, Point
from reports.run import Run
from reports.tables import Report, Table, frame


def efficiency(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """(N, T(N)) -> (N, efficiency), in order of N; the first is 1 by definition."""
    ordered = sorted(points)
    first, base = ordered[0]
    return [(units, value / (units / first * base)) for units, value in ordered]


def measured(label: str, run: Run) -> Point:
    """Raises UserError for a run whose throughput is not known."""
    if run.throughput is None:
        raise UserError(f"{run.name}: no throughput in its records yet; wait for its first report")
    return Point(label, run.slots, run.throughput, "measured")


def scaling_report(
    points: Sequence[Point], published: bool, pretraining: Sequence[Pretraining] = ()
) -> Report:
    every = [*points, *(point for found in pretraining for point in found.points)]
    every += SCALING if published else []
    if not every:
        raise UserError("scaling: nothing to report; give --published, --run or --experiment")
    series: dict[str, dict[int, Point]] = {}
    for point in every:
        if series.setdefault(point.series, {}).setdefault(point.units, point) is not point:
            raise UserError(
                f"{point.series}: two throughputs for {point.units}; name the series apart, "
                "LABEL=PATH"
            )
    curves = {name: efficiency([(n, point.throughput) for n, point in found.items()])
              for name, found in series.items()}  # fmt: skip
    rows = [
        {"series": name, "source": found[units].source, "N": units,
         "throughput": found[units].throughput, "efficiency": value}
        for name, found in series.items() for units, value in curves[name]
    ]  # fmt: skip
    styles = {"N": "{}", "throughput": "{:,.2f}", "efficiency": "{:.1%}"}
    tables = [
        Table("Scaling", frame(rows), styles),
        *(table for found in pretraining for table in found.tables),
    ]
    tables += published_tables() if published else []
    drawn = {name: curve for name, curve in curves.items() if len(curve) > 1}
    from_print = {point.series for point in every if point.source == "published"}
    plots = [scaling_plot(drawn, from_print)] if drawn else []
    single = [f"{name}: one point alone has no efficiency" for name in curves if name not in drawn]
    return Report("How throughput scales", tables, METHOD, single, plots)


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
