"""Cost of training, its scaling, a table of runs. What a run will cost: python -m cluster.plan.

python -m reports runs runs/ s3://bucket/runs                   # best first; keys that differ
python -m reports cost --published runs/squad@p3.2xlarge --html cost.html
python -m reports cost --experiment 12 15                       # a cluster; DET_MASTER, as det
python -m reports cost --since 2026-11-01 --by user --csv       # all that ran since then
python -m reports scaling --published --run fused=bench.json

Exit status 0; 3 when --budget is exceeded; 2 with one line: what is wrong and what to do; 4: a
master or AWS does not answer.
"""

import argparse
import importlib
import signal
import sys
from pathlib import Path

from cluster.flags import Parser, needing
from detalbert.errors import UserError
from detalbert.log import fail

COMMANDS = {"cost": "what runs cost", "scaling": "efficiency over slots", "runs": "a table of runs"}


def main(argv: list[str] | None = None) -> int:
    """Print the report; return the exit status."""
    try:
        args = _parser().parse_args(argv)
        with needing("reports/requirements.txt"):
            from reports import report

            return report.write(importlib.import_module(f"reports.{args.command}").run(args), args)
    except UserError as error:
        return fail("reports", error)


def _parser() -> Parser:
    style = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="reports", description=__doc__, formatter_class=style)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, said in COMMANDS.items():
        each = commands.add_parser(command, help=said)
        each.set_defaults(budget=None)
        if command != "runs":
            each.add_flags("prices")
        each.add_flags("common", command, file=Path(__file__).with_name("flags.yaml"))
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
    sys.exit(main())
