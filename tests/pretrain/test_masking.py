"""Masking: whole words, n-grams, rates. Spans: where query and answer come from, labels."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.examples import NO_LABEL
from pretrain.masking import choose_tokens, corrupt, find_words
from pretrain.spans import make_cloze
from tests.conftest import max_examples
from tests.fakes.text import VOCABULARY, make_examples

segment = st.lists(st.integers(5, 24), min_size=1, max_size=60).map(np.array)
segments = st.lists(segment, min_size=1, max_size=2)


@given(segments, st.integers(0, 2**32), st.floats(0.01, 0.9), st.integers(1, 4))
@max_examples(300)
def test_whole_words_within_the_rate(segments, seed, fraction, max_ngram):
    words = find_words(segments, VOCABULARY)
    begins, ends, owners = words
    total = sum(len(segment) for segment in segments)

    # The words cover every token once, and none reaches over two segments.
    covered = [np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)]
    assert np.array_equal(np.concatenate(covered), np.arange(total))
    in_first = begins < len(segments[0])
    assert np.array_equal(in_first, ends <= len(segments[0]))
    assert np.array_equal(in_first, owners == 0)

    masked = choose_tokens(words, fraction, max_ngram, np.random.default_rng(seed))

    # In order, each once, and whole words.
    assert (np.diff(masked) > 0).all()
    for word in covered:
        assert np.isin(word, masked).sum() in (0, len(word))
    budget = max(1, round(fraction * total))
    shortest = int((ends - begins).min())
    assert 1 <= len(masked) <= max(budget, shortest)
    masked_again = choose_tokens(words, fraction, max_ngram, np.random.default_rng(seed))
    assert np.array_equal(masked, masked_again)


def test_of_masked_tokens_80_10_10_percent_are_masks_random_and_unchanged():
    ids = np.full(50_000, 7)

    inputs = corrupt(ids, VOCABULARY, np.random.default_rng(0))

    is_mask = inputs == VOCABULARY.mask
    assert np.mean(is_mask) == pytest.approx(0.8, abs=0.01)
    is_random = (inputs != 7) & ~is_mask
    assert np.mean(is_random) == pytest.approx(0.1 * 19 / 20, abs=0.01)  # 1 in 20 draws the same
    assert set(np.unique(inputs)) == {4, *range(5, 25)}  # never another special token


sentence = st.lists(st.integers(5, 24), min_size=1, max_size=40).map(np.array)


@given(st.lists(sentence, min_size=2, max_size=8), st.integers(0, 2**32))
def test_an_exercise_is_of_one_sentence_of_the_window(sentences, seed):
    tokens = np.concatenate(sentences)
    sizes = np.array([len(sentence) for sentence in sentences])

    cloze = make_cloze(tokens, sizes, VOCABULARY, np.random.default_rng(seed))

    if cloze is None:  # no sentence has enough words
        return
    query = cloze.query[cloze.query != VOCABULARY.mask]
    assert len(query) >= 3
    assert len(cloze.query) - len(query) <= 1  # one mask at most
    if cloze.first < 0:
        assert cloze.last < 0
        assert_unanswerable(cloze.passage, query, sentences)
    else:
        assert_answerable(cloze, query, sentences)


def test_few_queries_swap_what_is_before_and_after_the_answer():
    """Four tenths of the hardest, and the mean hardness is a third."""
    tokens = np.tile(np.arange(5, 15), 2)  # two sentences of ten words
    swapped = []
    for seed in range(500):
        cloze = make_cloze(tokens, [10, 10], VOCABULARY, np.random.default_rng(seed))
        query = cloze.query[cloze.query != VOCABULARY.mask]
        swapped.append((np.diff(query) < 0).any())
    assert 0.03 < np.mean(swapped) < 0.2


def assert_unanswerable(passage, query, sentences):
    """Assert that the passage lacks a whole sentence, the one of the query."""
    asked_sentences = []
    for number, sentence in enumerate(sentences):
        others = np.concatenate(sentences[:number] + sentences[number + 1 :])
        if np.array_equal(others, passage):
            asked_sentences.append(sentence)
    assert any(is_part_of(query, sentence) for sentence in asked_sentences)


def assert_answerable(cloze, query, sentences):
    """Assert that the answer is within one sentence, the rest of which the query is made of."""
    tokens = np.concatenate(sentences)
    assert len(cloze.query) + len(cloze.passage) == len(tokens)
    answer = cloze.passage[cloze.first : cloze.last + 1]
    assert len(answer)
    assert VOCABULARY.lettered[answer[0]]

    # The passage leaves room for the query at the window's end or at its beginning.
    room = len(cloze.query)
    offsets = []
    if np.array_equal(cloze.passage, tokens[:-room]):
        offsets.append(0)
    if np.array_equal(cloze.passage, tokens[room:]):
        offsets.append(room)

    fits = []
    sentence_ends = np.cumsum([len(sentence) for sentence in sentences])
    for offset in offsets:
        first = cloze.first + offset
        last = cloze.last + offset
        number = int(np.searchsorted(sentence_ends, first, side="right"))
        end = sentence_ends[number]
        begin = end - len(sentences[number])
        around = np.concatenate([tokens[begin:first], tokens[last + 1 : end]])
        fits.append(last < end and is_part_of(query, around))
    assert any(fits)


def is_part_of(tokens, others):
    """Return whether `others` has every token at least as often."""
    return Counter(tokens.tolist()) <= Counter(others.tolist())


def test_exercises_hide_nothing_and_point_at_their_answer(tmp_path):
    examples = make_examples(tmp_path, text="generated", span_fraction=0.5)
    vocabulary = examples.vocabulary
    kinds = Counter()
    for epoch, number in itertools.product(range(4), range(200)):
        example = examples.make(epoch, number)
        first = example["start_positions"]
        last = example["end_positions"]
        if first == NO_LABEL:
            kinds["masked"] += 1
            assert last == NO_LABEL
            assert len(example["masked"])
            continue

        # An exercise: [CLS] query [SEP] passage [SEP], nothing masked.
        assert not len(example["masked"])
        assert example["sop_labels"] == NO_LABEL
        ids = example["input_ids"]
        passage_begin = int(np.flatnonzero(ids == vocabulary.suffix)[0]) + 1
        types = example["token_type_ids"]
        assert not types[:passage_begin].any()
        assert types[passage_begin:].all()
        if first == 0:  # [CLS]: the answer is not in the passage
            kinds["unanswerable"] += 1
            assert last == 0
        else:
            kinds["answerable"] += 1
            assert passage_begin <= first <= last < len(ids) - 1
            assert vocabulary.lettered[ids[first : last + 1]].any()

    assert 0.4 < kinds["masked"] / kinds.total() < 0.6
    assert kinds["answerable"] > 2 * kinds["unanswerable"] > 0
