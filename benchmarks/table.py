"""The table of results in the README, and text between the markers of a page."""

import json
from pathlib import Path

from detalbert.errors import UserError
from detalbert.sums import Json

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
# Between these stands the table in a page.
BEGIN = "<!-- benchmarks -->"
END = "<!-- end of benchmarks -->"
HEAD = "| stage | this package | the baseline | ratio |\n| --- | --- | --- | --- |"


def render(page: Path | None) -> None:
    """Print the table of all results, or write it between the markers of `page`."""
    # Those of a day with a GPU are in a folder of their own.
    rows = [HEAD]
    for path in sorted(RESULTS.rglob("*.json")):
        result = json.loads(path.read_text())
        if "ratio" in result:
            rows.append(line(result))
    if page is None:
        return print("\n".join(rows))
    write_between(page, rows, BEGIN, END)


def write_between(page: Path, lines: list[str], begin: str, end: str) -> None:
    """Put lines between two marks of a page. Raises UserError if these are not in it."""
    before, _, remainder = page.read_text(encoding="utf-8").partition(begin)
    _, mark, after = remainder.partition(end)
    if not mark:
        raise UserError(f"no {begin} and {end} in it to put the table between", key=str(page))
    text = "\n".join([before + begin, *lines, end + after])
    page.write_text(text, encoding="utf-8")


def line(result: Json) -> str:
    """Return a result as a row of the table."""
    # The stage with its workload, shape and model, as far as it has them.
    settings = result.get("settings", result)
    words = [result["stage"]]
    for key in ("workload", "shape", "model"):
        name = settings.get(key)
        if isinstance(name, str):
            words.append(name)
    device_name = result["device"]["name"].split(" 80GB")[0]
    if result["stage"] == "predict":
        seconds = result["seconds"]
        ours = f"{seconds['predict']:.1f} s, file to files"
        baseline = f"{seconds['forward']:.1f} s, its model alone"
        ratio = f"{result['ratio']:.2f}"
    else:
        ((figure, factor),) = result["ratio"].items()
        unit = figure.replace("_per_second", "/s")
        sides = result["results"]
        ours = f"{_figure(sides['ours'][figure])} {unit}"
        baseline = _figure(sides["peer"][figure])
        ratio = f"{factor:.1f}"
    return f"| {' '.join(words)}, {device_name} | {ours} | {baseline} | {ratio} |"


def _figure(value: Json) -> str:
    """Format the median and spread of a speed."""
    median = value["median"]
    digits = 0 if median >= 100 else 1
    return f"{median:,.{digits}f} ± {value['spread']:,.{digits}f}"
