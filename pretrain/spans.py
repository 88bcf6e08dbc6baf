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
_UNANSWERABLE = 0.3
_SWAPPED = 0.4
_DROPPED = 0.5

# How often the gap is a [MASK].
_MARKED = 0.5
# Words of a gap, each equally likely.
_GAPS = (1, 1, 2, 3)
# Words on each side of the gap, from and to.
_REACH = (2, 8)
# Words of a query.
_SHORTEST = 3
# Sentences that are tried.
_TRIES = 4
# A gap needs a word with a token that is not more frequent than this in the window.
_OFTEN = 2


class Cloze(NamedTuple):
    """A query, a passage and its answer."""

    query: np.ndarray  # token ids, int64 [Q]
    passage: np.ndarray  # token ids, int64 [P]
    first: int  # token of the answer in the passage; -1 if it is not there
    last: int


def make_cloze(
    tokens: np.ndarray,
    sentences: np.ndarray,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
) -> Cloze | None:
    """Return an exercise on a window, or None if no sentence that was drawn has enough words.

    Args:
        tokens: of the window, int64 [T].
        sentences: their lengths, int64 [S].
        vocabulary: of the tokens.
        rng: source of all random numbers.
    """
    hardness = rng.random() ** 2  # most exercises are easy
    ends = np.cumsum(sentences)  # [S]
    counts = np.bincount(tokens, minlength=len(vocabulary.starts_word))  # [V]
    for number in rng.integers(len(sentences), size=_TRIES).tolist():
        end = int(ends[number])
        begin = end - int(sentences[number])
        sentence = tokens[begin:end]
        is_rare = counts[sentence] <= _OFTEN
        cloze = _make_query(sentence, is_rare, hardness, vocabulary, rng)
        if cloze is None:
            continue

        # Unanswerable: a passage without the sentence.
        if rng.random() < _UNANSWERABLE * hardness:
            passage = np.concatenate([tokens[:begin], tokens[end:]])
            return cloze._replace(passage=passage, first=-1, last=-1)

        # The query takes its room from the end of the window that is farther from the sentence.
        room = len(cloze.query)
        cut = room if begin + end > len(tokens) else 0
        passage = tokens[cut : len(tokens) - room + cut]
        offset = begin - cut  # of the sentence in the passage
        if offset >= 0 and end - cut <= len(passage):
            return cloze._replace(
                passage=passage,
                first=offset + cloze.first,
                last=offset + cloze.last,
            )
    return None


def _make_query(
    sentence: np.ndarray,
    is_rare: np.ndarray,
    hardness: float,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
) -> Cloze | None:
    """Return a query on one sentence, which is its passage, int64 [T], or None; `is_rare` is of
    each token, bool [T].
    """
    words = find_words([sentence], vocabulary)
    gap = _GAPS[rng.integers(len(_GAPS))]

    # A gap can begin where all of its words have letters or digits, and one of them is rare.
    spelled = np.logical_or.reduceat(vocabulary.lettered[sentence], words.begins)  # [W]
    rare = np.logical_or.reduceat(is_rare, words.begins)  # [W]
    places = []
    for word in range(len(words.begins) - gap + 1):
        chosen = slice(word, word + gap)
        if spelled[chosen].all() and rare[chosen].any():
            places.append(word)
    if not places:
        return None
    gap_begin = places[rng.integers(len(places))]
    gap_end = gap_begin + gap

    # The words on both sides, without some.
    left, right = rng.integers(_REACH[0], _REACH[1] + 1, size=2).tolist()
    is_asked = rng.random(len(words.begins)) >= _DROPPED * hardness * rng.random()
    tokens = np.split(sentence, words.begins[1:])  # of each word
    before = range(max(0, gap_begin - left), gap_begin)
    after = range(gap_end, min(gap_end + right, len(tokens)))
    half = [tokens[word] for word in before if is_asked[word]]
    other_half = [tokens[word] for word in after if is_asked[word]]
    if len(half) + len(other_half) < _SHORTEST:
        return None

    if rng.random() < _SWAPPED * hardness:
        half, other_half = other_half, half
    # A gap that is not marked has to be noticed.
    mark = [np.array([vocabulary.mask])] if rng.random() < _MARKED else []
    return Cloze(
        query=np.concatenate([*half, *mark, *other_half]),
        passage=sentence,
        first=int(words.begins[gap_begin]),
        last=int(words.ends[gap_end - 1]) - 1,
    )
