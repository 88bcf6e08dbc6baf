"""Fit, duration and cost of an experiment on the machines of its pool.

python -m cluster.memory configs/lm_13b.yaml
python -m cluster.memory configs/lm_1b.yaml --master my-master.yaml --suggest
python -m cluster.memory configs/distributed64.yaml --json

Nothing is started or downloaded. Every line names its source: published, measured, or modelled.
Exit status 0: it fits; 2: it does not fit, or a line says what is missing.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Column, Table

from cluster import layouts, planner, speeds
from cluster.fleet import pool_name
from cluster.jobs import samples
from cluster.machines import ROOT
from cluster.masterconf import Pool, cluster_of
from cluster.planner import Planned
from cluster.prices import load_prices
from cluster.schema import mapping
from detalbert.engine.memory import HEAD_CHUNK, OVERHEAD
from detalbert.errors import UserError
from detalbert.settings.yaml_files import read_yaml
from workloads import parsers

# Where a pool is sought without --master.
MASTERS = [
    ROOT / "cluster" / f"master-{name}.yaml"
    for name in ("aws-modern", "aws-spot", "aws-pretrain", "efa")
]
GIB = 2**30


class Line(NamedTuple):
    """One figure of the plan, its source and how it was computed."""

    what: str
    figure: str
    source: str = "modelled"
    how: str = ""


def main(argv: list[str] | None = None) -> int:
    """Print the plan; return the exit status: 0 if it fits, else 2."""
    parser = argparse.ArgumentParser(
        prog="cluster.memory", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("config", type=Path, help="experiment config")
    parser.add_argument("--master", type=Path, metavar="YAML", help="master config (default: ours)")
    parser.add_argument("--suggest", action="store_true", help="rank the layouts, fastest first")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(argv)
    try:
        planned = plan_file(args.config, args.master)
        choices = layouts.layout_rows(planned) if args.suggest else []
    except UserError as error:
        print(f"cluster.memory: {error.kind}: {error}", file=sys.stderr)
        return 2
    wrong = [f"{args.config}: {key}: {problem}" for key, problem in planner.faults(planned)]
    if args.json:
        said = {"faults": wrong, "lines": [line._asdict() for line in lines(planned)]}
        print(json.dumps({**said, "layouts": choices}, indent=1))
    else:
        print_plan(args.config, planned, choices)
        print("\n".join(wrong) or "it fits")
    return 2 if wrong else 0


def plan_file(path: Path, master: Path | None) -> Planned:
    """Return the plan of a config; of a search, that of the trial with the largest memory.

    Raises UserError if config or pool is invalid, or the GPU or the model's sizes are not known.
    """
    config = read_yaml(path)
    parse = parsers(config)
    trials = [parse.hyperparameters(v) for v in samples(mapping(config.get("hyperparameters")))]
    parse.data(config.get("data"))
    pool = find_pool(config, master)
    if pool.gpu is None:
        raise UserError(
            f"{path}: resources.resource_pool: the GPU of {pool.name!r} is not known; name a pool "
            "of EC2 machines, or put their type into the pool's name (efa-p4d-24xlarge)"
        )
    found = [p for trial in trials if (p := planner.plan(config, trial, pool, ROOT)) is not None]
    if not found:
        raise UserError(
            f"{path}: hyperparameters.model: its sizes are not known, and nothing is downloaded; "
            "give a folder with its config.json, or model_config with vocab_size"
        )
    return max(found, key=lambda planned: planned.memory.at(planned.tokens))


def find_pool(config: dict[str, Any], master: Path | None) -> Pool:
    """Return the experiment's pool in `master` or the first of MASTERS; UserError if in none."""
    clusters = [cluster_of(read_yaml(file)) for file in ([master] if master else MASTERS)]
    for cluster in clusters:
        if found := cluster.pools.get(pool_name(config, cluster)):
            return found
    known = ", ".join(name for each in clusters for name in each.pools)
    name = pool_name(config, clusters[0])
    raise UserError(f"resources.resource_pool: no pool {name!r}; give --master, or one of {known}")


