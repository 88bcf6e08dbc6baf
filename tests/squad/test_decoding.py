"""Span decoding and merging: against the golden files and against plain loops."""

import hashlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detalbert.squad import decoding
from detalbert.squad.answers import merge_answers, n_best_list
from detalbert.squad.decoding import Candidates, best_spans
from detalbert.squad.windows import Example, Windows, build_windows
from tests.fakes.questions import TOKENIZERS, WORDS, cut_lists, tensors


def plain_n_best(start: Any, end: Any, low: int, high: int, k: int, longest: int) -> list[tuple]:
    """(start, end) spans of one window, best first: the reference's two loops."""
    tokens = range(len(start))
    spans = [
        (start[i] + end[j], i, j)
        for i in sorted(tokens, key=lambda t: -start[t])[:k]
        for j in sorted(tokens, key=lambda t: -end[t])[:k]
        if low <= i and j < high and i <= j < i + longest
    ]
    return [(i, j) for _, i, j in sorted(spans, key=lambda span: -span[0])][:k]


def plain_answers(
    examples: list[Example], windows: Windows, logits: list[tuple], k: int, longest: int
) -> dict[str, tuple[str, float]]:
    """Text and null odds per question, window by window in Python."""
    pools: dict[int, list[tuple]] = {}
    nulls: dict[int, float] = {}
    starts = windows.context_starts(np.arange(len(windows)))
    for w, (start, end) in enumerate(logits):
        e, low = int(windows.example_index[w]), int(starts[w])
        high = low + int(windows.context_length[w])
        nulls[e] = min(nulls.get(e, float("inf")), start[0] + end[0])
        offsets = windows.context_offsets[windows.context_begin[w] :]
        for i, j in plain_n_best(start, end, low, high, k, longest):
            text = examples[e].context[offsets[i - low, 0] : offsets[j - low, 1]]
            pools.setdefault(e, []).append((start[i] + end[j], text))
    result = {}
    for e, null in nulls.items():
        spans = sorted((s for s in pools.get(e, []) if s[1]), key=lambda span: -span[0])
        score, text = spans[0] if spans else (0.0, "empty")
        result[examples[e].id] = ("" if null - score > 0 else text, null - score)
    return result


@st.composite
def decoding_cases(draw: Any) -> tuple[Any, list[tuple], int, int]:
    """Windows and logits; half the time whole numbers, so that many scores are equal."""
    examples, tokenizer, length, stride = draw(cut_lists())
    windows = build_windows(examples, tokenizer, length, stride)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    make = draw(st.sampled_from([lambda n: rng.integers(-2, 3, n), rng.standard_normal]))
    logits = [tuple(make(n).astype(np.float32) for _ in range(2)) for n in windows.lengths]
    return (examples, windows), logits, draw(st.integers(1, 25)), draw(st.integers(1, 12))


def decode(windows: Windows, logits: list[tuple], chosen: Any, k: int, longest: int) -> Candidates:
    start, end = (np.concatenate([logits[w][side] for w in chosen]) for side in (0, 1))
    row: dict[str, Any] = tensors(windows.pack(np.array(chosen)))
    if len(chosen) % 2:  # told or found out
        row["max_length"] = int(windows.lengths[chosen].max())
    return best_spans(torch.from_numpy(start), torch.from_numpy(end), row, k, longest)


@given(decoding_cases())
@settings(deadline=None, max_examples=100, derandomize=True)
def test_best_spans_are_those_of_the_plain_loops(case: Any) -> None:
    (_, windows), logits, k, longest = case
    found = decode(windows, logits, range(len(windows)), k, longest)
    row = windows.pack(np.arange(len(windows)))
    assert found.starts.shape == found.scores.shape == (len(windows), k)
    assert found.scores.dtype == found.null_scores.dtype == np.float32
    assert found.starts.dtype == found.ends.dtype == np.int32 and found.windows.dtype == np.int64
    for w, (start, end) in enumerate(logits):
        spans = plain_n_best(start, end, row["context_start"][w], row["context_end"][w], k, longest)
        real = int(np.isfinite(found.scores[w]).sum())
        pairs = list(zip(found.starts[w].tolist(), found.ends[w].tolist(), strict=True))
        assert pairs[:real] == spans
        assert found.scores[w, :real].tolist() == [start[i] + end[j] for i, j in spans]
        assert np.isneginf(found.scores[w, real:]).all()
        assert found.null_scores[w] == start[0] + end[0]


