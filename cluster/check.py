"""Check experiment configs before paying for a machine.

python -m cluster.check configs/distributed64.yaml --master cluster/master-aws-spot.yaml
python -m cluster.check configs/*.yaml
python -m cluster.check configs/smoke.yaml --ask       # the master of DET_MASTER, as `det` does

One line per problem: file, key, and what to do. Exit status 0: none, or notes only; 2: problems;
4: with --ask, the master did not answer.
"""

# Determined's keys are checked by its schema, ours by their classes, and by the rules of rules.py
# what a master accepts although it fails. Without --ask nothing leaves this machine. The price is
# that what no file says, such as whether an image is there, is not checked; the last line names it.

import json
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detalbert.command import Parser, existing_file, refuse_first
from detalbert.errors import UserError, counted

if TYPE_CHECKING:
    from cluster.pools import Pool


def parse_flags(argv: list[str] | None) -> Namespace:
    """Return the flags."""
    parser = Parser(prog="cluster.check", description=__doc__)
    add = parser.add_argument
    add("configs", nargs="+", type=existing_file, metavar="CONFIG", help="experiment config")
    pools = parser.add_mutually_exclusive_group()
    pools.add_argument(
        "--master", type=existing_file, metavar="YAML", help="master config, for its pools"
    )
    pools.add_argument(
        "--ask",
        action="store_true",
        help="also validate with the master of DET_MASTER and the login of det; creates nothing",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="config key to set in every experiment, as det's --config does",
    )
    add("--context", type=Path, default=".", metavar="FOLDER", help="folder to be uploaded")
    add("--json", action="store_true", help="print the lines as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    refuse_first("cluster.check", lambda: parse_flags(None))

from cluster.experiment import Experiment, parse_experiment
from cluster.rules import ADVICE, RULES, placeholders
from detalbert.escapes import one_line
from detalbert.log import exit_with, fail
from detalbert.settings.experiment import apply_overrides, find_problems
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml

NOT_CHECKED = [
    "whether images, buckets, paths and credentials are there",
    "quotas of the cloud account, free machines",
    "webhooks, trials and checkpoints to start from",
]
NOT_ASKED = "workspaces and what else only a master refuses (--ask)"
NO_MACHINES = "machines: no pools are known (--master FILE or --ask)"


class Line(NamedTuple):
    """A problem of a file, or a note, which leaves the exit status at 0."""

    file: str
    key: str
    problem: str
    is_note: bool

    def __str__(self) -> str:
        note = "note: " if self.is_note else ""
        return f"{self.file}: {self.key}: {note}{self.problem}"


def main(argv: list[str] | None = None) -> int:
    """Print the problems; return the status: 0 none, 2 some, 4 if the master does not answer."""
    lines: list[Line] = []
    try:
        args = parse_flags(argv)
        pools = session = None
        if args.ask or args.master is not None:
            from cluster.pools import connect  # takes a second

            pools, session = connect(args)
        for path in args.configs:
            lines += check_file(path, args, pools, session)
    except UserError as error:
        return fail("cluster.check", error)

    not_checked = list(NOT_CHECKED)
    if not args.ask:
        not_checked.append(NOT_ASKED)
    if pools is None:
        not_checked.append(NO_MACHINES)
    has_problems = any(not line.is_note for line in lines)
    if args.json:
        rows = [line._asdict() for line in lines]
        print(json.dumps({"lines": rows, "not_checked": not_checked}, indent=2))
    else:
        for line in lines:
            print(one_line(str(line)))  # a file's name may be any
        if not has_problems:
            print(f"nothing to fix in {counted(len(args.configs), 'file')}")
        print(f"not checked: {'; '.join(not_checked)}")
    return 2 if has_problems else 0


def make_lines(path: Path, errors: Iterable[UserError], is_note: bool = False) -> list[Line]:
    """Return the lines about a file."""
    return [
        Line(str(path), key=error.key, problem=error.detail, is_note=is_note) for error in errors
    ]


def check_file(
    path: Path, args: Namespace, pools: "dict[str, Pool] | None", session: Any
) -> list[Line]:
    """Return the lines about a config.

    Raises:
        UserError: for a text of --set that is invalid.
        Unavailable: if the master is asked and does not answer.
    """
    try:
        config = read_yaml(path)
    except UserError as error:
        # The line names the file itself, in place of the error's key.
        return make_lines(path, [error.under("file")])
    apply_overrides(config, args.set)
    experiment, problems = check_experiment(config, args.context, pools)
    if session is not None:
        from cluster.ask import refusal

        text = path.read_text(encoding="utf-8-sig")
        if args.set:  # JSON is YAML, too, but for surrogate pairs
            text = json.dumps(config, ensure_ascii=False)
        reason = refusal(session, text)
        if reason:
            problems.append(UserError(f"refuses it: {reason}", key="master"))

    lines = make_lines(path, problems)
    for rule in ADVICE:
        lines += make_lines(path, rule(experiment), is_note=True)
    return lines


def check_experiment(
    config: Config, folder: Path, pools: "dict[str, Pool] | None" = None
) -> tuple[Experiment, list[UserError]]:
    """Return an experiment and its problems, one for each key.

    Args:
        config: as its file has it.
        folder: that is uploaded with it.
        pools: of its cluster; None: not known.
    """
    experiment, problems = parse_experiment(config, folder=folder, pools=pools)
    # A key whose value has a wrong type breaks rules as well, and a placeholder all of them.
    problems = [*placeholders(config), *find_problems(experiment.config), *problems]
    for rule in RULES:
        problems += rule(experiment)
    by_key: dict[str, UserError] = {}
    for problem in problems:
        by_key.setdefault(problem.key, problem)
    return experiment, list(by_key.values())


if __name__ == "__main__":
    exit_with("cluster.check", main)
