"""Check experiment and master configs before paying for a machine.

python -m cluster.check configs/distributed64.yaml --master cluster/master-aws-spot.yaml
python -m cluster.check configs/*.yaml
python -m cluster.check --master my-master.yaml --json
python -m cluster.check configs/smoke.yaml --ask       # the master of DET_MASTER, as `det` does

One line per finding: file, key, and what to do. Exit status 0: no findings, or warnings only; 2:
findings; 4: with --ask, the master did not answer.
"""

import contextlib
import datetime
import json
import sys
from argparse import Namespace
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from cluster.flags import Parser, needing
from detalbert.errors import UserError


def _parser() -> Parser:
    parser = Parser(prog="cluster.check", description=__doc__)
    add = parser.add_argument
    add("configs", nargs="*", type=Path, metavar="CONFIG", help="experiment config")
    add("--master", type=Path, metavar="YAML", help="master config to check with")
    add("--template", type=Path, metavar="YAML", help="template of the experiments")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="config key to set in every experiment, as det's --config does",
    )
    add(
        "--ask",
        action="store_true",
        help="also validate with the master of DET_MASTER and the login of det; creates nothing",
    )
    add("--context", type=Path, default=".", metavar="FOLDER", help="folder to be uploaded")
    add("--json", action="store_true", help="print findings as JSON")
    return parser


if __name__ == "__main__":
    _parser().help_first()

from cluster.configs.ask import Master
from cluster.configs.expconf import check_experiment, is_ours
from cluster.configs.fleet import SLOTS, check_fleet, describe_start, image_of, slots_of
from cluster.configs.masterconf import MASTER_KEYS, Cluster, Pool, check_master, cluster_of, is_helm
from cluster.configs.merge import merge
from cluster.configs.schema import Config, Findings, placeholders
from cluster.configs.uploads import check_data, read_upload
from cluster.estimates.findings import check_job
from cluster.facts.prices import prices_head
from cluster.facts.rates import Rates
from cluster.planning.options import Asked, plan_own
from cluster.planning.plan_text import outcome
from detalbert.log import fail
from detalbert.settings.experiment import apply_overrides
from detalbert.settings.schema import Finding
from detalbert.settings.yaml_files import read_yaml

NOT_CHECKED = """whether images, buckets, paths, networks and credentials are there
workspaces, webhooks, and trials and checkpoints to start from
quotas of the cloud account, free machines, today's prices
the inside of pod specs, startup scripts, agent configs, saml, telemetry and so on""".splitlines()


def main(argv: list[str] | None = None) -> int:
    """Print the findings; return the status: 0 none, 2 some, 4 if the master does not answer."""
    try:
        args = parse_flags(argv)
        with needing("cluster/requirements.txt"):
            import_module("re2")  # which compiles the patterns of log policies
            findings, plans = check_files(args)
    except UserError as error:
        return fail("cluster.check", error)
    faults = [finding for finding in findings if not finding.warning]
    left_out = [NOT_CHECKED[0], *NOT_CHECKED[2:]] if args.ask else NOT_CHECKED
    if args.json:
        report = {
            "findings": [_row(finding) for finding in faults],
            "warnings": [_row(finding) for finding in findings if finding.warning],
            "plans": plans,
            "not_checked": left_out,
        }
        print(json.dumps(report, indent=2))
        return 2 if faults else 0
    for line in [*findings, *plans]:
        print(line)
    if not faults:
        print(f"nothing to fix in {len(args.configs) + (args.master is not None)} file(s)")
    print(f"not checked: {'; '.join(left_out)}")
    return 2 if faults else 0


def _row(finding: Finding) -> dict[str, str]:
    return {"file": finding.file, "key": finding.key, "problem": finding.problem}


def parse_flags(argv: list[str] | None) -> Namespace:
    """Return the flags. Raises UserError if they contradict each other."""
    args = _parser().parse_args(argv)
    if not args.configs and args.master is None:
        raise UserError("missing", key="CONFIG", cure="give an experiment config, or --master")
    if args.ask and args.master is not None:
        raise UserError(
            "takes the pools from the master itself", key="--ask", cure="leave --master out"
        )
    return args


