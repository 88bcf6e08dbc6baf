"""Machines for a run, its hours and dollars, before anything is paid for.

python -m cluster.plan configs/modern8.yaml --deadline 2
python -m cluster.plan configs/lm_13b.yaml --master my.yaml --set hyperparameters.max_steps=900
python -m cluster.plan configs/pretrain_base.yaml --region eu-west-1 --budget 500 --html plan.html

Nothing is started or downloaded. Exit status 0; 2 with one line: what is wrong; 3: no option keeps
to the budget and the deadline; 4: with --ask no master answers. cluster/planning.md has the rules.
"""

import json
import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from detalbert.command import (
    Parser,
    add_price_pool,
    existing_file,
    needing,
    number,
    page_file,
    refuse_first,
)
from detalbert.errors import UserError, nearest
from detalbert.escapes import escape_controls, one_line


def _parser() -> Parser:
    parser = Parser(prog="cluster.plan", description=__doc__)
    add = parser.add_argument
    add("config", type=existing_file, metavar="CONFIG", help="experiment config")
    pools = parser.add_mutually_exclusive_group()
    pools.add_argument(
        "--any", action="store_true", help="every machine that AWS launches, the default"
    )
    pools.add_argument(
        "--master", type=existing_file, metavar="FILE", help="the pools of a master config"
    )
    pools.add_argument("--ask", action="store_true", help="the pools of the master of DET_MASTER")
    add("--region", default="", metavar="R", help="AWS region (default: that of a pool)")
    add("--spot", action="store_true", help="spot machines alone")
    add(
        "--deadline",
        type=number("--deadline", 1e-3, 1e6),
        default=math.inf,
        metavar="N",
        help="hours within which the run must end",
    )
    add(
        "--budget",
        type=number("--budget", 0.01, 1e15),
        default=math.inf,
        metavar="N",
        help="dollars that it may cost",
    )
    add_price_pool(parser)
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="config key to set")
    add("--json", action="store_true", help="print the plan as JSON")
    add("--html", type=page_file, metavar="FILE", help="also write a page")
    return parser


if __name__ == "__main__":
    refuse_first("cluster.plan", lambda: _parser().parse_args())

import pandas as pd

from cluster.job import Job, read_job
from cluster.options import find_front, market_pools, plan_options, priced_pool
from cluster.pools import Pool, connect
from cluster.prices import PRICE_DAY, parse_pool_price
from cluster.published import FINE_TUNING, MODEL
from detalbert.log import exit_with, fail
from detalbert.settings.experiment import find_problems, load

ROOT = Path(__file__).parents[1]  # of the repository
MOST_ROWS = 12
# Of a row of --json.
FIELDS = [
    *("machine", "count", "slots", "market", "region", "hours", "dollars"),
    *("efficiency", "measured", "fits", "pool"),
]


class Plan(NamedTuple):
    """Options for a run and the one to take."""

    job: Job
    options: pd.DataFrame  # cheapest first, see options.plan_options
    best: Any  # row of the option to take
    headline: str  # the option to take, and why
    keeps_limits: bool
    unknown: list[str]  # pools whose machines are not known

    @property
    def published(self) -> Any:
        """The published run of this model in April 2021; None of another model."""
        return FINE_TUNING[-1] if str(self.job.hparams.model).endswith(MODEL) else None


def main(argv: list[str] | None = None) -> int:
    """Print the plan; return the exit status."""
    try:
        args = _parser().parse_args(argv)
        with needing("cluster"):
            plan = make_plan(args)
            notes = list(map(one_line, _notes(plan)))
            if args.html is not None:
                from cluster.plan_page import write_page  # matplotlib takes a second

                write_page(
                    args.html,
                    title=f"Plan for {args.config}",
                    lines=[plan.headline, *notes],
                    plan=plan,
                )
    except UserError as error:
        return fail("cluster.plan", error)
    if args.json:
        print(as_json(plan))
    else:
        print(escape_controls("\n".join([plan.headline, "", option_table(plan), *notes])))
    return 0 if plan.keeps_limits else 3


def make_plan(args: Namespace) -> Plan:
    """Return the plan that was asked for.

    Raises:
        UserError: if something is wrong, or nothing fits.
    """
    config = load(args.config, args.set)
    problems = find_problems(config)
    if problems:
        raise problems[0].under(f"{args.config}: {problems[0].key}")
    job = read_job(config, ROOT)
    pools = find_pools(args)
    if args.spot:
        pools = [pool for pool in pools if pool.spot]
    options = plan_options(pools, job)
    fitting = options[options["fits"]]
    if fitting.empty:
        raise UserError(options["why"].iloc[0], key=str(args.config), cure="plan with --any")

    # The cheapest within the limits; if there is none, what comes nearest to them. What has no
    # price is in no budget.
    is_late = fitting["hours"] > args.deadline
    is_dear = fitting["dollars"].fillna(math.inf) > args.budget
    within = fitting[~(is_late | is_dear)]
    by_hours = fitting.sort_values("hours", kind="stable")
    fastest = f"the fastest, {_describe(by_hours.iloc[0])}"
    if within.empty:
        best = by_hours.iloc[0] if is_late.all() else fitting.iloc[0]
        cheapest = f"the cheapest, {_describe(fitting.iloc[0])}"
        headline = f"no option keeps to the limits: {cheapest}; {fastest}"
    else:
        best = within.iloc[0]
        kind = "fastest" if math.isnan(best["dollars"]) else "cheapest"
        headline = f"take {_describe(best)} ({kind} of {len(within)}; {fastest})"
    return Plan(
        job=job,
        options=options,
        best=best,
        headline=headline,
        keeps_limits=not within.empty,
        unknown=[pool.name for pool in pools if pool.gpu is None and pool.slots != 0],
    )


