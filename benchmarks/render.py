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
    "lm": ("tokens_per_second", "tokens/s, two processes", 1),
    "finetune": ("questions_per_second", "questions/s, files to scores", 1),
    "serve": ("questions_per_second", "questions/s, 32 clients", 1),
    "checkpoint": ("checkpoints_per_second", "checkpoints a second that training waits", 1),
}
ORDER = [*SHOWN, "scaling", "threads", "predict", "pretrain"]  # the last four have a note, no row


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
    return sorted(found, key=lambda x: (ORDER.index(x["stage"]), x["device"]["type"]))


def table_of(results: list[dict[str, Any]]) -> str:
    """A markdown table, a row for every result; GPU rows that nobody measured say so."""
    rows = ["| stage | on | this package | the peer | times |", "| --- | --- | --- | --- | --- |"]
    rows += [f"| {' | '.join(_cells(r))} |" for r in results if r["stage"] in SHOWN]
    on_gpu = {result["stage"] for result in results if result["device"]["type"] == "cuda"}
    for stage, model in (("step", "albert-xxlarge"), ("pretrain", "albert-base")):
        if stage not in on_gpu:
            rows.append(f"| {stage}, {model} | a GPU | not measured | not measured | |")
    notes = [note for result in results for note in _notes(result)]
    firsts = {result["device"]["type"]: result for result in reversed(results)}
    where = " ".join(_where(firsts[kind]) for kind in sorted(firsts))
    return "\n".join([*rows, "", *notes, "", f"Medians ± spread (greatest less least). {where}"])


