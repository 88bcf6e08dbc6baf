"""A model made ready to answer: its forward pass is compiled where that works."""

from typing import Any

import pytest
import torch
import torch._dynamo

from detalbert.inference.model import prepare
from detalbert.settings.hparams import HParams
from tests.fakes.encoders import (
    SHAPE,
    assert_runs_uncompiled,
    broken_compiler,
    compile_with,
    make_model,
)

CPU = torch.device("cpu")
PIECES = range(SHAPE["vocab_size"])  # a tokenizer as far as `prepare` looks at it
COMPILED = HParams(model="albert", max_seq_length=64, compile=True, precision="fp32")


def test_prediction_compiles_the_forward_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    with_gradients = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        with_gradients.append(torch.is_grad_enabled())
        return graph.forward

    compile_with(backend, monkeypatch)
    model = prepare(make_model(), PIECES, COMPILED, CPU)[0]
    assert with_gradients and not any(with_gradients)
    assert not model.training and all(p.grad is None for p in model.parameters())


def test_prediction_does_without_a_compiler(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Even where the run was to be compiled: who has a checkpoint cannot change its config."""
    torch._dynamo.reset()
    compile_with(broken_compiler, monkeypatch)
    run = prepare(make_model(), PIECES, COMPILED, CPU)[-1]
    assert_runs_uncompiled(run, caplog.text)
