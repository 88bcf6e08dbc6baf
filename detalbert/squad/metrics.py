"""Exact match and F1 of SQuAD, with the thresholds of the official scorer.

The algorithm is that of the official `evaluate-v2.0.py` (Rajpurkar et al. 2018,
arXiv:1806.03822); numbers agree with it to rounding, best thresholds included. In a language other
than English, answers are scored as by the official `mlqa_evaluation_v1.py`, and abstaining and
thresholds as in SQuAD, as MLQA has no unanswerable questions.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from detalbert.settings.languages import ENGLISH
from detalbert.squad.example import Example
from detalbert.squad.normalization import answer_words


def exact_match(prediction: str, gold: str, language: str = ENGLISH) -> int:
    """Return 1 if the two texts have equal `answer_words`, else 0."""
    return int(answer_words(prediction, language) == answer_words(gold, language))


def f1(prediction: str, gold: str, language: str = ENGLISH) -> float:
    """Return the harmonic mean of precision and recall over the two bags of `answer_words`. If
    neither text has a word: 1 in English, 0 in another language.
    """
    guess = answer_words(prediction, language)
    truth = answer_words(gold, language)
    if guess == truth:
        return float(bool(guess) or language == ENGLISH)
    overlap = Counter(guess) & Counter(truth)
    common = overlap.total()  # words
    if not common:
        return 0.0
    precision = common / len(guess)
    recall = common / len(truth)
    return 2 * precision * recall / (precision + recall)


def score(
    examples: Sequence[Example],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
    language: str = ENGLISH,
) -> dict[str, float]:
    """Return exact match and F1 in percent, under the official keys.

    They are exact, f1, total; the same prefixed HasAns_ and NoAns_, if there are such questions;
    with null_odds also best_exact, best_exact_thresh, best_f1, best_f1_thresh.

    Args:
        predictions: text by question id, "" for no answer; questions without one do not count. The
            best thresholds are those of a model if these are its best spans: a "" stays one.
        null_odds: how unanswerable each predicted question is; above `threshold` a prediction is
            scored as no answer, but not for the best thresholds.
        language: `data.language`, by which answers are compared.
    """
    table = _score_each(examples, predictions, null_odds or {}, language)  # [Q, 6]
    scores = table[:, :2]  # exact match and F1
    _, _, has_answer, is_silent, null_odds_column, places = table.T  # [Q] each
    answerable = has_answer > 0
    if null_odds is None:
        return _group_scores(scores, answerable)

    # Above the threshold the prediction counts as no answer, right if there is none.
    right_null = np.where(answerable, 0.0, 1.0)
    is_null = null_odds_column > threshold  # [Q]
    decided = np.where(is_null[:, None], right_null[:, None], scores)
    result = _group_scores(decided, answerable)

    # A threshold that rises past an answerable question gains its score; past an unanswerable
    # one it loses 1, unless the prediction is "".
    loss = is_silent - 1
    gains = np.where(answerable[:, None], scores, loss[:, None])  # [Q, 2]
    order = np.lexsort((places, null_odds_column))
    for name, gain in zip(("exact", "f1"), gains[order].T, strict=True):
        best, best_threshold = _best_threshold(null_odds_column[order], gain, right_null.sum())
        result[f"best_{name}"] = best
        result[f"best_{name}_thresh"] = best_threshold
    return result


def _score_each(
    examples: Sequence[Example],
    predictions: Mapping[str, str],
    odds: Mapping[str, float],
    language: str,
) -> np.ndarray:
    """Return of each question with a prediction exact match, F1, whether it has an answer, whether
    the prediction is "", its null odds (0 if not known) and its place among the odds, [Q, 6].
    """
    # The official scorer takes equal odds in the order of the odds file.
    places = {name: place for place, name in enumerate(odds)}
    rows = [
        (
            *gold_scores(predictions[example.id], example, language),
            bool(example.answers),
            not predictions[example.id],
            odds.get(example.id, 0.0),
            places.get(example.id, 0),
        )
        for example in examples
        if example.id in predictions
    ]
    return np.array(rows, dtype=float).reshape(-1, 6)


def _group_scores(scores: np.ndarray, answerable: np.ndarray) -> dict[str, float]:
    """Return means in percent and totals, of all questions and of the two kinds."""
    result: dict[str, float] = {}
    groups = {
        "": scores,
        "HasAns_": scores[answerable],
        "NoAns_": scores[~answerable],
    }
    for prefix, group in groups.items():
        total = len(group)
        if total or not prefix:
            means = 100.0 * group.sum(axis=0) / max(total, 1)  # [2]
            result[f"{prefix}exact"], result[f"{prefix}f1"] = means.tolist()
            result[f"{prefix}total"] = total
    return result


def _best_threshold(odds: np.ndarray, gain: np.ndarray, below: float) -> tuple[float, float]:
    """Return the best percentage over all thresholds, and the lowest threshold that gives it; 0.0
    if nothing is gained.

    Args:
        odds: of the questions, ascending, [Q].
        gain: of a threshold that passes each, [Q].
        below: questions that are right with a threshold below all odds: those without an answer.
    """
    # Right ones below each threshold, from one below all odds on.
    total = np.cumsum(np.append(below, gain))  # [Q + 1]
    best = int(total.argmax())  # the first of equal totals has the lowest threshold
    share = 100.0 * float(total[best]) / max(len(gain), 1)
    threshold = odds[best - 1] if best else 0.0
    return share, float(threshold)


def gold_scores(prediction: str, example: Example, language: str) -> tuple[int, float]:
    """Return the largest exact match and F1 over the gold answers; without any, whether the
    prediction has no words.
    """
    texts = [text for text, _ in example.answers or ()]
    if language == ENGLISH:  # as SQuAD's scorer: gold answers without words do not count
        texts = list(filter(answer_words, texts))
    if not texts:
        right = exact_match(prediction, "", language)
        return right, float(right)
    gold = dict.fromkeys(texts)
    exact = max(exact_match(prediction, text, language) for text in gold)
    overlap = max(f1(prediction, text, language) for text in gold)
    return exact, overlap
