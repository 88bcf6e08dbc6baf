"""Quality of a pretraining over time: its checkpoints, each fine-tuned on SQuAD.

python -m pretrain.score runs/pretrain --config configs/finetune_pretrained.yaml
python -m pretrain.score experiment:3 --config configs/finetune_pretrained.yaml

RUN is the output directory of a pretraining, or experiment:ID or trial:ID of a cluster. train.py
fine-tunes each of its checkpoints with the recipe of --config, in a folder of its own in
--output-dir. scores.json, scores.md (the table) and scores.svg (the plot) there are rewritten after
each checkpoint. Ctrl-C stops it; the same command resumes.
"""

import argparse
import contextlib
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import util
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import train
import workloads
from detalbert.atomic import whole_file, write_json, writing
from detalbert.engine.cpu import set_threads
from detalbert.environment import environment
from detalbert.errors import UserError
from detalbert.log import start_logging
from detalbert.settings import experiment
from detalbert.settings.hparams import PARSERS
from detalbert.training.checkpoints import newest_complete, read_manifest
from detalbert.training.folder import ELSEWHERE, claim_folder, step_name
from detalbert.training.local import HERE
from pretrain.score_checkpoints import ACCURACIES, Kept, find_pretraining

log = logging.getLogger("detalbert.score")
COLUMNS = ("steps", *ACCURACIES, "exact", "f1")
NAMES = ("steps", "masked tokens", "sentence order", "exact match", "F1")
THREADS = "hyperparameters.threads"
# Two panels: a title, and the columns that its lines show.
PANELS = {
    "In pretraining: right in its own validation": ("sop_accuracy", "mlm_accuracy"),
    "After fine-tuning: right answers": ("f1", "exact"),
}
LOOKS = ({"marker": "o"}, {"marker": "s", "linestyle": "--", "markerfacecolor": "white"})


def main(argv: list[str] | None = None) -> int:
    """Score the checkpoints; return the exit status: 0 done or stopped, 2 a user error."""
    parser = argparse.ArgumentParser(
        prog="python -m pretrain.score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "--config", type=Path, required=True, help="the recipe; its model is not used"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("runs/scores"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE")
    args = parser.parse_args(argv)
    start_logging()
    try:
        return score(args)
    except UserError as error:
        log.error("pretrain.score: %s: %s", error.kind, error)
        return 2


def score(args: argparse.Namespace) -> int:
    """Fine-tune every checkpoint that has no scores yet; return the exit status."""
    if util.find_spec("matplotlib") is None:  # before hours of fine-tuning
        raise UserError(
            "matplotlib is not installed, for the plot; pip install -r reports/requirements.txt"
        )
    recipe = read_recipe(args.config, args.set)
    identity, kept = find_pretraining(args.run)
    with contextlib.ExitStack() as stack:
        stack.enter_context(claim_folder(args.output_dir))
        scores = read_scores(args.output_dir, recipe, identity)
        scores["run"] = args.run
        write_scores(args.output_dir, scores)
        done = {row["steps"] for row in scores["rows"]}
        for steps in sorted(done - {each.steps for each in kept}):
            log.warning("the checkpoint after step %d is gone; its scores stay", steps)
        try:
            stack.enter_context(interruptible())
            for number, each in enumerate(kept, 1):
                if each.steps not in done:
                    log.info("checkpoint %d of %d: after step %d", number, len(kept), each.steps)
                    if status := fine_tune(args, each, scores):
                        return status
        except KeyboardInterrupt:
            log.info("stopped; run the same command again to go on")
    log.info("scores.json, scores.md and scores.svg are in %s", args.output_dir)
    print(table(scores["rows"]))
    return 0


