"""The price file: on-demand and spot prices of machines, and which types AWS has retired."""

import dataclasses
import datetime
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.facts.machines import SLOTS, gpu_of
from detalbert.errors import UnknownKey, UserError, nearest
from detalbert.settings.schema import mapping
from detalbert.settings.sections import Section, parse_section, setting
from detalbert.settings.yaml_files import read_yaml

PRICE_FILE = Path(__file__).with_name("prices.yaml")
STALE_DAYS = 90
# AWS charges nothing for a Linux spot machine that it takes back in its first hour: "Billing for
# interrupted Spot Instances", https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/
FREE_HOUR = 1.0

NO_REGION = "not given"  # of a row that names none
COMMON = ("region", "date", "source")  # a price file may say these once for all types


@dataclass(frozen=True, kw_only=True)
class Price(Section):
    """An instance type's entry in a price file: prices in dollars per hour."""

    slots: int = setting(ge=0)  # 0: a machine without a GPU
    gpu: str = "not given"
    on_demand: float = setting(gt=0, le=100_000)
    spot: float = setting(gt=0)
    spot_low: float | None = setting(None, gt=0)  # the range seen; None where it is not known
    spot_high: float | None = setting(None, gt=0)
    teraflops: float | None = setting(None, gt=0)  # of one GPU, dense half precision
    region: str = NO_REGION
    date: datetime.date
    retired: datetime.date | None = None  # since when AWS launches none
    source: str = "not given"
    instance: str = ""

    def hourly(self, spot: bool) -> float:
        return self.spot if spot else self.on_demand

    def spot_range(self) -> tuple[float, float, float]:
        """Return low, middle and high spot price; all are the same if no range is known."""
        seen = [self.spot]
        for price in (self.spot_low, self.spot_high):
            if price is not None:
                seen.append(price)
        return min(seen), self.spot, max(seen)

    def machines(self, slots: int) -> int:
        """Return the number of machines that have `slots`."""
        return -(-slots // max(self.slots, 1))


def find_price(prices: Mapping[str, Price], instance: str) -> Price:
    """Return the price of `instance`. Raises UserError, naming the nearest type, if unknown."""
    if instance not in prices:
        hint = nearest(instance, prices)
        if not hint.startswith("did you"):
            hint = "the price file lists those that have one"
        raise UserError("no price for this instance", key=instance, cure=hint)
    return prices[instance]


def parse_machine(flag: str, text: str, prices: Mapping[str, Price]) -> tuple[Price, bool]:
    """Return the price of INSTANCE, INSTANCE:spot or INSTANCE:on-demand, and whether it is on spot.

    Raises UserError, naming the flag, for another text and an unknown type.
    """
    instance, _, market = text.partition(":")
    if market not in ("", "spot", "on-demand"):
        raise UserError(
            "expected INSTANCE, INSTANCE:spot or INSTANCE:on-demand", key=f"{flag} {text}"
        )
    return find_price(prices, instance), market == "spot"


def retired(instance: str, prices: Mapping[str, Price]) -> str | None:
    """Say that AWS launches no more machines of this type; None if it does, or is not known."""
    price = prices.get(instance)
    if price is None or price.retired is None:
        return None
    return f"AWS launches no {instance} since {price.retired:%-d %B %Y}; take another type"


@functools.cache
def price_rows(path: Path = PRICE_FILE) -> Mapping[str, Sequence[Price]]:
    """Load a price file: the rows of each type by region, that of the file's own region first.

    Raises UserError, naming the key, if the file is wrong.
    """
    content = read_yaml(path)
    entries = content.pop("instances", None)
    if not isinstance(entries, dict):
        raise UserError(
            "no price file", key=str(path), cure="expected a mapping with the key instances"
        )
    for key in content:
        if key not in COMMON:
            raise UnknownKey(key, str(path), COMMON)
    loaded = {}
    for name, entry in entries.items():
        where = f"{path}: instances.{name}"
        if not isinstance(entry, dict):
            raise UserError("expected keys such as on_demand", key=where)
        rows = _regions({**content, **entry})
        loaded[name] = [_price(where, name, row) for row in rows]
    return loaded


def prices_in(path: Path, region: str = "") -> Mapping[str, Price]:
    """Return the prices of `region`, by default each type's first; a type that has none is left
    out. A row without a region counts in all of them.
    """
    sold = dict[str, Price]()
    for name, rows in price_rows(path).items():
        wanted = (region, NO_REGION) if region else (rows[0].region,)
        prices = [row for row in rows if row.region in wanted]
        if prices:
            sold[name] = prices[0]
    return sold


@functools.cache
def load_prices(path: Path = PRICE_FILE, region: str | None = None) -> Mapping[str, Price]:
    """Load a price file at the prices of `region`, by default each row's.

    Raises:
        UserError: if the file is wrong, naming the key, or has no price in `region`.
    """
    rows = price_rows(path)
    prices = prices_in(path, region or "")
    if region is not None and not prices:
        regions = {price.region for sold in rows.values() for price in sold}
        raise UserError(
            f"no price there in {path}", key=f"--region {region}", cure=nearest(region, regions)
        )
    return prices


def _regions(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an entry by region: first that of its key `region`, if it lists it."""
    listed = mapping(entry.pop("regions", None))
    usual = entry.get("region")
    if not listed:
        return [entry]
    rows = []
    for name in sorted(listed, key=lambda name: (name != usual, name)):
        rows.append({**entry, "region": name, **mapping(listed[name])})
    return rows


def _price(where: str, instance: str, row: dict[str, Any]) -> Price:
    """Return a row of an instance type. Raises UserError, naming the key, if it is wrong."""
    slots = SLOTS.get(instance)
    gpu = gpu_of(instance)
    values: dict[str, Any] = {}
    if slots is not None:
        values["slots"] = slots
    if slots and gpu:
        values["gpu"] = f"{gpu.name} {gpu.gigabytes} GB"
    for key, value in row.items():
        if value is None:
            continue
        values[key] = value
        if key in ("date", "retired"):
            values[key] = _day(f"{where}.{key}", value)
    price = parse_section(Price, where, values)
    highest = price.spot_high or 1.01 * price.on_demand
    if not (price.spot_low or 0) <= price.spot <= highest:
        problem = f"{price.spot:g} is outside spot_low to spot_high, or above on_demand"
        raise UserError(problem, key=f"{where}.spot", cure="fix one")
    if slots and slots != price.slots:
        raise UserError(
            f"{price.slots}, but a {instance} has {slots}", key=f"{where}.slots", cure="fix it"
        )
    teraflops = price.teraflops or (gpu and float(gpu.teraflops))
    return dataclasses.replace(price, instance=instance, teraflops=teraflops)


def _day(where: str, text: object) -> datetime.date:
    try:
        day = datetime.date.fromisoformat(str(text))
    except ValueError:
        raise UserError("expected a day without a time, as 2026-09-17", key=where) from None
    if day > datetime.date.today():
        raise UserError(f"{day} is in the future", key=where, cure="fix it")
    return day


def prices_head(prices: Sequence[Price], today: datetime.date) -> str:
    """Return regions and age of prices in a few words, for the head of a report."""
    if not prices:
        return "no prices"
    regions = sorted({price.region for price in prices} - {NO_REGION})
    place = " and ".join(regions) or "a region not given"
    days = sorted({price.date for price in prices})
    dated = f"{days[0]}"
    if len(days) > 1:
        dated += f" to {days[-1]}"
    age = max((today - days[0]).days, 0)
    return f"prices of {place}, {dated}, {age} days old"


def price_notes(prices: Sequence[Price], today: datetime.date) -> list[str]:
    """Return notes on the prices that a report used: their sources, age, and retired types."""
    notes = []
    if prices:
        sources = sorted({f"{price.source} ({price.date})" for price in prices})
        notes.append(f"prices: {'; '.join(sources)}")
    for price in prices:
        if price.retired:
            problem = f"RETIRED, AWS launches none since {price.retired}"
            stands = "its prices stand for past and published runs"
            notes.append(f"{price.instance}: {problem}; {stands}")
    stale = [price for price in prices if (today - price.date).days > STALE_DAYS]
    if stale:
        types = ", ".join(sorted({price.instance for price in stale}))
        days = sorted({price.date for price in stale})
        age = f"{days[0]}" if len(days) == 1 else f"{days[0]} or later"
        cure = "take --live, or look them up and date the file anew"
        notes.append(f"STALE prices, of {age}, more than {STALE_DAYS} days old: {types}; {cure}")
    return notes
