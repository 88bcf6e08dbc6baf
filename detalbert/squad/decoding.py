"""Span decoding from logits to the best spans per window, on the logits' device.

Shapes: a packed row has T tokens of n windows; K is n_best_size. K spans of each window leave the
device, and not its logits. To sort, the windows are padded to the longest; the price is small, as a
token has two numbers here and hundreds in the model.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

_Row = Mapping[str, Any]  # tensors of a packed row by name, and `max_length`, a number


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
    row: _Row,
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
    window_begin = row["cu_seqlens"][:-1].long()  # [n]
    cls_token = window_begin + row["null_positions"]
    tensors = {
        "windows": row["windows"],
        "null_scores": start_logits[cls_token] + end_logits[cls_token],  # [n]
        **_spans(start_logits, end_logits, row=row, k=n_best_size, longest=max_answer_length),
    }
    # Nothing above waits for the device; copying does.
    return Candidates(**{name: tensor.cpu().numpy() for name, tensor in tensors.items()})


def _top(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest values per row and their columns, largest first; ties go to the earlier
    column. torch.topk guarantees no order of ties.
    """
    values, columns = values.sort(dim=1, descending=True, stable=True)  # [n, width]
    return values[:, :k], columns[:, :k]


def _grid(row: _Row, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row's tokens as a grid with a line for each window, [n, width], and which of its
    places are padding; k columns at least, for _top.
    """
    cu_seqlens = row["cu_seqlens"].long()
    lengths = cu_seqlens.diff()  # [n]
    if "max_length" in row:
        longest = row["max_length"]
    else:
        longest = max(lengths.tolist(), default=0)
    column = torch.arange(max(longest, k), device=cu_seqlens.device)  # [width]
    pad = column >= lengths[:, None]  # [n, width]
    begin = cu_seqlens[:-1, None]
    token = (begin + column).masked_fill(pad, 0)
    return token, pad


def _spans(
    start_logits: torch.Tensor, end_logits: torch.Tensor, row: _Row, k: int, longest: int
) -> dict[str, torch.Tensor]:
    """Return the best of all K * K pairs that have at most `longest` tokens, as in `Candidates`, on
    the device and without blocking.
    """
    # The best starts and ends of each window.
    # A start or end outside the context takes a place among the K, as in the reference.
    token, pad = _grid(row, k)  # [n, width]
    start_values, starts = _top(start_logits[token].masked_fill(pad, -np.inf), k)  # [n, K]
    end_values, ends = _top(end_logits[token].masked_fill(pad, -np.inf), k)

    # All pairs of them, [n, K starts, K ends]; those that are no spans get -inf.
    steps = ends[:, None, :] - starts[:, :, None]  # tokens less one
    before_context = starts < row["context_start"][:, None]  # [n, K]
    after_context = ends >= row["context_end"][:, None]
    wrong = (steps < 0) | (steps >= longest)
    wrong |= before_context[:, :, None]
    wrong |= after_context[:, None, :]
    scores = start_values[:, :, None] + end_values[:, None, :]
    scores = scores.masked_fill(wrong, -np.inf)

    # The best pairs: of pair number i, the start has rank i // K and the end i % K.
    best_scores, pairs = _top(scores.view(len(scores), k * k), k)  # [n, K]
    start_rank = pairs // k
    end_rank = pairs % k
    is_empty = best_scores == -np.inf  # the window has fewer spans
    return {
        "starts": starts.gather(1, start_rank).masked_fill(is_empty, 0).int(),
        "ends": ends.gather(1, end_rank).masked_fill(is_empty, 0).int(),
        "start_logits": start_values.gather(1, start_rank).masked_fill(is_empty, -np.inf),
        "end_logits": end_values.gather(1, end_rank).masked_fill(is_empty, -np.inf),
    }
