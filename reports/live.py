"""`--live`: today's prices from AWS; where AWS does not answer, the file's, marked as such.

Needs ec2:DescribeSpotPriceHistory and pricing:GetProducts, and credentials as the AWS command line
finds them. The price list is served from us-east-1 for every region.
"""

import dataclasses
import datetime
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detalbert.errors import first_line
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


def refresh(
    prices: Mapping[str, Price], instances: Sequence[str], region: str, today: datetime.date
) -> tuple[dict[str, Price], list[str]]:
    """`prices` with AWS's own figures for `instances`, and what went wrong, a line each."""
    fresh, notes = dict(prices), []
    spot, failure = _asked(lambda: _spot(instances, region))
    spot = spot or {}
    notes += [f"--live: {SPOT}: {failure}; the file's spot prices stand"] if failure else []
    listed: dict[str, float] = {}
    for instance in instances:
        found, failure = _asked(lambda name=instance: _on_demand(name, region))
        listed |= {instance: found} if found else {}
        if failure:
            notes.append(f"--live: {LIST}: {failure}; the file's on-demand prices stand")
            break
    for instance in instances:
        missing = [
            what
            for what, known in ((SPOT, spot), (LIST, listed))
            if instance not in known and not any(what in note for note in notes)
        ]
        if missing:
            notes.append(
                f"--live: {instance} has no entry in the {' and the '.join(missing)} of {region}; "
                f"the region may not offer it; the file's price ({prices[instance].region}) stands"
            )
        changes: dict[str, Any] = {}
        if instance in spot:
            changes |= {"spot": spot[instance], "spot_origin": "live"}
        if instance in listed:
            changes |= {"on_demand": listed[instance], "on_demand_origin": "live"}
        if len(changes) == 4:
            changes |= {"region": region, "date": today, "source": "AWS, asked on that day"}
        fresh[instance] = dataclasses.replace(prices[instance], **changes)
    return fresh, list(dict.fromkeys(notes))


def _asked(call: Callable[[], Any]) -> tuple[Any, str]:
    """What `call` gives, or nothing and the reason in words."""
    import botocore.exceptions as errors

    try:
        return call(), ""
    except errors.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code"))
        if code in _REFUSED:
            return None, f"AWS refused the credentials ({code}); check AWS_PROFILE or the keys"
        if code in _FORBIDDEN:
            return None, f"these credentials may not ask ({code}); allow the two actions"
        if code in _THROTTLED:
            return None, f"AWS throttled the request ({code}) and did so again; try later"
        return None, f"AWS answered {code}"
    except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.ProfileNotFound):
        return None, "no AWS credentials found; run aws configure or set AWS_PROFILE"
    except (errors.HTTPClientError, errors.EndpointConnectionError):
        return None, "AWS cannot be reached; check the network"
    except errors.BotoCoreError as error:
        return None, first_line(error)


def _client(service: str, region: str) -> Any:
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": ATTEMPTS}
    config = Config(retries=retries, connect_timeout=5, read_timeout=20)
    session = boto3.session.Session()  # boto3.client would keep the first credentials it saw
    return session.client(service, region_name=region, config=config)


def _spot(instances: Sequence[str], region: str) -> dict[str, float]:
    """The current price of each type: the median over the region's zones."""
    pages = (
        _client("ec2", region)
        .get_paginator("describe_spot_price_history")
        .paginate(
            InstanceTypes=list(instances),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.datetime.now(datetime.timezone.utc),
        )
    )
    newest: dict[tuple[str, str], tuple[Any, float]] = {}
    for page in pages:
        for entry in page["SpotPriceHistory"]:
            key = (entry["InstanceType"], entry["AvailabilityZone"])
            found = (entry["Timestamp"], float(entry["SpotPrice"]))
            newest[key] = max(newest.get(key, found), found)
    zones: dict[str, list[float]] = {}
    for (instance, _), (_, price) in newest.items():
        zones.setdefault(instance, []).append(price)
    return {instance: statistics.median(found) for instance, found in zones.items()}


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
