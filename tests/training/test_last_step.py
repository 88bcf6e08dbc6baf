"""A run that is stopped in its last step: the same command validates it, as if never stopped."""

import pytest

from detalbert.training.manifest import read_manifest
from tests.conftest import TINY, TINY_LM
from tests.engine.trials import config_file
from tests.fakes.runs import cut_and_go_on, metrics, newest, run, steps_of
from tests.same_bits import differences


@pytest.mark.parametrize("base", [TINY, TINY_LM], ids=["qa", "lm"])
def test_it_ends_as_the_uncut_run(base, tmp_path, cache_dir, monkeypatch):
    steps = {"max_steps": 6, "validation_period": 3, "checkpoint_period": 4, "reporting_period": 1}
    config = config_file(tmp_path, base, cache_dir, **steps)
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    assert run(config, uncut) == 0
    cut_and_go_on(config, cut, monkeypatch, at=6)

    assert differences(uncut, cut) == []
    assert steps_of(cut)[-1] == metrics(cut)["last"]["steps"] == 6
    # Its checkpoint was written again, with the validation.
    assert read_manifest(newest(cut))["validations"][-1]["steps"] == 6
    names = {path.name for path in uncut.iterdir()}
    assert {path.name for path in cut.iterdir()} == names
