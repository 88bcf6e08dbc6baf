"""Answers to questions in chunks, from the same windows, rows and spans as a validation.

A chunk is encoded ahead of the model and merged behind it, in a thread each: three at most are in
memory, however long the file. Chunks cost full rows, as the last row of each is short, and buy
results that depend neither on the file's length nor on which process answers which chunk.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from detalbert.engine.forward import evaluate_row
from detalbert.engine.rows import CHUNK, CPU_TOKENS, SquadRow, pack_rows, validation_rows
from detalbert.inference.model import Trained
from detalbert.progress import Bar, waiting
from detalbert.squad.answers import NBestEntry, merge_answers, n_best_list
from detalbert.squad.calibration import calibrated
from detalbert.squad.decoding import Candidates
from detalbert.squad.example import Example
from detalbert.squad.windows import Windows, build_windows


class Answered(NamedTuple):
    """The answers to a chunk of questions, by question id."""

    examples: list[Example]
    predictions: dict[str, str]  # "": no answer
    null_odds: dict[str, float]
    spans: dict[str, str]  # the best span's text, also where "no answer" is the answer
    n_best: dict[str, list[NBestEntry]]  # as `n_best_list` gives it


def join(chunks: Sequence[Answered]) -> Answered:
    """Return the answers of all chunks, in their order, as one."""
    joined = Answered(examples=[], predictions={}, null_odds={}, spans={}, n_best={})
    for chunk in chunks:
        joined.examples.extend(chunk.examples)
        joined.predictions.update(chunk.predictions)
        joined.null_odds.update(chunk.null_odds)
        joined.spans.update(chunk.spans)
        joined.n_best.update(chunk.n_best)
    return joined


class _Chunk(NamedTuple):
    examples: list[Example]
    windows: Windows
    rows: list[SquadRow]


def answer(trained: Trained, examples: Iterable[Example], threshold: float) -> Iterator[Answered]:
    """Yield the answers to any number of questions in order, CHUNK at a time; show the progress in
    windows, of which a long document has hundreds.

    Windows, rows and spans are bitwise those of a validation of the same questions.

    Args:
        threshold: null odds above which a prediction is "".

    Raises:
        UserError: windows cannot cover a context.
        Exception: whatever reading `examples` raises.
    """
    questions = iter(examples)

    def encode_next() -> _Chunk | None:
        batch = list(itertools.islice(questions, CHUNK))
        return featurise(trained, batch) if batch else None

    with (
        waiting("answering", unit="windows") as bar,
        ThreadPoolExecutor(1) as ahead,
        ThreadPoolExecutor(1) as behind,
    ):
        encoding = ahead.submit(encode_next)
        merging: Future[Answered] | None = None
        chunk = encoding.result()
        while chunk is not None:
            # The model runs on this chunk; one thread encodes the next, one merges the last.
            encoding = ahead.submit(encode_next)
            spans = evaluate_windows(trained, chunk, bar)
            if merging is not None:
                yield merging.result()
            merging = behind.submit(merge_chunk, trained, chunk, spans, threshold)
            chunk = encoding.result()
        if merging is not None:
            yield merging.result()


def featurise(trained: Trained, examples: list[Example]) -> _Chunk:
    """Encode questions as windows, packed into rows as for validation."""
    hparams = trained.hparams
    windows = build_windows(
        examples,
        trained.tokenizer,
        max_seq_length=hparams.max_seq_length,
        doc_stride=hparams.doc_stride,
        max_query_length=None,  # no question is cut
    )
    # Windows of similar lengths share a row; which do depends on the chunk alone.
    max_tokens = hparams.max_tokens_per_forward
    if max_tokens == "auto":  # which is for training
        max_tokens = CPU_TOKENS
    rows: list[SquadRow] = []
    for numbers in validation_rows(windows.lengths, windows.example_index, max_tokens):
        rows += pack_rows(windows, numbers, max_tokens, padded=trained.forward.padded)
    return _Chunk(examples, windows, rows)


@torch.no_grad()
def evaluate_windows(trained: Trained, chunk: _Chunk, bar: Bar | None = None) -> list[Candidates]:
    """Run the model on all rows of a chunk; return the best spans of their windows, by row. A `bar`
    counts the windows.
    """
    spans = []
    for row in chunk.rows:
        row_spans, _ = evaluate_row(trained.forward, row, trained.hparams, labelled=False)
        spans.append(row_spans)
        if bar is not None:
            bar.update(len(row_spans.windows))
    return spans


def merge_chunk(
    trained: Trained, chunk: _Chunk, spans: list[Candidates], threshold: float
) -> Answered:
    """Merge the best spans of a chunk's windows, as `evaluate_windows` returns them, to answers."""
    examples, windows, _ = chunk
    answers = merge_answers(examples, windows, spans, null_score_diff_threshold=threshold)

    # Slope and offset that a validation fitted turn the probabilities into calibrated ones.
    best = n_best_list(examples, windows, spans, n_best_size=trained.hparams.n_best_size)
    return Answered(
        examples=examples,
        predictions=answers.predictions,
        null_odds=answers.null_odds,
        spans=answers.spans,
        n_best={name: calibrated(entries, trained.scores) for name, entries in best.items()},
    )
