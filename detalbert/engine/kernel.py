"""torch's flash attention over packed rows: what it computes, and how it is called.

Each call has a window, so that the kernel is flash attention, whose backward is deterministic under
`torch.use_deterministic_algorithms`. Without a window torch 2.14 runs encoders by cuDNN on
capability 9 and 10, if cuDNN is 9.18 or newer. That backward has no deterministic option, and it
builds a graph for each number of windows and tokens. cuDNN takes no window. A window of at least
`max_k` is none to flash attention, forward and backward (mha_varlen_fwd and mha_varlen_bwd in
torch's flash_api.cpp): same kernel, same bits. The price is cuDNN's speed on those GPUs. This was
read in torch's source and tried with its own choice of a kernel (tests/engine/test_kernel.py), but
not run on a GPU with torch 2.14.
"""

import contextlib
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

varlen_attn: Any = None  # before torch 2.10
with contextlib.suppress(ImportError):
    from torch.nn.attention.varlen import varlen_attn

DTYPES = (torch.float16, torch.bfloat16)
# torch 2.10 has is_causal alone; 2.11 has window_size and scale in its place, 2.12 enable_gqa, too.
OPTIONS = frozenset(inspect.signature(varlen_attn).parameters if varlen_attn else ())
_CAUSAL = (-1, 0)  # tokens to the left and to the right that a token attends to; -1: all
_ALL = (1 << 30, 1 << 30)  # more than any row has


class AttentionOptions(NamedTuple):
    """Arguments of an attention besides its tensors and the windows' bounds."""

    dropout: float
    scaling: float | None
    causal: bool
    local: int | None  # distance within which a token attends


def supports(query: Tensor, options: AttentionOptions) -> bool:
    """Return whether this torch's kernel has `options` for heads like `query` [1, heads, T, d]."""
    size = query.shape[-1]
    if query.dtype not in DTYPES or size > 256 or options.dropout:
        return False
    if "window_size" in OPTIONS:
        return True
    # torch 2.10 has no other scale.
    return options.local is None and options.scaling in (None, size**-0.5)


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens: Tensor,
    bound: int,
    options: AttentionOptions,
) -> Tensor:
    """Return [T, heads, d] for a query [T, heads, d]; each token attends within its window.

    Args:
        query: [T, heads, d].
        key: [T, kv_heads, d], as `value`; fewer heads than the query only if `enable_gqa` is one of
            `OPTIONS`.
        value: [T, kv_heads, d].
        cu_seqlens: bounds of the windows, int32 [n + 1], on the device.
        bound: tokens, at least those of the longest window.
        options: without dropout, see `supports`.
    """
    window = _ALL
    if options.causal:
        window = _CAUSAL
    elif options.local is not None:
        window = (options.local - 1, options.local - 1)
    arguments = {
        "is_causal": options.causal,
        "window_size": window,
        "scale": options.scaling,
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    arguments = {name: value for name, value in arguments.items() if name in OPTIONS}
    return varlen_attn(
        query,
        key,
        value,
        cu_seq_q=cu_seqlens,
        cu_seq_k=cu_seqlens,
        max_q=bound,
        max_k=bound,
        **arguments,
    )
