"""Held-out questions with what a model made of them, as arrays: thresholds, probabilities, errors.

Every figure of the page of a run comes from here, and is computed from the answers as written in
its files: a page can be drawn again later, and agrees with the scores.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from detalbert.run_page.shares import RightShare, margin_of_error, measure_share
from detalbert.squad.answers import Answers
from detalbert.squad.error_groups import find_group
from detalbert.squad.metrics import gold_scores
from detalbert.squad.windows import Example

BINS = 10  # of probabilities, equally wide
DECIMALS = 3  # of a threshold
FEWEST = 5  # answers of a bin that is drawn
EVERYTHING = slice(None)
ENOUGH = 30  # answers whose share that is right may decide: of 27 of them it is 74 to 97 %


class Outcomes(NamedTuple):
    """Q held-out questions and their answers."""

    examples: Sequence[Example]
    answers: Answers
    exact: np.ndarray  # float64 [Q], of the best span, as if it were always the answer
    f1: np.ndarray  # float64 [Q], the same
    threshold: float  # of the run
    odds: np.ndarray  # float64 [Q], null odds: above the threshold the model abstains
    abstained: np.ndarray  # bool [Q], at the threshold of the run
    answerable: np.ndarray  # bool [Q]
    probabilities: np.ndarray | None  # float64 [Q], of the answers given; None: uncalibrated
    texts: np.ndarray  # int64 [Q], number of each question's text

    @property
    def right(self) -> np.ndarray:
        """Whether the answer given is right, or abstaining is, bool [Q]."""
        return np.where(self.abstained, ~self.answerable, self.exact == 1)

    def f1_at(self, threshold: float) -> np.ndarray:
        """Return the F1 of each question at a threshold, float64 [Q]."""
        return np.where(self.odds > threshold, ~self.answerable, self.f1)

    def margin(self, scores: np.ndarray) -> float:
        """Return half the width of the 95 % interval of the mean of `scores` [Q], in percent."""
        return margin_of_error(scores, self.texts)

    def share(self, among: np.ndarray | slice = EVERYTHING) -> RightShare:
        """Return the share of the results that are right among some questions, bool [Q]."""
        return measure_share(self.right[among], self.texts[among])

    def share_at(self, threshold: float) -> RightShare:
        """Return the share of the answers given at a threshold that are right."""
        is_given = self.odds <= threshold
        return measure_share(self.exact[is_given] == 1, self.texts[is_given])

    def group(self, place: int) -> str:
        """Return the group of a wrong answer, "" of a right one."""
        example = self.examples[place]
        labels = [text for text, _ in example.answers or ()]
        return find_group(labels, self.answers.predictions[example.id])

    def count_errors(self) -> dict[str, int]:
        """Return the number of wrong answers by group, the largest group first."""
        groups = Counter(self.group(int(place)) for place in np.flatnonzero(~self.right))
        return dict(groups.most_common())


def collect(examples: Sequence[Example], answers: Answers, threshold: float) -> Outcomes:
    """Return the outcomes of all `examples` that have an answer; `threshold`: of the answers."""
    answered = [example for example in examples if example.id in answers.predictions]
    scores = [gold_scores(answers.spans[example.id], example) for example in answered]
    exact, f1 = np.array(scores, dtype=np.float64).reshape(-1, 2).T  # [Q] each
    _, texts = np.unique([example.context for example in answered], return_inverse=True)
    probabilities = None
    if answers.probabilities:
        probabilities = np.array([answers.probabilities[example.id] for example in answered])
    return Outcomes(
        examples=answered,
        answers=answers,
        exact=exact,
        f1=f1,
        threshold=threshold,
        odds=np.array([answers.null_odds[example.id] for example in answered]),
        abstained=np.array([not answers.predictions[example.id] for example in answered], bool),
        answerable=np.array([bool(example.answers) for example in answered], bool),
        probabilities=probabilities,
        texts=texts,
    )


class Sweep(NamedTuple):
    """Counts and scores of Q questions at n thresholds, ascending."""

    thresholds: np.ndarray  # float64 [n]
    given: np.ndarray  # int64 [n], answers
    matches: np.ndarray  # int64 [n], answers that are right
    rightly_abstained: np.ndarray  # int64 [n], questions
    f1: np.ndarray  # float64 [n], percent, of all questions
    questions: int  # Q

    def at(self, threshold: float) -> int:
        """Return the place of the highest threshold that is not above `threshold`."""
        place = np.searchsorted(self.thresholds, threshold, side="right") - 1
        return max(0, int(place))

    def rounded_up(self) -> np.ndarray:
        """Return the thresholds with the decimals that the page prints, float64 [n]; a lower one
        would leave out the last of the answers that are counted.
        """
        return np.ceil(10**DECIMALS * self.thresholds) / 10**DECIMALS

    def printable(self) -> np.ndarray:
        """Return which thresholds give the same counts if they are rounded up, bool [n]."""
        rounded = self.rounded_up()
        return np.append(rounded[1:] > rounded[:-1], True)


def sweep_thresholds(outcomes: Outcomes) -> Sweep:
    """Return the scores at every threshold that changes an answer: the null odds of each question,
    and one below all of them, at which every question is abstained from.
    """
    order = np.argsort(outcomes.odds, kind="stable")
    odds = outcomes.odds[order]
    exact = outcomes.exact[order]
    f1 = outcomes.f1[order]
    abstained_right = ~outcomes.answerable[order]  # [Q], a question scores this when abstained

    # A threshold that rises past a question swaps the score of abstaining for that of its span.
    count = len(odds)
    given = np.arange(count + 1)
    matches = np.append(0, np.cumsum(exact)).astype(int)
    rightly_abstained = abstained_right.sum() - np.append(0, np.cumsum(abstained_right))
    f1_sums = rightly_abstained + np.append(0, np.cumsum(f1))  # [Q + 1]

    # Of questions with equal odds only the last one's threshold can be set.
    below_all = odds[0] - 1 if count else 0.0
    thresholds = np.append(below_all, odds)
    is_last = np.append(thresholds[1:] > thresholds[:-1], True)
    return Sweep(
        thresholds=thresholds[is_last],
        given=given[is_last],
        matches=matches[is_last],
        rightly_abstained=rightly_abstained[is_last],
        f1=100 / max(count, 1) * f1_sums[is_last],
        questions=count,
    )


class Bin(NamedTuple):
    """Results of similar probability."""

    lowest: float  # probability that is in it
    probability: float  # mean
    matches: int  # results that are right
    answers: int


def reliability(probabilities: np.ndarray, right: np.ndarray) -> list[Bin]:
    """Return the bins of at least FEWEST answers, ascending; both arrays are [Q]."""
    place = np.minimum((probabilities * BINS).astype(int), BINS - 1)  # [Q]
    bins = []
    for number in range(BINS):
        chosen = place == number
        if chosen.sum() >= FEWEST:
            bins.append(
                Bin(
                    lowest=number / BINS,
                    probability=float(probabilities[chosen].mean()),
                    matches=int(right[chosen].sum()),
                    answers=int(chosen.sum()),
                )
            )
    return bins
