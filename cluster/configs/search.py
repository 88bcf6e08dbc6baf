"""Trials of a search: how many, how many at a time, and how long they train.

As the searchers of 0.38.1 have it (master/pkg/searcher). Which trials an ASHA stops is not known
before: the counts are means over trials in random order, of which the best at one rung are the best
at the next. They are drawn, not derived: whom the master stops depends on the order in which trials
report, and no formula in closed form follows that.
"""

import bisect
import math
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from detalbert.settings.schema import mapping, whole
from detalbert.settings.values import Config

CONCURRENT = 16  # 0.38.1's default of max_concurrent_trials
DIVISOR = 4.0  # 0.38.1's default
MOST_RUNGS = 64
DRAWN_TRIALS = 50_000  # in all draws of an ASHA
ASHA = ("adaptive_asha", "async_halving")


class Rung(NamedTuple):
    """Trials that train until a share of their length."""

    trials: float  # in the mean
    share: float


class Search(NamedTuple):
    """Trials of an experiment."""

    trials: int
    at_once: int
    rungs: tuple[Rung, ...]  # the last has the trials that train to their end

    @property
    def work(self) -> float:
        """Work of all trials, in whole trials."""
        work = 0.0
        before = 0.0  # share of its length that a trial has trained at the rung before
        for rung in self.rungs:
            work += rung.trials * (rung.share - before)
            before = rung.share
        return work

    def rounds(self, at_once: int) -> float:
        """Return how many times as long as a whole trial the search takes."""
        if len(self.rungs) == 1:
            return math.ceil(self.trials / at_once)
        return max(1.0, self.work / at_once)

    def describe(self) -> str:
        """Describe the split of the trials in a few words."""
        text = f"{self.trials:,} trials, at most {self.at_once} at a time"
        if len(self.rungs) > 1:
            ends = [f"{rung.trials:.0f} to {rung.share:.0%}" for rung in self.rungs]
            split = ", ".join(ends)
            text += f"; about {split} of the steps: the work of {self.work:.1f}"
        return text


def search_of(config: Mapping[str, object]) -> Search:
    """Return the trials of an experiment's searcher; one for `single` and an invalid one."""
    searcher = mapping(config.get("searcher"))
    name = searcher.get("name")
    trials = max(1, whole(searcher.get("max_trials")) or 1)
    if name == "grid":
        trials = _grid_points(mapping(config.get("hyperparameters")))
    elif name not in ("random", *ASHA):
        return Search(trials=1, at_once=1, rungs=(Rung(trials=1.0, share=1.0),))
    at_once = whole(searcher.get("max_concurrent_trials", CONCURRENT)) or trials
    at_once = max(1, min(at_once, trials))
    if name in ASHA:
        rungs = _all_rungs(searcher, trials)
    else:
        rungs = [Rung(trials=float(trials), share=1.0)]
    return Search(trials=trials, at_once=at_once, rungs=tuple(rungs))


def _grid_points(values: Config) -> int:
    """Return the number of a grid's points: choices and counts, of nested values too."""
    points = 1
    for value in values.values():
        keys = mapping(value)
        kind = keys.get("type")
        if kind == "categorical":
            values_of_key = keys.get("vals")
            if isinstance(values_of_key, list):
                points *= max(1, len(values_of_key))
        elif kind in ("int", "double", "log"):
            points *= _axis_points(keys)
        elif kind is None and keys:
            points *= _grid_points(keys)
    return points


def _axis_points(keys: Config) -> int:
    """Return the points of a range: its count, or the whole numbers in it if these are fewer."""
    count = whole(keys.get("count")) or 1
    low = whole(keys.get("minval"))
    high = whole(keys.get("maxval"))
    if keys["type"] == "int" and low is not None and high is not None:
        count = min(count, high - low + 1)
    return max(1, count)


