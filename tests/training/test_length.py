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

WSD = settings(schedule="wsd", decay_fraction=0.3, warmup_fraction=0.25, min_rate=0.1)
KEEP = ["--set", "checkpoint_storage.save_trial_latest=9"]


def longer(steps: int, warmup: float = 0.25) -> list[str]:
    return [*WSD, *KEEP, *settings(max_steps=steps, warmup_fraction=warmup)]


@pytest.mark.parametrize("config", [TINY, TINY_LM], ids=["encoder", "causal"])
def test_a_longer_wsd_run_ends_as_if_it_had_been_so_long_from_the_start(
    config: dict, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """From 12 to 24 steps, whose decay begins at 8 and 17; cut at step 11, to 18 before (13)."""
    path = config_file(tmp_path, config, cache_dir)
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    assert run(path, grown, *longer(12)) == 0
    decayed = of_checkpoint(newest(grown))
    assert run(path, whole, *longer(24, warmup=0.125)) == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        stop_after(patch, 11)
        assert run(path, grown, *longer(18)) == 143
    said = capsys.readouterr().err
    aside = grown / "previous-1"
    assert "going on from step 8 of the run of 12 steps; its later" in said and f"{aside}\n" in said
    assert "resumed at step 8 of 18" in said and "learning rate" not in said
    assert of_checkpoint(newest(aside)) == decayed and (aside / "config.yaml").is_file()
    assert metrics(aside)["last"]["steps"] == 12
    assert run(path, grown, *longer(24)) == 0
    assert "resumed at step 12 of 24" in capsys.readouterr().err
    assert set(steps_of(grown)) == {*steps_of(whole)} >= {4, 8, 12, 16, 20, 24}
    kept = (list_checkpoints(folder / "checkpoints") for folder in (grown, whole))
    for (_, one), (_, other) in zip(*kept, strict=True):
        assert of_checkpoint(one) == of_checkpoint(other)
    assert differences(grown, whole) == []
    charts = []
    for output in (grown, whole):
        events = EventAccumulator(str(output / "tensorboard")).Reload()
        charts.append([(e.step, e.value) for e in events.Scalars("validation/loss")])
    assert charts[0] == charts[1]


def test_the_rates_of_another_length_are_named_and_less_than_is_done_is_refused(
    finished: Path, copied: Path, capsys: Any
) -> None:
    config = finished / "tiny.yaml"
    wrong = refusal(capsys, config, copied, *settings(max_steps=11))
    assert f"hyperparameters.max_steps: was 12 in {newest(copied)}, is 11 now; set it back" in wrong
    assert run(config, copied, *settings(max_steps=16)) == 0
    said = capsys.readouterr().err
    assert "resumed at step 12 of 16" in said and "learning rate 0 -> 4.76e-05 at step 12" in said
    assert metrics(copied)["last"]["steps"] == 16
    assert not (copied / "previous-1").exists()


def test_decayed_weights_are_gone_on_from_where_no_others_are_kept(
    tiny_config: Path, tmp_path: Path, capsys: Any
) -> None:
    words = [*WSD, *settings(checkpoint_period=100, validation_period=12)]
    assert run(tiny_config, tmp_path / "out", *words, *settings(max_steps=12)) == 0
    assert run(tiny_config, tmp_path / "out", *words, *settings(max_steps=24)) == 0
    said = capsys.readouterr().err
    assert "WARNING: wsd: going on from decayed weights: no earlier checkpoint is kept" in said
    assert "learning rate 1.67e-05 -> 0.000167 at step 12" in said
