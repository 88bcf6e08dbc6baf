"""The best spans of all windows -> one answer per question, and its n best."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from detalbert.squad.decoding import Candidates
from detalbert.squad.windows import Example, Windows


class Answers(NamedTuple):
    """What the windows of every question say together, by question id."""

    predictions: dict[str, str]  # "" is "no answer"
    null_odds: dict[str, float]  # null score less best span's score: how unanswerable


def _best_with_text(windows: Windows, candidates: Candidates) -> tuple[np.ndarray, ...]:
    """Of every window: its number, the characters (begin, end) and the logits (start, end) of its
    best span that has any, the logits -inf where none has, and the null score; [n] each."""
    number, starts, ends, start_logits, end_logits, null = candidates
    shift = windows.context_begin[number] - windows.context_starts(number)
    begin, end = np.zeros((2, len(number)), np.int32)
    start_logit, end_logit = np.full((2, len(number)), -np.inf, np.float32)
    left = np.arange(len(number))  # windows whose best spans so far are without text
    for rank in range(starts.shape[1]):
        left = left[start_logits[left, rank] > -np.inf]
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
    found = every.scores > -np.inf
    begin, end = np.zeros((2, *found.shape), np.int32)
    begin[found] = windows.context_offsets[(every.starts + shift[:, None])[found], 0]
    end[found] = windows.context_offsets[(every.ends + shift[:, None])[found], 1]
    scores = np.where(end > begin, every.scores, np.float32(-np.inf))
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
) -> dict[str, list[dict[str, Any]]]:
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
        order = order[scores[order] > -np.inf]
        if len(scores) - 1 not in order:
            order = np.append(order, len(scores) - 1)
        weight = np.exp(scores[order] - scores[order].max())
        columns = (begin[order], end[order], scores[order], weight / weight.sum())
        result[examples[e].id] = [
            {"text": examples[e].context[b:t], "start": b, "end": t, "score": s, "probability": p}
            for b, t, s, p in zip(*(column.tolist() for column in columns), strict=True)
        ]
    return result
