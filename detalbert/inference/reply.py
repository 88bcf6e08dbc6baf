"""Replies to questions about texts, for the command line and the server.

A token may begin or end with white space, and so may a span; the official files keep it, for their
scores are compared with the reference's. A reply is for people: its texts are stripped.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from detalbert.errors import UserError
from detalbert.escapes import escape_controls
from detalbert.inference import answering
from detalbert.inference.model import Trained
from detalbert.squad.answers import NBestEntry
from detalbert.squad.calibration import given
from detalbert.squad.questions import is_unicode
from detalbert.squad.windows import Example

MAX_QUESTION = 10_000  # characters of a question in a flag or a request
MAX_CONTEXT = 1_000_000  # characters of its context: about 250,000 tokens
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_SPACES = re.compile(r"[^\S\n]+")
_MAX_CHARACTERS = 200  # characters of a sentence on either side of the answer


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

    probability is that of the answer or of "no answer" (see calibration), and calibrated whether a
    validation shows that such answers are right as often as it says;
    margin the score of the best span minus that of "no answer", in logits, null if no span is
    possible. The model abstains if -margin is above threshold. n_best: answers, best first.
    """

    question: str
    answer: str
    abstained: bool
    start: int | None
    end: int | None
    probability: float
    calibrated: bool
    margin: float | None
    threshold: float
    n_best: list[Choice]


def check_text(where: str, question: str, context: str, max_context: int = MAX_CONTEXT) -> None:
    """Raise UserError if question or context is empty, too long or not Unicode text."""
    limits = {"question": (question, MAX_QUESTION), "context": (context, max_context)}
    for name, (text, limit) in limits.items():
        if not text.strip():
            raise UserError(f"the {name} is empty", key=where, cure="give it some text")
        if len(text) > limit:
            problem = f"the {name} has more than {limit:,} characters"
            raise UserError(problem, key=where, cure="cut it")
        if not is_unicode(text):
            raise UserError(f"the {name} is not UTF-8 text", key=where, cure="fix it")


def ask(trained: Trained, question: str, context: str, threshold: float) -> Reply:
    """Return the reply to one question."""
    return ask_together(trained, [(question, context)], threshold)[0]


def ask_together(
    trained: Trained,
    questions: Sequence[tuple[str, str]],
    threshold: float,
    should_continue: Callable[[int], bool] = lambda tokens: True,
) -> list[Reply]:
    """Return the replies to questions that share rows.

    Args:
        questions: (question, context) pairs.
        threshold: null odds above which the model abstains.
        should_continue: called with each row's tokens before it runs.

    Raises:
        Stopped: `should_continue` returned False.
        UserError: windows cannot cover a context; its `key` is "question 0" of the first pair.
    """
    examples = []
    for number, (question, context) in enumerate(questions):
        example = Example(str(number), title="", context=context, question=question, answers=None)
        examples.append(example)
    chunk = answering.featurise(trained, examples)
    spans, losses = answering.evaluate_windows(trained, chunk, should_continue)
    answered = answering.merge_chunk(trained, chunk, spans, losses, threshold)
    calibrated = trained.is_calibrated
    return [_reply(example, answered, threshold, calibrated) for example in examples]


def _reply(
    example: Example, answered: answering.Answered, threshold: float, calibrated: bool
) -> Reply:
    # Without a span that has text, the official files have a placeholder; a reply abstains.
    entries = answered.n_best[example.id]
    choices = _stripped(entries)
    spans = [choice for choice in choices if choice.text]
    prediction = answered.predictions[example.id] if spans else ""
    reply = Reply(
        question=example.question,
        answer="",
        abstained=True,
        start=None,
        end=None,
        probability=given(entries, prediction)["probability"],
        calibrated=calibrated,
        margin=-answered.null_odds[example.id] if spans else None,
        threshold=threshold,
        n_best=choices,
    )
    if prediction:
        best = spans[0]
        return replace(reply, answer=best.text, abstained=False, start=best.start, end=best.end)
    return reply


