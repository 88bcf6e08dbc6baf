"""Machines to take for a run, its time and its cost, before anything is paid for.

python -m cluster.plan configs/modern8.yaml --deadline 2
python -m cluster.plan configs/lm_13b.yaml --master my.yaml --set hyperparameters.max_steps=900
python -m cluster.plan configs/pretrain_base.yaml --any --budget 500 --html plan.html

Nothing is started or downloaded. Work, batch, layout, periods and notice come from CONFIG, machines
and image from the master; --any takes every machine that AWS launches. cluster/planning.md has the
rules. Exit status 0; 2 with one line: what is wrong; 3: the recommended option is over the budget
or misses the deadline; 4: with --ask no master answers.
"""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.flags import Parser, add_price_flags, needing, number
from detalbert.errors import UserError


def _parser() -> Parser:
    parser = Parser(prog="cluster.plan", description=__doc__)
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="experiment config")
    pools = parser.add_mutually_exclusive_group()
    pools.add_argument(
        "--master", type=Path, metavar="FILE", help="master config (default: the shipped ones)"
    )
    pools.add_argument(
        "--ask", action="store_true", help="plan for the pools of the master of DET_MASTER"
    )
    pools.add_argument("--any", action="store_true", help="every machine that AWS launches")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="config key to set")
    add(
        "--deadline",
        type=number("--deadline", 1e-3, 1e6),
        metavar="N",
        help="hours within which the run must end",
    )
    add(
        "--budget",
        type=number("--budget", 0.01, 1e15),
        metavar="N",
        help="dollars that it may cost",
    )
    work = parser.add_mutually_exclusive_group()
    work.add_argument(
        "--windows",
        type=number("--windows", 1, 1e15),
        metavar="N",
        help="windows to train on, instead of the config's steps",
    )
    work.add_argument(
        "--tokens",
        type=number("--tokens", 1, 1e18),
        metavar="N",
        help="tokens to train on, instead of the config's steps",
    )
    add("--html", type=Path, metavar="FILE", help="also write one page")
    add("--json", action="store_true", help="print the plan as JSON")
    add_price_flags(parser)
    return parser


if __name__ == "__main__":
    _parser().help_first()

from cluster.configs.ask import Master
from cluster.configs.expconf import check_experiment
from cluster.configs.fleet import SLOTS, slots_of
from cluster.configs.masterconf import Cluster, Pool, cluster_of
from cluster.estimates.job import DataSize, parse_jobs, read_size
from cluster.facts import live_prices
from cluster.facts.machines import ROOT, gpu_of
from cluster.facts.prices import PRICE_FILE, Price, load_prices, price_notes
from cluster.planning import options, plan_text
from cluster.planning.options import Asked
from cluster.planning.plan_text import Plan
from detalbert.log import fail
from detalbert.settings.experiment import load
from detalbert.settings.yaml_files import read_yaml

# Where a pool is sought without --master.
MASTERS = [
    ROOT / "cluster" / f"master-{name}.yaml"
    for name in ("aws-modern", "aws-spot", "aws-pretrain", "efa")
]


def main(argv: list[str] | None = None) -> int:
    """Print the plan; return the exit status."""
    try:
        args = _parser().parse_args(argv)
        with needing("cluster/requirements.txt"):
            plan = make_plan(args)
            if args.html is not None:
                from cluster.planning.plan_page import write_page

                write_page(plan, args.html)
    except UserError as error:
        return fail("cluster.plan", error)
    if args.json:
        print(json.dumps(plan_text.as_json(plan), indent=1, ensure_ascii=False))
    else:
        plan_text.print_plan(plan)
    return 0 if plan.kept else 3


def make_plan(args: Namespace) -> Plan:
    """Return the plan that was asked for. Raises UserError if input is wrong or nothing can run."""
    prices = load_prices(args.prices or PRICE_FILE, args.region)
    config, size = _read(args)
    cluster = _cluster(args, config, prices)
    wanted = sorted({pool.instance for pool in cluster.pools.values()} & set(prices))
    prices, notes = live_prices.priced(args, prices, wanted)
    limits = {"hours": args.deadline, "cost": args.budget}
    limits = {what: most for what, most in limits.items() if most is not None}
    asked = Asked(prices, limits=limits)
    found = options.plan_options(config, cluster, asked, size)
    best, why, kept = options.recommend(found, asked)
    wish = (cluster.pool_name(config), slots_of(config))
    own = next((option for option in found if (option.pool.name, option.slots) == wish), None)
    used = list({option.price.instance: option.price for option in found}.values())
    return Plan(
        str(args.config),
        found,
        best,
        why,
        own,
        kept,
        [*notes, *price_notes(used, args.today)],
        asked,
    )


def _read(args: Namespace) -> tuple[dict[str, Any], DataSize]:
    """Return the config with --set and the steps of --windows or --tokens, and its data's size."""
    config = load(args.config, args.set)
    if fault := options.first_fault(check_experiment(config)):
        raise UserError(f"{args.config}: {fault}")
    if slots_of(config) == 0:
        raise UserError(f"{args.config}: {SLOTS}: 0 slots train on no GPU; use 1 or more")
    job = next(parse_jobs(config, None, ROOT))
    hparams, amount = job.hparams, args.windows or args.tokens
    if amount is not None:
        each = hparams.global_batch_size * (hparams.max_seq_length if args.tokens else 1)
        steps = max(1, math.ceil(amount / each))
        config["hyperparameters"] = {**config["hyperparameters"], "max_steps": steps}
        job = next(parse_jobs(config, None, ROOT))
    return config, read_size(job)


def _cluster(args: Namespace, config: dict[str, Any], prices: Mapping[str, Price]) -> Cluster:
    """Return the pools to plan for; UserError if no master has the config's pool."""
    if args.ask:
        return Master.login().cluster()
    if args.any:
        return any_cluster(prices)
    clusters = [cluster_of(read_yaml(file)) for file in ([args.master] if args.master else MASTERS)]
    for cluster in clusters:
        if cluster.pool_of(config):
            return cluster
    known = ", ".join(name for each in clusters for name in each.pools)
    name = clusters[0].pool_name(config)
    raise UserError(f"resources.resource_pool: no pool {name!r}; give --master, or one of {known}")


def any_cluster(prices: Mapping[str, Price]) -> Cluster:
    """Return a cluster with two pools, spot and on demand, of every type that AWS launches."""
    pools = {}
    for price in prices.values():
        for on_spot in (True, False) if not price.retired else ():
            name = f"<<a pool of {price.instance}, {'spot' if on_spot else 'on demand'}>>"
            gpu = gpu_of(price.instance)
            pools[name] = Pool(name, price.slots, None, gpu, on_spot, price.instance)
    return Cluster(pools, next(iter(pools)), launch_error=False, images_known=False)


if __name__ == "__main__":
    sys.exit(main())
