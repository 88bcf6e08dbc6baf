"""Answers to questions in chunks, from the same windows, rows and spans as a validation.

A chunk is encoded ahead of the model and merged behind it, in a thread each: three at most.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

from detalbert.engine.evaluation import evaluate_row
from detalbert.engine.rows import CHUNK, SquadRow, pack_rows, validation_rows
from detalbert.engine.token_budget import ON_A_CPU
from detalbert.inference.model import Trained
from detalbert.squad.answers import NBestEntry, merge_answers, n_best_list
from detalbert.squad.calibration import calibrated
from detalbert.squad.decoding import Candidates
from detalbert.squad.windows import Example, Windows, build_windows


class Answered(NamedTuple):
    """The answers to a chunk of questions, by question id."""

    examples: list[Example]
    predictions: dict[str, str]  # "": no answer
    null_odds: dict[str, float]
    n_best: dict[str, list[NBestEntry]]
    losses: np.ndarray  # fp32 [windows of questions whose answers are known], in window order


class _Chunk(NamedTuple):
    examples: list[Example]
    windows: Windows
    rows: list[SquadRow]

    @property
    def known(self) -> np.ndarray:
        """Mask of the questions whose answers are known, bool [examples]."""
        return np.array([example.answers is not None for example in self.examples])


def answer(trained: Trained, examples: Iterable[Example], threshold: float) -> Iterator[Answered]:
    """Yield the answers to any number of questions in order, CHUNK at a time.

    Windows, rows and spans are bitwise those of a validation of the same questions. If null_odds
    exceed `threshold` the prediction is "". Raises what reading `examples` raises, and UserError if
    windows cannot cover a context.
    """
    questions = iter(examples)

    def next_chunk() -> _Chunk | None:
        chunk = list(itertools.islice(questions, CHUNK))
        return featurise(trained, chunk) if chunk else None

    with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(1) as behind:
        coming, merging = ahead.submit(next_chunk), None
        while (chunk := coming.result()) is not None:
            coming = ahead.submit(next_chunk)
            spans, losses = evaluate_windows(trained, chunk)
            if merging is not None:
                yield merging.result()
            merging = behind.submit(merge_chunk, trained, chunk, spans, losses, threshold)
        if merging is not None:
            yield merging.result()


class Stopped(Exception):
    """The caller has cancelled the request."""


def featurise(trained: Trained, examples: list[Example]) -> _Chunk:
    """Encode questions as windows, packed into rows as for validation."""
    hparams = trained.hparams
    sizes = hparams.max_seq_length, hparams.doc_stride, None  # no question is cut
    windows = build_windows(examples, trained.tokenizer, *sizes)
    most: Any = hparams.max_tokens_per_forward
    most, padded = ON_A_CPU if most == "auto" else most, trained.forward.padded
    shares = validation_rows(windows.lengths, windows.example_index, most)
    rows = [row for share in shares for row in pack_rows(windows, share, most, padded)]
    return _Chunk(examples, windows, rows)


@torch.no_grad()
def evaluate_windows(
    trained: Trained, chunk: _Chunk, go_on: Callable[[int], bool] = lambda tokens: True
) -> tuple[list[Candidates], np.ndarray]:
    """Return the best spans of all windows, and losses, fp32 [W] in row order; [0] if unknown."""
    spans, losses, labelled = [], [np.empty(0, np.float32)], bool(chunk.known.any())
    for row in chunk.rows:
        if not go_on(len(row["input_ids"])):
            raise Stopped
        row_spans, row_losses = evaluate_row(trained.forward, row, trained.hparams, labelled)
        spans.append(row_spans)
        losses.append(row_losses.float().cpu().numpy())
    return spans, np.concatenate(losses)


def merge_chunk(
    trained: Trained, chunk: _Chunk, spans: list[Candidates], losses: np.ndarray, threshold: float
) -> Answered:
    """Merge the best spans of a chunk's windows to answers."""
    answers = merge_answers(chunk.examples, chunk.windows, spans, threshold)
    n_best: Any = n_best_list(chunk.examples, chunk.windows, spans, trained.hparams.n_best_size)
    n_best = {name: calibrated(entries, trained.scores) for name, entries in n_best.items()}
    if len(losses):
        order = np.argsort(np.concatenate([row.windows for row in spans]))
        losses = losses[order][chunk.known[chunk.windows.example_index]]
    return Answered(chunk.examples, *answers, n_best, losses)
