"""Probabilities that can be trusted: a slope and offsets, fitted on a validation (Platt 1999).

The margin of an answer is its log-odds in the softmax over its question's list: log p / (1 - p).

    P(right) = sigmoid(slope * margin + offset), and for "no answer" + null_offset

With slope 1 and offsets 0 it is p itself. A model that abstains too often, or too rarely, is right
less often in one kind of answer than in the other, at the same margin. No answer changes, only its
probability. What is traded: each answer of a list has the probability of being right if it were
given, so a list need not sum to 1, and "no answer" stands in it by its score. A prior draws the
slope to 1 and the offsets to 0 with the weight of about one question, so that a few questions give
a usable fit.

Whether the result deserves the name of a probability is another matter: `is_calibrated` is False
until the validation shows it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from detalbert.settings.languages import ENGLISH
from detalbert.squad.answers import NBestEntry
from detalbert.squad.example import Example
from detalbert.squad.metrics import gold_scores

SLOPE = "probability_slope"
OFFSET = "probability_offset"
NULL_OFFSET = "probability_null_offset"
UNCALIBRATED = "uncalibrated"  # 1: the questions do not show that the probabilities hold; else 0
_BINS = 15  # of the calibration error, equally wide
_FEWEST = 50  # questions that can show that probabilities hold
_LARGEST_GAP = 0.1  # between probabilities and the share that is right
_CERTAIN = 1e-7  # distance from 0 and 1 at which margins end
NBest = Sequence[NBestEntry]  # one question's list


def fit_calibration(
    examples: Sequence[Example],
    n_best: Mapping[str, NBest],
    predictions: Mapping[str, str],
    language: str = ENGLISH,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the numbers of a calibration, and the probability of each answer given by question id.

    The numbers are slope and offsets, the calibration error with them, and UNCALIBRATED.

    Args:
        examples: with known answers.
        n_best: as `n_best_list` gives it.
        predictions: the answer given, by question id.
        language: `data.language`, by which an answer is right.
    """
    entries = []
    rightness = []
    for example in examples:
        prediction = predictions[example.id]
        entries.append(given(n_best[example.id], prediction))
        rightness.append(gold_scores(prediction, example, language)[0])
    right = np.array(rightness)  # [Q]
    features = _features(entries)
    numbers = _fit(features, right)
    fitted = _right(numbers, features)
    error = calibration_error(fitted, right)

    # Were the probabilities exact, the share that is right would be off by this much.
    variance = fitted * (1 - fitted)
    standard_error = np.sqrt(variance.mean() / len(examples))
    gap = max(error, 3 * standard_error)
    is_shown = len(examples) >= _FEWEST and gap <= _LARGEST_GAP
    slope, offset, null_offset = numbers.tolist()
    scores = {
        SLOPE: slope,
        OFFSET: offset,
        NULL_OFFSET: null_offset,
        "calibration_error": error,
        UNCALIBRATED: 0.0 if is_shown else 1.0,
    }
    pairs = zip(examples, fitted.tolist(), strict=True)
    return scores, {example.id: probability for example, probability in pairs}


def is_calibrated(scores: Mapping[str, float]) -> bool:
    """Return whether the probabilities that `scores` give are the shares that are right."""
    return not scores.get(UNCALIBRATED, 1.0)


def calibrated(entries: NBest, scores: Mapping[str, float]) -> list[NBestEntry]:
    """Return a question's list with probabilities by the numbers in `scores`, if any."""
    if SLOPE not in scores:
        return list(entries)
    numbers = np.array([scores.get(name, 0.0) for name in (SLOPE, OFFSET, NULL_OFFSET)])
    fitted = _right(numbers, _features(entries)).tolist()
    return [
        {**entry, "probability": probability}
        for entry, probability in zip(entries, fitted, strict=True)
    ]


def given(entries: NBest, prediction: str) -> NBestEntry:
    """Return the entry of the answer given; "": no answer."""
    return next(entry for entry in entries if bool(entry["text"]) == bool(prediction))


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error of Q answers: the distance between the share that is
    right and the mean confidence in each bin, averaged over the answers. 0 is perfect.
    """
    # A confidence of 1 is in the last bin.
    place = np.minimum((confidence * _BINS).astype(int), _BINS - 1)

    # In each bin, the sum of confidences less the number that is right.
    gaps = np.bincount(place, weights=confidence - right)
    return float(np.abs(gaps).sum() / len(confidence))


def _fit(features: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the likeliest slope and offsets of Q answers under the prior, by Newton's method.

    Args:
        features: as of `_features`.
        right: 0 or 1 for each answer, [Q].
    """
    products = features[:, None] * features  # [3, 3, Q]
    prior = np.array([1.0, 0.0, 0.0])
    numbers = np.zeros(3)
    for _ in range(30):
        confidence = _right(numbers, features)  # [Q]
        surplus = confidence - right
        variance = confidence * (1 - confidence)
        gradient = (features * surplus).sum(axis=1)  # [3]
        gradient += numbers - prior
        curvature = (products * variance).sum(axis=2)  # [3, 3]
        curvature += np.eye(3)
        numbers -= np.linalg.solve(curvature, gradient)
    return numbers


def _features(entries: NBest) -> np.ndarray:
    """Return of each answer its margin, 1, and whether it is "no answer", float64 [3, Q]."""
    softmax = np.array([entry["probability"] for entry in entries])
    probability = np.clip(softmax, _CERTAIN, 1 - _CERTAIN)
    margins = np.log(probability / (1 - probability))
    is_null = [not entry["text"] for entry in entries]
    return np.stack([margins, np.ones_like(margins), is_null])


def _right(numbers: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return the probability that each answer is right, [Q]."""
    # Sums are plain here and below, so their bits depend on no number of threads.
    logits = (numbers[:, None] * features).sum(axis=0)
    return np.exp(-np.logaddexp(0, -logits))  # the sigmoid, without overflow