@given(decoding_cases())
@settings(deadline=None, max_examples=100, derandomize=True)
def test_a_device_finds_the_spans_that_the_host_finds(case: Any) -> None:
    (_, windows), logits, k, longest = case
    row: dict[str, Any] = tensors(windows.pack(np.arange(len(windows))))
    sides = [torch.from_numpy(np.concatenate(side)) for side in zip(*logits, strict=True)]
    host = decoding._spans_on_host(*sides, row, k, longest)
    device = decoding._spans_on_device(*sides, row, k, longest)
    for a, b in zip(host, device, strict=True):
        assert np.array_equal(a, b.numpy()) and a.dtype == b.numpy().dtype


def test_half_precision_logits_are_added_in_fp32() -> None:
    examples = [Example("q", "t", " ".join(WORDS), "x", ())]
    windows = build_windows(examples, TOKENIZERS["bert"], 64, 4)
    row = tensors(windows.pack(np.arange(1)))
    start, end = torch.randn(2, len(row["input_ids"]), generator=torch.Generator().manual_seed(0))
    start, end = start.bfloat16(), 100 * end.bfloat16()
    half = best_spans(start, end, row, 5, 30)
    whole = best_spans(start.float(), end.float(), row, 5, 30)
    assert all(np.array_equal(a, b) for a, b in zip(half, whole, strict=True))
    assert half.null_scores[0] == start[0].float() + end[0].float()


