"""Which option to take, and why not another.

One option is recommended by rules that fit into its sentence, not by a weight of hours against
dollars: the plan shows the front, from which a user who weighs them otherwise picks another.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cluster.planning.cases import SURE
from cluster.planning.options import Option
from detalbert.errors import UserError

NEAR = 1.05  # a cost that is so many times the cheapest is as good
LIMIT_NAMES = {"hours": "the deadline", "cost": "the budget"}


class Recommendation(NamedTuple):
    """The recommended option."""

    option: Option
    why: str
    within_limits: bool = True  # deadline and budget are met


class Rejection(NamedTuple):
    """An option that is the best in one respect, and why it is not recommended."""

    rank: str  # cheapest or fastest
    option: Option
    reason: str


def finishing(options: Sequence[Option]) -> list[Option]:
    """Return the options that can run and end in all cases, the cheapest first, those without a
    price last.
    """
    finishing_options = [option for option in options if not option.why_not and option.ends]
    finishing_options.sort(key=_hours)
    finishing_options.sort(key=_cost)  # stable: of equal cost the fastest first
    return finishing_options


def recommend(options: Sequence[Option], limits: Mapping[str, float]) -> Recommendation:
    """Return the option to take.

    Of those of which SURE per cent of the runs keep to the limits: with a budget the fastest, else
    of those that cost at most NEAR times the cheapest the fastest; one without a price if no other
    keeps to a deadline. If none keeps to the limits: the cheapest of those that meet the deadline,
    or the fastest if none does.

    Raises:
        UserError: if none can run, or none ends.
    """
    candidates = finishing(options)
    if not candidates:
        raise UserError(f"no option can run: {_why_none(options)}")
    suitable = [option for option in candidates if is_within(option, limits)]
    if not suitable:
        return _nearest_to_limits(candidates, limits)
    if len(candidates) == 1:
        return Recommendation(candidates[0], why="the one that can run")

    # The sentence says among how many options the recommended one was chosen.
    condition = ""
    if limits:
        names = " and ".join(LIMIT_NAMES[figure] for figure in limits)
        condition = f" of which {SURE} % of runs meet {names}"
    if len(suitable) == 1:
        why = f"the only one of {len(candidates)} options{condition}"
        return Recommendation(suitable[0], why=why)
    among = f"of {len(suitable)} options{condition}"

    # A budget is there to be spent; without one, money counts more than time.
    if "cost" in limits:
        return Recommendation(_fastest(suitable), why=f"the fastest {among}")
    cheapest = suitable[0]
    if cheapest.price is None:
        return Recommendation(cheapest, why=f"the fastest {among}; none of them has a price")
    near = [option for option in suitable if _cost(option) <= NEAR * _cost(cheapest)]
    best = _fastest(near)
    if best is cheapest:
        return Recommendation(best, why=f"the cheapest {among}")
    return Recommendation(best, why=f"the fastest within {NEAR - 1:.0%} of the cheapest {among}")


def _hours(option: Option) -> float:
    return option.mean("hours")


def _cost(option: Option) -> float:
    return option.mean("cost")


def _why_none(options: Sequence[Option]) -> str:
    """Return the most frequent reason why options cannot run."""
    reasons = Counter(option.why_not for option in options if option.why_not)
    if not reasons:
        return "none ends where reclaims are frequent; take --any"
    ((reason, _),) = reasons.most_common(1)
    return reason


def _nearest_to_limits(candidates: Sequence[Option], limits: Mapping[str, float]) -> Recommendation:
    """Return the option that comes nearest to limits that none keeps to."""
    deadline = limits.get("hours", math.inf)
    in_time = [option for option in candidates if is_within(option, {"hours": deadline})]
    if in_time:
        option = in_time[0]
        rank = "cheapest" if option.price else "fastest"
    else:
        option = _fastest(candidates)
        rank = "fastest"
    if in_time and "hours" in limits:
        rank += f" of which {SURE} % of runs meet the deadline"
    missed = []
    if not in_time:
        missed.append("MISSES THE DEADLINE")
    if _misses(option, "cost", limits):
        missed.append("IS OVER THE BUDGET" if option.price else "HAS NO PRICE")
    why = f"{' and '.join(missed)}; no option meets what was asked, and this is the {rank}"
    return Recommendation(option, why=why, within_limits=False)


def is_within(option: Option, limits: Mapping[str, float]) -> bool:
    """Return whether SURE per cent of an option's runs keep to the limits."""
    return not any(_misses(option, figure, limits) for figure in limits)


def _misses(option: Option, figure: str, limits: Mapping[str, float]) -> bool:
    return option.sure(figure) > limits.get(figure, math.inf)


def _fastest(options: Sequence[Option]) -> Option:
    return min(options, key=lambda option: (_hours(option), _cost(option)))


def front(options: Sequence[Option]) -> Iterator[Option]:
    """Yield the options with a price that none beats in both time and cost, the fastest first."""
    cheapest = math.inf
    for option in sorted(finishing(options), key=_hours):
        # Each later one is slower: it must cost less than all before it.
        if _cost(option) < cheapest:
            cheapest = _cost(option)
            yield option


def reasons_against(
    choice: Recommendation, options: Sequence[Option], limits: Mapping[str, float]
) -> Iterator[Rejection]:
    """Yield the cheapest and the fastest option, where they are others, and why not these."""
    candidates = finishing(options)
    cheapest = candidates[0]
    fastest = _fastest(candidates)
    # One that is both is named once, as the cheapest.
    if cheapest is not choice.option:
        reason = _missed_limit(cheapest, limits) or _compare(cheapest, choice.option)
        yield Rejection("cheapest", option=cheapest, reason=reason)
    if fastest is not choice.option and fastest is not cheapest:
        reason = _missed_limit(fastest, limits) or _compare(fastest, choice.option)
        yield Rejection("fastest", option=fastest, reason=reason)


def _missed_limit(option: Option, limits: Mapping[str, float]) -> str:
    """Return which limit an option does not keep to; empty if it does."""
    forms = {"hours": "{:,.2f} h", "cost": "${:,.2f}"}
    for figure, limit in limits.items():
        if _misses(option, figure, limits):
            if figure == "cost" and option.price is None:
                return "it has no price"
            form = forms[figure].format
            return f"{SURE} % of its runs take up to {form(option.sure(figure))}, not {form(limit)}"
    return ""


def _compare(option: Option, best: Option) -> str:
    """Return how many times the recommended option's time and cost another takes."""
    slower = _hours(option) / _hours(best)
    text = f"{slower:,.2g} x the time"
    if option.price and best.price:
        dearer = _cost(option) / _cost(best)
        text += f", {dearer:,.2g} x the cost"
    return text
