"""The planner's memory beside torch's own counter, without weights and without a GPU: the peak of
an optimizer step with rows as large as `cluster.plan --gpu` names for a card."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.mod_tracker import ModTracker
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    PretrainedConfig,
)

from detalbert.engine.forward import Forward
from detalbert.engine.gradients import FlatGradients
from detalbert.engine.memory import OVERHEAD, Memory, replicated
from detalbert.engine.models import encoder_sizes
from detalbert.engine.optim import build_optimizer, parameter_groups
from detalbert.engine.padded import attention_of, read_spans
from detalbert.engine.rows import dummy_row
from detalbert.training.sizing import SHIPPED as CONFIGS
from pretrain.encoders import masked_logits
from tests.engine.gpu_kernels import use_gpu_kernels

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
WINDOW = 384
MASKED = 0.3
# Models of the configs; local.yaml's has the shape of none that is published.
SHIPPED = ("albert-base-v2", "albert-xxlarge-v2", "deberta-v3-large", "ModernBERT-base")
DEBERTA = CONFIGS["deberta-v3-large"]
OTHERS = {
    "mpnet": {"model_type": "mpnet"},
    "deberta-v2": {**DEBERTA, "share_att_key": False, "position_buckets": -1},
    "electra": {"model_type": "electra", "attention_probs_dropout_prob": 0.0},
}


class NoModules(ModTracker):
    """Hooks on no module: without statistics of each, the counter takes half of the time."""

    def __enter__(self) -> "NoModules":
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu_kernels(monkeypatch)


def read_masked(model: Any, row: Any, tokens: int) -> tuple[torch.Tensor, ...]:
    places = torch.arange(int(MASKED * tokens))
    return (masked_logits(model, row, places).float().log_softmax(1),)


def peak_bytes(
    config: PretrainedConfig,
    tokens: int,
    rows: int = 1,
    model_class: Any = AutoModelForQuestionAnswering,
    read_logits: Callable[..., tuple[torch.Tensor, ...]] = read_spans,
    optimizer_name: str = "adamw",
) -> int:
    """The most bytes at a time of a step in bf16 with `rows` rows of `tokens`, by torch's counter.
    The optimizer's moments are there before."""
    with torch.device("meta"):
        model = model_class.from_config(config, attn_implementation=attention_of(config))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device=CPU)
        model.tie_weights()
        forward = Forward(model.train(), "bf16", CPU, compiled=False, read_logits=read_logits)
        gradients = FlatGradients(model.parameters(), slots=1)
        groups = parameter_groups(model, decay=0.01, optimizer=optimizer_name)
        optimizer: Any = build_optimizer(optimizer_name, groups, lr=1e-4)
        optimizer.no_steps = int  # AdamW's count is a tensor, whose number no fake one has
        optimizer.step()

        tracker = MemTracker()
        tracker._mod_tracker = NoModules()
        tracker.track_external(model, optimizer, gradients.flat)
        with tracker:
            forward.refresh()
            for _ in range(rows):
                outputs = forward(dummy_row(tokens, WINDOW, CPU))
                loss = sum(output.float().logsumexp(0).sum() for output in outputs)
                loss.backward()
                del outputs, loss
            optimizer.step()
        return tracker.get_tracker_snapshot("peak")[CPU]["Total"]


def planned(config: PretrainedConfig, masked: float = 0.0) -> Memory:
    model_class: type[nn.Module] | None = None
    if masked:
        model_class = AutoModelForMaskedLM._model_mapping[type(config)]
    sizes = encoder_sizes(config, model_class)
    return replicated(sizes, slots=1, half=True, grid=False, longest=WINDOW, masked=masked)


def config_of(keys: dict[str, Any]) -> PretrainedConfig:
    return AutoConfig.for_model(**keys)


@pytest.mark.parametrize("gigabytes", [12, 16, 24])
@pytest.mark.parametrize("name", SHIPPED)
def test_what_fits_a_card_takes_what_is_said(name: str, gigabytes: int) -> None:
    config = config_of(CONFIGS[name])
    memory = planned(config)
    tokens = memory.tokens(gigabytes) // WINDOW * WINDOW
    assert tokens > 0
    peak = peak_bytes(config, tokens)
    assert memory.at(tokens) - OVERHEAD == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("windows", [1, 10])
@pytest.mark.parametrize("name", OTHERS)
def test_other_families_and_short_rows(name: str, windows: int) -> None:
    """Of one window, where the optimizer's step takes more than the tokens."""
    config = config_of({**OTHERS[name], "num_hidden_layers": 6})
    peak = peak_bytes(config, windows * WINDOW)
    expected = planned(config).at(windows * WINDOW) - OVERHEAD
    assert expected == pytest.approx(peak, rel=0.05)


def test_a_masked_language_model() -> None:
    """Of configs/domain.yaml, by the share that it masks."""
    config = config_of(CONFIGS["ModernBERT-base"])
    tokens = 8 * WINDOW
    peak = peak_bytes(config, tokens, model_class=AutoModelForMaskedLM, read_logits=read_masked)
    assert planned(config, MASKED).at(tokens) - OVERHEAD == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("optimizer", ["adamw", "radam"])
def test_more_rows_of_a_step_take_no_more(optimizer: str) -> None:
    config = config_of(CONFIGS["albert-base-v2"])
    one = peak_bytes(config, WINDOW, optimizer_name=optimizer)
    three = peak_bytes(config, WINDOW, rows=3, optimizer_name=optimizer)
    assert math.isclose(three, one, rel_tol=1e-3)
