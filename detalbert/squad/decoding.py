"""Span decoding: logits -> the best spans of every window, on the device that has the logits.

Shapes: a packed row has T tokens of n windows; K is n_best_size.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from detalbert.squad.encoding import ranges

_WINDOWS = 256  # windows that the host decodes at a time; bounds its memory


class Candidates(NamedTuple):
    """The K best spans of n windows, best first, on the host.

    The two logits stay apart, since the reference computes null - start - end in that order.
    """

    windows: np.ndarray  # int64 [n]
    starts: np.ndarray  # int32 [n, K], position of the span's first token in the window
    ends: np.ndarray  # int32 [n, K], of its last token
    start_logits: np.ndarray  # float32 [n, K]; -inf where there are fewer than K spans
    end_logits: np.ndarray  # float32 [n, K]
    null_scores: np.ndarray  # float32 [n], start + end logit of [CLS]

    @property
    def scores(self) -> np.ndarray:
        """Start + end logit, float32 [n, K]; -inf where there are fewer than K spans."""
        return self.start_logits + self.end_logits


def best_spans(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    row: Mapping[str, Any],
    n_best_size: int,
    max_answer_length: int,
) -> Candidates:
    """The n_best_size best answer spans of every window of a packed row.

    As in the reference decoding (`run_squad.py` of BERT): the K best starts and the K best ends
    over ALL tokens of the window (question and special tokens count among them) make K * K pairs.
    A pair is a span if it is inside the context, the end is not before the start, and it has at
    most max_answer_length tokens. Spans are in order of start + end logit in fp32, equal ones in
    order of start rank, then end rank.

    Args: start_logits, end_logits: [T], any float type; row: cu_seqlens [n + 1], context_start,
        context_end, windows [n] as `Windows.pack` gives them, on the same device; n may be 0;
        max_length, tokens of the longest window: without it the host waits for the device.
    """
    logits = start_logits.detach().float(), end_logits.detach().float()  # [T]
    on_host = start_logits.device.type == "cpu"
    decode = _spans_on_host if on_host else _spans_on_device
    spans = decode(*logits, row, n_best_size, max_answer_length)  # [n, K] each
    start, end = (side[row["cu_seqlens"][:-1].long()] for side in logits)  # [n], of [CLS]
    columns = (row["windows"], *spans, start + end)
    return Candidates(*(c.cpu().numpy() if isinstance(c, torch.Tensor) else c for c in columns))


def _top(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k greatest of each row and their columns, the earlier of equals first (torch.topk
    promises no order)."""
    values, order = values.sort(dim=1, descending=True, stable=True)  # [n, width]
    return values[:, :k], order[:, :k]  # [n, k]


def _spans_on_device(
    start_logits: torch.Tensor, end_logits: torch.Tensor, row: Mapping[str, Any], k: int, reach: int
) -> tuple[torch.Tensor, ...]:
    """Starts, ends and their logits, [n, K] each, from all K * K pairs, without any waiting."""
    cu_seqlens = row["cu_seqlens"].long()
    lengths = cu_seqlens.diff()  # [n]
    n = len(lengths)
    longest = row["max_length"] if "max_length" in row else max(lengths.tolist(), default=0)
    width = max(longest, k)
    column = torch.arange(width, device=start_logits.device)
    pad = column >= lengths[:, None]  # [n, width]
    token = (cu_seqlens[:-1, None] + column).masked_fill(pad, 0)  # [n, width], number in the row

    start, start_at = _top(start_logits[token].masked_fill(pad, -np.inf), k)  # [n, K]
    end, end_at = _top(end_logits[token].masked_fill(pad, -np.inf), k)
    low, high = row["context_start"][:, None], row["context_end"][:, None]  # [n, 1]
    steps = end_at[:, None, :] - start_at[:, :, None]  # [n, K starts, K ends], tokens less one
    wrong = (steps < 0) | (steps >= reach)
    wrong |= (start_at < low)[:, :, None] | (end_at >= high)[:, None, :]
    scores = (start[:, :, None] + end[:, None, :]).masked_fill(wrong, -np.inf)  # [n, K, K]
    score, pair = _top(scores.view(n, k * k), k)  # [n, K]
    start_rank, end_rank = pair // k, pair % k
    empty = score == -np.inf  # the window has fewer spans
    return (
        start_at.gather(1, start_rank).masked_fill(empty, 0).int(),
        end_at.gather(1, end_rank).masked_fill(empty, 0).int(),
        start.gather(1, start_rank).masked_fill(empty, -np.inf),
        end.gather(1, end_rank).masked_fill(empty, -np.inf),
    )


