"""Checkpoints: what is read is what was written, or it is passed over; old ones are pruned."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from detalbert import __version__
from detalbert.errors import UserError
from detalbert.integrity import checksum, seal
from detalbert.training.checkpoints import newest_complete
from detalbert.training.manifest import find_fault, read_manifest, write_manifest
from detalbert.training.metrics import RunMetrics
from detalbert.training.timeline import list_checkpoints
from tests.conftest import SOAK, settings
from tests.fakes.damage import flip, rewrite
from tests.fakes.runs import metrics, newest, run, steps_of

DAMAGE = {
    "truncated": lambda p: os.truncate(p / "state_dict.pth", 100),
    "one bit": lambda p: flip(p / "state_dict.pth", random.Random(0)),
    "missing file": lambda p: (p / "trial_state.pkl").unlink(),
    "no manifest": lambda p: (p / "manifest.json").unlink(),
    "half a manifest": lambda p: os.truncate(p / "manifest.json", 60),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(kind: str, copied: Path, caplog: Any) -> None:
    *_, (_, before), (_, last) = found = list_checkpoints(copied / "checkpoints")
    DAMAGE[kind](last)
    assert newest_complete(copied / "checkpoints") == before
    assert "is damaged" in caplog.text and last.name in caplog.text
    if kind == "truncated":  # with no other left
        for _, path in found[:-1]:
            DAMAGE[kind](path)
        with pytest.raises(UserError, match="all 3 checkpoints are damaged; .*--resume never"):
            newest_complete(copied / "checkpoints")


def test_a_flipped_bit_of_a_manifest_is_damage(copied: Path, caplog: Any) -> None:
    """Never another step, seed or score."""
    *_, (_, before), (_, last) = list_checkpoints(copied / "checkpoints")
    manifest, facts, dice = last / "manifest.json", read_manifest(last), random.Random(0)
    content = manifest.read_bytes()
    for _ in range(60 * SOAK):
        manifest.write_bytes(content)
        flip(manifest, dice)
        found = newest_complete(copied / "checkpoints")
        assert found == before or read_manifest(last) == facts
        assert len(caplog.messages) == (found == before)
        caplog.clear()


CHANGES: dict[str, dict[str, Any]] = {
    "another step": {"steps": 10},
    "a history that is none": {"validations": 5},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_that_does_not_fit_is_damage(change: str, copied: Path) -> None:
    """Though its sum is right."""
    *_, (_, before), (_, last) = list_checkpoints(copied / "checkpoints")
    changed = seal({**read_manifest(last), **CHANGES[change]})
    (last / "manifest.json").write_text(json.dumps(changed))
    assert newest_complete(copied / "checkpoints") == before


def test_a_manifest_without_a_sum_is_damage(copied: Path) -> None:
    *_, (_, before), (_, last) = list_checkpoints(copied / "checkpoints")
    manifest = read_manifest(last)
    del manifest["sha256"]
    (last / "manifest.json").write_text(json.dumps(manifest))
    assert newest_complete(copied / "checkpoints") == before


def test_a_checkpoint_says_which_version_wrote_it(copied: Path) -> None:
    assert read_manifest(newest(copied))["version"] == __version__


@pytest.mark.parametrize("name", ["/dev/zero", "../outside", "link", "code"])
def test_a_manifest_names_files_of_its_folder(name: str, copied: Path) -> None:
    checkpoint = newest(copied)
    (checkpoint.parent / "outside").touch()
    (checkpoint / "link").symlink_to("/dev/zero")
    size = (checkpoint / name).stat().st_size
    sums = {name: {"bytes": size, "sha256": checksum(checkpoint.parent / "outside")}}
    facts = {key: read_manifest(checkpoint)[key] for key in ("steps", "run", "validations")}
    write_manifest(checkpoint, facts, sums)
    assert find_fault(checkpoint) == f"{name} is not as it was written"


@pytest.mark.parametrize("name", ["predictions.json", "null_odds.json"])
@pytest.mark.parametrize("best_is_kept", [True, False])
def test_predictions_are_the_best_checkpoints_or_gone(
    name: str, best_is_kept: bool, copied: Path, caplog: Any
) -> None:
    """Never damaged ones. Another start of the finished run restores them."""
    path, best = copied / name, metrics(copied)["best"]["steps"]
    before = path.read_bytes()
    for damage in (before + b" ", b"{}", None):
        path.write_bytes(damage) if damage else path.unlink()
        restored = RunMetrics(copied, {"metric": "f1", "smaller_is_better": False})
        restored.restore(newest(copied))
        assert path.read_bytes() == before
    if not best_is_kept:
        path.write_bytes(b"{}")
        source = copied / "checkpoints" / f"step-{best:08d}"
        (source / name).write_bytes(b"{}")
        restored.restore(newest(copied))
        assert not (copied / "predictions.json").exists()
        assert not (copied / "null_odds.json").exists()
        assert "predictions that are not of the best validation are now in" in caplog.text


@pytest.mark.parametrize("best", [12, 7])
def test_predictions_are_claimed_where_they_are(
    best: int, finished: Path, copied: Path, tmp_path: Path, capsys: Any
) -> None:
    """Those of step 12 are beside its checkpoint; of step 7 there is none."""
    scores = read_manifest(newest(copied))["validations"][-1]
    rewrite(newest(copied), validations=[{**scores, "steps": best}])
    assert run(finished / "tiny.yaml", tmp_path / "fresh", "--resume", newest(copied)) == 0
    claimed = "INFO: predictions, metrics and checkpoints are in" in capsys.readouterr().err
    assert claimed == (tmp_path / "fresh" / "predictions.json").is_file() == (best == 12)


def test_pruning_keeps_the_latest_and_the_best(finished: Path, tmp_path: Path) -> None:
    few = ("checkpoint_storage={}", *settings(checkpoint_period=2, validation_period=4)[1::2])
    more = [word for setting in few for word in ("--set", setting)]
    assert run(finished / "tiny.yaml", tmp_path / "out", *more) == 0
    best = json.loads((tmp_path / "out" / "metrics.json").read_text())["best"]["steps"]
    assert steps_of(tmp_path / "out") == sorted({best, 12})
