"""Cost of training, its scaling, and its expected cost on other machines.

python -m reports cost --published --run runs/squad@p3.2xlarge --html cost.html
python -m reports cost --experiment 12 15                       # a cluster; DET_MASTER, as det
python -m reports cost --since 2026-11-01 --by user --csv       # all that ran since then
python -m reports plan --windows 264396 --slots 8 64 --deadline 2
python -m reports scaling --published --run fused=bench.json

Exit status 0; 3 when --budget is exceeded; 2 with one line: what is wrong and what to do.
"""

import argparse
import importlib
import sys
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

from detalbert.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Print the report; return the exit status."""
    try:
        args = _parser().parse_args(argv)
        from reports import report

        return report.write(importlib.import_module(f"reports.{args.command}").run(args), args)
    except UserError as error:
        fault = str(error)
    except ImportError as error:  # pandas raises a bare one for tabulate
        missing = (error.name or "tabulate").split(".")[0]
        if missing in ("cluster", "detalbert", "reports"):
            raise
        fault = f"{missing} is not installed; run pip install -r reports/requirements.txt"
    print(f"reports: error: {fault}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see python -m {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    from cluster.records import parse_time
    from reports.settings import add_flags, number

    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="reports", description=__doc__, formatter_class=layout)
    commands = parser.add_subparsers(dest="command", required=True)
    common, records = _Parser(add_help=False), _Parser(add_help=False)
    form = common.add_mutually_exclusive_group()
    forms = {"--json": "the numbers as JSON", "--markdown": "the tables as Markdown"}
    for flag, said in {**forms, "--csv": "the first table as CSV"}.items():
        form.add_argument(flag, action="store_true", help=said)
    add = common.add_argument
    add("--wide", action="store_true", help="all columns on a terminal")
    add("--html", type=Path, metavar="FILE", help="also write one page with plots")
    add("--prices", type=Path, metavar="YAML", help="price file (default: cluster/prices.yaml)")
    live: Any = {"nargs": "?", "const": "must", "choices": ["try", "must"], "metavar": "try"}
    add("--live", help="AWS's prices; without an answer exit 2, or with =try the file's", **live)
    add("--region", help="AWS region of --live (default: the price file's)")
    add("--budget", type=number("--budget", 0.01, 1e15), metavar="DOLLARS", help="exit 3 above it")
    add("--today", type=date.fromisoformat, default=date.today(), help="to tell stale prices by")
    add = records.add_argument
    add("--published", action="store_true", help="add the published figures")
    add("--run", action="append", default=[], metavar="PATH", help="run to report; see README")
    add("--experiment", type=int, nargs="+", default=[], metavar="ID")
    add("--since", type=parse_time, metavar="TIME", help="all experiments that ran from then on")
    add("--until", type=parse_time, metavar="TIME", help="end of unfinished runs (default: now)")
    add("--master", metavar="URL", help="master (default: DET_MASTER, as for det)")
    add("--user", help="user, as in det -u")
    add = commands.add_parser("cost", parents=[common, records], help="what runs cost").add_argument
    add("--baseline", metavar="RUN", help="run to compare with (default: the first row)")
    add("--by", choices=["user", "label", "month"], help="totals of the cluster's experiments")
    add("--tokens", action="store_true", help="count tokens instead of windows")
    add("--windows", type=number("--windows", 1, 1e15), help="windows to project a benchmark to")
    pool: Any = {"metavar": "POOL=INSTANCE[:spot]", "help": "price a pool that is not on EC2"}
    add("--price-pool", action="append", default=[], **pool)
    commands.add_parser("scaling", parents=[common, records], help="efficiency over slots")
    add_flags(commands.add_parser("plan", parents=[common], help="expected time and cost"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
