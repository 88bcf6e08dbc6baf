"""Rows of fixed sizes: they train as rows without padding do. Their capture is in test_on_a_gpu.py.

Here a "capture" is the function itself, which runs on the rows of fixed sizes.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from detalbert.engine import attention, graphs
from detalbert.engine.attention import RowBounds
from detalbert.engine.forward import Forward
from detalbert.engine.gradients import local_part
from detalbert.engine.graphs import SPAN_PADDINGS, RowSizes, fits, pad_to_sizes
from detalbert.errors import UserError
from tests.conftest import NO_DROPOUT, TINY, TINY_LM, TINY_PRETRAINING
from tests.engine.trials import config_file, trial_of
from tests.fakes.encoders import make_model, make_row
from tests.fakes.runs import change

WORKLOADS = {"fine-tuning": TINY, "pretraining": TINY_PRETRAINING}
STEPS = 4


@pytest.fixture
def fixed_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run rows of fixed sizes on the CPU."""
    monkeypatch.setattr(graphs, "why_unused", lambda forward, paddings: None)
    monkeypatch.setattr(graphs, "capture", lambda run, device: run)


@pytest.fixture
def alone() -> Iterator[None]:
    """A sharded model's process group ends with the test."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_row_is_padded_to_the_sizes() -> None:
    row = make_row([2, 3])
    sizes = RowSizes(tokens=10, windows=3, longest=4)
    padded = pad_to_sizes(row, sizes, SPAN_PADDINGS)
    assert padded["cu_seqlens"].tolist() == [0, 0, 2, 5]
    assert padded["tail"].tolist() == [5, 6, 10]
    assert padded["input_ids"].tolist() == row["input_ids"].tolist() + 5 * [0]
    assert padded["start_positions"].tolist() == [-100, *row["start_positions"].tolist()]
    assert padded["max_length"] == 4

    assert fits(row, sizes, SPAN_PADDINGS)
    assert not fits(row, sizes._replace(windows=1), SPAN_PADDINGS)
    assert not fits(row, sizes._replace(tokens=4), SPAN_PADDINGS)
    # Of a row that fills the budget the windows of the padding are empty.
    exact = pad_to_sizes(row, RowSizes(tokens=5, windows=2, longest=3), SPAN_PADDINGS)
    assert (exact["cu_seqlens"].tolist(), exact["tail"].tolist()) == ([0, 2, 5], [5, 5])


@pytest.mark.parametrize("padded", [False, True])  # by window, or in a grid
@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_padded_bounds(padded: bool, causal: bool) -> None:
    attend = attention.causal_attention if causal else attention.packed_attention
    row = make_row([5, 9, 2])
    sizes = RowSizes(tokens=40, windows=6, longest=9)
    fixed = pad_to_sizes(row, sizes, SPAN_PADDINGS)
    bounds = torch.cat((fixed["cu_seqlens"], fixed["tail"]))
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 4, 40, 8, requires_grad=True).unbind()

    def run(tokens: int, cu_seqlens: Tensor, max_length: int) -> list[Tensor]:
        """Return outputs of the row's 16 tokens, and gradients of query, key and value."""
        layout = RowBounds(cu_seqlens, tokens, max_length, padded=padded)
        inputs = [x[:, :, :tokens] for x in (query, key, value)]
        out, _ = attend(torch.nn.Module(), *inputs, attention_mask=None, packed_layout=layout)
        assert out.isfinite().all()
        out = out[:, :16]
        gradients = torch.autograd.grad(out.square().sum(), (query, key, value))
        return [out, *gradients]

    real = run(16, row["cu_seqlens"], 9)
    assert all(map(torch.equal, real, run(40, bounds, 9)))


def train(path: Path, **changes: Any) -> tuple[list[Tensor], list[Tensor], dict[str, float]]:
    """Return gradients after the first step, weights after the last, and what the meter counts."""
    with trial_of(path, max_grad_norm=0, **changes) as trial:
        trial.model.train()
        gradients: list[Tensor] = []
        for step, rows in enumerate(islice(trial.build_training_data_loader(), STEPS)):
            trial.train_batch(rows, 0, step)
            trial.schedule.step()
            if step == 0:
                gradients = [local_part(p.grad).clone() for p in trial.model.parameters()]
        weights = [local_part(p.detach()) for p in trial.model.parameters()]
        return gradients, weights, trial.meter.per_slot_reduce()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_fixed_sizes_train_alike(
    workload: str, cache_dir: Path, tmp_path: Path, fixed_sizes: None
) -> None:
    """Up to rounding: a product's sums over tokens are cut in other places when there are more."""
    path = config_file(tmp_path, WORKLOADS[workload], cache_dir)
    change(path, model_config=NO_DROPOUT)
    gradients, weights, counts = train(path)
    fixed_gradients, fixed_weights, fixed_counts = train(path, cuda_graphs=True)
    for fixed, expected in zip(fixed_gradients, gradients, strict=True):
        assert (fixed - expected).norm() <= 1e-5 * expected.norm() + 1e-8
    for fixed, expected in zip(fixed_weights, weights, strict=True):
        torch.testing.assert_close(fixed, expected, rtol=1e-4, atol=1e-6)
    assert fixed_counts["loss"] == pytest.approx(counts["loss"], rel=1e-5)
    for name in ("windows", "tokens", "counted"):
        assert fixed_counts[name] == counts[name]


def test_a_row_that_is_too_long_runs_without_a_graph(
    tiny_config: Path,
    fixed_sizes: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change(tiny_config, model_config=NO_DROPOUT)
    _, weights, _ = train(tiny_config)
    monkeypatch.setattr(graphs, "SHORTEST", 10**6)  # room for one window
    _, fixed_weights, _ = train(tiny_config, cuda_graphs=True)
    assert all(map(torch.equal, weights, fixed_weights))
    (line,) = [record.message for record in caplog.records if "cuda_graphs" in record.message]
    assert "not used for a row of 4 windows" in line


@pytest.mark.parametrize("config", [TINY, TINY_PRETRAINING, TINY_LM])
def test_on_a_cpu_one_line_and_the_same_bits(
    config: dict[str, Any],
    cache_dir: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    alone: None,
) -> None:
    path = config_file(tmp_path, config, cache_dir)
    _, weights, _ = train(path)
    assert "cuda_graphs" not in caplog.text
    _, others, _ = train(path, cuda_graphs=True)
    assert all(map(torch.equal, weights, others))
    assert caplog.text.count("cuda_graphs") == 1
    assert "not used: " in caplog.text


def test_why_a_graph_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Forward(make_model("albert"), "fp32", torch.device("cpu"))

    def reason() -> str | None:
        return graphs.why_unused(forward, SPAN_PADDINGS)

    assert reason() == "there is no GPU"
    forward.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert "no attention kernel" in str(reason())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert "no attention kernel" in str(reason())  # in fp32
    forward.dtype = torch.bfloat16
    forward.model.config.attention_probs_dropout_prob = 0.1
    assert "dropout of attention weights" in str(reason())
    forward.model.config.attention_probs_dropout_prob = 0.0
    assert reason() is None
    assert "does not define" in str(graphs.why_unused(forward, {}))
    forward.padded = True
    assert "padded windows" in str(reason())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_capture_that_fails_ends_in_one_line() -> None:
    with pytest.raises(UserError, match=r"cuda_graphs: a row cannot be captured here: .*; set it"):
        graphs.capture(lambda: torch.zeros(1), torch.device("cuda"))
