"""Options of a plan: searches, machines without a price, and the hours of each."""

from typing import Any

import pytest

from cluster import check, plan
from cluster.configs.masterconf import Cluster, Pool
from cluster.estimates.times import time_parts
from cluster.facts.machines import gpu_of
from cluster.facts.prices import load_prices
from cluster.facts.rates import Rates
from cluster.planning import plan_text
from cluster.planning.choice import recommend
from cluster.planning.options import Option, Request, plan_options, plan_own
from tests.cluster.planted import experiment
from tests.cluster.test_plan import planned
from tests.conftest import ROOT

INSTANCE = "p4d.24xlarge"


def one_pool(name: str, max_agents: int, instance: str = INSTANCE, own: bool = False) -> Cluster:
    """Return a cluster of a pool of machines with eight A100."""
    pool = Pool(name, 8, max_agents, gpu_of(INSTANCE), spot=False, instance=instance, own=own)
    return Cluster({name: pool}, name, images_known=False)


@pytest.mark.slow
def test_a_search_costs_its_trials(capsys):
    """Twenty trials of which a quarter goes on, four at a time; check says the same."""
    master = str(ROOT / "cluster" / "master-aws-modern.yaml")
    search = [str(ROOT / "configs" / "lr_search.yaml"), "--master", master]
    fixed = [
        *["--set", "hyperparameters.lr_scale=0.5"],
        *["--set", "hyperparameters.global_batch_size=48"],
    ]
    single = "searcher={name: single, metric: f1, smaller_is_better: false}"

    one_trial = planned(capsys, *search, *fixed, "--set", single)["own"]
    twenty = planned(capsys, *search, *fixed)["own"]
    forty = planned(capsys, *search, *fixed, "--set", "searcher.max_trials=40")["own"]

    # By hand: 20 trials to step 256 of 1,024 and about 5.5 of them to the end are the work of 9.1;
    # four machines boot (300 s) once, and each trial starts (60 s), compiles (12.3 s) and tokenizes
    # (132,198 windows at 80,000 a second).
    assert one_trial["trials"] == 1
    assert twenty["trials"] == 20
    start = 60 + 12.3 + 132_198 / 80_000
    work = 9.125 * (3600 * one_trial["hours"][1] - 300 - start)
    hours = (300 + (20 * start + work) / 4) / 3600
    hourly = load_prices()[INSTANCE].on_demand
    assert twenty["hours"][1] == pytest.approx(hours, rel=0.01)
    assert twenty["cost"][1] == pytest.approx(4 * hours * hourly, rel=0.01)
    boots = 4 * 300 / 3600 * hourly
    assert forty["cost"][1] - boots == pytest.approx(2 * (twenty["cost"][1] - boots), rel=0.05)

    plan.main(search)
    text = capsys.readouterr().out
    assert "A search: 20 trials, at most 4 at a time" in text
    assert "20 trials)" in text
    _, _, as_it_stands = text.partition("As it stands: ")
    line = as_it_stands.splitlines()[0].removesuffix(".")
    check.main(search)
    assert line in capsys.readouterr().out


def searched(**hyperparameters: Any) -> dict[str, Any]:
    """Return a search whose first key is the batch: of its corners in order the first 64 have the
    first batch alone.
    """
    config = experiment("modern8.yaml")
    rate = {"type": "double", "minval": 1.0e-5, "maxval": 5.0e-5}
    ranges = {
        "base_learning_rate": rate,
        "weight_decay": rate,
        "warmup_fraction": rate,
        "beta2": {"type": "double", "minval": 0.9, "maxval": 0.99},
        "seed": {"type": "categorical", "vals": [1, 2, 3, 4]},
    }
    fixed = {key: value for key, value in config["hyperparameters"].items() if key not in ranges}
    config["hyperparameters"] = {**hyperparameters, **fixed, **hyperparameters, **ranges}
    config["searcher"] = {
        "name": "random",
        "max_trials": 8,
        "metric": "f1",
        "smaller_is_better": False,
    }
    return config


