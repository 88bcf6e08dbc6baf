"""Masking: whole words, n-grams, rates. Spans: where query and answer come from, labels."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.squad.tokenizer import named_tokenizer
from pretrain.examples import NO_LABEL
from pretrain.masking import choose_tokens, corrupt, find_words, read_vocabulary
from pretrain.spans import make_cloze
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS
from tests.fakes.text import VOCABULARY, make_examples

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


def test_ngram_lengths_follow_one_over_n_and_80_10_10() -> None:
    words = find_words([np.full(4000, 5)], VOCABULARY)
    runs: Counter = Counter()
    rng = np.random.default_rng(0)
    for _ in range(60):
        chosen = choose_tokens(words, 0.02, 3, rng)
        runs.update(map(len, np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1)))
    total = sum(runs.values())
    for n, wanted in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        assert runs[n] / total == pytest.approx(wanted, abs=0.03)
    # 80 % are masked, 10 % random, 10 % unchanged.
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
    starts, pieces = read_vocabulary(TOKENIZERS["bert"]).starts_word, TOKENIZERS["bert"].vocab
    within = {piece for piece, at in pieces.items() if not starts[at]}
    assert within == {"##s", "##k", "##66", "##ive"}


sentence = st.lists(st.integers(5, 24), min_size=1, max_size=40).map(np.array)


@given(st.lists(sentence, min_size=2, max_size=8), st.integers(0, 2**32))
def test_an_exercise_is_of_one_sentence_of_the_window(parts: list[np.ndarray], seed: int) -> None:
    tokens, sizes = np.concatenate(parts), np.array([len(part) for part in parts])
    cloze = make_cloze(tokens, sizes, VOCABULARY, np.random.default_rng(seed))
    if cloze is None:
        return
    asked = cloze.query[cloze.query != VOCABULARY.mask]
    assert len(cloze.query) - len(asked) <= 1 and len(asked) >= 3
    if cloze.first < 0:
        rests = [np.concatenate(parts[:i] + parts[i + 1 :]) for i in range(len(parts))]
        left_out = [i for i, rest in enumerate(rests) if np.array_equal(rest, cloze.passage)]
        assert cloze.last < 0 and any(is_part_of(asked, parts[i]) for i in left_out)
        return
    assert len(cloze.query) + len(cloze.passage) == len(tokens)
    room = len(cloze.query)
    sides = {0: tokens[:-room], room: tokens[room:]}  # by where the passage begins
    offsets = [at for at, side in sides.items() if np.array_equal(cloze.passage, side)]
    assert offsets
    answer = cloze.passage[cloze.first : cloze.last + 1]
    assert len(answer) and VOCABULARY.lettered[answer[0]]
    # Within one sentence, of which the rest is asked with.
    ends, found = np.cumsum(sizes), []
    for offset in offsets:
        first, last = cloze.first + offset, cloze.last + offset
        number = int(np.searchsorted(ends, first, side="right"))
        begin = ends[number] - sizes[number]
        rest = np.concatenate([tokens[begin:first], tokens[last + 1 : ends[number]]])
        found.append(last < ends[number] and is_part_of(asked, rest))
    assert any(found)


def is_part_of(some: np.ndarray, tokens: np.ndarray) -> bool:
    return Counter(some.tolist()) <= Counter(tokens.tolist())


def test_exercises_hide_nothing_and_point_at_their_answer(tmp_path: Path) -> None:
    examples = make_examples(tmp_path, text="generated", span_fraction=0.5)
    special, kinds = examples.vocabulary, [0, 0, 0]
    for epoch, number in itertools.product(range(4), range(200)):
        made = examples.make(epoch, number)
        first, last, ids = made["start_positions"], made["end_positions"], made["input_ids"]
        kinds[0 if first == NO_LABEL else 1 if first == 0 else 2] += 1
        if first == NO_LABEL:
            assert last == NO_LABEL and len(made["masked"])
            continue
        assert not len(made["masked"]) and made["sop_labels"] == NO_LABEL
        query, types = int(np.flatnonzero(ids == special.sep)[0]) + 1, made["token_type_ids"]
        assert not types[:query].any() and types[query:].all()
        if first:
            assert query <= first <= last < len(ids) - 1
            assert special.lettered[ids[first : last + 1]].any()
        assert first or not last  # [CLS], where the answer is not there
    assert 0.4 < kinds[0] / sum(kinds) < 0.6 and kinds[2] > 2 * kinds[1] > 0
