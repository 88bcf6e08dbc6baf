"""Checkpoints: what is read is what was written, or it is passed over; old ones are pruned."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from detalbert import __version__
from detalbert.errors import UserError
from detalbert.sums import checksum, seal
from detalbert.training.checkpoints import newest_complete
from detalbert.training.manifest import find_fault, read_manifest, write_manifest
from detalbert.training.metrics import RunMetrics
from detalbert.training.timeline import list_checkpoints
from tests.conftest import SOAK, settings
from tests.fakes.damage import flip, rewrite
from tests.fakes.runs import metrics, newest, run, steps_of

Log = pytest.LogCaptureFixture


class Checkpoints(NamedTuple):
    """Those of a finished run, which may be damaged."""

    folder: Path  # of all
    last: Path
    before_last: Path
    all: list[Path]


@pytest.fixture
def checkpoints(copied: Path) -> Checkpoints:
    folder = copied / "checkpoints"
    paths = [path for _, path in list_checkpoints(folder)]
    return Checkpoints(folder, last=paths[-1], before_last=paths[-2], all=paths)


def truncate(checkpoint: Path) -> None:
    os.truncate(checkpoint / "state_dict.pth", 100)


def flip_one_bit(checkpoint: Path) -> None:
    flip(checkpoint / "state_dict.pth", random.Random(0))


def remove_file(checkpoint: Path) -> None:
    (checkpoint / "trial_state.pkl").unlink()


def remove_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def truncate_manifest(checkpoint: Path) -> None:
    os.truncate(checkpoint / "manifest.json", 60)


DAMAGES = [truncate, flip_one_bit, remove_file, remove_manifest, truncate_manifest]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(
    damage: Callable[[Path], None], checkpoints: Checkpoints, caplog: Log
) -> None:
    damage(checkpoints.last)
    assert newest_complete(checkpoints.folder) == checkpoints.before_last
    assert "is damaged" in caplog.text
    assert checkpoints.last.name in caplog.text


def test_without_any_other_a_damaged_checkpoint_is_an_error(checkpoints: Checkpoints) -> None:
    for path in checkpoints.all:
        truncate(path)
    with pytest.raises(UserError, match="all 3 checkpoints are damaged; .*--resume never"):
        newest_complete(checkpoints.folder)


def test_a_flipped_bit_of_a_manifest_is_damage(checkpoints: Checkpoints, caplog: Log) -> None:
    """Never another step, seed or score."""
    path = checkpoints.last / "manifest.json"
    content = path.read_bytes()
    manifest = read_manifest(checkpoints.last)
    dice = random.Random(0)
    for _ in range(60 * SOAK):
        path.write_bytes(content)
        flip(path, dice)
        passed_over = newest_complete(checkpoints.folder) == checkpoints.before_last
        assert passed_over or read_manifest(checkpoints.last) == manifest
        assert len(caplog.messages) == (1 if passed_over else 0)
        caplog.clear()


CHANGES: dict[str, dict[str, Any]] = {
    "another step": {"steps": 10},
    "a history that is none": {"validations": 5},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_manifest_that_does_not_fit_is_damage(
    change: dict[str, Any], checkpoints: Checkpoints
) -> None:
    """Though its sum is right."""
    changed = seal({**read_manifest(checkpoints.last), **change})
    (checkpoints.last / "manifest.json").write_text(json.dumps(changed))
    assert newest_complete(checkpoints.folder) == checkpoints.before_last


def test_a_manifest_without_a_sum_is_damage(checkpoints: Checkpoints) -> None:
    manifest = read_manifest(checkpoints.last)
    del manifest["sha256"]
    (checkpoints.last / "manifest.json").write_text(json.dumps(manifest))
    assert newest_complete(checkpoints.folder) == checkpoints.before_last


def test_a_checkpoint_says_which_version_wrote_it(checkpoints: Checkpoints) -> None:
    assert read_manifest(checkpoints.last)["version"] == __version__


@pytest.mark.parametrize("name", ["/dev/zero", "../outside", "link", "code"])
def test_a_manifest_names_files_of_its_folder(name: str, checkpoints: Checkpoints) -> None:
    checkpoint = checkpoints.last
    outside = checkpoint.parent / "outside"
    outside.touch()
    (checkpoint / "link").symlink_to("/dev/zero")
    size = (checkpoint / name).stat().st_size
    sums = {name: {"bytes": size, "sha256": checksum(outside)}}
    manifest = read_manifest(checkpoint)
    content = {key: manifest[key] for key in ("steps", "run", "validations")}
    write_manifest(checkpoint, content, sums)
    assert find_fault(checkpoint) == f"{name} is not as it was written"


def restore(output: Path) -> None:
    """Go on from the newest checkpoint of a finished run, as another start does."""
    run_metrics = RunMetrics(output, {"metric": "f1", "smaller_is_better": False})
    run_metrics.restore(newest(output))


PREDICTIONS = ["predictions.json", "null_odds.json"]
SPANS = "spans.json"


@pytest.mark.parametrize("name", [*PREDICTIONS, SPANS])
def test_predictions_are_those_of_the_best_checkpoint(name: str, copied: Path) -> None:
    """Never damaged ones. Another start of the finished run restores them."""
    path = copied / name
    content = path.read_bytes()
    for damaged in (content + b" ", b"{}", None):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        restore(copied)
        assert path.read_bytes() == content


@pytest.mark.parametrize("name", PREDICTIONS)
def test_predictions_are_gone_if_the_best_checkpoints_are_damaged(
    name: str, copied: Path, caplog: Log
) -> None:
    best = metrics(copied)["best"]["steps"]
    best_checkpoint = copied / "checkpoints" / f"step-{best:08d}"
    (copied / name).write_bytes(b"{}")
    (best_checkpoint / name).write_bytes(b"{}")
    restore(copied)
    assert not (copied / "predictions.json").exists()
    assert not (copied / "null_odds.json").exists()
    assert "predictions that are not of the best validation are now in" in caplog.text


def test_a_checkpoint_of_1_0_0_has_no_spans(copied: Path) -> None:
    """Its predictions are restored, and no spans of another validation stay beside them."""
    best = metrics(copied)["best"]["steps"]
    checkpoint = copied / "checkpoints" / f"step-{best:08d}"
    for path in {checkpoint, newest(copied)}:
        (path / SPANS).unlink(missing_ok=True)
        manifest = read_manifest(path)
        predicted = {key: manifest["predictions"][key] for key in ("steps", *PREDICTIONS)}
        rewrite(path, predictions=predicted)
    (copied / "predictions.json").write_bytes(b"{}")
    restore(copied)
    assert json.loads((copied / "predictions.json").read_text())
    assert not (copied / SPANS).exists()


@pytest.mark.parametrize("best, claimed", [(12, True), (7, False)])
def test_predictions_are_claimed_where_they_are(
    best: int,
    claimed: bool,
    finished: Path,
    copied: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of step 12 are beside its checkpoint; of step 7 there is none."""
    scores = read_manifest(newest(copied))["validations"][-1]
    rewrite(newest(copied), validations=[{**scores, "steps": best}])
    fresh = tmp_path / "fresh"
    assert run(finished / "tiny.yaml", fresh, "--resume", newest(copied)) == 0
    line = "INFO: predictions, metrics and checkpoints are in"
    assert (line in capsys.readouterr().err) == claimed
    assert (fresh / "predictions.json").is_file() == claimed


def test_pruning_keeps_the_latest_and_the_best(finished: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    options = ["--set", "checkpoint_storage={}"]
    options += settings(checkpoint_period=2, validation_period=4)
    assert run(finished / "tiny.yaml", output, *options) == 0
    best = metrics(output)["best"]["steps"]
    assert steps_of(output) == sorted({best, 12})
