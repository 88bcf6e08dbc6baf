"""Attention over packed rows (`rows.Row`) in encoders of transformers, window by window.

The model code is that of transformers: importing this module registers an attention named "packed",
in which a token attends to its own window only, and one named "packed_causal", in which it attends
to itself and the tokens before it in its window.
"""

from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from detalbert.engine import kernel
from detalbert.engine.cpu import drop
from detalbert.engine.kernel import How
from detalbert.engine.rows import Row
from detalbert.engine.segments import takes_segments
from detalbert.errors import UserError

PACKED = "packed"  # from_config(..., attn_implementation=PACKED)
PACKED_CAUSAL = "packed_causal"
_ENCODERS = "an encoder such as ALBERT, BERT or RoBERTa"


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
        self.cu_seqlens, self.tokens, self.max_length = cu_seqlens, tokens, max_length
        self.kernel = kernel.has_kernel(cu_seqlens.device)
        # The kernel makes room for windows of this length: the same value for nearly all rows, so
        # that code compiled for one row serves the next.
        self.bound = -(-max_length // 512) * 512
        self.windows = n = len(cu_seqlens) - 1
        if n * max_length < tokens:
            raise ValueError(f"{tokens} tokens do not fit {n} windows of at most {max_length}")
        self.padded = padded if padded is not None else n > 1 and cu_seqlens.device.type != "cpu"

    @cached_property
    def lengths(self) -> list[int]:
        return [self.tokens] if self.windows == 1 else self.cu_seqlens.diff().tolist()

    @cached_property
    def cell(self) -> Tensor:
        """Index of each token in the flattened grid, int64 [T]. Token 7 of windows of 5 and 6
        tokens is place 2 of window 1: cell 1 * 6 + 7 - 5 = 8.
        """
        token = torch.arange(self.tokens, device=self.cu_seqlens.device)
        window = torch.searchsorted(self.cu_seqlens[1:].long(), token, right=True)
        return window * self.max_length + token - self.cu_seqlens[window]

    @cached_property
    def is_key(self) -> Tensor:
        """Mask of the grid cells that hold a token, bool [n, 1, 1, L]."""
        column = torch.arange(self.max_length, device=self.cu_seqlens.device)
        return (column < self.cu_seqlens.diff()[:, None])[:, None, None, :]

    def grid(self, values: Tensor, fill: int = 0) -> Tensor:
        """Convert [T, ...] to [n, L, ...], with `fill` in the other cells."""
        flat = values.new_full((self.windows * self.max_length, *values.shape[1:]), fill)
        flat = flat.index_copy(0, self.cell, values)
        return flat.view(self.windows, self.max_length, *values.shape[1:])

    def pad(self, x: Tensor) -> Tensor:
        """Convert [1, heads, T, d] to [n, heads, L, d], padded with zeros."""
        return self.grid(x[0].transpose(0, 1)).transpose(1, 2)

    def unpad(self, x: Tensor) -> Tensor:
        """Convert [n, heads, L, d] to [1, T, heads, d]."""
        _, heads, _, size = x.shape
        flat = x.transpose(1, 2).reshape(self.windows * self.max_length, heads * size)
        return flat.index_select(0, self.cell).view(1, -1, heads, size)


Heads = tuple[Tensor, Tensor, Tensor]  # query, key and value, [1, heads, T, d] each


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
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within each window: the "packed" entry of transformers' AttentionInterface.

    Query is [1, heads, T, d], key and value [1, kv_heads, T, d]; each of these serves heads /
    kv_heads neighbouring heads of the query (Ainslie 2023, arXiv:2305.13245). Returns [1, T, heads,
    d] and no attention weights. Raises ValueError without a layout or with a mask, which would
    attend across windows, and UserError if the model's attention is more than softmax(q k) v.

    With `sliding_window` w, as ModernBERT's local layers have it, a token attends to those at a
    distance of less than w.
    """
    if packed_layout is None or attention_mask is not None:
        said = "packed attention needs the row's layout and takes no mask"
        raise ValueError(f"{said}: call attention.answer_logits, or load the model with 'sdpa'")
    names = ("position_bias", "softcap")
    more = next((name for name in names if kwargs.get(name) is not None), None)
    if causal and sliding_window is not None:
        more = "sliding_window"
    if more or (getattr(module, "is_causal", False) and not causal):
        use = "a model such as GPT-2, GPT-NeoX, Llama or Qwen2" if causal else _ENCODERS
        said = f"uses {more or 'is_causal'}, which packed rows do not support; use {use}"
        raise UserError(f"hyperparameters.model: {type(module).__name__} {said}")
    how = How(dropout, scaling, causal, sliding_window)
    return _attend((query, key, value), packed_layout, how), None


# A token attends to itself and to the earlier ones of its window.
causal_attention = partial(packed_attention, causal=True)


def _attend(qkv: Heads, layout: RowBounds, how: How) -> Tensor:
    """Return [1, T, heads, d], by the flash kernel if it supports the inputs."""
    query, key, value = qkv
    by_kernel = layout.kernel and kernel.supports(query, how)
    if query.shape[1] != key.shape[1] and not (by_kernel and "enable_gqa" in kernel.OPTIONS):
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    if not by_kernel:
        return _without_kernel((query, key, value), layout, how)
    attended = kernel.flash_attention(
        query[0].transpose(0, 1),  # [T, heads, d]
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        layout.cu_seqlens,
        layout.bound,
        how,
    )
    return attended[None]


@torch.compiler.disable
def _without_kernel(qkv: Heads, layout: RowBounds, how: How) -> Tensor:
    """Return [1, T, heads, d] by the grid, or window by window."""
    dropout, scaling, causal, local = how
    if layout.padded:
        # Places past a window's end still attend to its tokens, so that no softmax is empty. They
        # come after all tokens, so that a causal mask hides them from every one.
        mask = None if causal else layout.is_key
        if local is not None:
            near = _near(layout.max_length, local, layout.is_key.device)
            mask = near & (layout.is_key | ~layout.is_key.mT)  # a place past the end: all near ones
        q, k, v = map(layout.pad, qkv)
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scaling)
        return layout.unpad(out)
    by_hand = dropout and qkv[0].device.type == "cpu"
    outs = []
    parts = (x.split(layout.lengths, dim=2) for x in qkv)
    for q, k, v in zip(*parts, strict=True):  # one window: [1, heads, length, d]
        mask = None if local is None else _near(q.shape[2], local, q.device)
        if by_hand:
            mask = torch.ones(2 * q.shape[2:3], dtype=torch.bool).tril() if causal else mask
            outs.append(_with_dropout((q, k, v), how, mask))
        else:
            attend = F.scaled_dot_product_attention
            outs.append(attend(q, k, v, mask, dropout, causal, scale=scaling))
    return torch.cat([out.transpose(1, 2) for out in outs], dim=1)


def _near(length: int, local: int, device: torch.device) -> Tensor:
    """Return which of `length` places are less than `local` apart, bool [length, length]."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs() < local


def _with_dropout(qkv: Heads, how: How, mask: Tensor | None) -> Tensor:
    """Compute scaled_dot_product_attention with `drop` as dropout; all [1, heads, length, d]."""
    query, key, value = qkv
    scale = query.shape[-1] ** -0.5 if how.scaling is None else how.scaling
    scores = (query * scale) @ key.transpose(-1, -2)  # [1, heads, length, length]
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return drop(scores.softmax(-1), how.dropout) @ value


def _no_mask(attention_mask: Tensor | None = None, **_: Any) -> None:
    if attention_mask is not None:
        raise ValueError("a packed row has no padding: do not hand the model an attention_mask")


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, _no_mask)
# The library makes no mask for a name that has none registered, and looks for no packed rows in
# the position ids, which would wait for the device.
AttentionInterface.register(PACKED_CAUSAL, causal_attention)


