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
from cluster.facts.prices import load_prices
from cluster.facts.rates import Rates
from detalbert.errors import UserError
from tests.conftest import ROOT
from tests.fakes.http import AnswerServer

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


def test_each_type_is_asked_for_where_its_price_is_from(monkeypatch):
    """p6-b300 is sold in us-west-2 alone; it was asked for in the region of the first type."""
    with history() as ec2, price_list("25.5") as pricing:
        ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge", "p6-b300.48xlarge", region="")
    bodies = [json.loads(request.body)["Filters"] for request in pricing.asked]
    fields = [{entry["Field"]: entry["Value"] for entry in body} for body in bodies]
    regions = {field["instanceType"]: field["regionCode"] for field in fields}
    assert regions == {"p5.48xlarge": "us-east-1", "p6-b300.48xlarge": "us-west-2"}


def product(price: str) -> str:
    """One entry of the price list; a second, free term as reservations have it."""
    paid = {"priceDimensions": {"a.b.c": {"unit": "Hrs", "pricePerUnit": {"USD": price}}}}
    free = {"priceDimensions": {"a.b.d": {"unit": "Hrs", "pricePerUnit": {"USD": "0.0000"}}}}
    return json.dumps({"product": {}, "terms": {"OnDemand": {"a.b": free, "a.e": paid}}})


def price_list(*prices: str) -> AnswerServer:
    body = {"FormatVersion": "aws_v1", "PriceList": [product(price) for price in prices]}
    return AnswerServer(lambda _: (200, body))


HISTORY = """<?xml version="1.0" encoding="UTF-8"?>
<DescribeSpotPriceHistoryResponse><requestId>1</requestId><spotPriceHistorySet>{}
</spotPriceHistorySet><nextToken></nextToken></DescribeSpotPriceHistoryResponse>"""


def moment(instance: str, zone: str, hour: int, price: float, region: str = "us-east-1") -> str:
    facts = {"instanceType": instance, "availabilityZone": f"{region}{zone}", "spotPrice": price}
    facts |= {"timestamp": f"2026-09-01T{hour:02}:00:00.000Z", "productDescription": "Linux/UNIX"}
    return f"<item>{''.join(f'<{key}>{fact}</{key}>' for key, fact in facts.items())}</item>"


def history(*moments: str) -> AnswerServer:
    return AnswerServer(lambda _: (200, HISTORY.format("".join(moments)).encode()))


def ec2_error(status: int, code: str) -> AnswerServer:
    body = f"""<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors>
<RequestID>1</RequestID></Response>"""
    return AnswerServer(lambda _: (status, body.encode()))


def ask(monkeypatch, ec2: str, pricing: str, *names: str, region="us-east-1", must=False):
    """Return all prices by type as AWS has them, and notes."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", ec2)
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", pricing)
    rates = Rates(region=region, live="must" if must else "try", today=TODAY)
    names = names or ("p3.16xlarge",)
    notes = rates.use([rates.kind(name) for name in names])
    return rates.table(), notes


def test_prices_come_from_the_spot_history_and_the_price_list(monkeypatch):
    zones = {"a": 9, "b": 7, "c": 8.5}.items()
    told = [moment("p5.48xlarge", zone, 1, price, "us-west-2") for zone, price in zones]
    with history(*told) as ec2, price_list("25.5000000000") as pricing:
        known, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge", region="us-west-2")
    price = known["p5.48xlarge"]
    assert notes == [] and price.spot_range() == (7, 8.5, 9) and price.on_demand == 25.5
    assert (price.source, price.date) == ("AWS, asked on that day", TODAY)
    (asked,) = pricing.asked
    assert asked.headers.get("X-Amz-Target") == "AWSPriceListService.GetProducts"
    wanted = {entry["Field"]: entry["Value"] for entry in json.loads(asked.body)["Filters"]}
    assert wanted["instanceType"] == "p5.48xlarge" and wanted["regionCode"] == "us-west-2"
    assert known["p5.4xlarge"] == load_prices(region="us-west-2")["p5.4xlarge"]  # not asked for
    with history() as ec2, price_list() as pricing:  # a region without the type
        known, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge", region="eu-south-1")
    assert known == {}
    (note,) = notes
    assert "p5.48xlarge has no entry" in note and "eu-south-1" in note and "us-east-1" in note


def test_local_zones_are_no_zones_of_the_region(monkeypatch):
    """Their machines cost up to twice as much, and a region's pool has none of them."""
    prices = {"a": 7, "b": 8, "-bos-1a": 15, "-wl1-bos-wlz-1": 16}.items()
    listed = [moment("p5.48xlarge", zone, 1, price) for zone, price in prices]
    with history(*listed) as ec2, price_list("25.5") as pricing:
        known, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge")
    assert notes == [] and known["p5.48xlarge"].spot_range() == (7, 7.5, 8)
    with history(moment("p5.48xlarge", "-bos-1a", 1, 15)) as ec2, price_list("25.5") as pricing:
        known, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge")
    assert "no entry in the spot price history" in notes[0]


