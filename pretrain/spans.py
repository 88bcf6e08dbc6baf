"""Span selection: a query with a gap, and a passage with the answer, laid out as a SQuAD example.

Masked words and sentence order alone do not teach a small model to find in one text what another
asks for. So some windows become reading exercises (after Glass et al. 2020, arXiv:1909.04120, and
Ram et al. 2021, arXiv:2101.00438): a stretch of one sentence, without one to three of its words,
asks for these words in the window. In a harder exercise the query lacks more words and its halves
are swapped more often. Or the passage lacks the sentence, and [CLS] is the answer. Most exercises
are easy: with only the hardest a small model found no answers.
"""

from typing import NamedTuple

import numpy as np

from pretrain.masking import Vocabulary, find_words

# How often, or how much, in the hardest exercise; in others u * u times that, u uniform in 0..1.
_UNANSWERABLE, _SWAPPED, _DROPPED = 0.3, 0.4, 0.5
_MARKED = 0.5  # how often the hole is a [MASK]
_HOLES = (1, 1, 2, 3)  # words, each equally likely
_REACH = 2, 8  # words on each side of the hole, from and to
_SHORTEST = 3  # words of a query
_TRIES = 4  # sentences that are tried
_OFTEN = 2  # a hole needs a word with a piece that is not more frequent than this in the window


class Cloze(NamedTuple):
    """A query, a passage and its answer."""

    query: np.ndarray  # token ids, int64 [Q]
    passage: np.ndarray  # token ids, int64 [P]
    first: int  # token of the answer in the passage; -1 if it is not there
    last: int


def make_cloze(
    tokens: np.ndarray, sentences: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
) -> Cloze | None:
    """Return an exercise on a window: `tokens` int64 [T], in sentences of these lengths int64 [S].
    None if no sentence that was drawn has enough words.
    """
    hard = rng.random() ** 2
    ends = np.cumsum(sentences)  # [S]
    counts = np.bincount(tokens, minlength=len(vocabulary.starts_word))  # [V]
    for number in rng.integers(len(sentences), size=_TRIES).tolist():
        begin, end = int(ends[number] - sentences[number]), int(ends[number])
        asked = _ask(tokens[begin:end], counts, hard, vocabulary, rng)
        if asked is None:
            continue
        query, first, last = asked
        if rng.random() < _UNANSWERABLE * hard:
            return Cloze(query, np.concatenate([tokens[:begin], tokens[end:]]), -1, -1)
        # The query takes its room from the end of the window that is farther from the sentence.
        cut = len(query) if begin + end > len(tokens) else 0
        passage = tokens[cut : len(tokens) - len(query) + cut]
        if begin >= cut and end <= cut + len(passage):
            return Cloze(query, passage, begin + first - cut, begin + last - cut)
    return None


def _ask(
    sentence: np.ndarray,
    counts: np.ndarray,
    hard: float,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
) -> tuple[np.ndarray, int, int] | None:
    """Return a query on one sentence, and first and last token of its answer there; or None."""
    begins, ends, _ = find_words([sentence], vocabulary)  # [W], [W]
    hole = _HOLES[rng.integers(len(_HOLES))]
    spelled = np.logical_or.reduceat(vocabulary.lettered[sentence], begins)  # [W]
    rare = np.minimum.reduceat(counts[sentence], begins) <= _OFTEN  # [W]
    # Words where a hole can begin: all its words have letters or digits, one of them is rare.
    places = len(begins) - hole + 1
    fits = [w for w in range(places) if spelled[w : w + hole].all() and rare[w : w + hole].any()]
    if not fits:
        return None
    word = fits[rng.integers(len(fits))]
    left, right = rng.integers(_REACH[0], _REACH[1] + 1, size=2).tolist()
    kept = rng.random(len(begins)) >= _DROPPED * hard * rng.random()
    before = range(max(0, word - left), word)
    after = range(word + hole, min(len(begins), word + hole + right))
    sides = [[sentence[begins[w] : ends[w]] for w in side if kept[w]] for side in (before, after)]
    if len(sides[0]) + len(sides[1]) < _SHORTEST:
        return None
    if rng.random() < _SWAPPED * hard:
        sides.reverse()
    mark = [np.array([vocabulary.mask])] if rng.random() < _MARKED else []
    query = np.concatenate([*sides[0], *mark, *sides[1]])
    return query, int(begins[word]), int(ends[word + hole - 1]) - 1
