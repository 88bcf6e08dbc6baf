"""python -m benchmarks STAGE [--json FILE]; `render` makes the README's table of the results."""

import contextlib
import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from cluster.flags import Parser
from detalbert import atomic
from detalbert.errors import UserError
from detalbert.log import fail

HERE = Path(__file__).parent
RESULTS = HERE / "results"
BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
HEAD = "| stage | this package | the baseline | ratio |\n| --- | --- | --- | --- |"


def main(arguments: list[str] | None = None) -> int:
    """Return 0; 1 if the two sides differ; 2 for a user's mistake. Either is one line on stderr."""
    parser = Parser(prog="benchmarks", description=__doc__)
    parser.add_flags("flags", file=HERE / "flags.yaml")
    real = HERE.parents[1] / "shared" / "albert-tokenizer"
    parser.set_defaults(tokenizer=str(real) if real.is_dir() else "embedded/albert-tiny")
    try:
        args = parser.parse_args(arguments)
        render(args.readme) if args.stage == "render" else run(args)
    except UserError as error:
        return fail("benchmarks", error)
    except OSError as error:
        return fail("benchmarks", UserError(str(error)))
    return 0


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
