"""`cluster.plan`: what is planned, what it recommends, and that the checker lets it pass."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import check, plan
from cluster.check import check_one
from cluster.configs.masterconf import cluster_of
from cluster.facts.prices import load_prices
from cluster.facts.rates import Rates
from cluster.planning.options import Request, plan_own
from data import load_split, load_tokenizer, open_split
from detalbert.settings.hparams import parse_data_config, parse_hparams
from detalbert.settings.yaml_files import read_yaml
from tests.cluster.planted import experiment, master
from tests.cluster.test_check import paths
from tests.conftest import ROOT, TINY

FAULTS = yaml.safe_load(Path(__file__).with_name("plan_faults.yaml").read_text())
SINGLE = str(ROOT / "configs" / "single.yaml")
DAY = ["--today", "2026-10-01"]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    """Return the plan that is printed as JSON, with this exit status."""
    code = plan.main([*arguments, *DAY, "--json"])
    out, err = capsys.readouterr()
    assert code == status, err
    return json.loads(out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which a plan is refused."""
    assert plan.main([*arguments]) == 2, arguments
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cluster.plan: "), err
    assert err.count("\n") == 1, err
    assert len(err) < 500, err
    return err


def test_the_bill_has_the_ends_of_the_range_that_the_sentence_says(capsys):
    answer = planned(capsys, SINGLE, "--any")

    # Of each case: the mean and nine of ten runs; a case without a spread has one number.
    dollars = [re.findall(r"\$([\d,.]+)", row["cost"]) for row in answer["bill"]]
    costs = [[float(text.replace(",", "")) for text in row] for row in dollars]
    ends = [row[1:] or row for row in costs]
    low, mean, high = answer["recommended"]["cost"]
    assert mean == pytest.approx(costs[1][0], abs=0.01)
    assert low == pytest.approx(min(min(row) for row in ends), abs=0.01)
    assert high == pytest.approx(max(max(row) for row in ends), abs=0.01)
    assert f"${mean:,.2f} (${low:,.2f} to ${high:,.2f})" in answer["sentence"]


def test_what_is_recommended_fits_the_master_and_the_yaml_says_it(capsys):
    answer = planned(capsys, SINGLE, "--deadline", "1")

    best = answer["recommended"]
    low, middle, high = best["hours"]
    assert answer["sentence"].startswith(f"Take {best['machines']} x {best['instance']}, ")
    assert low <= middle <= high
    assert [case["case"] for case in best["cases"]] == ["low", "middle", "high"]

    # The cheapest of those that can run and meet the deadline.
    options = [option for option in answer["options"] if option["why_not"] is None]
    in_time = [option for option in options if option["cases"][1]["hours 95 %"] <= 1]
    assert best in options
    assert best["cost"][1] == min(option["cost"][1] for option in in_time)

    # The config as it stands has one slot.
    assert answer["own"]["slots"] == 1
    assert answer["own"]["hours"][1] > middle
    keys = yaml.safe_load(answer["yaml"])
    assert keys["resources"] == {"slots_per_trial": best["slots"], "resource_pool": best["pool"]}
    assert keys.get("hyperparameters", {}) == best["keys"]
    assert len(answer["method"]) >= 10
    assert "](" not in "".join(answer["method"])


def test_a_deadline_and_a_budget_that_nothing_meets_end_with_3(capsys):
    late = planned(capsys, SINGLE, "--deadline", "0.01", status=3)
    dear = planned(capsys, SINGLE, "--budget", "0.02", status=3)

    options = [option for option in late["options"] if option["why_not"] is None]
    assert "MISSES THE DEADLINE" in late["sentence"]
    assert late["recommended"]["hours"][1] == min(option["hours"][1] for option in options)
    assert "OVER THE BUDGET" in dear["sentence"]
    assert dear["recommended"]["cost"][1] == min(option["cost"][1] for option in options)


CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
MASTERS = sorted(path.name for path in (ROOT / "cluster").glob("master-*.yaml"))
# Masters without EC2, or with P3 alone: nothing may be recommended there.
WITHOUT_MACHINES = ("master-local.yaml", "master-gcp.yaml", "master-aws-spot.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("master_name", MASTERS)
def test_the_checker_passes_what_is_recommended(master_name, capsys):
    """And a config has one time and one price on a pool, whichever way it is asked for."""
    file = ROOT / "cluster" / master_name
    cluster = cluster_of(master(master_name))
    unfilled = cluster_of(read_yaml(file))
    request = Request(Rates())
    plans = 0
    for name in CONFIGS:
        status = plan.main([str(ROOT / "configs" / name), "--master", str(file), *DAY, "--json"])
        out, err = capsys.readouterr()
        if status != 0:
            assert err.count("\n") == 1
            continue
        plans += 1
        answer = json.loads(out)
        best = answer["recommended"]
        assert cluster.pools[best["pool"]].instance != "p3.16xlarge"

        # The config with the keys that the plan prints.
        config = experiment(name)
        for section, values in yaml.safe_load(answer["yaml"]).items():
            config[section] = {**config[section], **values}
        errors = [finding for finding in check_one(config, cluster, ROOT) if not finding.warning]
        assert [finding for finding in errors if "my-" not in finding.detail] == [], name
        own = plan_own(config, unfilled, request)
        assert own is not None
        for figure in ("hours", "cost") if own.price else ("hours",):
            values = [value if math.isfinite(value) else None for value in own.figures(figure)]
            assert values == best[figure], (name, figure)
    assert plans or master_name in WITHOUT_MACHINES


def test_hours_of_shard_writing_are_those_of_n_machines(capsys):
    """Of a long text alone, and not of shards; on one machine as in the time of the run."""
    config = str(ROOT / "configs" / "pretrain_base.yaml")
    text = ["--set", "data.shards=null", "--set", "data.text=wiki.jsonl"]

    long = planned(capsys, config, *text)
    assert planned(capsys, config)["shards"] == []
    assert planned(capsys, config, *text, "--windows", "1e6")["shards"] == []

    hours = {row["machines"]: float(row["hours"]) for row in long["shards"]}
    (tokenizing,) = [row for row in long["time"] if row["what"] == "tokenizing"]
    assert tokenizing["figure"] == f"{hours[1]:.2f} h"
    assert hours == {n: pytest.approx(hours[1] / n, abs=0.01) for n in (1, 2, 4, 8)}
    assert "--part I/8" in long["shards"][-1]["how"]


def test_the_parts_of_the_time_are_the_hours_of_a_machine_that_nobody_takes_away(capsys):
    answer = planned(capsys, str(ROOT / "configs" / "modern8.yaml"), "--deadline", "1")
    assert not answer["recommended"]["spot"]

    hours = 0.0
    for row in answer["time"]:
        if row["figure"].endswith(" h"):
            hours += float(row["figure"].removesuffix(" h").replace(",", ""))
    assert hours == pytest.approx(answer["recommended"]["hours"][1], abs=0.04)


def test_a_table_that_leaves_options_out_says_how_many(capsys):
    assert plan.main([SINGLE, *DAY]) == 0
    text = capsys.readouterr().out
    number = re.search(r"the cheapest of (\d+) options", text)[1]
    title = re.search(r"^Options, (\d+) of (\d+) \(\*", text, re.M)
    assert title[2] == number

    # Below the table are those that are not recommended, with the reason.
    assert re.search(r"^not recommended: .*\(32 slots\).*: .* 32 slots", text, re.M)
    table = text[title.end() :].split("\n\n")[0]
    assert len(table.splitlines()) - 2 == int(title[1])


def test_any_machine_that_aws_launches(capsys):
    options = planned(capsys, SINGLE, "--any", "--budget", "100")["options"]

    families = {option["instance"].split(".")[0] for option in options}
    assert {"p4d", "p4de", "p5", "p5en", "g5", "g6", "g6e"} <= families
    assert not {"p3", "p3dn"} & families
    assert {option["slots"] for option in options} == {1, 4, 8, 16, 32, 64}
    for option in options:
        assert option["why_not"] or option["hours"]

    # 48 windows cannot be dealt to 32 slots, and CUDA 12.6 has no code for Blackwell.
    reasons = {option["why_not"] for option in options if option["slots"] == 32}
    assert len(reasons) >= 3
    for reason in reasons:
        assert "32 slots" in reason or "CUDA 12.6 have no code for a" in reason

    # A slow machine needs another period, where a reclaim would cost more than 15 minutes.
    slow = of_instance(options, "g4dn.xlarge", spot=True)[0]
    assert slow["why_not"] is None
    assert slow["keys"]["checkpoint_period"] < 20


def of_instance(options: list[dict[str, Any]], name: str, spot: bool) -> list[dict[str, Any]]:
    """Return the options of a machine, on spot or on demand."""
    return [option for option in options if option["instance"] == name and option["spot"] is spot]


def training_part(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the row `training` of a plan's time."""
    (row,) = [row for row in answer["time"] if row["what"] == "training"]
    return row


def test_retired_machines_are_not_recommended(capsys):
    line = refused(capsys, str(ROOT / "configs" / "distributed64.yaml"))
    assert "AWS launches no p3.16xlarge since 25 May 2026" in line


def test_work_of_flags_takes_the_place_of_the_config_s(capsys):
    windows = planned(capsys, SINGLE, "--windows", "4800")
    steps = planned(capsys, SINGLE, "--set", "hyperparameters.max_steps=100")
    tokens = planned(capsys, SINGLE, "--tokens", str(4800 * 384))

    assert windows["options"] == steps["options"]
    assert windows["options"] == tokens["options"]
    assert training_part(windows)["how"].startswith("100 steps of 48 windows")

    # A search counts the same steps.
    search = ROOT / "configs" / "lr_search.yaml"
    config, _ = plan.read_work(search, [], windows=4800, tokens=None)
    assert config["searcher"]["max_time"] == config["hyperparameters"]["max_steps"] == 100


def test_windows_of_a_file_are_counted_with_its_tokenizer(tiny_config, capsys):
    config = yaml.safe_load(tiny_config.read_text())
    hparams = parse_hparams(TINY["hyperparameters"])
    data = parse_data_config(config["data"])
    windows = []
    for name in ("train", "validation"):
        split = load_split(data, open_split(data, name), load_tokenizer(data, hparams), hparams)
        windows.append(split.counts["windows"])
    change = ["--set", "hyperparameters.max_steps=null"]

    _, size = plan.read_work(tiny_config, change[1:], windows=None, tokens=None)
    answer = planned(capsys, str(tiny_config), *change, "--any")

    assert windows == [*size]
    steps = math.ceil(size.training * hparams.epochs / hparams.global_batch_size)
    assert f"{steps} steps of" in training_part(answer)["how"]
    assert "none.json: no such file" in refused(capsys, SINGLE, "--set", "data.train=none.json")


MASTER = """
db: {host: h, user: u, password: p, name: n}
resource_pools:
  - pool_name: there
    provider: {type: aws, region: REGION, instance_type: p4d.24xlarge, max_instances: 4}
  - {pool_name: home}
resource_manager: {type: agent, default_compute_resource_pool: there}
"""


def test_a_plan_has_the_prices_of_its_pool_s_region(tmp_path, capsys):
    hourly = {}
    for region in ("us-east-1", "eu-central-1"):
        path = tmp_path / f"{region}.yaml"
        path.write_text(MASTER.replace("REGION", region))
        arguments = [SINGLE, "--master", str(path), "--set", "resources.resource_pool=there"]

        answer = planned(capsys, *arguments)
        hourly[region] = answer["recommended"]["cases"][1]["$/h"]
        assert answer["prices"].startswith(f"prices of {region}, 2026-")
        other = planned(capsys, *arguments, "--region", "us-west-2")
        assert "us-west-2" in other["prices"]

        check.main(arguments)
        assert f"prices of {region}, " in capsys.readouterr().out

    for region, dollars in hourly.items():
        assert dollars == load_prices(region=region)["p4d.24xlarge"].on_demand
    assert hourly["eu-central-1"] > 1.2 * hourly["us-east-1"]


def test_a_region_that_sells_less_says_what_it_leaves_out(capsys):
    answer = planned(capsys, SINGLE, "--any", "--region", "us-west-2")

    (note,) = [note for note in answer["notes"] if note.startswith("left out")]
    types = {option["instance"] for option in answer["options"]}
    for name, price in load_prices().items():
        is_sold = price.slots > 0 and price.retired is None
        assert (name in note.split()[-1] or f" {name}," in note) == (is_sold and name not in types)


def test_machines_of_one_s_own_have_hours_and_with_a_price_dollars(tmp_path, capsys):
    path = tmp_path / "master.yaml"
    path.write_text(MASTER.replace("REGION", "us-east-1").replace("home", "lab-p4d-24xlarge"))
    lab = [SINGLE, "--master", str(path), "--set", "resources.resource_pool=lab-p4d-24xlarge"]
    lab += ["--set", "resources.slots_per_trial=8"]
    own = planned(capsys, *lab)["own"]
    priced = planned(capsys, *lab, "--price-pool", "lab-p4d-24xlarge=p4d.24xlarge")["own"]
    assert own["hours"][1] > 0
    assert own["cost"] is None
    assert priced["hours"] == own["hours"]
    hourly = load_prices()["p4d.24xlarge"].on_demand
    assert priced["cost"][1] == pytest.approx(hourly * own["hours"][1])

    # In a region without any price, a pool of one's own has that of a flag; nobody reclaims it.
    path.write_text(MASTER.replace("REGION", "sa-west-9"))
    flagged = planned(
        capsys, SINGLE, "--master", str(path), "--price-pool", "home=p5.48xlarge:spot"
    )
    best = flagged["recommended"]
    assert (best["pool"], best["spot"]) == ("home", False)
    hourly = load_prices()["p5.48xlarge"].spot
    assert best["cost"][1] == pytest.approx(hourly * best["machines"] * best["hours"][1])


@pytest.mark.slow
def test_what_is_slow_has_hours_and_dollars_and_says_so(capsys):
    """1.3 B parameters on 64 H100 with one plain interface a machine."""
    config = str(ROOT / "configs" / "lm_1b.yaml")
    answer = planned(capsys, config, "--any", "--set", "resources.slots_per_trial=64")

    options = of_instance(answer["options"], "p5.48xlarge", spot=False)
    (option,) = [option for option in options if option["slots"] == 64]
    assert option["why_not"] is None
    assert option["slow"].startswith("slow: ")
    assert option["hours"][1] < 10
    assert option["cost"][1] > 1000


@pytest.mark.parametrize("text", FAULTS["arguments"])
def test_a_wrong_argument(capsys, text, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert FAULTS["arguments"][text] in refused(capsys, SINGLE, *text.split())


@pytest.mark.parametrize("text", FAULTS["without"])
def test_a_plan_without_a_config(capsys, text):
    assert FAULTS["without"][text] in refused(capsys, *text.split())


@pytest.mark.parametrize("flag, values", FAULTS["numbers"].items())
def test_a_wrong_number(capsys, flag, values):
    for value in values:
        assert f"{flag} {value}: expected a" in refused(capsys, SINGLE, f"{flag}={value}")


def test_a_partition_of_slurm_is_planned_by_the_machines_that_it_is_like(capsys, tmp_path):
    path = tmp_path / "master.yaml"
    path.write_text("resource_manager: {type: slurm, host: launcher, port: 8181}\n")
    words = [SINGLE, "--master", str(path), "--set", "resources.resource_pool=gpuq"]
    assert "say which they are like, --price-pool POOL=INSTANCE" in refused(capsys, *words)
    answer = planned(capsys, *words, "--price-pool", "gpuq=p4d.24xlarge")
    assert answer["recommended"]["pool"] == "gpuq"
    assert answer["recommended"]["instance"] == "p4d.24xlarge"


@pytest.mark.parametrize("name, master_name", [("single", "aws-modern"), ("lm_13b", "efa")])
def test_the_checker_prints_the_planner_s_hours_and_dollars(name, master_name, capsys):
    config = ROOT / "configs" / f"{name}.yaml"
    master_file = ROOT / "cluster" / f"master-{master_name}.yaml"
    arguments = [str(config), "--master", str(master_file)]

    check.main(arguments)
    lines = capsys.readouterr().out.splitlines()
    assert plan.main([*arguments, "--json"]) == 0
    own = json.loads(capsys.readouterr().out)["own"]

    (line,) = [line for line in lines if " slots): " in line or " slot): " in line]
    hours = own["hours"][1]
    hours_text = f"{hours:,.2f}" if hours < 10 else f"{hours:,.1f}"
    assert f" {hours_text} h (" in line
    if own["cost"] is None:  # of machines of one's own
        assert "), no price" in line
    else:
        dollars = own["cost"][1]
        dollars_text = f"{dollars:,.2f}" if dollars < 100 else f"{dollars:,.0f}"
        assert f"${dollars_text} (" in line


VALUES = "0 -8 8.5 '8' [8] 12 1000000000 1e18 1e300 true null x {a: 1} ''".split(" ") + ["9" * 400]
KEYS = "epochs max_steps checkpoint_period validation_period precision max_tokens_per_forward size "
KEYS += "max_seq_length masked_fraction max_ngram max_validation_windows layout.shard layout.tensor"


@pytest.mark.soak
@pytest.mark.parametrize("name", ["single", "lm_1b", "pretrain_base"])
def test_any_value_of_a_key_is_planned_or_refused_in_one_line(name, capsys):
    config = experiment(f"{name}.yaml")
    sections = {key: config[key] for key in ("resources", "hyperparameters")}
    keys = [*paths(sections), *(f"hyperparameters.{key}" for key in KEYS.split())]
    path = str(ROOT / "configs" / f"{name}.yaml")
    for key, value in itertools.product(keys, VALUES):
        status = plan.main([path, "--set", f"{key}={value}"])
        out, err = capsys.readouterr()
        assert len(err) < 600
        if status != 0:
            assert status == 2, (key, value)
            assert err.count("\n") == 1, (key, value)
            assert out == "", (key, value)