def lines(planned: Planned) -> Iterator[Line]:
    """Yield the figures, from the memory of a GPU to the cost."""
    memory, most, length = planned.memory, planned.most, planned.hparams.max_seq_length
    yield Line("states", _gib(memory.states), how="weights, gradients, two moments")
    if memory.gathered:
        how = "embeddings, head, one layer and the next"
        yield Line("gathered", _gib(memory.gathered), how=how)
    how = f"{planned.tokens:,} tokens of {memory.per_token / 1e6:.3f} MB"
    yield Line("activations", _gib(planned.tokens * memory.per_token), how=how)
    if memory.head:
        yield Line("logits", _gib(memory.head), how=f"of {HEAD_CHUNK:,} tokens at a time")
    yield Line("overhead", _gib(OVERHEAD), how="CUDA, NCCL, fragmentation")
    total, sold = memory.at(planned.tokens), planned.pool.known_gpu.gigabytes
    yield Line("of a GPU", _gib(total), how=f"of {sold} GB, {total / GIB / sold:.0%}")
    how = f"{most // length} windows of {length:,}"
    yield Line("largest forward", f"{max(0, most):,} tokens", how=how)
    yield from _step_lines(planned)
    yield from _run_lines(planned)


def _step_lines(planned: Planned) -> Iterator[Line]:
    batch, rate = planned.hparams.global_batch_size, planned.rate
    how = "forward and backward, recomputation left out"
    yield Line("FLOPs a token", f"{planned.flops / 1e9:.3f} G", how=how)
    how = f"{batch:,} windows, {planned.forwards} forward(s) a slot; {rate.how}"
    yield Line("compute a step", f"{planned.compute:.2f} s", rate.source, how)
    if planned.machine and planned.machines > 1:
        links = ("one plain interface", planned.machine.plain), ("EFA", planned.machine.efa)
        for efa, (kind, gbits) in enumerate(links):
            used = " (this one)" if efa == planned.efa else ""
            how = f"{planned.sent / 1e9:.1f} GB a machine, {gbits} Gbit/s by {kind}{used}"
            if gbits:
                yield Line("network a step", f"{planned.network(bool(efa)):.2f} s", how=how)
    speed = batch * planned.window / planned.step
    how = f"{speed / planned.slots:,.0f} a GPU; {batch / planned.step:,.1f} windows/s"
    yield Line("tokens/s", f"{speed:,.0f}", rate.source, how)
    place, pace = speeds.scratch(planned.config, planned.pool)
    step, disk, upload = planned.leaving()
    how = f"{planned.stored / 1e9:.1f} GB a machine to {place}, {pace / 1e6:.0f} MB/s"
    yield Line("checkpoint, disk", f"{disk:.0f} s", how=how)
    how = f"{speeds.UPLOAD_RATE / 1e9:g} GB/s for each process, assumed"
    yield Line("checkpoint, upload", f"{upload:.0f} s", how=how)
    how = f"of {speeds.NOTICE} s: the step, the disk, the upload"
    yield Line("leaving with notice", f"{step + disk + upload:.0f} s", how=how)


def _run_lines(planned: Planned) -> Iterator[Line]:
    steps, rate = planned.steps, planned.rate
    if steps is None:
        yield Line("run", "not known", how="set hyperparameters.max_steps")
        return
    tokens = steps * planned.hparams.global_batch_size * planned.window
    how = f"{steps:,} steps, {tokens / 1e9:.2f} G tokens"
    yield Line("run", f"{steps * planned.step / 3600:,.1f} h", rate.source, how)
    price: Any = load_prices().get(planned.pool.instance)
    for spot in (True, False) if price else ():
        dollars = planned.dollars(price, spot)
        how = f"{planned.machines} x {price.instance} at ${price.hourly(spot):,.2f} an hour"
        yield Line("spot" if spot else "on demand", f"${dollars:,.0f}", rate.source, how)


def print_plan(path: Path, planned: Planned, choices: list[dict[str, Any]]) -> None:
    """Print the figures as tables."""
    pool, sizes = planned.pool, planned.model.sizes
    parts = f", {planned.layout}" if planned.layout else ""
    model = f"{sizes.family}, {sizes.parameters / 1e6:,.0f} M parameters"
    machines = f"{planned.machines} x {pool.instance or pool.name} (pool {pool.name})"
    print(f"{path}: {model}, {planned.slots} slots: {machines}{parts}")
    _print_table(["", Column("figure", justify="right"), "by", "how"], lines(planned))
    if choices:
        _print_table(choices[0], (map(str, choice.values()) for choice in choices))
        print("All at one MFU: a forward of few tokens, or with its products split, reaches less.")


def _print_table(heads: Iterable[Column | str], rows: Iterable[Iterable[str]]) -> None:
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(width=max(100, Console().width)).print(table)


def _gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB" if math.isfinite(value) else "none"


if __name__ == "__main__":
    sys.exit(main())
