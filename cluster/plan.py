"""Machines to take for a run, its time and its cost, before anything is paid for.

python -m cluster.plan configs/modern8.yaml --deadline 2
python -m cluster.plan configs/lm_13b.yaml --master my.yaml --set hyperparameters.max_steps=900
python -m cluster.plan configs/pretrain_base.yaml --any --budget 500 --html plan.html
python -m cluster.plan configs/single.yaml --gpu 12GB

Nothing is started or downloaded. Work, batch, layout, periods and notice come from CONFIG, machines
and image from the master; --any takes every machine that AWS launches. cluster/planning.md has the
rules. Exit status 0; 2 with one line: what is wrong; 3: the recommended option is over the budget
or misses the deadline; 4: with --ask no master answers.
"""

# Hours are modelled from sizes and measured speeds, and dollars are those of a price file with a
# date: a plan takes seconds and no machine, and its figures are ranges that name their sources.

import json
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cluster.flags import add_price_flags, needing, number
from detalbert.command import Parser, existing_file, refuse_first
from detalbert.errors import UserError


def gigabytes(text: str) -> float:
    """Return the number of a --gpu, "12GB" or "12". Raises UserError if it is none."""
    try:
        return number("--gpu", 0.1, 1e4)(text.strip().upper().removesuffix("GB"))
    except UserError:
        raise UserError(
            "not the memory of a GPU", key=f"--gpu {text}", cure="give it in GB, such as 12GB"
        ) from None


def _parser() -> Parser:
    parser = Parser(prog="cluster.plan", description=__doc__)
    add = parser.add_argument
    add("config", type=existing_file, metavar="CONFIG", help="experiment config")
    pools = parser.add_mutually_exclusive_group()
    pools.add_argument(
        "--master",
        type=existing_file,
        metavar="FILE",
        help="master config (default: the shipped ones)",
    )
    pools.add_argument(
        "--ask", action="store_true", help="plan for the pools of the master of DET_MASTER"
    )
    pools.add_argument("--any", action="store_true", help="every machine that AWS launches")
    pools.add_argument(
        "--gpu",
        type=gigabytes,
        metavar="GB",
        help="whether it fits one GPU of your own with so much memory, such as 12GB",
    )
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
    add(
        "--price-pool",
        action="append",
        default=[],
        metavar="POOL=INSTANCE[:spot]",
        help="price a pool of machines of your own",
    )
    add("--html", type=Path, metavar="FILE", help="also write one page")
    add("--json", action="store_true", help="print the plan as JSON")
    add_price_flags(parser)
    return parser


if __name__ == "__main__":
    refuse_first("cluster.plan", lambda: _parser().parse_args())

from cluster.configs.ask import Master
from cluster.configs.expconf import check_experiment
from cluster.configs.fleet import SLOTS, slots_of
from cluster.configs.masterconf import Cluster, Pool, cluster_of, is_helm
from cluster.estimates.job import DataSize, parse_jobs, read_size
from cluster.facts.machines import ROOT, gpu_of
from cluster.facts.prices import Price, parse_machine, price_notes, prices_head
from cluster.facts.rates import Rates
from cluster.planning import plan_text
from cluster.planning.choice import recommend
from cluster.planning.one_gpu import describe_fit, fit_one_gpu
from cluster.planning.options import Option, Request, first_fault, plan_options
from cluster.planning.plan_text import Plan
from detalbert.log import exit_with, fail
from detalbert.settings.experiment import load
from detalbert.settings.values import Config
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
        with needing("requirements.txt"):
            if args.gpu is not None:
                return print_fit(args)
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
    return 0 if plan.choice.within_limits else 3


def print_fit(args: Namespace) -> int:
    """Print whether the experiment fits one GPU; return 0 if it does, else 3."""
    for flag in ("html", "json", "deadline", "budget", "windows", "tokens", "live"):
        if getattr(args, flag):
            raise UserError("--gpu does without", key=f"--{flag}", cure="leave it out")
    config = check_config(args.config, args.set)
    # One GPU, whatever the config asks for, and so no layout of several.
    config["hyperparameters"].pop("layout", None)
    fit = fit_one_gpu(next(parse_jobs(config, pool=None, root=ROOT)))
    print(f"{args.config} on one GPU of {args.gpu:g} GB")
    for line in describe_fit(fit, args.gpu):
        print(line)
    return 0 if fit.fits(args.gpu) else 3


