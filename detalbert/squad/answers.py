"""Answers and n-best lists of questions, from n windows with K spans each (`Candidates`).

A question's windows may come in any order and in any batches. They are sorted by window first, so
the result is bitwise the same however they came; all else is arithmetic over all questions at once.
The price is that the candidates of all windows are in memory.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from detalbert.squad.decoding import Candidates
from detalbert.squad.example import Example
from detalbert.squad.windows import Windows

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


class _Question(NamedTuple):
    """The S spans of a question that have text, window by window and in each the best first."""

    example: Example
    null_score: np.float32  # the lowest of its windows
    begin: np.ndarray  # int32 [S], first character of the span in the context
    end: np.ndarray  # int32 [S], the character after it
    start_logits: np.ndarray  # float32 [S]
    end_logits: np.ndarray  # float32 [S]

    @property
    def scores(self) -> np.ndarray:
        """Start + end logit, float32 [S]."""
        return self.start_logits + self.end_logits


def _by_question(
    examples: Sequence[Example],
    windows: Windows,
    candidates: Sequence[Candidates],
) -> Iterator[_Question]:
    """Yield the questions in order, whatever the order and the batches of their windows."""
    # Sort by window, and so by question, and drop repeats.
    columns = [np.concatenate(column) for column in zip(*candidates, strict=True)]
    number, rows = np.unique(columns[0], return_index=True)  # [n]
    spans = Candidates(*(column[rows] for column in columns))

    # A position in the window plus the shift is a token of context_ids, which has its characters.
    shift = windows.context_begin[number] - windows.context_starts(number)  # [n]
    is_span = spans.scores > -np.inf  # [n, K]
    first_token = spans.starts + shift[:, None]
    last_token = spans.ends + shift[:, None]
    begin = np.zeros(is_span.shape, dtype=np.int32)
    end = begin.copy()
    begin[is_span] = windows.context_offsets[first_token[is_span], 0]
    end[is_span] = windows.context_offsets[last_token[is_span], 1]

    # The windows of each question.
    questions, first = np.unique(windows.example_index[number], return_index=True)
    bounds = itertools.pairwise([*first.tolist(), len(number)])
    for question, (low, high) in zip(questions.tolist(), bounds, strict=True):
        has_text = end[low:high] > begin[low:high]  # [windows, K]
        yield _Question(
            example=examples[question],
            null_score=spans.null_scores[low:high].min(),
            begin=begin[low:high][has_text],
            end=end[low:high][has_text],
            start_logits=spans.start_logits[low:high][has_text],
            end_logits=spans.end_logits[low:high][has_text],
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
    answers = Answers(predictions={}, null_odds={}, spans={}, probabilities={})
    for question in _by_question(examples, windows, candidates):
        example = question.example
        text = _PLACEHOLDER
        odds = question.null_score
        if len(question.scores):
            best = int(question.scores.argmax())  # the earlier of equal ones
            text = example.context[question.begin[best] : question.end[best]]
            # In this order, as the reference rounds, in fp32.
            odds = odds - question.start_logits[best] - question.end_logits[best]
        answers.spans[example.id] = text
        answers.null_odds[example.id] = float(odds)
        is_silent = float(odds) > null_score_diff_threshold
        answers.predictions[example.id] = "" if is_silent else text
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
    questions = _by_question(examples, windows, candidates)
    return {question.example.id: _list_best(question, n_best_size) for question in questions}


def _list_best(question: _Question, n_best_size: int) -> list[NBestEntry]:
    """Return the best of a question's spans, and "no answer", best first."""
    context = question.example.context
    begin = question.begin.tolist()
    end = question.end.tolist()
    texts = [context[start:stop] for start, stop in zip(begin, end, strict=True)]
    scores = question.scores
    if not texts:
        texts, begin, end, scores = [_PLACEHOLDER], [0], [0], np.zeros(1)
        n_best_size = 2

    # "No answer" stands behind all spans, as one more, characters 0 to 0.
    no_answer = len(texts)
    texts.append("")
    begin.append(0)
    end.append(0)
    scores = np.append(scores, question.null_score)  # [S + 1]
    order = np.argsort(-scores, kind="stable")  # the earlier of equals first
    is_listed = order == no_answer
    is_listed[:n_best_size] = True
    order = order[is_listed]  # [listed]
    weights = np.exp(scores[order] - scores[order[0]])
    probabilities = weights / weights.sum()

    return [
        {
            "text": texts[number],
            "start": begin[number],
            "end": end[number],
            "score": float(scores[number]),
            "probability": probability,
        }
        for number, probability in zip(order.tolist(), probabilities.tolist(), strict=True)
    ]