def _stripped(entries: list[NBestEntry]) -> list[Choice]:
    """Return "no answer" and the spans stripped of white space, without spans of nothing else."""
    choices = []
    for entry in entries:
        text = entry["text"]
        stripped = text.strip()
        start = entry["start"] + len(text) - len(text.lstrip())
        is_span = entry["end"] > entry["start"] and stripped
        if is_span or not text:
            end = start + len(stripped)
            choices.append(Choice(stripped, entry["probability"], start, end))
    return choices


def keep_best(reply: Reply, count: int) -> Reply:
    """Return the reply with the `count` best spans that do not overlap, and "no answer"."""
    # Best first, so that of two that overlap the better one stays.
    best: list[Choice] = []
    for choice in reply.n_best:
        apart = all(choice.end <= other.start or other.end <= choice.start for other in best)
        if choice.text and apart and len(best) < count:
            best.append(choice)
    remaining = [choice for choice in reply.n_best if choice in best or not choice.text]
    return replace(reply, n_best=remaining)


def format_reply(
    reply: Reply, context: str, marks: tuple[str, str] = ("**", "**"), listed: bool = False
) -> str:
    """Format the reply for display. Control characters of its texts are escaped.

    Args:
        marks: put before and after the answer in its sentence.
        listed: add all of `n_best`.
    """
    note = "" if reply.calibrated else " (uncalibrated)"
    lines = {
        "answer": _displayed(reply.answer) or "(no answer)",
        "probability": f"{reply.probability:.3f}{note}",
        "margin": _format_margin(reply),
    }
    # Escapes move what is behind them: with each part escaped alone, the answer's place is known.
    best = next((choice for choice in reply.n_best if choice.text), None)
    if best is not None:
        name = "nearest" if reply.abstained else "sentence"
        before = _displayed(context[: best.start])
        answer = _displayed(context[best.start : best.end])
        after = _displayed(context[best.end :])
        end = len(before) + len(answer)
        lines[name] = sentence(before + answer + after, len(before), end, marks)
    if listed:
        lines["candidates"] = "each with its probability, if it were the answer"
        for place, choice in enumerate(reply.n_best, start=1):
            text = _displayed(choice.text) or "(no answer)"
            lines[f"{choice.probability:.3f}  ({place})"] = text
    return "\n".join(f"{name:<13}{text}" for name, text in lines.items())


def _format_margin(reply: Reply) -> str:
    if reply.margin is None:
        return "no span of the text is possible"
    lowest = 0.0 - reply.threshold  # 0.0, where -0.0 would be printed as -0.00
    margin = f"{-reply.margin:.2f} under" if reply.margin < 0 else f"{reply.margin:+.2f} over"
    return f'{margin} "no answer" (it answers from {lowest:+.2f} on)'


def _displayed(text: str) -> str:
    """Return `text` with its line breaks, other white space as spaces, no control characters."""
    return escape_controls(_SPACES.sub(" ", text))


def sentence(context: str, start: int, end: int, marks: tuple[str, str]) -> str:
    """Return the sentence around characters start to end, these between `marks`, on one line."""
    # From the last break before the answer to the first one after it.
    breaks = list(_SENTENCE_END.finditer(context))
    begins = [match.end() for match in breaks if match.end() <= start]
    ends = [match.start() for match in breaks if match.start() >= end]
    before = context[max(begins, default=0) : start]
    after = context[end : min(ends, default=len(context))]

    # A text without punctuation is one sentence.
    if len(before) > _MAX_CHARACTERS:
        before = "..." + before[-_MAX_CHARACTERS:]
    if len(after) > _MAX_CHARACTERS:
        after = after[:_MAX_CHARACTERS] + "..."
    return " ".join(f"{before}{marks[0]}{context[start:end]}{marks[1]}{after}".split())