def make_plan(args: Namespace) -> Plan:
    """Return the plan that was asked for. Raises UserError if input is wrong or nothing can run."""
    rates = Rates(path=args.prices, region=args.region, live=args.live, today=args.today)
    config, size = read_work(args.config, args.set, windows=args.windows, tokens=args.tokens)

    # The machines: those of AWS, of a running master, or of a master's config.
    if args.any:
        cluster = any_cluster(rates.table())
    elif args.ask:
        cluster = Master.login().cluster()
    else:
        cluster = find_cluster(config, [args.master] if args.master else MASTERS)
    cluster = _price_pools(cluster, args.price_pool, rates)
    kinds = []
    for pool in cluster.pools.values():
        instance, _ = pool.priced_as
        if pool.gpu:
            kinds.append(rates.kind(instance, pool.region))
    notes = [*rates.use(kinds), *pool_notes(cluster, rates)]

    # Their options, and the one to take.
    limits = {"hours": args.deadline, "cost": args.budget}
    limits = {figure: limit for figure, limit in limits.items() if limit is not None}
    request = Request(rates, limits=limits)
    options = plan_options(config, cluster, request, size)
    choice = recommend(options, limits)
    unpriced = rates.unpriced() if args.any and args.region else []
    if unpriced:
        notes.append(f"left out, as they have no price in {args.region}: {', '.join(unpriced)}")
    prices = _used_prices(options)
    return Plan(
        title=str(args.config),
        prices=prices_head(prices, args.today),
        options=options,
        choice=choice,
        own=_own_option(options, config, cluster),
        notes=[*notes, *price_notes(prices, args.today)],
        request=request,
    )


def read_work(
    path: Path, changes: Sequence[str], windows: float | None, tokens: float | None
) -> tuple[Config, DataSize]:
    """Return an experiment config and the size of its data.

    Args:
        changes: KEY=VALUE texts that are set in it.
        windows: to train on, in place of the config's steps; None: the config's.
        tokens: the same in tokens.
    """
    config = check_config(path, changes)
    if slots_of(config) == 0:
        raise UserError("0 slots train on no GPU", key=f"{path}: {SLOTS}", cure="use 1 or more")
    job = next(parse_jobs(config, pool=None, root=ROOT))

    # --windows and --tokens are in place of the config's steps, of any length.
    if tokens is not None:
        windows = tokens / job.hparams.max_seq_length
    if windows is not None:
        steps = max(1, math.ceil(windows / job.hparams.global_batch_size))
        config["hyperparameters"] = {**config["hyperparameters"], "max_steps": steps}
        if "max_time" in config["searcher"]:  # of an ASHA, which counts the same steps
            config["searcher"] = {**config["searcher"], "max_time": steps}
        job = next(parse_jobs(config, pool=None, root=ROOT))
    return config, read_size(job)


def check_config(path: Path, changes: Sequence[str]) -> Config:
    """Return an experiment config with the KEY=VALUE texts `changes`; raises UserError for its
    first fault.
    """
    config = load(path, changes)
    fault = first_fault(check_experiment(config))
    if fault is not None:
        raise UserError(fault.problem, key=f"{path}: {fault.key}", cure=fault.cure)
    return config


def find_cluster(config: Config, masters: Sequence[Path]) -> Cluster:
    """Return the pools of the first master config that has the experiment's pool.

    Raises:
        UserError: if none has it.
    """
    clusters = []
    for file in masters:
        master_config = read_yaml(file)
        if is_helm(master_config):
            raise UserError(
                "this is a values.yaml of the Helm chart, not a master config",
                key=str(file),
                cure="give the master.yaml that `helm template` makes of it",
            )
        clusters.append(cluster_of(master_config))
    for cluster in clusters:
        pool = cluster.pool_of(config)
        if pool:
            # A partition of Slurm is a pool that the master config does not list.
            return cluster._replace(pools={**cluster.pools, pool.name: pool})
    names = list[str]()
    for cluster in clusters:
        names += cluster.pools
    raise UserError(
        f"no pool {clusters[0].pool_name(config)!r}",
        key="resources.resource_pool",
        cure=f"give --master, or one of {', '.join(names) or 'its pools'}",
    )


