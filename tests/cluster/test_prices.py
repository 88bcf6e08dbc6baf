"""The price file: what is refused, what is derived, what is said of its age."""

import dataclasses
import datetime
import pathlib

import pytest
import yaml

from cluster.facts import prices, update
from cluster.facts.machines import SLOTS
from detalbert.errors import UserError
from tests.conftest import ROOT

FAULTS = yaml.safe_load((ROOT / "tests" / "reports" / "faults.yaml").read_text())["prices"]
ENTRY = {
    "slots": 8,
    "gpu": "V100 16 GB",
    "on_demand": 24.48,
    "spot": 7.344,
    "region": "us-east-1",
    "source": "a test",
    "date": datetime.date(2026, 9, 17),
}
FAMILIES = "p3 p3dn g4dn g5 g6 g6e g7 g7e p4d p4de p5 p5en p6-b200 p6-b300"
# Machines that Determined knows and the catalog has no price of.
UNPRICED = "g7.8xlarge p2.xlarge p2.8xlarge p2.16xlarge p5e.48xlarge"


def written(tmp_path: pathlib.Path, **changes: object) -> pathlib.Path:
    """Write a price file of one machine; None takes a key out."""
    entry = {key: value for key, value in {**ENTRY, **changes}.items() if value is not None}
    path = tmp_path / "prices.yaml"
    path.write_text(yaml.safe_dump({"instances": {"p3.16xlarge": entry}}))
    return path


def test_the_shipped_file_covers_the_families_and_agrees_with_the_slots_of_machines():
    shipped = prices.load_prices()
    families = {instance.split(".")[0] for instance in shipped}
    assert set(FAMILIES.split()) <= families
    assert SLOTS.keys() - shipped.keys() == set(UNPRICED.split())
    elsewhere = [price for price in shipped.values() if price.region != "us-east-1"]
    assert len(elsewhere) == 1

    for instance, price in shipped.items():
        assert SLOTS[instance] == price.slots
        assert price.source
        assert bool(price.teraflops) == bool(price.slots)  # the others have no GPU
        low, middle, high = price.spot_range()
        assert price.spot_low is not None or "assumed" in price.source or low == price.on_demand
        assert 0 < low <= middle <= high <= price.on_demand
        assert bool(price.retired) == instance.startswith("p3")
    assert shipped["p3.16xlarge"].spot == pytest.approx(7.344)
    assert shipped["p3.16xlarge"].retired == datetime.date(2026, 5, 25)


@pytest.mark.parametrize("changes, words", FAULTS)
def test_a_wrong_price_is_one_line_that_names_the_key(tmp_path, changes, words):
    path = tmp_path / "prices.yaml"
    if isinstance(changes, str):
        path.write_text(changes)
    else:
        written(tmp_path, **changes)

    with pytest.raises(UserError) as caught:
        prices.load_prices(path)

    line = str(caught.value)
    assert words in line
    assert str(path) in line


def test_the_range_of_a_spot_price():
    price = prices.load_prices()["p5.48xlarge"]
    assert price.spot_range() == (10.2397, 21.1543, 55.04)
    without_range = dataclasses.replace(price, spot_low=None, spot_high=None)
    assert without_range.spot_range() == (21.1543, 21.1543, 21.1543)


def test_prices_of_another_region(tmp_path):
    east = prices.load_prices(region="us-east-2")
    west = prices.load_prices(region="us-west-2")
    price = east["p5.48xlarge"]
    assert price.region == "us-east-2"
    assert price.spot_range() == (11.2543, 11.5616, 11.9912)
    assert "p6-b300.48xlarge" in west
    assert "p6-b300.48xlarge" not in east
    assert "g7e.48xlarge" not in west
    assert prices.load_prices()["p6-b300.48xlarge"].region == "us-west-2"  # sold there alone
    with pytest.raises(UserError, match="--region us-east-3: .* did you mean 'us-east-2'"):
        prices.load_prices(region="us-east-3")

    own = written(tmp_path)
    assert prices.load_prices(own, "us-east-1") == prices.load_prices(own)
    with pytest.raises(UserError, match="--region us-east-2: no price there"):
        prices.load_prices(own, "us-east-2")


CATALOG = """InstanceType,Price,SpotPrice,Region,AvailabilityZone
m5.large,0.1,0.05,us-east-1,use1-az1
p3.2xlarge,3.06,0.3,us-east-1,use1-az1
p5.48xlarge,55,20.5,us-east-1,use1-az1
p5.48xlarge,55,10,us-east-1,use1-az2
p5.48xlarge,55,,us-east-1,use1-az3
p5.48xlarge,55,12,us-east-1,use1-az4
p5.48xlarge,60,,eu-west-2,euw2-az1
p5e.48xlarge,,18,us-east-2,use2-az1
"""


def test_the_price_file_is_made_from_the_catalog(tmp_path):
    """The rows above the mark stay; of the rest, every type that is known and has a price."""
    catalog = tmp_path / "vms.csv"
    catalog.write_text(CATALOG)
    file = tmp_path / "prices.yaml"
    file.write_text(prices.PRICE_FILE.read_text())
    arguments = [str(catalog), "--commit", "abc", "--day", "2026-11-01", "--file", str(file)]

    update.main(arguments)

    made = prices.load_prices(file)
    by_hand = yaml.safe_load(file.read_text().partition(update.MARK)[0])["instances"]
    assert made.keys() == {*by_hand, "m5.large", "p5.48xlarge"}
    assert made["p3.2xlarge"].retired
    assert made["p3.2xlarge"].spot == prices.load_prices()["p3.2xlarge"].spot
    price = made["p5.48xlarge"]
    assert price.spot_range() == (10, 12, 20.5)
    assert price.date == datetime.date(2026, 11, 1)
    assert price.source == "SkyPilot's catalog at abc"
    (london,) = prices.load_prices(file, "eu-west-2").values()
    assert london.on_demand == 60
    assert london.spot == 60

    # Once more it is the same file.
    text = file.read_text()
    update.main(arguments)
    assert file.read_text() == text


def stale_note(used: list[prices.Price], today: datetime.date) -> str:
    """Return the one note that says so."""
    (note,) = [note for note in prices.price_notes(used, today) if "STALE" in note]
    return note


def test_stale_prices_are_one_note(tmp_path):
    """A plan of all machines said it 25 times."""
    price = prices.load_prices(written(tmp_path))["p3.16xlarge"]
    later = dataclasses.replace(price, instance="g5.xlarge", date=datetime.date(2026, 9, 20))
    soon = datetime.date(2026, 10, 1)
    next_year = datetime.date(2027, 10, 1)

    assert not any("STALE" in note for note in prices.price_notes([price, later], soon))
    note = stale_note([price, later], next_year)
    assert "2026-09-17 or later" in note
    assert "g5.xlarge, p3.16xlarge" in note
    assert "STALE prices, of 2026-09-17, more" in stale_note([price], next_year)


def test_the_sources_of_all_prices_are_one_note(tmp_path):
    price = prices.load_prices(written(tmp_path))["p3.16xlarge"]
    price = dataclasses.replace(price, source="a list", date=datetime.date(2026, 9, 20))
    other = dataclasses.replace(price, source="AWS", date=datetime.date(2026, 9, 21))
    soon = datetime.date(2026, 10, 1)
    note = "prices: AWS (2026-09-21); a list (2026-09-20)"
    assert prices.price_notes([price, other, price], soon)[0] == note
    assert prices.price_notes([], soon) == []
