"""Span decoding: logits -> the best spans of a window, on the device -> one answer per question."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from detalbert.squad.encoding import ranges

_WINDOWS = 256  # that the host looks at together; bounds the memory that this takes


class Candidates(NamedTuple):
    """The best spans of n windows, on the host. K = n_best_size; best first.

    The two logits are kept apart, for the reference takes null - start - end in that order.
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
    """The n_best_size best answer spans of every window of a packed row, found on its device.

    As in the reference decoding: the n_best_size best starts and ends over ALL tokens of the
    window (question and special tokens take places), paired; of the pairs that lie in the
    context, in order, at most max_answer_length tokens long, the best by start + end logit in
    fp32, ties by start rank, then end rank.

    Args: start_logits, end_logits: [T], any float type; row: cu_seqlens [n + 1], context_start,
        context_end, windows [n] as `Windows.pack` gives them, on the same device; n may be 0;
        and max_length, tokens of the longest window, without which the device is waited for.
    """
    logits = start_logits.detach().float(), end_logits.detach().float()
    on_host = start_logits.device.type == "cpu"
    find = _spans_on_host if on_host else _spans_on_device
    columns = find(*logits, row, n_best_size, max_answer_length)
    start, end = (side[row["cu_seqlens"][:-1].long()] for side in logits)
    columns = (row["windows"], *columns, start + end)
    return Candidates(*(c.cpu().numpy() if isinstance(c, torch.Tensor) else c for c in columns))


def _top(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k greatest of each row, the earlier one first among equals (topk promises no order)."""
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :k], order[:, :k]


def _spans_on_device(
    start_logits: torch.Tensor, end_logits: torch.Tensor, row: Mapping[str, Any], k: int, reach: int
) -> tuple[torch.Tensor, ...]:
    """Starts, ends, their logits, [n, K] each, by sorting: many operations, but no waiting."""
    cu_seqlens = row["cu_seqlens"].long()
    lengths = cu_seqlens.diff()
    n = len(lengths)
    longest = row["max_length"] if "max_length" in row else max(lengths.tolist(), default=0)
    width = max(longest, k)
    column = torch.arange(width, device=start_logits.device)
    pad = column >= lengths[:, None]  # [n, width]
    token = (cu_seqlens[:-1, None] + column).masked_fill(pad, 0)

    start, start_at = _top(start_logits[token].masked_fill(pad, -np.inf), k)  # [n, K]
    end, end_at = _top(end_logits[token].masked_fill(pad, -np.inf), k)
    low, high = row["context_start"][:, None], row["context_end"][:, None]
    span = end_at[:, None, :] - start_at[:, :, None]  # [n, K starts, K ends], tokens less one
    wrong = (span < 0) | (span >= reach)
    wrong |= (start_at < low)[:, :, None] | (end_at >= high)[:, None, :]
    pairs = (start[:, :, None] + end[:, None, :]).masked_fill(wrong, -np.inf)
    score, best = _top(pairs.view(n, k * k), k)  # pair i * K + j is start rank i, end rank j
    none = score == -np.inf
    by_start, by_end = best // k, best % k
    return (
        start_at.gather(1, by_start).masked_fill(none, 0).int(),
        end_at.gather(1, by_end).masked_fill(none, 0).int(),
        start.gather(1, by_start).masked_fill(none, -np.inf),
        end.gather(1, by_end).masked_fill(none, -np.inf),
    )


def _spans_on_host(
    start_logits: torch.Tensor, end_logits: torch.Tensor, row: Mapping[str, Any], k: int, reach: int
) -> tuple[np.ndarray, ...]:
    """What `_spans_on_device` gives, made of the pairs that are spans instead of all K * K."""
    names = ("cu_seqlens", "context_start", "context_end")
    cu_seqlens, low, high = (row[name].numpy().astype(np.int64) for name in names)
    n = len(low)
    logits = start_logits.numpy(), end_logits.numpy()
    # Token numbers in the whole row, ascending: the ends that go with a start are neighbours.
    starts, ends = (_top_in_context(side, cu_seqlens, low, high, k) for side in logits)
    window = np.searchsorted(cu_seqlens, starts, side="right") - 1
    first = np.searchsorted(ends, starts)
    last = np.searchsorted(ends, np.minimum(starts + reach, cu_seqlens[window] + high[window]))
    i, j = np.repeat(starts, last - first), ends[ranges(first, last - first)]
    window = np.repeat(window, last - first)  # [pairs]
    order = _best_first(window, logits[0][i], logits[1][j], (i, j))
    window = window[order]
    rank = np.arange(len(window)) - np.searchsorted(window, np.arange(n))[window]
    order, window, rank = (x[rank < k] for x in (order, window, rank))
    place, begin = window * k + rank, cu_seqlens[window]
    positions, scores = np.zeros((2, n * k), np.int32), np.full((2, n * k), -np.inf, np.float32)
    for side, token in enumerate((i[order], j[order])):
        positions[side][place] = token - begin
        scores[side][place] = logits[side][token]
    return (*positions.reshape(2, n, k), *scores.reshape(2, n, k))


def _top_in_context(
    logits: np.ndarray, cu_seqlens: np.ndarray, low: np.ndarray, high: np.ndarray, k: int
) -> np.ndarray:
    """Of every window's K greatest logits (the earlier of equals) those in its context: their
    token numbers in the row, ascending, int64. A logit of -inf is not among them."""
    lengths = np.diff(cu_seqlens)
    width = max(int(lengths.max(initial=0)), k)
    column, found = np.arange(width), [np.zeros(0, np.int64)]
    for at in range(0, len(low), _WINDOWS):
        chunk = slice(at, at + _WINDOWS)
        begin, count = cu_seqlens[:-1][chunk], lengths[chunk]
        grid = logits[begin[0] : begin[-1] + count[-1]]  # copied only to pad it
        if len(grid) < len(begin) * width:
            padded = np.full((len(begin), width), -np.inf, np.float32)
            padded[column < count[:, None]] = grid
            grid = padded
        top = _greatest(grid.reshape(-1, width), k)
        place = np.flatnonzero(top)
        window = place // width
        token = place + (begin - np.arange(len(begin)) * width)[window]
        inside = token >= (begin + low[chunk])[window]
        inside &= token < (begin + high[chunk])[window]
        found.append(token[inside])
    found = np.concatenate(found)
    return found[logits[found] > -np.inf]


def _greatest(grid: np.ndarray, k: int) -> np.ndarray:
    """Where the K greatest of each row are (the earlier of equals), bool as `grid` [n, width]."""
    width = grid.shape[1]
    least = np.partition(grid, width - k, axis=1)[:, width - k, None]  # the K-th greatest
    top = grid >= least
    if np.count_nonzero(top) > k * len(top):
        tied = top.sum(axis=1) > k
        equal = grid[tied] == least[tied]
        places = k - (grid[tied] > least[tied]).sum(axis=1)[:, None]
        top[tied] &= ~equal | (equal.cumsum(axis=1) <= places)
    return top


def _best_first(
    window: np.ndarray, start: np.ndarray, end: np.ndarray, tokens: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """The order of pairs by window, then score in fp32, falling, then start rank, then end rank.

    Args: window: ascending; start, end: logits of each pair; tokens: which they are of.
    """
    score = -(start + end) + np.float32(0)  # no -0.0, which has other bits than 0.0
    bits = score.view(np.int32).astype(np.int64)
    key = (window << 32) + np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # grows as the score falls
    order = np.argsort(key)
    if (np.diff(key[order]) > 0).all():
        return order
    return np.lexsort((tokens[1], -end, tokens[0], -start, key))  # equal scores: ranks decide
