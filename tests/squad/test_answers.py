"""Merging the spans of windows: against the golden files and against plain loops."""

import hashlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detalbert.squad.answers import merge_answers, n_best_list
from detalbert.squad.decoding import Candidates, best_spans
from detalbert.squad.windows import Example, Windows, build_windows
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS, decode, decoding_cases, plain_n_best, tensors


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


@given(decoding_cases(), st.randoms(use_true_random=False))
@max_examples(100)
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
