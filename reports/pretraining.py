"""Results of `python -m benchmarks pretrain`, for the page that has the published ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from detalbert.errors import UserError
from reports.published import Point
from reports.runs import read_json, read_number
from reports.tables import Table

STYLES = {"sequences/s": "{:,.1f}", "MFU": "{:.2f}", "forwards a step": "{:.1f}",
          "workers": "{}", "added to none": "{:+.1%}"}  # fmt: skip


class Pretraining(NamedTuple):
    """One result: its scaling series, and its tables of steps and of loader workers."""

    points: list[Point]
    tables: list[Table]


def read_pretraining(path: str, label: str) -> Pretraining | None:
    """None for any other file. Raises UserError for one that lacks a figure.

    Args: label: what its series are called; empty: the model and the device.
    """
    content = read_json(Path(path)) if Path(path).is_file() else {}
    if content.get("stage") != "pretrain":
        return None
    try:
        name = f"pretraining {content['settings']['shape']} on {content['device']['name']}"
        return _found(Path(path), content, label or name)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"{path}: not all that a pretraining benchmark has; run python -m benchmarks pretrain "
            "anew"
        ) from None


def _found(file: Path, content: Mapping[str, Any], name: str) -> Pretraining:
    def rates(where: str, key: str = "sequences_per_second", inside: Any = content) -> pd.Series:
        medians = {entry: facts[key]["median"] for entry, facts in inside[where].items()}
        return pd.Series({e: read_number(file, f"{where}.{e}", m) for e, m in medians.items()})

    points = [
        Point(f"{name}, {kind}, sequences/s over processes", int(count), rate, "measured")
        for kind in content["scaling"]
        for count, rate in rates(kind, inside=content["scaling"]).items()
    ]
    loader = rates("loader").rename(int).sort_index()
    steps = {side: facts["forwards"] for side, facts in content["results"].items()}
    tables = {
        "Pretraining steps, measured": {
            "forwards a step": pd.Series(steps), "sequences/s": rates("results"),
            "MFU": rates("results", "mfu"),
        },
        "The loader alone, measured": {
            "workers": loader.index, "sequences/s": loader, "added to none": loader / loader[0] - 1
        },
    }  # fmt: skip
    named = {title: pd.DataFrame({"run": name, **columns}) for title, columns in tables.items()}
    return Pretraining(points, [Table(title, frame, STYLES) for title, frame in named.items()])
