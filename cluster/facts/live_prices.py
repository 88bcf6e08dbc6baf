"""`--live`: prices from AWS, current and of the past 90 days.

Needs ec2:DescribeSpotPriceHistory and pricing:GetProducts, and credentials as the AWS command line
finds them. The price list is served from us-east-1 for every region. AWS is asked only with --live:
a plan or a bill is the same tomorrow, and needs neither network nor login, unless its user prefers
prices of today.
"""

import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from cluster.facts.prices import NO_REGION, Price
from detalbert.errors import Unavailable, UserError, first_line

SPOT = "spot price history"
LIST = "price list"

Answer = TypeVar("Answer")


class Live(NamedTuple):
    """How AWS is asked: `must` raises UserError if it fails; else the file's prices stand."""

    must: bool
    today: datetime.date


def priced(
    live: Live, prices: Mapping[str, Price], region: str
) -> tuple[dict[str, Price], list[str]]:
    """Return AWS's prices of the types of `prices` in a region, and notes.

    Where AWS lacks a figure that of `prices` stands, and a note says so.
    """
    notes = list[str]()
    now = datetime.datetime.now(datetime.timezone.utc)
    spot = _ask(live, lambda: _zones([*prices], region, StartTime=now), source=SPOT, notes=notes)
    listed = _ask(live, lambda: _list_prices(prices, region), source=LIST, notes=notes)
    answers = {SPOT: spot, LIST: listed}
    fresh = {}
    for instance, price in prices.items():
        missing = []
        for source, answer in answers.items():
            if answer is not None and instance not in answer:
                missing.append(source)
        if missing:
            own = price.region in (region, NO_REGION)
            stands = f"({price.region}) stands" if own else f"is that of {price.region}"
            notes.append(
                f"--live: {instance} has no entry in the {' and the '.join(missing)} of {region}; "
                f"the region may not offer it; the file's price {stands}"
            )
        changes: dict[str, Any] = {}
        if spot and instance in spot:
            # The last row has the latest price of each zone.
            low, middle, high = spot[instance].iloc[-1].quantile([0, 0.5, 1])
            changes |= {"spot": middle, "spot_low": low, "spot_high": high}
        if listed and instance in listed:
            changes["on_demand"] = listed[instance]

        # A row is of AWS and of today only if both of its prices are.
        if {"spot", "on_demand"} <= set(changes):
            changes |= {"region": region, "date": live.today, "source": "AWS, asked on that day"}
        elif changes:
            changes["source"] = f"{price.source} and AWS"
        fresh[instance] = dataclasses.replace(price, **changes)
    return fresh, notes


def history(
    live: Live,
    wanted: Sequence[str],
    region: str,
    since: datetime.datetime,
    until: datetime.datetime,
) -> tuple[dict[str, pd.Series], list[str]]:
    """Return past spot prices (dollars per hour, median of the zones) by type, and notes.

    The price at any time (UTC) is that of the last change before it; AWS keeps 90 days. A type
    without data is left out.
    """
    notes = list[str]()
    span = {"StartTime": since, "EndTime": until}
    tables = _ask(live, lambda: _zones(wanted, region, **span), source=SPOT, notes=notes) or {}
    past = {instance: zones.median(axis=1) for instance, zones in tables.items()}
    return past, notes


def _ask(live: Live, query: Callable[[], Answer], source: str, notes: list[str]) -> Answer | None:
    """Return `query()`; if AWS fails, raise UserError, or note it and return None with =try."""
    import botocore.exceptions as errors

    kind: type[UserError] = UserError
    try:
        return query()
    except (errors.HTTPClientError, errors.EndpointConnectionError):
        kind = Unavailable
        problem = "AWS cannot be reached"
        cure = "check the network"
    except (errors.ClientError, errors.BotoCoreError, KeyError, TypeError, ValueError) as error:
        problem = first_line(error)
        cure = "check the credentials and what they may ask"
    if live.must:
        raise kind(problem, key=f"--live: {source}", cure=f"{cure}; or take --live=try")
    notes.append(f"--live: {source}: {problem}; {cure}; the file's prices stand")
    return None


def _client(service: str, region: str) -> Any:
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": 3}  # if it is throttled or dropped
    config = Config(retries=retries, connect_timeout=5, read_timeout=20)
    session = boto3.session.Session()  # boto3.client would keep the first credentials it saw
    return session.client(service, region_name=region, config=config)


def _zones(
    instances: Sequence[str], region: str, **span: datetime.datetime
) -> dict[str, pd.DataFrame]:
    """Return spot prices per type: dollars per hour, by time (UTC) and zone, as steps."""
    paginator = _client("ec2", region).get_paginator("describe_spot_price_history")
    pages = paginator.paginate(
        InstanceTypes=list(instances),
        ProductDescriptions=["Linux/UNIX"],
        **span,
    )
    entries = []
    for page in pages:
        entries += page["SpotPriceHistory"]
    columns = ["InstanceType", "AvailabilityZone", "Timestamp", "SpotPrice"]
    table = pd.DataFrame(entries, columns=columns)
    table["Timestamp"] = pd.to_datetime(table["Timestamp"], utc=True)
    table["SpotPrice"] = table["SpotPrice"].astype(float)
    # Local and Wavelength Zones (us-east-1-bos-1a) are listed, too, and no pool of a region uses
    # them unless its subnet is there.
    table = table[table["AvailabilityZone"].str.fullmatch(re.escape(region) + "[a-z]")]
    prices = {}
    for instance, rows in table.groupby("InstanceType"):
        # AWS lists changes; between two of them a zone's price is that of the last one.
        by_zone = rows.pivot_table(
            values="SpotPrice",
            index="Timestamp",
            columns="AvailabilityZone",
            aggfunc="last",
        )
        prices[str(instance)] = by_zone.ffill()
    return prices


def _list_prices(instances: Mapping[str, Price], region: str) -> dict[str, float]:
    """Return dollars per hour on demand, of the types that are listed in a region."""
    prices = {instance: _on_demand(instance, region) for instance in instances}
    return {instance: price for instance, price in prices.items() if price is not None}


def _on_demand(instance: str, region: str) -> float | None:
    """Return dollars per hour for Linux, shared tenancy, no software; None if not listed."""
    wanted = {
        "instanceType": instance,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = []
    for field, value in wanted.items():
        filters.append({"Type": "TERM_MATCH", "Field": field, "Value": value})
    client = _client("pricing", region="us-east-1")
    answer = client.get_products(ServiceCode="AmazonEC2", Filters=filters)

    # A product is a text of JSON: terms by id, each with dimensions by id, some of them free.
    for text in answer["PriceList"]:
        for term in json.loads(text)["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0))
                if price > 0:
                    return price
    return None
