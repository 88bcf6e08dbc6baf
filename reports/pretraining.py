"""Results of `python -m benchmarks pretrain`, for the page that has the published ones."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detalbert.errors import UserError
from reports.published import Point
from reports.runs import read_json, read_number
from reports.tables import Table, frame


class Pretraining(NamedTuple):
    """One result: scaling series, and rows of the tables of steps and of loader workers."""

    points: list[Point]
    steps: list[dict[str, Any]]
    loader: list[dict[str, Any]]


def read_pretraining(path: str, label: str) -> Pretraining | None:
    """None for any other file. Raises UserError for one that lacks a figure.

    Args: label: what its series are called; empty: the model and the device.
    """
    if not Path(path).is_file():
        return None
    content = read_json(Path(path))
    if content.get("stage") != "pretrain":
        return None
    try:
        name = label or (
            f"pretraining {content['settings']['shape']} on {content['device']['name']}"
        )

        def median(where: str, facts: Mapping[str, Any], key: str) -> float:
            return read_number(Path(path), f"{where}.{key}", facts[key]["median"])

        return Pretraining(
            _points(name, content["scaling"], median),
            _steps(name, content["results"], median),
            _loader(name, content["loader"], median),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"{path}: not all that a pretraining benchmark has; run python -m benchmarks pretrain "
            "anew"
        ) from None


Median = Callable[[str, Mapping[str, Any], str], float]


def _points(name: str, scaling: Mapping[str, Any], median: Median) -> list[Point]:
    return [
        Point(
            f"{name}, {kind}, sequences/s over processes",
            int(processes),
            median(f"scaling.{kind}.{processes}", facts, "sequences_per_second"),
            "measured",
        )
        for kind, series in scaling.items()
        for processes, facts in series.items()
    ]


def _steps(name: str, results: Mapping[str, Any], median: Median) -> list[dict[str, Any]]:
    return [
        {
            "run": name,
            "forwards a step": facts["forwards"],
            "sequences/s": median(f"results.{side}", facts, "sequences_per_second"),
            "MFU": median(f"results.{side}", facts, "mfu"),
        }
        for side, facts in results.items()
    ]


def _loader(name: str, loader: Mapping[str, Any], median: Median) -> list[dict[str, Any]]:
    rates = {
        int(workers): median(f"loader.{workers}", facts, "sequences_per_second")
        for workers, facts in loader.items()
    }
    return [
        {"run": name, "workers": n, "sequences/s": rate, "added to none": rate / rates[0] - 1}
        for n, rate in sorted(rates.items())
    ]


def tables(found: Sequence[Pretraining]) -> list[Table]:
    if not found:
        return []
    styles = {"sequences/s": "{:,.1f}", "MFU": "{:.2f}", "forwards a step": "{:.1f}"}
    loader = {"workers": "{}", "sequences/s": "{:,.1f}", "added to none": "{:+.1%}"}
    return [
        Table("Pretraining steps, measured", frame([r for x in found for r in x.steps]), styles),
        Table("The loader alone, measured", frame([r for x in found for r in x.loader]), loader),
    ]
