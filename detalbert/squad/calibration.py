"""Probabilities that can be trusted: two temperatures, fitted on a validation set.

A temperature divides scores before the softmax (Guo et al. 2017, arXiv:1706.04599). With spans of
scores s and the null score z, and temperatures T of the spans and N of "no answer":

    P(no answer) = sigmoid((z - log sum exp(s)) / N)
    P(span i) = (1 - P(no answer)) * softmax(s / T)[i]

With T = N = 1 it is the softmax over all of them. No answer changes, only its probability. That of
an answer is the sum over the listed spans which the scorer takes for the same: "the ash" and "ash".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detalbert.squad.answers import NBestEntry
from detalbert.squad.metrics import answer_words
from detalbert.squad.windows import Example

SPAN = "span_temperature"
NULL = "null_temperature"
BINS = 15  # of the calibration error, equally wide
_FEWEST = 50  # questions that a temperature is fitted to; it is 1 with fewer
NBest = Sequence[NBestEntry]  # one question's list


class _Given(NamedTuple):
    """The answers given to Q questions, of at most K listed spans each."""

    spans: np.ndarray  # float64 [Q, K], scores; -inf: no span
    same: np.ndarray  # bool [Q, K], spans that are the answer given
    odds: np.ndarray  # float64 [Q], null score - log sum exp(spans)
    silent: np.ndarray  # bool [Q], the answer given is "no answer"
    right: np.ndarray  # bool [Q], it is right
    answerable: np.ndarray  # bool [Q]

    def confidence(self, span: float, null: float) -> np.ndarray:
        """Return the probability of each answer given, float64 [Q].

        Args:
            span: temperature of the spans.
            null: temperature of "no answer".
        """
        no_answer = _sigmoid(self.odds / null)  # [Q]

        # A question without a span has no sum: zeros stand in, and are not used below.
        silent = self.silent[:, None]
        spans = np.where(silent, 0.0, self.spans / span)  # [Q, K]
        answer_spans = np.where(self.same, spans, -np.inf)
        share = np.exp(_log_sum(answer_spans) - _log_sum(spans))  # [Q], of the answer among them

        answer = (1 - no_answer) * share
        return np.where(self.silent, no_answer, answer)


def fit_temperatures(
    examples: Sequence[Example], n_best: Mapping[str, NBest], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Return the temperatures, and the calibration error of the predictions without and with them.

    "No answer" has the likeliest temperature over all questions, the spans that of the answers
    given: where too few are known, 1.

    Args:
        examples: with known answers.
        n_best: as `n_best_list` gives it.
        predictions: the answer given, by question id.
    """
    answers = _collect(examples, n_best, predictions)
    null = _fit_null(answers)
    span = _fit_span(answers, null=null)
    raw = answers.confidence(span=1.0, null=1.0)
    fitted = answers.confidence(span=span, null=null)
    return {
        SPAN: span,
        NULL: null,
        "calibration_error_raw": calibration_error(raw, answers.right),
        "calibration_error": calibration_error(fitted, answers.right),
    }


def _fit_null(answers: _Given) -> float:
    """Return the likeliest temperature of "no answer"."""
    answerable = int(answers.answerable.sum())
    unanswerable = len(answers.answerable) - answerable
    if min(answerable, unanswerable) < _FEWEST:
        return 1.0
    signs = np.where(answers.answerable, 1.0, -1.0)  # [Q]
    surprise = signs * answers.odds  # [Q], logit of being wrong about "no answer"

    def loss(temperature: float) -> float:
        return np.logaddexp(0, surprise / temperature).mean()

    return _lowest(loss)


def _fit_span(answers: _Given, null: float) -> float:
    """Return the likeliest temperature of the spans, given that of "no answer"."""
    answered = ~answers.silent
    if answered.sum() < _FEWEST:
        return 1.0

    def loss(temperature: float) -> float:
        confidence = answers.confidence(span=temperature, null=null)
        confidence = np.clip(confidence, 1e-9, 1 - 1e-9)
        likelihood = np.where(answers.right, confidence, 1 - confidence)
        surprise = -np.log(likelihood)  # [Q]
        return surprise[answered].mean()

    return _lowest(loss)


