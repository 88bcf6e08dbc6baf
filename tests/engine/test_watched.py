"""The runs of test_on_a_gpu.py on a CPU: what they would notice, and that they run."""

import pytest

from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING, in_soak
from tests.engine.trials import config_file
from tests.engine.watched import Watched


@pytest.mark.parametrize(
    "config", [TINY, in_soak(TINY_PRETRAINING), in_soak(TINY_LM)], ids=["squad", "mlm", "lm"]
)
def test_a_cut_run_ends_in_the_hash_of_an_uncut_one(config, cache_dir, tmp_path, monkeypatch):
    run = Watched(config_file(tmp_path, config, cache_dir), monkeypatch)

    uncut = run.weights_after(tmp_path / "uncut")

    assert run.weights_after(tmp_path / "cut", cuts=(1, 6)) == uncut
    assert run.starts == 4
    assert run.devices == {"cpu"}