class Verdicts:
    """The findings of all files, and a line for each experiment whose pool is known."""

    def __init__(self) -> None:
        self.findings = list[Finding]()
        self.plans = list[str]()

    def tell(self, path: Path, findings: Iterable[Finding]) -> None:
        """Add the findings of a file."""
        self.findings += [finding._replace(file=str(path)) for finding in findings]

    def load(self, path: Path) -> Config | None:
        """Return the config in a file; None, with a finding, if it cannot be read."""
        try:
            return read_yaml(path)
        except UserError as error:
            self.tell(path, [Finding("file", error.detail)])
            return None


def check_files(args: Namespace) -> tuple[list[Finding], list[str]]:
    """Return the findings and the lines of `Verdicts`. Raises Unavailable if the master that is
    asked does not answer.
    """
    report = Verdicts()
    asked = Master.login() if args.ask else None
    cluster = asked.cluster() if asked is not None else None
    master = report.load(args.master) if args.master is not None else None
    if master is not None:
        report.tell(args.master, [*placeholders(master), *check_master(master)])
        cluster = cluster_of(master)
    names, too_large = read_upload(args.context) if args.configs else (set(), None)
    template = report.load(args.template) if args.template is not None else None
    for path in args.configs:
        config = report.load(path)
        if config is None:
            continue
        if not is_experiment(config):
            report.tell(path, check_other(config))
            continue
        text = path.read_text(encoding="utf-8-sig")
        if args.set or template:
            apply_overrides(config, args.set)
            config = merge(config, template or {})
            text = json.dumps(config)  # is YAML too
        report.tell(path, check_one(config, cluster, args.context))
        if asked is not None:
            report.tell(path, asked.check(text))
        if cluster is not None:
            pool = cluster.pool_of(config)
            if pool is not None:
                plan = describe_plan(config, cluster, pool, args.context)
                report.plans.append(f"{path}: {plan}")
        if too_large is None:
            report.tell(path, check_data(config, names, args.context))
    if too_large is not None:
        report.tell(args.context, [too_large])
    return report.findings, report.plans


def describe_plan(config: Config, cluster: Cluster, pool: Pool, folder: Path) -> str:
    """Describe image, machines, hours and cost of an experiment as it stands, as far as known."""
    image = image_of(config, pool) or "Determined's own"
    rates = Rates()
    price = rates.at(rates.kind(pool.instance, pool.region))
    text = f"image {image}; {describe_start(config, pool, price)}"
    with contextlib.suppress(UserError):  # told by the findings
        option = plan_own(config, cluster, Asked(rates, folder))
        if option and option.cases:
            prices = [option.price] if option.price else []
            text += f"; {outcome(option)}; {prices_head(prices, datetime.date.today())}"
    return text


def is_experiment(config: Config) -> bool:
    """Return whether a file is an experiment config, not a webhook or a master's."""
    return {"triggers", *MASTER_KEYS}.isdisjoint(config) and not is_helm(config)


def check_other(config: Config) -> Findings:
    """Yield the findings of a master config or a webhook that is given as an experiment."""
    yield from placeholders(config)
    if "triggers" in config:
        problem = "a webhook, not an experiment; its placeholders alone are checked"
        yield Finding("triggers", problem, warning=True)
    else:
        yield from check_master(config)


def check_one(config: Config, cluster: Cluster | None, folder: Path) -> Findings:
    """Yield the findings of one experiment config, with its pool if the cluster is known."""
    yield from placeholders(config)
    pool = None
    if cluster is None:
        findings = list(check_experiment(config))
    else:
        pool = cluster.pool_of(config)
        merged = merge(config, {"checkpoint_storage": cluster.storage})
        findings = [*check_experiment(merged), *check_fleet(config, cluster)]
    yield from findings
    if not is_ours(config):
        return
    if slots_of(config) == 0:
        problem = "0: one process without a GPU, on a machine for notebooks; use 1 or more"
        yield Finding(SLOTS, problem, warning=True)
    config = {**config}
    for section in ("hyperparameters", "data", "searcher"):
        config[section] = config.get(section) or {}
        if not isinstance(config[section], dict):
            return
    faulty = {finding.key for finding in findings if not finding.warning}
    for finding in check_job(config, pool, folder):
        if finding.key not in faulty:
            yield finding


if __name__ == "__main__":
    sys.exit(main())
