"""Probabilities that can be trusted: a slope and an offset, fitted on a validation (Platt 1999).

The margin of an answer is its log-odds in the softmax over its question's list: log p / (1 - p).

    P(right) = sigmoid(slope * margin + offset)

With slope 1 and offset 0 it is p itself. No answer changes, only its probability. What is traded:
each answer of a list has the probability of being right if it were given, so a list need not sum to
1. A prior draws slope and offset to 1 and 0 with the weight of about one question, so that a few
questions give a usable fit.

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

    The numbers are slope and offset, the calibration error with them, and UNCALIBRATED.

    Args:
        examples: with known answers.
        n_best: as `n_best_list` gives it.
        predictions: the answer given, by question id.
        language: `data.language`, by which an answer is right.
    """
    softmax = []
    rightness = []
    for example in examples:
        prediction = predictions[example.id]
        softmax.append(given(n_best[example.id], prediction)["probability"])
        rightness.append(gold_scores(prediction, example, language)[0])
    right = np.array(rightness)  # [Q]
    margins = _margins(np.array(softmax))
    slope, offset = _fit(margins, right)
    fitted = _sigmoid(slope * margins + offset)
    error = calibration_error(fitted, right)

    # Were the probabilities exact, the share that is right would be off by this much.
    variance = fitted * (1 - fitted)
    standard_error = np.sqrt(variance.mean() / len(examples))
    gap = max(error, 3 * standard_error)
    is_shown = len(examples) >= _FEWEST and gap <= _LARGEST_GAP
    scores = {
        SLOPE: slope,
        OFFSET: offset,
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
    softmax = np.array([entry["probability"] for entry in entries])
    fitted = _sigmoid(scores[SLOPE] * _margins(softmax) + scores.get(OFFSET, 0.0)).tolist()
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


def _fit(margins: np.ndarray, right: np.ndarray) -> list[float]:
    """Return the likeliest slope and offset of Q answers under the prior, by Newton's method."""
    features = np.stack([margins, np.ones_like(margins)])  # [2, Q]
    products = features[:, None] * features  # [2, 2, Q]
    prior = np.array([1, 0])
    numbers = np.zeros(2)
    for _ in range(30):
        slope, offset = numbers
        confidence = _sigmoid(slope * margins + offset)  # [Q]
        surplus = confidence - right
        variance = confidence * (1 - confidence)
        # Sums over Q are plain, so their bits depend on no number of threads.
        gradient = (features * surplus).sum(axis=1)  # [2]
        gradient += numbers - prior
        curvature = (products * variance).sum(axis=2)  # [2, 2]
        curvature += np.eye(2)
        numbers -= np.linalg.solve(curvature, gradient)
    return numbers.tolist()


def _margins(softmax: np.ndarray) -> np.ndarray:
    """Return the log-odds of probabilities."""
    probability = np.clip(softmax, _CERTAIN, 1 - _CERTAIN)
    return np.log(probability / (1 - probability))


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits))  # without overflow
