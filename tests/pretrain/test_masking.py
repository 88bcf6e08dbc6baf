"""Masking: whole words, n-grams, rates, no special token, functions of (seed, epoch, number)."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detalbert.corpus.reader import Corpus
from detalbert.corpus.writer import write_corpus
from detalbert.settings.text import TextConfig
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.examples import NO_LABEL, Examples
from pretrain.hparams import parse_pretrain_hparams
from pretrain.masking import Vocabulary, choose_tokens, corrupt, find_words, read_vocabulary

# Pieces 0..4 are special, 5..14 start a word, 15..24 go on with one.
VOCABULARY = Vocabulary(
    starts_word=np.array([True] * 15 + [False] * 10),
    lettered=np.array([False] * 5 + [True] * 20),
    ordinary=np.arange(5, 25),
    mask=4,
    cls=2,
    sep=3,
)
segment = st.lists(st.integers(5, 24), min_size=1, max_size=60).map(np.array)
segments = st.lists(segment, min_size=1, max_size=2)


@given(segments, st.integers(0, 2**32), st.floats(0.01, 0.9), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
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
    assert all((b < border) == (e <= border) == (o == 0)
               for b, e, o in zip(begins, ends, owners, strict=True))  # fmt: skip
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


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """Twenty documents of words that name them, one per line."""
    return make_examples(tmp_path_factory.mktemp("text"))


def make_examples(folder: Path, text: str | None = None, **more: Any) -> Examples:
    letters = "abcdefghijklmnopqrst"
    sentence = "{0}{0}{0} the {1} was {0}."
    lines = [
        " ".join(sentence.format(x, x * (i % 4 + 2)).capitalize() for i in range(30))
        for x in letters
    ]
    (folder / "text.txt").write_text("\n".join(lines))
    data = TextConfig(
        tokenizer="embedded/albert-tiny",
        text=text or str(folder / "text.txt"),
        validation="generated",
        cache_dir=str(folder),
    )
    hparams = parse_pretrain_hparams({"size": "tiny", "max_seq_length": 96, **more})
    tokenizer = named_tokenizer(data.tokenizer)
    corpus = Corpus(str(write_corpus(data, tokenizer, 96)), "train", data)
    return Examples(corpus, read_vocabulary(tokenizer), hparams)


def original(examples: Examples, made: Any) -> tuple[np.ndarray, np.ndarray]:
    """The text tokens of an example before masking, and its segment ids."""
    ids = made["input_ids"].copy()
    ids[made["masked"]] = made["mlm_labels"]
    special = np.isin(ids, [examples.vocabulary.cls, examples.vocabulary.sep])
    return ids[~special], made["token_type_ids"][~special]


def test_examples_keep_to_their_document(examples: Examples) -> None:
    special = [examples.vocabulary.cls, examples.vocabulary.sep]
    swapped: Counter = Counter()
    rate = []
    for number in range(len(examples.corpus)):
        for epoch in range(3):
            made = examples.make(epoch, number)
            assert len(made["input_ids"]) == examples.lengths[number] <= 96
            assert not np.isin(made["mlm_labels"], special).any()
            places = np.flatnonzero(np.isin(made["input_ids"], special))
            assert not set(places) & set(made["masked"])
            text, types = original(examples, made)
            tokens, _ = examples.corpus.example(number)
            parts = [text[types == 0], text[types == 1]]
            order = parts[::-1] if made["sop_label"] == 1 else parts
            assert np.array_equal(np.concatenate(order), tokens)  # all of one document, in order
            assert made["sop_label"] == NO_LABEL or all(map(len, parts))
            swapped[made["sop_label"]] += 1
            rate.append((len(made["masked"]), len(tokens)))
    assert 0.4 < swapped[1] / (swapped[0] + swapped[1]) < 0.6
    hidden, total = np.sum(rate, axis=0)
    assert 0.12 < hidden / total <= 0.16


def test_documents_do_not_share_an_example(examples: Examples) -> None:
    tokenizer = named_tokenizer("embedded/albert-tiny")
    for number in range(len(examples.corpus)):
        text = tokenizer.decode(examples.corpus.example(number)[0])
        text = text.replace("the", "").replace("was", "")
        assert len(set(filter(str.isalpha, text))) == 1, text


def test_masks_are_a_function_of_seed_epoch_and_number(examples: Examples, tmp_path: Path) -> None:
    again = make_examples(tmp_path)
    other = make_examples(tmp_path, seed=7)
    same = [examples.make(3, n)["input_ids"].tolist() for n in range(8)]
    assert same == [again.make(3, n)["input_ids"].tolist() for n in range(8)]
    assert same != [examples.make(4, n)["input_ids"].tolist() for n in range(8)]
    assert same != [other.make(3, n)["input_ids"].tolist() for n in range(8)]


def test_one_segment_without_sentence_order(tmp_path: Path) -> None:
    examples = make_examples(tmp_path, sentence_order=False)
    made = examples.make(0, 0)
    assert made["sop_label"] == NO_LABEL and not made["token_type_ids"].any()
    assert len(made["input_ids"]) == len(examples.corpus.example(0)[0]) + 2


def test_real_vocabularies_know_where_words_start(shared: Path) -> None:
    tokenizer = named_tokenizer(str(shared / "albert-tokenizer"))
    vocabulary = read_vocabulary(tokenizer)
    ids = np.array(tokenizer("unbelievably tall, (yes)", add_special_tokens=False)["input_ids"])
    begins, ends, _ = find_words([ids], vocabulary)
    words = ["".join(tokenizer.convert_ids_to_tokens(ids[b:e])) for b, e in
             zip(begins, ends, strict=True)]  # fmt: skip
    assert words == ["▁unbelievably", "▁tall", ",", "▁", "(", "yes", ")"] or words[:3] == [
        "▁unbelievably", "▁tall", ",",
    ]  # fmt: skip
    assert not np.isin(tokenizer.all_special_ids, vocabulary.ordinary).any()
