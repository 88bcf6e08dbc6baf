"""Costs of runs, which is best, and how they scale. Of a future run: python -m cluster.plan.

python -m reports runs runs/                                # a folder of runs, best first
python -m reports runs --workspace squad                    # trials of a master, with their costs
python -m reports cost --published runs/squad@p3.2xlarge    # beside the published runs
python -m reports cost --experiment 12 15                   # a cluster; DET_MASTER, login as det
python -m reports cost --since 2026-11-01 --by user --csv   # all that ran since then
python -m reports scaling runs/scaling                      # one run per size; docs/scaling.md

Exit status 0; 3 when --budget is exceeded; 2 with one line: what is wrong and what to do; 4: a
master does not answer.
"""

import argparse
import importlib
import math

from detalbert.command import Parser, add_price_pool, moment, needing, number, page_file
from detalbert.errors import UserError
from detalbert.log import exit_with, fail

COMMANDS = {"cost": "what runs cost", "runs": "a table of runs", "scaling": "efficiency by size"}
CUTS = ("experiment", "user", "label", "month", "pool")


def main(argv: list[str] | None = None) -> int:
    """Print the report; return the exit status."""
    try:
        args = _parser().parse_args(argv)
        # Imported here: --help needs none of the libraries.
        with needing("reports"):
            command = importlib.import_module(f"reports.{args.command}")
            return int(command.run(args))
    except UserError as error:
        return fail("reports", error)


def _parser() -> Parser:
    parser = Parser(prog="reports", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "run",
            nargs="*",
            metavar="RUN",
            help="a run's folder, or a folder of them; RUN@INSTANCE[:spot] prices it, and "
            "LABEL=RUN names its series (scaling)",
        )
        _add_form_flags(command)
        _add_master_flags(command)
        if name != "runs":
            command.add_argument("--published", action="store_true", help="add published figures")
        if name == "cost":
            command.add_argument(
                "--by", nargs="+", choices=CUTS, default=["experiment"], help="what a row is of"
            )
            command.add_argument(
                "--budget",
                type=number("--budget", 0.01, 1e15),
                default=math.inf,
                metavar="DOLLARS",
                help="exit 3 above it",
            )
    return parser


def _add_form_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say in which form a report is written."""
    add = parser.add_mutually_exclusive_group().add_argument
    for form in ("json", "csv"):
        add(
            f"--{form}",
            dest="form",
            action="store_const",
            const=form,
            help=f"plain numbers as {form.upper()}",
        )
    parser.add_argument("--html", type=page_file, metavar="FILE", help="also write a page")


def _add_master_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select what ran on a master, and price it."""
    add = parser.add_argument
    add("--experiment", type=int, nargs="+", default=[], metavar="ID")
    add("--workspace", metavar="NAME", help="all experiments of a workspace")
    add("--project", metavar="NAME", help="all experiments of a project, or of --workspace's")
    add("--since", type=moment, metavar="TIME", help="begin of a span; alone: of all that ran")
    add("--until", type=moment, metavar="TIME", help="end of the span (default: now)")
    add("--master", metavar="URL", help="master (default: DET_MASTER, as for det)")
    add("--user", help="user, as in det -u")
    add("--region", default="", help="AWS region of all prices (default: that of each pool)")
    add_price_pool(parser)


if __name__ == "__main__":
    exit_with("reports", main)
