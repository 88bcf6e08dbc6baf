"""Attention over packed rows (`rows.Row`) in encoders of transformers, window by window.

The model code is that of transformers: importing this module registers an attention named "packed",
in which a token attends to its own window only, and one named "packed_causal", in which it attends
to itself and the tokens before it in its window. So any encoder runs unpadded, without a copy of
its code; the price is that each must be checked to call the registered attention, and nothing else
(inputs.py).
"""

from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from detalbert.engine import kernel
from detalbert.engine.cpu import drop
from detalbert.engine.kernel import AttentionOptions
from detalbert.errors import UserError

PACKED = "packed"  # from_config(..., attn_implementation=PACKED)
PACKED_CAUSAL = "packed_causal"


def has_kernel(device: torch.device) -> bool:
    """Return whether torch has variable-length attention (Dao 2023, arXiv:2307.08691) for `device`:
    torch 2.10 and newer, on Ampere and newer.
    """
    if kernel.varlen_attn is None or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


class RowBounds:
    """Window bounds of one packed row, computed once per row and read by every layer.

    A GPU's flash kernel reads cu_seqlens itself. Without it (Volta, fp32, dropout of attention
    weights) windows are copied to a grid [n, max_length], unless there is only one. On a CPU they
    run one by one, at 1.3 to 1.5 times the speed of the grid.

    Args:
        cu_seqlens: int32 [n + 1], n at least 1, on the model's device.
        tokens: T.
        max_length: tokens of the longest window, from the host; the device would block.
        padded: use the grid if there is no kernel; default: by device and number of windows.
    """

    def __init__(
        self, cu_seqlens: Tensor, tokens: int, max_length: int, padded: bool | None = None
    ) -> None:
        self.cu_seqlens = cu_seqlens
        self.tokens = tokens
        self.max_length = max_length
        self.windows = len(cu_seqlens) - 1
        if self.windows * max_length < tokens:
            raise ValueError(
                f"{tokens} tokens do not fit {self.windows} windows of at most {max_length}"
            )
        self.kernel = has_kernel(cu_seqlens.device)
        # The kernel makes room for windows of this length: the same value for nearly all rows, so
        # that code compiled for one row serves the next.
        self.bound = -(-max_length // 512) * 512
        if padded is None:
            padded = self.windows > 1 and cu_seqlens.device.type != "cpu"
        self.padded = padded

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each window, on the host."""
        if self.windows == 1:
            return [self.tokens]  # without a look at the device
        return self.cu_seqlens.diff().tolist()

    @cached_property
    def cell(self) -> Tensor:
        """Index of each token in the flattened grid, int64 [T]. Token 7 of windows of 5 and 6
        tokens is place 2 of window 1: cell 1 * 6 + 7 - 5 = 8.
        """
        token = torch.arange(self.tokens, device=self.cu_seqlens.device)
        # The number of windows that end at or before the token.
        window = torch.searchsorted(self.cu_seqlens[1:].long(), token, right=True)
        return window * self.max_length + token - self.cu_seqlens[window]

    @cached_property
    def is_key(self) -> Tensor:
        """Mask of the grid cells that hold a token, bool [n, 1, 1, L]."""
        column = torch.arange(self.max_length, device=self.cu_seqlens.device)  # [L]
        lengths = self.cu_seqlens.diff()  # [n]
        is_token = column < lengths[:, None]  # [n, L]
        return is_token[:, None, None, :]

    def grid(self, values: Tensor, fill: int = 0) -> Tensor:
        """Convert [T, ...] to [n, L, ...], with `fill` in the other cells."""
        size = values.shape[1:]
        cells = values.new_full((self.windows * self.max_length, *size), fill)
        cells = cells.index_copy(0, self.cell, values)
        return cells.view(self.windows, self.max_length, *size)

    def pad(self, x: Tensor) -> Tensor:
        """Convert [1, heads, T, d] to [n, heads, L, d], padded with zeros."""
        # The grid is of tokens, with heads and d inside.
        tokens_first = x[0].transpose(0, 1)  # [T, heads, d]
        return self.grid(tokens_first).transpose(1, 2)

    def unpad(self, x: Tensor) -> Tensor:
        """Convert [n, heads, L, d] to [1, T, heads, d]."""
        _, heads, _, size = x.shape
        cells = x.transpose(1, 2).reshape(self.windows * self.max_length, heads * size)
        tokens = cells.index_select(0, self.cell)  # [T, heads * d]
        return tokens.view(1, -1, heads, size)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed_layout: RowBounds | None = None,
    causal: bool = False,
    sliding_window: int | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attend within each window: the "packed" entry of transformers' AttentionInterface.

    Query is [1, heads, T, d], key and value [1, kv_heads, T, d]; each of these serves heads /
    kv_heads neighbouring heads of the query (Ainslie 2023, arXiv:2305.13245). With `sliding_window`
    w, as ModernBERT's local layers have it, a token attends to those at a distance of less than w.

    Returns:
        [1, T, heads, d] and no attention weights.

    Raises:
        ValueError: no layout, or a mask, which would attend across windows.
        UserError: the model's attention is more than softmax(q k) v.
    """
    if packed_layout is None or attention_mask is not None:
        raise ValueError(
            "packed attention needs the row's layout and takes no mask: "
            "call inputs.read_spans, or load the model with 'sdpa'"
        )
    options = AttentionOptions(
        dropout=dropout, scaling=scaling, causal=causal, local=sliding_window
    )
    feature = _unsupported_feature(module, options, kwargs)
    if feature is not None:
        models = "GPT-2, GPT-NeoX, Llama or Qwen2" if causal else "ALBERT, BERT or RoBERTa"
        raise UserError(
            f"{type(module).__name__} uses {feature}, which packed rows do not support",
            key="hyperparameters.model",
            cure=f"use a model such as {models}",
        )
    return _attend(query, key, value, layout=packed_layout, options=options), None


# A token attends to itself and to the earlier ones of its window.
causal_attention = partial(packed_attention, causal=True)


def _unsupported_feature(
    module: nn.Module, options: AttentionOptions, kwargs: dict[str, object]
) -> str | None:
    """Return the name of what makes an attention more than softmax(q k) v; None without such."""
    if options.causal and options.local is not None:
        return "sliding_window"
    for name in ("position_bias", "softcap"):
        if kwargs.get(name) is not None:
            return name
    if getattr(module, "is_causal", False) and not options.causal:
        return "is_causal"
    return None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, layout: RowBounds, options: AttentionOptions
) -> Tensor:
    """Return [1, T, heads, d], by the flash kernel if it supports the inputs."""
    by_kernel = layout.kernel and kernel.supports(query, options)
    groups = query.shape[1] // key.shape[1]  # heads of the query for one of key and value
    if groups > 1 and not (by_kernel and "enable_gqa" in kernel.OPTIONS):
        # Each key-value head is copied for the heads that share it.
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    if not by_kernel:
        return _without_kernel(query, key, value, layout=layout, options=options)
    # The kernel reads the windows' bounds itself: no padding, no loop.
    attended = kernel.flash_attention(
        query[0].transpose(0, 1),  # [T, heads, d]
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        cu_seqlens=layout.cu_seqlens,
        bound=layout.bound,
        options=options,
    )
    return attended[None]