def _all_rungs(searcher: Config, trials: int) -> list[Rung]:
    """Return the rungs of all brackets of an ASHA together."""
    divisor = searcher.get("divisor")
    if not isinstance(divisor, (int, float)) or not 1 < divisor < 1e6:
        divisor = DIVISOR
    brackets = list(_brackets(searcher, trials, divisor))
    rung_count = max(bracket.rungs for bracket in brackets)
    totals = [0.0] * rung_count  # trials that reach each rung
    for bracket in brackets:
        # Brackets share their last rung, a whole trial: one of fewer rungs begins at a later one,
        # and before that none of its trials stops.
        first = rung_count - bracket.rungs
        for rung in range(first):
            totals[rung] += bracket.trials
        reaching = _reaching(bracket.trials, bracket.rungs, divisor)
        for rung, reached in enumerate(reaching, start=first):
            totals[rung] += reached

    # Each rung is `divisor` times as long as the one before; the last is a whole trial.
    all_rungs = []
    for rung, total in enumerate(totals):
        share = divisor ** (rung + 1 - rung_count)
        all_rungs.append(Rung(trials=total, share=share))
    return all_rungs


def _reaching(trials: int, rungs: int, divisor: float) -> list[float]:
    """Return how many trials of a bracket reach each of its rungs, in the mean of many draws.

    A trial that reports at a rung trains on if it is among the best of those that have: 1 / divisor
    of them, at least the best one (doEarlyStopping of asha_stopping.go).
    """
    generator = random.Random(0)
    reached = [0] * rungs
    drawn = min(trials, DRAWN_TRIALS)  # of more trials the same shares go on
    draws = DRAWN_TRIALS // drawn
    for _ in range(draws):
        reported: list[list[float]] = [[] for _ in range(rungs)]  # metrics at each rung, sorted
        for _ in range(drawn):
            # One metric for all rungs: the best at one are the best at the next.
            metric = generator.random()
            for rung, metrics in enumerate(reported):
                reached[rung] += 1
                place = bisect.bisect(metrics, metric)
                metrics.insert(place, metric)
                trains_on = max(1, int(len(metrics) / divisor))
                if place >= trains_on:
                    break
    return [count / draws * trials / drawn for count in reached]


class Bracket(NamedTuple):
    """Trials of an ASHA that stop at the same rungs."""

    rungs: int
    trials: int


def _brackets(searcher: Config, trials: int, divisor: float) -> Iterator[Bracket]:
    """Yield the brackets of an ASHA (makeBrackets of adaptive_asha.go)."""
    if searcher.get("name") == "async_halving":
        yield Bracket(rungs=_rungs(searcher.get("num_rungs")), trials=trials)
        return
    configured = searcher.get("bracket_rungs")
    if not configured or not isinstance(configured, list):
        configured = _mode_rungs(searcher, trials, divisor)
    rung_counts = [_rungs(count) for count in configured]
    rung_counts.sort(reverse=True)

    # A bracket of more rungs stops more of its trials early, so it gets more of them.
    weights = [divisor ** (count - 1) / count for count in rung_counts]
    shares = []
    for weight in weights:
        share = int(weight / sum(weights) * trials)
        shares.append(max(1, share))
    # The bracket with the most rungs has what is left.
    shares[0] += max(0, trials - sum(shares))
    for rungs, share in zip(rung_counts, shares, strict=True):
        yield Bracket(rungs=rungs, trials=share)


def _rungs(value: object) -> int:
    """Return a number of rungs, 1 for an invalid one."""
    rungs = whole(value) or 1
    return min(max(1, rungs), MOST_RUNGS)


def _mode_rungs(searcher: Config, trials: int, divisor: float) -> list[int]:
    """Return the rungs of each bracket by the searcher's `mode`."""
    max_rungs = _rungs(searcher.get("max_rungs") or 5)
    length = max(1, whole(searcher.get("max_time")) or 1)
    # The first rung is at least one batch long, and the top one has at least one trial.
    for number in (length, trials):
        max_rungs = min(max_rungs, int(math.log(number) / math.log(divisor)) + 1)
    mode = searcher.get("mode")
    fewest = (max_rungs - 1) // 2 + 1  # of `standard`, the default
    if mode == "aggressive":
        fewest = max_rungs
    elif mode == "conservative":
        fewest = 1
    return list(range(fewest, max_rungs + 1))
