"""The price file: what a machine costs on demand and on spot, and how often spot takes it back."""

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.machines import DETERMINED_SLOTS, EC2_GPUS
from cluster.schema import nearest
from detalbert.errors import UserError, first_line, unknown_key

PRICE_FILE = Path(__file__).parent.parent / "cluster" / "prices.yaml"
STALE_DAYS = 90
HOURS_PER_MONTH = 730.5

# Reclaimed within a month, by AWS Spot Advisor's band: the upper edge; the open band is assumed.
BANDS = {"<5%": 0.05, "5-10%": 0.10, "10-15%": 0.15, "15-20%": 0.20, ">20%": 0.40}

_KEYS = ["slots", "gpu", "on_demand", "spot", "spot_discount", "interruption", "region", "date",
         "source", "sure"]  # fmt: skip


@dataclass(frozen=True)
class Price:
    """One instance type. Prices in dollars an hour; `origin` is "file" or "live" for each."""

    instance: str
    slots: int
    gpu: str
    on_demand: float
    spot: float
    interruption: str
    region: str
    date: datetime.date
    source: str
    on_demand_origin: str = "file"
    spot_origin: str = "file"

    def hourly(self, spot: bool) -> float:
        return self.spot if spot else self.on_demand

    def hazard(self) -> float:
        """Reclaims per machine-hour, from the Spot Advisor's band."""
        return hourly_hazard(BANDS[self.interruption])

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


def hourly_hazard(monthly: float) -> float:
    """Reclaims per machine-hour that leave a fraction `1 - monthly` untouched for a month.

    Reclaims are taken as memoryless: 10 % a month is -ln(1 - 0.10) / 730.5 = 1.44e-4 an hour.
    """
    if not 0 <= monthly < 1:
        raise UserError(f"monthly: {monthly:g} is not a fraction from 0 up to, not with, 1")
    return -math.log1p(-monthly) / HOURS_PER_MONTH


def monthly_fraction(hazard: float) -> float:
    """The inverse of `hourly_hazard`."""
    return -math.expm1(-hazard * HOURS_PER_MONTH)


def find(prices: Mapping[str, Price], instance: str) -> Price:
    """Raises UserError, with the nearest known type, for one that has no price."""
    if instance not in prices:
        hint = nearest(instance, list(prices))
        raise UserError(f"{instance}: no price for this instance; {hint}")
    return prices[instance]


def load_prices(path: Path = PRICE_FILE) -> dict[str, Price]:
    """Every instance type of a price file. Raises UserError naming the file and the key."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({first_line(error)}); give --prices") from None
    except (UnicodeDecodeError, yaml.YAMLError):
        raise UserError(f"{path}: not YAML; fix it") from None
    if not isinstance(content, dict) or not isinstance(content.get("instances"), dict):
        raise UserError(f"{path}: no price file; expected a mapping with the key instances")
    common = {key: content[key] for key in ("region", "date", "source") if key in content}
    prices = {}
    for instance, entry in content["instances"].items():
        where = f"{path}: instances.{instance}"
        if not isinstance(entry, dict):
            raise UserError(f"{where}: expected keys such as on_demand")
        for key in entry:
            if key not in _KEYS:
                raise unknown_key(str(key), where, _KEYS)
        prices[str(instance)] = _price(where, str(instance), {**common, **entry})
    return prices


def _price(where: str, instance: str, entry: dict[str, Any]) -> Price:
    on_demand = _amount(where, entry, "on_demand")
    if "spot_discount" in entry and "spot" not in entry:
        discount = _amount(where, entry, "spot_discount")
        if discount >= 1:
            raise UserError(f"{where}.spot_discount: {discount:g} is a fraction below 1, as 0.70")
        entry = {**entry, "spot": on_demand * (1 - discount)}
    band = str(entry.get("interruption"))
    if band not in BANDS:
        raise UserError(f"{where}.interruption: {band!r} is not one of {', '.join(BANDS)}")
    if not isinstance(entry.get("date"), datetime.date):
        raise UserError(f"{where}.date: expected the day of the price, as 2026-09-17")
    slots = entry.get("slots")
    known = DETERMINED_SLOTS.get(instance) or EC2_GPUS.get(instance)
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise UserError(f"{where}.slots: expected a whole number of GPUs, got {slots!r}")
    if known not in (None, slots):
        raise UserError(f"{where}.slots: {slots}, but a {instance} has {known}; fix it")
    texts = {key: str(entry.get(key, "not given")) for key in ("gpu", "region", "source")}
    return Price(
        instance=instance,
        slots=slots,
        on_demand=on_demand,
        spot=_amount(where, entry, "spot"),
        interruption=band,
        date=entry["date"],
        **texts,
    )


def _amount(where: str, entry: Mapping[str, Any], key: str) -> float:
    value = entry.get(key)
    if value is None:
        also = " (or spot_discount)" if key == "spot" else ""
        raise UserError(f"{where}.{key}: missing{also}; set it")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{where}.{key}: expected a number, got {value!r}")
    if value < 0 or (value == 0 and key != "spot_discount"):
        raise UserError(f"{where}.{key}: {value:g} must be greater than 0")
    return float(value)


def notes(prices: list[Price], today: datetime.date) -> list[str]:
    """What a reader must know at once of the prices a report used: origin and age."""
    lines = []
    for what, name in (("on_demand", "on-demand"), ("spot", "spot")):
        for origin, words in (("file", "the price file, not AWS"), ("live", "AWS")):
            found = {p.instance for p in prices if getattr(p, f"{what}_origin") == origin}
            if found:
                lines.append(f"{name} prices from {words}: {', '.join(sorted(found))}")
    for price in prices:
        if price.stale(today):
            lines.append(
                f"{price.instance}: STALE price of {price.date}, more than {STALE_DAYS} days old; "
                "take --live, or look it up and date the file anew"
            )
    return lines
