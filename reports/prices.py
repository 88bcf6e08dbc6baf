"""The price file: what a machine costs on demand and on spot, and whether AWS still has it."""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.machines import DETERMINED_SLOTS, EC2_GPUS, gpu_of
from cluster.schema import nearest
from detalbert.errors import UserError, first_line, unknown_key

PRICE_FILE = Path(__file__).parent.parent / "cluster" / "prices.yaml"
STALE_DAYS = 90
# AWS charges nothing for a Linux spot machine that it takes back in its first hour: "Billing for
# interrupted Spot Instances", https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/
FREE_HOUR = 1.0

_AMOUNTS = ("on_demand", "spot", "spot_discount", "spot_low", "spot_high", "teraflops")
_DAYS = ("date", "retired")
_COMMON = ("region", "date", "source")
_KEYS = (*_AMOUNTS, *_DAYS, *_COMMON, "slots", "gpu")


@dataclass(frozen=True)
class Price:
    """One instance type. Prices in dollars an hour; `origin` is "file" or "live" for each."""

    instance: str
    slots: int
    gpu: str
    on_demand: float
    spot: float
    region: str
    date: datetime.date
    source: str
    spot_low: float | None = None  # the range seen; None where it is not known
    spot_high: float | None = None
    retired: datetime.date | None = None  # since when AWS launches none
    teraflops: float | None = None  # of one GPU, dense half precision; None where not known
    on_demand_origin: str = "file"
    spot_origin: str = "file"

    def hourly(self, spot: bool) -> float:
        return self.spot if spot else self.on_demand

    def spot_range(self) -> tuple[float, float, float]:
        """Low, middle and high; all the same where no range is known."""
        seen = [p for p in (self.spot_low, self.spot, self.spot_high) if p is not None]
        return min(seen), self.spot, max(seen)

    def stale(self, today: datetime.date) -> bool:
        """Whether a figure that comes from the file is older than STALE_DAYS."""
        old = (today - self.date).days > STALE_DAYS
        return old and "file" in (self.on_demand_origin, self.spot_origin)

    def machines(self, slots: int) -> int:
        """Machines for `slots`. Raises UserError unless they fill whole machines."""
        if slots < 1 or slots % self.slots:
            below = max(slots // self.slots, 1) * self.slots
            raise UserError(
                f"--slots: {slots} slots do not fill machines of {self.slots} ({self.instance}); "
                f"Determined starts none of them; use {below} or {below + self.slots}"
            )
        return slots // self.slots


def find(prices: Mapping[str, Price], instance: str) -> Price:
    """Raises UserError, with the nearest known type, for one that has no price."""
    if instance not in prices:
        hint = nearest(instance, list(prices))
        raise UserError(f"{instance}: no price for this instance; {hint}")
    return prices[instance]


class _Strict(yaml.SafeLoader):
    """YAML in which every key stands once: of two, PyYAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for index, (key, _) in enumerate(node.value):
            if key.value in keys[:index]:
                line = key.start_mark.line + 1
                raise UserError(f"line {line}: the key {key.value} stands twice; keep one")
        return super().construct_mapping(node, deep)


def load_prices(path: Path = PRICE_FILE) -> dict[str, Price]:
    """Every instance type of a price file. Raises UserError naming the file and the key."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Strict)
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({first_line(error)}); give --prices") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, yaml.YAMLError, RecursionError):
        raise UserError(f"{path}: not YAML; fix it") from None
    if not isinstance(content, dict) or not isinstance(content.get("instances"), dict):
        raise UserError(f"{path}: no price file; expected a mapping with the key instances")
    entries = content.pop("instances")
    _known(str(path), content, _COMMON)
    prices = {}
    for instance, entry in entries.items():
        where = f"{path}: instances.{instance}"
        if not isinstance(entry, dict):
            raise UserError(f"{where}: expected keys such as on_demand")
        _known(where, entry, _KEYS)
        prices[str(instance)] = _price(where, str(instance), {**content, **entry})
    return prices


def _known(where: str, entry: Mapping[Any, Any], keys: Sequence[str]) -> None:
    for key in entry:
        if key not in keys:
            raise unknown_key(str(key), where, list(keys))


def _price(where: str, instance: str, entry: Mapping[str, Any]) -> Price:
    found: dict[str, Any] = {key: _amount(where, entry, key) for key in _AMOUNTS if key in entry}
    found |= {key: _day(where, entry, key) for key in _DAYS if key in entry}
    discount = found.pop("spot_discount", None)
    if discount is not None:
        if discount >= 1 or "spot" in found:
            raise UserError(f"{where}.spot_discount: give a fraction below 1, as 0.70, or spot")
        found["spot"] = found.get("on_demand", 0) * (1 - discount)
    for key, hint in (("on_demand", ""), ("spot", " (or spot_discount)"), ("date", "")):
        if key not in found:
            raise UserError(f"{where}.{key}: missing{hint}; set it")
    if found.get("spot_low", 0) > found.get("spot_high", math.inf):
        raise UserError(f"{where}.spot_low: {found['spot_low']:g} is above spot_high; fix one")
    slots, gpu = entry.get("slots"), gpu_of(instance)
    known = DETERMINED_SLOTS.get(instance) or EC2_GPUS.get(instance)
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise UserError(f"{where}.slots: expected a whole number of GPUs, got {slots!r}")
    if known not in (None, slots):
        raise UserError(f"{where}.slots: {slots}, but a {instance} has {known}; fix it")
    found |= {key: str(entry.get(key, "not given")) for key in ("gpu", "region", "source")}
    return Price(instance, slots, **{"teraflops": float(gpu.teraflops) if gpu else None, **found})


def _amount(where: str, entry: Mapping[str, Any], key: str) -> float:
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{where}.{key}: expected a number, got {value!r}")
    if value < 0 or (value == 0 and key != "spot_discount"):
        raise UserError(f"{where}.{key}: {value:g} must be greater than 0")
    return float(value)


def _day(where: str, entry: Mapping[str, Any], key: str) -> datetime.date:
    value = entry[key]
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise UserError(f"{where}.{key}: expected a day without a time, as 2026-09-17")
    if value > datetime.date.today():
        raise UserError(f"{where}.{key}: {value} is in the future; fix it")
    return value


def notes(prices: Sequence[Price], today: datetime.date) -> list[str]:
    """What a reader must know at once of the prices a report used: origin, age, retirement."""
    lines = []
    for what, name in (("on_demand", "on-demand"), ("spot", "spot")):
        for origin, words in (("file", "the price file, not AWS"), ("live", "AWS")):
            found = sorted({p.instance for p in prices if getattr(p, f"{what}_origin") == origin})
            these = ", ".join(found) if len(found) < 6 else f"{len(found)} types"
            lines += [f"{name} prices from {words}: {these}"] if found else []
    for price in prices:
        if price.retired:
            lines.append(
                f"{price.instance}: RETIRED, AWS launches none since {price.retired}; its prices "
                "stand for past and published runs"
            )
        if price.stale(today):
            lines.append(
                f"{price.instance}: STALE price of {price.date}, more than {STALE_DAYS} days old; "
                "take --live, or look it up and date the file anew"
            )
    return lines
