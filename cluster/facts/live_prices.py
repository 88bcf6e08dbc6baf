"""`--live`: prices from AWS, current and of the past 90 days.

Needs ec2:DescribeSpotPriceHistory and pricing:GetProducts, and credentials as the AWS command line
finds them. The price list is served from us-east-1 for every region.
"""

import argparse
import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd

from cluster.facts.prices import NO_REGION, Price
from detalbert.errors import Unavailable, UserError, first_line

SPOT, LIST = "spot price history", "price list"


def priced(
    args: argparse.Namespace, known: Mapping[str, Price], wanted: Sequence[str], region: str = ""
) -> tuple[Mapping[str, Price], list[str]]:
    """Return `known`, with AWS's figures for `wanted` if --live is set, and notes.

    `region` is by default that of --region, or of each price. Where AWS lacks a figure, or fails
    with `--live=try`, the file's price stands and a note says so. Raises UserError if AWS fails
    with plain --live.
    """
    fresh, notes = dict(known), list[str]()
    by_region = defaultdict[str, list[str]](list)
    for instance in wanted if args.live else ():
        by_region[region or args.region or known[instance].region].append(instance)
    for place, instances in by_region.items():
        _ask_region(args, fresh, instances, place, notes)
    return fresh, notes


def _ask_region(
    args: argparse.Namespace,
    fresh: dict[str, Price],
    wanted: Sequence[str],
    region: str,
    notes: list[str],
) -> None:
    """Put AWS's figures of one region into `fresh`, and what it lacks into `notes`."""
    now = pd.Timestamp.now("UTC").to_pydatetime()
    spot = _asked(args, lambda: _zones(wanted, region, StartTime=now), SPOT, notes)
    asked = ((i, _on_demand(i, region)) for i in wanted)  # only as it is read
    listed = _asked(args, lambda: {i: price for i, price in asked if price}, LIST, notes)
    for instance in wanted:
        price = fresh[instance]
        answers = ((SPOT, spot), (LIST, listed))
        missing = [what for what, found in answers if found is not None and instance not in found]
        if missing:
            own = price.region in (region, NO_REGION)
            notes.append(
                f"--live: {instance} has no entry in the {' and the '.join(missing)} of {region}; "
                f"the region may not offer it; the file's price "
                + (f"({price.region}) stands" if own else f"is that of {price.region}")
            )
        changes: dict[str, Any] = {"source": f"{price.source} and AWS"}
        if spot and instance in spot:
            low, middle, high = spot[instance].iloc[-1].quantile([0, 0.5, 1])
            changes |= {"spot": middle, "spot_low": low, "spot_high": high}
        if listed and instance in listed:
            changes["on_demand"] = listed[instance]
        if changes.keys() >= {"spot", "on_demand"}:
            changes |= {"region": region, "date": args.today, "source": "AWS, asked on that day"}
        if len(changes) > 1:
            fresh[instance] = dataclasses.replace(price, **changes)


def history(
    args: argparse.Namespace,
    wanted: Sequence[str],
    region: str,
    since: datetime,
    until: datetime,
) -> tuple[dict[str, pd.Series], list[str]]:
    """Return past spot prices (dollars per hour, median of the zones) and notes; only with --live.

    The price at any time (UTC) is that of the last change before it; AWS keeps 90 days. A type
    without data is left out.
    """
    notes: list[str] = []
    if not args.live or not wanted:
        return {}, notes
    ends = {"StartTime": since, "EndTime": until}
    found = _asked(args, lambda: _zones(wanted, region, **ends), SPOT, notes) or {}
    return {instance: zones.median(axis=1) for instance, zones in found.items()}, notes


def _asked(args: argparse.Namespace, call: Callable[[], Any], what: str, notes: list[str]) -> Any:
    """Return `call()`; if AWS fails, raise UserError, or note it and return None with =try."""
    import botocore.exceptions as errors

    kind: type[UserError] = UserError
    try:
        return call()
    except (errors.HTTPClientError, errors.EndpointConnectionError):
        kind, reason = Unavailable, "AWS cannot be reached; check the network"
    except (errors.ClientError, errors.BotoCoreError, KeyError, TypeError, ValueError) as error:
        reason = f"{first_line(error)}; check the credentials and what they may ask"
    if args.live != "try":
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
    asked = {"InstanceTypes": list(instances), "ProductDescriptions": ["Linux/UNIX"], **span}
    pages = _client("ec2", region).get_paginator("describe_spot_price_history").paginate(**asked)
    columns = ["InstanceType", "AvailabilityZone", "Timestamp", "SpotPrice"]
    table = pd.DataFrame([e for page in pages for e in page["SpotPriceHistory"]], columns=columns)
    table["Timestamp"] = pd.to_datetime(table["Timestamp"], utc=True)
    table["SpotPrice"] = table["SpotPrice"].astype(float)
    # Local and Wavelength Zones (us-east-1-bos-1a) are listed, too, and no pool of a region uses
    # them unless its subnet is there.
    table = table[table["AvailabilityZone"].str.fullmatch(re.escape(region) + "[a-z]")]
    shape = "SpotPrice", "Timestamp", "AvailabilityZone"
    return {
        str(instance): rows.pivot_table(*shape, aggfunc="last").ffill()
        for instance, rows in table.groupby("InstanceType")
    }


def _on_demand(instance: str, region: str) -> float | None:
    """Return dollars per hour for Linux, shared tenancy, no software; None if not listed."""
    wanted = {"instanceType": instance, "regionCode": region, "operatingSystem": "Linux"}
    wanted |= {"tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
    answer = _client("pricing", "us-east-1").get_products(
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()],
    )
    lists = [json.loads(text)["terms"].get("OnDemand", {}) for text in answer["PriceList"]]
    sizes = [d for found in lists for t in found.values() for d in t["priceDimensions"].values()]
    prices = [float(size["pricePerUnit"].get("USD", 0)) for size in sizes]
    return next((price for price in prices if price > 0), None)
