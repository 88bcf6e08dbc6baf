"""Answers and n-best lists of questions, from n windows with K spans each (`Candidates`).

A question's windows may come in any order and in any batches. They are sorted by window first, so
the result is bitwise the same however they came; all else is arithmetic over all questions at once.
The price is that the candidates of all windows are in memory.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from detalbert.squad.decoding import Candidates
from detalbert.squad.windows import Example, Windows

_PLACEHOLDER = "empty"  # the reference's text of a question without a span that has text


class Answers(NamedTuple):
    """One answer per question, by question id."""

    predictions: dict[str, str]  # "" is "no answer"
    null_odds: dict[str, float]  # null score - best span's score: how unanswerable
    spans: dict[str, str]  # the best span's text, also where "no answer" is the answer
    probabilities: dict[str, float]  # calibrated, of each prediction; empty: not known


class NBestEntry(TypedDict):
    """One answer of a question's n-best list."""

    text: str  # "" is "no answer"
    start: int  # first character of the context
    end: int  # the character after it
    score: float  # sum of two logits
    probability: float  # softmax over the list


class _Pool(NamedTuple):
    """The spans of all windows, sorted by window and so by question."""

    question: np.ndarray  # int32 [n], example number
    begin: np.ndarray  # int32 [n, K], first character of the span in the context
    end: np.ndarray  # int32 [n, K], the character after it
    scores: np.ndarray  # float32 [n, K]; -inf where there is no span or its text is empty
    spans: Candidates  # of these windows


def _pool(windows: Windows, candidates: Sequence[Candidates]) -> _Pool:
    """Sort by window and drop repeats, so that the result is independent of order and batching."""
    # One row for each window, however often it came.
    columns = [np.concatenate(column) for column in zip(*candidates, strict=True)]
    numbers = columns[0]
    number, rows = np.unique(numbers, return_index=True)  # [n]
    spans = Candidates(*(column[rows] for column in columns))

    # A position in the window plus the shift is a token of context_ids, which has its characters.
    shift = windows.context_begin[number] - windows.context_starts(number)  # [n]
    first_token = spans.starts + shift[:, None]  # [n, K]
    last_token = spans.ends + shift[:, None]

    is_span = spans.scores > -np.inf
    begin = np.zeros(is_span.shape, dtype=np.int32)
    end = np.zeros(is_span.shape, dtype=np.int32)
    begin[is_span] = windows.context_offsets[first_token[is_span], 0]
    end[is_span] = windows.context_offsets[last_token[is_span], 1]

    has_text = end > begin
    return _Pool(
        question=windows.example_index[number],
        begin=begin,
        end=end,
        scores=np.where(has_text, spans.scores, np.float32(-np.inf)),
        spans=spans,
    )


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

    # Each window's best span with text is the first that has a score; 0 if none has one.
    rank = (pool.scores > -np.inf).argmax(axis=1)  # [n]
    every = np.arange(len(rank))
    score = pool.scores[every, rank]  # [n]

    # Each question's window with the best of these, the earlier of equal ones (lexsort is stable).
    order = np.lexsort((-score, pool.question))
    question, first = np.unique(pool.question[order], return_index=True)  # [questions]
    window = order[first]
    best = (window, rank[window])  # the best span's place in [n, K]

    # Null score less the best span's logits, in this order, as the reference rounds.
    null = np.minimum.reduceat(pool.spans.null_scores, first)  # [questions]
    is_missing = np.isneginf(score[window])  # the placeholder has logits of 0
    start_logit = np.where(is_missing, 0, pool.spans.start_logits[best])
    end_logit = np.where(is_missing, 0, pool.spans.end_logits[best])
    null_odds = null - start_logit - end_logit  # float32 [questions]

    # Python's numbers and the text of each.
    answers = Answers(predictions={}, null_odds={}, spans={}, probabilities={})
    rows = zip(
        question.tolist(),
        pool.begin[best].tolist(),
        pool.end[best].tolist(),
        null_odds.tolist(),
        strict=True,
    )
    for number, begin, end, odds in rows:
        example = examples[number]
        text = example.context[begin:end] or _PLACEHOLDER
        answers.predictions[example.id] = "" if odds > null_score_diff_threshold else text
        answers.null_odds[example.id] = odds
        answers.spans[example.id] = text
    return answers


def n_best_list(
    examples: Sequence[Example],
    windows: Windows,
    candidates: Sequence[Candidates],
    n_best_size: int = 20,
) -> dict[str, list[NBestEntry]]:
    """Return the n_best_size best answers per question, best first, always including "no answer".

    A question without a span that has text gets the placeholder of `merge_answers`, "empty" with
    score 0.
    """
    pool = _pool(windows, candidates)
    question, first = np.unique(pool.question, return_index=True)  # [questions]
    null = np.minimum.reduceat(pool.spans.null_scores, first)  # [questions]
    bounds = [*first.tolist(), len(pool.question)]
    lists = {}
    for place, number in enumerate(question.tolist()):
        rows = slice(bounds[place], bounds[place + 1])  # the question's windows
        example = examples[number]
        entries = _list_best(
            pool,
            rows=rows,
            null_score=null[place],
            context=example.context,
            n_best_size=n_best_size,
        )
        if len(entries) == 1:
            _add_placeholder(entries)
        lists[example.id] = entries
    return lists


def _list_best(
    pool: _Pool, rows: slice, null_score: np.float32, context: str, n_best_size: int
) -> list[NBestEntry]:
    """Return the best spans of a question's windows, and "no answer", best first."""
    # "No answer" stands behind all spans, as one more, characters 0 to 0.
    begin = np.append(pool.begin[rows], 0)  # [spans + 1]
    end = np.append(pool.end[rows], 0)
    scores = np.append(pool.scores[rows], null_score)
    no_answer = len(scores) - 1

    # The best ones that are spans, and "no answer" wherever it stands.
    order = np.argsort(-scores, kind="stable")  # the earlier of equals first
    is_listed = scores[order] > -np.inf
    is_listed[n_best_size:] = False
    is_listed |= order == no_answer
    order = order[is_listed]  # [listed]

    scores = scores[order]
    weights = np.exp(scores - scores[0])
    probabilities = weights / weights.sum()
    columns = zip(
        begin[order].tolist(),
        end[order].tolist(),
        scores.tolist(),
        probabilities.tolist(),
        strict=True,
    )
    entries: list[NBestEntry] = []
    for start, stop, score, probability in columns:
        entries.append(
            {
                "text": context[start:stop],
                "start": start,
                "end": stop,
                "score": score,
                "probability": probability,
            }
        )
    return entries


def _add_placeholder(entries: list[NBestEntry]) -> None:
    """Add the reference's text to the list of a question that has "no answer" alone."""
    (no_answer,) = entries
    share = float(np.exp(-np.logaddexp(0, no_answer["score"])))  # of a score of 0
    no_answer["probability"] = 1 - share
    placeholder: NBestEntry = {
        "text": _PLACEHOLDER,
        "start": 0,
        "end": 0,
        "score": 0.0,
        "probability": share,
    }
    is_first = no_answer["score"] <= 0
    entries.insert(0 if is_first else 1, placeholder)
