"""Trials of a search, beside a walk through the rules of 0.38.1's searchers."""

import math
import random
from typing import Any

import pytest
import yaml

from cluster.configs.search import Load, Rung, Search, search_of
from detalbert.settings.hparams import Length
from tests.conftest import ROOT


def asha(trials: int, rungs: int, validation: int, draw: random.Random) -> float:
    """Return the work of an ASHA's bracket, in whole trials of 1,024 steps, with ranks that do not
    change: each validation is looked at as doEarlyStopping of 0.38.1 does.
    """
    needed = [1024 // 4 ** (rungs - 1 - rung) for rung in range(rungs)]
    metrics: list[list[float]] = [[] for _ in range(rungs)]
    steps = 0
    for _ in range(trials):
        metric = draw.random()
        step = rung = 0
        trains = True
        while trains:
            step = min(step + validation, 1024)
            while trains and step >= needed[rung]:
                place = sum(other < metric for other in metrics[rung])
                metrics[rung].append(metric)
                trains = rung < rungs - 1 and place < max(1, len(metrics[rung]) // 4)
                rung += 1
        steps += step
    return steps / 1024


@pytest.mark.parametrize(
    "trials, rungs, validation",
    [(20, 2, 4), (100, 4, 4), (64, 3, 4), (7, 2, 4), (100, 4, 256), (100, 4, 100), (20, 3, 2048)],
)
def test_the_work_of_an_asha_is_the_mean_of_many(trials: int, rungs: int, validation: int) -> None:
    draw = random.Random(0)
    mean = sum(asha(trials, rungs, validation, draw) for _ in range(2000)) / 2000
    searcher = {
        "name": "adaptive_asha",
        "mode": "aggressive",
        "max_trials": trials,
        "max_time": 1024,
        "max_rungs": rungs,
    }
    search = search_of({"searcher": searcher}, [Length(1024, validation, checkpoint=1)])
    assert search.work == pytest.approx(mean, rel=0.06)


def test_an_asha_stops_a_trial_at_a_validation() -> None:
    """Rungs at 64, 256 and 1,024 steps: by hand the first two are one if each 256 steps validate,
    and between trials that validate each 100 and each 300 steps the means of 100 and 300, 300 and
    300. What reaches the last step has passed both.
    """
    searcher = {"name": "adaptive_asha", "mode": "aggressive", "max_trials": 20, "max_time": 1024}
    config = {"searcher": searcher}  # log_4(20) + 1 = 3 rungs

    def steps(*validations: int) -> list[float]:
        lengths = [Length(1024, validation, checkpoint=1) for validation in validations]
        return [rung.step for rung in search_of(config, lengths).rungs]

    assert steps(1) == [64, 256, 1024]
    assert steps(256) == [256, 1024]
    assert steps(100, 300) == [200, 300, 1024]
    assert steps(1024) == [1024]
    whole = search_of(config, [Length(1024, 2000, checkpoint=1)])
    assert (whole.work, whole.rungs) == (20, (Rung(20, step=1024),))


def test_brackets_share_the_trials() -> None:
    """makeBrackets of 0.38.1 by hand: weights 4^3 / 4, 4^2 / 3 and 4 / 2 of 100 trials."""
    searcher = {"name": "adaptive_asha", "max_trials": 100, "max_time": 1024, "max_rungs": 5}
    search = search_of({"searcher": searcher})  # log_4(100) + 1 = 4 rungs; standard: 2, 3, 4
    assert search.rungs[0].trials == 100
    assert [rung.step for rung in search.rungs] == [16, 64, 256, 1024]
    conservative = search_of({"searcher": {**searcher, "mode": "conservative"}})
    assert conservative.work > search.work


@pytest.mark.parametrize(
    "changes, limit, at_once",
    [
        # As a real master started them. By hand from getBracketMaxConcurrentTrials of 0.38.1:
        # standard has brackets of 70, 22 and 8 of 100 trials, each with a part of its own.
        ({}, 16, 6 + 5 + 5),
        ({}, 2, 1 + 1 + 1),
        ({}, 40, 14 + 13 + 8),
        ({}, 0, 8 + 8 + 8),
        ({"max_trials": 12}, 0, 4 + 4),
        ({"max_trials": 2, "bracket_rungs": [3, 2, 1]}, 1, 1 + 1 + 1),
        ({"mode": "aggressive"}, 2, 2),
        ({"mode": "aggressive"}, 0, 100),
        ({"name": "async_halving", "num_rungs": 3}, 0, 16),
        ({"name": "async_halving", "num_rungs": 64}, 0, 100),
        ({"name": "async_halving", "num_rungs": 3}, 5, 5),
    ],
)
def test_each_bracket_has_its_part_of_the_trials_at_a_time(
    changes: dict[str, Any], limit: int, at_once: int
) -> None:
    searcher = {"name": "adaptive_asha", "max_trials": 100, "max_time": 1024}
    searcher |= {"max_concurrent_trials": limit, **changes}
    assert search_of({"searcher": searcher}).at_once == at_once


def test_no_bracket_takes_over_the_room_of_another() -> None:
    """By hand, and on a real master: brackets of 12, 3 and 1 trials, one of each at a time. So the
    12 trials of the first follow each other.
    """
    searcher = {"name": "adaptive_asha", "mode": "conservative", "max_trials": 16, "max_rungs": 3}
    searcher |= {"max_time": 1024, "max_concurrent_trials": 2}
    search = search_of({"searcher": searcher})
    mean, longest = search.loads(search.at_once, per_machine=1)
    draw = random.Random(0)
    first = sum(asha(12, rungs=3, validation=1, draw=draw) for _ in range(500)) / 500
    assert (mean.starts, longest.starts) == (16 / 3, 12)
    assert mean.work == pytest.approx(search.work / 3)
    assert longest.work == pytest.approx(first, rel=0.06)


def test_each_bracket_has_a_trial() -> None:
    """Three on a real master, whatever max_trials says."""
    searcher = {
        "name": "adaptive_asha",
        "max_trials": 2,
        "max_time": 64,
        "bracket_rungs": [3, 2, 1],
    }
    search = search_of({"searcher": searcher})
    assert search.trials == 3
    assert search.rungs[0].trials == 3


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
        ({"name": "random", "max_trials": 99, "max_concurrent_trials": None}, 99, 16),
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
        mean, longest = search.loads(search.at_once, per_machine=1)
        assert longest.work >= 1
        assert longest.starts >= mean.starts >= 1
        assert search.describe()


@pytest.mark.parametrize(
    "at_once, per_machine, mean, longest",
    [
        (4, 1, 5, 5),
        (16, 1, 20 / 16, 2),  # four machines train a second one
        (16, 2, 10 / 8, 2),  # two of eight machines
        (3, 2, 13 / 2, 7),  # six rounds of 2 + 1 trials on two machines, and 2 trials on one
        (20, 1, 1, 1),
    ],
)
def test_the_load_of_a_machine(at_once: int, per_machine: int, mean: float, longest: float) -> None:
    search = search_of({"searcher": {"name": "random", "max_trials": 20}})
    assert search.loads(at_once, per_machine) == (Load(mean, mean), Load(longest, longest))


def test_the_shipped_search() -> None:
    config = yaml.safe_load((ROOT / "configs" / "lr_search.yaml").read_text())
    search: Search = search_of(config, [Length(1024, validation=256, checkpoint=256)])
    assert (search.trials, search.at_once) == (20, 4)
    assert search.work == pytest.approx(20 * 0.25 + 5.5 * 0.75, abs=0.1)
    assert search.describe() == (
        "20 trials, at most 4 at a time; about 20 train to step 256, 5 train to step 1,024: the "
        "work of 9.1 whole trials"
    )
