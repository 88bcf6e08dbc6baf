"""`cluster.plan`: what is planned, what it recommends, and that the checker lets it pass."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import check, plan
from cluster.check import check_one
from cluster.configs.masterconf import Cluster, Pool, cluster_of
from cluster.configs.search import search_of
from cluster.estimates.times import time_parts
from cluster.facts.machines import gpu_of
from cluster.facts.prices import load_prices
from cluster.facts.rates import Rates
from cluster.facts.spot import CASES
from cluster.plan import any_cluster
from cluster.planning import plan_text
from cluster.planning.cases import Case
from cluster.planning.choice import front, reasons_against, recommend
from cluster.planning.options import Option, Request, plan_options, plan_own
from data import load_split, load_tokenizer
from detalbert.settings.hparams import parse_data_config, parse_hparams
from detalbert.settings.yaml_files import read_yaml
from tests.cluster.planted import experiment, master
from tests.cluster.test_check import paths
from tests.conftest import ROOT, TINY

FAULTS = yaml.safe_load(Path(__file__).with_name("plan_faults.yaml").read_text())
ONE = str(ROOT / "configs" / "single.yaml")
DAY = ["--today", "2026-10-01"]


def planned(capsys: Any, *arguments: str, status: int = 0) -> dict[str, Any]:
    assert plan.main([*arguments, *DAY, "--json"]) == status, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(capsys: Any, *arguments: str) -> str:
    assert plan.main([*arguments]) == 2, arguments
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("cluster.plan: ") and err.count("\n") == 1, err
    assert len(err) < 500, err
    return err


def test_what_is_recommended_fits_the_master_and_the_yaml_says_it(capsys: Any) -> None:
    found = planned(capsys, ONE, "--deadline", "1")
    best = found["recommended"]
    assert found["sentence"].startswith(f"Take {best['machines']} x {best['instance']}, ")
    assert best["hours"][0] <= best["hours"][1] <= best["hours"][2]
    can = [o for o in found["options"] if o["why_not"] is None]
    meets = [o for o in can if o["cases"][1]["hours 95 %"] <= 1]
    assert best["cost"][1] == min(o["cost"][1] for o in meets) and best in can
    assert found["own"]["slots"] == 1 and found["own"]["hours"][1] > best["hours"][1]
    keys = yaml.safe_load(found["yaml"])
    assert keys["resources"] == {"slots_per_trial": best["slots"], "resource_pool": best["pool"]}
    assert keys.get("hyperparameters", {}) == best["keys"]
    assert [case["case"] for case in best["cases"]] == ["low", "middle", "high"]
    assert len(found["method"]) >= 10 and "](" not in "".join(found["method"])


def test_a_deadline_and_a_budget_that_nothing_meets_end_with_3(capsys: Any) -> None:
    late = planned(capsys, ONE, "--deadline", "0.01", status=3)
    dear = planned(capsys, ONE, "--budget", "0.02", status=3)
    assert "MISSES THE DEADLINE" in late["sentence"] and "OVER THE BUDGET" in dear["sentence"]
    can = [o for o in late["options"] if o["why_not"] is None]
    assert late["recommended"]["hours"][1] == min(o["hours"][1] for o in can)
    assert dear["recommended"]["cost"][1] == min(o["cost"][1] for o in can)


CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
MASTERS = sorted(path.name for path in (ROOT / "cluster").glob("master-*.yaml"))


@pytest.mark.parametrize("master_name", MASTERS)
def test_the_checker_passes_what_is_recommended(master_name: str, capsys: Any) -> None:
    """And a config has one time and one price on a pool, whichever way it is asked for."""
    cluster, some = cluster_of(master(master_name)), 0
    unfilled = cluster_of(read_yaml(ROOT / "cluster" / master_name))
    asked_for = Request(Rates())
    for name in CONFIGS:
        path = ROOT / "configs" / name
        asked = [str(path), "--master", str(ROOT / "cluster" / master_name)]
        if plan.main([*asked, *DAY, "--json"]) != 0:
            assert capsys.readouterr().err.count("\n") == 1
            continue
        found, some = json.loads(capsys.readouterr().out), some + 1
        keys, config = yaml.safe_load(found["yaml"]), experiment(name)
        for section, values in keys.items():
            config[section] = {**config[section], **values}
        wrong = [f for f in check_one(config, cluster, ROOT) if not f.warning]
        assert [f for f in wrong if "my-" not in f.detail] == [], name
        assert cluster.pools[found["recommended"]["pool"]].instance != "p3.16xlarge"
        own = plan_own(config, unfilled, asked_for)
        assert own is not None
        for what in ("hours", "cost"):
            figures = [value if math.isfinite(value) else None for value in own.figures(what)]
            assert figures == found["recommended"][what], (name, what)
    assert some or master_name.split(".")[0][7:] in ("local", "gcp", "aws-spot")  # no EC2, or P3


def test_any_machine_that_aws_launches(capsys: Any) -> None:
    found = planned(capsys, ONE, "--any", "--budget", "100")
    families = {option["instance"].split(".")[0] for option in found["options"]}
    assert {"p4d", "p4de", "p5", "p5en", "g5", "g6", "g6e"} <= families
    assert not {"p3", "p3dn"} & families
    assert {option["slots"] for option in found["options"]} == {1, 4, 8, 16, 32, 64}
    for option in found["options"]:
        assert option["why_not"] or option["hours"]
    # 48 windows cannot be dealt to 32 slots, and CUDA 12.6 has no code for Blackwell.
    reasons = {o["why_not"] for o in found["options"] if o["slots"] == 32}
    assert len(reasons) >= 3
    assert all("32 slots" in why or "CUDA 12.6 have no code for a" in why for why in reasons)
    # A V100 of old needs another period, where a reclaim would cost more than 15 minutes.
    slow = next(o for o in found["options"] if (o["instance"], o["spot"]) == ("g4dn.xlarge", True))
    assert slow["why_not"] is None and slow["keys"]["checkpoint_period"] < 20


def test_retired_machines_are_not_recommended(capsys: Any) -> None:
    said = refused(capsys, str(ROOT / "configs" / "distributed64.yaml"))
    assert "AWS launches no p3.16xlarge since 25 May 2026" in said


def test_work_of_flags_takes_the_place_of_the_config_s(capsys: Any) -> None:
    short = planned(capsys, ONE, "--windows", "4800")
    set_to = planned(capsys, ONE, "--set", "hyperparameters.max_steps=100")
    tokens = planned(capsys, ONE, "--tokens", str(4800 * 384))
    assert short["options"] == set_to["options"] == tokens["options"]
    training = next(row for row in short["time"] if row["what"] == "training")
    assert training["how"].startswith("100 steps of 48 windows")


def test_windows_of_a_file_are_counted_with_its_tokenizer(tiny_config: Path, capsys: Any) -> None:
    config = yaml.safe_load(tiny_config.read_text())
    hparams = parse_hparams(TINY["hyperparameters"])
    data = parse_data_config(config["data"])
    splits = [load_split(data, name, load_tokenizer(data, hparams), hparams)
              for name in ("train", "validation")]  # fmt: skip
    args = [str(tiny_config), "--set", "hyperparameters.max_steps=null"]
    _, size = plan.read_work(tiny_config, args[2:], windows=None, tokens=None)
    assert [split.counts["windows"] for split in splits] == [*size]
    steps = next(
        row for row in planned(capsys, *args, "--any")["time"] if row["what"] == "training"
    )
    whole = size.training * hparams.epochs
    assert f"{math.ceil(whole / hparams.global_batch_size)} steps of" in steps["how"]
    assert "none.json: no such file" in refused(capsys, ONE, "--set", "data.train=none.json")


def made(hours: float, cost: float, why_not: str = "", high: float = 0.0) -> Option:
    """An option with these means; `high` is its hours in the worst case."""
    prices = load_prices()
    pool = next(iter(any_cluster(prices).pools.values()))
    figures = {}
    for what, value in (("hours", hours), ("cost", cost)):
        for end in ("", " 5 %", " 95 %"):
            figures[what + end] = value
    cases = [Case(name, CASES[name], 1.0, figures) for name in CASES]
    if high:
        cases[2] = cases[2]._replace(figures={**figures, "hours 95 %": high})
    return Option(
        pool, prices["p4d.24xlarge"], 8, search=search_of({}), cases=cases, why_not=why_not
    )


def test_the_front_and_the_recommendation_leave_out_what_cannot_run() -> None:
    some = [made(1, 9), made(2, 5), made(3, 5), made(2.5, 1), made(0.5, 0.1, "no code")]
    assert list(front(some)) == [some[0], some[1], some[3]]
    assert recommend(some, {"hours": 2.0}).option is some[1]
    assert recommend(some, {}).option is some[3]
    assert recommend([made(math.inf, math.inf), some[0]], {}).option is some[0]
    for hopeless, said in (([some[4]], "no code"), ([made(math.inf, math.inf)], "none ends")):
        with pytest.raises(plan.UserError, match=said):
            recommend(hopeless, {})


def test_of_what_costs_as_little_the_fastest_is_taken() -> None:
    """169 hours for $2,131 beside 85 for $2,132; nothing whose worst case has no end."""
    slow, fast, dear = made(168.7, 2131), made(84.5, 2132), made(60, 2300)
    assert recommend([slow, fast, dear], {}).option is fast
    assert "the fastest within 5% of the cheapest of 3" in recommend([slow, fast, dear], {}).why
    endless = made(8738.7, 367, high=math.inf)
    assert recommend([endless, slow, fast, dear], {}).option is fast


def test_a_budget_buys_speed_and_a_deadline_the_cheapest_that_keeps_it() -> None:
    some = [made(10, 10), made(5, 18), made(2, 30), made(1, 90)]
    assert recommend(some, {"cost": 40}).option is some[2]
    assert recommend(some, {"hours": 6}).option is some[1]
    assert recommend(some, {"hours": 6, "cost": 40}).option is some[2]
    over = recommend(some, {"cost": 5})
    assert over.option is some[0] and not over.within_limits and "OVER THE BUDGET" in over.why
    late = recommend(some, {"hours": 0.5, "cost": 40})
    assert late.option is some[3] and not late.within_limits and "MISSES THE DEADLINE" in late.why


def test_why_it_is_not_the_cheapest_or_the_fastest() -> None:
    some = [made(10, 10), made(5, 20), made(1, 90)]
    choice = recommend(some, {"hours": 6})
    against = list(reasons_against(choice, some, {"hours": 6}))
    assert [(rank, option) for rank, option, _ in against] == [
        ("cheapest", some[0]),
        ("fastest", some[2]),
    ]
    assert against[0][2] == "95 % of its runs take up to 10.00 h, not 6.00 h"
    assert against[1][2] == "0.2 x the time, 4.5 x the cost"


def of_instance(plan_json: dict[str, Any], instance: str, spot: bool) -> list[dict[str, Any]]:
    options = plan_json["options"]
    return [o for o in options if o["instance"] == instance and o["spot"] is spot]


MASTER = """
db: {host: h, user: u, password: p, name: n}
resource_pools:
  - pool_name: there
    provider: {type: aws, region: REGION, instance_type: p4d.24xlarge, max_instances: 4}
  - {pool_name: home}