def model_inputs(model: Any, row: Row) -> dict[str, Any]:
    """Return the arguments with which `model` processes `row`, on its device, as separate windows:
    input_ids, position_ids [1, T], packed_layout, and token_type_ids [1, T] if the model has them.
    Raises as `check_model`.
    """
    check_model(model)
    inputs = {
        "input_ids": row["input_ids"][None],
        "position_ids": (row["position_ids"] + first_position(model))[None],
        "packed_layout": RowBounds(row["cu_seqlens"], len(row["input_ids"]), row["max_length"]),
    }
    if takes_segments(model):
        inputs["token_type_ids"] = row["token_type_ids"][None]
    return inputs


def check_model(model: Any) -> None:
    """Raise UserError if the model would ignore the layout and attend across windows."""
    # The library takes any registered name for every model; MPNet or DeBERTa then run their own.
    attention = model.config._attn_implementation
    if attention != PACKED or not getattr(model, "_supports_attention_backend", False):
        said = f"cannot run packed rows (its attention is {attention!r}); use {_ENCODERS}"
        raise UserError(f"hyperparameters.model: {type(model).__name__} {said}")


def first_position(model: Any) -> int:
    """Return 0, or padding_idx + 1 if the position table has a padding row (fairseq's models)."""
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else padding + 1


def answer_logits(model: nn.Module, row: Row, tokens: int | None = None) -> tuple[Tensor, ...]:
    """Return start and end logits [tokens] of a packed row; default: all of its tokens. `model` is
    any question-answering encoder. Raises as `check_model`.
    """
    output = model(**model_inputs(model, row))
    return output.start_logits[0, :tokens], output.end_logits[0, :tokens]
