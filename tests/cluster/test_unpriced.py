"""Pools without a price of their own: hours, notes whose cure works, and --price-pool."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import check, plan
from cluster.configs.masterconf import cluster_of
from cluster.facts.prices import PRICE_FILE, load_prices
from tests.cluster.planted import experiment
from tests.cluster.test_plan import SINGLE, planned
from tests.conftest import ROOT

MODERN = str(ROOT / "configs" / "modern8.yaml")


def aws(name: str, instance: str, region: str, slots: int | None = None) -> dict[str, Any]:
    """Return a pool of at most two machines of AWS."""
    provider = {"type": "aws", "region": region, "instance_type": instance, "max_instances": 2}
    return {"pool_name": name, "provider": provider | ({"instance_slots": slots} if slots else {})}


def arguments(folder: Path, config: str, *pools: dict[str, Any]) -> list[str]:
    """Return the arguments of a plan on these pools, the first one as the config's."""
    path = folder / "master.yaml"
    path.write_text(json.dumps({"db": {}, "resource_pools": pools}))
    name = pools[0]["pool_name"]
    return [config, "--master", str(path), "--set", f"resources.resource_pool={name}"]


def pool_notes(answer: dict[str, Any]) -> list[str]:
    return [note for note in answer["notes"] if note.startswith("pool ")]


def test_a_pool_whose_type_has_no_price_in_its_region_has_hours_and_a_note(tmp_path, capsys):
    g6 = aws("g6", "g6.12xlarge", region="eu-west-1", slots=4)
    pools = [g6, aws("p5", "p5.48xlarge", region="eu-west-2", slots=8)]
    asked = arguments(tmp_path, SINGLE, *pools)

    answer = planned(capsys, *asked)
    assert answer["own"]["pool"] == "g6"
    assert answer["own"]["hours"][1] > 1
    assert answer["own"]["cost"] is None
    assert answer["recommended"]["pool"] == "p5"
    (note,) = pool_notes(answer)
    assert note == (
        "pool g6: hours without dollars, no price for g6.12xlarge in eu-west-1; take --live, or a "
        "price file that has it (--prices)"
    )

    # The cure works: a copy of the price file with a row for the region.
    prices = yaml.safe_load(PRICE_FILE.read_text())
    regions = prices["instances"]["g6.12xlarge"]["regions"]
    regions["eu-west-1"] = regions["eu-central-1"]
    copy = tmp_path / "prices.yaml"
    copy.write_text(yaml.safe_dump(prices))
    cured = planned(capsys, *asked, "--prices", str(copy))
    assert cured["own"]["cost"][1] == pytest.approx(5.75429 * cured["own"]["hours"][1])
    assert pool_notes(cured) == []


@pytest.mark.parametrize(
    ("instance", "region", "flags"),
    [
        ("p4d.24xlrge", "us-east-1", []),
        ("p4d.24xlarge", "us-gov-west-1", []),
        ("g6.12xlarge", "us-east-1", ["--region", "eu-west-2"]),
    ],
)
def test_a_pool_alone_without_a_price_is_planned(instance, region, flags, tmp_path, capsys):
    asked = arguments(tmp_path, MODERN, aws("x", instance, region=region, slots=4))
    answer = planned(capsys, *asked, *flags, "--set", "resources.slots_per_trial=4")

    assert answer["recommended"]["cost"] is None
    assert "no price" in answer["sentence"]
    assert "$" not in json.dumps([answer["sentence"], answer["bill"]])
    (note,) = pool_notes(answer)
    assert instance in note
    plan.main([*asked, *flags, "--html", str(tmp_path / "plan.html")])
    assert "Take " in (tmp_path / "plan.html").read_text(encoding="utf-8")


def test_a_flag_s_price_is_that_of_the_pool_s_region(tmp_path, capsys):
    """As in a bill; the plan took the first region of the price file."""
    asked = arguments(tmp_path, MODERN, aws("p4d", "p4d.24xlarge", region="ap-northeast-1"))
    flagged = planned(capsys, *asked, "--price-pool", "p4d=p4d.24xlarge")
    assert flagged["recommended"]["cases"][1]["$/h"] == 30.09784
    assert flagged["options"] == planned(capsys, *asked)["options"]


