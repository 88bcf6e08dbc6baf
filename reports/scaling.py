"""`scaling`: what N GPUs or machines reach of N times one."""

from collections.abc import Sequence

from detalbert.errors import UserError
from reports.plots import scaling_plot
from reports.pretraining import Pretraining
from reports.pretraining import tables as pretraining_tables
from reports.published import LOADER_GAIN, SCALING, Point
from reports.run import Run
from reports.tables import Report, Table, frame

METHOD = [
    "Efficiency is T(N) / (N x T(1)); where a series does not begin at 1, its first measurement "
    "at N0 stands in: T(N) / (N / N0 x T(N0)).",
    "Published throughputs are as printed, efficiencies are computed from them. The rows with 12 "
    "loader workers are the published throughput without workers times the published gain.",
    "Accumulation computes several micro-batches between two gradient exchanges, so a machine "
    "spends less of its time on the network.",
]


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
    points = [*points, *(point for found in pretraining for point in found.points)]
    every = [*points, *(SCALING if published else [])]
    if not every:
        raise UserError("scaling: nothing to report; give --published, --run or --experiment")
    series: dict[str, dict[int, float]] = {}
    for point in every:
        known = series.setdefault(point.series, {})
        if point.units in known:
            raise UserError(
                f"{point.series}: two throughputs for {point.units}; name the series apart, "
                "LABEL=PATH"
            )
        known[point.units] = point.throughput
    curves = {name: efficiency(list(values.items())) for name, values in series.items()}
    sources = {point.series: point.source for point in reversed(every)}
    rows = [
        {"series": name, "source": sources[name], "N": units, "throughput": value,
         "efficiency": dict(curves[name])[units]}
        for name, values in series.items() for units, value in sorted(values.items())
    ]  # fmt: skip
    styles = {"N": "{}", "throughput": "{:,.2f}", "efficiency": "{:.1%}"}
    tables = [Table("Scaling", frame(rows), styles)]
    tables += pretraining_tables(pretraining)
    if published:
        tables.append(_loader_table())
    drawn = {name: curve for name, curve in curves.items() if len(curve) > 1}
    from_print = {point.series for point in every if point.source == "published"}
    plots = [scaling_plot(drawn, from_print)] if drawn else []
    single = [f"{name}: one point alone has no efficiency" for name in curves if name not in drawn]
    return Report("How throughput scales", tables, METHOD, single, plots)


def _loader_table() -> Table:
    gains = LOADER_GAIN.items()
    rows = [{"nodes": n, "16 a GPU": small, "32 a GPU": large} for n, (small, large) in gains]
    styles = {"nodes": "{}", "16 a GPU": "+{:.1%}", "32 a GPU": "+{:.1%}"}
    return Table("What 12 loader workers added to none (published, p4d)", frame(rows), styles)