resource_manager: {type: agent, default_compute_resource_pool: there}
"""


def test_a_plan_has_the_prices_of_its_pool_s_region(tmp_path: Path, capsys: Any) -> None:
    hourly = {}
    for region in ("us-east-1", "eu-central-1"):
        path = tmp_path / f"{region}.yaml"
        path.write_text(MASTER.replace("REGION", region))
        arguments = [ONE, "--master", str(path), "--set", "resources.resource_pool=there"]
        found = planned(capsys, *arguments)
        hourly[region] = found["recommended"]["cases"][1]["$/h"]
        assert found["prices"].startswith(f"prices of {region}, 2026-")
        other = planned(capsys, *arguments, "--region", "us-west-2")
        assert "us-west-2" in other["prices"]
        check.main([ONE, "--master", str(path), "--set", "resources.resource_pool=there"])
        line = capsys.readouterr().out
        assert f"prices of {region}, " in line
    for region, dollars in hourly.items():
        assert dollars == load_prices(region=region)["p4d.24xlarge"].on_demand
    assert hourly["eu-central-1"] > 1.2 * hourly["us-east-1"]


def test_a_region_that_sells_less_says_what_it_leaves_out(capsys: Any) -> None:
    found = planned(capsys, ONE, "--any", "--region", "us-west-2")
    (note,) = [note for note in found["notes"] if note.startswith("left out")]
    types = {option["instance"] for option in found["options"]}
    for name in set(load_prices()) - types:
        price = load_prices()[name]
        assert price.retired or not price.slots or name in note


def test_a_search_costs_its_trials(capsys: Any) -> None:
    """Twenty trials of which a quarter goes on, four at a time; check says the same."""
    search = str(ROOT / "configs" / "lr_search.yaml")
    master_file = ["--master", str(ROOT / "cluster" / "master-aws-modern.yaml")]
    trial = ["--set", "searcher={name: single, metric: f1, smaller_is_better: false}"]
    batch = ["--set", "hyperparameters.lr_scale=0.5"]
    batch += ["--set", "hyperparameters.global_batch_size=48"]
    one = planned(capsys, search, *master_file, *batch, *trial)
    found = planned(capsys, search, *master_file, *batch)
    twice = planned(capsys, search, *master_file, *batch, "--set", "searcher.max_trials=40")
    assert (found["own"]["trials"], one["own"]["trials"]) == (20, 1)
    work = search_of(experiment("lr_search.yaml")).work
    assert found["own"]["cost"][1] == pytest.approx(work * one["own"]["cost"][1], rel=0.01)
    assert found["own"]["hours"][1] == pytest.approx(work / 4 * one["own"]["hours"][1], rel=0.01)
    assert twice["own"]["cost"][1] == pytest.approx(2 * found["own"]["cost"][1], rel=0.1)
    plan.main([search, *master_file])
    printed = capsys.readouterr().out
    assert "A search: 20 trials, at most 4 at a time" in printed and "20 trials)" in printed
    check.main([search, *master_file])
    assert f"{printed.split('As it stands: ')[1].splitlines()[0][:-1]}" in capsys.readouterr().out


def searched(**hyperparameters: Any) -> dict[str, Any]:
    """A search whose first key is the batch: of its corners in order the first 64 have the first
    batch alone.
    """
    config = experiment("modern8.yaml")
    rates = {"type": "double", "minval": 1.0e-5, "maxval": 5.0e-5}
    noise = {"base_learning_rate": rates, "weight_decay": rates, "warmup_fraction": rates}
    noise |= {"beta2": {"type": "double", "minval": 0.9, "maxval": 0.99}}
    noise |= {"seed": {"type": "categorical", "vals": [1, 2, 3, 4]}}
    rest = {key: value for key, value in config["hyperparameters"].items() if key not in noise}
    config["hyperparameters"] = {**hyperparameters, **rest, **hyperparameters, **noise}
    metric = {"metric": "f1", "smaller_is_better": False}
    config["searcher"] = {"name": "random", "max_trials": 8, **metric}
    return config


def test_every_corner_of_a_search_is_estimated() -> None:
    """Thirty-two of the first counted: one batch of two, and a forward that does not fit unseen."""
    pool = Pool("fixed", 8, 9, gpu_of("p4d.24xlarge"), False, "p4d.24xlarge")
    cluster = Cluster({"fixed": pool}, "fixed", images_known=False)

    def planned_option(**hyperparameters: Any) -> Option:
        options = plan_options(searched(**hyperparameters), cluster, Request(Rates()))
        return next(option for option in options if option.slots == 8)

    small = planned_option(global_batch_size=64, max_steps=500)
    large = planned_option(global_batch_size=512, max_steps=500)
    batches = {"type": "categorical", "vals": [64, 512]}
    both = planned_option(global_batch_size=batches, max_steps=500)
    mean = (small.mean("cost") + large.mean("cost")) / 2
    assert both.mean("cost") == pytest.approx(mean, rel=0.001) != small.mean("cost")
    forwards = {"type": "categorical", "vals": [4096, 1_000_000]}
    assert "max_tokens_per_forward" in planned_option(max_tokens_per_forward=forwards).keys


def test_machines_of_one_s_own_have_hours_and_with_a_price_dollars(
    tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "master.yaml"
    path.write_text(MASTER.replace("REGION", "us-east-1").replace("home", "lab-p4d-24xlarge"))
    own = [ONE, "--master", str(path), "--set", "resources.resource_pool=lab-p4d-24xlarge"]
    own += ["--set", "resources.slots_per_trial=8"]
    priced = planned(capsys, *own)
    assert priced["own"]["hours"] and priced["own"]["cost"][1] > 0
    bare = tmp_path / "bare.yaml"
    bare.write_text(MASTER.replace("REGION", "sa-west-9"))
    free = planned(capsys, ONE, "--master", str(bare), "--price-pool", "home=p5.48xlarge:spot")
    assert {option["pool"] for option in free["options"]} == {"home"}
    assert free["recommended"]["spot"] and free["recommended"]["cost"][1] > 0


@pytest.mark.parametrize("name", ["modern8", "single", "lm_1b", "pretrain_base"])
def test_hours_on_demand_are_boot_and_the_parts_of_the_time(name: str) -> None:
    """A checkpoint too many was counted where validations fill more than a period."""
    pool = Pool("fixed", 8, 2, gpu_of("p4d.24xlarge"), False, "p4d.24xlarge")
    cluster = Cluster({"fixed": pool}, "fixed", images_known=False)
    options = plan_options(experiment(f"{name}.yaml"), cluster, Request(Rates()))
    (option,) = [option for option in options if option.slots == 8 and option.cases]
    assert option.estimate is not None
    seconds = 300 + sum(part.seconds for part in time_parts(option.estimate))
    assert option.mean("hours") == pytest.approx(seconds / 3600)
    dollars = load_prices()["p4d.24xlarge"].on_demand * seconds / 3600
    assert option.mean("cost") == pytest.approx(dollars)


def test_without_a_price_there_are_hours(capsys: Any) -> None:
    """A pool of a master that was asked: its GPU is known, its price is not."""
    pool = Pool("lab", 8, 2, gpu_of("p4d.24xlarge"), False, "", own=True)
    config = experiment("single.yaml")
    cluster = Cluster({"lab": pool}, "lab", images_known=False)
    found = plan_options(config, cluster, Request(Rates()))
    assert [option.slots for option in found] == [1, 8, 16]
    choice = recommend(found, {})
    assert choice.option.price is None and choice.option.mean("hours") > 0
    assert plan_text.dollars(choice.option) == "no price"
    assert choice.option is min(found, key=lambda option: option.mean("hours"))
    assert plan_text.outcome(choice.option).startswith("2 x A100, of pool lab (16 slots): ")


def test_what_is_slow_has_hours_and_dollars_and_says_so(capsys: Any) -> None:
    """1.3 B parameters on 64 H100 with one plain interface a machine."""
    config = str(ROOT / "configs" / "lm_1b.yaml")
    found = planned(capsys, config, "--any", "--set", "resources.slots_per_trial=64")
    (option,) = [o for o in of_instance(found, "p5.48xlarge", spot=False) if o["slots"] == 64]
    assert option["why_not"] is None and option["slow"].startswith("slow: ")
    assert option["hours"][1] < 10 and option["cost"][1] > 1000


@pytest.mark.parametrize("text", FAULTS["arguments"])
def test_a_wrong_argument(capsys: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    flag, *more = text.split()
    assert FAULTS["arguments"][text] in refused(capsys, ONE, flag, *more)


@pytest.mark.parametrize("text", FAULTS["without"])
def test_a_plan_without_a_config(capsys: Any, text: str) -> None:
    assert FAULTS["without"][text] in refused(capsys, *text.split())


@pytest.mark.parametrize("flag, values", FAULTS["numbers"].items())
def test_a_wrong_number(capsys: Any, flag: str, values: list[str]) -> None:
    for value in values:
        assert f"{flag} {value}: expected a" in refused(capsys, ONE, f"{flag}={value}")


@pytest.mark.parametrize("name, master_name", [("single", "aws-modern"), ("lm_13b", "efa")])
def test_the_checker_prints_the_planner_s_hours_and_dollars(
    name: str, master_name: str, capsys: Any
) -> None:
    paths = [str(ROOT / "configs" / f"{name}.yaml"), "--master"]
    paths.append(str(ROOT / "cluster" / f"master-{master_name}.yaml"))
    check.main(paths)
    line = next(
        s for s in capsys.readouterr().out.splitlines() if " slots): " in s or " slot): " in s
    )
    assert plan.main([*paths, "--json"]) == 0
    own = json.loads(capsys.readouterr().out)["own"]
    assert f" {own['hours'][1]:,.{2 if own['hours'][1] < 10 else 1}f} h (" in line
    assert f"${own['cost'][1]:,.{2 if own['cost'][1] < 100 else 0}f} (" in line


VALUES = "0 -8 8.5 '8' [8] 12 1000000000 1e18 1e300 true null x {a: 1} ''".split(" ") + ["9" * 400]
KEYS = "epochs max_steps checkpoint_period validation_period precision max_tokens_per_forward size "
KEYS += "max_seq_length masked_fraction max_ngram max_validation_windows layout.shard layout.tensor"


@pytest.mark.soak
@pytest.mark.parametrize("name", ["single", "lm_1b", "pretrain_base"])
def test_any_value_of_a_key_is_planned_or_refused_in_one_line(name: str, capsys: Any) -> None:
    config = experiment(f"{name}.yaml")
    sections = {key: config[key] for key in ("resources", "hyperparameters")}
    keys = [*paths(sections), *(f"hyperparameters.{key}" for key in KEYS.split())]
    for key, value in itertools.product(keys, VALUES):
        path = str(ROOT / "configs" / f"{name}.yaml")
        status = plan.main([path, "--set", f"{key}={value}"])
        said = capsys.readouterr()
        assert status == 0 or (status, said.err.count("\n"), said.out) == (2, 1, ""), (key, value)
        assert len(said.err) < 600