GCP = {
    "pool_name": "gcp",
    "provider": {
        "type": "gcp",
        "max_instances": 2,
        "instance_type": {
            "machine_type": "n1-standard-64",
            "gpu_type": "nvidia-tesla-v100",
            "gpu_num": 8,
            "preemptible": True,
        },
    },
}


def test_a_flag_s_price_changes_neither_gpu_nor_market(tmp_path, capsys):
    """Eight V100 in GCP, at the dollars of eight A100: the hours are those of V100, on spot."""
    asked = arguments(tmp_path, MODERN, GCP)
    unpriced = planned(capsys, *asked)["own"]
    answer = planned(capsys, *asked, "--price-pool", "gcp=p4d.24xlarge")
    own = answer["own"]

    assert own["instance"] == "n1-standard-64 with 8 V100"
    assert own["spot"]
    assert own["hours"] == unpriced["hours"]
    assert own["cases"][1]["$/h"] == load_prices()["p4d.24xlarge"].on_demand
    assert pool_notes(answer) == [
        "pool gcp has the dollars of 8 A100 40 GB (p4d.24xlarge), and the hours of 8 V100"
    ]


def test_one_s_own_machines_of_a_retired_type_are_planned(tmp_path, capsys):
    asked = arguments(tmp_path, MODERN, {"pool_name": "v100"})
    answer = planned(capsys, *asked, "--price-pool", "v100=p3.16xlarge")
    best = answer["recommended"]
    assert best["cost"][1] == pytest.approx(24.48 * best["hours"][1])

    named = arguments(tmp_path, MODERN, {"pool_name": "lab-p3-16xlarge"})
    check.main(named)
    assert "AWS launches no p3" not in capsys.readouterr().out


def test_no_more_machines_of_one_s_own_than_a_file_says(tmp_path, capsys):
    asked = arguments(tmp_path, MODERN, {"pool_name": "lab-p4d-24xlarge"})
    slots = {option["slots"] for option in planned(capsys, *asked)["options"]}
    assert slots == {8}
    wide = planned(capsys, *asked, "--set", "resources.slots_per_trial=32")["options"]
    assert {option["slots"] for option in wide} == {8, 16, 32}


def test_a_long_front_with_a_pool_that_has_no_price(tmp_path, capsys):
    """The front had the unpriced pool at $0, and its place was a logarithm of hours / 0."""
    asked = arguments(tmp_path, SINGLE, {"pool_name": "lab-g4dn-metal"})
    cluster = tmp_path / "master.yaml"
    content = json.loads(cluster.read_text())
    for instance, slots in (("p5.48xlarge", 8), ("p4d.24xlarge", 8), ("g6e.48xlarge", 8),
                            ("g6.48xlarge", 8), ("g5.48xlarge", 8), ("p5en.48xlarge", 8),
                            ("g6.12xlarge", 4), ("g6e.12xlarge", 4)):  # fmt: skip
        for spot in (True, False):
            pool = aws(f"{instance} {spot}", instance, region="us-east-1", slots=slots)
            pool["provider"]["spot"] = spot
            content["resource_pools"].append(pool)
    cluster.write_text(json.dumps(content))
    assert plan.main([*asked, "--html", str(tmp_path / "plan.html")]) == 0
    assert "of pool lab-g4dn-metal" in capsys.readouterr().out


def test_the_machines_of_an_aux_pool_are_not_one_s_own(tmp_path):
    cluster = cluster_of({"resource_pools": [aws("aux", "m5.large", region="us-east-1")]})
    line = check.describe_plan(experiment("single.yaml"), cluster, cluster.pools["aux"], tmp_path)
    assert line.endswith("pool aux: m5.large (on demand)")


@pytest.mark.parametrize("every", [True, False])
def test_types_without_a_price_in_a_region_are_named_if_all_types_are_tried(every, capsys):
    flags = ["--any"] if every else []
    notes = planned(capsys, SINGLE, "--region", "eu-north-1", *flags)["notes"]
    left_out = [note for note in notes if note.startswith("left out, as they have no price in ")]
    assert len(left_out) == every
