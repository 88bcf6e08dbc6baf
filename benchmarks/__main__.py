"""python -m benchmarks STAGE [--json FILE]; `render` makes the README's table of the results."""

import contextlib
import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from benchmarks import finetune, predict, serve, step
from benchmarks.measure import ROOT, SHAPES, Different, device
from detalbert import atomic
from detalbert.environment import environment
from detalbert.errors import UserError

STAGES = {
    f.__name__: f for f in (step.step, finetune.finetune, predict.predict, serve.serve, step.lm)
}
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
HEAD = "| stage | this package | the baseline | ratio |\n| --- | --- | --- | --- |"


def main(arguments: list[str] | None = None) -> int:
    """Return 0; 1 if the two sides differ; 2 for a user's mistake. Either is one line on stderr."""
    args = parse(arguments)
    try:
        render(args.readme) if args.stage == "render" else run(args)
    except Different as error:
        print(f"benchmarks: not equal: {error}", file=sys.stderr)
        return 1
    except (UserError, OSError) as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return 2
    return 0


def parse(arguments: list[str] | None) -> Namespace:
    parser = ArgumentParser(prog="benchmarks", description=__doc__)
    add, shared = parser.add_argument, ROOT.parent / "shared"
    add("stage", choices=(*STAGES, "render"))
    add("--json", type=Path, help="file for the result")
    add("--data", type=Path, default=shared / "squad", help="folder of train.json and dev.json")
    real, embedded = shared / "albert-tokenizer", ROOT / "embedded" / "albert-tiny"
    add("--tokenizer", default=str(real if real.is_dir() else embedded), help="tokenizer of step")
    add("--workload", choices=("finetuning", "pretraining", "lm"), default="finetuning")
    add("--repeats", type=int, default=5, help="measured turns of each side (default: 5)")
    add("--text", type=Path, help="text of pretraining and lm, a document per line (botocore's)")
    add("--model", type=Path, default=embedded, help="model folder of finetune (default: embedded)")
    add("--before", type=Path, help="baseline of serve: checkout of an earlier commit")
    add("--examples", type=int, help="maximum number of questions or documents to use")
    add("--windows", type=int, default=48, help="windows per step (default: 48)")
    add("--shape", choices=("auto", *SHAPES), default="auto", help="model; auto: small on a CPU")
    add("--readme", type=Path, help="page whose table render replaces")
    args = parser.parse_args(arguments)
    if min(args.repeats, args.windows) < 1:
        parser.error("--repeats, --windows: must be 1 or more")
    return args


def run(args: Namespace) -> None:
    """Run a stage, print its row of the table and write its JSON."""
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    with atomic.whole_file(args.json) if args.json else contextlib.nullcontext() as file:
        facts = environment(device())
        result = {"stage": args.stage, **facts, "identical": True, **STAGES[args.stage](args)}
        print(line(result), flush=True)
        if file:
            file.write(json.dumps(result, indent=1) + "\n")


def render(page: Path | None) -> None:
    """Print the table of all results, or write it between the markers of `page`."""
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    table = "\n".join([HEAD, *map(line, results)])
    if page is None:
        return print(table)
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise UserError(f"--readme {page}: no {BEGIN} and {END} in it to put the table between")
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def line(result: dict[str, Any]) -> str:
    """Return a result as a row of the table."""
    settings, where = result.get("settings", result), result["device"]["name"].split(" 80GB")[0]
    names = [settings.get(key) for key in ("workload", "shape", "model")]
    stage = " ".join([result["stage"], *(name for name in names if isinstance(name, str))])
    if result["stage"] == "predict":
        whole, alone = (f"{result['seconds'][x]:.1f} s" for x in ("predict", "forward"))
        cells = [f"{whole}, file to files", f"{alone}, its model alone", f"{result['ratio']:.2f}"]
    else:
        ((figure, ratio),) = result["ratio"].items()
        ours, peer = (_figure(result["results"][side][figure]) for side in ("ours", "peer"))
        cells = [f"{ours} {figure.replace('_per_second', '/s')}", peer, f"{ratio:.1f}"]
    return f"| {stage}, {where} | {' | '.join(cells)} |"


def _figure(value: dict[str, Any]) -> str:
    digits = 0 if value["median"] >= 100 else 1
    return f"{value['median']:,.{digits}f} ± {value['spread']:,.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
