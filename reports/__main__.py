"""Cost of training, its scaling, a table of runs. What a run will cost: python -m cluster.plan.

python -m reports runs runs/                                    # best first; keys that differ
python -m reports runs --workspace squad                        # a cluster; also --project
python -m reports cost --published runs/squad@p3.2xlarge --html cost.html
python -m reports cost --experiment 12 15                       # a cluster; DET_MASTER, as det
python -m reports cost --since 2026-11-01 --by user --csv       # all that ran since then
python -m reports scaling runs/scaling                          # one run per size; docs/scaling.md
python -m reports scaling --published --run fused=bench.json

Exit status 0; 3 when --budget is exceeded; 2 with one line: what is wrong and what to do; 4: a
master or AWS does not answer.
"""

import argparse
import contextlib
import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.flags import add_price_flags, needing, number
from detalbert.command import Parser
from detalbert.errors import UserError
from detalbert.log import exit_with, fail

FORMS = {
    "json": "the numbers as JSON",
    "markdown": "the tables as Markdown",
    "csv": "the first table as CSV",
}
COMMANDS = {"cost": "what runs cost", "scaling": "efficiency over slots", "runs": "a table of runs"}


def main(argv: list[str] | None = None) -> int:
    """Print the report; return the exit status."""
    try:
        args = _parser().parse_args(argv)
        # Imported here: --help needs none of the libraries.
        with needing("reports/requirements.txt"):
            from reports import report

            command = importlib.import_module(f"reports.{args.command}")
            return report.write(
                command.run(args),
                form=args.form,
                wide=args.wide,
                html=args.html,
                budget=args.budget,
            )
    except UserError as error:
        return fail("reports", error)


def _parser() -> Parser:
    parser = Parser(prog="reports", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    # Every command reads runs and prices; what else it takes differs.
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        command.set_defaults(budget=math.inf, run=[])
        _add_form_flags(command)
        _add_master_flags(command)
        add_price_flags(command)
        _add_runs(command)
        if name != "scaling":
            _add_price_pool(command)
        if name != "runs":
            _add_priced_flags(command)
        if name == "cost":
            _add_cost_flags(command)
    return parser


def _add_form_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say in which form a report is printed."""
    forms = parser.add_mutually_exclusive_group()
    for form, text in FORMS.items():
        forms.add_argument(
            f"--{form}",
            dest="form",
            action="store_const",
            const=form,
            default="",
            help=text,
        )
    parser.add_argument("--wide", action="store_true", help="all columns on a terminal")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one page")


def _add_master_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select experiments of a master."""
    add = parser.add_argument
    add("--experiment", type=int, nargs="+", default=[], metavar="ID")
    add("--workspace", metavar="NAME", help="all experiments of a workspace")
    add("--project", metavar="NAME", help="all experiments of a project, or of --workspace's")
    add(
        "--since",
        type=_time("--since"),
        metavar="TIME",
        help="all that ran from then on, and what else it cost; UTC if no zone is given",
    )
    add(
        "--until",
        type=_time("--until"),
        metavar="TIME",
        help="end of the bill; UTC if no zone is given (default: now)",
    )
    add("--master", metavar="URL", help="master (default: DET_MASTER, as for det)")
    add("--user", help="user, as in det -u")


def _add_runs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "run",
        type=_run,
        nargs="*",
        action="extend",
        default=[],
        metavar="RUN",
        help="run's folder, a folder of them, or a benchmark's JSON; RUN@INSTANCE prices it",
    )


def _run(text: str) -> str:
    """Return a RUN. Raises UserError if its path is not there."""
    path, _, _ = text.rpartition("@")
    if not (os.path.exists(text) or os.path.exists(path) or ":/" in text):
        raise UserError("no such run", key=text, cure="give the folder of one")
    return text


def _add_price_pool(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--price-pool",
        action="append",
        default=[],
        metavar="POOL=INSTANCE[:spot]",
        help="price a pool that is not on EC2",
    )


def _add_priced_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what else is reported, and the most that it may cost."""
    add = parser.add_argument
    add(
        "--budget",
        type=number("--budget", 0.01, 1e15),
        metavar="DOLLARS",
        help="exit 3 above it",
    )
    add("--published", action="store_true", help="add the published figures")
    add(
        "--run",
        action="append",
        default=[],
        metavar="RUN",
        help="one more RUN, of scaling LABEL=RUN; see README",
    )


def _add_cost_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--baseline", metavar="RUN", help="run to compare with (default: the first row)")
    add(
        "--by",
        choices=["user", "label", "month"],
        help="totals of the cluster; a month, in UTC, has all machines",
    )
    add("--tokens", action="store_true", help="count tokens instead of windows")
    add(
        "--windows",
        type=number("--windows", 1, 1e15),
        help="windows to project a benchmark to",
    )


def _time(flag: str) -> Callable[[str], Any]:
    """Return a parser of a flag's time that raises UserError, naming the flag, if invalid."""

    def read(text: str) -> Any:
        from reports.queries import parse_time  # --help needs none of its libraries

        # In UTC a year may be 0 or 10000, which Python cannot write.
        with contextlib.suppress(ValueError):
            moment = parse_time(text)
            if 1970 <= moment.year <= 9999:
                return moment
        raise UserError(
            "expected a day or a time from 1970 to 9999",
            key=f"{flag} {text}",
            cure="write it as 2026-11-20 or 2026-11-20T10:00:00Z",
        )

    return read


if __name__ == "__main__":
    exit_with("reports", main)
