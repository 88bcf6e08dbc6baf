"""Early stopping: where a run ends, after cuts too, and what it says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING, Train, configured, settings
from tests.fakes.runs import cut_and_go_on, metrics, refusal, run, steps_of
from tests.same_bits import differences

# Numbers of the validation set alone, so no validation is better than the first one.
CONSTANT = {"train": "total", "text": "mlm_baseline", "documents": "baseline_bits_per_byte"}
SAID = "stopped early: no better {} in 2 validations; the run is complete"


def metric_of(base: Any) -> str:
    return next(metric for key, metric in CONSTANT.items() if key in base["data"])


def config_of(base: Any, folder: Path, cache_dir: Path, **hparams: Any) -> Path:
    periods = {"max_steps": 12, "validation_period": 2, "checkpoint_period": 3}
    config = configured(base, cache_dir, **periods, reporting_period=1, **hparams)
    path = folder / "config.yaml"
    path.write_text(
        yaml.safe_dump({**config, "searcher": {"name": "single", "metric": metric_of(base)}})
    )
    return path


@pytest.mark.parametrize("base", [TINY, TINY_PRETRAINING, TINY_LM], ids=["qa", "text", "lm"])
def test_a_cut_run_stops_where_an_uncut_one_does(
    base: Any, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Cut after the second validation, which is no better; then told to go on; then complete."""
    config, ended = (
        config_of(base, tmp_path, cache_dir, early_stopping=2),
        SAID.format(metric_of(base)),
    )
    assert run(config, tmp_path / "uncut") == 0
    assert capsys.readouterr().err.count(f"INFO: {ended}\n") == 1
    cut_and_go_on(config, tmp_path / "cut", monkeypatch, at=4)
    assert steps_of(tmp_path / "uncut")[-1] == 6 == metrics(tmp_path / "cut")["last"]["steps"]
    assert differences(tmp_path / "uncut", tmp_path / "cut") == []
    before = (tmp_path / "cut/metrics.json").read_bytes()
    capsys.readouterr()
    assert run(config, tmp_path / "cut") == 0
    said = capsys.readouterr().err
    assert (
        "resumed at step 6 of 12" in said and ended in said and "best validation (step 2)" in said
    )
    assert (tmp_path / "cut/metrics.json").read_bytes() == before
    assert run(config, tmp_path / "cut", *settings(early_stopping=3)) == 0
    assert metrics(tmp_path / "cut")["last"]["steps"] == 8


def test_two_processes_agree(tmp_path: Path, cache_dir: Path, train: Train) -> None:
    config = config_of(TINY, tmp_path, cache_dir)
    for name, patiences in (("uncut", [2]), ("cut", [1, 2])):
        for patience in patiences:
            words = "--config", config, "--output-dir", tmp_path / name
            done = train(*words, *settings(early_stopping=patience), processes=2)
            assert done.returncode == 0, done.stderr
        assert (
            done.stderr.count(SAID.format("total")) == 1
            and "next: python predict.py --model" in done.stderr
        )
    assert metrics(tmp_path / "cut")["last"]["steps"] == 6
    assert differences(tmp_path / "uncut", tmp_path / "cut") == []


def test_a_patience_longer_than_the_run(tmp_path: Path, cache_dir: Path, capsys: Any) -> None:
    config = config_of(TINY, tmp_path, cache_dir)
    said = refusal(capsys, config, tmp_path / "out", *settings(early_stopping=6))
    assert "hyperparameters.early_stopping: 6 val" in said and "the run has 6; lower it" in said
