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
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.flags import Parser, needing
from detalbert.errors import UserError


def _parse(argv: list[str] | None) -> argparse.Namespace:
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
        _parse(None)  # it needs none of the imports below

from determined.common import constants, context

from cluster import options
from cluster.ask import Master
from cluster.expconf import check_experiment, is_ours
from cluster.fleet import SLOTS, check_fleet, describe_start, image_of, slots_of
from cluster.jobs import check_job
from cluster.masterconf import Cluster, check_master, cluster_of
from cluster.merge import merge
from cluster.plan_text import outcome
from cluster.prices import load_prices
from cluster.schema import Finding, placeholders
from detalbert.log import fail
from detalbert.settings.experiment import apply_overrides
from detalbert.settings.yaml_files import read_yaml

CONTEXT_LIMIT = constants.MAX_CONTEXT_SIZE  # 95 MiB
NOT_CHECKED = """whether images, buckets, paths, networks and credentials are there
workspaces, webhooks, and trials and checkpoints to start from
quotas of the cloud account, free machines, today's prices
the inside of pod specs, startup scripts, agent configs, saml, telemetry and so on""".splitlines()


def main(argv: list[str] | None = None) -> int:
    """Print the findings; return the status: 0 none, 2 some, 4 if the master does not answer."""
    try:
        args = _parse(argv)
        check = Check(args.context, Master.login() if args.ask else None, args.template, args.set)
        with needing("cluster/requirements.txt"):
            findings = list(check.all(args.configs, args.master))
    except UserError as error:
        return fail("cluster.check", error)
    faults = [finding for finding in findings if not finding.warning]
    left_out = NOT_CHECKED if check.asked is None else [NOT_CHECKED[0], *NOT_CHECKED[2:]]
    if args.json:
        _print_json(findings, check.plans, left_out)
    else:
        for line in [*findings, *check.plans]:
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


@dataclass
class Check:
    """One run of the checker; `plans` gets a line for each experiment whose pool is known."""

    folder: Path  # that would be uploaded
    asked: Master | None = None
    template: Path | None = None
    changes: Sequence[str] = ()  # of --set
    plans: list[str] = field(default_factory=list)

    def all(self, configs: list[Path], master: Path | None) -> Iterator[Finding]:
        """Yield findings of all files; experiments are checked against `master` if there is one.

        Raises Unavailable if the master that is asked does not answer.
        """
        cluster = self.asked.cluster() if self.asked else None
        if master is not None and (config := (yield from _load(master))) is not None:
            for finding in (*placeholders("", config), *check_master(config)):
                yield finding._replace(file=str(master))
            cluster = cluster_of(config)
        template = (yield from _load(self.template)) if self.template else None
        for path in configs:
            if (config := (yield from _load(path))) is not None:
                for finding in self._one(path, config, template, cluster):
                    yield finding._replace(file=str(path))
        if configs:
            yield from check_context(self.folder)

    def _one(
        self,
        path: Path,
        config: dict[str, Any],
        template: dict[str, Any] | None,
        cluster: Cluster | None,
    ) -> Iterator[Finding]:
        text = path.read_text(encoding="utf-8-sig")
        if "triggers" in config or _is_master(config):
            yield from check_one(config, cluster, self.folder)
            return
        apply_overrides(config, self.changes)
        config = merge(config, template or {})
        if self.changes or template:
            text = json.dumps(config)  # is YAML too
        yield from check_one(config, cluster, self.folder)
        if self.asked is not None:
            yield from self.asked.check(text)
        if cluster is not None and (pool := cluster.pool_of(config)) is not None:
            image = image_of(config, pool) or "Determined's own"
            plan = f"{path}: image {image}; {describe_start(config, pool, load_prices())}"
            with contextlib.suppress(UserError):  # told by the findings
                asked = options.Asked(load_prices(), self.folder)
                option = options.plan_option(config, cluster, asked)
                if option and option.cases:
                    plan += f"; {outcome(option)}"
            self.plans.append(plan)


def check_one(config: dict[str, Any], cluster: Cluster | None, folder: Path) -> Iterator[Finding]:
    """Yield the findings of one file: an experiment config, a master config or a webhook."""
    yield from placeholders("", config)
    if "triggers" in config:
        problem = "a webhook, not an experiment; its placeholders alone are checked"
        yield Finding("triggers", problem, warning=True)
        return
    if _is_master(config):
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


def _is_master(config: dict[str, Any]) -> bool:
    return bool({"db", "resource_pools", "resource_manager"} & set(config))


def check_context(folder: Path) -> Iterator[Finding]:
    """Yield a finding if `det experiment create` would upload more than the limit from `folder`."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
            context.read_v1_context(folder, limit=CONTEXT_LIMIT)
    except ValueError as error:
        yield Finding("context", " ".join(str(error).split()), file=str(folder))


def _load(path: Path) -> Generator[Finding, None, dict[str, Any] | None]:
    try:
        return read_yaml(path)
    except UserError as error:
        yield Finding("file", str(error).partition(": ")[2], file=str(path))
        return None


if __name__ == "__main__":
    sys.exit(main())
