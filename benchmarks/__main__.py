"""python -m benchmarks STAGE [--json FILE]; `render` makes the README's table of the results.

`gpu-render --day FOLDER` puts a day with a GPU (gpu_day.py) into all places that have its figures.
"""

# A stage measures this package and a baseline in one run, in turn, and fails if their results
# differ: a speed alone says nothing, on a machine that nobody else has.

import contextlib
import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path

from benchmarks import table
from cluster.flags import number
from detalbert import files
from detalbert.command import Parser
from detalbert.errors import UserError
from detalbert.log import fail

HERE = Path(__file__).parent
STAGES = ["step", "finetune", "predict", "serve", "lm", "gpu-check", "gpu-tests"]
STAGES += ["render", "gpu-render"]
# Stages that are not in a module of their name.
MODULES = {"lm": "step", "gpu_check": "gpu_machine", "gpu_tests": "gpu_machine"}
GPU_TESTS = ("-m", "gpu", "tests/engine/test_on_a_gpu.py")


def main(arguments: list[str] | None = None) -> int:
    """Return 0; 1 if the two sides differ; 2 for a user's mistake. Either is one line on stderr."""
    try:
        args = _parser().parse_args(arguments)
        if args.stage == "render":
            table.render(args.readme)
        elif args.stage == "gpu-render":
            from benchmarks.gpu_render import render_day

            render_day(args.day)
        else:
            run(args)
    except UserError as error:
        return fail("benchmarks", error)
    except OSError as error:
        return fail("benchmarks", UserError(str(error)))
    return 0


def _parser() -> Parser:
    """Return the parser of the command line; its paths begin in the repository's root."""
    # Data and the published models' tokenizer, if they are in .gpu or beside the repository.
    shared = HERE.parent / ".gpu"
    if not (shared / "squad").is_dir():
        shared = HERE.parents[1] / "shared"
    published = shared / "albert-tokenizer"
    tokenizer = str(published) if published.is_dir() else "embedded/albert-tiny"
    parser = Parser(prog="benchmarks", description=__doc__)
    add = parser.add_argument
    add("stage", choices=STAGES)
    add("--json", type=Path, metavar="FILE", help="file for the result")
    add(
        "--data",
        type=Path,
        default=shared / "squad",
        metavar="FOLDER",
        help="folder of train.json and dev.json",
    )
    add("--tokenizer", default=tokenizer, help=f"tokenizer of step (default: {tokenizer})")
    add("--workload", choices=["finetuning", "pretraining", "lm"], default="finetuning")
    add(
        "--repeats",
        type=number("--repeats", 1, 1e6, whole=True),
        default=5,
        help="measured turns of each side (default: 5)",
    )
    add(
        "--text",
        type=Path,
        metavar="FILE",
        help="text of pretraining and lm, a document per line (default: botocore's)",
    )
    add(
        "--model",
        type=Path,
        default="embedded/albert-tiny",
        metavar="FOLDER",
        help="model of finetune (default: embedded)",
    )
    add(
        "--before",
        type=Path,
        metavar="FOLDER",
        help="baseline of serve: checkout of an earlier commit",
    )
    add("--examples", type=int, help="maximum number of questions or documents to use")
    add(
        "--windows",
        type=number("--windows", 1, 1e6, whole=True),
        default=48,
        help="windows per step (default: 48)",
    )
    add(
        "--shape",
        choices=["auto", "tiny", "small", "base", "large", "xlarge", "xxlarge", "125m", "1b"],
        default="auto",
        help="model; auto: small on a CPU; 125m and 1b: language models",
    )
    add(
        "--budgets",
        type=number("--budgets", 1, 1e9, whole=True),
        nargs="+",
        metavar="TOKENS",
        help="values of max_tokens_per_forward at which step measures this package, in one process",
    )
    add("--tests", nargs="+", default=GPU_TESTS, help="words of pytest, for gpu-tests")
    add("--readme", type=Path, metavar="FILE", help="page whose table render replaces")
    add(
        "--day",
        type=Path,
        default=table.RESULTS / "gpu",
        metavar="FOLDER",
        help="results of benchmarks/gpu.sh, which gpu-render puts into pages and facts",
    )
    return parser


def run(args: Namespace) -> None:
    """Run a stage, print its row of the table and write its JSON."""
    from benchmarks.environment import environment
    from benchmarks.measure import device  # --help and render need no torch

    # A stage's function has its name.
    function = "sweep" if args.budgets else args.stage.replace("-", "_")
    module = importlib.import_module(f"benchmarks.{MODULES.get(function, function)}")
    measure = getattr(module, function)
    with contextlib.ExitStack() as stack:
        file = None
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(files.whole_file(args.json))
        machine = {"stage": args.stage, **environment(device()), "identical": True}
        measured = measure(args)
        # A sweep yields a result that grows: whoever stops it keeps what it had.
        for partial in [measured] if isinstance(measured, dict) else measured:
            result = machine | partial
            if args.json:
                files.write_json(args.json, result)
        if "ratio" in result:
            print(table.line(result), flush=True)
        if file is not None:
            file.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
