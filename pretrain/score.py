"""Quality of a pretraining over time: its checkpoints, each fine-tuned on SQuAD.

python -m pretrain.score runs/pretrain --config configs/finetune_pretrained.yaml
python -m pretrain.score experiment:3 --config configs/finetune_pretrained.yaml

RUN is the output directory of a pretraining, or experiment:ID or trial:ID of a cluster. train.py
fine-tunes each of its checkpoints with the recipe of --config, in a folder of its own in
--output-dir. scores.json, scores.md (the table) and scores.svg (the plot) there are rewritten after
each checkpoint. Ctrl-C stops it; the same command resumes.
"""

import argparse
import json
import logging
import shlex
import sys
from importlib import util
from pathlib import Path
from typing import Any


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("pretrain.score", description=__doc__, formatter_class=style)
    add = parser.add_argument
    add("run", metavar="RUN", help="the pretraining")
    add("--config", type=Path, required=True, help="the recipe, but for its model")
    output = "folder of the runs and scores (default: runs/scores)"
    add("--output-dir", type=Path, default=Path("runs/scores"), help=output)
    key = "config key to set, e.g. hyperparameters.epochs=3 (repeatable)"
    add("--set", action="append", default=[], metavar="KEY.PATH=VALUE", help=key)
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse_arguments(None)  # --help and mistakes need none of the imports below

import pandas
import torch

import train
import workloads
from detalbert.atomic import whole_file, write_json, writing
from detalbert.environment import environment
from detalbert.errors import UserError, as_user_error
from detalbert.inference.find import find, find_all, is_reference, read_json
from detalbert.log import fail, start_logging
from detalbert.processes import end_on_signals
from detalbert.settings import experiment
from detalbert.settings.hparams import PARSERS
from detalbert.training.folder import ELSEWHERE, claim_folder, step_name
from detalbert.training.local import HERE

log = logging.getLogger("detalbert.score")
COLUMNS = ["steps", "mlm_accuracy", "sop_accuracy", "exact", "f1"]
KEPT = "checkpoint", "device", "versions", "commit"  # in scores.json only
OWN = ["hyperparameters.model_config=null", "data.tokenizer=null"]  # a checkpoint has both


def main(argv: list[str] | None = None) -> int:
    """Score the checkpoints; return the exit status, train.py's if it ended or was stopped."""
    args = parse_arguments(argv)
    start_logging()
    try:
        return score_run(args)
    except UserError as error:
        return fail("pretrain.score", error)


def score_run(args: argparse.Namespace) -> int:
    """Fine-tune every checkpoint that has no scores yet; return the exit status."""
    for library in ("matplotlib", "tabulate"):  # before hours of fine-tuning
        if util.find_spec(library) is None:
            raise UserError(f"{library} is not installed; pip install -r reports/requirements.txt")
    config = experiment.load(args.config, [*args.set, *OWN, "hyperparameters.model=null"])
    experiment.check_sections(config)
    if workloads.parsers(config) is not PARSERS:
        raise UserError(f"--config {args.config}: not a fine-tuning on SQuAD; give one")
    PARSERS.hyperparameters({**experiment.single_values(config["hyperparameters"]), "model": "x"})
    facts, kept = find_all(args.run)
    if not facts.keys() & {"data.text", "data.shards"} or "hyperparameters.layout" in facts:
        raise UserError(f"{args.run}: not a pretraining of ALBERT; give one")
    facts = {f"pretraining: {key}": value for key, value in facts.items()}
    for name in ("hyperparameters", "data", "searcher"):
        facts |= {f"{name}.{key}": value for key, value in config[name].items()}
    rows = read_rows(args.output_dir / "scores.json", facts)
    for steps in sorted(rows.keys() - kept.keys()):
        log.warning("the checkpoint after step %d is gone; its scores stay", steps)
    with claim_folder(args.output_dir):
        for steps in sorted(kept.keys() - rows.keys()):
            name, validation = kept[steps]
            if not (is_reference(name) or Path(name).is_dir()):  # the pretraining keeps few
                log.warning("%s is gone; it gets no scores", name)
                continue
            output = args.output_dir / step_name(steps)
            if status := fine_tune(args, name, output):
                return status
            best = read_json(output / "metrics.json")["best"]
            row = {**validation, **best, "steps": steps, "checkpoint": name}
            row |= environment(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
            rows[steps] = {key: row[key] for key in (*COLUMNS, *KEPT) if key in row}
            write_scores(args.output_dir, facts, rows)
    if rows:
        log.info("scores.json, scores.md and scores.svg are in %s", args.output_dir)
        print((args.output_dir / "scores.md").read_text(), end="")
    return 0


def fine_tune(args: argparse.Namespace, name: str, output: Path) -> int:
    """Run train.py from a checkpoint; return its exit status, 0 if it has finished."""
    words = ["--config", str(args.config), "--output-dir", str(output)]
    for change in (*args.set, *OWN, f"hyperparameters.model={json.dumps(str(find(name)))}"):
        words += ["--set", change]
    log.info("python train.py %s", shlex.join(words))
    return train.main(words)


def read_rows(path: Path, facts: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Read the rows of scores.json by step. Raises UserError if it was written with other facts."""
    fault = UserError(f"{path}: not scores of a pretraining; give another --output-dir")
    with as_user_error(lambda _: fault):
        past = read_json(path) or {"facts": facts, "rows": []}
        for key in sorted({*past["facts"], *facts}):
            was, now = past["facts"].get(key), facts.get(key)
            if was != now:
                said = f"{key}: was {was!r} in {path}, is {now!r} now"
                raise UserError(f"{said}; set it back, or give another --output-dir")
        return {row["steps"]: row for row in past["rows"]}


def write_scores(folder: Path, facts: dict[str, Any], rows: dict[int, dict[str, Any]]) -> None:
    """Write the table, the plot and, last, what a next start reads."""
    from matplotlib import figure, style

    ordered = [rows[steps] for steps in sorted(rows)]
    frame = pandas.DataFrame(ordered, columns=COLUMNS).set_index("steps").astype(float)
    cells = frame.astype(object).where(frame.notna(), None)
    with writing(folder, ELSEWHERE), style.context(HERE / "cluster" / "planning" / "page.mplstyle"):
        with whole_file(folder / "scores.md") as file:
            file.write(cells.to_markdown(intfmt=",", floatfmt=".2f") + "\n")
        image = figure.Figure(figsize=(8.6, 3.4))
        frame.plot(ax=image.subplots(), style=["k^-", "ks-", "k^:", "ks:"], ylabel="percent")
        with whole_file(folder / "scores.svg") as file:  # the same bytes for the same rows
            image.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        write_json(folder / "scores.json", {"facts": facts, "rows": ordered})


if __name__ == "__main__":
    end_on_signals("; run the same command again to go on")
    sys.exit(main())