@pytest.mark.parametrize(
    "status, code, asked", [(401, "AuthFailure", 1), (503, "RequestLimitExceeded", 3)]
)
def test_a_refusal_is_said_and_the_file_stands(monkeypatch, status, code, asked):
    with ec2_error(status, code) as ec2, price_list("25.5") as pricing:
        known, notes = ask(monkeypatch, ec2.url, pricing.url)
        assert len(ec2.asked) == asked and len(notes) == 1
        said = f"({code})"
        assert said in notes[0] and "; check the credentials and what they may ask" in notes[0]
        assert notes[0].startswith("--live: spot price history: ")
        assert notes[0].endswith("the file's prices stand")
        price = known["p3.16xlarge"]
        assert (price.spot, price.on_demand) == (pytest.approx(7.344), 25.5)
        assert price.source == f"{load_prices()['p3.16xlarge'].source} and AWS"
        pricing.asked.clear()
        with pytest.raises(UserError) as caught:  # plain --live ends there
            ask(monkeypatch, ec2.url, pricing.url, must=True)
        assert said in str(caught.value) and not pricing.asked


def test_wrong_credentials_at_the_price_list(monkeypatch):
    body = {"__type": "UnrecognizedClientException", "message": "The security token is invalid."}
    with history() as ec2, AnswerServer(lambda _: (400, body)) as pricing:
        known, notes = ask(monkeypatch, ec2.url, pricing.url, "p5.48xlarge", "g5.xlarge")
    assert len(pricing.asked) == 1  # the second type is not asked for with refused credentials
    assert any("UnrecognizedClient" in n for n in notes)
    assert known["p5.48xlarge"].on_demand == load_prices()["p5.48xlarge"].on_demand


def test_no_network_and_no_credentials(monkeypatch, capsys):
    known, notes = ask(monkeypatch, CLOSED, CLOSED)
    assert known == load_prices(region="us-east-1") and len(notes) == 2
    assert all("AWS cannot be reached" in note for note in notes)
    config = str(ROOT / "configs" / "modern8.yaml")
    assert plan.main([config, "--json", "--live"]) == 4
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "AWS cannot be reached" in err
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    known, notes = ask(monkeypatch, CLOSED, CLOSED)
    assert known == load_prices(region="us-east-1") and all(
        "Unable to locate credentials" in note for note in notes
    )


def test_past_prices_are_the_median_of_the_zones_in_steps(monkeypatch):
    since, until = (datetime.datetime(2026, 9, d, tzinfo=datetime.timezone.utc) for d in (1, 2))
    rows = [("a", 8, 7.5), ("b", 2, 9.0), ("c", 2, 10.0), ("a", 0, 8.0), ("b", 12, 7.0)]
    told = [moment("p4d.24xlarge", *row) for row in rows]
    with history(*told) as ec2:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", ec2.url)
        wanted = ["p4d.24xlarge", "g5.xlarge"]
        found, notes = past_prices(Live(must=False, today=TODAY), wanted, "us-east-1", since, until)
        asked = ec2.asked[0].body.decode()
    series = found["p4d.24xlarge"]
    assert [stamp.hour for stamp in series.index] == [0, 2, 8, 12] and series.index.tz is not None
    assert list(series) == [8.0, 9.0, 9.0, 7.5]
    assert notes == [] and "g5.xlarge" not in found
    assert "StartTime=2026-09-01" in asked and "EndTime=2026-09-02" in asked
