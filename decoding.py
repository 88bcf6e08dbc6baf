"""Span decoding: logits -> the best spans of a window, on the device -> one answer per question."""

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import torch

from squad_utils import Example, Windows

_INF = float("inf")


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


def _top(values: torch.Tensor, k: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """The k greatest of each row, the earlier one first among equals (topk promises no order)."""
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :k], order[:, :k]


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
    start_logits, end_logits = start_logits.float(), end_logits.float()
    cu_seqlens, k = row["cu_seqlens"].long(), n_best_size
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
    wrong = (span < 0) | (span >= max_answer_length)
    wrong |= (start_at < low)[:, :, None] | (end_at >= high)[:, None, :]
    pairs = (start[:, :, None] + end[:, None, :]).masked_fill(wrong, -_INF)
    score, best = _top(pairs.view(n, k * k), k)  # pair i * K + j is start rank i, end rank j
    none = score == -_INF
    by_start, by_end = best // k, best % k
    columns = (
        row["windows"],
        start_at.gather(1, by_start).masked_fill(none, 0).int(),
        end_at.gather(1, by_end).masked_fill(none, 0).int(),
        start.gather(1, by_start).masked_fill(none, -_INF),
        end.gather(1, by_end).masked_fill(none, -_INF),
        (start_logits + end_logits)[cu_seqlens[:-1]],
    )
    return Candidates(*(column.cpu().numpy() for column in columns))


class Answers(NamedTuple):
    """What the windows of every question say together, by question id."""

    predictions: Dict[str, str]  # "" is "no answer"
    null_odds: Dict[str, float]  # null score less best span's score: how unanswerable


class _Pool(NamedTuple):
    """The candidates of all windows, in window order and so by question."""

    question: np.ndarray  # int32 [n], example number
    begin: np.ndarray  # int32 [n, K], first character of the span in the context
    end: np.ndarray  # int32 [n, K], the character after it
    scores: np.ndarray  # float32 [n, K]; -inf where there is no span or its text is empty
    candidates: Candidates


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
    return _Pool(windows.example_index[number], begin, end, scores, every)


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
    pool = _pool(windows, candidates)
    rank = pool.scores.argmax(axis=1)[:, None]  # [n, 1], a window's best span with text
    begin, end, score, start_logit, end_logit = (
        np.take_along_axis(column, rank, axis=1)[:, 0]
        for column in (pool.begin, pool.end, pool.scores, *pool.candidates[3:5])
    )
    order = np.lexsort((-score, pool.question))  # stable: the earlier window of equals
    question, first = np.unique(pool.question[order], return_index=True)
    best = order[first]  # [questions], the window that has the question's best span
    null = np.minimum.reduceat(pool.candidates.null_scores, first)
    none = np.isneginf(score[best])
    odds = null - np.where(none, 0, start_logit[best]) - np.where(none, 0, end_logit[best])
    answers = Answers({}, {})
    for e, b, t, x in zip(question, begin[best], end[best], odds.tolist(), strict=True):
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
        null = pool.candidates.null_scores[rows].min()
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
