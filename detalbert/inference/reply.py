"""Replies to questions about texts, for the command line and the server."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from detalbert.inference.answering import Answered, answer_together
from detalbert.inference.model import Trained

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_SHOWN = 200  # characters of a sentence on either side of the answer


def ask(trained: Trained, question: str, context: str, threshold: float) -> dict[str, Any]:
    """Return the reply to one question, ready for JSON: see `replies`."""
    answered = answer_together(trained, [(question, context)], threshold)
    return replies([question], answered, threshold)[0]


def replies(questions: Sequence[str], answered: Answered, threshold: float) -> list[dict[str, Any]]:
    """Return the replies to questions that `answer_together` answered, ready for JSON.

    answer: the text, "" if the model abstains, and start and end, its characters in the context
    (end exclusive; None if it abstains). probability: of the answer, or of "no answer", among
    `n_best`. margin: score of the best span minus score of "no answer", in logits; None if no span
    is possible. The model abstains if -margin is above `threshold`. n_best: text, probability,
    start and end of the best answers, best first; the text "" is "no answer".
    """
    return [_reply(str(n), each, answered, threshold) for n, each in enumerate(questions)]


def _reply(number: str, question: str, answered: Answered, threshold: float) -> dict[str, Any]:
    n_best = list(_trimmed(answered.n_best[number]))
    spans = [entry for entry in n_best if entry["text"]]
    abstained = not spans or not answered.predictions[number]
    chosen = next(x for x in n_best if not x["text"]) if abstained else spans[0]
    return {
        "question": question,
        "answer": chosen["text"],
        "abstained": abstained,
        "start": None if abstained else chosen["start"],
        "end": None if abstained else chosen["end"],
        "probability": chosen["probability"],
        "margin": -answered.null_odds[number] if spans else None,
        "threshold": threshold,
        "n_best": n_best,
    }


def _trimmed(n_best: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the entries stripped of the white space in tokens; skip spans of white space only."""
    for entry in n_best:
        text, start = entry["text"].strip(), entry["start"]
        start += len(entry["text"]) - len(entry["text"].lstrip())
        if text or not entry["text"]:
            place = {"start": start, "end": start + len(text)}
            yield {"text": text, "probability": entry["probability"], **place}


def format_reply(reply: dict[str, Any], context: str, marks: tuple[str, str] = ("**", "**")) -> str:
    """Format the reply for display, the sentence with the answer between `marks`."""
    spans: list[dict[str, Any]] = [entry for entry in reply["n_best"] if entry["text"]]
    margin = "no span of the text is possible"
    if reply["margin"] is not None:
        least = 0.0 - reply["threshold"]
        margin = f'{reply["margin"]:+.2f} over "no answer" (it answers from {least:+.2f} on)'
    lines = {
        "answer": reply["answer"] or "(no answer)",
        "probability": f"{reply['probability']:.3f}",
        "margin": margin,
    }
    if spans:
        name = "nearest" if reply["abstained"] else "sentence"
        lines[name] = sentence(context, spans[0]["start"], spans[0]["end"], marks)
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
