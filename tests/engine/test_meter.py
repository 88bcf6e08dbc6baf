"""What a run reports of its speed: on the host's clock, and on a GPU that is made up."""

import types
from pathlib import Path
from typing import Any

import pytest
import torch

from detalbert.engine import meter as meter_module
from detalbert.engine.flops import causal_flops, flops_of_row, row_lengths, training_flops
from detalbert.engine.meter import TrainingMeter
from detalbert.training.local import process_group
from lm.trial import LmTrial
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING
from tests.engine.trials import config_file, first_batch, trial_of


def sums_of(meter: TrainingMeter) -> tuple[float, ...]:
    found = meter.per_slot_reduce()
    return tuple(found[key] for key in ("loss", "counted", "windows", "tokens", "seconds"))


def test_the_meter_adds_up_over_rows_and_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(meter_module.time, "monotonic", lambda: now[0])
    meter = TrainingMeter(12.5, torch.device("cpu"), half=False)
    meter.step = 5
    for _ in range(2):  # the second time nothing is left of the first
        meter.reset()
        assert sums_of(meter) == (0.0, 0, 0, 0, 0.0)
        losses = torch.tensor([1.0, 2.5], requires_grad=True)
        meter.update({"input_ids": torch.zeros(30)}, losses)
        meter.update({"input_ids": torch.zeros(12)}, losses[:1])
        now[0] += 4.0
        assert not any(loss.requires_grad for loss in meter.losses)
        assert sums_of(meter) == (4.5, 3, 3, 42, 4.0)
    other = {"loss": 1.5, "counted": 1, "windows": 1, "tokens": 8, "seconds": 2.0}
    one = meter.per_slot_reduce()
    both = meter.cross_slot_reduce([one, one | other])
    assert both == {"loss": 1.5, "examples_per_second": 1.0, "epochs": 0.4}
    assert meter.throughput == {"windows": 4, "tokens": 50, "seconds": 4.0}
    meter.update({"input_ids": torch.zeros(7)}, torch.tensor([1.0, torch.inf]))
    assert sums_of(meter) == (4.5, 3, 5, 49, 4.0)
    meter.norms = [torch.tensor(norm) for norm in (1.0, torch.nan, 3.0)]
    assert meter.gradient_norms() == {"grad_norm": 2.0, "skipped_steps": 1}


GPU = torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = types.SimpleNamespace(name="NVIDIA H100 80GB HBM3", most=0)
    facts = {"get_device_name": lambda _: made.name, "max_memory_allocated": lambda _: made.most}
    facts["reset_peak_memory_stats"] = lambda _: setattr(made, "most", 0)
    for name, fact in facts.items():
        monkeypatch.setattr(torch.cuda, name, fact)
    return made


def test_mfu_is_of_all_slots_and_memory_of_the_fullest(
    cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter_module.time, "monotonic", lambda: 0.0)

    def reported(used: TrainingMeter, *others: dict[str, float]) -> dict[str, float]:
        one = used.per_slot_reduce() | {"seconds": 2.0}
        found = used.cross_slot_reduce([one, *(one | other for other in others)])
        return {name: found[name] for name in ("mfu", "memory_gib") if name in found}

    used = TrainingMeter(1.0, GPU, half=True)
    used.reset()
    used.add_flops([9e12])  # before the report
    used.reset()
    used.add_flops([3e12, 4e12])
    used.add_flops([5e12])
    cuda.most = 3 * 2**30
    assert (used.flops, used.peak) == (12e12, 989e12)
    found = reported(used, {"flops": 8e12, "memory": 5 * 2**29})
    assert found == {"mfu": pytest.approx(20 / 2 / 989 / 2), "memory_gib": 3.0}
    used.reset()
    assert used.flops == cuda.most == 0
    assert TrainingMeter(1.0, GPU, half=False).peak == 67e12
    used.add_flops([1e12, None])  # no MFU where a model or a GPU is not known
    assert reported(used, {"flops": 1e12, "memory": 2**29}) == {"memory_gib": 0.5}
    cuda.name = "a newer one"
    used = TrainingMeter(1.0, GPU, half=True)
    used.reset()
    used.add_flops([1e12])
    assert reported(used) == {"memory_gib": 0.0}


WORKLOADS: dict[str, tuple[Any, Any]] = {
    "fine-tuning": (TINY, lambda config, row: training_flops(config, row_lengths(row))),
    "pretraining": (TINY_PRETRAINING, flops_of_row),
    "language model": (TINY_LM, lambda config, row: causal_flops(config, row_lengths(row))),
}


@pytest.mark.parametrize("config, flops_of", WORKLOADS.values(), ids=WORKLOADS)
def test_a_step_of_every_workload_counts_its_flops_on_a_gpu(
    config: Any, flops_of: Any, cache_dir: Path, tmp_path: Path, cuda: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(TrainingMeter, "on_a_gpu", True)
    with trial_of(config_file(tmp_path, config, cache_dir)) as trial, process_group():
        batch = first_batch(trial)
        trial.train_batch(batch, 0, 0)
        found = trial.meter.per_slot_reduce()
        wanted = sum(flops_of(trial.model.config, row) for row in batch)
    assert found["flops"] == pytest.approx(wanted, rel=1e-9) and wanted > 1e6
    assert found["peak"] == 67e12


def test_tensor_peers_count_their_rows_once_and_a_cpu_has_no_mfu(finished: Path) -> None:
    row = {"cu_seqlens": torch.tensor([0, 3])}
    assert LmTrial.row_flops(types.SimpleNamespace(_counts=False), row) == 0.0
    assert "mfu" not in (finished / "shown").read_text()
