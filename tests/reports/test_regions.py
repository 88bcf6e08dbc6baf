"""Prices of where machines ran, and machines that have no price."""

import pytest

from cluster.facts import live_prices
from cluster.facts.prices import PRICE_FILE, load_prices
from cluster.facts.rates import PricedType, Rates
from reports.__main__ import main
from tests.fakes.records import Cluster, FakeRecords, Held, Kept, Ran
from tests.reports.conftest import TODAY, UNTIL

POOLS = {
    "frankfurt": {"instanceType": "p4d.24xlarge", "region": "eu-central-1"},
    "oregon": {"instanceType": "g7.8xlarge", "region": "us-west-2"},
    "home": {"instanceType": "p4d.24xlarge"},
}
SINCE = ["--since", "2026-11-20T00:00:00Z"]


def ran(number: int, pool: str) -> Ran:
    trial = Kept([Held(f"{number}.t.0", "12:00", "14:00", [f"i-{number}"], pool)])
    return Ran([trial])


RUNS = {n: ran(n, pool) for n, pool in enumerate(POOLS, start=1)}
LIVES = [(f"i-{number}", "12:00", "14:00") for number in RUNS]
CLUSTER = Cluster(RUNS, LIVES, aws=POOLS)


def price_of(instance: str, region: str) -> float:
    return load_prices(PRICE_FILE, region)[instance].on_demand


def test_two_hours_cost_what_they_do_in_the_region_of_their_pool(bill):
    """They were $43.92 in every region."""
    bills = bill(CLUSTER, "--experiment", "1", "3")

    frankfurt, home = bills["tables"][0]["rows"]
    assert frankfurt["cost"] == pytest.approx(2 * price_of("p4d.24xlarge", "eu-central-1"))
    assert home["cost"] == pytest.approx(2 * price_of("p4d.24xlarge", "us-east-1"))
    assert frankfurt["cost"] > 1.2 * home["cost"]
    assert "prices of eu-central-1 and us-east-1, 2026-05-24, 181 days old" in bills["title"]
    prices = bills["tables"][-1]["rows"]
    assert {row["region"] for row in prices} == {"eu-central-1", "us-east-1"}


def test_a_region_that_is_given_counts_for_all_machines(bill, refused):
    bills = bill(CLUSTER, "--experiment", "1", "3", "--region", "ap-northeast-1")

    for row in bills["tables"][0]["rows"]:
        assert row["cost"] == pytest.approx(2 * price_of("p4d.24xlarge", "ap-northeast-1"))
    assert "prices of ap-northeast-1, " in bills["title"]

    line = refused("cost", "--published", "--region", "eu-central-9")
    assert "--region eu-central-9: no price there" in line
    assert "did you mean" in line


def test_a_machine_without_a_price_is_a_row_without_dollars(bill):
    """One g7.8xlarge ended the whole bill with status 2."""
    for by in ("user", "label", "month"):
        bills = bill(CLUSTER, *SINCE, "--by", by)
        totals, runs = bills["tables"][:2]
        frankfurt, oregon, home = runs["rows"]
        assert oregon["cost"] is None
        assert oregon["worked h"] == 2
        assert oregon["hardware"] == "1 x g7.8xlarge"
        assert frankfurt["cost"] > home["cost"] > 0

        (total,) = (row for row in totals["rows"] if row[by] == "all")
        assert total["cost"] == pytest.approx(frankfurt["cost"] + home["cost"])
        assert total["hours"] == pytest.approx(6)
        (note,) = (note for note in bills["notes"] if "no price; " in note)
        words = "g7.8xlarge in us-west-2: no price; 2.00 machine-hours are not in the dollars"
        assert note.startswith(words)
        assert bills["total"] is None  # a --budget would be compared with a part


def test_what_is_sold_in_other_regions_alone_is_a_row_without_dollars(bill, report):
    bahrain = {"instanceType": "p4d.24xlarge", "region": "me-south-1"}
    bills = bill(CLUSTER._replace(aws={**POOLS, "frankfurt": bahrain}), "--experiment", "1")
    (row,) = bills["tables"][0]["rows"]
    assert row["cost"] is None
    assert row["worked h"] == 2

    published = report("cost", "--published", "--region", "eu-central-1")
    assert [row["cost"] for row in published["tables"][0]["rows"]] == [None] * 3
    assert any("p3.2xlarge has no price there" in note for note in published["notes"])


