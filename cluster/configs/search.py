"""Trials of a search: how many, how many at a time, and how long they train.

As the searchers of 0.38.1 have it (master/pkg/searcher). Which trials an ASHA stops is not known
before: the counts are means over trials in random order, of which the best at one rung are the best
at the next, and no trial stops before it validates. They are drawn, not derived: whom the master
stops depends on the order in which trials report, and no formula in closed form follows that.
"""

import bisect
import functools
import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cluster.configs.values import mapping, whole
from detalbert.settings.hparams import Length
from detalbert.settings.values import Config

CONCURRENT = 16  # 0.38.1's default of max_concurrent_trials
DIVISOR = 4.0  # 0.38.1's default
MOST_RUNGS = 64
DRAWN_TRIALS = 50_000  # in all draws of an ASHA
ASHA = ("adaptive_asha", "async_halving")


class Rung(NamedTuple):
    """Trials that train at least to a step, in the mean."""

    trials: float
    step: float


class Load(NamedTuple):
    """Trials that follow each other on the machines of one trial."""

    starts: float
    work: float  # in whole trials


class Bracket(NamedTuple):
    """Trials of an ASHA that stop at the same rungs."""

    rungs: int
    trials: int


class Search(NamedTuple):
    """Trials of an experiment."""

    trials: int
    at_once: int
    rungs: tuple[Rung, ...]  # the last has the trials that train to their end; one: all do
    slowest: Load = Load(starts=0.0, work=0.0)  # of an ASHA's brackets, with all its machines

    @property
    def work(self) -> float:
        """Work of all trials, in whole trials."""
        return _work(self.rungs)

    def loads(self, at_once: int, per_machine: int) -> tuple[Load, Load]:
        """Return the mean load, and that of the machines that end last.

        Args:
            at_once: trials at a time.
            per_machine: trials that fit a machine, or the machines of a trial.
        """
        groups = -(-at_once // per_machine)  # of machines
        rounds, last_trials = divmod(self.trials, at_once)
        starts = rounds + -(-last_trials // per_machine) / groups
        mean = Load(starts, work=starts * self.work / self.trials)
        if len(self.rungs) == 1:
            rounds = math.ceil(self.trials / at_once)
            return mean, Load(rounds, work=rounds)
        # Stopped trials make room for the next at any time, but one of all trains to its end, and
        # no bracket takes over the room that another leaves.
        longest = Load(
            starts=max(mean.starts, self.slowest.starts),
            work=max(1.0, mean.work, self.slowest.work),
        )
        return mean, longest

    def describe(self) -> str:
        """Describe the split of the trials in a few words."""
        text = f"{self.trials:,} trials, at most {self.at_once} at a time"
        if len(self.rungs) > 1:
            ends = [f"{rung.trials:.0f} train to step {rung.step:,.0f}" for rung in self.rungs]
            text += f"; about {', '.join(ends)}: the work of {self.work:.1f} whole trials"
        return text


def search_of(config: Mapping[str, object], lengths: Sequence[Length] = ()) -> Search:
    """Return the trials of an experiment's searcher; one for `single` and an invalid one.

    Args:
        lengths: of the trials at its corners; empty: they validate at every step.
    """
    searcher = mapping(config.get("searcher"))
    name = searcher.get("name")
    trials = max(1, whole(searcher.get("max_trials")) or 1)
    if name == "grid":
        trials = _grid_points(mapping(config.get("hyperparameters")))
    elif name not in ("random", *ASHA):
        return Search(trials=1, at_once=1, rungs=(Rung(trials=1.0, step=1.0),))
    limit = whole(searcher.get("max_concurrent_trials"))
    limit = CONCURRENT if limit is None else max(0, limit)  # 0: none
    if name not in ASHA:
        at_once = min(limit, trials) or trials
        rung = Rung(trials=float(trials), step=1.0)
        return Search(trials=trials, at_once=at_once, rungs=(rung,))

    # Each bracket of an ASHA is a search of its own, beside the others.
    divisor = searcher.get("divisor")
    if not isinstance(divisor, (int, float)) or not 1 < divisor < 1e4:
        divisor = DIVISOR
    brackets = _brackets(searcher, trials, divisor)
    parts = _parts(brackets, limit, divisor, halving=name == "async_halving")
    loads = []
    for bracket, part in zip(brackets, parts, strict=True):
        work = _work(_all_rungs([bracket], searcher, divisor, lengths))
        loads.append(Load(starts=bracket.trials / part, work=work / part))
    return Search(
        trials=sum(bracket.trials for bracket in brackets),
        at_once=sum(parts),
        rungs=_all_rungs(brackets, searcher, divisor, lengths),
        slowest=max(loads, key=lambda load: load.work),
    )


def _work(rungs: Sequence[Rung]) -> float:
    """Return the work of trials by their rungs, in whole trials."""
    work = 0.0
    step = 0.0  # of the rung before
    for rung in rungs:
        work += rung.trials * (rung.step - step)
        step = rung.step
    return work / step


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


def _all_rungs(
    brackets: Sequence[Bracket], searcher: Config, divisor: float, lengths: Sequence[Length]
) -> tuple[Rung, ...]:
    """Return the rungs of all brackets of an ASHA together, by the steps at which they stop
    trials.
    """
    rung_count = max(bracket.rungs for bracket in brackets)
    totals = [0.0] * rung_count  # trials that reach each rung
    for bracket in brackets:
        # Brackets share their last rung, a whole trial: one of fewer rungs begins at a later one,
        # and before that none of its trials stops.
        first = rung_count - bracket.rungs
        for rung in range(first):
            totals[rung] += bracket.trials
        reaching = _reaching(bracket.trials, bracket.rungs, divisor=divisor)
        for rung, reached in enumerate(reaching, start=first):
            totals[rung] += reached

    # Each rung is `divisor` times as long as the one before (makeRungs of asha_stopping.go), but
    # the master looks at rungs when a trial reports a validation, at all that it has passed since
    # the one before (doEarlyStopping): rungs between two validations stop trials at the later one.
    units = whole(searcher.get("max_time")) or 1
    lengths = lengths or [Length(units, validation=1, checkpoint=units)]
    all_rungs = list[Rung]()
    for rung, total in enumerate(totals):
        needed = max(1, int(units / divisor ** (rung_count - 1 - rung)))
        steps = [_validated_step(needed, length) for length in lengths]
        step = sum(steps) / len(steps)
        if not all_rungs or step > all_rungs[-1].step:
            all_rungs.append(Rung(trials=total, step=step))
    return tuple(all_rungs)


def _validated_step(needed: int, length: Length) -> int:
    """Return the step of the first validation after `needed` steps; the last step has one."""
    step = -(-needed // length.validation) * length.validation
    return min(step, length.steps)


@functools.cache
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


def _brackets(searcher: Config, trials: int, divisor: float) -> list[Bracket]:
    """Return the brackets of an ASHA (makeBrackets of adaptive_asha.go), most rungs first."""
    if searcher.get("name") == "async_halving":
        return [Bracket(rungs=_rungs(searcher.get("num_rungs")), trials=trials)]
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
    brackets = []
    for rungs, share in zip(rung_counts, shares, strict=True):
        brackets.append(Bracket(rungs=rungs, trials=share))
    return brackets


def _parts(brackets: Sequence[Bracket], limit: int, divisor: float, halving: bool) -> list[int]:
    """Return the trials of each bracket at a time: its part of the limit, at least one
    (getBracketMaxConcurrentTrials of adaptive_asha.go, initialTrials of asha_stopping.go).
    """
    part, remainder = divmod(max(limit, len(brackets)), len(brackets))
    if limit == 0:
        part, remainder = max(brackets[-1].trials, int(divisor)), 0
        if halving:
            part = int(min(divisor ** (brackets[0].rungs - 1), brackets[0].trials))
    parts = [part + (number < remainder) for number in range(len(brackets))]
    return [min(part, bracket.trials) for part, bracket in zip(parts, brackets, strict=True)]


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
