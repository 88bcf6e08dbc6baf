"""Output directory of a local run: creation, lock, and moving of earlier runs."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import yaml

from detalbert.errors import UserError
from detalbert.files import sweep, whole_file, write_json, writing
from detalbert.redact import masked
from detalbert.run_page.run import check_report
from detalbert.settings.values import Config
from detalbert.squad.answers import Answers

# In a checkpoint, beside Determined's files:
SCORES = "scores.json"  # of its own validation, thresholds included
# What to do where an output directory cannot be written:
ELSEWHERE = "free space, or give another --output-dir"
RESUME = "see that it is there and has space, then run the same command to resume"


def step_name(steps: int) -> str:
    """Return the folder name of the checkpoint after `steps`: 120 gives step-00000120."""
    return f"step-{steps:08d}"


PREDICTIONS = "predictions.json", "null_odds.json"
# What the page of a run needs besides these: the best spans, and the probabilities.
SPANS = "spans.json"


def write_predictions(folder: Path, answers: Answers) -> None:
    """Write `predictions.json` (id to text) and `null_odds.json` (id to score), as SQuAD does, and
    `spans.json`.
    """
    write_json(folder / "predictions.json", answers.predictions)
    write_json(folder / "null_odds.json", answers.null_odds)
    spans = {"spans": answers.spans, "probabilities": answers.probabilities}
    write_json(folder / SPANS, spans)


def read_predictions(folder: Path) -> Answers | None:
    """Return what `write_predictions` wrote; None if a file is missing or damaged."""
    try:
        predictions, null_odds, spans = (
            json.loads((folder / name).read_text()) for name in (*PREDICTIONS, SPANS)
        )
        return Answers(predictions=predictions, null_odds=null_odds, **spans)
    except (OSError, ValueError, TypeError):
        return None


# All that a run writes.
_WRITTEN = (
    "checkpoints",
    "config.yaml",
    "metrics.json",
    "null_odds.json",
    "predictions.json",
    "report.html",
    "spans.json",
    "tensorboard",
)
_HEAD = "# The config of this run, as train.py resolved it.\n"


def output_folder(name: str) -> Path:
    """Return the folder that `--output-dir` names. Raises UserError if it names none."""
    if not name:  # of a variable that is not set
        raise UserError("it is empty", key="--output-dir", cure="name a folder")
    if ":/" in name:
        raise UserError(
            "a run writes into a folder",
            key=f"--output-dir {name}",
            cure="mount the bucket, or copy the folder there (`aws s3 sync`)",
        )
    return Path(name)


@contextlib.contextmanager
def claim_folder(path: Path) -> Iterator[None]:
    """Lock the directory for this process, and remove what killed ones left half-written. Raises
    UserError if another process holds the lock, or the directory cannot be written.
    """
    lock = filelock.FileLock(path / ".lock")
    with writing(path, cure=ELSEWHERE):
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UserError(
                "another run is writing there",
                key=str(path),
                cure="wait for it or give another --output-dir",
            ) from None
    try:
        sweep(path)
        sweep(path / "checkpoints")
        yield
    finally:
        lock.release()


def set_aside(path: Path, checkpoints: Sequence[Path] = ()) -> Path:
    """Move the files of an earlier run into `previous-N/`, for `--resume never`; return that. With
    `checkpoints`, oldest first, only these; of the run's other files it gets copies.
    """
    aside = next_previous(path)
    written = [item for item in path.iterdir() if item.name in _WRITTEN]
    for item in written:
        aside.mkdir(exist_ok=True)
        if not checkpoints:
            item.rename(aside / item.name)
        elif item.is_file():
            shutil.copyfile(item, aside / item.name)
        elif item.name == "tensorboard":
            _copy_events(item, aside / item.name)
    move_checkpoints(checkpoints, aside)
    return aside


def next_previous(path: Path) -> Path:
    """Return the first `previous-N` of an output directory that does not exist."""
    number = 1
    while (path / f"previous-{number}").exists():
        number += 1
    return path / f"previous-{number}"


def move_checkpoints(checkpoints: Sequence[Path], aside: Path) -> None:
    """Move checkpoints, oldest first, into `aside`; the newest goes first, as a start would take
    the newest of those that are left.
    """
    for item in reversed(checkpoints):
        (aside / "checkpoints").mkdir(parents=True, exist_ok=True)
        item.rename(aside / "checkpoints" / item.name)


def _copy_events(folder: Path, target: Path) -> None:
    """Copy TensorBoard's events, and not its traces, which may be large."""
    target.mkdir()
    for file in folder.glob("events.out.tfevents.*"):
        shutil.copyfile(file, target / file.name)


def write_config(path: Path, config: Config) -> None:
    """Write the resolved experiment config, without its secrets, as `config.yaml`. Raises UserError
    if there is one that no run wrote, perhaps the very file that the user gave as --config.
    """
    target = path / "config.yaml"
    with writing(target, cure=ELSEWHERE):
        check_replaces_own(path)
        with whole_file(target) as file:
            file.write(_HEAD + yaml.safe_dump(masked(config), sort_keys=False, allow_unicode=True))


def check_replaces_own(path: Path) -> None:
    """Raise UserError if the output directory has a `config.yaml` that no run wrote."""
    check_report(path)
    target = path / "config.yaml"
    if target.is_file() and not target.read_bytes().startswith(_HEAD.encode()):
        raise UserError("a run would replace it", key=str(target), cure="give another --output-dir")
