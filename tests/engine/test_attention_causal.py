"""Packed causal attention against its definition."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from detalbert.engine import attention
from detalbert.errors import UserError
from tests.fakes.encoders import make_row


def make_causal(heads: int, kv_heads: int, lengths: list[int]) -> tuple[list[Tensor], Tensor]:
    """query, key, value of a row, and by definition the softmax over what came before."""
    torch.manual_seed(0)
    tokens = sum(lengths)
    query, key, value = (torch.randn(1, n, tokens, 8) for n in (heads, kv_heads, kv_heads))
    shared = heads // kv_heads
    parts = []
    wide = (
        x[0].repeat_interleave(n, dim=0) for x, n in ((query, 1), (key, shared), (value, shared))
    )
    for q, k, v in zip(*(x.split(lengths, dim=1) for x in wide), strict=True):
        later = torch.ones(q.shape[1], q.shape[1]).triu(1).bool()
        parts.append((q @ k.mT * 0.3).masked_fill(later, -torch.inf).softmax(-1) @ v)
    return [query, key, value], torch.cat(parts, dim=1).transpose(0, 1)[None]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_causal_attention_is_softmax_over_what_came_before_in_the_window(
    padded: bool, kv_heads: int
) -> None:
    lengths = [3, 1, 4]
    given, expected = make_causal(4, kv_heads, lengths)
    layout = attention.Layout(make_row(lengths)["cu_seqlens"], 8, 4, padded=padded)
    module = nn.Module()
    module.is_causal = True
    out, weights = attention.causal_attention(
        module, *given, None, scaling=0.3, packed_layout=layout
    )
    assert weights is None
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("more", ["sliding_window", "position_bias", "softcap"])
def test_causal_attention_that_is_more_than_a_softmax_is_refused(more: str) -> None:
    layout, x = attention.Layout(torch.tensor([0, 5]), 5, 5), torch.ones(1, 2, 5, 8)
    with pytest.raises(UserError, match=f"Module uses {more}.*use a model such as GPT-2"):
        attention.causal_attention(nn.Module(), x, x, x, None, packed_layout=layout, **{more: 4})
    for mask, bounds in ((torch.ones(5), layout), (None, None)):
        with pytest.raises(ValueError, match="takes no mask"):
            attention.causal_attention(nn.Module(), x, x, x, mask, packed_layout=bounds)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_the_kernel_is_told_that_it_is_causal(
    old: bool, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(query: Tensor, key: Tensor, *given: Any, scale: float, **options: Any) -> Tensor:
        calls.append((key.shape[1], options))
        return query

    calls = []
    monkeypatch.setattr(attention, "varlen_attn", kernel)
    if old:  # torch 2.10: another name for causal, and as many heads of keys as of queries
        monkeypatch.setattr(attention, "_CAUSAL_KERNEL", {"is_causal": True})
        monkeypatch.setattr(attention, "_KERNEL_OPTIONS", {})
    layout = attention.Layout(torch.tensor([0, 2, 5], dtype=torch.int32), 5, 3)
    layout.kernel = True
    query = torch.ones(1, 2, 5, 8, dtype=torch.bfloat16)
    key = torch.ones(1, kv_heads, 5, 8, dtype=torch.bfloat16)
    attention.causal_attention(nn.Module(), query, key, key, None, packed_layout=layout)
    causal = {"is_causal": True} if old else {"window_size": (-1, 0)}
    grouped = {"enable_gqa": True} if kv_heads == 1 and not old else {}
    assert calls == [(2 if old else kv_heads, {**causal, **grouped})]
