"""How rows run: padding to a multiple, compiled layers, half precision, fused GELU."""

import shutil
from unittest.mock import Mock

import pytest
import torch
import torch._dynamo
from torch import nn

from detalbert.engine.forward import Forward, pad_row
from detalbert.errors import UserError
from tests.fakes.encoders import compile_with, make_model, make_row, use_kernel

CPU = torch.device("cpu")


def logits_and_gradients(forward, row):
    """The start logits, and the gradients of a loss."""
    forward.refresh()
    forward.model.train().zero_grad()
    start, end = forward(row)
    loss = start.float().square().sum() + end.float().square().mean()
    loss.backward()
    gradients = [parameter.grad for parameter in forward.model.parameters()]
    return [start.float().detach(), *gradients]


def test_half_precision_stays_near_fp32():
    row = make_row([12, 20, 33])
    forward = Forward(make_model(initializer_range=0.1), "bf16", CPU)
    exact = logits_and_gradients(Forward(make_model(initializer_range=0.1), "fp32", CPU), row)

    half = logits_and_gradients(forward, row)

    assert forward.linears
    assert forward.dtype is torch.bfloat16
    for tensor, expected in zip(half, exact, strict=True):
        assert tensor.dtype is torch.float32
        # A key's bias moves no softmax: its gradient is rounding alone.
        near = (tensor - expected).norm() < 0.05 * expected.norm()
        assert near or expected.norm() < 1e-3 * exact[1].norm()


@pytest.mark.soak  # half a minute; below the same without torch's code generator
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
def test_compiled_layers_give_the_same_numbers(fork):
    torch._dynamo.reset()
    keys = {"hidden_size": 256, "initializer_range": 0.05}
    plain = Forward(make_model(**keys), "fp32", CPU, compiled=False)
    compiled = Forward(make_model(**keys), "fp32", CPU, compiled=True)
    compiled.compile_layers(256, 64)  # as many tokens as hidden units
    for lengths in ([12, 20, 33], [40], [64, 64, 3]):
        with torch._dynamo.config.patch(error_on_recompile=True):
            numbers = logits_and_gradients(compiled, make_row(lengths))
        expected = logits_and_gradients(plain, make_row(lengths))
        torch.testing.assert_close(numbers, expected, rtol=1e-3, atol=1e-4)


def test_rows_of_any_length_compile_a_handful_of_times_and_stay_as_they_are(monkeypatch, fork):
    graphs = []

    def trace(graph, _):
        graphs.append(graph)
        return graph.forward

    use_kernel(monkeypatch)
    torch._dynamo.reset()
    compile_with(trace, monkeypatch)
    plain = Forward(make_model(), "fp32", CPU, compiled=False)
    compiled = Forward(make_model(), "fp32", CPU, compiled=True)
    compiled.compile_layers(512, 64)
    for parameter in compiled.model.parameters():
        assert parameter.grad is None or not parameter.grad.any()
    compiled_at_first = len(graphs)
    assert 1 <= compiled_at_first <= 4

    for seed, lengths in enumerate(([5], [60, 60, 9], [33] * 7, [64] * 20, [1, 2, 3], [48] * 5)):
        row = make_row(lengths, seed)
        numbers = logits_and_gradients(compiled, row)
        expected = logits_and_gradients(plain, row)
        torch.testing.assert_close(numbers, expected, rtol=1e-3, atol=1e-4)
        plain.model.eval()
        compiled.model.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(row), plain(row), rtol=1e-3, atol=1e-4)
    assert len(graphs) == compiled_at_first


# Sizes of a model, and the dummy row's tokens, of which windows have 128.
EQUAL_SIZES = {
    "tokens are hidden units": (
        {"hidden_size": 128},
        128,
    ),
    "tokens, a window's bound and all others": (
        {"hidden_size": 512, "intermediate_size": 512, "embedding_size": 512},
        512,
    ),
}


@pytest.mark.parametrize(("sizes", "tokens"), EQUAL_SIZES.values(), ids=EQUAL_SIZES)
def test_no_row_compiles_anew_whatever_sizes_are_equal(sizes, tokens, monkeypatch, fork):
    use_kernel(monkeypatch)
    torch._dynamo.reset()
    compile_with(lambda graph, _: graph.forward, monkeypatch)
    forward = Forward(make_model(**sizes), "fp32", CPU, compiled=True)
    forward.compile_layers(tokens, 128)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ([5], [60, 60, 9], [33] * 7):
            row = make_row(lengths)
            logits_and_gradients(forward, row)
            forward.model.eval()
            with torch.no_grad():
                forward(row)


def test_a_padded_row_ends_in_windows_of_zeros():
    row = make_row([9, 17, 4])
    padded = pad_row(row, 64)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert padded[name].tolist() == [*row[name].tolist(), *[0] * 34]
    assert padded["cu_seqlens"].tolist() == [0, 9, 26, 30, 64]
    assert padded["cu_seqlens"].dtype is torch.int32
    assert padded["max_length"] == 34
    assert len(row["input_ids"]) == 30  # it stays as it is

    assert pad_row(row, 10) is row
    assert pad_row(row, 4)["max_length"] == 17
    long = pad_row(row, 200)
    assert long["cu_seqlens"].tolist() == [0, 9, 26, 30, 72, 136, 200]
    assert long["max_length"] == 64


def test_padding_changes_no_logit():
    row = make_row([9, 17, 4])
    forward = Forward(make_model(), "fp32", CPU)
    expected = forward(row)
    forward.multiple = 64
    torch.testing.assert_close(forward(row), expected, rtol=1e-5, atol=1e-6)


PROBLEM = "first second"  # what is shown of the error


@pytest.fixture
def failing(monkeypatch):
    """Have the forward fail, and nothing be compiled."""
    monkeypatch.setattr(Forward, "__call__", Mock(side_effect=RuntimeError("first\nsecond\n3rd")))
    monkeypatch.setattr(nn.Module, "compile", Mock())


def test_a_compiler_that_is_required_and_fails_is_an_error(failing):
    forward = Forward(make_model().eval(), "fp32", CPU, compiled=True)
    with pytest.raises(UserError, match=rf"hyperparameters\.compile: .*{PROBLEM}.*C compiler"):
        forward.compile_layers(10, 4)


@pytest.mark.parametrize("training", [False, True])  # True: a GPU's default
def test_work_goes_on_without_a_compiler(training, failing, caplog):
    forward = Forward(make_model().train(training), "fp32", CPU, compiled=True)
    forward.required = not training
    (layer,) = forward.layers
    layer._compiled_call_impl = print  # stands for compiled code
    with caplog.at_level("WARNING"):
        forward.compile_layers(10, 4, training=training)
    assert forward.layers == []
    assert layer._compiled_call_impl is None
    assert forward.model.training == training
    assert caplog.messages == [f"layers run uncompiled, as torch.compile fails here: {PROBLEM}"]


@pytest.mark.parametrize(("capability", "compiled"), [((6, 1), False), ((7, 0), True)])
def test_layers_are_compiled_on_gpus_from_volta_on(capability, compiled, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    forward = Forward(make_model(), "fp32", torch.device("cuda"))
    assert bool(forward.layers) == compiled
