"""Steps on a real GPU: CUDA_VISIBLE_DEVICES=0 python -m pytest -m gpu"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from detalbert.engine import graphs
from detalbert.engine.determinism import choose_exact_kernels
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING
from tests.engine.trials import config_file, trial_of
from tests.fakes.runs import change

WORKLOADS = {"fine-tuning": TINY, "pretraining": TINY_PRETRAINING, "language model": TINY_LM}
# Dropout of attention weights keeps attention from the kernel.
WITHOUT = {"attention_probs_dropout_prob", "attention_dropout"}
WARM_UP, STEPS = 2, 11  # before the first step the layers are compiled
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """As train.py starts; a sharded model's process group ends with the test."""
    choose_exact_kernels()
    yield
    torch.cuda.set_sync_debug_mode("default")
    torch.use_deterministic_algorithms(False)
    if dist.is_initialized():
        dist.destroy_process_group()


def weights_after(
    workload: str, dropout: bool, cache: Path, folder: Path, **hparams: Any
) -> list[torch.Tensor]:
    folder.mkdir(exist_ok=True)
    path = config_file(folder, WORKLOADS[workload], cache, **hparams)
    if not dropout:
        shape = WORKLOADS[workload]["hyperparameters"]["model_config"]
        change(path, model_config=dict.fromkeys(WITHOUT & shape.keys(), 0.0))
    with trial_of(path) as trial:
        assert trial.context.device.type == "cuda"
        trial.model.train()
        for step, rows in enumerate(islice(trial.build_training_data_loader(), STEPS)):
            torch.cuda.set_sync_debug_mode("error" if step >= WARM_UP else "default")
            trial.train_batch(rows, 0, step)
            torch.cuda.set_sync_debug_mode("default")
            trial.schedule.step()
        validate(trial)
        parameters = list(trial.model.parameters())
        assert {p.grad.dtype for p in parameters} == {torch.float32}
        return [getattr(p.detach(), "to_local", p.detach)().cpu() for p in parameters]


def validate(trial: Any) -> None:
    """One validation, as at the end of a period."""
    trial.model.eval()
    trial.reducer.reset()
    with torch.no_grad():
        for number, rows in enumerate(trial.build_validation_data_loader()):
            trial.evaluate_batch(rows, number)
    trial.model.train()


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_step_waits_for_nothing_and_repeats(
    workload: str, dropout: bool, cache_dir: Path, tmp_path: Path
) -> None:
    one, two = (
        weights_after(workload, dropout, cache_dir, tmp_path / run) for run in ("one", "two")
    )
    assert all(map(torch.equal, one, two))
    assert all(torch.isfinite(x).all() for x in one)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
    reason="no attention kernel for packed rows",
)
@pytest.mark.parametrize("workload", ["fine-tuning", "pretraining"])
def test_a_graph_gives_the_bits_of_its_kernels(
    workload: str, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs by a graph, and one that launches the same rows' kernels one by one: with the masks
    of dropout, which the seed of each step decides."""
    captured = []
    capture = graphs.capture

    def note_and_capture(run: Any, device: torch.device) -> Any:
        captured.append(device)
        return capture(run, device)

    def train(name: str) -> list[torch.Tensor]:
        folder = tmp_path / name
        return weights_after(workload, False, cache_dir, folder, cuda_graphs=True)

    monkeypatch.setattr(graphs, "capture", note_and_capture)
    one, two = train("one"), train("two")
    assert len(captured) == 2
    monkeypatch.setattr(graphs, "capture", lambda run, device: run)
    three = train("three")
    assert all(map(torch.equal, one, two))
    assert all(map(torch.equal, one, three))
