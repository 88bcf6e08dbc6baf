"""Replies to questions about texts, for the command line and the server."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from detalbert.escapes import escape_controls
from detalbert.inference import answering
from detalbert.inference.model import Trained
from detalbert.squad.answers import NBestEntry
from detalbert.squad.calibration import given
from detalbert.squad.windows import Example

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_SPACES = re.compile(r"[^\S\n]+")
_SHOWN = 200  # characters of a sentence on either side of the answer


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
    chunk = answering.featurise(trained, examples)
    found = answering.evaluate_windows(trained, chunk, go_on)
    answered = answering.merge_chunk(trained, chunk, *found, threshold)
    return [_reply(example, answered, threshold) for example in examples]


def _reply(example: Example, answered: answering.Answered, threshold: float) -> Reply:
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


def _trimmed(n_best: list[NBestEntry]) -> Iterator[Choice]:
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
    all of `n_best`. Control characters of its texts are escaped.
    """
    margin = "no span of the text is possible"
    if reply.margin is not None:
        least = 0.0 - reply.threshold
        margin = f'{reply.margin:+.2f} over "no answer" (it answers from {least:+.2f} on)'
    lines = {
        "answer": _displayed(reply.answer) or "(no answer)",
        "probability": f"{reply.probability:.3f}",
        "margin": margin,
    }
    if best := next((choice for choice in reply.n_best if choice.text), None):
        name = "nearest" if reply.abstained else "sentence"
        parts = context[: best.start], context[best.start : best.end], context[best.end :]
        before, answer, after = map(_displayed, parts)
        end = len(before) + len(answer)
        lines[name] = sentence(before + answer + after, len(before), end, marks)
    if listed:
        choices = ((c.probability, _displayed(c.text) or "(no answer)") for c in reply.n_best)
        lines |= {f"{p:.3f}  ({at})": text for at, (p, text) in enumerate(choices, 1)}
    return "\n".join(f"{name:<13}{text}" for name, text in lines.items())


def _displayed(text: str) -> str:
    """Return `text` with its line breaks, other white space as spaces, no control characters."""
    return escape_controls(_SPACES.sub(" ", text))


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
