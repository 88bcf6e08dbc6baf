"""How rows run: padding to a multiple, compiled layers, half precision, fused GELU."""

import shutil
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

from detalbert.engine.forward import ROW_MULTIPLE, Forward, encoder_layers, pad_row
from detalbert.engine.rows import SquadRow
from detalbert.errors import UserError
from tests.fakes.encoders import compile_with, make_model, make_row, use_kernel

CPU = torch.device("cpu")


def loss_and_gradients(run: Forward, row: SquadRow) -> list[torch.Tensor]:
    run.refresh()
    run.model.train().zero_grad()
    start, end = run(row)
    (start.float().square().sum() + end.float().square().mean()).backward()
    return [start.float().detach(), *(p.grad for p in run.model.parameters())]


def test_half_precision_stays_near_fp32() -> None:
    row = make_row([12, 20, 33])
    exact = loss_and_gradients(Forward(make_model(initializer_range=0.1), "fp32", CPU), row)
    run = Forward(make_model(initializer_range=0.1), "bf16", CPU)
    assert run.linears and run.dtype is torch.bfloat16
    for got, wanted in zip(loss_and_gradients(run, row), exact, strict=True):
        assert got.dtype is torch.float32
        # A key's bias moves no softmax: its gradient is rounding alone.
        off = (got - wanted).norm()
        assert off < 0.05 * wanted.norm() or wanted.norm() < 1e-3 * exact[1].norm()


@pytest.mark.soak  # half a minute; below the same without torch's code generator
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
def test_compiled_layers_give_the_same_numbers(fork: None) -> None:
    torch._dynamo.reset()
    plain, compiled = (
        Forward(make_model(hidden_size=256, initializer_range=0.05), "fp32", CPU, compiled=x)
        for x in (False, True)
    )
    compiled.compile_layers(256, 64)  # as many tokens as hidden units
    for lengths in ([12, 20, 33], [40], [64, 64, 3]):
        with torch._dynamo.config.patch(error_on_recompile=True):
            numbers = loss_and_gradients(compiled, make_row(lengths))
        reference = loss_and_gradients(plain, make_row(lengths))
        torch.testing.assert_close(numbers, reference, rtol=1e-3, atol=1e-4)


def test_rows_of_any_length_compile_a_handful_of_times_and_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, fork: None
) -> None:
    use_kernel(monkeypatch)
    torch._dynamo.reset()
    traced: list[Any] = []
    compile_with(lambda graph, _: traced.append(graph) or graph.forward, monkeypatch)
    both = [Forward(make_model(), "fp32", CPU, compiled=x) for x in (False, True)]
    both[1].compile_layers(512, 64)
    assert not any(p.grad is not None and p.grad.any() for p in both[1].model.parameters())
    first = len(traced)
    assert 1 <= first <= 4
    for seed, lengths in enumerate(([5], [60, 60, 9], [33] * 7, [64] * 20, [1, 2, 3], [48] * 5)):
        row = make_row(lengths, seed)
        sides = [loss_and_gradients(each, row) for each in both]
        torch.testing.assert_close(*sides, rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            sides = [each.model.eval() and each(row) for each in both]
        torch.testing.assert_close(*sides, rtol=1e-3, atol=1e-4)
    assert len(traced) == first


# Sizes of a model, and the dummy row's tokens, of which windows have 128.
_ALL_EQUAL = {"hidden_size": 512, "intermediate_size": 512, "embedding_size": 512}
EQUAL_SIZES = {
    "tokens are hidden units": ({"hidden_size": 128}, 128),
    "tokens, a window's bound and all others": (_ALL_EQUAL, 512),
}


@pytest.mark.parametrize("case", EQUAL_SIZES)
def test_no_row_compiles_anew_whatever_sizes_are_equal(
    case: str, monkeypatch: pytest.MonkeyPatch, fork: None
) -> None:
    use_kernel(monkeypatch)
    torch._dynamo.reset()
    compile_with(lambda graph, _: graph.forward, monkeypatch)
    sizes, tokens = EQUAL_SIZES[case]
    run = Forward(make_model(**sizes), "fp32", CPU, compiled=True)
    run.compile_layers(tokens, 128)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ([5], [60, 60, 9], [33] * 7):
            row = make_row(lengths)
            loss_and_gradients(run, row)
            with torch.no_grad():
                run.model.eval()
                run(row)


def test_a_padded_row_ends_in_a_window_of_zeros_that_changes_nothing() -> None:
    row = make_row([9, 17, 4])
    padded = pad_row(row, 64)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert padded[name].tolist() == [*row[name].tolist(), *[0] * 34]
    assert padded["cu_seqlens"].tolist() == [0, 9, 26, 30, 64] and padded["max_length"] == 34
    assert padded["cu_seqlens"].dtype is torch.int32 and len(row["input_ids"]) == 30
    assert pad_row(row, 10) is row and pad_row(row, 4)["max_length"] == 17
    long = pad_row(row, 200)
    assert long["cu_seqlens"].tolist() == [0, 9, 26, 30, 72, 136, 200] and long["max_length"] == 64
    run = Forward(make_model(), "fp32", CPU)
    plain, run.multiple = run(row), 64
    torch.testing.assert_close(torch.stack(run(row)), torch.stack(plain), rtol=1e-5, atol=1e-6)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **how: calls.append(how))
    return calls


COMPILED = [("cpu", None, None, False), ("cpu", None, True, True), ("cpu", None, False, False)]
COMPILED += [("cuda", (6, 1), None, False), ("cuda", (7, 0), None, True)]
COMPILED += [("cuda", (9, 0), False, False)]


@pytest.mark.parametrize("device, capability, asked, wanted", COMPILED)
def test_layers_are_compiled_from_volta_on(
    device: str, capability: Any, asked: Any, wanted: bool, compiled: list[Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    run = Forward(make_model("bert"), "fp32", torch.device(device), asked)
    assert compiled == [{"dynamic": True}] * 2 * wanted and len(run.layers) == 2 * wanted
    (layer,) = encoder_layers(make_model())
    assert type(layer).__name__ == "AlbertLayerGroup"
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
            assert row["position_ids"].tolist() == [*range(4), *range(4), *range(2)]
            ran.append((what, run.model.training, torch.is_grad_enabled(), lengths))

        return noted

    monkeypatch.setattr(Forward, "refresh", lambda _: ran.append("refresh"))
    monkeypatch.setattr(Forward, "zero_loss_backward", note("backward"))
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
    caplog.set_level("WARNING")

    def fail(self: Forward, row: Any) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(Forward, "__call__", fail)
    reason = "first second" if message else "RuntimeError"
    run = Forward(make_model().eval(), "fp32", CPU, compiled=True)
    with pytest.raises(UserError, match=rf"hyperparameters\.compile: .*{reason}.*C compiler"):
        run.compile_layers(10, 4)
    for required, training in ((True, False), (False, True)):  # the latter: a GPU's default
        run = Forward(make_model().train(training), "fp32", CPU, compiled=True)
        (layer,), run.required = run.layers, required
        layer._compiled_call_impl = fail
        run.compile_layers(10, 4, training=training)
        assert run.layers == [] and layer._compiled_call_impl is None
        assert run.model.training == training
    said = f"layers run uncompiled, as torch.compile fails here: {reason}"
    assert caplog.messages == [said] * 2


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
