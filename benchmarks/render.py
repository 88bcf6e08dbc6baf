"""The results as the README's table and as a plot."""

import json
from pathlib import Path
from typing import Any

from detalbert import atomic
from detalbert.errors import UserError, first_line

BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
# Per stage: the figure shown, its unit, and what to divide it by.
SHOWN = {
    "featurize": ("windows_per_second", "windows/s", 1),
    "decode": ("windows_per_second", "windows/s", 1),
    "score": ("questions_per_second", "questions/s", 1),
    "step": ("windows_per_second", "windows/s", 1),
    "parity": ("last_20_loss", "loss, mean of the last 20 steps", 1),
    "loader": ("windows_per_second", "windows/s", 1),
    "allreduce": ("bytes_per_second", "MB/s of fp32 gradients", 1e6),
    "shards": ("megabytes_per_second", "MB/s of text", 1),
}
ORDER = [*SHOWN, "scaling", "predict", "pretrain"]  # those without a peer have a note and no row


def lines(result: dict[str, Any]) -> list[str]:
    """What a stage prints when it ends."""
    if result["stage"] not in SHOWN:
        return _notes(result)
    return [f"{result['stage']:10} {' | '.join(_cells(result)[1:])}"]


def render(results: Path, readme: Path | None, plot: Path | None) -> None:
    """Print the table of every result in a folder, or put it between the markers of a page."""
    table = table_of(load(results))
    if readme is None:
        print(table)
    else:
        _replace(readme, table)
    if plot is not None:
        _plot(load(results), plot)


