"""Answers to questions, from the same windows, rows and spans as a validation.

A file is answered in chunks: one is encoded ahead of the model and merged behind it, in a thread
each, three at most. A question of the command line or the server gets a `Reply`.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from detalbert.engine.evaluation import evaluate_row
from detalbert.engine.rows import CHUNK, SquadRow, pack_rows, validation_rows
from detalbert.engine.token_budget import ON_A_CPU
from detalbert.inference.model import Trained
from detalbert.squad.answers import merge_answers, n_best_list
from detalbert.squad.calibration import calibrated, given
from detalbert.squad.decoding import Candidates
from detalbert.squad.windows import Example, Windows, build_windows

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_SHOWN = 200  # characters of a sentence on either side of the answer


class Answered(NamedTuple):
    """The answers to a chunk of questions."""

    examples: list[Example]
    predictions: dict[str, str]  # by question id; "": no answer
    null_odds: dict[str, float]  # by question id
    n_best: dict[str, list[dict[str, Any]]]  # by question id, as `n_best_list` gives it
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
    most = hparams.max_tokens_per_forward
    most = ON_A_CPU if most == "auto" else most
    shares = validation_rows(windows.lengths, windows.example_index, most)
    rows = [
        row for share in shares for row in pack_rows(windows, share, most, trained.forward.padded)
    ]
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


@dataclass
class Choice:
    """A possible answer, from character `start` to before `end` of the context (Unicode code
    points), and its probability among all that are listed; the text "" is "no answer".
    """

    text: str
    probability: float
    start: int
    end: int


@dataclass
class Reply:
    """The model's answer to a question: "", with start and end null, if it abstains.

    probability is that of the answer in all its wordings (see calibration), or of "no answer";
    margin the score of the best span minus that of "no answer", in logits, null if no span is
    possible. The model abstains if -margin is above threshold. n_best: answers, best first.
    """

    question: str
    answer: str
    abstained: bool
    start: int | None
    end: int | None
    probability: float
    margin: float | None
    threshold: float
    n_best: list[Choice]


def ask(trained: Trained, question: str, context: str, threshold: float) -> Reply:
    """Return the reply to one question."""
    return ask_together(trained, [(question, context)], threshold)[0]


def ask_together(
    trained: Trained,
    asked: Sequence[tuple[str, str]],
    threshold: float,
    go_on: Callable[[int], bool] = lambda tokens: True,
) -> list[Reply]:
    """Return the replies to (question, context) pairs, answered in shared rows. Raises Stopped if
    `go_on`, called with each row's tokens before it runs, returns False.
    """
    examples = [Example(str(n), "", context, ask, None) for n, (ask, context) in enumerate(asked)]
    chunk = featurise(trained, examples)
    found = evaluate_windows(trained, chunk, go_on)
    answered = merge_chunk(trained, chunk, *found, threshold)
    return [_reply(example, answered, threshold) for example in examples]


def _reply(example: Example, answered: Answered, threshold: float) -> Reply:
    n_best = list(_trimmed(answered.n_best[example.id]))
    spans = [choice for choice in n_best if choice.text]
    prediction = answered.predictions[example.id] if spans else ""
    abstained = not prediction
    chosen = next(choice for choice in n_best if not choice.text) if abstained else spans[0]
    return Reply(
        example.question,
        chosen.text,
        abstained,
        start=None if abstained else chosen.start,
        end=None if abstained else chosen.end,
        probability=given(answered.n_best[example.id], prediction)[1],
        margin=-answered.null_odds[example.id] if spans else None,
        threshold=threshold,
        n_best=n_best,
    )


def _trimmed(n_best: list[dict[str, Any]]) -> Iterator[Choice]:
    """Yield the entries stripped of the white space in tokens; skip spans of white space only."""
    for entry in n_best:
        text, start = entry["text"].strip(), entry["start"]
        start += len(entry["text"]) - len(entry["text"].lstrip())
        if entry["end"] > entry["start"] and text or not entry["text"]:
            yield Choice(text, entry["probability"], start, start + len(text))


def keep_best(reply: Reply, count: int) -> Reply:
    """Return the reply with the `count` best spans that do not overlap, and "no answer"."""
    kept: list[Choice] = []
    for choice in reply.n_best:
        apart = all(choice.end <= other.start or other.end <= choice.start for other in kept)
        if choice.text and apart and len(kept) < count:
            kept.append(choice)
    return replace(reply, n_best=[c for c in reply.n_best if c in kept or not c.text])


def format_reply(
    reply: Reply, context: str, marks: tuple[str, str] = ("**", "**"), listed: bool = False
) -> str:
    """Format the reply for display, the sentence with the answer between `marks`; if `listed`, with
    all of `n_best`.
    """
    margin = "no span of the text is possible"
    if reply.margin is not None:
        least = 0.0 - reply.threshold
        margin = f'{reply.margin:+.2f} over "no answer" (it answers from {least:+.2f} on)'
    lines = {
        "answer": reply.answer or "(no answer)",
        "probability": f"{reply.probability:.3f}",
        "margin": margin,
    }
    if best := next((choice for choice in reply.n_best if choice.text), None):
        name = "nearest" if reply.abstained else "sentence"
        lines[name] = sentence(context, best.start, best.end, marks)
    if listed:
        choices = ((c.probability, c.text or "(no answer)") for c in reply.n_best)
        lines |= {f"{p:.3f}  ({at})": text for at, (p, text) in enumerate(choices, 1)}
    return "\n".join(f"{name:<13}{text}" for name, text in lines.items())


def sentence(context: str, start: int, end: int, marks: tuple[str, str]) -> str:
    """Return the sentence around characters start to end, these between `marks`, on one line."""
    breaks = list(_SENTENCE_END.finditer(context))
    first = max((found.end() for found in breaks if found.end() <= start), default=0)
    last = min((found.start() for found in breaks if found.start() >= end), default=len(context))
    before, after = context[first:start], context[end:last]
    if len(before) > _SHOWN:
        before = "..." + before[-_SHOWN:]
    if len(after) > _SHOWN:
        after = after[:_SHOWN] + "..."
    return " ".join(f"{before}{marks[0]}{context[start:end]}{marks[1]}{after}".split())
