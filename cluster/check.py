"""Checks experiment and master configs before anybody pays for a machine.

  python -m cluster.check configs/distributed64.yaml --master cluster/master-aws-spot.yaml
  python -m cluster.check configs/*.yaml
  python -m cluster.check --master my-master.yaml --json

One line per finding: file, key, and what to do. Exit status 0: nothing to fix; 2: findings.
"""

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from determined.common import constants, context

from cluster.expconf import check_experiment
from cluster.jobs import check_job
from cluster.masterconf import Pool, check_master, pools
from cluster.schema import Finding, mapping, placeholders
from detalbert.errors import UserError
from detalbert.settings import experiment

CONTEXT_LIMIT = constants.MAX_CONTEXT_SIZE  # 95 MiB


def main(argv: list[str] | None = None) -> int:
    """Print the findings; returns the exit status: 0 none, 2 some."""
    parser = argparse.ArgumentParser(prog="cluster.check", description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="*", type=Path, metavar="CONFIG", help="experiment config")
    parser.add_argument("--master", type=Path, metavar="YAML", help="master config to check with")
    parser.add_argument(
        "--context", type=Path, default=Path("."), metavar="FOLDER", help="what would be uploaded"
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    args = parser.parse_args(argv)
    if not args.configs and args.master is None:
        parser.error("give an experiment config, or --master")
    findings = list(check_all(args.configs, args.master, args.context))
    if args.json:
        print(json.dumps({"findings": [finding._asdict() for finding in findings]}, indent=2))
    else:
        for finding in findings:
            print(finding)
        if not findings:
            print(f"nothing to fix in {len(args.configs) + (args.master is not None)} file(s)")
    return 2 if findings else 0


def check_all(configs: list[Path], master: Path | None, folder: Path) -> Iterator[Finding]:
    """Findings of every file; experiments are held against `master` where one is given."""
    known: dict[str, Pool] | None = None
    default = "default"
    if master is not None:
        config = yield from _load(master)
        if config is not None:
            yield from placeholders(str(master), "", config)
            yield from check_master(str(master), config)
            known = pools(config)
            manager = mapping(config.get("resource_manager"))
            default = str(manager.get("default_compute_resource_pool", default))
    for path in configs:
        config = yield from _load(path)
        if config is not None:
            yield from check_one(str(path), config, known, default, folder)
    if configs:
        yield from check_context(folder)


def check_one(
    file: str, config: dict[str, Any], known: dict[str, Pool] | None, default: str, folder: Path
) -> Iterator[Finding]:
    """Findings of one experiment config, or of a master config that was given in its place."""
    yield from placeholders(file, "", config)
    if "resource_pools" in config or "resource_manager" in config:
        yield from check_master(file, config)
        return
    broken = list(check_experiment(file, config))
    yield from broken
    sections = ("hyperparameters", "data", "searcher")
    if all(isinstance(config.get(section), dict) for section in sections):
        found = check_job(file, config, known, default, folder)
        named = {finding.key for finding in broken}
        yield from (finding for finding in found if finding.key not in named)


def check_context(folder: Path) -> Iterator[Finding]:
    """Whether what `det experiment create` would upload from `folder` is within the limit."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
            context.read_v1_context(folder, limit=CONTEXT_LIMIT)
    except ValueError:
        yield Finding(
            str(folder),
            "context",
            f"more than {CONTEXT_LIMIT / 2**20:.0f} MiB to upload; name what the training does not "
            "read in .detignore (data, runs, caches)",
        )


def _load(path: Path) -> Generator[Finding, None, dict[str, Any] | None]:
    try:
        return experiment.load(path)
    except UserError as error:
        yield Finding(str(path), "file", str(error).partition(": ")[2])
        return None


if __name__ == "__main__":
    sys.exit(main())