def calibrated(entries: NBest, scores: Mapping[str, float]) -> list[NBestEntry]:
    """Return a question's list with probabilities by the temperatures in `scores`, if any."""
    result = [entry.copy() for entry in entries]
    if SPAN not in scores or NULL not in scores:
        return result
    spans = np.full(len(entries), -np.inf)
    null = 0.0
    for place, entry in enumerate(entries):
        if entry["text"]:
            spans[place] = entry["score"]
        else:
            null = entry["score"]

    # The same two steps as in `_Given.confidence`, for every span.
    odds = null - _log_sum(spans)
    no_answer = _sigmoid(odds / scores[NULL])
    spans = spans / scores[SPAN]
    shares = np.exp(spans - _log_sum(spans))
    probabilities = (1 - no_answer) * shares  # [entries]

    for entry, probability in zip(result, probabilities.tolist(), strict=True):
        entry["probability"] = probability if entry["text"] else float(no_answer)
    return result


def probabilities(
    n_best: Mapping[str, NBest], predictions: Mapping[str, str], scores: Mapping[str, float]
) -> dict[str, float]:
    """Return the probability of each answer given, by question id and the temperatures in
    `scores`.
    """
    result = {}
    for name, prediction in predictions.items():
        _, result[name] = given(calibrated(n_best[name], scores), prediction)
    return result


def given(entries: NBest, prediction: str) -> tuple[NBestEntry, float]:
    """Return the entry of the answer given ("": no answer), and its probability."""
    is_answer = bool(prediction)
    candidates = [entry for entry in entries if bool(entry["text"]) == is_answer]
    best = candidates[0]

    # Spans that the scorer takes for the same answer count for it.
    words = answer_words(best["text"])
    same = [entry for entry in candidates if answer_words(entry["text"]) == words]
    return best, sum(entry["probability"] for entry in same)


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error of Q answers: the distance between the share that is
    right and the mean confidence in each bin, averaged over the answers. 0 is perfect.
    """
    place = (confidence * BINS).astype(int)
    place = np.minimum(place, BINS - 1)  # a confidence of 1 is in the last bin

    # In each bin, the sum of confidences less the number that is right.
    gaps = np.bincount(place, weights=confidence - right, minlength=BINS)
    total = np.abs(gaps).sum()
    return float(total / max(len(confidence), 1))


def _collect(
    examples: Sequence[Example], n_best: Mapping[str, NBest], predictions: Mapping[str, str]
) -> _Given:
    """Lay the lists of all questions out as arrays."""
    count = len(examples)
    longest = max((len(n_best[example.id]) for example in examples), default=1)
    # Lists of different lengths: what is missing counts for no span.
    spans = np.full((count, longest), -np.inf)
    same = np.zeros((count, longest), dtype=bool)
    null = np.zeros(count)
    right = np.zeros(count, dtype=bool)
    silent = np.zeros(count, dtype=bool)
    answerable = np.zeros(count, dtype=bool)
    for q, example in enumerate(examples):
        prediction = predictions[example.id]
        words = answer_words(prediction)
        silent[q] = not prediction
        answerable[q] = bool(example.answers)

        # An unanswerable question has one right answer, the empty text.
        gold = [text for text, _ in example.answers or ()] or [""]
        right[q] = any(answer_words(text) == words for text in gold)

        for k, entry in enumerate(n_best[example.id]):
            if entry["text"]:
                spans[q, k] = entry["score"]
                same[q, k] = answer_words(entry["text"]) == words
            else:
                null[q] = entry["score"]
    return _Given(
        spans=spans,
        same=same,
        odds=null - _log_sum(spans),
        silent=silent,
        right=right,
        answerable=answerable,
    )


def _log_sum(values: np.ndarray) -> np.ndarray:
    """Return log(sum(exp(values))) over the last axis."""
    return np.logaddexp.reduce(values, axis=-1)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits))  # without overflow


def _lowest(loss: Callable[[float], float]) -> float:
    """Return the temperature of the lowest loss, from 0.05 to 20, by golden-section search over its
    logarithm.
    """

    # Each step looks at two places inside the interval, and leaves out the worse one's end.
    low = np.log(0.05)
    high = np.log(20.0)
    golden_ratio = (np.sqrt(5) - 1) / 2
    for _ in range(40):  # 0.6 ** 40 of the first interval is left
        width = golden_ratio * (high - low)
        left = high - width
        right = low + width
        if loss(np.exp(left)) < loss(np.exp(right)):
            high = right
        else:
            low = left
    middle = (low + high) / 2
    return float(np.exp(middle))
