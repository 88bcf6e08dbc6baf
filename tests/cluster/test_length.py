"""The length that a plan counts is the length that the trainer runs."""

import json
import re
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from cluster import plan
from cluster.estimates.times import count_checkpoints
from detalbert.settings.hparams import Length, parse_hparams
from detalbert.training.manifest import read_manifest
from detalbert.training.workload import Training
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING, configured, max_examples
from tests.fakes.runs import metrics, newest, train_into
from workloads import choose

PLANNED = ["--any", "--json", "--today", "2026-10-01"]


def planned_counts(path: Path, capsys: Any) -> dict[str, int]:
    """The numbers of steps, validations and checkpoints in the lines of a plan."""
    capsys.readouterr()
    assert plan.main([str(path), *PLANNED]) == 0
    rows = json.loads(capsys.readouterr().out)["time"]
    how = {row["what"]: row["how"].replace(",", "") for row in rows}
    names = ("training", "validation", "checkpoints")
    return {name: int(re.search(r"\d+", how[name])[0]) for name in names}


# None: left to the trainer. The last two have validations between two checkpoints.
RUNS = {
    "an epoch of questions": (TINY, {"max_steps": None, "epochs": 1.1}),
    "periods of questions": (TINY, {"validation_period": 5, "checkpoint_period": 3}),
    "pretraining": (TINY_PRETRAINING, {"validation_period": 5, "checkpoint_period": 7}),
    "language": (TINY_LM, {"max_steps": 11, "validation_period": 4, "checkpoint_period": 6}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_plan_counts_what_a_run_does(
    name: str, tmp_path: Path, cache_dir: Path, capsys: Any
) -> None:
    """All checkpoints are made: of `all` validations, as if each were the best so far."""
    base, keys = RUNS[name]
    unset: dict[str, Any] = {"validation_period": None, "checkpoint_period": None}
    config = configured(base, cache_dir, **{**unset, **keys})
    config |= {"perform_initial_validation": True, "checkpoint_policy": "all"}
    train_into(tmp_path, config)
    done = metrics(tmp_path / "out")
    # The last validation may come after the last checkpoint.
    validations = read_manifest(newest(tmp_path / "out"))["validations"]
    validated = {validation["steps"] for validation in [*validations, done["last"]]}
    assert planned_counts(tmp_path / "config.yaml", capsys) == {
        "training": done["last"]["steps"],
        "validation": len(validated),
        "checkpoints": len(done["throughput"]["checkpoint_seconds"]),
    }


NUMBERS = strategies.integers(1, 60)


@max_examples(200)
@hypothesis.given(
    steps=NUMBERS,
    validation=NUMBERS,
    checkpoint=NUMBERS,
    policy=strategies.sampled_from(["all", "none"]),
)
def test_counts_are_those_of_a_walk_over_the_steps(
    steps: int, validation: int, checkpoint: int, policy: str
) -> None:
    length = Length(steps, validation, checkpoint)
    validations = {step for step in range(1, steps + 1) if step % validation == 0 or step == steps}
    saved = {step for step in range(1, steps + 1) if step % checkpoint == 0 or step == steps}
    if policy == "all":
        saved |= validations
    assert length.validations == len(validations)
    assert count_checkpoints(length, policy) == len(saved)


@max_examples(100)
@hypothesis.given(
    windows=strategies.integers(1, 5000),
    epochs=strategies.integers(1, 400).map(lambda tenths: tenths / 10),
    batch=NUMBERS,
)
def test_steps_cover_the_epochs_in_decimals(windows: int, epochs: float, batch: int) -> None:
    length = parse_hparams({"model": "a", "epochs": epochs, "global_batch_size": batch}).length(
        windows
    )
    tenths = windows * round(epochs * 10)
    assert (length.steps - 1) * batch * 10 < tenths <= length.steps * batch * 10
    assert (length.validation - 1) * batch < windows <= length.validation * batch
    assert length.checkpoint == length.validation


def test_a_training_has_the_length_of_its_hyperparameters(cache_dir: Path) -> None:
    unset = {"max_steps": None, "validation_period": None, "checkpoint_period": None}
    config = configured(TINY, cache_dir, **unset)
    hparams = parse_hparams(config["hyperparameters"])
    training = Training.load(choose(config), config, hparams, 1)
    length = hparams.length(len(training.data.train.windows))
    keys: Any = training.hparams
    assert (keys.max_steps, keys.validation_period, keys.checkpoint_period) == length
