"""Prices: the catalog that ships, one as SkyPilot publishes it, and what names a machine."""

import pandas as pd
import pytest

from cluster.machines import gpu_of
from cluster.prices import (
    PRICE_DAY,
    load_prices,
    parse_machine,
    parse_pool_price,
    price_of,
    price_source,
    slots_of,
)
from detalbert.errors import UserError

HEAD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,"
)
PUBLISHED = """AvailabilityZone,Arch
g9.xlarge,X1,2.0,8.0,32.0,"{'Gpus': [{'Name': 'X1'}]}",2.0,0.7,mars-1,m1-az1,x86_64
g9.xlarge,X1,2.0,8.0,32.0,"{'Gpus': [{'Name': 'X1'}]}",2.0,0.5,mars-1,m1-az2,x86_64
g9.xlarge,X1,2.0,8.0,32.0,"{'Gpus': [{'Name': 'X1'}]}",2.0,,mars-1,m1-az3,x86_64
g9.xlarge,X1,2.0,8.0,32.0,"{'Gpus': [{'Name': 'X1'}]}",3.0,,mars-2,m2-az1,x86_64
m9.large,,,2.0,8.0,,0.1,0.05,mars-1,m1-az1,arm64
m9.huge,,,2.0,8.0,,,,mars-1,m1-az1,arm64
"""


def test_the_catalog_as_it_is_published(tmp_path):
    path = tmp_path / "aws-2027-01-01.csv"
    path.write_text(HEAD + PUBLISHED)
    assert load_prices(path) == {
        "mars-1": {
            "g9.xlarge": _row(2, 2.0, 0.6),  # the median over the zones
            "m9.large": _row(0, 0.1, 0.05),
        },
        "mars-2": {"g9.xlarge": _row(2, 3.0, 3.0)},  # no spot machine: the price on demand
    }


def _row(slots, on_demand, spot):
    return {"slots": slots, "on demand": on_demand, "spot": spot}


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n1,2\n", HEAD + PUBLISHED.replace("2.0,0.7", "two,0.7"), "\x00" * 100],
)
def test_another_file_is_refused_in_one_line(text, tmp_path):
    path = tmp_path / "aws-2027-01-01.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"aws-2027-01-01.csv: not a catalog.*; copy SkyPilot's"):
        load_prices(path)


def test_the_catalog_that_ships():
    rows = [
        {"machine": machine, **prices}
        for machines in load_prices().values()
        for machine, prices in machines.items()
    ]
    prices = pd.DataFrame(rows)
    assert len(prices) > 400
    assert (prices["spot"] <= 1.01 * prices["on demand"]).all()  # a median of zones
    assert (prices["spot"] > 0).all()
    # A machine has as many GPUs everywhere, and the plan knows them.
    assert prices.groupby("machine")["slots"].nunique().eq(1).all()
    assert all(gpu_of(machine) for machine in prices[prices["slots"] > 0]["machine"])
    assert price_source() == "us-east-1, 24 May 2026"
    assert PRICE_DAY.year >= 2026


def test_prices_of_machines():
    assert price_of("p5.48xlarge") == 55.04
    assert price_of("p5.48xlarge", "us-west-2") == 55.04
    assert price_of("p4d.24xlarge", market="spot") < price_of("p4d.24xlarge")
    assert slots_of("g5.12xlarge") == 4
    assert slots_of("m5.large") == 0
    assert slots_of("x9.large") is None
    # Neither all names of the catalog nor a part of them.
    with pytest.raises(UserError, match=r"^zzzz: no price in us-east-1; none of the \d+ known n"):
        price_of("zzzz")
    with pytest.raises(UserError, match="did you mean 'p5.48xlarge'"):
        price_of("p5.48xlarg")


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("g5.xlarge", ("g5.xlarge", "on demand")),
        ("g5.xlarge:spot", ("g5.xlarge", "spot")),
    ],
)
def test_a_machine_by_its_name(text, machine):
    assert parse_machine(text, key="--run") == machine
    assert parse_pool_price(f"home={text}") == ("home", *machine)