@given(decoding_cases(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_answers_do_not_depend_on_batches_or_their_order(case: Any, random: Any) -> None:
    (examples, windows), logits, k, longest = case
    whole = [decode(windows, logits, range(len(windows)), k, longest)]
    order = list(range(len(windows)))
    random.shuffle(order)
    cut = random.randint(0, len(order) - 1)
    # The second part overlaps the first by a window, as a sampler that pads would do.
    parts = [decode(windows, logits, part, k, longest) for part in (order[: cut + 1], order[cut:])]
    answers = merge_answers(examples, windows, whole)
    assert merge_answers(examples, windows, parts) == answers
    assert n_best_list(examples, windows, parts, k) == n_best_list(examples, windows, whole, k)
    plain = plain_answers(examples, windows, logits, k, longest)
    assert answers.predictions == {id_: text for id_, (text, _) in plain.items()}
    assert answers.null_odds == pytest.approx({i: odds for i, (_, odds) in plain.items()}, abs=1e-5)


def hand_made() -> tuple[list[Example], Windows]:
    """One question over two windows: [CLS] x [SEP] the river ban ##k [SEP], then ##k old."""
    examples = [Example("q", "t", "the river bank old", "x", ())]
    windows = build_windows(examples, TOKENIZERS["bert"], 8, 1)
    assert windows.context_length.tolist() == [4, 2]
    return examples, windows


def hand_made_candidates(null: tuple[float, float], **changes: Any) -> Candidates:
    columns = {
        "windows": np.array([0, 1]),
        "starts": np.array([[4, 3], [4, 0]], np.int32),  # river bank; the | old; none
        "ends": np.array([[6, 3], [4, 0]], np.int32),
        "start_logits": np.array([[1, 0], [2, -np.inf]], np.float32),
        "end_logits": np.array([[1, 0], [1, -np.inf]], np.float32),
        "null_scores": np.array(null, np.float32),
    }
    return Candidates(**{**columns, **changes})


def test_the_best_window_answers_and_the_lowest_null_score_counts() -> None:
    examples, windows = hand_made()
    candidates = [hand_made_candidates((9.0, 2.5))]
    answers = merge_answers(examples, windows, candidates)
    assert answers == ({"q": "old"}, {"q": -0.5})
    assert merge_answers(examples, windows, candidates, -0.5).predictions == {"q": "old"}
    assert merge_answers(examples, windows, candidates, -0.6).predictions == {"q": ""}


def test_a_question_without_spans_gets_the_placeholder_of_the_reference() -> None:
    examples, windows = hand_made()
    none = np.full((2, 2), -np.inf, np.float32)
    low = [hand_made_candidates((-1.0, -2.0), start_logits=none, end_logits=none)]
    assert merge_answers(examples, windows, low) == ({"q": "empty"}, {"q": -2.0})
    high = [hand_made_candidates((1.0, 2.0), start_logits=none, end_logits=none)]
    assert merge_answers(examples, windows, high) == ({"q": ""}, {"q": 1.0})


def test_spans_of_no_characters_are_no_answers() -> None:
    examples, windows = hand_made()
    offsets = windows.context_offsets.copy()
    offsets[4] = offsets[4, 0]  # "old", the best span, is now zero characters wide
    hollow = Windows(**{**windows.columns(), "context_offsets": offsets})
    answers = merge_answers(examples, hollow, [hand_made_candidates((0.0, 0.0))])
    assert answers == ({"q": "river bank"}, {"q": -2.0})


def test_n_best_list() -> None:
    examples, windows = hand_made()
    best = n_best_list(examples, windows, [hand_made_candidates((9.0, 2.5))], 2)["q"]
    assert [(b["text"], b["start"], b["end"], b["score"]) for b in best] == [
        ("old", 15, 18, 3.0),
        ("", 0, 0, 2.5),
    ]
    weights = np.exp([3.0, 2.5])
    assert [b["probability"] for b in best] == pytest.approx(weights / weights.sum(), rel=1e-6)
    one = n_best_list(examples, windows, [hand_made_candidates((9.0, 2.5))], 1)["q"]
    assert [b["text"] for b in one] == ["old", ""]


def test_no_windows_at_all() -> None:
    windows = build_windows([], TOKENIZERS["bert"])
    assert len(windows) == 0 and windows.lengths.shape == (0,)
    row = windows.pack(np.array([], np.int64))
    assert row["cu_seqlens"].tolist() == [0] and row["input_ids"].shape == (0,)
    found = best_spans(torch.zeros(0), torch.zeros(0), tensors(row), 20, 30)
    assert found.starts.shape == (0, 20)
    assert merge_answers([], windows, [found]) == ({}, {})
    assert n_best_list([], windows, []) == {}


def test_golden_predictions(shared: Any, dev: Any) -> None:
    """The golden decoding ran over padded rows: logits of padding take places among the top 20,
    as those of any token outside the context do. So each window is given as 384 tokens here."""
    examples, windows = dev
    golden = json.loads((shared / "golden" / "predictions_dev.json").read_text())
    rng, shape = np.random.default_rng(golden["seed"]), golden["shape"]
    start = rng.standard_normal(shape, dtype=np.float32) * np.float32(golden["scale"])
    end = rng.standard_normal(shape, dtype=np.float32) * np.float32(golden["scale"])
    assert hashlib.sha256(start.tobytes()).hexdigest() == golden["start_sha256"]
    assert hashlib.sha256(end.tobytes()).hexdigest() == golden["end_sha256"]
    candidates = []
    for chosen in np.array_split(np.random.default_rng(0).permutation(len(windows)), 7):
        row = tensors(windows.pack(chosen))
        row["cu_seqlens"] = torch.arange(len(chosen) + 1) * shape[1]
        logits = (torch.from_numpy(side[chosen]).view(-1) for side in (start, end))
        k, longest = golden["n_best_size"], golden["max_answer_length"]
        candidates.append(best_spans(*logits, row, k, longest))
    threshold = golden["null_score_diff_threshold"]
    answers = merge_answers(examples, windows, candidates, threshold)
    assert answers.predictions == golden["predictions"]
    assert answers.null_odds == golden["null_odds"]
