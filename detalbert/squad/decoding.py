"""Span decoding from logits to the best spans per window, on the logits' device.

Shapes: a packed row has T tokens of n windows; K is n_best_size.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch


class Candidates(NamedTuple):
    """The K best spans of n windows, best first, on the CPU.

    The two logits are separate, because the reference computes null - start - end in that order.
    """

    windows: np.ndarray  # int64 [n]
    starts: np.ndarray  # int32 [n, K], position of the span's first token in the window
    ends: np.ndarray  # int32 [n, K], of its last token
    start_logits: np.ndarray  # float32 [n, K]; -inf where there are fewer than K spans
    end_logits: np.ndarray  # float32 [n, K]
    null_scores: np.ndarray  # float32 [n], start + end logit of [CLS]

    @property
    def scores(self) -> np.ndarray:
        """Start + end logit, float32 [n, K]; -inf in the places after fewer than K spans."""
        return self.start_logits + self.end_logits


def best_spans(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    row: Mapping[str, Any],
    n_best_size: int,
    max_answer_length: int,
) -> Candidates:
    """Return the n_best_size best answer spans of every window of a packed row.

    As in the reference decoding (`run_squad.py` of BERT): the K best starts and ends over ALL
    tokens of the window make K * K pairs. A pair is a span if it is inside the context, the end is
    not before the start, and it has at most max_answer_length tokens. Spans are in order of start +
    end logit in fp32, equal ones in order of start rank, then end rank.

    Args:
        start_logits, end_logits: [T], any float type.
        row: cu_seqlens [n + 1], context_start, context_end, null_positions, windows [n] as
            `Windows.pack` returns them, on the same device; n may be 0; without max_length it
            blocks on the device.
    """
    start_logits = start_logits.detach().float()  # [T]
    end_logits = end_logits.detach().float()
    spans = _spans(start_logits, end_logits, row, n_best_size, max_answer_length)

    window_begin = row["cu_seqlens"][:-1].long()  # [n]
    cls_token = window_begin + row["null_positions"]
    null_scores = start_logits[cls_token] + end_logits[cls_token]  # [n]

    # Nothing above waits for the device; copying does.
    columns = (row["windows"], *spans, null_scores)
    return Candidates(*(column.cpu().numpy() for column in columns))


def _top(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest values per row and their columns; ties go to the earlier column.
    torch.topk guarantees no order of ties.
    """
    values, order = values.sort(dim=1, descending=True, stable=True)  # [n, width]
    return values[:, :k], order[:, :k]  # [n, k]


def _grid(row: Mapping[str, Any], k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row's tokens as a grid with a line for each window, [n, width], and which of its
    places are padding; k columns at least, for _top.
    """
    cu_seqlens = row["cu_seqlens"].long()
    lengths = cu_seqlens.diff()  # [n]
    if "max_length" in row:
        longest = row["max_length"]
    else:
        longest = max(lengths.tolist(), default=0)
    column = torch.arange(max(longest, k), device=cu_seqlens.device)
    pad = column >= lengths[:, None]
    begin = cu_seqlens[:-1, None]
    token = (begin + column).masked_fill(pad, 0)
    return token, pad


def _spans(
    start_logits: torch.Tensor, end_logits: torch.Tensor, row: Mapping[str, Any], k: int, reach: int
) -> tuple[torch.Tensor, ...]:
    """Return starts, ends and their logits, [n, K] each, from all K * K pairs, without blocking."""
    # The best starts and ends of each window.
    token, pad = _grid(row, k)  # [n, width]
    start_grid = start_logits[token].masked_fill(pad, -np.inf)
    end_grid = end_logits[token].masked_fill(pad, -np.inf)
    start, start_at = _top(start_grid, k)  # [n, K]
    end, end_at = _top(end_grid, k)

    # All pairs of them, [n, K starts, K ends]; those that are no spans get -inf.
    steps = end_at[:, None, :] - start_at[:, :, None]  # tokens less one
    before_context = start_at < row["context_start"][:, None]  # [n, K]
    after_context = end_at >= row["context_end"][:, None]
    wrong = (steps < 0) | (steps >= reach)
    wrong |= before_context[:, :, None]
    wrong |= after_context[:, None, :]
    scores = start[:, :, None] + end[:, None, :]
    scores = scores.masked_fill(wrong, -np.inf)

    # The best pairs.
    pairs = scores.view(len(scores), k * k)
    score, pair = _top(pairs, k)  # [n, K]
    start_rank = pair // k
    end_rank = pair % k
    empty = score == -np.inf  # the window has fewer spans
    return (
        start_at.gather(1, start_rank).masked_fill(empty, 0).int(),
        end_at.gather(1, end_rank).masked_fill(empty, 0).int(),
        start.gather(1, start_rank).masked_fill(empty, -np.inf),
        end.gather(1, end_rank).masked_fill(empty, -np.inf),
    )
