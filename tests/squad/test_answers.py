"""Spans of windows and their merging: against the golden files and against plain loops."""

import doctest
import hashlib
import json
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import squad_utils
from detalbert.squad.answers import merge_answers, n_best_list
from detalbert.squad.decoding import Candidates, best_spans
from detalbert.squad.example import Example
from detalbert.squad.windows import build_windows
from tests.conftest import max_examples
from tests.fakes.questions import (
    TOKENIZERS,
    WORDS,
    decode,
    decoding_cases,
    plain_n_best,
    tensors,
)

EMPTY = (0.0, "empty")  # the reference's placeholder of a question without spans


class Pool(NamedTuple):
    """What the reference knows of a question after all of its windows."""

    spans: list[tuple[float, str]]  # score and text, best first
    null_score: float


def plain_pools(examples, windows, logits, k, longest):
    """Return the spans with text of each question, and its null score, by plain loops."""
    spans = {}
    null_scores = {}
    context_starts = windows.context_starts(np.arange(len(windows)))
    for window, (start, end) in enumerate(logits):
        example = examples[windows.example_index[window]]
        low = int(context_starts[window])
        high = low + int(windows.context_length[window])
        offsets = windows.context_offsets[windows.context_begin[window] :]

        texts = spans.setdefault(example.id, [])
        for first, last in plain_n_best(start, end, low, high, k, longest):
            begin_char = offsets[first - low, 0]
            end_char = offsets[last - low, 1]
            text = example.context[begin_char:end_char]
            if text:
                texts.append((start[first] + end[last], text))

        # The least null score of the windows is the question's.
        null_score = start[0] + end[0]
        null_scores[example.id] = min(null_score, null_scores.get(example.id, float("inf")))

    return {
        question: Pool(sorted(texts, key=lambda span: -span[0]), null_scores[question])
        for question, texts in spans.items()
    }


@pytest.mark.slow
@given(decoding_cases(), st.integers(-2, 2), st.randoms(use_true_random=False))
@max_examples(200)
def test_answers_are_those_of_the_plain_loops(case, threshold, random):
    (examples, windows), logits, k, longest = case

    # All windows in one row.
    candidates = decode(windows, logits, range(len(windows)), k, longest)
    assert_plain_spans(candidates, windows, logits, k, longest)
    answers = merge_answers(examples, windows, [candidates], threshold)
    n_best = n_best_list(examples, windows, [candidates], k)

    # The same windows in any order in two rows. The second overlaps the first by a window, as a
    # sampler that pads would do.
    order = list(range(len(windows)))
    random.shuffle(order)
    cut = random.randint(0, len(order) - 1)
    rows = [
        decode(windows, logits, order[: cut + 1], k, longest),
        decode(windows, logits, order[cut:], k, longest),
    ]
    assert merge_answers(examples, windows, rows, threshold) == answers
    assert n_best_list(examples, windows, rows, k) == n_best

    assert list(answers.predictions) == [example.id for example in examples]
    assert list(n_best) == [example.id for example in examples]
    pools = plain_pools(examples, windows, logits, k, longest)
    contexts = {example.id: example.context for example in examples}
    for question, pool in pools.items():
        assert_plain_answer(question, pool, answers, threshold)
        assert_plain_list(n_best[question], pool, k)
        assert_places(n_best[question], pool, contexts[question])
        prediction = answers.predictions[question]
        if prediction:
            assert prediction in [entry["text"] for entry in n_best[question]]


def assert_plain_answer(question, pool, answers, threshold):
    """Compare a question's answer with the best span of its pool."""
    score, text = pool.spans[0] if pool.spans else EMPTY
    odds = answers.null_odds[question]
    assert odds == pytest.approx(pool.null_score - score, abs=1e-5)
    assert answers.predictions[question] == ("" if odds > threshold else text)


def assert_plain_list(entries, pool, k):
    """Compare a question's list with the best spans of its pool, "no answer" in its place."""
    spans = pool.spans or [EMPTY]
    span_scores = [score for score, _ in spans]
    better = [score for score in span_scores[:k] if score >= pool.null_score]
    expected = [*better, pool.null_score, *span_scores[len(better) :]]
    # "No answer" is listed even where it is below the k best; so is the placeholder.
    size = max(k if pool.spans else 2, len(better) + 1)

    scores = np.array([entry["score"] for entry in entries])
    assert scores == pytest.approx(expected[:size])
    assert entries[len(better)]["text"] == ""
    probabilities = [entry["probability"] for entry in entries]
    softmax = np.exp(scores) / np.exp(scores).sum()
    assert probabilities == pytest.approx(softmax, rel=1e-5)