def any_cluster(prices: Mapping[str, Price]) -> Cluster:
    """Return a cluster with two pools, spot and on demand, of every type that AWS launches."""
    pools = {}
    for price in prices.values():
        if price.retired or not price.slots:
            continue
        for market in ("spot", "on demand"):
            name = f"<<a pool of {price.instance}, {market}>>"  # a placeholder to fill in
            pools[name] = Pool(
                name=name,
                slots_per_agent=price.slots,
                max_agents=None,
                gpu=gpu_of(price.instance),
                spot=market == "spot",
                instance=price.instance,
            )
    return Cluster(pools, default="", launch_error=False, images_known=False)


def _price_pools(cluster: Cluster, texts: Sequence[str], rates: Rates) -> Cluster:
    """Return the cluster with pools priced as the POOL=INSTANCE[:spot] of --price-pool say."""
    pools = dict(cluster.pools)
    for text in texts:
        name, _, machine = text.partition("=")
        if not machine:
            raise UserError(
                "names no machine",
                key=f"--price-pool {text}",
                cure="expected POOL=INSTANCE or POOL=INSTANCE:spot",
            )
        price, on_spot = parse_machine(f"--price-pool {name}=", machine, rates.table())
        if name not in pools:
            raise UserError(
                "no such pool",
                key=f"--price-pool {name}",
                cure=f"there are {', '.join(pools)}",
            )
        if not price.slots:
            raise UserError(
                f"a {price.instance} has no GPU",
                key=f"--price-pool {text}",
                cure="give a type with GPUs",
            )
        # The price alone; a pool of which the config says no more is like those machines.
        pool = pools[name]
        pools[name] = pool._replace(
            price_of=(price.instance, on_spot),
            instance=pool.instance or price.instance,
            gpu=pool.gpu or gpu_of(price.instance),
            slots_per_agent=pool.slots_per_agent or price.slots,
        )
    return cluster._replace(pools=pools)


def pool_notes(cluster: Cluster, rates: Rates) -> Iterator[str]:
    """Yield a note on each pool of GPUs that has no options, no dollars, or those of others."""
    for pool in cluster.pools.values():
        instance, _ = pool.priced_as
        cure = f"give --price-pool {pool.name}=INSTANCE[:spot]"
        price = rates.at(rates.kind(instance, pool.region))
        if pool.gpu is None:
            if pool.slots_per_agent != 0:
                yield f"pool {pool.name} is left out, as its GPU is not known; {cure}"
        elif price is None:
            machines = pool.instance or "its machines"
            if instance in rates.rows:
                machines += f" in {rates.region or pool.region}"
                cure = "take --live, or a price file that has it (--prices)"
            yield f"pool {pool.name}: hours without dollars, no price for {machines}; {cure}"
        elif pool.gpu != gpu_of(price.instance) or pool.slots_per_agent != price.slots:
            yield (
                f"pool {pool.name} has the dollars of {price.slots} {price.gpu} "
                f"({price.instance}), and the hours of {pool.slots_per_agent} {pool.gpu.name}"
            )


def _own_option(options: Sequence[Option], config: Config, cluster: Cluster) -> Option | None:
    """Return the config as it stands; None if its pool is none of the options'."""
    pool_name = cluster.pool_name(config)
    slots = slots_of(config)
    for option in options:
        if option.pool.name == pool_name and option.slots == slots:
            return option
    return None


def _used_prices(options: Sequence[Option]) -> list[Price]:
    prices = {}
    for option in options:
        if option.price is not None:
            prices[option.price.instance, option.price.region] = option.price
    return list(prices.values())


if __name__ == "__main__":
    exit_with("cluster.plan", main)
