"""Quality of a pretraining over time: its checkpoints, each fine-tuned on SQuAD.

python -m pretrain.score runs/pretrain --config configs/finetune_pretrained.yaml
python -m pretrain.score experiment:3 --config configs/finetune_pretrained.yaml

RUN is the output directory of a pretraining, or experiment:ID or trial:ID of a cluster. train.py
fine-tunes each of its checkpoints with the recipe of --config, in a folder of its own in
--output-dir. scores.json and scores.md (the table) there are rewritten after each checkpoint.
Ctrl-C stops it; the same command resumes.
"""

import argparse
import json
import logging
import shlex
from importlib import util
from pathlib import Path

from detalbert.command import Parser, existing_file, refuse_first


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("pretrain.score", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="the pretraining")
    parser.add_argument(
        "--config", type=existing_file, required=True, help="the recipe, but for its model"
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("runs/scores"),
        help="folder of the runs and scores (default: runs/scores)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="config key to set, e.g. hyperparameters.epochs=3 (repeatable)",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    refuse_first("pretrain.score", lambda: parse_arguments(None))

import pandas
import torch

import train
import workloads
from benchmarks.environment import environment
from detalbert.errors import UserError, as_user_error
from detalbert.files import whole_file, write_json, writing
from detalbert.inference.find import find, find_all, is_reference, read_json
from detalbert.log import exit_with, fail, start_logging
from detalbert.processes import end_on_signals
from detalbert.settings import experiment
from detalbert.settings.hparams import PARSERS
from detalbert.settings.values import Config
from detalbert.sums import Json
from detalbert.training.folder import ELSEWHERE, claim_folder, step_name

log = logging.getLogger("detalbert.score")
COLUMNS = ["steps", "mlm_accuracy", "sop_accuracy", "exact", "f1"]
# In scores.json only.
DETAILS = ["checkpoint", "device", "versions", "commit"]
# A checkpoint has both.
OWN = ["hyperparameters.model_config=null", "data.tokenizer=null"]
# Of a checkpoint: COLUMNS, without those that were not measured, and DETAILS.
Row = Json


def main(argv: list[str] | None = None) -> int:
    """Score the checkpoints; return the exit status, train.py's if it ended or was stopped."""
    args = parse_arguments(argv)
    start_logging()
    try:
        return score_run(args.run, args.config, args.set, args.output_dir)
    except UserError as error:
        return fail("pretrain.score", error)


def score_run(run: str, recipe: Path, changes: list[str], output: Path) -> int:
    """Fine-tune every checkpoint that has no scores yet; return the exit status.

    Args:
        run: the pretraining.
        recipe: config of the fine-tunings.
        changes: KEY=VALUE that override it.
        output: folder of the runs and scores.

    Raises:
        UserError: if one of these is not what it should be.
    """
    # Before hours of fine-tuning: pandas needs it for the table.
    if util.find_spec("tabulate") is None:
        raise UserError("tabulate is not installed", cure="pip install -r reports/requirements.txt")
    config = load_recipe(recipe, changes)

    # Of each step its checkpoint and what the pretraining's own validation found.
    pretraining, checkpoints = find_all(run)
    is_text = "data.text" in pretraining or "data.shards" in pretraining
    if not is_text or "hyperparameters.layout" in pretraining:
        raise UserError("not a pretraining of ALBERT", key=run, cure="give one")

    # An earlier start may have scored some of them.
    identity = identify(pretraining, config)
    rows = read_score_rows(output / "scores.json", identity)
    for steps in sorted(rows.keys() - checkpoints.keys()):
        log.warning("the checkpoint after step %d is gone; its scores stay", steps)

    with claim_folder(output):
        for steps in sorted(checkpoints.keys() - rows.keys()):
            checkpoint, validation = checkpoints[steps]
            # A pretraining keeps few of its checkpoints.
            if not is_reference(checkpoint) and not Path(checkpoint).is_dir():
                log.warning("%s is gone; it gets no scores", checkpoint)
                continue
            folder = output / step_name(steps)
            status = fine_tune(recipe, changes, checkpoint=checkpoint, output=folder)
            if status != 0:
                return status
            best = read_json(folder / "metrics.json")["best"]
            # Later ones win: metrics of the fine-tuning, and its machine.
            row = {**validation, **best, "steps": steps, "checkpoint": checkpoint}
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            row |= environment(device)
            rows[steps] = {key: row[key] for key in COLUMNS + DETAILS if key in row}
            write_scores(output, identity=identity, rows=rows)
    if rows:
        log.info("scores.json and scores.md are in %s", output)
        print((output / "scores.md").read_text(), end="")
    return 0


def load_recipe(path: Path, changes: list[str]) -> Config:
    """Return the config of the fine-tunings, without a model. Raises UserError if it is none."""
    config = experiment.load(path, overrides=[*changes, *OWN, "hyperparameters.model=null"])
    if workloads.parsers(config) is not PARSERS:
        raise UserError("not a fine-tuning on SQuAD", key=f"--config {path}", cure="give one")
    # Any model, so that the other keys can be checked.
    hyperparameters = {**config["hyperparameters"], "model": "x"}
    experiment.check({**config, "hyperparameters": hyperparameters}, workloads.parsers)
    return config


def identify(pretraining: dict[str, str], config: Config) -> dict[str, object]:
    """Return what determines the scores, by key: they are comparable only if all of it is equal."""
    identity: dict[str, object] = {}
    for key, value in pretraining.items():
        identity[f"pretraining: {key}"] = value
    for section in ("hyperparameters", "data", "searcher"):
        for key, value in config[section].items():
            identity[f"{section}.{key}"] = value
    return identity


def fine_tune(recipe: Path, changes: list[str], checkpoint: str, output: Path) -> int:
    """Run train.py from a checkpoint; return its exit status, 0 if it has finished."""
    model = json.dumps(str(find(checkpoint)))
    arguments = ["--config", str(recipe), "--output-dir", str(output)]
    for change in [*changes, *OWN, f"hyperparameters.model={model}"]:
        arguments += ["--set", change]
    log.info("python train.py %s", shlex.join(arguments))
    return train.main(arguments)


def read_score_rows(path: Path, identity: dict[str, object]) -> dict[int, Row]:
    """Read the rows of scores.json by step.

    Args:
        path: of the file, which may not exist yet.
        identity: of these scores.

    Raises:
        UserError: if it is of another pretraining or recipe.
    """
    foreign = UserError(
        "not scores of a pretraining", key=str(path), cure="give another --output-dir"
    )
    with as_user_error(lambda _: foreign):
        scores = read_json(path) or {"facts": identity, "rows": []}
        for key in sorted(scores["facts"].keys() | identity.keys()):
            before = scores["facts"].get(key)
            now = identity.get(key)
            if before != now:
                raise UserError(
                    f"was {before!r} in {path}, is {now!r} now",
                    key=key,
                    cure="set it back, or give another --output-dir",
                )
        return {row["steps"]: row for row in scores["rows"]}


def write_scores(folder: Path, identity: dict[str, object], rows: dict[int, Row]) -> None:
    """Write the table and, last, what a next start reads."""
    by_step = [rows[steps] for steps in sorted(rows)]
    frame = pandas.DataFrame(by_step, columns=COLUMNS).set_index("steps").astype(float)
    # A missing score is an empty cell.
    cells = frame.astype(object).where(frame.notna(), other=None)
    table = cells.to_markdown(intfmt=",", floatfmt=".2f")
    with writing(folder, cure=ELSEWHERE):
        with whole_file(folder / "scores.md") as file:
            file.write(f"{table}\n")
        # Last: a start that is cut off before makes the table anew.
        write_json(folder / "scores.json", {"facts": identity, "rows": by_step})


if __name__ == "__main__":
    end_on_signals("; run the same command again to resume")
    exit_with("pretrain.score", main)