@pytest.mark.parametrize(
    "slots, trials, concurrent, machines, rounds, paid",
    [
        (8, 30, 3, 3, 10, 30),
        (5, 17, 16, 9, 2, 17),  # one on a machine of eight
        (5, 14, 16, 9, 2, 14),
        (3, 17, 16, 8, 2, 9),  # two on a machine: the last one has a machine to itself
        (16, 9, 16, 8, 3, 9),  # four at a time on two machines each
    ],
)
def test_a_machine_boots_once_in_a_search_and_each_trial_starts(
    slots: int, trials: int, concurrent: int, machines: int, rounds: int, paid: int
) -> None:
    """All trials are equal: `rounds` of them follow each other, and `paid` are paid for. The
    machines of a trial are at most nine.
    """
    config = experiment("modern8.yaml")
    config["hyperparameters"] |= {"max_steps": 100, "global_batch_size": 240}
    config["resources"]["slots_per_trial"] = slots
    searcher = {"name": "random", "metric": "f1", "smaller_is_better": False}
    searcher |= {"max_trials": trials, "max_concurrent_trials": concurrent}
    cluster = one_pool("fixed", max_agents=9)

    def planned_option(**keys: Any) -> Option:
        options = plan_options({**config, **keys}, cluster, Request(Rates()))
        return next(option for option in options if option.slots == slots)

    single = planned_option()
    search = planned_option(searcher=searcher)
    trial_seconds = 3600 * single.mean("hours") - 300
    machine_seconds = machines * 300 + paid * single.machines * trial_seconds
    dollars = machine_seconds / 3600 * load_prices()[INSTANCE].on_demand
    assert search.all_machines == machines
    assert search.mean("hours") == pytest.approx((300 + rounds * trial_seconds) / 3600)
    assert search.mean("cost") == pytest.approx(dollars)


def test_every_corner_of_a_search_is_estimated():
    """Thirty-two of the first counted: one batch of two, and a forward that does not fit unseen."""
    cluster = one_pool("fixed", max_agents=9)

    def on_one_machine(**hyperparameters: Any) -> Option:
        options = plan_options(searched(**hyperparameters), cluster, Request(Rates()))
        return next(option for option in options if option.slots == 8)

    batches = {"type": "categorical", "vals": [64, 512]}
    small = on_one_machine(global_batch_size=64, max_steps=500)
    large = on_one_machine(global_batch_size=512, max_steps=500)
    both = on_one_machine(global_batch_size=batches, max_steps=500)
    mean = (small.mean("cost") + large.mean("cost")) / 2
    assert both.mean("cost") == pytest.approx(mean, rel=0.001)
    assert both.mean("cost") != small.mean("cost")

    forwards = {"type": "categorical", "vals": [4096, 1_000_000]}
    assert "max_tokens_per_forward" in on_one_machine(max_tokens_per_forward=forwards).keys


def test_a_layout_in_place_of_one_that_does_not_fit_suits_every_trial_of_a_search():
    """The fastest of the larger batch has more data ranks than the smaller batch has windows."""
    config = experiment("lm_13b.yaml")
    config["searcher"] |= {"name": "grid", "max_concurrent_trials": 1}
    config["hyperparameters"] |= {
        "global_batch_size": {"type": "categorical", "vals": [8, 512]},
        "max_steps": 500,
        "layout": {"shard": 8},
        "activation_checkpointing": "none",
        "max_tokens_per_forward": 2048,
    }
    cluster = one_pool("fixed", max_agents=5)
    options = plan_options(config, cluster, Request(Rates()))
    (option,) = [option for option in options if option.slots == 32]
    assert not option.why_not
    assert option.keys["layout"] != {"shard": 8}

    # Written into the config, it stays right and takes the hours that were planned.
    config["hyperparameters"] |= option.keys
    config["resources"] |= {"slots_per_trial": 32, "resource_pool": "fixed"}
    written = plan_own(config, cluster, Request(Rates()))
    assert not written.why_not
    assert written.mean("hours") == pytest.approx(option.mean("hours"))


@pytest.mark.parametrize("name", ["modern8", "single", "lm_1b", "pretrain_base"])
def test_hours_on_demand_are_boot_and_the_parts_of_the_time(name):
    """A checkpoint too many was counted where validations fill more than a period."""
    cluster = one_pool("fixed", max_agents=2)

    options = plan_options(experiment(f"{name}.yaml"), cluster, Request(Rates()))

    (option,) = [option for option in options if option.slots == 8 and option.cases]
    assert option.estimate is not None
    hours = (300 + sum(part.seconds for part in time_parts(option.estimate))) / 3600
    assert option.mean("hours") == pytest.approx(hours)
    dollars = load_prices()[INSTANCE].on_demand * hours
    assert option.mean("cost") == pytest.approx(dollars)


def test_without_a_price_there_are_hours():
    """A pool of a master that was asked: its GPU is known, its price is not."""
    cluster = one_pool("lab", max_agents=2, instance="", own=True)

    options = plan_options(experiment("single.yaml"), cluster, Request(Rates()))

    assert [option.slots for option in options] == [1, 8, 16]
    best = recommend(options, {}).option
    assert best is min(options, key=lambda option: option.mean("hours"))
    assert best.price is None
    assert best.mean("hours") > 0
    assert plan_text.dollars(best) == "no price"
    assert plan_text.outcome(best).startswith("2 x A100, of pool lab (16 slots): ")
