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
import sys
from datetime import date
from pathlib import Path
from typing import Any

from cluster.flags import Parser, number
from detalbert.errors import UserError
from detalbert.log import fail

COMMANDS = {"cost": "what runs cost", "scaling": "efficiency over slots", "runs": "a table of runs"}


def main(argv: list[str] | None = None) -> int:
    """Print the report; return the exit status."""
    try:
        args = _parser().parse_args(argv)
        from reports import report

        return report.write(importlib.import_module(f"reports.{args.command}").run(args), args)
    except UserError as error:
        return fail("reports", error)
    except ImportError as error:
        missing = str(error.name).split(".")[0]
        if missing in ("cluster", "detalbert", "reports"):
            raise
        cure = "run pip install -r reports/requirements.txt"
        return fail("reports", UserError(f"{missing} is not installed; {cure}"))


def _time(text: str) -> Any:
    from cluster.records import parse_time  # --help needs none of its libraries

    return parse_time(text)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the commands and of the flags in flags.yaml."""
    import yaml

    kinds: Any = {"path": Path, "day": date.fromisoformat, "time": _time, "int": int}
    flags = yaml.safe_load(Path(__file__).with_name("flags.yaml").read_text(encoding="utf-8"))
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="reports", description=__doc__, formatter_class=layout)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, said in COMMANDS.items():
        each = commands.add_parser(command, help=said)
        each.set_defaults(today=date.today(), budget=None)
        form = each.add_mutually_exclusive_group()
        for group in ("form", "common", command):
            for flag, facts in flags[group].items():
                facts = dict(facts)
                if "number" in facts:
                    facts["type"] = number(flag, *facts.pop("number"))
                elif "kind" in facts:
                    facts["type"] = kinds[facts.pop("kind")]
                (form if group == "form" else each).add_argument(flag, **facts)
    return parser


if __name__ == "__main__":
    sys.exit(main())