def _spans_on_host(
    start_logits: torch.Tensor, end_logits: torch.Tensor, row: Mapping[str, Any], k: int, reach: int
) -> tuple[np.ndarray, ...]:
    """What `_spans_on_device` gives, from the pairs that are spans instead of all K * K.

    A window begins at token 10 of the row; its context is tokens 13 and 14. With K = 2 its best
    starts are [13, 14] with logits [2, 1], its best ends [13, 14] with logits [1, 3]. Start 13 goes
    with ends[0:2] and start 14 with ends[1:2], so the pairs are (13, 13) (13, 14) (14, 14) with
    scores [3, 5, 4]. The best two, in positions of the window, are the starts [3, 4], ends [4, 4].
    """
    names = ("cu_seqlens", "context_start", "context_end")
    cu_seqlens, low, high = (row[name].numpy().astype(np.int64) for name in names)
    n = len(low)
    logits = start_logits.numpy(), end_logits.numpy()
    starts, ends = (_top_in_context(side, cu_seqlens, low, high, k) for side in logits)
    window = np.searchsorted(cu_seqlens, starts, side="right") - 1  # [starts]
    # Both are ascending token numbers of the row: the ends that go with a start are neighbours.
    stop = np.minimum(starts + reach, cu_seqlens[window] + high[window])
    first_end = np.searchsorted(ends, starts)
    count = np.searchsorted(ends, stop) - first_end  # [starts]
    start, end = np.repeat(starts, count), ends[ranges(first_end, count)]  # [pairs]
    window = np.repeat(window, count)  # [pairs]
    order = _best_first(window, logits[0][start], logits[1][end], start, end)  # [pairs]
    window = window[order]
    rank = np.arange(len(window)) - np.searchsorted(window, np.arange(n))[window]  # in its window
    order, window, rank = (column[rank < k] for column in (order, window, rank))  # [spans]
    place, begin = window * k + rank, cu_seqlens[window]  # [spans]
    positions, scores = np.zeros((2, n * k), np.int32), np.full((2, n * k), -np.inf, np.float32)
    for side, token in enumerate((start[order], end[order])):
        positions[side][place] = token - begin
        scores[side][place] = logits[side][token]
    return (*positions.reshape(2, n, k), *scores.reshape(2, n, k))


def _top_in_context(
    logits: np.ndarray, cu_seqlens: np.ndarray, low: np.ndarray, high: np.ndarray, k: int
) -> np.ndarray:
    """The tokens with one of the K greatest logits of their window (the earlier of equals) that are
    in its context: numbers in the row, ascending, int64. Tokens with a logit of -inf are left out.
    """
    lengths = np.diff(cu_seqlens)  # [n]
    width = max(int(lengths.max(initial=0)), k)
    column, tokens = np.arange(width), [np.zeros(0, np.int64)]
    for at in range(0, len(low), _WINDOWS):
        chunk = slice(at, at + _WINDOWS)
        begin, length = cu_seqlens[:-1][chunk], lengths[chunk]  # [chunk]
        grid = logits[begin[0] : begin[-1] + length[-1]]  # [tokens of the chunk], not a copy
        if len(grid) < len(begin) * width:
            padded = np.full((len(begin), width), -np.inf, np.float32)
            padded[column < length[:, None]] = grid
            grid = padded
        top = _greatest(grid.reshape(-1, width), k)  # bool [chunk, width]
        place = np.flatnonzero(top)  # [chunk * K], in the flat grid
        window = place // width
        token = place + (begin - np.arange(len(begin)) * width)[window]  # number in the row
        in_context = token >= (begin + low[chunk])[window]
        in_context &= token < (begin + high[chunk])[window]
        tokens.append(token[in_context])
    token = np.concatenate(tokens)
    return token[logits[token] > -np.inf]


def _greatest(grid: np.ndarray, k: int) -> np.ndarray:
    """Where the K greatest of each row are (the earlier of equals), bool as `grid` [n, width].

    With K = 2 the row [3, 1, 3, 3] gives [True, False, True, False].
    """
    width = grid.shape[1]
    kth = np.partition(grid, width - k, axis=1)[:, width - k, None]  # [n, 1], the K-th greatest
    top = grid >= kth
    if np.count_nonzero(top) > k * len(top):
        tied = top.sum(axis=1) > k  # [n], rows with too many
        equal = grid[tied] == kth[tied]  # [tied, width]
        places = k - (grid[tied] > kth[tied]).sum(axis=1)[:, None]  # [tied, 1], left for equals
        top[tied] &= ~equal | (equal.cumsum(axis=1) <= places)
    return top


def _best_first(
    window: np.ndarray,
    start_logit: np.ndarray,
    end_logit: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> np.ndarray:
    """The order [pairs] by window, then falling score in fp32, then start rank, then end rank.

    Args, [pairs] each: window: ascending; start, end: the tokens that have the logits.
    """
    fall = -(start_logit + end_logit) + np.float32(0)  # the sum turns -0.0 into 0.0: equal bits
    bits = fall.view(np.int32).astype(np.int64)
    # As integers, positive floats are in their order and negative ones in reverse: flip those.
    key = (window << 32) + np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = np.argsort(key)
    if (np.diff(key[order]) > 0).all():
        return order
    return np.lexsort((end, -end_logit, start, -start_logit, key))  # equal scores: ranks decide
