"""The choice among options: the front, the recommendation, and why others are not taken."""

import math

import pytest

from cluster.configs.search import search_of
from cluster.facts.prices import load_prices
from cluster.facts.spot import CASES
from cluster.plan import any_cluster
from cluster.planning.cases import Case
from cluster.planning.choice import front, reasons_against, recommend
from cluster.planning.options import Option
from cluster.planning.plan_text import spread_front
from detalbert.errors import UserError


def option(hours: float, cost: float, why_not: str = "", high: float | None = None) -> Option:
    """Return an option with these means, without a price if the cost is infinite; `high` is its
    hours in the worst case.
    """
    prices = load_prices()
    pool = next(iter(any_cluster(prices).pools.values()))
    figures = {}
    for end in ("", " 5 %", " 95 %"):
        figures[f"hours{end}"] = hours
        figures[f"cost{end}"] = cost
    cases = [Case(name, CASES[name], hourly=1.0, figures=figures) for name in CASES]
    if high is not None:
        cases[2] = cases[2]._replace(figures={**figures, "hours 95 %": high})
    return Option(
        pool,
        prices["p4d.24xlarge"] if math.isfinite(cost) else None,
        8,
        search=search_of({}),
        cases=cases,
        why_not=why_not,
    )


def test_near_neighbours_on_the_front_leave_the_table():
    # Twice the hours for half the cost is the same distance everywhere.
    places = [0, 1, 2, 3, 4, 5, 5.2, 6, 7]
    options = [option(hours=2.0**place, cost=2.0**-place) for place in places]
    assert spread_front(options) == [*options[:6], *options[7:]]
    assert spread_front(options[:5]) == options[:5]


def test_the_front_and_the_recommendation_leave_out_what_cannot_run():
    fastest = option(1, 9)
    middle = option(2, 5)
    dominated = option(3, 5)
    cheapest = option(2.5, 1)
    impossible = option(0.5, 0.1, "no code")
    options = [fastest, middle, dominated, cheapest, impossible]

    assert list(front(options)) == [fastest, middle, cheapest]
    assert recommend(options, {"hours": 2.0}).option is middle
    assert recommend(options, {}).option is cheapest

    # One without an end is not taken, and of none that can run nothing is recommended.
    endless = option(math.inf, math.inf)
    assert recommend([endless, fastest], {}).option is fastest
    with pytest.raises(UserError, match="no code"):
        recommend([impossible], {})
    with pytest.raises(UserError, match="none ends"):
        recommend([endless], {})


def test_of_what_costs_as_little_the_fastest_is_taken():
    """169 hours for $2,131 beside 85 for $2,132; nothing whose worst case has no end."""
    slow = option(168.7, 2131)
    fast = option(84.5, 2132)
    dear = option(60, 2300)
    endless = option(8738.7, 367, high=math.inf)

    choice = recommend([slow, fast, dear], {})
    assert choice.option is fast
    assert "the fastest within 5% of the cheapest of 3" in choice.why
    assert recommend([endless, slow, fast, dear], {}).option is fast


def test_a_budget_buys_speed_and_a_deadline_the_cheapest_that_keeps_it():
    cheapest = option(10, 10)
    second = option(5, 18)
    third = option(2, 30)
    fastest = option(1, 90)
    options = [cheapest, second, third, fastest]

    assert recommend(options, {"cost": 40}).option is third
    assert recommend(options, {"hours": 6}).option is second
    assert recommend(options, {"hours": 6, "cost": 40}).option is third

    over = recommend(options, {"cost": 5})
    assert over.option is cheapest
    assert not over.within_limits
    assert "OVER THE BUDGET" in over.why

    late = recommend(options, {"hours": 0.5, "cost": 40})
    assert late.option is fastest
    assert not late.within_limits
    assert "MISSES THE DEADLINE and IS OVER THE BUDGET" in late.why


def test_of_two_limits_the_sentence_names_the_one_that_is_missed():
    """An option of 0.22 h missed a deadline of 0.5 h, where only the budget was too small."""
    cheap = option(3.0, 2.8)
    middle = option(0.35, 7.8)
    fast = option(0.22, 23.7)

    over = recommend([cheap, middle, fast], {"hours": 0.5, "cost": 1})
    assert over.option is middle
    assert over.why.startswith("IS OVER THE BUDGET; ")
    assert over.why.endswith("the cheapest of which 95 % of runs meet the deadline")
    assert not over.within_limits

    late = recommend([cheap, middle, fast], {"hours": 0.2, "cost": 30})
    assert late.option is fast
    assert late.why.startswith("MISSES THE DEADLINE; ")


def test_an_option_without_a_price_is_not_free():
    lab = option(0.5, math.inf)
    slow_lab = option(4.0, math.inf)
    cheap = option(3.0, 2.8)
    fast = option(1.0, 9.0)
    options = [lab, slow_lab, cheap, fast]

    assert recommend(options, {}).option is cheap
    assert list(front(options)) == [fast, cheap]
    assert recommend(options, {"cost": 10}).option is fast
    only_lab = recommend(options, {"hours": 0.8})
    assert only_lab.option is lab
    assert only_lab.within_limits

    # Its dollars are compared with nothing.
    limits = {"cost": 10.0}
    _, rejection = reasons_against(recommend(options, limits), options, limits)
    assert rejection == ("fastest", lab, "it has no price")
    (rejection,) = reasons_against(recommend(options, {}), options, {})
    assert rejection == ("fastest", lab, "0.17 x the time")

    # Where nothing has a price, hours decide, and a budget is not met.
    best = recommend([lab, slow_lab], {})
    assert (best.option, best.why) == (lab, "the fastest of 2 options; none of them has a price")
    budget = recommend([lab, slow_lab], {"cost": 1})
    assert not budget.within_limits
    assert budget.why.startswith("HAS NO PRICE; ")


def test_why_it_is_not_the_cheapest_or_the_fastest():
    cheapest = option(10, 10)
    middle = option(5, 20)
    fastest = option(1, 90)
    options = [cheapest, middle, fastest]
    limits = {"hours": 6.0}

    first, second = reasons_against(recommend(options, limits), options, limits)

    reason = "95 % of its runs take up to 10.00 h, not 6.00 h"
    assert first == ("cheapest", cheapest, reason)
    assert second == ("fastest", fastest, "0.2 x the time, 4.5 x the cost")
