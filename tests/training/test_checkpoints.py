"""Checkpoints: what is read is what was written, or it is passed over; old ones are pruned."""

import json
import os
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from detalbert.errors import UserError
from detalbert.files import write_own
from detalbert.sums import checksum
from detalbert.training.checkpoints import newest_complete
from detalbert.training.folder import list_checkpoints
from detalbert.training.manifest import find_fault, read_manifest, write_manifest
from tests.conftest import SOAK, settings
from tests.fakes.damage import flip, rewrite
from tests.fakes.runs import metrics, newest, run, steps_of


class Checkpoints(NamedTuple):
    """Those of a finished run, which may be damaged."""

    folder: Path  # of all
    last: Path
    before_last: Path
    all: list[Path]


@pytest.fixture
def checkpoints(copied):
    folder = copied / "checkpoints"
    paths = [path for _, path in list_checkpoints(folder)]
    return Checkpoints(folder, last=paths[-1], before_last=paths[-2], all=paths)


def truncate(checkpoint):
    os.truncate(checkpoint / "state_dict.pth", 100)


def flip_one_bit(checkpoint):
    flip(checkpoint / "state_dict.pth", random.Random(0))


def remove_file(checkpoint):
    (checkpoint / "trial_state.pkl").unlink()


def name_another_step(checkpoint):
    rewrite(checkpoint, steps=10)


def change_settings(checkpoint):
    manifest = read_manifest(checkpoint)
    manifest["run"]["hyperparameters.seed"] = 7
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def truncate_manifest(checkpoint):
    os.truncate(checkpoint / "manifest.json", 60)


DAMAGES = [
    truncate,
    flip_one_bit,
    remove_file,
    name_another_step,
    change_settings,
    truncate_manifest,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(damage, checkpoints, caplog):
    damage(checkpoints.last)
    assert newest_complete(checkpoints.folder) == checkpoints.before_last
    assert "is damaged" in caplog.text
    assert checkpoints.last.name in caplog.text


def test_without_any_other_a_damaged_checkpoint_is_an_error(checkpoints):
    for path in checkpoints.all:
        truncate(path)
    with pytest.raises(UserError, match="all 3 checkpoints are damaged; .*--resume never"):
        newest_complete(checkpoints.folder)


def test_a_flipped_bit_of_a_manifest_is_damage(checkpoints, caplog):
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


@pytest.mark.parametrize("name", ["/dev/zero", "../outside", "link", "code"])
def test_a_manifest_names_files_of_its_folder(name, checkpoints):
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


def test_lost_predictions_are_those_of_the_best_checkpoint(finished, copied, tmp_path):
    """In the run's folder, and in another one that goes on from its checkpoint."""
    names = ("predictions.json", "null_odds.json", "spans.json")
    for name in names:
        (copied / name).unlink()
    fork = tmp_path / "fork"
    for output, options in ((copied, []), (fork, ["--resume", newest(copied)])):
        assert run(finished / "tiny.yaml", output, *options) == 0
        for name in names:
            assert (output / name).read_bytes() == (finished / "out" / name).read_bytes()


def test_predictions_are_gone_if_those_of_the_best_are_lost(finished, copied):
    """Never those of another validation, nor damaged ones."""
    best = metrics(copied)["best"]["steps"]
    spans = json.loads((copied / "spans.json").read_text())
    write_own(copied, {"spans.json": json.dumps({**spans, "steps": best - 1})})
    checkpoint = copied / "checkpoints" / f"step-{best:08d}"
    (checkpoint / "predictions.json").unlink()
    rewrite(checkpoint)
    assert run(finished / "tiny.yaml", copied) == 0
    assert not (copied / "predictions.json").exists()


def test_pruning_keeps_the_latest_and_the_best(finished, tmp_path):
    output = tmp_path / "out"
    options = ["--set", "checkpoint_storage={}"]
    options += settings(checkpoint_period=2, validation_period=4)
    assert run(finished / "tiny.yaml", output, *options) == 0
    best = metrics(output)["best"]["steps"]
    assert steps_of(output) == sorted({best, 12})
