"""Span decoding from logits to the best spans per window, on the logits' device.

Shapes: a packed row has T tokens of n windows; K is n_best_size. K spans of each window leave the
device, and not its logits. To sort, the windows are padded to the longest; the price is small, as a
token has two numbers here and hundreds in the model.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from detalbert.squad.windows import window_grid


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
    start_logits: Tensor,
    end_logits: Tensor,
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
        n_best_size: K.
        max_answer_length: tokens.
    """
    start_logits = start_logits.detach().float()  # [T]
    end_logits = end_logits.detach().float()
    cu_seqlens = row["cu_seqlens"].long()  # [n + 1]
    cls_token = cu_seqlens[:-1] + row["null_positions"]  # [n]
    null_scores = start_logits[cls_token] + end_logits[cls_token]

    # The best starts and ends of each window, [n, K] each.
    # One outside the context takes a place among the K, as in the reference.
    longest = row.get("max_length") or max(cu_seqlens.diff().tolist(), default=0)
    width = max(longest, n_best_size)
    start_grid = window_grid(start_logits, cu_seqlens=cu_seqlens, max_length=width)  # [n, width]
    end_grid = window_grid(end_logits, cu_seqlens=cu_seqlens, max_length=width)
    start_values, starts = _top(start_grid, n_best_size)
    end_values, ends = _top(end_grid, n_best_size)

    # All pairs of them, [n, K starts, K ends]; those that are no spans get -inf.
    first = starts.unsqueeze(2)
    last = ends.unsqueeze(1)
    is_inside = (first >= row["context_start"].view(-1, 1, 1)) & (
        last < row["context_end"].view(-1, 1, 1)
    )
    is_span = is_inside & (first <= last) & (last < first + max_answer_length)
    scores = start_values.unsqueeze(2) + end_values.unsqueeze(1)
    scores = scores.masked_fill(~is_span, -torch.inf)

    # The best pairs, [n, K]: of pair number i, the start has rank i // K and the end i % K.
    best_scores, pairs = _top(scores.flatten(start_dim=1), n_best_size)
    start_rank = pairs // n_best_size
    end_rank = pairs % n_best_size
    is_empty = best_scores == -torch.inf  # the window has fewer spans
    starts = starts.gather(1, start_rank)
    ends = ends.gather(1, end_rank)
    start_values = start_values.gather(1, start_rank)
    end_values = end_values.gather(1, end_rank)
    candidates = {
        "windows": row["windows"],
        "starts": starts.masked_fill(is_empty, 0).int(),
        "ends": ends.masked_fill(is_empty, 0).int(),
        "start_logits": start_values.masked_fill(is_empty, -torch.inf),
        "end_logits": end_values.masked_fill(is_empty, -torch.inf),
        "null_scores": null_scores,
    }
    # Nothing above waits for the device; copying does.
    return Candidates(**{name: tensor.cpu().numpy() for name, tensor in candidates.items()})


def _top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values per row and their columns, largest first; ties go to the earlier
    column. torch.topk guarantees no order of ties.
    """
    values, columns = values.sort(dim=1, descending=True, stable=True)  # [n, width]
    return values[:, :k], columns[:, :k]
