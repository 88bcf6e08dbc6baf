"""Output directory of a local run: its lock, and the names of its files."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import filelock
import yaml
from pydantic import BaseModel

from detalbert.errors import UserError
from detalbert.files import OWN, sweep, write_own, writing
from detalbert.redact import masked
from detalbert.run_page.run import REPORT
from detalbert.settings.values import Config
from detalbert.squad.answers import Answers
from detalbert.sums import Json, load_json

# In a checkpoint, beside Determined's files:
SCORES = "scores.json"  # of its own validation, thresholds included
# What to do where an output directory cannot be written:
ELSEWHERE = "free space, or give another --output-dir"
RESUME = "see that it is there and has space, then run the same command to resume"
MOVE = "move it away, or give another --output-dir"  # what no run wrote
# Files of a run, by name.
CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.json"
PREDICTIONS = "predictions.json", "null_odds.json", "spans.json"
FILES = (CONFIG_FILE, METRICS_FILE, REPORT, *PREDICTIONS)


def step_name(steps: int) -> str:
    """Return the folder name of the checkpoint after `steps`: 120 gives step-00000120."""
    return f"step-{steps:08d}"


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return (steps, path) of all checkpoints in `folder`, complete or not, oldest first."""
    checkpoints = []
    for path in folder.glob("step-*"):
        name = re.fullmatch("step-([0-9]+)", path.name)
        if name:
            checkpoints.append((int(name[1]), path))
    return sorted(checkpoints)


def prediction_texts(answers: Answers, step: int) -> dict[str, str]:
    """Return the files of the predictions at `step` by name: `predictions.json` (id to text) and
    `null_odds.json` (id to score), as SQuAD has them, and `spans.json`, which the page of a run
    needs besides.
    """
    spans = {"steps": step, "spans": answers.spans, "probabilities": answers.probabilities}
    contents = (answers.predictions, answers.null_odds, spans)
    texts = {}
    for name, content in zip(PREDICTIONS, contents, strict=True):
        texts[name] = json.dumps(content, indent=1, ensure_ascii=False)
    return texts


def write_predictions(folder: Path, answers: Answers, step: int) -> None:
    """Write the files of predictions into a folder that is new, as that of a checkpoint."""
    for name, text in prediction_texts(answers, step).items():
        (folder / name).write_text(text, encoding="utf-8")


def replace_predictions(folder: Path, answers: Answers, step: int) -> None:
    """Write the files of predictions in place of earlier ones. After a kill they are of one step,
    or `spans.json`, which says of which, is missing.
    """
    texts = prediction_texts(answers, step)
    spans = PREDICTIONS[-1]
    (folder / spans).unlink(missing_ok=True)
    last = {spans: texts.pop(spans)}
    write_own(folder, texts)
    write_own(folder, last)


def read_predictions(folder: Path, step: int) -> Answers | None:
    """Return the predictions at `step`; None if the files are of another, missing or damaged."""
    try:
        predictions, null_odds, spans = (load_json(folder / name) for name in PREDICTIONS)
        if spans.pop("steps") != step:
            return None
        return Answers(predictions=predictions, null_odds=null_odds, **spans)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


class _Start(BaseModel):
    start: str
    end: str


class _Throughput(BaseModel):
    starts: list[_Start]


class _Scores(BaseModel):
    steps: int


class _Metrics(BaseModel):
    """What whoever reads a `metrics.json` relies on."""

    throughput: _Throughput
    best: _Scores | None = None
    last: _Scores | None = None


def read_metrics(folder: Path) -> Json | None:
    """Return the `metrics.json` of an output directory; None if it is missing or not a run's.

    It has `throughput` with `starts`, and after a validation `best` and `last`, each with `steps`.
    """
    try:
        content = load_json(folder / METRICS_FILE)
        _Metrics.model_validate(content, strict=True)
        return content
    except (OSError, ValueError):
        return None


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


def set_aside(path: Path) -> None:
    """Move all that earlier runs wrote into `previous-N/`, for `--resume never`."""
    names = (*FILES, OWN, "checkpoints", "tensorboard")
    written = [path / name for name in names if (path / name).exists()]
    number = 1
    while (path / f"previous-{number}").exists():
        number += 1
    with writing(path, cure=ELSEWHERE):
        for item in written:
            aside = path / f"previous-{number}"
            aside.mkdir(exist_ok=True)
            item.rename(aside / item.name)


def write_config(path: Path, config: Config) -> None:
    """Write the resolved experiment config, without its secrets, as `config.yaml`."""
    text = yaml.safe_dump(masked(config), sort_keys=False, allow_unicode=True)
    head = "# The config of this run, as train.py resolved it.\n"
    with writing(path / CONFIG_FILE, cure=ELSEWHERE):
        write_own(path, {CONFIG_FILE: head + text})
