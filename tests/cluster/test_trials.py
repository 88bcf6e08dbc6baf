"""Trials of a search, beside a walk through the rules of 0.38.1's searchers."""

import math
import random
from typing import Any

import pytest
import yaml

from cluster.configs.search import Search, search_of
from tests.conftest import ROOT


def asha(trials: int, rungs: int, divisor: float, draw: random.Random) -> float:
    """Return the work of an ASHA's bracket, in whole trials, with ranks that do not change."""
    metrics: list[list[float]] = [[] for _ in range(rungs)]
    work = 0.0
    for _ in range(trials):
        metric = draw.random()
        for rung in range(rungs):
            share = divisor ** (rung + 1 - rungs)
            place = sum(other < metric for other in metrics[rung])
            metrics[rung].append(metric)
            if rung == rungs - 1 or place >= max(1, int(len(metrics[rung]) / divisor)):
                work += share
                break
    return work


@pytest.mark.parametrize("trials, rungs", [(20, 2), (100, 4), (64, 3), (7, 2)])
def test_the_work_of_an_asha_is_the_mean_of_many(trials: int, rungs: int) -> None:
    draw = random.Random(0)
    mean = sum(asha(trials, rungs, 4, draw) for _ in range(2000)) / 2000
    searcher = {
        "name": "adaptive_asha",
        "mode": "aggressive",
        "max_trials": trials,
        "max_time": 1024,
        "max_rungs": rungs,
    }
    assert search_of({"searcher": searcher}).work == pytest.approx(mean, rel=0.06)


def test_brackets_share_the_trials() -> None:
    """makeBrackets of 0.38.1 by hand: weights 4^3 / 4, 4^2 / 3 and 4 / 2 of 100 trials."""
    searcher = {"name": "adaptive_asha", "max_trials": 100, "max_time": 1024, "max_rungs": 5}
    search = search_of({"searcher": searcher})  # log_4(100) + 1 = 4 rungs; standard: 2, 3, 4
    assert search.rungs[0].trials == 100
    assert [rung.share for rung in search.rungs] == [1 / 64, 1 / 16, 1 / 4, 1]
    conservative = search_of({"searcher": {**searcher, "mode": "conservative"}})
    assert conservative.work > search.work


GRID: dict[str, Any] = {
    "a": {"type": "categorical", "vals": [1, 2, 3]},
    "b": {"type": "int", "minval": 1, "maxval": 2, "count": 9},
    "c": {"type": "double", "minval": 0, "maxval": 1, "count": 4},
    "d": {"type": "const", "val": 1},
    "e": {"f": {"type": "categorical", "vals": [1, 2]}},
    "g": 3,
}


@pytest.mark.parametrize(
    "searcher, trials, at_once",
    [
        ({"name": "single", "max_trials": 9}, 1, 1),
        ({"name": "random", "max_trials": 9}, 9, 9),
        ({"name": "random", "max_trials": 99}, 99, 16),
        ({"name": "random", "max_trials": 99, "max_concurrent_trials": 0}, 99, 99),
        ({"name": "grid"}, 3 * 2 * 4 * 2, 16),
        ({"name": "grid", "max_concurrent_trials": 2}, 48, 2),
        ({}, 1, 1),
        ("broken", 1, 1),
    ],
)
def test_trials_of_each_searcher(searcher: Any, trials: int, at_once: int) -> None:
    search = search_of({"searcher": searcher, "hyperparameters": GRID})
    assert search.trials == trials
    assert search.at_once == at_once
    assert search.work == trials


ODD = [None, -1, 0, 10**18, 1.5, math.nan, "odd", [], [10**9], {"type": "log"}]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["max_trials", "max_concurrent_trials", "divisor", "max_rungs",
                                 "max_time", "mode", "bracket_rungs", "num_rungs"])  # fmt: skip
@pytest.mark.parametrize("name", ["adaptive_asha", "async_halving", "grid", "random"])
def test_an_odd_value_is_told_elsewhere(key: str, name: str) -> None:
    for value in ODD:
        searcher = {"name": name, "max_trials": 9, "max_time": 64, key: value}
        hyperparameters = {"a": {**GRID["a"], "vals": value}}
        search = search_of({"searcher": searcher, "hyperparameters": hyperparameters})
        assert search.trials >= search.at_once >= 1
        assert search.work > 0
        assert search.rounds(search.at_once) >= 1
        assert search.describe()


def test_rounds() -> None:
    search = search_of({"searcher": {"name": "random", "max_trials": 20}})
    assert (search.rounds(4), search.rounds(16), search.rounds(20)) == (5, 2, 1)


def test_the_shipped_search() -> None:
    config = yaml.safe_load((ROOT / "configs" / "lr_search.yaml").read_text())
    search: Search = search_of(config)
    assert (search.trials, search.at_once) == (20, 4)
    assert search.work == pytest.approx(20 * 0.25 + 5.5 * 0.75, abs=0.1)
    assert search.describe() == (
        "20 trials, at most 4 at a time; about 20 to 25%, 5 to 100% of the steps: the work of 9.1"
    )