def find_pools(args: Namespace) -> list[Pool]:
    """Return the pools that the flags name, with their prices."""
    if args.master is None and not args.ask:
        if args.price_pool:
            raise UserError("of no pool", key="--price-pool", cure="give --master or --ask, too")
        return list(market_pools(args.region))
    priced_as = {}
    for text in args.price_pool:
        name, machine, market = parse_pool_price(text, args.region)
        priced_as[name] = machine, market
    pools, _ = connect(args)
    for name in priced_as.keys() - pools.keys():
        raise UserError("no such pool", key=f"--price-pool {name}", cure=nearest(name, pools))
    return [priced_pool(pool, args.region, priced_as.get(name)) for name, pool in pools.items()]


def _describe(option: Any) -> str:
    dollars = option["dollars"]
    money = "no price" if math.isnan(dollars) else f"${dollars:,.2f}"
    name = f"{option['count']} x {option['machine']}, {option['market']}"
    return f"{name}: {option['hours']:,.1f} h, {money}"


def option_table(plan: Plan) -> str:
    """Return the front and the cheapest options, at most MOST_ROWS, and a star at the best one."""
    fitting = plan.options[plan.options["fits"]]
    best = fitting.loc[[plan.best.name]]
    rows = pd.concat([best, find_front(fitting), fitting])
    rows = rows[~rows.index.duplicated()].head(MOST_ROWS).sort_index()
    cells = pd.DataFrame(
        {
            "": ["*" if index == plan.best.name else "" for index in rows.index],
            "machine": rows["count"].astype(str) + " x " + rows["machine"],
            "slots": rows["slots"],
            "market": rows["market"],
            "hours": rows["hours"],
            "dollars": rows["dollars"],
            "GPU": rows["GPU"],
            "speed": ("nearest: " + rows["nearest"]).mask(rows["measured"], "measured"),
            "pool": rows["pool"],
        }
    )
    # pandas aligns to the right: texts are filled up.
    cells = cells.dropna(axis="columns", how="all")
    formats: dict[str, Any] = {"hours": "{:,.1f}".format, "dollars": "{:,.2f}".format}
    for column in ("machine", "market", "GPU", "speed"):
        formats[column] = f"{{:<{cells[column].str.len().max()}}}".format
    return cells.to_string(index=False, justify="left", na_rep="-", formatters=formats)


def _notes(plan: Plan) -> Iterator[str]:
    """Yield what a plan rests on, and what it leaves out."""
    job = plan.job
    note = f"prices of {_regions(plan)} of {PRICE_DAY:%-d %B %Y}"
    run = plan.published
    if run is not None:
        machines = f"{run.machines} x {run.instance}, {run.hours} h"
        note += f"; in April 2021 the published run cost ${run.cost:.0f} ({machines})"
    yield note
    if job.trials > 1:
        yield f"of a search of {job.trials} trials, one after the other; an ASHA stops some before"
    period = plan.best["period"]
    if period < job.length.checkpoint:
        yield f"set hyperparameters.checkpoint_period={period}, so that a reclaim costs less"
    if plan.best["is_tight"]:
        yield f"lower hyperparameters.max_tokens_per_forward for a {plan.best['GPU']}, or set auto"
    for pool in plan.unknown:
        yield f"pool {pool}: unknown machines; give --price-pool {pool}=INSTANCE[:spot]"
    reasons = plan.options["why"].value_counts().drop("", errors="ignore")
    for reason, count in reasons.items():
        yield f"{count} left out: {reason}"


def _regions(plan: Plan) -> str:
    return ", ".join(sorted(plan.options["region"].unique()))


def as_json(plan: Plan) -> str:
    """Return the plan as JSON."""
    # By pandas, which writes null for what is not known.
    rows = json.loads(plan.options[FIELDS].to_json(orient="records"))
    content = {
        "recommended": rows[plan.best.name],
        "options": rows,
        "prices": {"region": _regions(plan), "date": PRICE_DAY.isoformat()},
        "job": {
            "steps": plan.job.length.steps,
            "flops": plan.job.run_flops,
            "validations": plan.job.validations,
        },
    }
    return json.dumps(content, indent=1)


if __name__ == "__main__":
    exit_with("cluster.plan", main)
