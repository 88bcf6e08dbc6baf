"""Probabilities that can be trusted: two temperatures and an offset, fitted on a validation set.

A temperature divides scores before the softmax (Guo et al. 2017, arXiv:1706.04599). With spans of
scores s and the null score z, temperatures T of the spans and N of "no answer", and its offset b:

    P(no answer) = sigmoid((z - log sum exp(s)) / N + b)
    P(span i) = (1 - P(no answer)) * softmax(s / T)[i]

With T = N = 1 and b = 0 it is the softmax over all of them. No answer changes, only its
probability. That of an answer is the sum over the listed spans which the scorer takes for the same:
"the ash" and "ash".

A prior draws log T, log N and b to 0 with the weight of about one question, so a few questions give
a usable fit: on 2,900 other questions of eight models, it was as likely as or likelier than a
cross-validated choice between fitted and unfitted numbers (fitted to 20, 40, 80 and 160 questions),
and needs no folds. An offset is needed for a model that abstains too often: on the page's example
two temperatures leave answers 0.12 more probable than right, however many questions they have.

Whether the result deserves the name of a probability is another matter: `is_calibrated` is False
until the validation shows it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detalbert.squad.answers import NBestEntry
from detalbert.squad.metrics import answer_words
from detalbert.squad.windows import Example

SPAN = "span_temperature"
NULL = "null_temperature"
OFFSET = "null_offset"
UNCALIBRATED = "uncalibrated"  # 1: the questions do not show that the probabilities hold; else 0
BINS = 15  # of the calibration error, equally wide
_LARGEST_GAP = 0.1  # between the probability of answers and the share of them that is right
_FEWEST = 50  # answers that can show it
_LIKELY = 0.5  # the least probability of such an answer
NBest = Sequence[NBestEntry]  # one question's list


class _Given(NamedTuple):
    """The answers given to Q questions, of at most K listed spans each."""

    spans: np.ndarray  # float64 [Q, K], scores; -inf: no span
    same: np.ndarray  # bool [Q, K], spans that are the answer given
    odds: np.ndarray  # float64 [Q], null score - log sum exp(spans)
    silent: np.ndarray  # bool [Q], the answer given is "no answer"
    right: np.ndarray  # bool [Q], it is right
    answerable: np.ndarray  # bool [Q]

    def confidence(self, span: float, null: float, offset: float) -> np.ndarray:
        """Return the probability of each answer given, float64 [Q].

        Args:
            span: temperature of the spans.
            null: temperature of "no answer".
            offset: that of "no answer".
        """
        no_answer = _sigmoid(self.odds / null + offset)  # [Q]

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
    """Return the temperatures and the offset, the calibration error of the predictions without and
    with them, and UNCALIBRATED.

    "No answer" has the likeliest numbers over all questions, the spans that of the answers given.

    Args:
        examples: with known answers.
        n_best: as `n_best_list` gives it.
        predictions: the answer given, by question id.
    """
    answers = _collect(examples, n_best, predictions)
    null, offset = _fit_null(answers)
    span = _fit_span(answers, null=null, offset=offset)
    raw = answers.confidence(span=1.0, null=1.0, offset=0.0)
    fitted = answers.confidence(span=span, null=null, offset=offset)
    return {
        SPAN: span,
        NULL: null,
        OFFSET: offset,
        "calibration_error_raw": calibration_error(raw, answers.right),
        "calibration_error": calibration_error(fitted, answers.right),
        UNCALIBRATED: 0.0 if _holds(fitted, answers.right) else 1.0,
    }


def _fit_null(answers: _Given) -> tuple[float, float]:
    """Return the likeliest temperature and offset of "no answer"."""
    # A set with one kind of questions says nothing of the other.
    if answers.answerable.all() or not answers.answerable.any():
        return 1.0, 0.0
    signs = np.where(answers.answerable, 1.0, -1.0)  # [Q]

    def loss(temperature: float) -> float:
        logits = answers.odds / temperature
        offset = _fit_offset(logits, answers.answerable)
        surprise = np.logaddexp(0, signs * (logits + offset))  # [Q]
        return surprise.sum() + _prior(np.log(temperature)) + _prior(offset)

    null = _lowest(loss)
    return null, _fit_offset(answers.odds / null, answers.answerable)


def _fit_offset(logits: np.ndarray, answerable: np.ndarray) -> float:
    """Return the likeliest offset of "no answer", by Newton's method.

    Args:
        logits: float64 [Q], its log-odds.
        answerable: bool [Q].
    """
    offset = 0.0
    for _ in range(12):
        no_answer = _sigmoid(logits + offset)
        slope = (no_answer - ~answerable).sum() + offset
        curvature = (no_answer * (1 - no_answer)).sum() + 1
        offset -= np.clip(slope / curvature, -2, 2)  # a longer step could overshoot
    return float(offset)


def _fit_span(answers: _Given, null: float, offset: float) -> float:
    """Return the likeliest temperature of the spans, given the numbers of "no answer"."""
    answered = ~answers.silent

    def loss(temperature: float) -> float:
        confidence = answers.confidence(span=temperature, null=null, offset=offset)
        confidence = np.clip(confidence, 1e-9, 1 - 1e-9)
        likelihood = np.where(answers.right, confidence, 1 - confidence)
        surprise = -np.log(likelihood)  # [Q]
        return surprise[answered].sum() + _prior(np.log(temperature))

    return _lowest(loss)


def _prior(value: float) -> float:
    """Return the loss of a number that the standard normal distribution expects near 0."""
    return value**2 / 2


def _holds(confidence: np.ndarray, right: np.ndarray) -> bool:
    """Return whether Q answers show that probabilities of at least _LIKELY are the shares that are
    right, to _LARGEST_GAP and beyond chance.
    """
    likely = confidence >= _LIKELY
    count = int(likely.sum())
    if count < _FEWEST:
        return False
    likely_confidence = confidence[likely]
    gap = abs(likely_confidence.mean() - right[likely].mean())

    # Were the probabilities exact, the share would be off by this much: its standard error.
    variance = likely_confidence * (1 - likely_confidence)
    chance = np.sqrt(variance.sum()) / count
    return bool(gap + 3 * chance <= _LARGEST_GAP)


def is_calibrated(scores: Mapping[str, float]) -> bool:
    """Return whether the probabilities that `scores` give are the shares that are right."""
    if UNCALIBRATED in scores:
        return not scores[UNCALIBRATED]
    # Version 1.0 fitted a temperature to 50 questions at least; it is 1 with fewer.
    return 1 not in (scores.get(SPAN, 1), scores.get(NULL, 1))


def calibrated(entries: NBest, scores: Mapping[str, float]) -> list[NBestEntry]:
    """Return a question's list with probabilities by the numbers in `scores`, if any."""
    result = [entry.copy() for entry in entries]
    if SPAN not in scores or NULL not in scores:
        return result
    is_span = np.array([bool(entry["text"]) for entry in entries])
    logits = np.array([entry["score"] for entry in entries], dtype=np.float64)
    spans = np.where(is_span, logits, -np.inf)
    null = logits[~is_span].sum()  # of "no answer", which each list has once

    # The same two steps as in `_Given.confidence`, for every span.
    odds = null - _log_sum(spans)
    no_answer = _sigmoid(odds / scores[NULL] + scores.get(OFFSET, 0.0))
    spans = spans / scores[SPAN]
    shares = np.exp(spans - _log_sum(spans))
    probabilities = np.where(is_span, (1 - no_answer) * shares, no_answer)  # [entries]
    for entry, probability in zip(result, probabilities.tolist(), strict=True):
        entry["probability"] = probability
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
