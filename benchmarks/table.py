"""The table of results in the README, and text between the markers of a page."""

import json
from pathlib import Path

from detalbert.errors import UserError
from detalbert.integrity import Json

RESULTS = Path(__file__).parent / "results"
# Between these stands the table in a page.
BEGIN = "<!-- benchmarks -->"
END = "<!-- end of benchmarks -->"
HEAD = "| stage | this package | the baseline | ratio |\n| --- | --- | --- | --- |"
# Of a day with a GPU: what is no row of the table.
NO_ROW = {"check.json", "tests.json"}


def render(page: Path | None) -> None:
    """Print the table of all results, or write it between the markers of `page`."""
    newest: dict[str, Json] = {}
    for result in read_results():
        # Of a stage that was measured twice on such a machine the newer row.
        label = stage_label(result)
        if label not in newest or result["time"] > newest[label]["time"]:
            newest[label] = result
    table = "\n".join([HEAD, *map(line, newest.values())])
    if page is None:
        return print(table)
    write_between(page, BEGIN, f"{table}\n", END, flag="--readme")


def read_results() -> list[Json]:
    """Return all results, those of the last day with a GPU among them."""
    files = sorted([*RESULTS.glob("*.json"), *RESULTS.glob("gpu/*.json")])
    return [json.loads(file.read_text()) for file in files if file.name not in NO_ROW]


def write_between(page: Path, begin: str, text: str, end: str, flag: str = "") -> None:
    """Replace what is between two marks of a page. Raises UserError if they are not in it."""
    before, _, remainder = page.read_text(encoding="utf-8").partition(begin)
    _, mark, after = remainder.partition(end)
    if not mark:
        raise UserError(
            f"no {begin} and {end} in it to put the table between", key=f"{flag} {page}".strip()
        )
    page.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")


def stage_label(result: Json) -> str:
    """Return the stage with its workload, shape and model, as far as it has them, and device."""
    settings = result.get("settings", result)
    words = [result["stage"]]
    for key in ("workload", "shape", "model"):
        name = settings.get(key)
        if isinstance(name, str) and name != "finetuning":  # the default workload
            words.append(name)
    device_name = result["device"]["name"].split(" 80GB")[0]
    return f"{' '.join(words)}, {device_name}"


def line(result: Json) -> str:
    """Return a result as a row of the table."""
    if result["stage"] == "predict":
        seconds = result["seconds"]
        ours = f"{seconds['predict']:.1f} s, file to files"
        baseline = f"{seconds['forward']:.1f} s, its model alone"
        ratio = f"{result['ratio']:.2f}"
    else:
        ((figure, factor),) = result["ratio"].items()
        unit = figure.replace("_per_second", "/s")
        ours = f"{_figure(result['results']['ours'][figure])} {unit}"
        baseline = _figure(result["results"]["peer"][figure])
        ratio = f"{factor:.1f}"
    return f"| {stage_label(result)} | {ours} | {baseline} | {ratio} |"


def _figure(value: Json) -> str:
    """Format the median and spread of a speed."""
    digits = 0 if value["median"] >= 100 else 1
    return f"{value['median']:,.{digits}f} ± {value['spread']:,.{digits}f}"
