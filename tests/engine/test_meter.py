"""What a run reports of its speed: on the host's clock, and on a GPU that is made up."""

import types
from pathlib import Path
from typing import Any

import pytest
import torch

from detalbert.engine import meter as meter_module
from detalbert.engine.flops import causal_flops, flops_of_row, row_lengths, training_flops
from detalbert.engine.meter import TrainingMeter, Utilization
from detalbert.engine.trial import StepTrial
from detalbert.training.metrics import RunMetrics
from lm.trial import LmTrial
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING, settings
from tests.engine.trials import config_file
from tests.fakes.runs import run


def test_the_meter_adds_up_over_rows_and_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(meter_module.time, "monotonic", lambda: now[0])
    meter = TrainingMeter(epoch=12.5)
    meter.step = 5
    for _ in range(2):  # the second time nothing is left of the first
        meter.reset()
        assert meter.per_slot_reduce() == (0.0, 0, 0, 0, 0.0)
        losses = torch.tensor([1.0, 2.5], requires_grad=True)
        meter.update({"input_ids": torch.zeros(30)}, losses)
        meter.update({"input_ids": torch.zeros(12)}, losses[:1])
        now[0] += 4.0
        assert not any(loss.requires_grad for loss in meter.losses)
        assert meter.per_slot_reduce() == (4.5, 3, 3, 42, 4.0)
    both = meter.cross_slot_reduce([(4.5, 3, 3, 42, 4.0), (1.5, 1, 1, 8, 2.0)])
    assert both == {"loss": 1.5, "examples_per_second": 1.0, "epochs": 0.4}
    assert meter.throughput == {"windows": 4, "tokens": 50, "seconds": 4.0}
    meter.update({"input_ids": torch.zeros(7)}, torch.tensor([1.0, torch.inf]))
    assert meter.per_slot_reduce() == (4.5, 3, 5, 49, 4.0)
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


def metered(seconds: float) -> TrainingMeter:
    meter = TrainingMeter(1.0)
    meter.throughput = {"windows": 1, "tokens": 1, "seconds": seconds}
    return meter


def test_mfu_is_of_all_slots_and_memory_of_the_fullest(cuda: Any) -> None:
    used = Utilization(metered(2.0), GPU, half=True)
    used.add([9e12])  # before the first report began
    used.reset()
    used.add([3e12, 4e12])
    used.add([5e12])
    cuda.most = 3 * 2**30
    assert used.per_slot_reduce() == (12e12, 989e12, 3 * 2**30)
    found = used.cross_slot_reduce([(12e12, 989e12, 3 * 2**30), (8e12, 989e12, 5 * 2**29)])
    assert found == {"mfu": pytest.approx(20 / 2 / 989 / 2), "memory_gib": 3.0}
    used.reset()
    assert used.per_slot_reduce()[0] == cuda.most == 0
    assert Utilization(metered(1.0), GPU, half=False).peak == 67e12
    used.add([1e12, None])  # no MFU where a model or a GPU is not known
    both = [used.per_slot_reduce(), (1e12, 989e12, 2**29)]
    assert used.cross_slot_reduce(both) == {"memory_gib": 0.5}
    cuda.name = "a newer one"
    used = Utilization(metered(2.0), GPU, half=True)
    used.add([1e12])
    assert used.cross_slot_reduce([used.per_slot_reduce()]) == {"memory_gib": 0.0}


WORKLOADS: dict[str, tuple[Any, Any]] = {
    "fine-tuning": (TINY, lambda config, row: training_flops(config, row_lengths(row))),
    "pretraining": (TINY_PRETRAINING, flops_of_row),
    "language model": (TINY_LM, lambda config, row: causal_flops(config, row_lengths(row))),
}


@pytest.mark.parametrize("config, flops_of", WORKLOADS.values(), ids=WORKLOADS)
def test_training_reports_of_every_workload_have_both_on_a_gpu(
    config: Any, flops_of: Any, cache_dir: Path, tmp_path: Path, cuda: Any, capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = config_file(tmp_path, config, cache_dir)
    counted: list[float] = []
    reports: list[tuple[dict[str, Any], float]] = []

    def prepare(self: StepTrial) -> Utilization:
        used = Utilization(self.meter, self.context.device, half=False)
        return self.context.wrap_reducer(used, for_validation=False)

    step, report = StepTrial.train_batch, RunMetrics.report_training_metrics

    def count(self: StepTrial, batch: list[Any], **numbers: int) -> dict[str, Any]:
        counted.append(sum(flops_of(self.model.config, row) for row in batch))
        return step(self, batch, **numbers)

    def keep(self: RunMetrics, metrics: dict[str, Any], **more: Any) -> None:
        reports.append((metrics, sum(counted) / self.loop.trial.meter.throughput["seconds"]))
        counted.clear()
        report(self, metrics=metrics, **more)

    monkeypatch.setattr(StepTrial, "_prepare_utilization", prepare)
    monkeypatch.setattr(StepTrial, "train_batch", count)
    monkeypatch.setattr(RunMetrics, "report_training_metrics", keep)
    assert run(path, tmp_path / "out", *settings(max_steps=6)) == 0
    assert len(reports) == 3
    for metrics, flops in reports:
        assert metrics["mfu"] == pytest.approx(flops / 67e12, rel=1e-9) and flops > 1e6
        assert metrics["memory_gib"] == 0.0
    assert "  mfu 0.00  GiB 0.0" in capsys.readouterr().err


def test_tensor_peers_count_their_rows_once_and_a_cpu_has_no_mfu(finished: Path) -> None:
    row = {"cu_seqlens": torch.tensor([0, 3])}
    assert LmTrial.row_flops(types.SimpleNamespace(_counts=False), row) == 0.0
    assert "mfu" not in (finished / "shown").read_text()
