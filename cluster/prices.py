"""Prices of AWS's machines: SkyPilot's catalog.

`cluster/data/aws-DAY.csv` has the columns and rows that are used here of catalogs/v8/aws/vms.csv
(github.com/skypilot-org/skypilot-catalog), the spot price being the median over a region's zones. A
newer catalog takes its place as it is: copy it to cluster/data/aws-DAY.csv, with the day that it is
of; the latest day counts. A file was preferred to queries: what was planned or billed can be
computed again, without a network. The price is its age, which every report shows.
"""

import csv
import datetime
import functools
import statistics
from collections import defaultdict
from pathlib import Path

from cluster import DATA
from detalbert.errors import UserError, nearest

PRICE_FILE = max(DATA.glob("aws-*.csv"))
PRICE_DAY = datetime.date.fromisoformat(PRICE_FILE.stem.removeprefix("aws-"))
# Where no region is named.
USUAL_REGION = "us-east-1"
MARKETS = ("on demand", "spot")


# Of a machine: "slots", which are its GPUs, and dollars per hour "on demand" and on "spot".
Prices = dict[str, float]


@functools.cache
def load_prices(path: Path = PRICE_FILE) -> dict[str, dict[str, Prices]]:
    """Load the prices of Linux machines.

    Returns:
        Prices by region and machine. Where AWS offers no spot machine, that price is the one on
        demand.

    Raises:
        UserError: if the file is no catalog.
    """
    by_region: dict[str, dict[str, Prices]] = defaultdict(dict)
    try:
        # A row per zone, which has a spot price of its own.
        zones = defaultdict(list)
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if float(row["Price"] or 0) > 0:
                    zones[row["Region"], row["InstanceType"]].append(row)
        for (region, machine), rows in zones.items():
            on_demand = float(rows[0]["Price"])
            spot = [float(row["SpotPrice"]) for row in rows if row["SpotPrice"]]
            by_region[region][machine] = {
                "slots": float(rows[0]["AcceleratorCount"] or 0),
                "on demand": on_demand,
                "spot": statistics.median(spot or [on_demand]),
            }
    except (KeyError, TypeError, ValueError, csv.Error):
        by_region.clear()
    if not by_region:
        raise UserError(
            "not a catalog of machines",
            key=str(path),
            cure="copy SkyPilot's catalogs/v8/aws/vms.csv there",
        )
    return by_region


def prices_in(region: str) -> dict[str, Prices]:
    """Return the prices of a region by machine; of USUAL_REGION if it is empty.

    Raises:
        UserError: for a region that the catalog lacks.
    """
    prices = load_prices()
    region = region or USUAL_REGION
    if region not in prices:
        raise UserError("no such region", key=region, cure=nearest(region, prices))
    return prices[region]


def price_of(machine: str, region: str = "", market: str = "on demand") -> float:
    """Return the dollars per hour of a machine.

    Args:
        machine: instance type.
        region: of AWS; empty: USUAL_REGION.
        market: one of MARKETS.

    Raises:
        UserError: if the catalog has no such machine in the region.
    """
    prices = prices_in(region)
    if machine not in prices:
        problem = f"no price in {region or USUAL_REGION}"
        raise UserError(problem, key=machine, cure=nearest(machine, prices))
    return prices[machine][market]


def slots_of(machine: str) -> int | None:
    """Return the GPUs of a machine; 0 if it has none, None if the catalog lacks it."""
    for machines in load_prices().values():
        if machine in machines:
            return int(machines[machine]["slots"])
    return None


def parse_machine(text: str, key: str, region: str = "") -> tuple[str, str]:
    """Return machine and market of `INSTANCE` or `INSTANCE:spot`.

    Args:
        text: to parse; without a market it is on demand, the dearer one.
        key: that names the machine, for the error.
        region: of AWS, where it must have a price; empty: USUAL_REGION.

    Raises:
        UserError: for another text, or a machine without a price.
    """
    machine, _, market = text.partition(":")
    market = market or "on demand"
    if market not in MARKETS:
        raise UserError(
            f"unknown market {market!r}",
            key=key,
            cure="expected INSTANCE or INSTANCE:spot",
        )
    try:
        price_of(machine, region, market)
    except UserError as error:
        raise error.under(f"{key}: {error.key}") from None
    return machine, market


def parse_pool_price(text: str, region: str = "") -> tuple[str, str, str]:
    """Return pool, machine and market of `--price-pool POOL=INSTANCE[:spot]`.

    Raises:
        UserError: as `parse_machine` does.
    """
    pool, equals, machine = text.partition("=")
    flag = f"--price-pool {text}"
    if not (pool and equals):
        raise UserError("names no machine", key=flag, cure="expected POOL=INSTANCE[:spot]")
    return pool, *parse_machine(machine, key=flag, region=region)


def price_source(region: str = "") -> str:
    """Return region and day of prices in words, "us-east-1, 24 May 2026"."""
    return f"{region or USUAL_REGION}, {PRICE_DAY:%-d %B %Y}"
