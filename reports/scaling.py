"""The command `scaling`: the throughput of N slots beside N times that of one.

A series is of one model and data set on one kind of machine with one number of loader workers.
Runs of one size are one row, with their mean. Runs on another number of windows than the first of
a series have no efficiency, nor those that are too short or beside a first that is: it would be
that of their start and end.
"""

import argparse
from collections.abc import Iterator
from types import SimpleNamespace

import pandas as pd

from cluster.published import FINE_TUNING, SERIES
from detalbert.errors import UserError
from reports.forms import Row, write
from reports.runs import as_rows, read_runs

# Windows of two runs of equal data differ by the last batch.
SAME_WORK = 0.05
# Seconds of training. A shorter run still gets faster, or slower.
MIN_SECONDS = 30.0
WHY_NOT = f"on other windows than the first of a series, or in less than {MIN_SECONDS:g} s"


def run(args: argparse.Namespace) -> int:
    """Report time, speed-up and efficiency over slots, measured and published."""
    runs, notes = read_runs(args)
    points = [_point(run) for run in runs]
    # Beside measured runs stand at least those published ones that are of equal examples.
    points += [
        point for point in _published_points() if args.published or (runs and point["windows"])
    ]
    if not points:
        raise UserError(
            "nothing to report",
            key="scaling",
            cure="give RUN, --experiment or --published",
        )
    table = efficiencies(pd.DataFrame(points))
    excluded = table[table["efficiency"].isna()]
    if len(excluded):
        names = [f"{row.series} at N = {row.N}" for row in excluded.itertuples()]
        notes.append(f"no efficiency, {WHY_NOT}: {'; '.join(names)}")
    write(args, "How throughput scales", as_rows(table), notes)
    return 0


def efficiencies(points: pd.DataFrame) -> pd.DataFrame:
    """Return a row per series and N, with `speed-up` and `efficiency` where they can be told."""
    columns = {
        "runs": ("windows/s", "size"),
        "windows": ("windows", "mean"),
        "windows/s": ("windows/s", "mean"),
    }
    sizes = points.groupby(["series", "source", "N"], sort=False).agg(**columns).reset_index()

    # Series in order of appearance, each by N; its first row has 100 %.
    by_series = sizes.groupby("series", sort=False)
    table = pd.concat(rows.sort_values("N") for _, rows in by_series)
    table["seconds"] = table["windows"] / table["windows/s"]
    sizes = table.groupby("series")[["N", "windows", "windows/s", "seconds"]]
    first = sizes.transform("first")
    table["speed-up"] = table["windows/s"] / first["windows/s"]
    table["efficiency"] = table["speed-up"] / (table["N"] / first["N"])

    difference = (table["windows"] / first["windows"] - 1).abs()
    is_short = table["seconds"].clip(upper=first["seconds"]) < MIN_SECONDS
    table.loc[is_short | (difference > SAME_WORK), ["speed-up", "efficiency"]] = None
    return table


def _point(run: Row) -> Row:
    """Return the throughput of a run; N are its slots."""
    hparams = run["config"].get("hyperparameters") or {}
    data = run["config"].get("data") or {}
    parts = [
        hparams.get("model") or hparams.get("size") or "model_config",
        data.get("train") or data.get("shards") or data.get("text") or data.get("documents"),
        run.get("machine"),
        f"{hparams.get('num_workers', 'default')} loader workers",
    ]
    return {
        "series": run.get("series") or ", ".join(str(part) for part in parts if part),
        "source": "measured",
        "N": run["slots"],
        "windows/s": run["throughput"]["examples_per_second"],
        "windows": run["windows"],
    }


def _published_points() -> Iterator[Row]:
    """Yield the published throughputs; N are GPUs, or machines, as the name of the series says."""
    fine_tuning = SimpleNamespace(
        series="fine-tuning xxlarge, over GPUs",
        throughput={row.slots: row.throughput for row in FINE_TUNING},
        windows={},
    )
    for series in [fine_tuning, *SERIES]:
        for size, speed in series.throughput.items():
            yield {
                "series": series.series,
                "source": "published",
                "N": size,
                "windows/s": speed,
                "windows": series.windows.get(size),
            }
