"""python -m benchmarks STAGE [--json FILE]; `render` makes the README's table of the results."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import finetune, lm, measure, predict, render, serve, step
from benchmarks.measure import ROOT, Different, Options
from detalbert.environment import environment
from detalbert.errors import UserError

STAGES: dict[str, Callable[[Options], dict[str, Any]]] = {
    "step": step.step,
    "finetune": finetune.finetune,
    "predict": predict.predict,
    "serve": serve.serve,
    "lm": lm.lm,
}


def main(arguments: list[str] | None = None) -> int:
    """0; 1 if the two sides differ; 2 for a user's mistake. Either is one line on stderr."""
    try:
        args = parse(arguments)
        if args.stage == "render":
            render.render(args.results, args.readme)
        else:
            run(args)
    except UserError as error:
        print(f"benchmarks: {error.kind}: {error}", file=sys.stderr)
        return 2
    except Different as error:
        print(f"benchmarks: not equal: {error}", file=sys.stderr)
        return 1
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("stage", help=f"{', '.join(STAGES)} or render")
    parser.add_argument("--json", type=Path, help="write the result here")
    shared = ROOT.parent / "shared"
    parser.add_argument("--data", type=Path, default=shared / "squad", help="train.json, dev.json")
    real, embedded = shared / "albert-tokenizer", ROOT / "embedded" / "albert-tiny"
    parser.add_argument("--tokenizer", default=str(real if real.is_dir() else embedded))
    workloads = ("finetuning", "pretraining", "lm")
    parser.add_argument("--workload", choices=workloads, default=Options.workload, help="of step")
    parser.add_argument("--repeats", type=int, default=Options.repeats)
    parser.add_argument("--text", type=Path, help="of pretraining and lm, one document per line")
    parser.add_argument("--model", type=Path, help="of finetune: a model's folder")
    parser.add_argument("--before", type=Path, help="of serve: an earlier commit's checkout")
    parser.add_argument("--examples", type=int, help="at most so many questions, or documents")
    parser.add_argument("--windows", type=int, default=Options.windows, help="of a step")
    parser.add_argument("--shape", default=Options.shape, help=f"auto, {', '.join(measure.SHAPES)}")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--readme", type=Path, help="render: put the table between its markers")
    args = parser.parse_args(arguments)
    if args.stage not in (*STAGES, "render"):
        known = ", ".join((*STAGES, "render"))
        raise UserError(f"{args.stage}: no such stage; choose one of {known}")
    if min(args.repeats, args.windows) < 1:
        raise UserError("--repeats, --windows: must be 1 or more")
    return args


def run(args: argparse.Namespace) -> None:
    """Run a stage, show its row, write its JSON."""
    options = Options(**{name: getattr(args, name) for name in Options.__dataclass_fields__})
    if args.json and not args.json.exists():
        measure.write_json(args.json, {})  # find out now, not after minutes
        args.json.unlink()
    facts = environment(measure.device())
    result = {"stage": args.stage, **facts, "identical": True, **STAGES[args.stage](options)}
    print(render.line(result), flush=True)
    if args.json:
        measure.write_json(args.json, result)


if __name__ == "__main__":
    sys.exit(main())
