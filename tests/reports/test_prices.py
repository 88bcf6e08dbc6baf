"""The price file: what is refused, what is derived, what is said of its age."""

import datetime
import math
import pathlib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.machines import DETERMINED_SLOTS, EC2_GPUS
from detalbert.errors import UserError
from reports import prices

ENTRY: dict[str, Any] = {
    "slots": 8, "gpu": "V100 16 GB", "on_demand": 24.48, "spot_discount": 0.7,
    "interruption": "5-10%", "region": "us-east-1", "source": "a test",
    "date": datetime.date(2026, 9, 17),
}  # fmt: skip


def written(tmp_path: pathlib.Path, **changes: Any) -> pathlib.Path:
    entry = {key: value for key, value in {**ENTRY, **changes}.items() if value is not None}
    path = tmp_path / "prices.yaml"
    path.write_text(yaml.safe_dump({"instances": {"p3.16xlarge": entry}}))
    return path


def test_the_shipped_file_covers_the_families_and_agrees_with_the_slots_of_machines():
    known = prices.load_prices()
    families = {instance.split(".")[0] for instance in known}
    assert {"p3", "p3dn", "g4dn", "g5", "g6e", "p4d", "p4de", "p5"} <= families
    for instance, price in known.items():
        assert price.slots == (DETERMINED_SLOTS.get(instance) or EC2_GPUS[instance])
        assert 0 < price.spot < price.on_demand
    assert known["p3.16xlarge"].spot == pytest.approx(7.344)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"on_demand": -1}, "instances.p3.16xlarge.on_demand: -1 must be greater than 0"),
        ({"on_demand": None}, "instances.p3.16xlarge.on_demand: missing; set it"),
        ({"on_demand": "24"}, "expected a number, got '24'"),
        ({"on_demand": float("nan")}, "expected a number"),
        ({"spot_discount": None}, "spot: missing (or spot_discount)"),
        ({"spot_discount": 1.2}, "a fraction below 1"),
        ({"spot": -3}, "spot: -3 must be greater than 0"),
        ({"slots": 4}, "4, but a p3.16xlarge has 8"),
        ({"interruption": "7%"}, "'7%' is not one of"),
        ({"date": "last week"}, "expected the day"),
        ({"ondemand": 1}, "did you mean 'on_demand'"),
    ],
)
def test_a_wrong_price_is_one_line_that_names_the_key(tmp_path, changes, said):
    path = written(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        prices.load_prices(path)
    assert said in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", "instances: 3", "instances: {x: 1}"])
def test_a_file_that_is_no_price_file_is_refused(tmp_path, text):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"prices\.yaml"):
        prices.load_prices(path)


def test_ten_percent_a_month_as_a_hazard():
    assert prices.hourly_hazard(0.10) == pytest.approx(-math.log(0.9) / 730.5)


@given(st.floats(0, 0.999))
def test_a_band_survives_the_way_to_a_hazard_and_back(monthly):
    assert prices.monthly_fraction(prices.hourly_hazard(monthly)) == pytest.approx(monthly)


def test_all_machines_cannot_be_taken_in_a_month_for_sure():
    with pytest.raises(UserError, match="not a fraction"):
        prices.hourly_hazard(1.0)


def test_slots_that_fill_no_whole_machines():
    price = prices.load_prices()["p3.16xlarge"]
    assert price.machines(64) == 8
    with pytest.raises(UserError, match="60 slots do not fill machines of 8.*use 56 or 64"):
        price.machines(60)


def test_an_unknown_instance_brings_the_nearest():
    with pytest.raises(UserError, match=r"p3\.17xlarge.*did you mean 'p3\.16xlarge'"):
        prices.find(prices.load_prices(), "p3.17xlarge")


def test_a_stale_price_is_said(tmp_path):
    price = prices.load_prices(written(tmp_path))["p3.16xlarge"]
    fresh = prices.notes([price], datetime.date(2026, 10, 1))
    stale = prices.notes([price], datetime.date(2027, 10, 1))
    assert not any("STALE" in line for line in fresh)
    assert any("STALE price of 2026-09-17" in line for line in stale)