def fine_tune(args: argparse.Namespace, kept: Kept, scores: dict[str, Any]) -> int:
    """Run train.py from a checkpoint, add its scores and return its exit status. Raises
    KeyboardInterrupt if train.py was stopped.
    """
    checkpoint, output = kept.folder(), args.output_dir / step_name(kept.steps)
    if not checkpoint.is_dir():  # the pretraining goes on, and keeps few
        log.warning("%s is gone; it gets no scores", checkpoint)
        return 0
    own = {"hyperparameters.model": str(checkpoint), THREADS: scores["recipe"][THREADS]}
    changes = [*args.set, *(f"{key}={json.dumps(value)}" for key, value in own.items())]
    words = [word for change in changes for word in ("--set", change)]
    words = ["--config", str(args.config), "--output-dir", str(output), *words]
    log.info("%s", shlex.join(["python", "train.py", *words]))
    if status := train.main(words):
        return status
    newest = newest_complete(output / "checkpoints")
    manifest = newest and read_manifest(newest)
    if not manifest or manifest["steps"] < manifest["run"]["hyperparameters.max_steps"]:
        raise KeyboardInterrupt
    data = {key: value for key, value in manifest["run"].items() if key.startswith("data.")}
    refuse_change(args.output_dir, scores["data"] or data, data)
    best = json.loads((output / "metrics.json").read_text())["best"]
    where = environment(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    row = {"steps": kept.steps, "checkpoint": kept.name, **kept.accuracies}
    row |= {"exact": best["exact"], "f1": best["f1"], "best_step": best["steps"]}
    row |= {name: where[name] for name in ("device", "versions", "commit")}
    scores["data"] = data
    scores["rows"] = sorted([*scores["rows"], row], key=lambda row: row["steps"])
    write_scores(args.output_dir, scores)
    return 0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGINT, SIGTERM and SIGHUP, except those that `nohup` ignores.
    While it trains, train.py handles the first two, to save a checkpoint; SIGHUP becomes SIGTERM.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGHUP:
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)

    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_recipe(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings that a fine-tuning's scores depend on, by config key. Raises UserError if
    the config does not fine-tune a checkpoint on SQuAD.
    """
    config = experiment.load(path, overrides)
    experiment.check_sections(config)
    if workloads.parsers(config) is not PARSERS:
        raise UserError(f"--config {path}: not a fine-tuning on SQuAD; give one")
    for section, key in (("hyperparameters", "model_config"), ("data", "tokenizer")):
        if config[section].get(key) is not None:
            raise UserError(
                f"{section}.{key}: a checkpoint has its own; --set {section}.{key}=null"
            )
    values = {**experiment.single_values(config["hyperparameters"]), "model": "the checkpoint"}
    hparams = PARSERS.hyperparameters(values)
    if hparams.seed is None:
        hparams = replace(hparams, seed=experiment.trial_seed(config))
    sections = {"hyperparameters": asdict(hparams), "searcher": config["searcher"]}
    sections["data"] = asdict(PARSERS.data(config["data"]))
    recipe = {f"{name}.{key}": v for name, values in sections.items() for key, v in values.items()}
    return json.loads(json.dumps(recipe))


def read_scores(
    folder: Path, recipe: dict[str, Any], pretraining: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of scores.json; without rows if there is no file. Raises UserError if the
    file is damaged, or has scores of another recipe or pretraining.
    """
    found: dict[str, Any] = {"recipe": {}, "pretraining": pretraining, "data": None, "rows": []}
    try:
        past = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        found = {name: past[name] for name in found}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        file = folder / "scores.json"
        raise UserError(f"{file}: not scores of a pretraining; give another --output-dir") from None
    threads = recipe[THREADS]  # chosen once: on a CPU the number changes rounding
    recipe[THREADS] = set_threads(
        found["recipe"].get(THREADS, threads) if threads == "auto" else threads
    )
    refuse_change(folder, found["recipe"] or recipe, recipe)
    refuse_change(folder, found["pretraining"], pretraining)
    return {**found, "recipe": recipe}


def refuse_change(folder: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UserError if a value has changed."""
    for key in sorted({*was, *now}):
        if was.get(key) != now.get(key):
            raise UserError(
                f"{key}: was {was.get(key)!r} in {folder / 'scores.json'}, is {now.get(key)!r} "
                "now; set it back, or give another --output-dir"
            )


def write_scores(folder: Path, scores: Mapping[str, Any]) -> None:
    """Write the table, the plot if there are rows, and scores.json."""
    with writing(folder, ELSEWHERE):
        with whole_file(folder / "scores.md") as file:
            file.write(table(scores["rows"]) + "\n")
        if scores["rows"]:
            draw(scores["rows"], folder / "scores.svg")
        write_json(folder / "scores.json", scores)  # last: what it has is done


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    cells = [[*COLUMNS], ["---:"] * len(COLUMNS)]
    for row in rows:
        percents = (f"{row[name]:.2f}" if name in row else "" for name in COLUMNS[1:])
        cells.append([f"{row['steps']:,}", *percents])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [[c.rjust(w) for c, w in zip(line, widths, strict=True)] for line in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the plot as SVG: the same bytes for the same rows."""
    from matplotlib import style
    from matplotlib.figure import Figure

    names = dict(zip(COLUMNS, NAMES, strict=True))
    with style.context(HERE / "reports" / "page.mplstyle"), whole_file(path) as file:
        figure = Figure(figsize=(8.6, 3.4))
        for axes, (title, keys) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
            axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
            axes.set_xlabel("pretraining steps")
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.yaxis.set_major_formatter("{x:g} %")
            for key, look in zip(keys, LOOKS, strict=True):
                points = [(row["steps"], row[key]) for row in rows if key in row]
                if points:
                    label = f"{names[key]} {points[-1][1]:.1f} %"
                    ends = zip(*points, strict=True)
                    axes.plot(*ends, color="black", linewidth=1.4, label=label, **look)
                    axes.legend(fontsize=8)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    sys.exit(main())
