"""`--live` against AWS's own protocols on loopback: prices, and every way to get none.

moto serves the EC2 spot price history; it has no price list, so a small server answers
`GetProducts` in AWS's JSON protocol, and the error bodies of both services.
"""

import contextlib
import datetime
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from reports.__main__ import main
from reports.live import refresh
from reports.prices import load_prices

TODAY = datetime.date(2026, 10, 1)


@pytest.fixture(autouse=True)
def credentials(monkeypatch, tmp_path):
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def product(price: str) -> str:
    """One entry of the price list; a second, free term as reservations have it."""
    paid = {"priceDimensions": {"a.b.c": {"unit": "Hrs", "pricePerUnit": {"USD": price}}}}
    free = {"priceDimensions": {"a.b.d": {"unit": "Hrs", "pricePerUnit": {"USD": "0.0000"}}}}
    return json.dumps({"product": {}, "terms": {"OnDemand": {"a.b": free, "a.e": paid}}})


@contextlib.contextmanager
def aws(status: int, body: str, kind: str) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives every request the same answer; yields its URL and what it was asked."""
    asked: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.headers.get("X-Amz-Target"), text.decode()))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


JSON = "application/x-amz-json-1.1"
XML = "text/xml;charset=UTF-8"


def price_list(*prices: str) -> Any:
    body = {"FormatVersion": "aws_v1", "PriceList": [product(price) for price in prices]}
    return aws(200, json.dumps(body), JSON)


def ec2_error(status: int, code: str) -> Any:
    body = f"""<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors>
<RequestID>1</RequestID></Response>"""
    return aws(status, body, XML)


def ask(monkeypatch, ec2: str, pricing: str, region: str = "us-east-1", *names: str):
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", ec2)
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", pricing)
    return refresh(load_prices(), list(names or ["p3.16xlarge"]), region, TODAY)


def test_prices_come_from_the_spot_history_and_the_price_list(monkeypatch, moto):
    with price_list("25.5000000000") as (pricing, asked):
        known, notes = ask(monkeypatch, moto, pricing, "us-west-2", "p5.48xlarge")
    price = known["p5.48xlarge"]
    assert notes == [] and price.spot == 0.00001 and price.on_demand == 25.5  # moto's, ours
    assert (price.spot_origin, price.on_demand_origin, price.date) == ("live", "live", TODAY)
    ((target, text),) = asked
    assert target == "AWSPriceListService.GetProducts"
    wanted = {entry["Field"]: entry["Value"] for entry in json.loads(text)["Filters"]}
    assert wanted["instanceType"] == "p5.48xlarge" and wanted["regionCode"] == "us-west-2"
    assert known["g5.xlarge"].spot_origin == "file"  # not asked for


def test_a_region_without_the_type(monkeypatch, moto):
    with price_list() as (pricing, _):
        known, notes = ask(monkeypatch, moto, pricing, "eu-south-1", "p5.48xlarge")
    assert known == load_prices()
    (note,) = notes
    assert "p5.48xlarge has no entry" in note and "eu-south-1" in note and "us-east-1" in note


@pytest.mark.parametrize(
    "status, code, said",
    [
        (401, "AuthFailure", "AWS refused the credentials (AuthFailure)"),
        (403, "UnauthorizedOperation", "may not ask (UnauthorizedOperation)"),
        (400, "InvalidParameterValue", "AWS answered InvalidParameterValue"),
    ],
)
def test_a_refusal_is_said_and_the_file_stands(monkeypatch, status, code, said):
    with ec2_error(status, code) as (ec2, asked), price_list("25.5") as (pricing, _):
        known, notes = ask(monkeypatch, ec2, pricing)
    price = known["p3.16xlarge"]
    assert len(asked) == 1 and len(notes) == 1 and said in notes[0]
    assert "the file's spot prices stand" in notes[0]
    assert (price.spot, price.spot_origin) == (pytest.approx(7.344), "file")
    assert (price.on_demand, price.on_demand_origin) == (25.5, "live")


def test_wrong_credentials_at_the_price_list(monkeypatch, moto):
    body = {"__type": "UnrecognizedClientException", "message": "The security token is invalid."}
    with aws(400, json.dumps(body), JSON) as (pricing, asked):
        known, notes = ask(monkeypatch, moto, pricing, "us-east-1", "p5.48xlarge", "g5.xlarge")
    assert len(asked) == 1  # the second type is not asked for with refused credentials
    assert any("AWS refused the credentials (UnrecognizedClientException)" in n for n in notes)
    assert known["p5.48xlarge"].on_demand_origin == "file"


def test_throttling_is_tried_again_and_then_said(monkeypatch, moto):
    with ec2_error(503, "RequestLimitExceeded") as (ec2, asked), price_list("25.5") as (url, _):
        known, notes = ask(monkeypatch, ec2, url)
    assert len(asked) == 3 and "AWS throttled the request" in notes[0]
    assert known["p3.16xlarge"].spot_origin == "file"


def test_no_network_and_no_credentials(monkeypatch):
    closed = "http://127.0.0.1:9"
    known, notes = ask(monkeypatch, closed, closed)
    assert known == load_prices() and len(notes) == 2
    assert all("AWS cannot be reached" in note for note in notes)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    known, notes = ask(monkeypatch, closed, closed)
    assert known == load_prices() and all("no AWS credentials found" in note for note in notes)


def test_the_report_marks_what_came_from_where(monkeypatch, capsys, moto):
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", moto)
    with price_list("25.5") as (pricing, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", pricing)
        assert main(["cost", "--published", "--live", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    prices = {row["instance"]: row for row in report["tables"][-1]["rows"]}
    assert prices["p3.16xlarge"]["from"] == "live" and prices["p3.16xlarge"]["on demand"] == 25.5
    assert prices["p3.16xlarge"]["spot from"] == "file"  # moto's us-east-1 offers none any more
    assert any("p3.16xlarge has no entry in the spot price history" in n for n in report["notes"])
    assert "on-demand prices from AWS: p3.16xlarge, p3.2xlarge" in report["notes"]
    assert "spot prices from the price file, not AWS: p3.16xlarge, p3.2xlarge" in report["notes"]
