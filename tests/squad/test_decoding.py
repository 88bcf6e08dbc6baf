"""Span decoding against plain loops."""

from typing import Any

import numpy as np
import torch
from hypothesis import given

from detalbert.squad.decoding import best_spans
from detalbert.squad.windows import Example, build_windows
from tests.conftest import max_examples
from tests.fakes.questions import TOKENIZERS, WORDS, decode, decoding_cases, plain_n_best, tensors


@given(decoding_cases())
@max_examples(100)
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
