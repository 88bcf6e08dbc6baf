"""Checkpoints are numbers: these load, and anything that would run code does not."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detalbert.engine.safe_load import check_trial_state, read_weights
from detalbert.errors import UserError


class Code:
    """What a planted pickle does when it is loaded."""

    def __reduce__(self) -> Any:
        return print, ("it ran",)


def test_the_generators_state_loads_safely(tmp_path: Path) -> None:
    """Determined's checkpoints hold it; weights_only refuses NumPy's arrays by default."""
    state = {"np_rng_state": np.random.get_state()}
    torch.save(state, tmp_path / "saved")
    loaded = torch.load(tmp_path / "saved", weights_only=True)
    assert np.array_equal(loaded["np_rng_state"][1], state["np_rng_state"][1])


def test_weights_lose_the_wrappers_prefix_and_nothing_else(tmp_path: Path) -> None:
    state = {"module.a.weight": torch.ones(2), "b.module.weight": torch.zeros(3)}
    saved = {"models_state_dict": [state, {"another": torch.ones(1)}]}
    torch.save(saved, tmp_path / "state_dict.pth")
    weights = read_weights(tmp_path / "state_dict.pth")
    assert list(weights) == ["a.weight", "b.module.weight"]
    assert torch.equal(weights["a.weight"], torch.ones(2))


def test_weights_with_code_are_refused(tmp_path: Path, capsys: Any) -> None:
    torch.save({"models_state_dict": [{}], "more": Code()}, tmp_path / "state_dict.pth")
    with pytest.raises(UserError, match="state_dict.pth: not loaded, for it holds more than"):
        read_weights(tmp_path / "state_dict.pth")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [pickle.dumps(Code()), b"", b"\x80\x04", b"no pickle"])
def test_a_trial_state_that_is_more_than_numbers_is_refused(
    content: bytes, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "trial_state.pkl").write_bytes(content)
    with pytest.raises(UserError, match="trial_state.pkl: not the numbers it should hold"):
        check_trial_state(tmp_path)
    assert capsys.readouterr().out == ""


def test_a_trial_state_of_numbers_is_taken(tmp_path: Path) -> None:
    numbers = {"trial_id": 1, "last_ckpt": 7, "step_id": 0, "done": False, "name": "x"}
    (tmp_path / "trial_state.pkl").write_bytes(pickle.dumps(numbers))
    check_trial_state(tmp_path)
