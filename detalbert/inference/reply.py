"""Replies to questions about texts, for the command line and the server.

A token may begin or end with white space, and so may a span; the official files keep it, for their
scores are compared with the reference's. A reply is for people: its texts are stripped.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detalbert.addresses import open_text
from detalbert.errors import UserError
from detalbert.escapes import CONTROL, escape_controls
from detalbert.inference import answering
from detalbert.inference.model import Trained
from detalbert.run_page.excerpt import cut_sentence
from detalbert.squad.answers import NBestEntry
from detalbert.squad.calibration import given
from detalbert.squad.example import Example
from detalbert.squad.questions import is_unicode

MAX_QUESTION = 10_000  # characters of a question in a flag or a request
MAX_CONTEXT = 1_000_000  # characters of its context: about 250,000 tokens


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


def check_text(where: str, question: str, context: str) -> None:
    """Raise UserError if question or context is empty, too long or not Unicode text."""
    texts = ("question", question, MAX_QUESTION), ("context", context, MAX_CONTEXT)
    for name, text, limit in texts:
        if not text.strip():
            raise UserError(f"the {name} is empty", key=where, cure="give it some text")
        if len(text) > limit:
            problem = f"the {name} has more than {limit:,} characters"
            raise UserError(problem, key=where, cure="cut it")
        if not is_unicode(text) or "\0" in text:
            raise UserError(f"the {name} is not UTF-8 text", key=where, cure="fix it")


def read_context(context: str | None, file: Path | None) -> str:
    """Return `context`, or the text in `file`; raise UserError for neither and both."""
    if (context is None) == (file is None):
        raise UserError("give the text to search, by --context or --context-file", key="--context")
    text = context or ""
    if file is not None:
        # One character more than is allowed: a file of any size is refused, a pipe can be read.
        with open_text(str(file)) as lines:
            text = lines.read(MAX_CONTEXT + 1)
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    check_text(str(file or "--context"), "?", text)
    return text


def ask(trained: Trained, question: str, context: str, threshold: float) -> Reply:
    """Return the reply to one question."""
    return ask_together(trained, [(question, context)], threshold)[0]


def ask_together(
    trained: Trained, questions: Sequence[tuple[str, str]], threshold: float
) -> list[Reply]:
    """Return the replies to questions that share rows.

    Args:
        questions: (question, context) pairs.
        threshold: null odds above which the model abstains.

    Raises:
        UserError: windows cannot cover a context; its `key` is "question 0" of the first pair.
    """
    examples = [
        Example(str(number), title="", context=context, question=question, answers=None)
        for number, (question, context) in enumerate(questions)
    ]
    chunk = answering.featurise(trained, examples)
    spans = answering.evaluate_windows(trained, chunk)
    answered = answering.merge_chunk(trained, chunk, spans, threshold)
    return [_reply(example, answered, threshold, trained.is_calibrated) for example in examples]


def _reply(
    example: Example, answered: answering.Answered, threshold: float, calibrated: bool
) -> Reply:
    # Without a span that has text, the official files have a placeholder; a reply abstains.
    entries = answered.n_best[example.id]
    choices = _stripped(entries)
    spans = [choice for choice in choices if choice.text]
    prediction = answered.predictions[example.id] if spans else ""
    best = spans[0] if prediction else None
    return Reply(
        question=example.question,
        answer=best.text if best else "",
        abstained=best is None,
        start=best.start if best else None,
        end=best.end if best else None,
        probability=given(entries, prediction)["probability"],
        calibrated=calibrated,
        margin=-answered.null_odds[example.id] if spans else None,
        threshold=threshold,
        n_best=choices,
    )


def _stripped(entries: list[NBestEntry]) -> list[Choice]:
    """Return "no answer" and the spans stripped of white space, without spans of nothing else."""
    choices = []
    for entry in entries:
        text = entry["text"].strip()
        start = entry["start"] + len(entry["text"]) - len(entry["text"].lstrip())
        is_span = entry["end"] > entry["start"] and text
        if is_span or not entry["text"]:
            choices.append(Choice(text, entry["probability"], start=start, end=start + len(text)))
    return choices


def show(reply: Reply, context: str, as_json: bool) -> None:
    """Print a reply: for people, or as a line of JSON."""
    print(json_line(dataclasses.asdict(reply)) if as_json else format_reply(reply, context))


def json_line(value: object) -> str:
    r"""Return `value` as one line of JSON for a terminal or a program: control characters as
    `\u001b`, other Unicode as it is. Raises ValueError for NaN and infinity, which JSON lacks.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return CONTROL.sub(
        lambda match: f"\\u{ord(match[0]):04x}",
        text,
    )


def format_reply(reply: Reply, context: str) -> str:
    """Format the reply for display, its control characters escaped."""
    note = "" if reply.calibrated else " (uncalibrated)"
    margin = "no span of the text is possible"
    if reply.margin is not None:
        lowest = 0.0 - reply.threshold  # 0.0, where -0.0 would be printed as -0.00
        margin = f'{reply.margin:+.2f} over "no answer" (it answers from {lowest:+.2f} on)'
    lines = {
        "answer": reply.answer or "(no answer)",
        "probability": f"{reply.probability:.3f}{note}",
        "margin": margin,
    }
    spans = [choice for choice in reply.n_best if choice.text]
    if spans:
        before, answer, after = cut_sentence(context, spans[0].text, spans[0].start)
        lines["nearest" if reply.abstained else "sentence"] = f"{before}**{answer}**{after}"
    texts = {name: escape_controls(" ".join(text.split())) for name, text in lines.items()}
    return "\n".join(f"{name:<13}{text}" for name, text in texts.items())
