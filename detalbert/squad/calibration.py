"""Probabilities that can be trusted: two temperatures, fitted on a validation set.

A temperature divides scores before the softmax (Guo et al. 2017, arXiv:1706.04599). With spans of
scores s and the null score z, and temperatures T of the spans and N of "no answer":

    P(no answer) = sigmoid((z - log sum exp(s)) / N)
    P(span i) = (1 - P(no answer)) * softmax(s / T)[i]

With T = N = 1 it is the softmax over all of them. No answer changes, only its probability. That of
an answer is the sum over the listed spans which the scorer takes for the same: "the ash" and "ash".
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from detalbert.squad.metrics import answer_words
from detalbert.squad.windows import Example

SPAN, NULL = "span_temperature", "null_temperature"
BINS = 15  # of the calibration error, equally wide
_FEWEST = 50  # questions that a temperature is fitted to; it is 1 with fewer
_log_sum: Callable[..., Any] = partial(np.logaddexp.reduce, axis=-1)  # log(sum(exp(values)))
NBest = Sequence[Mapping[str, Any]]  # one question's entry of `n_best_list`


class _Given(NamedTuple):
    """The answers given to Q questions, of at most K listed spans each."""

    spans: np.ndarray  # float64 [Q, K], scores; -inf: no span
    same: np.ndarray  # bool [Q, K], spans that are the answer given
    odds: np.ndarray  # float64 [Q], null score - log sum exp(spans)
    silent: np.ndarray  # bool [Q], the answer given is "no answer"
    right: np.ndarray  # bool [Q], it is right
    answerable: np.ndarray  # bool [Q]

    def confidence(self, span: float, null: float) -> np.ndarray:
        """Return the probability of each answer given, float64 [Q]."""
        silent = _sigmoid(self.odds / null)
        spans = np.where(self.silent[:, None], 0.0, self.spans / span)
        share = np.exp(_log_sum(np.where(self.same, spans, -np.inf)) - _log_sum(spans))
        return np.where(self.silent, silent, (1 - silent) * share)


def fit_temperatures(
    examples: Sequence[Example], n_best: Mapping[str, NBest], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Return the temperatures, and the calibration error of the predictions without and with them.

    "No answer" has the likeliest temperature over all questions, the spans that of the answers
    given: where too few are known, 1.

    Args:
        examples: with known answers.
        n_best: as `n_best_list` gives it.
    """
    found = _collect(examples, n_best, predictions)
    signs = np.where(found.answerable, 1.0, -1.0)  # [Q]
    scores = {SPAN: 1.0, NULL: 1.0}
    if min(found.answerable.sum(), (~found.answerable).sum()) >= _FEWEST:
        scores[NULL] = _lowest(lambda t: np.logaddexp(0, signs * found.odds / t).mean())

    def of_spans(temperature: float) -> float:
        sure = np.clip(found.confidence(temperature, scores[NULL]), 1e-9, 1 - 1e-9)
        return -np.log(np.where(found.right, sure, 1 - sure))[~found.silent].mean()

    if (~found.silent).sum() >= _FEWEST:
        scores[SPAN] = _lowest(of_spans)
    raw, sure = found.confidence(1.0, 1.0), found.confidence(scores[SPAN], scores[NULL])
    errors = calibration_error(raw, found.right), calibration_error(sure, found.right)
    return {**scores, "calibration_error_raw": errors[0], "calibration_error": errors[1]}


def calibrated(entries: NBest, scores: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return a question's list with probabilities by the temperatures in `scores`, if any."""
    if not {SPAN, NULL} <= scores.keys():
        return list(map(dict, entries))
    spans = np.array([entry["score"] if entry["text"] else -np.inf for entry in entries])
    null = next(entry["score"] for entry in entries if not entry["text"])
    silent = _sigmoid((null - _log_sum(spans)) / scores[NULL])
    spans = spans / scores[SPAN]
    shares = ((1 - silent) * np.exp(spans - _log_sum(spans))).tolist()
    return [
        {**entry, "probability": share if entry["text"] else float(silent)}
        for entry, share in zip(entries, shares, strict=True)
    ]


def given(entries: NBest, prediction: str) -> tuple[Mapping[str, Any], float]:
    """Return the entry of the answer given ("": no answer), and its probability."""
    kind = [entry for entry in entries if bool(entry["text"]) == bool(prediction)]
    words = answer_words(kind[0]["text"])
    return kind[0], sum(e["probability"] for e in kind if answer_words(e["text"]) == words)


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error of Q answers: the distance between the share that is
    right and the mean confidence in each bin, averaged over the answers. 0 is perfect.
    """
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(place, confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / max(len(confidence), 1))


def _collect(
    examples: Sequence[Example], n_best: Mapping[str, NBest], predictions: Mapping[str, str]
) -> _Given:
    shape = len(examples), max((len(n_best[e.id]) for e in examples), default=1)
    spans, same = np.full(shape, -np.inf), np.zeros(shape, bool)
    null, right = np.zeros(len(examples)), np.zeros(len(examples), bool)
    for q, example in enumerate(examples):
        words = answer_words(predictions[example.id])
        gold = [text for text, _ in example.answers or ()] or [""]
        right[q] = words in map(answer_words, gold)
        for k, entry in enumerate(n_best[example.id]):
            if entry["text"]:
                spans[q, k] = entry["score"]
                same[q, k] = answer_words(entry["text"]) == words
            else:
                null[q] = entry["score"]
    silent = np.array([not predictions[example.id] for example in examples], bool)
    answerable = np.array([bool(example.answers) for example in examples], bool)
    return _Given(spans, same, null - _log_sum(spans), silent, right, answerable)


def _sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0, -x))


def _lowest(loss: Callable[[float], float]) -> float:
    """Return the temperature of the lowest loss, from 0.05 to 20, by golden-section search over its
    logarithm.
    """
    low, high, ratio = np.log(0.05), np.log(20.0), (np.sqrt(5) - 1) / 2
    for _ in range(40):
        width = ratio * (high - low)
        if loss(np.exp(high - width)) < loss(np.exp(low + width)):
            high = low + width
        else:
            low = high - width
    return float(np.exp((low + high) / 2))
