"""Check experiment and master configs before paying for a machine.

python -m cluster.check configs/distributed64.yaml --master cluster/master-aws-spot.yaml
python -m cluster.check configs/*.yaml
python -m cluster.check --master my-master.yaml --json
python -m cluster.check configs/smoke.yaml --ask       # the master of DET_MASTER, as `det` does

One line per finding: file, key, and what to do. Exit status 0: no findings, or warnings only; 2:
findings; 4: with --ask, the master did not answer.
"""

# It works offline: what Determined's master and EC2 decide later is derived from the configs, from
# facts that ship with the package and from sizes of the model, within seconds and without a login.
# The price is that what no file says, such as whether an image is there, is not checked; the last
# line that is printed names it.

import contextlib
import datetime
import json
from argparse import Namespace
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from cluster.flags import needing
from detalbert.command import Parser, existing_file, refuse_first
from detalbert.errors import UserError


def _parser() -> Parser:
    parser = Parser(prog="cluster.check", description=__doc__)
    add = parser.add_argument
    add("configs", nargs="*", type=existing_file, metavar="CONFIG", help="experiment config")
    add("--master", type=existing_file, metavar="YAML", help="master config to check with")
    add("--template", type=existing_file, metavar="YAML", help="template of the experiments")
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


if __name__ == "__main__":
    refuse_first("cluster.check", lambda: parse_flags(None))

from cluster.configs.ask import Master
from cluster.configs.expconf import check_experiment, is_ours
from cluster.configs.fleet import SLOTS, check_fleet, describe_start, image_of, slots_of
from cluster.configs.masterconf import MASTER_KEYS, Cluster, Pool, check_master, cluster_of, is_helm
from cluster.configs.merge import merge
from cluster.configs.schema import Findings, placeholders
from cluster.configs.uploads import check_data, read_upload
from cluster.configs.values import Finding
from cluster.estimates.findings import check_job
from cluster.facts.prices import prices_head
from cluster.facts.rates import Rates
from cluster.planning.options import Request, plan_own
from cluster.planning.plan_text import outcome
from detalbert.log import exit_with, fail
from detalbert.settings.experiment import apply_overrides
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml

KNOWN_TO_MASTER = "workspaces, webhooks, and trials and checkpoints to start from"
NOT_CHECKED = [
    "whether images, buckets, paths, networks and credentials are there",
    KNOWN_TO_MASTER,
    "quotas of the cloud account, free machines, today's prices",
    "the inside of pod specs, startup scripts, agent configs, saml, telemetry and so on",
]


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
    not_checked = list(NOT_CHECKED)
    if args.ask:
        not_checked.remove(KNOWN_TO_MASTER)
    if args.json:
        report = {
            "findings": [_row(finding) for finding in faults],
            "warnings": [_row(finding) for finding in findings if finding.warning],
            "plans": plans,
            "not_checked": not_checked,
        }
        print(json.dumps(report, indent=2))
        return 2 if faults else 0

    for line in [*findings, *plans]:
        print(line)
    if not faults:
        files = len(args.configs) + (args.master is not None)
        print(f"nothing to fix in {files} file(s)")
    print(f"not checked: {'; '.join(not_checked)}")
    return 2 if faults else 0


def _row(finding: Finding) -> dict[str, str]:
    return {"file": finding.file, "key": finding.key, "problem": finding.detail}


class Verdicts:
    """The findings of all files, and a line for each experiment whose pool is known."""

    def __init__(self) -> None:
        self.findings = list[Finding]()
        self.plans = list[str]()

    def add(self, path: Path, findings: Iterable[Finding]) -> None:
        """Add the findings of a file."""
        self.findings += [finding._replace(file=str(path)) for finding in findings]

    def load(self, path: Path) -> Config | None:
        """Return the config in a file; None, with a finding, if it cannot be read."""
        try:
            return read_yaml(path)
        except UserError as error:
            # The finding names the file itself, in place of the error's key.
            self.add(path, [Finding("file", problem=error.problem, cure=error.cure)])
            return None


def check_files(args: Namespace) -> tuple[list[Finding], list[str]]:
    """Return the findings and the lines of `Verdicts`. Raises Unavailable if the master that is
    asked does not answer.
    """
    verdicts = Verdicts()
    live_master = None
    cluster = None
    if args.ask:
        live_master = Master.login()
        cluster = live_master.cluster()
    if args.master is not None:
        master_config = verdicts.load(args.master)
        if master_config is not None:
            verdicts.add(args.master, placeholders(master_config))
            verdicts.add(args.master, check_master(master_config))
            cluster = cluster_of(master_config)
    uploaded, too_large = read_upload(args.context) if args.configs else (set[str](), None)
    template = verdicts.load(args.template) if args.template is not None else None

    for path in args.configs:
        config = verdicts.load(path)
        if config is None:
            continue
        if not is_experiment(config):
            verdicts.add(path, check_other(config))
            continue
        text = path.read_text(encoding="utf-8-sig")
        if args.set or template:
            apply_overrides(config, args.set)
            config = merge(config, template or {})
            text = json.dumps(config)  # is YAML too
        verdicts.add(path, check_one(config, cluster, args.context))
        if live_master is not None:
            verdicts.add(path, live_master.check(text))
        pool = cluster.pool_of(config) if cluster is not None else None
        if cluster is not None and pool is not None:
            plan = describe_plan(config, cluster, pool, args.context)
            verdicts.plans.append(f"{path}: {plan}")
        if too_large is None:
            verdicts.add(path, check_data(config, uploaded, args.context))
    if too_large is not None:
        verdicts.add(args.context, [too_large])
    return verdicts.findings, verdicts.plans


def describe_plan(config: Config, cluster: Cluster, pool: Pool, folder: Path) -> str:
    """Describe image, machines, hours and cost of an experiment as it stands, as far as known."""
    image = image_of(config, pool) or "Determined's own"
    rates = Rates()
    price = rates.at(rates.kind(pool.instance, pool.region))
    text = f"image {image}; {describe_start(config, pool, price)}"
    # A config that cannot be planned has findings, which name the reason.
    with contextlib.suppress(UserError):
        option = plan_own(config, cluster, Request(rates, root=folder))
        if option and option.cases:
            text += f"; {outcome(option)}"
            if option.price:
                text += f"; {prices_head([option.price], datetime.date.today())}"
    return text


def is_experiment(config: Config) -> bool:
    """Return whether a file is an experiment config, not a webhook or a master's."""
    return {"triggers", *MASTER_KEYS}.isdisjoint(config) and not is_helm(config)


def check_other(config: Config) -> Findings:
    """Yield the findings of a master config or a webhook that is given as an experiment."""
    yield from placeholders(config)
    if "triggers" in config:
        yield Finding(
            key="triggers",
            problem="a webhook, not an experiment; its placeholders alone are checked",
            warning=True,
        )
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
        yield Finding(
            key=SLOTS,
            problem="0: one process without a GPU, on a machine for notebooks",
            cure="use 1 or more",
            warning=True,
        )

    # `check_job` takes mappings only; a section of a wrong type has its finding by now.
    config = {**config}
    for section in ("hyperparameters", "data", "searcher"):
        config[section] = config.get(section) or {}
        if not isinstance(config[section], dict):
            return

    # One finding per key is enough: that of the schema comes first.
    faulty = {finding.key for finding in findings if not finding.warning}
    for finding in check_job(config, pool, root=folder):
        if finding.key not in faulty:
            yield finding


if __name__ == "__main__":
    exit_with("cluster.check", main)
