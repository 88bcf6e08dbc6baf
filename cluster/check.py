"""Check experiment and master configs before paying for a machine.

python -m cluster.check configs/distributed64.yaml --master cluster/master-aws-spot.yaml
python -m cluster.check configs/*.yaml
python -m cluster.check --master my-master.yaml --json
python -m cluster.check configs/smoke.yaml --ask       # the master of DET_MASTER, as `det` does

One line per finding: file, key, and what to do. Exit status 0: no findings, or warnings only; 2:
findings; 4: with --ask, the master did not answer.
"""

import argparse
import contextlib
import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.flags import Parser, needing
from detalbert.errors import UserError


def parse_flags(argv: list[str] | None) -> argparse.Namespace:
    """Return the flags. Raises UserError if they contradict each other."""
    style = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="cluster.check", description=__doc__, formatter_class=style)
    parser.add_flags("check")
    args = parser.parse_args(argv)
    if not args.configs and args.master is None:
        raise UserError("CONFIG: missing; give an experiment config, or --master")
    if args.ask and args.master is not None:
        raise UserError("--ask: takes the pools from the master itself; leave --master out")
    return args


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
    if {"-h", "--help"} & {*sys.argv}:
        parse_flags(None)  # it needs none of the imports below

from determined.common import constants, context

from cluster import options
from cluster.ask import Master
from cluster.expconf import check_experiment, is_ours
from cluster.fleet import SLOTS, check_fleet, describe_start, image_of, slots_of
from cluster.jobs import check_job
from cluster.masterconf import Cluster, Pool, check_master, cluster_of
from cluster.merge import merge
from cluster.plan_text import outcome
from cluster.prices import load_prices
from cluster.schema import Finding, placeholders
from detalbert.log import fail
from detalbert.settings.experiment import apply_overrides
from detalbert.settings.yaml_files import read_yaml

MASTER_KEYS = {"db", "resource_pools", "resource_manager"}  # a config with one is no experiment's
CONTEXT_LIMIT = constants.MAX_CONTEXT_SIZE  # 95 MiB
NOT_CHECKED = """whether images, buckets, paths, networks and credentials are there
workspaces, webhooks, and trials and checkpoints to start from
quotas of the cloud account, free machines, today's prices
the inside of pod specs, startup scripts, agent configs, saml, telemetry and so on""".splitlines()


def main(argv: list[str] | None = None) -> int:
    """Print the findings; return the status: 0 none, 2 some, 4 if the master does not answer."""
    try:
        args = parse_flags(argv)
        with needing("cluster/requirements.txt"):
            findings, plans = check_files(args)
    except UserError as error:
        return fail("cluster.check", error)
    faults = [finding for finding in findings if not finding.warning]
    left_out = [NOT_CHECKED[0], *NOT_CHECKED[2:]] if args.ask else NOT_CHECKED
    if args.json:
        _print_json(findings, plans, left_out)
    else:
        for line in [*findings, *plans]:
            print(line)
        if not faults:
            print(f"nothing to fix in {len(args.configs) + (args.master is not None)} file(s)")
        print(f"not checked: {'; '.join(left_out)}")
    return 2 if faults else 0


def _print_json(findings: list[Finding], plans: list[str], left_out: list[str]) -> None:
    said: dict[str, Any] = {"findings": [], "warnings": []}
    for key, problem, warning, file in findings:
        facts = {"file": file, "key": key, "problem": problem}
        said["warnings" if warning else "findings"].append(facts)
    print(json.dumps({**said, "plans": plans, "not_checked": left_out}, indent=2))


def check_files(args: argparse.Namespace) -> tuple[list[Finding], list[str]]:
    """Return the findings of all files, and a line for each experiment whose pool is known.

    Raises Unavailable if the master that is asked does not answer.
    """
    asked = Master.login() if args.ask else None
    cluster, findings, plans = asked and asked.cluster(), list[Finding](), list[str]()
    if args.master is not None and (config := _load(args.master, findings)) is not None:
        found = [*placeholders("", config), *check_master(config)]
        findings += [finding._replace(file=str(args.master)) for finding in found]
        cluster = cluster_of(config)
    template = args.template and _load(args.template, findings)
    for path in args.configs:
        if (config := _load(path, findings)) is None:
            continue
        text = path.read_text(encoding="utf-8-sig")
        experiment = {"triggers", *MASTER_KEYS}.isdisjoint(config)
        if experiment and (args.set or template):
            apply_overrides(config, args.set)
            config = merge(config, template or {})
            text = json.dumps(config)  # is YAML too
        found = list(check_one(config, cluster, args.context))
        found += asked.check(text) if asked and experiment else []
        findings += [finding._replace(file=str(path)) for finding in found]
        if experiment and cluster is not None and (pool := cluster.pool_of(config)) is not None:
            plans.append(f"{path}: {describe_plan(config, cluster, pool, args.context)}")
    findings += check_context(args.context) if args.configs else ()
    return findings, plans


def describe_plan(config: dict[str, Any], cluster: Cluster, pool: Pool, folder: Path) -> str:
    """Describe image, machines, hours and cost of an experiment as it stands, as far as known."""
    image = image_of(config, pool) or "Determined's own"
    text = f"image {image}; {describe_start(config, pool, load_prices())}"
    with contextlib.suppress(UserError):  # told by the findings
        asked = options.Asked(load_prices(), folder)
        option = options.plan_option(config, cluster, asked)
        if option and option.cases:
            text += f"; {outcome(option)}"
    return text


def check_one(config: dict[str, Any], cluster: Cluster | None, folder: Path) -> Iterator[Finding]:
    """Yield the findings of one file: an experiment config, a master config or a webhook."""
    yield from placeholders("", config)
    if "triggers" in config:
        problem = "a webhook, not an experiment; its placeholders alone are checked"
        yield Finding("triggers", problem, warning=True)
        return
    if MASTER_KEYS & set(config):
        yield from check_master(config)
        return
    storage = {"checkpoint_storage": cluster and cluster.storage}
    broken = list(check_experiment(merge(config, storage)))
    if cluster is not None:
        broken += check_fleet(config, cluster)
    yield from broken
    if is_ours(config):
        if slots_of(config) == 0:
            problem = "0: one process without a GPU, on a machine for notebooks; use 1 or more"
            yield Finding(SLOTS, problem, warning=True)
        given = {name: config.get(name) or {} for name in ("hyperparameters", "data", "searcher")}
        if all(isinstance(section, dict) for section in given.values()):
            found = check_job({**config, **given}, cluster and cluster.pool_of(config), folder)
            named = {finding.key for finding in broken if not finding.warning}
            yield from (finding for finding in found if finding.key not in named)


def check_context(folder: Path) -> Iterator[Finding]:
    """Yield a finding if `det experiment create` would upload more than the limit from `folder`."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
            context.read_v1_context(folder, limit=CONTEXT_LIMIT)
    except ValueError as error:
        yield Finding("context", " ".join(str(error).split()), file=str(folder))


def _load(path: Path, findings: list[Finding]) -> dict[str, Any] | None:
    """Return a config; None, with a finding, if the file holds none."""
    try:
        return read_yaml(path)
    except UserError as error:
        findings.append(Finding("file", str(error).partition(": ")[2], file=str(path)))
        return None


if __name__ == "__main__":
    sys.exit(main())
