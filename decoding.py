"""Span decoding: logits -> the best spans of a window, on the device -> one answer per question."""

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import torch

from encoding import ranges
from squad_utils import Example, Windows

_INF = float("inf")
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


def _top(values: torch.Tensor, k: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """The k greatest of each row, the earlier one first among equals (topk promises no order)."""
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :k], order[:, :k]


def _spans_on_device(
    start_logits: torch.Tensor, end_logits: torch.Tensor, row: Mapping[str, Any], k: int, reach: int
) -> Tuple[torch.Tensor, ...]:
    """Starts, ends, their logits, [n, K] each, by sorting: many operations, but no waiting."""
    cu_seqlens = row["cu_seqlens"].long()
    lengths = cu_seqlens.diff()
    n = len(lengths)
    longest = row["max_length"] if "max_length" in row else max(lengths.tolist(), default=0)
    width = max(longest, k)
    column = torch.arange(width, device=start_logits.device)
    pad = column >= lengths[:, None]  # [n, width]
    token = (cu_seqlens[:-1, None] + column).masked_fill(pad, 0)

    start, start_at = _top(start_logits[token].masked_fill(pad, -_INF), k)  # [n, K]
    end, end_at = _top(end_logits[token].masked_fill(pad, -_INF), k)
    low, high = row["context_start"][:, None], row["context_end"][:, None]
    span = end_at[:, None, :] - start_at[:, :, None]  # [n, K starts, K ends], tokens less one
    wrong = (span < 0) | (span >= reach)
    wrong |= (start_at < low)[:, :, None] | (end_at >= high)[:, None, :]
    pairs = (start[:, :, None] + end[:, None, :]).masked_fill(wrong, -_INF)
    score, best = _top(pairs.view(n, k * k), k)  # pair i * K + j is start rank i, end rank j
    none = score == -_INF
    by_start, by_end = best // k, best % k
    return (
        start_at.gather(1, by_start).masked_fill(none, 0).int(),
        end_at.gather(1, by_end).masked_fill(none, 0).int(),
        start.gather(1, by_start).masked_fill(none, -_INF),
        end.gather(1, by_end).masked_fill(none, -_INF),
    )


def _spans_on_host(
    start_logits: torch.Tensor, end_logits: torch.Tensor, row: Mapping[str, Any], k: int, reach: int
) -> Tuple[np.ndarray, ...]:
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
    positions, scores = np.zeros((2, n * k), np.int32), np.full((2, n * k), -_INF, np.float32)
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
            padded = np.full((len(begin), width), -_INF, np.float32)
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
    return found[logits[found] > -_INF]


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
    window: np.ndarray, start: np.ndarray, end: np.ndarray, tokens: Tuple[np.ndarray, np.ndarray]
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


class Answers(NamedTuple):
    """What the windows of every question say together, by question id."""

    predictions: Dict[str, str]  # "" is "no answer"
    null_odds: Dict[str, float]  # null score less best span's score: how unanswerable


def _best_with_text(windows: Windows, candidates: Candidates) -> Tuple[np.ndarray, ...]:
    """Of every window: its number, the characters (begin, end) and the logits (start, end) of its
    best span that has any, the logits -inf where none has, and the null score; [n] each."""
    number, starts, ends, start_logits, end_logits, null = candidates
    shift = windows.context_begin[number] - windows.context_starts(number)
    begin, end = np.zeros((2, len(number)), np.int32)
    start_logit, end_logit = np.full((2, len(number)), -_INF, np.float32)
    left = np.arange(len(number))  # windows whose best spans so far are without text
    for rank in range(starts.shape[1]):
        left = left[start_logits[left, rank] > -_INF]
        if not len(left):
            break
        begin[left] = windows.context_offsets[shift[left] + starts[left, rank], 0]
        end[left] = windows.context_offsets[shift[left] + ends[left, rank], 1]
        text = end[left] > begin[left]
        there, left = left[text], left[~text]
        start_logit[there] = start_logits[there, rank]
        end_logit[there] = end_logits[there, rank]
    return number, begin, end, start_logit, end_logit, null


class _Pool(NamedTuple):
    """The candidates of all windows, in window order and so by question."""

    question: np.ndarray  # int32 [n], example number
    begin: np.ndarray  # int32 [n, K], first character of the span in the context
    end: np.ndarray  # int32 [n, K], the character after it
    scores: np.ndarray  # float32 [n, K]; -inf where there is no span or its text is empty
    null_scores: np.ndarray  # float32 [n]


