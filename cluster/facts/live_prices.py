"""`--live`: prices from AWS, current and of the past 90 days.

Needs ec2:DescribeSpotPriceHistory and pricing:GetProducts, and credentials as the AWS command line
finds them. The price list is served from us-east-1 for every region.
"""

import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from cluster.facts.prices import NO_REGION, Price
from detalbert.errors import Unavailable, UserError, first_line

SPOT = "spot price history"
LIST = "price list"


class Live(NamedTuple):
    """How AWS is asked: `must` raises UserError if it fails; else the file's prices stand."""

    must: bool
    today: datetime.date


def priced(
    live: Live, known: Mapping[str, Price], region: str
) -> tuple[dict[str, Price], list[str]]:
    """Return AWS's prices of the `known` types in a region, and notes.

    Where AWS lacks a figure the price that is known stands, and a note says so.
    """
    notes = list[str]()
    now = datetime.datetime.now(datetime.timezone.utc)
    spot = _ask(live, lambda: _zones([*known], region, StartTime=now), SPOT, notes)
    listed = _ask(live, lambda: _list_prices(known, region), LIST, notes)
    fresh = {}
    for instance, price in known.items():
        missing = [
            source
            for source, answer in ((SPOT, spot), (LIST, listed))
            if answer is not None and instance not in answer
        ]
        if missing:
            own = price.region in (region, NO_REGION)
            stands = f"({price.region}) stands" if own else f"is that of {price.region}"
            notes.append(
                f"--live: {instance} has no entry in the {' and the '.join(missing)} of {region}; "
                f"the region may not offer it; the file's price {stands}"
            )
        changes: dict[str, Any] = {}
        if spot and instance in spot:
            low, middle, high = spot[instance].iloc[-1].quantile([0, 0.5, 1])
            changes |= {"spot": middle, "spot_low": low, "spot_high": high}
        if listed and instance in listed:
            changes["on_demand"] = listed[instance]
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
    past = _ask(live, lambda: _zones(wanted, region, **span), SPOT, notes) or {}
    return {instance: zones.median(axis=1) for instance, zones in past.items()}, notes


def _ask(live: Live, call: Callable[[], Any], what: str, notes: list[str]) -> Any:
    """Return `call()`; if AWS fails, raise UserError, or note it and return None with =try."""
    import botocore.exceptions as errors

    kind: type[UserError] = UserError
    try:
        return call()
    except (errors.HTTPClientError, errors.EndpointConnectionError):
        kind = Unavailable
        reason = "AWS cannot be reached; check the network"
    except (errors.ClientError, errors.BotoCoreError, KeyError, TypeError, ValueError) as error:
        reason = f"{first_line(error)}; check the credentials and what they may ask"
    if live.must:
        raise kind(f"--live: {what}: {reason}; or take --live=try")
    notes.append(f"--live: {what}: {reason}; the file's prices stand")
    return None


def _client(service: str, region: str) -> Any:
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": 3}  # if it is throttled or dropped
    config = Config(retries=retries, connect_timeout=5, read_timeout=20)
    session = boto3.session.Session()  # boto3.client would keep the first credentials it saw
    return session.client(service, region_name=region, config=config)


def _zones(instances: Sequence[str], region: str, **span: Any) -> dict[str, pd.DataFrame]:
    """Return spot prices per type: dollars per hour, by time (UTC) and zone, as steps."""
    pages = (
        _client("ec2", region)
        .get_paginator("describe_spot_price_history")
        .paginate(InstanceTypes=list(instances), ProductDescriptions=["Linux/UNIX"], **span)
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
        by_zone = rows.pivot_table(
            values="SpotPrice", index="Timestamp", columns="AvailabilityZone", aggfunc="last"
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
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": wanted[key]} for key in wanted]
    answer = _client("pricing", "us-east-1").get_products(ServiceCode="AmazonEC2", Filters=filters)
    for text in answer["PriceList"]:
        for term in json.loads(text)["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0))
                if price > 0:
                    return price
    return None
