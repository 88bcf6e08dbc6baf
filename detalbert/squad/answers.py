"""Answers and n-best lists of questions, from n windows with K spans each (`Candidates`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from detalbert.squad.decoding import Candidates
from detalbert.squad.windows import Example, Windows


class Answers(NamedTuple):
    """One answer per question, by question id."""

    predictions: dict[str, str]  # "" is "no answer"
    null_odds: dict[str, float]  # null score - best span's score: how unanswerable


class _Pool(NamedTuple):
    """The spans of all windows, sorted by window and so by question."""

    question: np.ndarray  # int32 [n], example number
    begin: np.ndarray  # int32 [n, K], first character of the span in the context
    end: np.ndarray  # int32 [n, K], the character after it
    scores: np.ndarray  # float32 [n, K]; -inf where there is no span or its text is empty
    spans: Candidates  # of these windows


def _pool(windows: Windows, candidates: Sequence[Candidates]) -> _Pool:
    """Sort by window and drop repeats, so that the result is independent of order and batching."""
    columns = [np.concatenate(column) for column in zip(*candidates, strict=True)]
    number, keep = np.unique(columns[0], return_index=True)  # [n]
    spans = Candidates(*(column[keep] for column in columns))
    shift = windows.context_begin[number] - windows.context_starts(number)  # [n]
    real = spans.scores > -np.inf  # [n, K]
    begin, end = np.zeros((2, *real.shape), np.int32)
    begin[real] = windows.context_offsets[(spans.starts + shift[:, None])[real], 0]
    end[real] = windows.context_offsets[(spans.ends + shift[:, None])[real], 1]
    scores = np.where(end > begin, spans.scores, np.float32(-np.inf))
    return _Pool(windows.example_index[number], begin, end, scores, spans)


def merge_answers(
    examples: Sequence[Example],
    windows: Windows,
    candidates: Sequence[Candidates],
    null_score_diff_threshold: float = 0.0,
) -> Answers:
    """Return one answer per question from its windows' candidates, in any order and batching.

    As in the reference decoding of SQuAD 2.0 (`run_squad.py` of BERT, `utils_qa.py` of
    transformers): the null score is the lowest over the question's windows, null_odds is null -
    start logit - end logit of the best span with text, in fp32, and the answer is "" if null_odds
    is above the threshold. A question without such a span gets the reference's placeholder: the
    text "empty" with both logits 0. A question without a window among them is left out.

    Windows with null scores 9.0 and 2.5 have the best spans "river bank" (logits 1 + 1) and "old"
    (2 + 1). "old" wins, and null_odds is 2.5 - 2 - 1 = -0.5: the answer unless the threshold is
    lower.
    """
    pool = _pool(windows, candidates)
    window = np.arange(len(pool.question))
    rank = (pool.scores > -np.inf).argmax(axis=1)  # [n], of the best span with text; 0 without
    score = pool.scores[window, rank]  # [n]
    order = np.lexsort((-score, pool.question))  # stable: the earlier window of equals
    question, first = np.unique(pool.question[order], return_index=True)  # [questions]
    best = order[first]  # [questions], the window that has the question's best span
    null = np.minimum.reduceat(pool.spans.null_scores, first)  # [questions]
    place, empty = (best, rank[best]), np.isneginf(score[best])
    sides = pool.spans.start_logits, pool.spans.end_logits
    start, end = (np.where(empty, 0, logits[place]) for logits in sides)  # [questions]
    odds = null - start - end
    answers = Answers({}, {})
    rows = (c.tolist() for c in (question, pool.begin[place], pool.end[place], odds))
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
    """Return the n_best_size best answers per question, best first, always including "no answer".

    An answer has text, start and end (characters of the context, end exclusive), score (sum of two
    logits) and probability (softmax over the list). A question without a span that has text gets
    the placeholder of `merge_answers`, "empty" with score 0.
    """
    pool = _pool(windows, candidates)
    question, first = np.unique(pool.question, return_index=True)  # [questions]
    null = np.minimum.reduceat(pool.spans.null_scores, first)  # [questions]
    rows = np.split(np.arange(len(pool.question)), first)[1:]  # of each question
    result = {}
    for e, none, mine in zip(question.tolist(), null, rows, strict=True):
        # "No answer" stands behind all spans, as one more, characters 0 to 0.
        begin, end = (np.append(column[mine], 0) for column in (pool.begin, pool.end))
        scores = np.append(pool.scores[mine], none)  # [spans + 1]
        order = np.argsort(-scores, kind="stable")  # the earlier of equals first
        best = (np.arange(len(order)) < n_best_size) & (scores[order] > -np.inf)
        order = order[best | (order == len(order) - 1)]  # [listed]
        weights = np.exp(scores[order] - scores[order[0]])  # [listed]
        columns = begin[order], end[order], scores[order], weights / weights.sum()
        context = examples[e].context
        entries = [
            {"text": context[b:t], "start": b, "end": t, "score": s, "probability": p}
            for b, t, s, p in zip(*(column.tolist() for column in columns), strict=True)
        ]
        if len(entries) == 1:
            share = float(np.exp(-np.logaddexp(0, entries[0]["score"])))
            entries[0]["probability"] = 1 - share
            empty = {"text": "empty", "start": 0, "end": 0, "score": 0.0, "probability": share}
            entries.insert(entries[0]["score"] > 0, empty)
        result[examples[e].id] = entries
    return result
