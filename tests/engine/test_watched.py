"""The runs of test_on_a_gpu.py on a CPU: what they would notice, and that they run."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING
from tests.engine.trials import config_file
from tests.engine.watched import Watched


@pytest.mark.parametrize("config", [TINY, TINY_PRETRAINING, TINY_LM], ids=["squad", "mlm", "lm"])
def test_a_cut_run_ends_in_the_hash_of_an_uncut_one(
    config: dict[str, Any], cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(config_file(tmp_path, config, cache_dir), monkeypatch)

    uncut = run.weights_after(tmp_path / "uncut")

    assert run.weights_after(tmp_path / "cut", cuts=(1, 6)) == uncut
    assert run.starts == 4
    assert run.devices == {"cpu"}
