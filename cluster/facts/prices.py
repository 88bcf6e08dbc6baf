"""The price file: on-demand and spot prices of machines, and which types AWS has retired.

A file with a date was preferred to queries: plans and bills can be computed again, and need no
network. What it costs is age, which every report shows, with a note from STALE_DAYS on; --live asks
AWS (live_prices.py).
"""

import dataclasses
import datetime
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from cluster.facts.machines import SLOTS, gpu_of
from detalbert.errors import UnknownKey, UserError, nearest
from detalbert.settings.sections import Section, parse_section, section
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml

PRICE_FILE = Path(__file__).with_name("prices.yaml")
STALE_DAYS = 90
# AWS charges nothing for a Linux spot machine that it takes back in its first hour: "Billing for
# interrupted Spot Instances", https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/
FREE_HOUR = 1.0

NO_REGION = "not given"  # of a row that names none
COMMON = ("region", "date", "source")  # a price file may say these once for all types


@section
class Price(Section):
    """An instance type's entry in a price file: prices in dollars per hour."""

    slots: Annotated[int, Field(ge=0)]  # 0: a machine without a GPU
    on_demand: Annotated[float, Field(gt=0, le=100_000)]
    spot: Annotated[float, Field(gt=0)]
    date: datetime.date
    gpu: str = "not given"
    spot_low: float | None = Field(None, gt=0)  # the range seen; None where it is not known
    spot_high: float | None = Field(None, gt=0)
    teraflops: float | None = Field(None, gt=0)  # of one GPU, dense half precision
    region: str = NO_REGION
    retired: datetime.date | None = None  # since when AWS launches none
    source: str = "not given"
    instance: str = "not given"

    def hourly(self, spot: bool) -> float:
        return self.spot if spot else self.on_demand

    def spot_range(self) -> tuple[float, float, float]:
        """Return low, middle and high spot price; all are the same if no range is known."""
        seen = [self.spot]
        for price in (self.spot_low, self.spot_high):
            if price is not None:
                seen.append(price)
        return min(seen), self.spot, max(seen)

    def hourly_range(self, spot: bool) -> tuple[float, float, float]:
        """Return low, usual and high dollars per hour; on demand all are the same."""
        if spot:
            return self.spot_range()
        return self.on_demand, self.on_demand, self.on_demand

    def machines(self, slots: int) -> int:
        """Return the number of machines that have `slots`."""
        return -(-slots // max(self.slots, 1))


def find_price(prices: Mapping[str, Price], instance: str, key: str) -> Price:
    """Return the price of `instance`. Raises UserError for `key`, naming the nearest type, if
    unknown.
    """
    if instance not in prices:
        cure = nearest(instance, prices)
        if not cure.startswith("did you"):  # a list of all types would be too long
            cure = "the price file lists those that have one"
        raise UserError("no price for this instance", key=key, cure=cure)
    return prices[instance]


def parse_machine(flag: str, text: str, prices: Mapping[str, Price]) -> tuple[Price, bool]:
    """Return the price of INSTANCE, INSTANCE:spot or INSTANCE:on-demand, and whether it is on spot.

    Args:
        flag: that has the text, as `--run` or the begin of a value, `--price-pool POOL=`.

    Raises:
        UserError: naming the flag, for another text and an unknown type.
    """
    instance, _, market = text.partition(":")
    key = f"{flag}{text}" if flag.endswith("=") else f"{flag} {text}"
    # Without a market it is on demand, the dearer one.
    if market not in ("", "spot", "on-demand"):
        raise UserError(
            "expected INSTANCE, INSTANCE:spot or INSTANCE:on-demand",
            key=key,
        )
    return find_price(prices, instance, key=key), market == "spot"


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
            "no price file",
            key=str(path),
            cure="expected a mapping with the key instances",
        )
    for key in content:
        if key not in COMMON:
            raise UnknownKey(key, section=str(path), known=COMMON)
    prices = {}
    for instance, entry in entries.items():
        section = f"{path}: instances.{instance}"
        if not isinstance(entry, dict):
            raise UserError("expected keys such as on_demand", key=section)
        rows = _region_rows({**content, **entry})
        prices[instance] = [_price(section, instance, row) for row in rows]
    return prices


def prices_in(path: Path, region: str = "") -> Mapping[str, Price]:
    """Return the prices of `region`, by default each type's first; a type that has none is left
    out. A row without a region counts in all of them.
    """
    prices = dict[str, Price]()
    for instance, rows in price_rows(path).items():
        regions = (region, NO_REGION) if region else (rows[0].region,)
        for row in rows:
            if row.region in regions:
                prices[instance] = row
                break
    return prices


