"""python -m benchmarks STAGE [--json FILE]; `render` makes the README's table of the results."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    allreduce,
    checkpoint,
    finetune,
    lm,
    loader,
    parity,
    predict,
    pretraining,
    render,
    scaling,
    serve,
    shapes,
    sharding,
    step,
    text,
    threads,
)
from benchmarks.measure import ROOT, Different, Options, environment, write_json
from detalbert.errors import UserError

STAGES: dict[str, Callable[[Options], dict[str, Any]]] = {
    "featurize": text.featurize,
    "decode": text.decode,
    "score": text.score,
    "step": step.step,
    "parity": parity.parity,
    "loader": loader.loader,
    "allreduce": allreduce.allreduce,
    "scaling": scaling.scaling,
    "threads": threads.threads,
    "predict": predict.predict,
    "finetune": finetune.finetune,
    "serve": serve.serve,
    "shards": sharding.shards,
    "pretrain": pretraining.pretrain,
    "lm": lm.lm,
    "checkpoint": checkpoint.checkpoint,
}
DATALESS = (
    "allreduce",
    "threads",
    "serve",
    "shards",
    "pretrain",
    "lm",
    "checkpoint",
)  # do without --data


def main(arguments: list[str] | None = None) -> int:
    """0; 1 where the two sides differ; 2 for a user's mistake. Either is one line on stderr."""
    try:
        args = parse(arguments)
        if args.stage == "render":
            render.render(args.results, args.readme, args.plot)
        else:
            measure(args)
    except UserError as error:
        print(f"benchmarks: {error.kind}: {error}", file=sys.stderr)
        return 2
    except Different as error:
        print(f"benchmarks: not equal: {error}", file=sys.stderr)
        return 1
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("stage", help=f"{', '.join(STAGES)}, all or render")
    parser.add_argument("--json", type=Path, help="write the result here; a folder for `all`")
    shared = ROOT.parent / "shared"
    parser.add_argument("--data", type=Path, default=shared / "squad", help="train.json, dev.json")
    real, embedded = shared / "albert-tokenizer", ROOT / "embedded" / "albert-tiny"
    parser.add_argument("--tokenizer", default=str(real if real.is_dir() else embedded))
    parser.add_argument("--repeats", type=int, default=Options.repeats)
    parser.add_argument("--text", type=Path, help="pretraining's, a document a line")
    parser.add_argument("--model", type=Path, help="of finetune: a model's folder")
    parser.add_argument("--before", type=Path, help="of serve: an earlier commit's checkout")
    parser.add_argument("--examples", type=int, help="at most so many questions, or documents")
    parser.add_argument("--windows", type=int, default=Options.windows, help="of a step")
    parser.add_argument("--steps", type=int, default=Options.steps, help="of parity")
    parser.add_argument("--parity-windows", type=int, default=Options.parity_windows)
    parser.add_argument("--shape", default=Options.shape, help=f"auto, {', '.join(shapes.SHAPES)}")
    parser.add_argument("--sizes", default=Options.sizes, help="numbers in allreduce's gradients")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--readme", type=Path, help="render: put the table between its markers")
    parser.add_argument("--plot", type=Path, help="render: an image file, .png or .svg")
    args = parser.parse_args(arguments)
    if args.stage not in (*STAGES, "all", "render"):
        known = ", ".join((*STAGES, "all", "render"))
        raise UserError(f"{args.stage}: no such stage; choose one of {known}")
    if min(args.repeats, args.windows, args.steps, args.parity_windows) < 1:
        raise UserError("--repeats, --windows, --steps, --parity-windows: must be 1 or more")
    return args


def measure(args: argparse.Namespace) -> None:
    """Run a stage, or all, and show the medians; the JSON of each is written as it ends."""
    if args.stage not in DATALESS and not args.data.is_dir():
        raise UserError(f"--data {args.data}: no such folder; give one with train.json, dev.json")
    names = Options.__dataclass_fields__.keys()
    options = Options(**{name: getattr(args, name) for name in names})
    every = [stage for stage in STAGES if stage != "serve" or options.before]
    for stage in every if args.stage == "all" else [args.stage]:
        file = args.json and (args.json / f"{stage}.json" if args.stage == "all" else args.json)
        if file and not file.exists():
            write_json(file, {})  # find out now, not after minutes
            file.unlink()
        result = {
            "stage": stage,
            **environment(shapes.device_of(options)),
            "identical": True,  # or the stage would have failed
            **STAGES[stage](options),
        }
        print(*render.lines(result), sep="\n", flush=True)
        if file:
            write_json(file, result)


if __name__ == "__main__":
    sys.exit(main())
