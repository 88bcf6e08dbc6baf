"""What is compiled, on which row, and what is left as it was: nothing here compiles for real."""

from typing import Any

import pytest
import torch
from torch import nn

from detalbert.engine.forward import ROW_MULTIPLE, Forward, made_up_row, pad_row
from tests.fakes.encoders import make_model, make_row

CPU = torch.device("cpu")


@pytest.mark.parametrize("tokens, bounds", [(10, [0, 4, 8, 10]), (8, [0, 4, 8]), (3, [0, 3])])
def test_a_made_up_row_is_full_windows_and_a_rest(tokens: int, bounds: list[int]) -> None:
    row = made_up_row(tokens, 4, CPU)
    assert row["cu_seqlens"].tolist() == bounds and row["cu_seqlens"].dtype is torch.int32
    assert row["position_ids"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1][:tokens]
    assert row["max_length"] == min(4, tokens)
    assert row["windows"].tolist() == list(range(len(bounds) - 1))
    for name in ("input_ids", "token_type_ids"):
        assert row[name].tolist() == [0] * tokens and row[name].dtype is torch.int64


def test_a_padded_row_ends_in_a_window_of_zeros_that_changes_nothing() -> None:
    row = make_row([9, 17, 4])
    padded = pad_row(row, 64)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert padded[name].tolist() == [*row[name].tolist(), *[0] * 34]
    assert padded["cu_seqlens"].tolist() == [0, 9, 26, 30, 64] and padded["max_length"] == 34
    assert padded["cu_seqlens"].dtype is torch.int32 and len(row["input_ids"]) == 30
    assert pad_row(row, 10) is row and pad_row(row, 4)["max_length"] == 17
    run = Forward(make_model(), "fp32", CPU)
    plain, run.multiple = run(row), 64
    torch.testing.assert_close(torch.stack(run(row)), torch.stack(plain), rtol=1e-5, atol=1e-6)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `compile` is called with, in place of a compiler."""
    calls: list[Any] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **how: calls.append(how))
    return calls


ON_CPU = [("cpu", None, None, False), ("cpu", None, True, True), ("cpu", None, False, False)]
ON_GPU = [("cuda", *row) for row in (((6, 1), None, False), ((7, 0), None, True))]
ON_GPU += [("cuda", (9, 0), False, False)]


@pytest.mark.parametrize(("device", "capability", "asked", "wanted"), ON_CPU + ON_GPU)
def test_layers_are_compiled_from_volta_on(
    device: str, capability: Any, asked: bool | None, wanted: bool, compiled: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    run = Forward(make_model("bert"), "fp32", torch.device(device), asked)
    assert compiled == [{"dynamic": True}] * 2 * wanted and len(run.layers) == 2 * wanted
    assert run.multiple == (ROW_MULTIPLE if wanted else 1) and ROW_MULTIPLE == 64
    assert run.required == bool(asked)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_compiling_runs_forward_and_backward_and_leaves_the_mode(
    training: bool, mode: bool, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []  # (what, in training, with gradients, lengths)

    def note(what: str) -> Any:
        def noted(run: Forward, row: Any) -> None:
            lengths = row["cu_seqlens"].diff().tolist()
            ran.append((what, run.model.training, torch.is_grad_enabled(), lengths))

        return noted

    monkeypatch.setattr(Forward, "refresh", lambda _: ran.append("refresh"))
    monkeypatch.setattr(Forward, "backward_of_nothing", note("backward"))
    monkeypatch.setattr(Forward, "__call__", note("forward"))
    run = Forward(make_model().train(mode), "fp32", CPU, compiled=True)
    run.compile_layers(10, 4, *([] if training else [False]))
    backward = [("backward", True, True, [4, 4, 2])] * training
    assert ran == ["refresh", *backward, ("forward", False, False, [4, 4, 2])]
    assert run.model.training == mode and run.layers
    Forward(make_model(), "fp32", CPU).compile_layers(10, 4)
    assert ran[-1] == ("forward", False, False, [4, 4, 2])  # nothing more ran


@pytest.mark.parametrize("message", ["first\nsecond\nthird", ""])
def test_prediction_goes_on_without_a_compiler(
    message: str, compiled: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Also where the config asks for compiled layers: the model is trained, and has to answer."""

    def fail(self: Forward, row: Any) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(Forward, "__call__", fail)
    run = Forward(make_model().eval(), "fp32", CPU, compiled=True)
    (layer,) = run.layers
    layer._compiled_call_impl = fail
    run.compile_layers(10, 4, training=False)
    assert run.layers == [] and layer._compiled_call_impl is None and not run.model.training
    reason = "first second" if message else "RuntimeError"
    assert caplog.messages == [f"layers run uncompiled, as torch.compile fails here: {reason}"]


def test_a_backward_of_nothing_leaves_zeros() -> None:
    run = Forward(make_model(), "fp32", CPU)
    run.backward_of_nothing(made_up_row(10, 4, CPU))
    gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
    assert len(gradients) > 10 and not any(g.any() for g in gradients)


def test_half_precision_is_for_the_forward_alone() -> None:
    seen: list[Any] = []

    def read(model: nn.Module, row: Any, tokens: int) -> tuple:
        half = torch.is_autocast_enabled("cpu")
        seen.append((half and torch.get_autocast_dtype("cpu"), tokens))
        return (torch.zeros(tokens),)

    for precision in ("fp32", "bf16"):
        run = Forward(make_model(), precision, CPU, read=read)
        assert len(run(make_row([3, 4]))) == 1 and not torch.is_autocast_enabled("cpu")
    assert seen == [(False, 7), (torch.bfloat16, 7)]