def assert_places(entries, pool, context):
    """The text of each entry stands at its place; the placeholder's and "no answer" is empty."""
    for entry in entries:
        text = context[entry["start"] : entry["end"]]
        assert text == (entry["text"] if pool.spans else "")


def test_no_windows_at_all():
    windows = build_windows([], TOKENIZERS["bert"])
    assert len(windows) == 0
    assert windows.lengths.shape == (0,)

    row = tensors(windows.pack(np.array([], np.int64)))
    assert row["cu_seqlens"].tolist() == [0]
    assert row["input_ids"].shape == (0,)

    no_logits = torch.zeros(0)
    candidates = best_spans(no_logits, no_logits, row, n_best_size=20, max_answer_length=30)
    assert merge_answers([], windows, [candidates]) == ({}, {}, {}, {})
    assert n_best_list([], windows, [candidates]) == {}


def test_golden_predictions(golden_dir, dev):
    """The golden decoding ran over padded rows: logits of padding take places among the top 20,
    as those of any token outside the context do. So each window is given as 384 tokens here."""
    examples, windows = dev
    golden = json.loads((golden_dir / "predictions_dev.json").read_text())

    # The logits are not stored: they are drawn anew, and their sums tell whether they are the same.
    rng = np.random.default_rng(golden["seed"])
    shape = golden["shape"]  # [windows, 384]
    scale = np.float32(golden["scale"])
    start = rng.standard_normal(shape, np.float32) * scale
    end = rng.standard_normal(shape, np.float32) * scale
    assert hashlib.sha256(start.tobytes()).hexdigest() == golden["start_sha256"]
    assert hashlib.sha256(end.tobytes()).hexdigest() == golden["end_sha256"]

    candidates = []
    order = np.random.default_rng(0).permutation(len(windows))
    for chosen in np.array_split(order, 7):
        row = tensors(windows.pack(chosen))
        row["cu_seqlens"] = torch.arange(len(chosen) + 1) * shape[1]
        spans = best_spans(
            torch.from_numpy(start[chosen]).view(-1),
            torch.from_numpy(end[chosen]).view(-1),
            row,
            n_best_size=golden["n_best_size"],
            max_answer_length=golden["max_answer_length"],
        )
        candidates.append(spans)

    threshold = golden["null_score_diff_threshold"]
    answers = merge_answers(examples, windows, candidates, threshold)
    assert answers.predictions == golden["predictions"]
    assert answers.null_odds == golden["null_odds"]


def assert_plain_spans(candidates, windows, logits, k, longest):
    """Compare the best spans of every window with those of two plain loops."""
    assert candidates.starts.shape == candidates.scores.shape == (len(windows), k)
    types = [column.dtype.name for column in candidates]
    assert types == ["int64", "int32", "int32", "float32", "float32", "float32"]

    row = windows.pack(np.arange(len(windows)))
    for window, (start, end) in enumerate(logits):
        low = row["context_start"][window]
        high = row["context_end"][window]
        spans = plain_n_best(start, end, low, high, k, longest)

        # A window with fewer than K spans has scores of -inf after them.
        scores = candidates.scores[window]
        count = int(np.isfinite(scores).sum())
        assert np.isneginf(scores[count:]).all()
        assert scores[:count].tolist() == [start[first] + end[last] for first, last in spans]
        assert candidates.starts[window, :count].tolist() == [first for first, _ in spans]
        assert candidates.ends[window, :count].tolist() == [last for _, last in spans]
        assert candidates.null_scores[window] == start[0] + end[0]


def test_half_precision_logits_are_added_in_fp32():
    examples = [Example("q", "t", context=" ".join(WORDS), question="x", answers=())]
    windows = build_windows(examples, TOKENIZERS["bert"], max_seq_length=64, doc_stride=4)
    row = tensors(windows.pack(np.arange(1)))
    generator = torch.Generator().manual_seed(0)
    start, end = torch.randn(2, len(row["input_ids"]), generator=generator)
    start = start.bfloat16()
    end = 100 * end.bfloat16()

    half = best_spans(start, end, row, n_best_size=5, max_answer_length=30)
    single = best_spans(start.float(), end.float(), row, n_best_size=5, max_answer_length=30)

    for field in Candidates._fields:
        assert np.array_equal(getattr(half, field), getattr(single, field)), field
    assert half.null_scores[0] == start[0].float() + end[0].float()


def test_the_public_names_are_there_and_their_examples_run():
    assert all(hasattr(squad_utils, name) for name in squad_utils.__all__)
    assert doctest.testmod(squad_utils) == (0, 11)
