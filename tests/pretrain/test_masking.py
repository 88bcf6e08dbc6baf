"""Masking: whole words, n-grams, rates, no special token."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.squad.tokenizer import named_tokenizer
from pretrain.masking import choose_tokens, corrupt, find_words, read_vocabulary
from tests.conftest import max_examples
from tests.fakes.text import VOCABULARY

segment = st.lists(st.integers(5, 24), min_size=1, max_size=60).map(np.array)
segments = st.lists(segment, min_size=1, max_size=2)


@given(segments, st.integers(0, 2**32), st.floats(0.01, 0.9), st.integers(1, 4))
@max_examples(300)
def test_whole_words_within_the_rate(
    parts: list[np.ndarray], seed: int, fraction: float, max_ngram: int
) -> None:
    words = find_words(parts, VOCABULARY)
    begins, ends, owners = words
    total = sum(map(len, parts))
    # The words cover every token once, and none reaches over two segments.
    spans = list(zip(begins, ends, strict=True))
    assert np.array_equal(np.concatenate([np.arange(b, e) for b, e in spans]), np.arange(total))
    border = len(parts[0])
    found = zip(begins, ends, owners, strict=True)
    assert all((b < border) == (e <= border) == (o == 0) for b, e, o in found)
    chosen = choose_tokens(words, fraction, max_ngram, np.random.default_rng(seed))
    assert len(set(chosen.tolist())) == len(chosen) and np.array_equal(chosen, np.sort(chosen))
    hidden = set(chosen.tolist())
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        assert len(hidden.intersection(range(begin, end))) in (0, end - begin)
    budget = max(1, round(fraction * total))
    shortest = int((ends - begins).min())
    assert 1 <= len(chosen) <= max(budget, shortest)
    again = choose_tokens(words, fraction, max_ngram, np.random.default_rng(seed))
    assert np.array_equal(chosen, again)


def test_ngram_lengths_follow_one_over_n() -> None:
    """Long text of one-piece words and a low rate, so that n-grams hardly ever touch."""
    words = find_words([np.full(4000, 5)], VOCABULARY)
    runs: Counter = Counter()
    rng = np.random.default_rng(0)
    for _ in range(60):
        chosen = choose_tokens(words, 0.02, 3, rng)
        runs.update(map(len, np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1)))
    total = sum(runs.values())
    for n, wanted in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        assert runs[n] / total == pytest.approx(wanted, abs=0.03)


def test_80_10_10() -> None:
    ids = np.full(50_000, 7)
    shown = corrupt(ids, VOCABULARY, np.random.default_rng(0))
    assert np.mean(shown == VOCABULARY.mask) == pytest.approx(0.8, abs=0.01)
    changed = (shown != 7) & (shown != VOCABULARY.mask)
    assert np.mean(changed) == pytest.approx(0.1 * 19 / 20, abs=0.01)  # 1 in 20 draws the same
    assert set(np.unique(shown)) == {4, *range(5, 25)}  # never another special piece


def test_real_vocabularies_know_where_words_start(shared: Path) -> None:
    tokenizer = named_tokenizer(str(shared / "albert-tokenizer"))
    vocabulary = read_vocabulary(tokenizer)
    ids = np.array(tokenizer("unbelievably tall, (yes)", add_special_tokens=False)["input_ids"])
    begins, ends, _ = find_words([ids], vocabulary)
    found = zip(begins, ends, strict=True)
    words = ["".join(tokenizer.convert_ids_to_tokens(ids[b:e])) for b, e in found]
    assert words == ["▁unbelievably", "▁tall", ",", "▁", "(yes", ")"]
    assert not np.isin(tokenizer.all_special_ids, vocabulary.ordinary).any()
