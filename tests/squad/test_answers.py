"""Spans of windows and their merging: against the golden files and against plain loops."""

import doctest
import hashlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import squad_utils
from detalbert.squad.answers import merge_answers, n_best_list
from detalbert.squad.decoding import best_spans
from detalbert.squad.windows import Example, build_windows
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS, WORDS, decode, decoding_cases, plain_n_best, tensors

Plain = tuple[list[tuple[float, str]], float]


def plain_pools(examples: Any, windows: Any, logits: Any, k: int, longest: int) -> dict[str, Plain]:
    """The spans with text of each question, best first, and its null score, in Python."""
    pools: dict[str, Plain] = {}
    starts = windows.context_starts(np.arange(len(windows)))
    for w, (start, end) in enumerate(logits):
        example, low = examples[windows.example_index[w]], int(starts[w])
        high = low + int(windows.context_length[w])
        spans, null = pools.get(example.id, ([], float("inf")))
        offsets = windows.context_offsets[windows.context_begin[w] :]
        for i, j in plain_n_best(start, end, low, high, k, longest):
            text = example.context[offsets[i - low, 0] : offsets[j - low, 1]]
            spans += [(start[i] + end[j], text)] if text else []
        pools[example.id] = spans, min(null, start[0] + end[0])
    return {q: (sorted(s, key=lambda span: -span[0]), null) for q, (s, null) in pools.items()}


@given(decoding_cases(), st.integers(-2, 2), st.randoms(use_true_random=False))
@max_examples(200)
def test_answers_are_those_of_the_plain_loops(case: Any, threshold: float, random: Any) -> None:
    (examples, windows), logits, k, longest = case
    whole = [decode(windows, logits, range(len(windows)), k, longest)]
    same_best_spans(windows, logits, k, longest, *whole)
    order = list(range(len(windows)))
    random.shuffle(order)
    cut = random.randint(0, len(order) - 1)
    # The second part overlaps the first by a window, as a sampler that pads would do.
    parts = [decode(windows, logits, part, k, longest) for part in (order[: cut + 1], order[cut:])]
    answers = merge_answers(examples, windows, whole, threshold)
    assert merge_answers(examples, windows, parts, threshold) == answers
    n_best = n_best_list(examples, windows, parts, k)
    assert n_best == n_best_list(examples, windows, whole, k)
    for id_, (spans, null) in plain_pools(examples, windows, logits, k, longest).items():
        score, text = spans[0] if spans else (0.0, "empty")  # the reference's placeholder
        assert answers.null_odds[id_] == pytest.approx(null - score, abs=1e-5)
        assert answers.predictions[id_] == ("" if answers.null_odds[id_] > threshold else text)
        longest_list = k if spans else 2
        spans = spans or [(0.0, "empty")]
        better = [score for score, _ in spans[:k] if score >= null]
        scores = [*better, null, *(score for score, _ in spans[len(better) :])]
        found = np.array([entry["score"] for entry in n_best[id_]])
        assert found == pytest.approx(scores[: max(longest_list, len(better) + 1)])
        assert n_best[id_][len(better)]["text"] == ""
        shares = [entry["probability"] for entry in n_best[id_]]
        assert shares == pytest.approx(np.exp(found) / np.exp(found).sum(), rel=1e-5)
        if prediction := answers.predictions[id_]:
            assert prediction in [entry["text"] for entry in n_best[id_]]
    assert list(answers.predictions) == list(n_best) == [e.id for e in examples]


def test_no_windows_at_all() -> None:
    windows = build_windows([], TOKENIZERS["bert"])
    assert len(windows) == 0 and windows.lengths.shape == (0,)
    row = tensors(windows.pack(np.array([], np.int64)))
    assert row["cu_seqlens"].tolist() == [0] and row["input_ids"].shape == (0,)
    found = best_spans(torch.zeros(0), torch.zeros(0), row, 20, 30)
    assert merge_answers([], windows, [found]) == ({}, {})
    assert n_best_list([], windows, [found]) == {}


def test_golden_predictions(shared: Any, dev: Any) -> None:
    """The golden decoding ran over padded rows: logits of padding take places among the top 20,
    as those of any token outside the context do. So each window is given as 384 tokens here."""
    examples, windows = dev
    golden = json.loads((shared / "golden" / "predictions_dev.json").read_text())
    rng, shape, candidates = np.random.default_rng(golden["seed"]), golden["shape"], []
    sides = [rng.standard_normal(shape, np.float32) * np.float32(golden["scale"]) for _ in "se"]
    sums = [hashlib.sha256(side.tobytes()).hexdigest() for side in sides]
    assert sums == [golden["start_sha256"], golden["end_sha256"]]
    for chosen in np.array_split(np.random.default_rng(0).permutation(len(windows)), 7):
        row = tensors(windows.pack(chosen))
        row["cu_seqlens"] = torch.arange(len(chosen) + 1) * shape[1]
        logits = (torch.from_numpy(side[chosen]).view(-1) for side in sides)
        k, longest = golden["n_best_size"], golden["max_answer_length"]
        candidates.append(best_spans(*logits, row, k, longest))
    threshold = golden["null_score_diff_threshold"]
    answers = merge_answers(examples, windows, candidates, threshold)
    assert answers.predictions == golden["predictions"]
    assert answers.null_odds == golden["null_odds"]


def same_best_spans(windows: Any, logits: Any, k: int, longest: int, found: Any) -> None:
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


def test_half_precision_logits_are_added_in_fp32() -> None:
    examples = [Example("q", "t", " ".join(WORDS), "x", ())]
    row = tensors(build_windows(examples, TOKENIZERS["bert"], 64, 4).pack(np.arange(1)))
    start, end = torch.randn(2, len(row["input_ids"]), generator=torch.Generator().manual_seed(0))
    start, end = start.bfloat16(), 100 * end.bfloat16()
    half, whole = (
        best_spans(*sides, row, 5, 30) for sides in ((start, end), (start.float(), end.float()))
    )
    assert all(np.array_equal(a, b) for a, b in zip(half, whole, strict=True))
    assert half.null_scores[0] == start[0].float() + end[0].float()
    assert all(hasattr(squad_utils, name) for name in squad_utils.__all__)
    assert doctest.testmod(squad_utils) == (0, 11)