@torch.compiler.disable
def _without_kernel(
    query: Tensor, key: Tensor, value: Tensor, layout: RowBounds, options: AttentionOptions
) -> Tensor:
    """Return [1, T, heads, d] by the grid, or window by window; all have the same heads."""
    if layout.padded:
        return _attend_in_grid(query, key, value, layout=layout, options=options)
    queries = query.split(layout.lengths, dim=2)  # [1, heads, length, d] each
    keys = key.split(layout.lengths, dim=2)
    values = value.split(layout.lengths, dim=2)
    outs = []
    for window in zip(queries, keys, values, strict=True):
        out = _attend_in_window(*window, options=options)
        outs.append(out.transpose(1, 2))
    return torch.cat(outs, dim=1)


def _attend_in_grid(
    query: Tensor, key: Tensor, value: Tensor, layout: RowBounds, options: AttentionOptions
) -> Tensor:
    """Return [1, T, heads, d], with all windows padded to the longest."""
    # Cells past a window's end still attend to its tokens, so that no softmax is empty. They come
    # after all tokens, so that a causal mask hides them from every one.
    mask = None if options.causal else layout.is_key  # [n, 1, 1, L]
    if options.local is not None:
        near = _near(layout.max_length, options.local, layout.is_key.device)
        # A cell past the end attends to all near ones.
        mask = near & (layout.is_key | ~layout.is_key.mT)  # [n, 1, L, L]
    out = F.scaled_dot_product_attention(
        layout.pad(query),
        layout.pad(key),
        layout.pad(value),
        attn_mask=mask,
        dropout_p=options.dropout,
        is_causal=options.causal,
        scale=options.scaling,
    )
    return layout.unpad(out)


def _attend_in_window(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
) -> Tensor:
    """Return the attention of one window; all are [1, heads, length, d]."""
    length = query.shape[2]
    mask = None  # bool [length, length]
    if options.local is not None:
        mask = _near(length, options.local, query.device)
    if options.dropout and query.device.type == "cpu":
        # torch's dropout draws a random number for each element, `drop` for every fourth.
        if options.causal:
            mask = torch.ones(length, length, dtype=torch.bool).tril()
        return _attend_with_drop(query, key, value, options=options, mask=mask)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=options.dropout,
        is_causal=options.causal,
        scale=options.scaling,
    )


def _near(length: int, local: int, device: torch.device) -> Tensor:
    """Return which of `length` places are less than `local` apart, bool [length, length]."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs() < local


def _attend_with_drop(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, mask: Tensor | None
) -> Tensor:
    """Compute scaled_dot_product_attention with `drop` as dropout; all [1, heads, length, d]."""
    scale = query.shape[-1] ** -0.5 if options.scaling is None else options.scaling
    scores = (query * scale) @ key.transpose(-1, -2)  # [1, heads, length, length]
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return drop(scores.softmax(-1), options.dropout) @ value


def _no_mask(attention_mask: Tensor | None = None, **_: object) -> None:
    if attention_mask is not None:
        raise ValueError("a packed row has no padding: do not hand the model an attention_mask")


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, _no_mask)
# The library makes no mask for a name that has none registered, and looks for no packed rows in
# the position ids, which would wait for the device.
AttentionInterface.register(PACKED_CAUSAL, causal_attention)
