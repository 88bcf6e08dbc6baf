"""Results of `python -m benchmarks pretrain`, for the page that has the published ones."""

from collections.abc import Mapping, Sequence
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

    def rate(where: str, facts: Mapping[str, Any], key: str = "sequences_per_second") -> float:
        return read_number(Path(path), f"{where}.{key}", facts[key]["median"])

    try:
        shape, device = content["settings"]["shape"], content["device"]["name"]
        name = label or f"pretraining {shape} on {device}"
        points = [
            Point(f"{name}, {kind}, sequences/s over processes", int(count),
                  rate(f"scaling.{kind}.{count}", facts), "measured")
            for kind, series in content["scaling"].items() for count, facts in series.items()
        ]  # fmt: skip
        steps = [
            {"run": name, "forwards a step": facts["forwards"],
             "sequences/s": rate(f"results.{side}", facts),
             "MFU": rate(f"results.{side}", facts, "mfu")}
            for side, facts in content["results"].items()
        ]  # fmt: skip
        rates = {int(n): rate(f"loader.{n}", facts) for n, facts in content["loader"].items()}
        loader = [
            {"run": name, "workers": n, "sequences/s": value, "added to none": value / rates[0] - 1}
            for n, value in sorted(rates.items())
        ]
        return Pretraining(points, steps, loader)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"{path}: not all that a pretraining benchmark has; run python -m benchmarks pretrain "
            "anew"
        ) from None


def tables(found: Sequence[Pretraining]) -> list[Table]:
    if not found:
        return []
    styles = {"sequences/s": "{:,.1f}", "MFU": "{:.2f}", "forwards a step": "{:.1f}"}
    loader = {"workers": "{}", "sequences/s": "{:,.1f}", "added to none": "{:+.1%}"}
    return [
        Table("Pretraining steps, measured", frame([r for x in found for r in x.steps]), styles),
        Table("The loader alone, measured", frame([r for x in found for r in x.loader]), loader),
    ]
