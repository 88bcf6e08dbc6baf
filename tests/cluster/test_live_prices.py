"""`--live` against AWS's own protocols on loopback, by boto3: prices, and every way to get none."""

import datetime
import functools
import json

import pytest
from botocore import loaders
from botocore.retries import standard

from cluster import plan
from cluster.facts.live_prices import Live
from cluster.facts.live_prices import history as past_prices
from cluster.facts.prices import Price, load_prices
from cluster.facts.rates import Rates
from detalbert.errors import UserError
from tests.conftest import ROOT
from tests.fakes.http import AnswerServer, Request

TODAY = datetime.date(2026, 10, 1)
CLOSED = "http://127.0.0.1:9"
one_loader = functools.cache(loaders.create_loader)  # reads a service's description once


@pytest.fixture(autouse=True)
def aws(monkeypatch, tmp_path):
    for name in ("PROFILE", "SESSION_TOKEN", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(loaders, "create_loader", one_loader)
    monkeypatch.setattr(standard.ExponentialBackoff, "delay_amount", lambda *_: 0)


def product(price: str) -> str:
    """Return an entry of the price list; a second, free term as reservations have it."""
    paid = {"priceDimensions": {"a.b.c": {"unit": "Hrs", "pricePerUnit": {"USD": price}}}}
    free = {"priceDimensions": {"a.b.d": {"unit": "Hrs", "pricePerUnit": {"USD": "0.0000"}}}}
    return json.dumps({"product": {}, "terms": {"OnDemand": {"a.b": free, "a.e": paid}}})


def price_list(*prices: str) -> AnswerServer:
    """Return a server of prices on demand."""
    body = {"FormatVersion": "aws_v1", "PriceList": [product(price) for price in prices]}
    return AnswerServer(lambda _: (200, body))


HISTORY = """<?xml version="1.0" encoding="UTF-8"?>
<DescribeSpotPriceHistoryResponse><requestId>1</requestId><spotPriceHistorySet>{}
</spotPriceHistorySet><nextToken></nextToken></DescribeSpotPriceHistoryResponse>"""
MOMENT = """<item>
<instanceType>{instance}</instanceType><availabilityZone>{region}{zone}</availabilityZone>
<spotPrice>{price}</spotPrice><timestamp>2026-09-01T{hour:02}:00:00.000Z</timestamp>
<productDescription>Linux/UNIX</productDescription></item>"""


def moment(instance: str, zone: str, hour: int, price: float, region: str = "us-east-1") -> str:
    """Return the price of a zone from an hour on."""
    return MOMENT.format(instance=instance, zone=zone, hour=hour, price=price, region=region)


def history(*moments: str) -> AnswerServer:
    """Return a server of past spot prices."""
    body = HISTORY.format("".join(moments)).encode()
    return AnswerServer(lambda _: (200, body))


def ec2_error(status: int, code: str) -> AnswerServer:
    body = f"""<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors>
<RequestID>1</RequestID></Response>"""
    return AnswerServer(lambda _: (status, body.encode()))


def ask(
    monkeypatch: pytest.MonkeyPatch,
    ec2: str,
    pricing: str,
    *names: str,
    region: str = "us-east-1",
    must: bool = False,
) -> tuple[dict[str, Price], list[str]]:
    """Return all prices by type as AWS has them, and notes.

    Args:
        ec2, pricing: addresses of the servers.
        names: instance types to ask for.
        must: whether AWS has to answer.
    """
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", ec2)
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", pricing)
    rates = Rates(region=region, live="must" if must else "try", today=TODAY)
    names = names or ("p3.16xlarge",)
    notes = rates.use([rates.kind(name) for name in names])
    return rates.table(), notes


def filters(request: Request) -> dict[str, str]:
    """Return the filters of a query to the price list."""
    return {entry["Field"]: entry["Value"] for entry in json.loads(request.body)["Filters"]}


def test_each_type_is_asked_for_where_its_price_is_from(monkeypatch):
    """p6-b300 is sold in us-west-2 alone; it was asked for in the region of the first type."""
    with history() as ec2, price_list("25.5") as pricing:
        ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge", "p6-b300.48xlarge", region="")

    queries = [filters(request) for request in pricing.asked]
    regions = {query["instanceType"]: query["regionCode"] for query in queries}
    assert regions == {"p5.48xlarge": "us-east-1", "p6-b300.48xlarge": "us-west-2"}


def test_prices_come_from_the_spot_history_and_the_price_list(monkeypatch):
    zones = {"a": 9, "b": 7, "c": 8.5}
    moments = [
        moment("p5.48xlarge", zone, hour=1, price=dollars, region="us-west-2")
        for zone, dollars in zones.items()
    ]
    with history(*moments) as ec2, price_list("25.5000000000") as pricing:
        prices, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge", region="us-west-2")

    price = prices["p5.48xlarge"]
    assert notes == []
    assert price.spot_range() == (7, 8.5, 9)
    assert price.on_demand == 25.5
    assert price.source == "AWS, asked on that day"
    assert price.date == TODAY
    assert prices["p5.4xlarge"] == load_prices(region="us-west-2")["p5.4xlarge"]  # not asked for

    (request,) = pricing.asked
    query = filters(request)
    assert request.headers.get("X-Amz-Target") == "AWSPriceListService.GetProducts"
    assert query["instanceType"] == "p5.48xlarge"
    assert query["regionCode"] == "us-west-2"


def test_a_region_without_a_type_has_no_price_and_a_note(monkeypatch):
    with history() as ec2, price_list() as pricing:
        prices, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge", region="eu-south-1")

    assert prices == {}
    (note,) = notes
    assert "p5.48xlarge has no entry" in note
    assert "eu-south-1" in note
    assert "us-east-1" in note


def test_local_zones_are_no_zones_of_the_region(monkeypatch):
    """Their machines cost up to twice as much, and a region's pool has none of them."""
    zones = {"a": 7, "b": 8, "-bos-1a": 15, "-wl1-bos-wlz-1": 16}
    moments = [moment("p5.48xlarge", zone, hour=1, price=zones[zone]) for zone in zones]
    with history(*moments) as ec2, price_list("25.5") as pricing:
        prices, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge")
    assert notes == []
    assert prices["p5.48xlarge"].spot_range() == (7, 7.5, 8)

    local_zone = moment("p5.48xlarge", "-bos-1a", hour=1, price=15)
    with history(local_zone) as ec2, price_list("25.5") as pricing:
        _, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge")
    assert "no entry in the spot price history" in notes[0]


@pytest.mark.parametrize(
    "status, code, tries", [(401, "AuthFailure", 1), (503, "RequestLimitExceeded", 3)]
)
def test_a_refusal_is_said_and_the_file_stands(monkeypatch, status, code, tries):
    with ec2_error(status, code) as ec2, price_list("25.5") as pricing:
        prices, notes = ask(monkeypatch, ec2.url, pricing.url)
        assert len(ec2.asked) == tries
        (note,) = notes
        assert note.startswith("--live: spot price history: ")
        assert f"({code})" in note
        assert "; check the credentials and what they may ask" in note
        assert note.endswith("the file's prices stand")
        price = prices["p3.16xlarge"]
        assert price.spot == pytest.approx(7.344)
        assert price.on_demand == 25.5
        assert price.source == f"{load_prices()['p3.16xlarge'].source} and AWS"

        # Plain --live ends there.
        pricing.asked.clear()
        with pytest.raises(UserError) as caught:
            ask(monkeypatch, ec2.url, pricing.url, must=True)
        assert f"({code})" in str(caught.value)
        assert not pricing.asked


def test_wrong_credentials_at_the_price_list(monkeypatch):
    body = {"__type": "UnrecognizedClientException", "message": "The security token is invalid."}
    with history() as ec2, AnswerServer(lambda _: (400, body)) as pricing:
        prices, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge", "g5.xlarge")

    assert len(pricing.asked) == 1  # the second type is not asked for with refused credentials
    assert any("UnrecognizedClient" in note for note in notes)
    assert prices["p5.48xlarge"].on_demand == load_prices()["p5.48xlarge"].on_demand


def test_no_network_and_no_credentials(monkeypatch, capsys):
    file_prices = load_prices(region="us-east-1")
    prices, notes = ask(monkeypatch, CLOSED, CLOSED)
    assert prices == file_prices
    assert len(notes) == 2
    assert all("AWS cannot be reached" in note for note in notes)

    config = str(ROOT / "configs" / "modern8.yaml")
    assert plan.main([config, "--json", "--live"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "AWS cannot be reached" in err

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    prices, notes = ask(monkeypatch, CLOSED, CLOSED)
    assert prices == file_prices
    assert all("Unable to locate credentials" in note for note in notes)


def test_past_prices_are_the_median_of_the_zones_in_steps(monkeypatch):
    moments = [
        moment("p4d.24xlarge", "a", hour=8, price=7.5),
        moment("p4d.24xlarge", "b", hour=2, price=9.0),
        moment("p4d.24xlarge", "c", hour=2, price=10.0),
        moment("p4d.24xlarge", "a", hour=0, price=8.0),
        moment("p4d.24xlarge", "b", hour=12, price=7.0),
    ]
    with history(*moments) as ec2:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", ec2.url)
        prices, notes = past_prices(
            Live(must=False, today=TODAY),
            wanted=["p4d.24xlarge", "g5.xlarge"],
            region="us-east-1",
            since=datetime.datetime(2026, 9, 1, tzinfo=datetime.timezone.utc),
            until=datetime.datetime(2026, 9, 2, tzinfo=datetime.timezone.utc),
        )
        query = ec2.asked[0].body.decode()

    series = prices["p4d.24xlarge"]
    assert [stamp.hour for stamp in series.index] == [0, 2, 8, 12]
    assert series.index.tz is not None
    assert list(series) == [8.0, 9.0, 9.0, 7.5]
    assert notes == []
    assert "g5.xlarge" not in prices
    assert "StartTime=2026-09-01" in query
    assert "EndTime=2026-09-02" in query