def load(folder: Path) -> list[dict[str, Any]]:
    """The results in a folder, in the order of the stages."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text())
            ORDER.index(result["stage"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{path}: not a benchmark's result; remove it") from None
        found.append(result)
    if not found:
        raise UserError(f"--results {folder}: no results in it; run python -m benchmarks all")
    return sorted(found, key=lambda result: ORDER.index(result["stage"]))


def table_of(results: list[dict[str, Any]]) -> str:
    """A markdown table, a row for every result; GPU rows that nobody measured say so."""
    rows = ["| stage | on | this package | the peer | times |", "| --- | --- | --- | --- | --- |"]
    for result in results:
        if result["stage"] in SHOWN:
            rows.append(f"| {' | '.join(_cells(result))} |")
    if not any(r["stage"] == "step" and r["device"]["type"] == "cuda" for r in results):
        rows.append("| step, albert-xxlarge | a GPU | not measured | not measured | |")
    if not any(r["stage"] == "pretrain" and r["device"]["type"] == "cuda" for r in results):
        rows.append("| pretrain, albert-base | a GPU | not measured | not measured | |")
    notes = [note for result in results for note in _notes(result)]
    first = results[0]
    versions = ", ".join(f"{name} {v}" for name, v in first["versions"].items() if v)
    where = f"{first['device']['name']}, {first['device']['cores']} cores; {versions}"
    return "\n".join([*rows, "", *notes, f"Medians and spread (greatest less least). {where}."])


def _cells(result: dict[str, Any]) -> list[str]:
    name, unit, divisor = SHOWN[result["stage"]]
    shown = [_figure(result["results"][s][name], divisor) for s in ("ours", "peer")]
    ratio = next(iter(result["ratio"].values()))
    on = result["device"]["type"].upper()
    shape = result.get("settings", {}).get("shape")
    stage = f"{result['stage']}, {shape} ALBERT" if shape else result["stage"]
    return [stage, on, f"{shown[0]} {unit}", shown[1], f"{ratio:.1f}"]


def _figure(value: Any, divisor: float) -> str:
    if not isinstance(value, dict):
        return f"{value:.4f}"
    median, spread = value["median"] / divisor, value["spread"] / divisor
    digits = 0 if median >= 100 else 1
    return f"{median:,.{digits}f} ± {spread:,.{digits}f}"


def _notes(result: dict[str, Any]) -> list[str]:
    if result["stage"] == "predict":
        low, high = (f"{mib:,.0f} MiB" for mib in result["peak_mib"].values())
        return [
            f"- predict.py over {result['windows']:,} windows: {result['ratio']:.2f} times its "
            f"model's own time; {low} at 2,000 questions, {high} at 20,000."
        ]
    if result["stage"] == "scaling":
        two = result["results"]["two_processes"]["seconds"]["median"]
        far = result["published"]["64"]
        return [
            f"- scaling: two processes take {two:.2f} s a step, predicted "
            f"{result['results']['predicted']['seconds']:.2f} s. Published 64 V100: "
            f"{far['published']} windows/s, by the same model {far['predicted']:.1f}."
        ]
    if result["stage"] == "pretrain":
        return _pretrain_notes(result)
    notes, sides = [], [result["results"][side] for side in ("ours", "peer")]
    if result["stage"] == "shards":
        notes.append(_shards_note(result))
    if "peak_memory_bytes" in sides[0]:
        mebi = [f"{side['peak_memory_bytes'] / 2**20:.1f} MiB" for side in sides]
        notes.append(f"{result['stage']}: grows by at most {mebi[0]} (peer {mebi[1]}).")
    if "validation" in result:
        share = 100 * result["validation"]["share"]
        notes.append(f"decoding and scoring: {share:.2f} % of a small ALBERT's validation.")
    if "relative_difference" in result:
        steps, percent = result["settings"]["steps"], 100 * result["relative_difference"]
        notes.append(f"parity: the loss curves of {steps} steps end {percent:.4f} % apart.")
    if "workers" in result:
        medians = {
            n: x["ours"]["windows_per_second"]["median"] for n, x in result["workers"].items()
        }
        shown = ", ".join(f"{n}: {median:,.0f}" for n, median in medians.items())
        notes.append(f"loader: windows/s by num_workers {shown}.")
    if "mfu" in sides[0]:
        mfu = [side["mfu"]["median"] for side in sides]
        notes.append(f"step: MFU over real tokens {mfu[0]:.2f} (peer {mfu[1]:.2f}).")
    return [f"- {note}" for note in notes]


def _shards_note(result: dict[str, Any]) -> str:
    peaks = [f"{facts['worker_peak_mib']:,.0f}" for facts in result["memory"].values()]
    times = ", ".join(result["memory"])
    text = result["settings"]["text_megabytes"]
    return (
        f"shards: a process of it peaks at {', '.join(peaks)} MiB for {times} the text "
        f"({text:,.1f} MB), libraries included."
    )


def _pretrain_notes(result: dict[str, Any]) -> list[str]:
    def median(facts: dict[str, Any], name: str = "sequences_per_second") -> float:
        return facts[name]["median"]

    shape = result["settings"]["shape"]
    whole, parted = (result["results"][name] for name in ("one_forward", "accumulated"))
    loader = {workers: median(facts) for workers, facts in result["loader"].items()}
    by_workers = ", ".join(f"{workers}: {rate:,.0f}" for workers, rate in loader.items())
    reached = []
    for name, series in result["scaling"].items():
        most = max(series, key=int)
        part = median(series[most]) / median(series["1"]) / int(most)
        reached.append(f"{part:.0%} of {most} times one with {name}")
    return [
        f"- pretrain, {shape} ALBERT: {median(whole):,.1f} sequences/s at MFU "
        f"{median(whole, 'mfu'):.2f}; in {parted['forwards']:.1f} micro-batches "
        f"{median(parted):,.1f} at {median(parted, 'mfu'):.2f}.",
        f"- pretrain: sequences/s of the loader alone by num_workers {by_workers}.",
        f"- pretrain: processes reach {', '.join(reached)}.",
    ]


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


def _plot(results: list[dict[str, Any]], path: Path) -> None:
    """How many times the peer's figure ours is, in bars that differ by hatching, not colour."""
    try:
        import matplotlib
    except ImportError:
        raise UserError(
            "--plot needs matplotlib: pip install -r reports/requirements.txt"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [r for r in results if r["stage"] in SHOWN and r["stage"] != "parity"]
    ratios = [next(iter(result["ratio"].values())) for result in shown]
    figure, axes = pyplot.subplots(figsize=(6, 0.6 * len(shown) + 1), layout="constrained")
    bars = axes.barh(
        [_cells(result)[0] for result in shown],
        ratios,
        color="white",
        edgecolor="black",
        hatch="//",
    )
    axes.bar_label(bars, [f"{ratio:.1f}" for ratio in ratios], padding=3)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_xlabel("times the peer's throughput (dashed: equal)")
    axes.invert_yaxis()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UserError(f"--plot {path}: cannot write it: {error}") from None
    finally:
        pyplot.close(figure)
