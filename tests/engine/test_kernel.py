"""Which kernel the installed torch runs a packed row by: flash attention, on every GPU.

torch's own code chooses, forward and backward, for what kernel.py passes. The GPU is a fake one:
tensors on the CPU say that they are on CUDA, and the kernels behind the choice note their names.
"""

import pytest
import torch
from torch import nn

from detalbert.engine import attention, kernel

varlen = pytest.importorskip("torch.nn.attention.varlen", reason="needs torch 2.10")

CAPABILITIES = [(8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)]
CUDNN = 99_900  # newer than any
FLASH = ["_flash_attention_forward", "_flash_attention_backward"]


def forget_devices():
    """Forget what torch remembers of a device's capability."""
    for function in vars(varlen).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


@pytest.fixture
def calls(monkeypatch):
    """The kernels that torch chose, and their options."""
    seen = []

    def forward(name, outputs):
        def run(query, *args, **options):
            seen.append((name, options))
            heads, tokens = query.shape[1], query.shape[0]
            output = query.detach().clone()
            sums = torch.zeros(heads, tokens)
            return (output, sums, *[torch.zeros(2, dtype=torch.uint64)] * (outputs - 2))

        return run

    def backward(name):
        def run(*args, **options):
            inputs = args[1:4] or [options[key] for key in ("query", "key", "value")]
            seen.append((name, options))
            return tuple(torch.zeros_like(tensor) for tensor in inputs)  # type: ignore[return-value]  # three

        return run

    kernels = {
        "_flash_attention_forward": forward("_flash_attention_forward", 5),
        "_cudnn_attention_forward": forward("_cudnn_attention_forward", 9),
        "_flash_attention_backward": backward("_flash_attention_backward"),
        "_cudnn_attention_backward": backward("_cudnn_attention_backward"),
    }
    for name, stand_in in kernels.items():
        monkeypatch.setattr(torch.ops.aten, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: CUDNN)
    yield seen
    forget_devices()


def run_row(causal, kv_heads, size, dtype, longest, **how):
    """Forward and backward over a row of two windows."""
    layout = attention.RowBounds(
        torch.tensor([0, 5, 5 + longest], dtype=torch.int32), 5 + longest, longest
    )
    layout.kernel = True
    heads = (4, kv_heads, kv_heads)
    qkv = [torch.zeros(1, n, 5 + longest, size, dtype=dtype, requires_grad=True) for n in heads]
    attend = attention.causal_attention if causal else attention.packed_attention
    out, _ = attend(nn.Module(), *qkv, None, packed_layout=layout, **how)
    out.sum().backward()
    assert all(tensor.grad is not None for tensor in qkv)


ROWS = {
    "an encoder": {},
    "an encoder's short row": {"longest": 9},
    "a long row": {"longest": 4097},
    "fp16": {"dtype": torch.float16},
    "wide heads": {"size": 256},
    "a scale": {"scaling": 0.3},
    "local attention": {"sliding_window": 65},
    "a causal model": {"causal": True},
    "grouped heads": {"causal": True, "kv_heads": 2},
    "grouped heads of an encoder": {"kv_heads": 1},
}


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("row", ROWS)
def test_the_kernel_is_flash_attention(row, capability, calls, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    forget_devices()
    usual = {"causal": False, "kv_heads": 4, "size": 64, "dtype": torch.bfloat16, "longest": 384}
    run_row(**{**usual, **ROWS[row]})
    if "window_size" not in kernel.OPTIONS and row in ("a scale", "local attention"):
        assert calls == []  # torch 2.10 has no option for it: the grid
        return
    assert [name for name, _ in calls] == FLASH
    # Both get the window that was asked for; one of at least the longest window is none.
    sides = [options.get("window_size_left") for _, options in calls]
    assert sides[0] == sides[1]
    if ROWS[row].get("sliding_window"):
        assert sides[0] == 64
    elif not ROWS[row].get("causal"):
        assert sides[0] is None or sides[0] >= 1 << 20


@pytest.mark.parametrize(
    ("scaling", "local", "supported"),
    [(None, None, True), (0.25, None, True), (0.5, None, False), (None, 8, False)],
)
def test_torch_2_10_has_the_usual_scale_and_no_window(monkeypatch, scaling, local, supported):
    monkeypatch.setattr(kernel, "OPTIONS", frozenset({"is_causal"}))
    query = torch.zeros(1, 2, 3, 16, dtype=torch.float16)
    options = kernel.AttentionOptions(dropout=0.0, scaling=scaling, causal=False, local=local)
    assert kernel.supports(query, options) == supported


@pytest.mark.parametrize(
    ("size", "dropout", "supported"), [(256, 0.0, True), (264, 0.0, False), (16, 0.1, False)]
)
def test_it_has_heads_of_256_and_no_dropout(monkeypatch, size, dropout, supported):
    monkeypatch.setattr(kernel, "OPTIONS", frozenset({"window_size"}))
    query = torch.zeros(1, 2, 3, size, dtype=torch.bfloat16)
    options = kernel.AttentionOptions(dropout=dropout, scaling=None, causal=False, local=None)
    assert kernel.supports(query, options) == supported
