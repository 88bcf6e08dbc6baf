"""Which option to take, and why not another."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cluster.planning.cases import SURE
from cluster.planning.options import Option
from detalbert.errors import UserError

NEAR = 1.05  # a cost that is so many times the cheapest is as good
WORDS = {"hours": "the deadline", "cost": "the budget"}


class Recommendation(NamedTuple):
    """The recommended option."""

    option: Option
    why: str
    kept: bool = True  # deadline and budget are kept


def finishing(options: Sequence[Option]) -> list[Option]:
    """Return the options that can run and end in all cases, the cheapest first."""
    fine = [option for option in options if not option.why_not and option.ends]
    fine.sort(key=lambda option: option.mean("hours"))
    fine.sort(key=lambda option: option.mean("cost"))  # stable: of equal cost the fastest first
    return fine


def recommend(options: Sequence[Option], limits: Mapping[str, float]) -> Recommendation:
    """Return the option to take.

    Of those of which SURE per cent of the runs keep to the limits: with a budget the fastest, else
    of those that cost at most NEAR times the cheapest the fastest. If none keeps to the limits: the
    fastest with a deadline, else the cheapest.

    Raises:
        UserError: if none can run, or none ends.
    """
    fine = finishing(options)
    if not fine:
        raise UserError(f"no option can run: {_why_none(options)}")
    keeping = [option for option in fine if keeps(option, limits)]
    if not keeping:
        return _nearest(fine, limits)
    if len(fine) == 1:
        return Recommendation(fine[0], "the one that can run")
    meeting = ""
    if limits:
        given = " and ".join(WORDS[what] for what in limits)
        meeting = f" of which {SURE} % of runs meet {given}"
    if len(keeping) == 1:
        return Recommendation(keeping[0], f"the only one of {len(fine)} options{meeting}")
    among = f"of {len(keeping)} options{meeting}"
    if "cost" in limits:
        return Recommendation(_fastest(keeping), f"the fastest {among}")
    cheapest = keeping[0]
    near = [option for option in keeping if option.mean("cost") <= NEAR * cheapest.mean("cost")]
    best = _fastest(near)
    if best is cheapest:
        return Recommendation(best, f"the cheapest {among}")
    return Recommendation(best, f"the fastest within {NEAR - 1:.0%} of the cheapest {among}")


def _why_none(options: Sequence[Option]) -> str:
    """Return the most frequent reason why options cannot run."""
    reasons = Counter(option.why_not for option in options if option.why_not)
    if not reasons:
        return "none ends where reclaims are frequent; take --any"
    ((reason, _),) = reasons.most_common(1)
    return reason


def _nearest(fine: Sequence[Option], limits: Mapping[str, float]) -> Recommendation:
    """Return the option that comes nearest to limits that none keeps to."""
    none = "no option meets what was asked, and this is the"
    if "hours" in limits:
        why = f"MISSES THE DEADLINE; {none} fastest"
        return Recommendation(_fastest(fine), why, kept=False)
    return Recommendation(fine[0], f"IS OVER THE BUDGET; {none} cheapest", kept=False)


def keeps(option: Option, limits: Mapping[str, float]) -> bool:
    """Return whether SURE per cent of an option's runs keep to the limits."""
    return all(option.sure(what) <= most for what, most in limits.items())


def _fastest(options: Sequence[Option]) -> Option:
    return min(options, key=lambda option: (option.mean("hours"), option.mean("cost")))


def front(options: Sequence[Option]) -> Iterator[Option]:
    """Yield the options that none beats in both time and cost, the fastest first."""
    cheapest = math.inf
    for option in sorted(finishing(options), key=lambda option: option.mean("hours")):
        if option.mean("cost") < cheapest:
            cheapest = option.mean("cost")
            yield option


def reasons_against(
    choice: Recommendation, options: Sequence[Option], limits: Mapping[str, float]
) -> Iterator[tuple[str, Option, str]]:
    """Yield the cheapest and the fastest option, where they are others, and why not these."""
    best = choice.option
    fine = finishing(options)
    cheapest = fine[0]
    fastest = _fastest(fine)
    if cheapest is not best:
        reason = _misses(cheapest, limits) or _compare(cheapest, best)
        yield "cheapest", cheapest, reason
    if fastest is not best and fastest is not cheapest:
        reason = _misses(fastest, limits) or _compare(fastest, best)
        yield "fastest", fastest, reason


def _misses(option: Option, limits: Mapping[str, float]) -> str:
    """Return which limit an option does not keep to; empty if it does."""
    forms = {"hours": "{:,.2f} h", "cost": "${:,.2f}"}
    for what, most in limits.items():
        sure = option.sure(what)
        if sure > most:
            form = forms[what].format
            return f"{SURE} % of its runs take up to {form(sure)}, not {form(most)}"
    return ""


def _compare(option: Option, best: Option) -> str:
    """Return how many times the recommended option's time and cost another takes."""
    slower = option.mean("hours") / best.mean("hours")
    text = f"{slower:,.2g} x the time"
    if best.mean("cost"):
        dearer = option.mean("cost") / best.mean("cost")
        text += f", {dearer:,.2g} x the cost"
    return text
