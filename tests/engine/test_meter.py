"""What a run reports of its speed: on the host's clock, and on a GPU that is made up."""

import math

import pytest
import torch

from detalbert.engine import progress
from detalbert.engine.flops import flops_of_row, row_lengths, training_flops
from detalbert.engine.history import History
from detalbert.engine.progress import TrainingMeter
from detalbert.training.local import process_group
from lm.flops import causal_flops
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING
from tests.engine.trials import config_file, first_batch, trial_of

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    # Of this module alone: torch waits by the clock of all, perhaps while this test runs.
    monkeypatch.setattr(progress, "time", clock)
    return clock


def update(meter, tokens, losses):
    row = {"input_ids": torch.zeros(tokens)}
    meter.update(row, torch.tensor(losses, requires_grad=True))


def test_the_meter_adds_up_over_rows_and_slots(clock):
    meter = TrainingMeter(History(5), 12.5, CPU, half=False)
    for _ in range(2):  # the second time nothing is left of the first
        meter.reset()
        update(meter, 30, [1.0, 2.5])
        update(meter, 12, [1.0])
        clock.now += 4.0
        own = meter.per_slot_reduce()
        other = {**own, "loss": 1.5, "counted": 1, "windows": 1, "tokens": 8, "seconds": 2.0}
        report = meter.cross_slot_reduce([own, other])
        assert report == {"loss": 1.5, "examples_per_second": 1.0, "epochs": 0.4}
        assert meter.throughput == {"windows": 4, "tokens": 50, "seconds": 4.0}


def test_what_is_not_finite_is_not_counted(clock):
    meter = TrainingMeter(History(5), 12.5, CPU, half=False)
    meter.reset()
    update(meter, 42, [1.0, 2.5, 1.0])
    update(meter, 7, [1.0, torch.inf])
    assert math.isinf(meter.per_slot_reduce()["loss"])  # no step was skipped for it
    meter.norms = [torch.tensor(norm) for norm in (1.0, torch.nan, 3.0)]
    sums = meter.per_slot_reduce()
    assert (sums["loss"], sums["counted"], sums["windows"]) == (4.5, 3, 5)
    assert meter.gradient_norms() == {"grad_norm": 2.0, "skipped_steps": 1}


class FakeGpu:
    """What torch.cuda says of a GPU."""

    name = "NVIDIA H100 80GB HBM3"
    peak_bytes = 0

    def get_device_name(self, _):
        return self.name

    def max_memory_allocated(self, _):
        return self.peak_bytes

    def reset_peak_memory_stats(self, _):
        self.peak_bytes = 0


@pytest.fixture
def cuda(monkeypatch):
    gpu = FakeGpu()
    for name in ("get_device_name", "max_memory_allocated", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    return gpu


def use_of_gpus(meter, *others):
    """What is reported of the GPUs' use in two seconds; `others` are what other ranks have."""
    own = meter.per_slot_reduce() | {"seconds": 2.0}
    ranks = [own]
    for other in others:
        ranks.append(own | other)
    report = meter.cross_slot_reduce(ranks)
    return {name: report[name] for name in ("mfu", "memory_gib") if name in report}


def test_mfu_is_of_all_slots_and_memory_of_the_fullest(cuda, clock):
    meter = TrainingMeter(History(0), 1.0, GPU, half=True)
    assert meter.peak == 989e12
    meter.reset()
    meter.add_flops([9e12])  # before the report
    meter.reset()
    meter.add_flops([3e12, 4e12])
    meter.add_flops([5e12])
    cuda.peak_bytes = 3 * 2**30
    assert meter.flops == 12e12

    report = use_of_gpus(meter, {"flops": 8e12, "memory": 5 * 2**29})

    flops_per_second = (12e12 + 8e12) / 2
    assert report == {"mfu": pytest.approx(flops_per_second / (2 * 989e12)), "memory_gib": 3.0}
    meter.reset()
    assert meter.flops == 0
    assert cuda.peak_bytes == 0
    assert TrainingMeter(History(0), 1.0, GPU, half=False).peak == 67e12


def test_there_is_no_mfu_where_a_model_or_a_gpu_is_not_known(cuda, clock):
    meter = TrainingMeter(History(0), 1.0, GPU, half=True)
    meter.reset()
    meter.add_flops([1e12, None])
    report = use_of_gpus(meter, {"flops": 1e12, "memory": 2**29})
    assert report == {"memory_gib": 0.5}

    cuda.name = "a newer one"
    meter = TrainingMeter(History(0), 1.0, GPU, half=True)
    meter.reset()
    meter.add_flops([1e12])
    assert use_of_gpus(meter) == {"memory_gib": 0.0}


def span_flops(config, row):
    return training_flops(config, row_lengths(row))


def causal_row_flops(config, row):
    return causal_flops(config, row_lengths(row))


WORKLOADS = {
    "fine-tuning": (TINY, span_flops),
    "pretraining": (TINY_PRETRAINING, flops_of_row),
    "language model": (TINY_LM, causal_row_flops),
}


@pytest.mark.parametrize(("config", "flops_of"), WORKLOADS.values(), ids=WORKLOADS)
def test_a_step_of_every_workload_counts_its_flops_on_a_gpu(
    config,
    flops_of,
    cache_dir,
    tmp_path,
    cuda,
):
    with trial_of(config_file(tmp_path, config, cache_dir)) as trial, process_group():
        batch = first_batch(trial)
        trial.meter.on_a_gpu = True
        trial.train_batch(batch, 0, 0)
        sums = trial.meter.per_slot_reduce()
        expected = sum(flops_of(trial.model.config, row) for row in batch)
    assert expected > 1e6
    assert sums["flops"] == pytest.approx(expected, rel=1e-9)
