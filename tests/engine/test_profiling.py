"""`profile_steps`: what it prints and leaves, and that the run does not notice."""

import re

from tests.conftest import settings
from tests.fakes.runs import run
from tests.same_bits import differences


def test_a_profile_is_written_and_changes_no_bit(tiny_config, tmp_path, capsys):
    common = settings(num_workers=1, max_steps=6, validation_period=5)
    common += ["--set", "data.max_validation_examples=4"]
    assert run(tiny_config, tmp_path / "without", *common) == 0
    assert "profile of" not in capsys.readouterr().err
    assert run(tiny_config, tmp_path / "with", *common, *settings(profile_steps=3)) == 0
    shown = capsys.readouterr().err
    assert shown.count("profile of 3 steps:\n") == 1
    assert "Self CPU time total: " in shown
    assert "aten::" in shown
    assert re.search(r"ProfilerStep\*.* 3 *\n", shown)  # calls
    assert "USDT" not in shown
    assert len(list((tmp_path / "with" / "tensorboard").glob("*.pt.trace.json"))) == 1
    assert differences(tmp_path / "without", tmp_path / "with") == []
