"""What training costs, how it scales, and what it would cost elsewhere.

  python -m reports cost --published --run runs/squad@p3.2xlarge --html cost.html
  python -m reports cost --experiment 12 15                       # a cluster; DET_MASTER, as det
  python -m reports plan --windows 264396 --slots 8 64 --deadline 2
  python -m reports scaling --published --run fused=bench.json

Exit status 0, or 2 with one line on standard error: what is wrong and what to do.
"""

import argparse
import datetime
import sys
from pathlib import Path

from detalbert.errors import UserError

_PACKAGES = {"boto3", "botocore", "determined", "jinja2", "matplotlib", "numpy", "pandas", "rich",
             "yaml"}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Print the report; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        from reports import commands

        commands.write(commands.COMMANDS[args.command](args), args)
        return 0
    except UserError as error:
        fault = str(error)
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name not in _PACKAGES:
            raise
        fault = f"{name} is not installed; run pip install -r reports/requirements.txt"
    print(f"reports: error: {fault}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    from reports import plan_command

    parser = argparse.ArgumentParser(
        prog="reports", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    form = common.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the numbers as JSON")
    form.add_argument("--markdown", action="store_true", help="the tables as Markdown")
    common.add_argument("--html", type=Path, metavar="FILE", help="also write one page with plots")
    common.add_argument("--prices", type=Path, metavar="YAML", help="default: cluster/prices.yaml")
    common.add_argument("--live", action="store_true", help="ask AWS for today's prices")
    common.add_argument("--region", help="for --live; default: the price file's")
    common.add_argument(
        "--today", type=datetime.date.fromisoformat, default=datetime.date.today(), metavar="DAY",
        help="the day that prices are stale or fresh on",
    )  # fmt: skip
    records = argparse.ArgumentParser(add_help=False)
    records.add_argument("--published", action="store_true", help="the published figures")
    records.add_argument("--run", action="append", default=[], metavar="PATH", help="see README")
    records.add_argument("--experiment", type=int, nargs="+", default=[], metavar="ID")
    records.add_argument("--master", metavar="URL", help="default: DET_MASTER, as det has it")
    records.add_argument("--user", help="as det -u")
    records.add_argument(
        "--until", type=_moment, metavar="TIME", help="the end of what still runs; default: now"
    )
    cost = commands.add_parser("cost", parents=[common, records], help="what runs cost")
    cost.add_argument("--baseline", metavar="RUN", help="default: the first row")
    cost.add_argument("--windows", type=float, help="work that a benchmark is projected to")
    cost.add_argument(
        "--price-pool", action="append", default=[], metavar="POOL=INSTANCE[:spot]",
        help="price a pool that is not on EC2 as if it were",
    )  # fmt: skip
    commands.add_parser("scaling", parents=[common, records], help="efficiency over slots")
    options = {"argument_default": argparse.SUPPRESS, "help": "expected time and cost"}
    plan_command.add_options(commands.add_parser("plan", parents=[common], **options))
    return parser


def _moment(text: str) -> datetime.datetime:
    from reports.records import parse_time

    return parse_time(text)


if __name__ == "__main__":
    sys.exit(main())