def _where(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {v}" for name, v in result["versions"].items() if v)
    return f"{result['device']['name']}, {result['device']['cores']} cores; {versions}."


def _name(result: dict[str, Any]) -> str:
    settings = result.get("settings", {})
    if result["stage"] == "finetune":
        return f"finetune, {settings['model']}"
    shape = settings.get("shape")
    return f"{result['stage']}, {shape} ALBERT" if shape else result["stage"]


def _cells(result: dict[str, Any]) -> list[str]:
    name, unit, divisor = SHOWN[result["stage"]]
    shown = [_figure(result["results"][s][name], divisor) for s in ("ours", "peer")]
    ratio = next(iter(result["ratio"].values()))
    on = "CPU" if result["device"]["type"] == "cpu" else "GPU"
    return [_name(result), on, f"{shown[0]} {unit}", shown[1], f"{ratio:.1f}"]


def _figure(value: Any, divisor: float) -> str:
    if not isinstance(value, dict):
        return f"{value:.4f}"
    median, spread = value["median"] / divisor, value["spread"] / divisor
    digits = 0 if median >= 100 else 1
    return f"{median:,.{digits}f} ± {spread:,.{digits}f}"


def _notes(result: dict[str, Any]) -> list[str]:
    """The list items below the table: what a result says besides its row."""
    stage = result["stage"]
    if stage in _NOTES_OF:
        return [f"- {stage}{note}" for note in _NOTES_OF[stage](result)]
    notes, sides = [], [result["results"][side] for side in ("ours", "peer")]
    if "peak_memory_bytes" in sides[0]:
        ours, peer = (_grown(side["peak_memory_bytes"] / 2**20) for side in sides)
        notes.append(f"{stage}: peak memory {ours} MiB (peer {peer}).")
    if "validation" in result:
        share = 100 * result["validation"]["share"]
        notes.append(f"decoding and scoring take {share:.2f} % of a small ALBERT's validation.")
    if "relative_difference" in result:
        steps, percent = result["settings"]["steps"], 100 * result["relative_difference"]
        notes.append(f"parity: the loss curves of {steps} steps end {percent:.4f} % apart.")
    if "workers" in result:
        rates = {n: _median(x["ours"], "windows_per_second") for n, x in result["workers"].items()}
        notes.append(f"loader: {_by_workers(rates, 'windows/s')}.")
    if "mfu" in sides[0]:
        mfu = [_median(side, "mfu") for side in sides]
        memory = ""
        if isinstance(result["memory"], dict):  # of a GPU
            ours, peer = (result["memory"][x]["peak_bytes"] / 1e9 for x in ("ours", "peer"))
            memory = f"; peak memory {ours:.0f} GB (peer {peer:.0f})"
        notes.append(
            f"{_name(result)}: MFU over real tokens {mfu[0]:.2f} (peer {mfu[1]:.2f}){memory}."
        )
    return [f"- {note}" for note in notes]


def _median(facts: dict[str, Any], name: str = "sequences_per_second") -> float:
    return facts[name]["median"]


def _grown(mebibytes: float) -> str:
    return f"+{mebibytes:.{0 if mebibytes >= 10 else 1}f}"


def _by_workers(rates: dict[str, float], unit: str) -> str:
    """What a loader reaches without workers and with the best number of them."""
    best = max(rates, key=lambda workers: rates[workers])
    more = f"{rates[best]:,.0f} with {best} worker{'s' * (best != '1')}, the best number"
    alone = f"{rates['0']:,.0f} {unit} in the main process"
    return f"{alone}, {'no more with workers' if best == '0' else more}"


def _predict_notes(result: dict[str, Any]) -> list[str]:
    low, high = (f"{m:,.0f} MiB for {int(n):,}" for n, m in result["peak_mib"].items())
    where = f"{result['model']}, {result['device']['name']}"
    return [
        f".py ({where}) takes {result['ratio']:.2f} x its model's own time, over "
        f"{result['windows']:,} windows; peak memory {low} questions; {high}.",
    ]


def _scaling_notes(result: dict[str, Any]) -> list[str]:
    two, predicted = result["results"]["two_processes"], result["results"]["predicted"]
    far = result["published"]["64"]
    return [
        f": two processes take {_median(two, 'seconds'):.2f} s a step; the step-time model "
        f"predicts {predicted['seconds']:.2f} s.",
        f": 64 V100 reach {far['published']} windows/s (published); the step-time model predicts "
        f"{far['predicted']:.1f}.",
    ]


def _threads_notes(result: dict[str, Any]) -> list[str]:
    rates = {
        load: [f"{_median(sides[side], 'windows_per_second'):.0f}" for side in ("ours", "peer")]
        for load, sides in result["results"].items()
    }
    busy, idle = (" and ".join(rates[load]) for load in ("1", "0"))
    return [
        f": `auto` and a thread for every core train {busy} windows/s beside a busy process; "
        f"{idle} on an idle machine."
    ]


def _shards_notes(result: dict[str, Any]) -> list[str]:
    (_, small), *_, (times, large) = result["memory"].items()
    return [
        f": the largest process peaks at {small['worker_peak_mib']:,.0f} MiB; with "
        f"{times.removesuffix('x')} times the text, at {large['worker_peak_mib']:,.0f} MiB."
    ]


def _pretrain_notes(result: dict[str, Any]) -> list[str]:
    whole, parted = (result["results"][name] for name in ("one_forward", "accumulated"))
    shown = [
        f"{_median(x):,.1f} sequences/s (MFU {_median(x, 'mfu'):.2f})" for x in (whole, parted)
    ]
    loader = {workers: _median(facts) for workers, facts in result["loader"].items()}
    cores = result["device"]["cores"]
    notes = [
        f", {result['settings']['shape']} ALBERT: {shown[0]} in one forward, {shown[1]} in "
        f"{parted['forwards']:.1f} micro-batches.",
        f", the loader alone, {cores} cores: {_by_workers(loader, 'sequences/s')}.",
    ]
    for name, series in result["scaling"].items():
        most = max(series, key=int)
        processes = {"1": "one process", "2": "two processes"}.get(most, f"{most} processes")
        ratio = _median(series[most]) / _median(series["1"])
        notes.append(f", {name}: {processes} reach {ratio:.2f} x one.")
    return notes


_NOTES_OF = {
    "predict": _predict_notes,
    "scaling": _scaling_notes,
    "shards": _shards_notes,
    "threads": _threads_notes,
    "pretrain": _pretrain_notes,
}


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
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(
            "--plot needs matplotlib: pip install -r reports/requirements.txt"
        ) from None
    shown = [r for r in results if r["stage"] in SHOWN and r["stage"] != "parity"]
    ratios = [next(iter(result["ratio"].values())) for result in shown]
    figure = Figure(figsize=(6, 0.6 * len(shown) + 1), layout="constrained")
    axes = figure.subplots()
    names = [_cells(result)[0] for result in shown]
    bars = axes.barh(names, ratios, color="white", edgecolor="black", hatch="//")
    axes.bar_label(bars, [f"{ratio:.1f}" for ratio in ratios], padding=3)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_xlabel("times the peer's throughput (dashed: equal)")
    axes.invert_yaxis()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UserError(f"--plot {path}: cannot write it: {error}") from None
