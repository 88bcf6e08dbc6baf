"""python -m benchmarks step [--workload lm] [--json]: beside a baseline.

A stage measures this package and a baseline in turn, in one run, and fails if their results differ:
`step` (optimizer steps), `lm` (those of a language model, sharded over two processes), `finetune`
and `predict` (from file to file). `table` prints the README's table of benchmarks/results.
"""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

from benchmarks.table import line, table
from detalbert.command import Parser
from detalbert.errors import UserError
from detalbert.log import fail

# Modules of the stages; the function has the stage's name.
STAGES = {
    "step": "benchmarks.step",
    "lm": "benchmarks.step",
    "finetune": "benchmarks.end_to_end",
    "predict": "benchmarks.end_to_end",
    "table": "benchmarks.table",
}
TINY = "embedded/albert-tiny"


def main(arguments: list[str] | None = None) -> int:
    """Return 0; 1 if the two sides differ; 2 for a user's mistake. Either is one line on stderr."""
    try:
        args = parse_arguments(arguments)
        if args.stage == "table":
            print(table())
        else:
            run(args)
    except UserError as error:
        return fail("benchmarks", error)
    return 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = Parser("benchmarks", description=__doc__)
    add = parser.add_argument
    add("stage", choices=STAGES)
    add("--json", action="store_true", help="print the result as JSON, for benchmarks/results")
    add("--repeats", type=positive, default=5, help="measured turns of each side (default: 5)")
    add("--workload", choices=["finetuning", "pretraining", "lm"], default="finetuning")
    add(
        "--shape",
        default="small",
        help="random model: tiny, small (default), base, xxlarge; of lm tiny, small, 125m, 1b",
    )
    add("--windows", type=positive, default=48, help="windows per step (default: 48)")
    add("--tokenizer", default=TINY, help=f"tokenizer of step (default: {TINY})")
    add(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="train.json and dev.json in SQuAD's format (default: the embedded questions)",
    )
    add("--text", default="botocore", help="file for pretraining and lm (default: botocore's text)")
    add("--model", default=TINY, metavar="FOLDER", help=f"finetune, predict (default: {TINY})")
    add("--examples", type=positive, default=600, help="questions of finetune (default: 600)")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def run(args: argparse.Namespace) -> None:
    """Run a stage and print its result, on rank 0."""
    from benchmarks.measure import environment  # --help and table need no torch

    measure = getattr(importlib.import_module(STAGES[args.stage]), args.stage)
    result = {**environment(), **measure(args), "stage": args.stage}
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(result, indent=1) if args.json else line(result))


if __name__ == "__main__":
    sys.exit(main())
