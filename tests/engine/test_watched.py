"""The runs of test_on_a_gpu.py on a CPU: what they would notice, and that they run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from detalbert.engine import determinism
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING
from tests.engine import watched
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


def test_other_random_numbers_after_a_cut_are_noticed(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(config_file(tmp_path, TINY, cache_dir), monkeypatch)
    uncut = run.weights_after(tmp_path / "uncut")

    def seed_by_start(seed: int, step: int, rank: int) -> None:
        torch.manual_seed(seed + 1000 * run.starts + step)

    monkeypatch.setattr(determinism, "seed_step", seed_by_start)
    assert run.weights_after(tmp_path / "cut", cuts=(5,)) != uncut


def test_what_is_compiled_after_the_first_step_is_noticed(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function whose input has another number of dimensions in every step."""
    run = Watched(config_file(tmp_path, TINY, cache_dir), monkeypatch)
    double = torch.compile(lambda x: 2 * x, backend="eager")
    train_batch = watched.train_batch

    def compiling(trial: Any, batch: list[Any], epoch_idx: int, batch_idx: int) -> Any:
        double(torch.ones([1] * (batch_idx + 1)))
        return train_batch(trial, batch, epoch_idx, batch_idx)

    monkeypatch.setattr(watched, "train_batch", compiling)
    with pytest.raises(torch._dynamo.exc.RecompileError):
        run.weights_after(tmp_path / "run")
