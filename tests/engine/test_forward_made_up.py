"""What is compiled, on which row, and what is left as it was: nothing here compiles for real."""

from typing import Any

import pytest
import torch
from torch import nn

from detalbert.engine.forward import ROW_MULTIPLE, Forward, made_up_row, pad_row
from tests.fakes.encoders import make_model, make_row

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("tokens", "longest", "bounds", "positions"),
    [
        (10, 4, [0, 4, 8, 10], [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]),
        (8, 4, [0, 4, 8], [0, 1, 2, 3, 0, 1, 2, 3]),
        (3, 4, [0, 3], [0, 1, 2]),
    ],
)
def test_a_made_up_row_is_full_windows_and_a_rest(
    tokens: int, longest: int, bounds: list[int], positions: list[int]
) -> None:
    row = made_up_row(tokens, longest, CPU)
    assert row["cu_seqlens"].tolist() == bounds and row["cu_seqlens"].dtype is torch.int32
    assert row["position_ids"].tolist() == positions
    assert row["max_length"] == min(longest, tokens)
    assert row["windows"].tolist() == list(range(len(bounds) - 1))
    for name in ("input_ids", "token_type_ids"):
        assert row[name].tolist() == [0] * tokens and row[name].dtype is torch.int64


def test_a_padded_row_ends_in_zeros() -> None:
    row = make_row([5, 2])
    padded = pad_row(row, 4)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert padded[name].tolist() == [*row[name].tolist(), 0]
    assert padded["cu_seqlens"].tolist() == [0, 5, 7, 8] and padded["max_length"] == 5
    assert padded["cu_seqlens"].dtype is torch.int32 and len(row["input_ids"]) == 7
    start, end = Forward(make_model(), "fp32", CPU)(row)
    run = Forward(make_model(), "fp32", CPU)
    run.multiple = 4
    assert [len(logits) for logits in run(row)] == [7, 7] == [len(start), len(end)]


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


class Recorded:
    """A Forward whose runs are written down: (what, in training, with gradients)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[Any] = []
        monkeypatch.setattr(Forward, "refresh", lambda _: self.ran.append("refresh"))
        monkeypatch.setattr(Forward, "backward_of_nothing", self.note("backward"))
        monkeypatch.setattr(Forward, "__call__", self.note("forward"))

    def note(self, what: str) -> Any:
        def noted(run: Forward, row: Any) -> None:
            lengths = row["cu_seqlens"].diff().tolist()
            self.ran.append((what, run.model.training, torch.is_grad_enabled(), lengths))

        return noted


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_compiling_runs_forward_and_backward_and_leaves_the_mode(
    training: bool, mode: bool, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    run = Forward(make_model().train(mode), "fp32", CPU, compiled=True)
    run.compile_layers(10, 4, *([] if training else [False]))
    backward = [("backward", True, True, [4, 4, 2])] * training
    assert recorded.ran == ["refresh", *backward, ("forward", False, False, [4, 4, 2])]
    assert run.model.training == mode and run.layers
    plain = Forward(make_model(), "fp32", CPU)
    plain.compile_layers(10, 4)
    assert recorded.ran[-1] == ("forward", False, False, [4, 4, 2])  # nothing more ran


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
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        seen = []

        def read(model: nn.Module, row: Any, tokens: int, seen: list = seen) -> tuple:
            seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), tokens))
            return (torch.zeros(tokens),)

        run = Forward(make_model(), precision, CPU, read=read)
        assert len(run(make_row([3, 4]))) == 1 and not torch.is_autocast_enabled("cpu")
        ((enabled, found, tokens),) = seen
        assert enabled == (precision == "bf16") and tokens == 7
        assert found is dtype or not enabled