def test_a_part_without_a_price_is_not_compared_and_has_no_budget(refused, report, capsys):
    pools = {**POOLS, "home": {"instanceType": "g7.8xlarge", "region": "us-west-2"}}
    held = [
        Held("1.t.0", "12:00", "13:00", ["i-1"], pool="frankfurt"),
        Held("1.t.1", "13:00", "14:00", ["i-2"], pool="home"),
    ]
    cluster = Cluster({1: Ran([Kept(held)])}, instances=LIVES[:2], aws=pools)

    with FakeRecords(cluster) as master:
        selection = ["--experiment", "1", "--master", master.url, *UNTIL]
        line = refused("cost", *selection, "--budget", "1000")
        status = main(["cost", *selection, "--budget", "20"])
        words_of_budget = capsys.readouterr().err
        (row,) = report("cost", *selection)["tables"][0]["rows"]
        (trial,) = report("runs", *selection)["tables"][0]["rows"]

    assert "not all of it has a price" in line
    # An hour on i-1: the part that has a price is over the budget by itself.
    dollars = price_of("p4d.24xlarge", "eu-central-1")
    words = f"${dollars:,.2f} is ${dollars - 20:,.2f} over the budget of $20.00"
    assert status == 3
    assert words_of_budget == f"reports: {words}, and not all of it has a price\n"

    # Two hours were held, one of them without a price: no rate is known.
    assert row["cost"] == pytest.approx(dollars)
    assert row["unpriced h"] == trial["unpriced h"] == pytest.approx(1)
    assert row["$/hour"] is None
    assert row["$/1,000 windows"] is None


def test_hours_without_a_price_stand_beside_the_dollars_that_lack_them(bill):
    """3.5 h stood beside the $70.23 of 2 h; 0.33 h of an unknown price were $0.00."""
    held = [Held("2.t.0", "12:00", "13:00", ["i-2"], pool="oregon")]  # then nobody's
    cluster = Cluster({1: RUNS[1], 2: Ran([Kept(held)])}, LIVES[:2], aws=POOLS)

    bills = bill(cluster, *SINCE, "--by", "user")

    totals, runs = bills["tables"][:2]
    hours = {row["user"]: (row["hours"], row["unpriced h"]) for row in totals["rows"]}
    assert hours["ada"] == pytest.approx((3, 1))
    assert hours["all"] == pytest.approx((4, 2))
    unpriced = [row["unpriced h"] for row in runs["rows"]]
    assert unpriced == pytest.approx([0, 1, 1])
    assert any("1.00 machine-hours (no price) on the same" in note for note in bills["notes"])


def test_aws_is_asked_in_the_region_of_each_pool(monkeypatch):
    queries = []

    def priced(_, prices, region):
        queries.append((region, [*prices]))
        return prices, ["asked"]

    monkeypatch.setattr(live_prices, "priced", priced)
    rates = Rates(live="must")
    kinds = [
        PricedType("p4d.24xlarge", "eu-central-1"),
        PricedType("p4d.24xlarge"),
        PricedType("g7.8xlarge"),
        PricedType("p6-b300.48xlarge", "us-east-1"),  # sold in us-west-2 alone
    ]

    notes = rates.use(kinds)

    assert sorted(queries) == [
        ("eu-central-1", ["p4d.24xlarge"]),
        ("us-east-1", ["p4d.24xlarge", "p6-b300.48xlarge"]),
    ]
    assert notes == ["asked"] * 2
    assert rates.at(kinds[3]) is None
    assert rates.at(kinds[0]).region == "eu-central-1"


def test_a_price_file_without_a_region_counts_in_all(tmp_path, bill):
    file = tmp_path / "prices.yaml"
    file.write_text("instances: {g7.8xlarge: {on_demand: 20, spot: 9, date: 2026-11-01}}")

    bills = bill(CLUSTER, "--experiment", "2", "--prices", str(file))

    assert bills["total"] == pytest.approx(40)
    assert "prices of a region not given, 2026-11-01, 20 days old" in bills["title"]


def test_the_head_says_no_more_than_is_known(capsys):
    assert main(["cost", "benchmarks/results/step-h100.json", *TODAY]) == 0
    assert capsys.readouterr().out.startswith("What the runs cost: no prices")