def _pool(windows: Windows, candidates: Sequence[Candidates]) -> _Pool:
    """Sorts by window and drops repeats, so that arrival order and batching cannot matter."""
    columns = [np.concatenate(column) for column in zip(*candidates, strict=True)]
    number, keep = np.unique(columns[0], return_index=True)
    every = Candidates(*(column[keep] for column in columns))
    shift = windows.context_begin[number] - windows.context_starts(number)
    found = every.scores > -_INF
    begin, end = np.zeros((2, *found.shape), np.int32)
    begin[found] = windows.context_offsets[(every.starts + shift[:, None])[found], 0]
    end[found] = windows.context_offsets[(every.ends + shift[:, None])[found], 1]
    scores = np.where(end > begin, every.scores, np.float32(-_INF))
    return _Pool(windows.example_index[number], begin, end, scores, every.null_scores)


def merge_answers(
    examples: Sequence[Example],
    windows: Windows,
    candidates: Sequence[Candidates],
    null_score_diff_threshold: float = 0.0,
) -> Answers:
    """One answer per question from the candidates of its windows, in any order and batching.

    As in the reference decoding of SQuAD 2.0 (`run_squad.py` of BERT, `utils_qa.py` of
    transformers): the null score is the lowest over the question's windows, null_odds is
    null - start logit - end logit of the best span with text, in fp32, and the answer is ""
    where null_odds is above the threshold. A question without any such span gets the
    reference's placeholder: the text "empty" with both logits 0, so null_odds is the null score.
    Questions of which no window is among the candidates are left out.
    """
    if not sum(len(batch.windows) for batch in candidates):
        return Answers({}, {})
    parts = zip(*(_best_with_text(windows, batch) for batch in candidates), strict=True)
    number, *columns = (np.concatenate(part) for part in parts)
    number, keep = np.unique(number, return_index=True)  # by window, without repeats
    begin, end, start_logit, end_logit, null = (column[keep] for column in columns)
    score, question = start_logit + end_logit, windows.example_index[number]
    order = np.lexsort((-score, question))  # stable: the earlier window of equals
    question, first = np.unique(question[order], return_index=True)
    best = order[first]  # [questions], the window that has the question's best span
    null = np.minimum.reduceat(null, first)
    none = np.isneginf(score[best])
    odds = null - np.where(none, 0, start_logit[best]) - np.where(none, 0, end_logit[best])
    answers = Answers({}, {})
    rows = (column.tolist() for column in (question, begin[best], end[best], odds))
    for e, b, t, x in zip(*rows, strict=True):
        example = examples[e]
        text = example.context[b:t] or "empty"
        answers.predictions[example.id] = "" if x > null_score_diff_threshold else text
        answers.null_odds[example.id] = x
    return answers


def n_best_list(
    examples: Sequence[Example],
    windows: Windows,
    candidates: Sequence[Candidates],
    n_best_size: int = 20,
) -> Dict[str, List[Dict[str, Any]]]:
    """The n_best_size best of every question, best first, "no answer" always among them.

    Each is text, start and end (characters of the context, end exclusive), score (sum of two
    logits) and probability (softmax over the list). Slower than `merge_answers`: ask once.
    """
    if not sum(len(batch.windows) for batch in candidates):
        return {}
    pool = _pool(windows, candidates)
    question, first = np.unique(pool.question, return_index=True)
    result = {}
    for e, rows in zip(question, np.split(np.arange(len(pool.question)), first[1:]), strict=True):
        null = pool.null_scores[rows].min()
        scores = np.append(pool.scores[rows].ravel(), null)
        begin, end = (np.append(c[rows].ravel(), 0) for c in (pool.begin, pool.end))
        order = np.argsort(-scores, kind="stable")[:n_best_size]
        order = order[scores[order] > -_INF]
        if len(scores) - 1 not in order:
            order = np.append(order, len(scores) - 1)
        weight = np.exp(scores[order] - scores[order].max())
        columns = (begin[order], end[order], scores[order], weight / weight.sum())
        result[examples[e].id] = [
            {"text": examples[e].context[b:t], "start": b, "end": t, "score": s, "probability": p}
            for b, t, s, p in zip(*(column.tolist() for column in columns), strict=True)
        ]
    return result
