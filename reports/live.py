"""`--live`: prices from AWS, today's and those of the past 90 days.

Needs ec2:DescribeSpotPriceHistory and pricing:GetProducts, and credentials as the AWS command line
finds them. The price list is served from us-east-1 for every region.
"""

import argparse
import dataclasses
import datetime
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from detalbert.errors import UserError, first_line
from reports.prices import Price

PRICE_LIST_REGION = "us-east-1"
ATTEMPTS = 3  # of each request that AWS throttles or that the network drops
SPOT, LIST = "spot price history", "price list"
_REFUSED = {
    "AuthFailure", "UnrecognizedClientException", "InvalidClientTokenId", "SignatureDoesNotMatch",
    "InvalidSignatureException", "ExpiredToken", "ExpiredTokenException", "RequestExpired",
}  # fmt: skip
_FORBIDDEN = {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}
_THROTTLED = {"RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequests",
              "TooManyRequestsException"}  # fmt: skip


def priced(
    args: argparse.Namespace, known: dict[str, Price], wanted: Sequence[str]
) -> tuple[dict[str, Price], list[str]]:
    """`known`, refreshed as `--live` (a failure ends it), `--live=try` and `--region` say."""
    if not args.live:
        if args.region:
            raise UserError(f"--region {args.region}: only --live asks for a region; give both")
        return known, []
    if not wanted:
        return known, []
    region = args.region or known[wanted[0]].region
    return refresh(known, wanted, region, args.today, must=args.live != "try")


def refresh(
    known: Mapping[str, Price],
    wanted: Sequence[str],
    region: str,
    today: datetime.date,
    must: bool,
) -> tuple[dict[str, Price], list[str]]:
    """`known` with AWS's own figures for `wanted`, and what AWS does not have, a line each.

    Raises UserError when AWS does not answer and it `must`; otherwise the file's prices stand.
    """
    notes: list[str] = []
    spot = _asked(lambda: _spot(wanted, region), SPOT, must, notes) or {}
    listed: dict[str, float] = {}
    for instance in wanted:
        found = _asked(lambda name=instance: _on_demand(name, region), LIST, must, notes)
        listed |= {instance: found} if found else {}
        if any(f"{LIST}:" in note for note in notes):
            break
    fresh = dict(known)
    for instance in wanted:
        missing = [
            what
            for what, have in ((SPOT, spot), (LIST, listed))
            if instance not in have and not any(f"{what}:" in note for note in notes)
        ]
        if missing:
            notes.append(
                f"--live: {instance} has no entry in the {' and the '.join(missing)} of {region}; "
                f"the region may not offer it; the file's price ({known[instance].region}) stands"
            )
        changes: dict[str, Any] = {}
        if instance in spot:
            low, middle, high = spot[instance]
            changes = {"spot": middle, "spot_low": low, "spot_high": high, "spot_origin": "live"}
        if instance in listed:
            changes |= {"on_demand": listed[instance], "on_demand_origin": "live"}
        if instance in spot and instance in listed:
            changes |= {"region": region, "date": today, "source": "AWS, asked on that day"}
        fresh[instance] = dataclasses.replace(known[instance], **changes)
    return fresh, notes


def _asked(call: Callable[[], Any], what: str, must: bool, notes: list[str]) -> Any:
    """What `call` gives; where AWS fails, nothing and a note, or the UserError if it `must`."""
    import botocore.exceptions as errors

    try:
        return call()
    except errors.ClientError as error:
        reason = _reason(str(error.response.get("Error", {}).get("Code")))
    except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.ProfileNotFound):
        reason = "no AWS credentials found; run aws configure or set AWS_PROFILE"
    except (errors.HTTPClientError, errors.EndpointConnectionError):
        reason = "AWS cannot be reached; check the network"
    except (errors.BotoCoreError, KeyError, TypeError, ValueError) as error:
        reason = first_line(error)
    if must:
        raise UserError(f"--live: {what}: {reason}; or take --live=try") from None
    notes.append(f"--live: {what}: {reason}; the file's prices stand")
    return None


def _reason(code: str) -> str:
    if code in _REFUSED:
        return f"AWS refused the credentials ({code}); check AWS_PROFILE or the keys"
    if code in _FORBIDDEN:
        return f"these credentials may not ask ({code}); allow the two actions"
    if code in _THROTTLED:
        return f"AWS throttled the request ({code}) and did so again; try later"
    return f"AWS answered {code}"


def _client(service: str, region: str) -> Any:
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": ATTEMPTS}
    config = Config(retries=retries, connect_timeout=5, read_timeout=20)
    session = boto3.session.Session()  # boto3.client would keep the first credentials it saw
    return session.client(service, region_name=region, config=config)


def _entries(instances: Sequence[str], region: str, **span: Any) -> list[dict[str, Any]]:
    """AWS's spot price history: type, zone, time and price of every change in the span."""
    asked = {"InstanceTypes": list(instances), "ProductDescriptions": ["Linux/UNIX"], **span}
    pages = _client("ec2", region).get_paginator("describe_spot_price_history").paginate(**asked)
    return [entry for page in pages for entry in page["SpotPriceHistory"]]


def _spot(instances: Sequence[str], region: str) -> dict[str, tuple[float, float, float]]:
    """The current price of each type: the lowest, the median and the highest of the zones."""
    newest: dict[tuple[str, str], tuple[Any, float]] = {}
    now = datetime.datetime.now(datetime.timezone.utc)
    for entry in _entries(instances, region, StartTime=now):
        key = (entry["InstanceType"], entry["AvailabilityZone"])
        found = (entry["Timestamp"], float(entry["SpotPrice"]))
        newest[key] = max(newest.get(key, found), found)
    zones: dict[str, list[float]] = {}
    for (instance, _), (_, price) in newest.items():
        zones.setdefault(instance, []).append(price)
    return {i: (min(found), statistics.median(found), max(found)) for i, found in zones.items()}


def spot_history(
    instances: Sequence[str], region: str, since: datetime.datetime, until: datetime.datetime
) -> dict[str, pd.Series]:
    """Dollars an hour of each type: the median over the zones, a step at each time (UTC).

    The price of a moment is that of the last time before it. AWS keeps 90 days; a type of which
    it says nothing has an empty series. Raises UserError when AWS does not answer.
    """
    span = {"StartTime": since, "EndTime": until}
    entries = _asked(lambda: _entries(instances, region, **span), SPOT, True, [])
    found = {instance: pd.Series(dtype=float) for instance in instances}
    if not entries:
        return found
    table = pd.DataFrame(entries).astype({"SpotPrice": float})
    table["Timestamp"] = pd.to_datetime(table["Timestamp"], utc=True)
    for instance, rows in table.groupby("InstanceType"):
        zones = rows.pivot_table("SpotPrice", "Timestamp", "AvailabilityZone", aggfunc="last")
        found[str(instance)] = zones.sort_index().ffill().median(axis=1)
    return found


def _on_demand(instance: str, region: str) -> float | None:
    """Linux, shared tenancy, nothing pre-installed; None when the price list has no such entry."""
    wanted = {
        "instanceType": instance,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    answer = _client("pricing", PRICE_LIST_REGION).get_products(
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()],
    )
    for text in answer["PriceList"]:
        for term in json.loads(text)["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0))
                if price > 0:
                    return price
    return None
