"""The results as a table: printed, or between the markers of a page."""

import json
from pathlib import Path
from typing import Any

from detalbert import atomic
from detalbert.errors import UserError, first_line

BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
UNITS = {
    "windows_per_second": "windows/s",
    "tokens_per_second": "tokens/s",
    "questions_per_second": "questions/s",
}


def render(folder: Path, readme: Path | None) -> None:
    """Print the table of every result in a folder, or put it between the markers of a page."""
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            results.append(json.loads(path.read_text()))
            line(results[-1])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: not a benchmark's result; remove it") from None
    if not results:
        raise UserError(f"--results {folder}: no results in it; run python -m benchmarks step")
    head = ["| stage | this package | the baseline | ratio |", "| --- | --- | --- | --- |"]
    table = "\n".join([*head, *map(line, results)])
    print(table) if readme is None else _replace(readme, table)


def line(result: dict[str, Any]) -> str:
    """A result as a row of the table."""
    settings, where = result.get("settings", {}), result["device"]["name"].split(" 80GB")[0]
    parts = [result["stage"], *(settings[x] for x in ("workload", "shape") if x in settings)]
    if result["stage"] == "predict":
        whole, alone = (f"{result['seconds'][x]:.1f} s" for x in ("predict", "forward"))
        cells = [f"{whole}, file to files", f"{alone}, its model alone", f"{result['ratio']:.2f}"]
    else:
        ((figure, ratio),) = result["ratio"].items()
        ours, peer = (result["results"][side][figure] for side in ("ours", "peer"))
        cells = [f"{_figure(ours)} {UNITS[figure]}", _figure(peer), f"{ratio:.1f}"]
    return f"| {' '.join(map(str, parts))}, {where} | {' | '.join(cells)} |"


def _figure(value: dict[str, Any]) -> str:
    digits = 0 if value["median"] >= 100 else 1
    return f"{value['median']:,.{digits}f} ± {value['spread']:,.{digits}f}"


def _replace(page: Path, table: str) -> None:
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--readme {page}: cannot read it: {first_line(error)}") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"--readme {page}: no {BEGIN} and {END} in it to put the table between")
    with atomic.whole_file(page) as file:
        file.write(f"{before}{BEGIN}\n{table}\n{END}{after}")