@functools.cache
def load_prices(path: Path = PRICE_FILE, region: str | None = None) -> Mapping[str, Price]:
    """Load a price file at the prices of `region`, by default each row's.

    Raises:
        UserError: if the file is wrong, naming the key, or has no price in `region`.
    """
    prices = prices_in(path, region or "")
    if region is not None and not prices:
        regions = set[str]()
        for rows in price_rows(path).values():
            regions.update(row.region for row in rows)
        raise UserError(
            f"no price there in {path}",
            key=f"--region {region}",
            cure=nearest(region, regions),
        )
    return prices


def _region_rows(entry: Config) -> list[Config]:
    """Return the rows of an entry by region: first that of its key `region`, if it lists it."""
    by_region = entry.pop("regions", None)
    usual_region = entry.get("region")
    if not isinstance(by_region, dict) or not by_region:
        return [entry]
    # The first row stands for the type where no region is named.
    rows = []
    for region in sorted(by_region, key=lambda name: (name != usual_region, name)):
        rows.append({**entry, "region": region, **(by_region[region] or {})})
    return rows


def _price(section: str, instance: str, row: Config) -> Price:
    """Return a row of an instance type. Raises UserError, naming the key, if it is wrong."""
    # Slots and GPU of a type that the package knows need not be in the file.
    slots = SLOTS.get(instance)
    gpu = gpu_of(instance)
    values: Config = {}
    if slots is not None:
        values["slots"] = slots
    if slots and gpu:
        values["gpu"] = f"{gpu.name} {gpu.gigabytes} GB"
    for key, value in row.items():
        if value is None:
            continue
        values[key] = value
        if key in ("date", "retired"):
            values[key] = _day(f"{section}.{key}", value)
    price = parse_section(Price, section, values)

    # A typing error in a price would go unnoticed in every bill: the prices must fit each other.
    highest = price.spot_high or 1.01 * price.on_demand
    if not (price.spot_low or 0) <= price.spot <= highest:
        raise UserError(
            f"{price.spot:g} is outside spot_low to spot_high, or above on_demand",
            key=f"{section}.spot",
            cure="fix one",
        )
    if slots and slots != price.slots:
        raise UserError(
            f"{price.slots}, but a {instance} has {slots}",
            key=f"{section}.slots",
            cure="fix it",
        )
    teraflops = price.teraflops or (gpu and float(gpu.teraflops))
    return dataclasses.replace(price, instance=instance, teraflops=teraflops)


def _day(key: str, text: object) -> datetime.date:
    """Return the day that `text` at `key` is. Raises UserError if it is none, or to come."""
    try:
        day = datetime.date.fromisoformat(str(text))
    except ValueError:
        raise UserError("expected a day without a time, as 2026-09-17", key=key) from None
    if day > datetime.date.today():
        raise UserError(f"{day} is in the future", key=key, cure="fix it")
    return day


def prices_head(prices: Sequence[Price], today: datetime.date) -> str:
    """Return regions and age of prices in a few words, for the head of a report."""
    if not prices:
        return "no prices"
    regions = sorted({price.region for price in prices} - {NO_REGION})
    place = " and ".join(regions) or "a region not given"
    days = sorted({price.date for price in prices})
    dates = f"{days[0]}"
    if len(days) > 1:
        dates += f" to {days[-1]}"
    age = max((today - days[0]).days, 0)  # in days, of the oldest price
    return f"prices of {place}, {dates}, {age} days old"


def price_notes(prices: Sequence[Price], today: datetime.date) -> list[str]:
    """Return notes on the prices that a report used: their sources, age, and retired types."""
    notes = []
    if prices:
        sources = sorted({f"{price.source} ({price.date})" for price in prices})
        notes.append(f"prices: {'; '.join(sources)}")
    for price in prices:
        if price.retired:
            notes.append(
                f"{price.instance}: RETIRED, AWS launches none since {price.retired}; its prices "
                "stand for past and published runs"
            )
    stale = [price for price in prices if (today - price.date).days > STALE_DAYS]
    if stale:
        types = ", ".join(sorted({price.instance for price in stale}))
        days = sorted({price.date for price in stale})
        age = f"{days[0]}" if len(days) == 1 else f"{days[0]} or later"
        notes.append(
            f"STALE prices, of {age}, more than {STALE_DAYS} days old: {types}; take --live, or "
            "look them up and date the file anew"
        )
    return notes
