"""Results as a table: printed, or written between the markers of a page."""

import json
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from detalbert.errors import UserError

RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
HEAD = "| stage | this package | the baseline | ratio |\n| --- | --- | --- | --- |"


def render(page: Path | None) -> None:
    """Print the table of all results, or write it between the markers of `page`."""
    lines = [line(json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json"))]
    table = "\n".join([HEAD, *lines])
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
