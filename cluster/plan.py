"""Machines to take for a run, its time and its cost, before anything is paid for.

python -m cluster.plan configs/modern8.yaml --deadline 2
python -m cluster.plan configs/lm_13b.yaml --master my.yaml --set hyperparameters.max_steps=900
python -m cluster.plan configs/pretrain_base.yaml --any --budget 500 --html plan.html
python -m cluster.plan --tokens 4e9 --throughput 8=150000@p4d.24xlarge

Nothing is started or downloaded. Work, batch, layout, periods and notice come from CONFIG, machines
and image from the master; --any takes every machine that AWS launches. cluster/planning.md has the
rules. Exit status 0; 2 with one line: what is wrong; 3: the recommended option is over the budget
or misses the deadline; 4: with --ask no master answers.
"""

import dataclasses
import json
import math
import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from cluster.flags import Parser, needing, number
from detalbert.errors import UserError


def _parser() -> Parser:
    return Parser(prog="cluster.plan", description=__doc__).add_flags("plan", "prices")


if __name__ == "__main__":
    _parser().help_first()

from cluster import live_prices, options, plan_text, spot
from cluster.ask import Master
from cluster.expconf import check_experiment
from cluster.fleet import SLOTS, slots_of
from cluster.job import parse_jobs
from cluster.machines import ROOT, gpu_of
from cluster.masterconf import Cluster, Pool, cluster_of
from cluster.options import Asked, Plain
from cluster.plan_text import Plan
from cluster.prices import CHEAPEST, PRICE_FILE, Price, find_price, load_prices, price_notes
from data import load_split, load_tokenizer, open_split
from detalbert.log import fail
from detalbert.settings.experiment import load
from detalbert.settings.hparams import HParams, parse_data_config
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
                from cluster.plan_page import write_page

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
    prices = load_prices(args.prices or PRICE_FILE, CHEAPEST if args.any_region else args.region)
    config = None if args.config is None else _read(args)
    cluster = _cluster(args, config, prices)
    wanted = sorted({pool.instance for pool in cluster.pools.values()} & set(prices))
    prices, notes = live_prices.priced(args, prices, wanted)
    limits = {"hours": args.deadline, "cost": args.budget}
    limits = {what: most for what, most in limits.items() if most is not None}
    asked = Asked(prices, ROOT, _markets(args), args.runs, limits)
    if config is None:
        found = options.plain_options(_plain(args, prices), cluster, asked)
    else:
        found = options.plan_options(config, cluster, asked)
    best, why, kept = options.recommend(found, asked)
    wish = config and (cluster.pool_name(config), slots_of(config))
    own = next((option for option in found if (option.pool.name, option.slots) == wish), None)
    used = list({option.price.instance: option.price for option in found}.values())
    title = str(args.config) if config is not None else "plain work"
    return Plan(title, found, best, why, own, kept, [*notes, *price_notes(used, args.today)], asked)


def _read(args: Namespace) -> dict[str, Any]:
    """Return the config with --set, and with the steps of --windows, --tokens or its own file."""
    config = load(args.config, args.set)
    if fault := options.first_fault(check_experiment(config)):
        raise UserError(f"{args.config}: {fault}")
    if slots_of(config) == 0:
        raise UserError(f"{args.config}: {SLOTS}: 0 slots train on no GPU; use 1 or more")
    job = next(parse_jobs(config, None, ROOT))
    hparams, amount = job.hparams, args.windows or args.tokens
    if amount is None and job.steps is None and isinstance(hparams, HParams):
        keys = parse_data_config(config["data"])
        open_split(keys, "train")  # first: a missing file is told at once
        split = load_split(keys, "train", load_tokenizer(keys, hparams), hparams)
        amount = split.counts["windows"] * hparams.epochs
    if amount is not None:
        each = hparams.global_batch_size * (hparams.max_seq_length if args.tokens else 1)
        steps = max(1, math.ceil(amount / each))
        config["hyperparameters"] = {**config["hyperparameters"], "max_steps": steps}
    return config


def _cluster(
    args: Namespace, config: dict[str, Any] | None, prices: Mapping[str, Price]
) -> Cluster:
    """Return the pools to plan for; UserError if no master has the config's pool."""
    if args.ask:
        return Master.login().cluster()
    if args.any or config is None:
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


def _markets(args: Namespace) -> dict[str, spot.Market]:
    """Return the low, middle and high market: as recorded, or three times the given one."""
    given = {"hourly": args.hourly, "wait_seconds": args.wait_seconds}
    given = {name: value for name, value in given.items() if value is not None}
    if args.trace is None:
        return {name: dataclasses.replace(case, **given) for name, case in spot.CASES.items()}
    if given:
        raise UserError("--trace: it has its own reclaims and waits; leave the others out")
    return dict.fromkeys(spot.CASES, spot.load_trace(args.trace))


def _plain(args: Namespace, prices: Mapping[str, Price]) -> Plain:
    """Return the work of --windows or --tokens at the speeds of --throughput."""
    amount = args.windows or args.tokens
    if amount is None or args.throughput is None:
        cure = "give one, or --throughput with --windows or --tokens"
        raise UserError(f"CONFIG: missing; {cure}")
    text, _, instance = args.throughput.partition("@")
    parts = [part.partition("=")[::2] for part in text.split(",")]
    rate = number("--throughput", 1e-6, 1e12)
    points = {int(n): rate(value) for n, value in parts if re.fullmatch(r"[1-9]\d{0,5}", n)}
    if not instance or len(points) < len(parts):
        wanted = "SLOTS=RATE,...@INSTANCE, each number of slots once"
        raise UserError(f"--throughput {args.throughput}: expected {wanted}")
    if (teraflops := find_price(prices, instance).teraflops) is None:
        raise UserError(f"--throughput @{instance}: an instance whose GPU is not known")
    return Plain(amount, points, teraflops)


if __name__ == "__main__":
    sys.exit(main())
