"""Early stopping: where a run ends, after cuts too, and what it says."""

import pytest
import yaml

from tests.conftest import TINY, TINY_LM, configured, in_soak, settings
from tests.fakes.runs import cut_and_go_on, metrics, refusal, run, steps_of
from tests.same_bits import differences

# By a key of `data:`. Numbers of the validation set alone, so no validation is better than the
# first one.
CONSTANT = {"train": "total", "documents": "baseline_bits_per_byte"}


def metric_of(base):
    return next(metric for key, metric in CONSTANT.items() if key in base["data"])


def ended_line(metric):
    return f"stopped early: no better {metric} in 2 validations; the run is complete"


def config_of(base, folder, cache_dir, **hparams):
    config = configured(
        base,
        cache_dir,
        max_steps=12,
        validation_period=2,
        checkpoint_period=3,
        reporting_period=1,
        **hparams,
    )
    config["searcher"] = {
        "name": "single",
        "metric": metric_of(base),
        "smaller_is_better": base is TINY_LM,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("base", [TINY, in_soak(TINY_LM)], ids=["qa", "lm"])
def test_a_cut_run_stops_where_an_uncut_one_does(
    base,
    tmp_path,
    cache_dir,
    monkeypatch,
    capsys,
):
    """Cut after the second validation, which is no better; then told to go on; then complete."""
    config = config_of(base, tmp_path, cache_dir, early_stopping=2)
    ended = ended_line(metric_of(base))
    uncut = tmp_path / "uncut"
    cut = tmp_path / "cut"
    assert run(config, uncut) == 0
    assert capsys.readouterr().err.count(f"INFO: {ended}\n") == 1

    cut_and_go_on(config, cut, monkeypatch, at=4)
    assert steps_of(uncut)[-1] == metrics(cut)["last"]["steps"] == 6
    assert differences(uncut, cut) == []

    before = (cut / "metrics.json").read_bytes()
    capsys.readouterr()
    assert run(config, cut) == 0
    shown = capsys.readouterr().err
    assert "resumed at step 6 of 12" in shown
    assert ended in shown
    assert "best validation (step 2)" in shown
    assert (cut / "metrics.json").read_bytes() == before

    assert run(config, cut, *settings(early_stopping=3)) == 0
    assert metrics(cut)["last"]["steps"] == 8


def test_a_patience_longer_than_the_run(tmp_path, cache_dir, capsys):
    config = config_of(TINY, tmp_path, cache_dir)
    error = refusal(capsys, config, tmp_path / "out", *settings(early_stopping=6))
    assert "hyperparameters.early_stopping: 6 val" in error
    assert "the run has 6; lower it" in error
