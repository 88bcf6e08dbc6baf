"""A run with another length than its checkpoint's."""

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detalbert.training.timeline import list_checkpoints
from tests.conftest import TINY, TINY_LM, settings
from tests.engine.trials import config_file
from tests.fakes.runs import metrics, newest, refusal, run, steps_of, stop_after
from tests.same_bits import differences, of_checkpoint

Capture = pytest.CaptureFixture[str]
WSD = settings(schedule="wsd", decay_fraction=0.3, warmup_fraction=0.25, min_rate=0.1)
KEEP_ALL = ["--set", "checkpoint_storage.save_trial_latest=9"]


def wsd_of(steps: int, warmup: float = 0.25) -> list[str]:
    """The options of a run of so many steps."""
    return [*WSD, *KEEP_ALL, *settings(max_steps=steps, warmup_fraction=warmup)]


def contents_of(output: Path) -> list[dict[str, str]]:
    """What each checkpoint holds."""
    return [of_checkpoint(folder) for _, folder in list_checkpoints(output / "checkpoints")]


def validation_losses(output: Path) -> list[tuple[int, float]]:
    """Step and value of each point of the chart."""
    accumulator = EventAccumulator(str(output / "tensorboard")).Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("main/loss, validation")]


@pytest.mark.parametrize("config", [TINY, TINY_LM], ids=["encoder", "causal"])
def test_a_longer_wsd_run_ends_as_if_it_had_been_so_long_from_the_start(
    config: dict[str, Any],
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    """From 12 to 24 steps, whose decay begins at 8 and 17; cut at step 11, to 18 before (13)."""
    path = config_file(tmp_path, config, cache_dir)
    grown = tmp_path / "grown"
    uncut = tmp_path / "whole"
    aside = grown / "previous-1"
    assert run(path, grown, *wsd_of(12)) == 0
    decayed = of_checkpoint(newest(grown))
    assert run(path, uncut, *wsd_of(24, warmup=0.125)) == 0
    capsys.readouterr()

    with monkeypatch.context() as patch:
        stop_after(patch, 11)
        assert run(path, grown, *wsd_of(18)) == 143
    shown = capsys.readouterr().err
    assert "going on from step 8 of the run of 12 steps; its later" in shown
    assert f"{aside}\n" in shown
    assert "resumed at step 8 of 18" in shown
    assert "learning rate" not in shown
    assert of_checkpoint(newest(aside)) == decayed
    assert (aside / "config.yaml").is_file()
    assert metrics(aside)["last"]["steps"] == 12

    assert run(path, grown, *wsd_of(24)) == 0
    assert "resumed at step 12 of 24" in capsys.readouterr().err
    assert steps_of(grown) == steps_of(uncut)
    assert set(steps_of(grown)) >= {4, 8, 12, 16, 20, 24}
    assert contents_of(grown) == contents_of(uncut)
    assert differences(grown, uncut) == []
    assert validation_losses(grown) == validation_losses(uncut)


def test_fewer_steps_than_are_done_are_refused(
    finished: Path, copied: Path, capsys: Capture
) -> None:
    error = refusal(capsys, finished / "tiny.yaml", copied, *settings(max_steps=11))
    problem = f"hyperparameters.max_steps: was 12 in {newest(copied)}, is 11 now; set it back"
    assert problem in error


def test_the_rates_of_another_length_are_named(
    finished: Path, copied: Path, capsys: Capture
) -> None:
    assert run(finished / "tiny.yaml", copied, *settings(max_steps=16)) == 0
    shown = capsys.readouterr().err
    assert "resumed at step 12 of 16" in shown
    assert "learning rate 0 -> 4.76e-05 at step 12" in shown
    assert metrics(copied)["last"]["steps"] == 16
    assert not (copied / "previous-1").exists()


def test_decayed_weights_are_gone_on_from_where_no_others_are_kept(
    tiny_config: Path, tmp_path: Path, capsys: Capture
) -> None:
    output = tmp_path / "out"
    options = [*WSD, *settings(checkpoint_period=100, validation_period=12)]
    assert run(tiny_config, output, *options, *settings(max_steps=12)) == 0
    assert run(tiny_config, output, *options, *settings(max_steps=24)) == 0
    shown = capsys.readouterr().err
    assert "WARNING: wsd: going on from decayed weights: no earlier checkpoint is kept" in shown
    assert "learning rate 1.67e-05 -> 0.000167 at step 12" in shown
