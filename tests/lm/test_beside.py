"""Checkpoints that are written beside training."""

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed import checkpoint as dcp

from detalbert.training.checkpoints import list_checkpoints
from detalbert.training.sharded import ShardedController
from tests.conftest import TINY_LM, configured
from tests.fakes.runs import change, refusal, run
from tests.same_bits import of_checkpoint


@pytest.fixture
def config(tmp_path: Path, cache_dir: Path) -> Path:
    path = tmp_path / "lm.yaml"
    values = configured(TINY_LM, cache_dir, validation_period=100)
    path.write_text(yaml.safe_dump({**values, "checkpoint_storage": {"save_trial_latest": 9}}))
    return path


class Slow:
    """Holds up the writing of tensors until the run has trained `steps` steps more, or saves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
        self.trained, self.steps, self.overtaken = 0, steps, []
        self.moved = threading.Condition()
        self.train, self.write = ShardedController._train_batch, dcp.FileSystemWriter.write_data
        self.finish = ShardedController._finish
        controller, writer = ShardedController, dcp.FileSystemWriter
        monkeypatch.setattr(controller, "_train_batch", lambda *a, **k: self._train(*a, **k))
        monkeypatch.setattr(controller, "_finish", lambda *a: self._finish(*a))
        monkeypatch.setattr(writer, "write_data", lambda *a, **k: self._write(*a, **k))

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        found = self.train(*args, **kwargs)
        self._tell(1)
        return found

    def _finish(self, controller: Any) -> None:
        self._tell(self.steps)  # it waits for the writer
        self.finish(controller)

    def _tell(self, steps: int) -> None:
        with self.moved:
            self.trained += steps
            self.moved.notify_all()

    def _write(self, *args: Any, **kwargs: Any) -> Any:
        with self.moved:
            began = self.trained
            self.moved.wait_for(lambda: self.trained >= began + self.steps, 60)
            self.overtaken.append(self.trained - began)
        return self.write(*args, **kwargs)


def test_what_is_stored_is_the_state_at_the_call(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights take three steps while a checkpoint is written."""
    assert run(config, tmp_path / "plain") == 0
    slow = Slow(monkeypatch, steps=3)
    assert run(config, tmp_path / "slow") == 0
    assert slow.overtaken[:2] == [3, 3]
    kept = [list_checkpoints(tmp_path / name / "checkpoints") for name in ("plain", "slow")]
    assert [steps for steps, _ in kept[0]] == [steps for steps, _ in kept[1]] == [4, 8, 12]
    for (_, one), (_, other) in zip(*kept, strict=True):
        assert of_checkpoint(one) == of_checkpoint(other)
    assert of_checkpoint(kept[0][0][1]) != of_checkpoint(kept[0][1][1])


def test_a_failed_write_ends_the_run_at_the_next_step(
    config: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(config, max_steps=4000, checkpoint_period=4, reporting_period=4000)
    write, calls = dcp.FileSystemWriter.write_data, []

    def full(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return write(*args, **kwargs)

    monkeypatch.setattr(dcp.FileSystemWriter, "write_data", full)
    said = refusal(capsys, config, tmp_path / "out")
    assert "cannot write checkpoint step-00000008 (No space left on device)" in said
    assert [steps for steps, _ in list_checkpoints(tmp_path / "out" / "checkpoints")] == [4]
    assert not list((tmp_path / "out" / "checkpoints").glob(".*"))
