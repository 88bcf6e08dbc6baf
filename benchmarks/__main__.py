"""python -m benchmarks STAGE [--json FILE]; `render` makes the README's table of the results."""

import contextlib
import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from cluster.flags import Parser, number
from detalbert import atomic
from detalbert.errors import UserError
from detalbert.log import fail

HERE = Path(__file__).parent
RESULTS = HERE / "results"
BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
HEAD = "| stage | this package | the baseline | ratio |\n| --- | --- | --- | --- |"


def main(arguments: list[str] | None = None) -> int:
    """Return 0; 1 if the two sides differ; 2 for a user's mistake. Either is one line on stderr."""
    try:
        args = _parser().parse_args(arguments)
        render(args.readme) if args.stage == "render" else run(args)
    except UserError as error:
        return fail("benchmarks", error)
    except OSError as error:
        return fail("benchmarks", UserError(str(error)))
    return 0


def _parser() -> Parser:
    """Return the parser of the command line; its paths begin in the repository's root."""
    real = HERE.parents[1] / "shared" / "albert-tokenizer"
    tokenizer = str(real) if real.is_dir() else "embedded/albert-tiny"
    parser = Parser(prog="benchmarks", description=__doc__)
    add = parser.add_argument
    add("stage", choices=["step", "finetune", "predict", "serve", "lm", "render"])
    add("--json", type=Path, metavar="FILE", help="file for the result")
    add(
        "--data",
        type=Path,
        default="../shared/squad",
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
        choices=["auto", "tiny", "small", "base", "large", "xlarge", "xxlarge"],
        default="auto",
        help="model; auto: small on a CPU",
    )
    add("--readme", type=Path, metavar="FILE", help="page whose table render replaces")
    return parser


def run(args: Namespace) -> None:
    """Run a stage, print its row of the table and write its JSON."""
    from benchmarks.measure import device  # --help and render need no torch
    from detalbert.environment import environment

    module = importlib.import_module(f"benchmarks.{'step' if args.stage == 'lm' else args.stage}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    with atomic.whole_file(args.json) if args.json else contextlib.nullcontext() as file:
        facts, measure = environment(device()), getattr(module, args.stage)
        result = {"stage": args.stage, **facts, "identical": True, **measure(args)}
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
