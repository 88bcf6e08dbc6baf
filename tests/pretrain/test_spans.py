"""Span selection: where query and answer come from, rates, labels, loss against the library's."""

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AlbertForQuestionAnswering

from detalbert.engine.forward import Forward
from pretrain.examples import NO_LABEL, Examples
from pretrain.objectives import score_row, span_losses
from pretrain.spans import make_cloze
from tests.fakes.text import VOCABULARY, make_examples, make_forward, tickets

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
    at_end = np.array_equal(cloze.passage, tokens[:-room])
    assert at_end or np.array_equal(cloze.passage, tokens[room:])
    answer = cloze.passage[cloze.first : cloze.last + 1]
    assert len(answer) and VOCABULARY.lettered[answer[0]]
    # Within one sentence, of which the rest is asked with.
    offsets = {0} if at_end else set()
    offsets |= {room} if np.array_equal(cloze.passage, tokens[room:]) else set()
    ends = np.cumsum(sizes)
    found = []
    for offset in offsets:
        first, last = cloze.first + offset, cloze.last + offset
        number = int(np.searchsorted(ends, first, side="right"))
        begin = ends[number] - sizes[number]
        rest = np.concatenate([tokens[begin:first], tokens[last + 1 : ends[number]]])
        found.append(last < ends[number] and is_part_of(asked, rest))
    assert any(found)


def is_part_of(some: np.ndarray, tokens: np.ndarray) -> bool:
    """Whether `tokens` has each of these at least as often."""
    return Counter(some.tolist()) <= Counter(tokens.tolist())


def test_holes_are_whole_words_and_one_in_ten_is_not_there() -> None:
    """Words of two pieces, each word twice, in two sentences of ten words."""
    rng = np.random.default_rng(0)
    absent, sizes, asked = 0, [], []
    for _ in range(4000):
        words = np.concatenate([rng.permutation(10), rng.permutation(10)])[:, None]
        tokens = np.concatenate([words + 5, words + 15], axis=1).ravel()
        cloze = make_cloze(tokens, np.array([20, 20]), VOCABULARY, rng)
        if cloze is None:
            continue
        absent += cloze.first < 0
        asked.append(len(cloze.query) // 2)
        if cloze.first >= 0:
            assert cloze.passage[cloze.first] < 15 <= cloze.passage[cloze.last]
            sizes.append((cloze.last + 1 - cloze.first) // 2)
    assert absent + len(sizes) > 3500
    assert absent / (absent + len(sizes)) == pytest.approx(0.1, abs=0.02)
    assert np.mean(asked) == pytest.approx(6, abs=0.3)  # words of a query
    shares = np.bincount(sizes, minlength=5) / len(sizes)
    assert shares == pytest.approx([0, 0.5, 0.25, 0.25, 0], abs=0.06)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    folder = tmp_path_factory.mktemp("text")
    return make_examples(folder, text="generated", span_fraction=0.5)


def test_exercises_hide_nothing_and_point_at_their_answer(examples: Examples) -> None:
    special, kinds = examples.vocabulary, [0, 0, 0]
    for number in range(200):
        for epoch in range(4):
            made = examples.make(epoch, number)
            assert len(made["input_ids"]) <= examples.lengths[number]
            if made["start"] == NO_LABEL:
                assert made["end"] == NO_LABEL and len(made["masked"])
                kinds[0] += 1
                continue
            assert not len(made["masked"]) and made["sop_label"] == NO_LABEL
            ids, types = made["input_ids"], made["token_type_ids"]
            query = int(np.flatnonzero(ids == special.sep)[0]) + 1
            assert ids[0] == special.cls and ids[-1] == special.sep
            assert not types[:query].any() and types[query:].all()
            if made["start"] == 0:
                assert made["end"] == 0
                kinds[1] += 1
            else:
                assert query <= made["start"] <= made["end"] < len(ids) - 1
                answer = ids[made["start"] : made["end"] + 1]
                assert special.lettered[answer].any()
                kinds[2] += 1
    total = sum(kinds)
    assert 0.4 < kinds[0] / total < 0.6 and kinds[2] > 2 * kinds[1] > 0


@pytest.fixture(scope="module")
def run() -> Forward:
    return make_forward(span_fraction=0.5)


@pytest.mark.parametrize("multiple", [1, 64])
def test_the_loss_is_the_librarys(run: Forward, examples, multiple: int, monkeypatch) -> None:
    monkeypatch.setattr(run, "multiple", multiple)
    row = examples.row(tickets(12))
    _, _, spans = run(row)
    asked = row["start_positions"] != NO_LABEL
    assert 2 < asked.sum() < 12 and spans.shape == (len(row["input_ids"]), 2)
    losses = span_losses(spans, row)
    assert not losses[~asked].any()

    config = copy.deepcopy(run.model.config)
    library = AlbertForQuestionAnswering._from_config(config, attn_implementation="eager")
    known = {k: v for k, v in run.model.state_dict().items() if k in library.state_dict()}
    assert set(library.state_dict()) == set(known)  # the head goes over to fine-tuning
    library.load_state_dict(known)
    library.eval()
    for number in np.flatnonzero(asked).tolist():
        made = examples.make(0, number)
        found = library(
            input_ids=torch.from_numpy(made["input_ids"])[None],
            token_type_ids=torch.from_numpy(made["token_type_ids"])[None],
            start_positions=torch.tensor([made["start"]]),
            end_positions=torch.tensor([made["end"]]),
        )
        torch.testing.assert_close(losses[number], found.loss, rtol=0, atol=1e-5)


def test_scores_count_spans_of_which_both_ends_are_right(run: Forward, examples) -> None:
    row = examples.row(tickets(12))
    mlm, sop, _ = run(row)
    asked = row["start_positions"] != NO_LABEL
    at = [
        (row["cu_seqlens"][:-1] + row[name])[asked] for name in ("start_positions", "end_positions")
    ]
    perfect = torch.zeros(len(row["input_ids"]), 2)
    perfect[at[0], 0] = perfect[at[1], 1] = 20.0
    sums = score_row(row, mlm, sop, perfect)
    assert sums["span_hits"] == sums["spans"] == asked.sum() > 2 and sums["span_loss"] < 1e-3
    perfect[at[1][0], 1] = -20.0
    assert score_row(row, mlm, sop, perfect)["span_hits"] == asked.sum() - 1
