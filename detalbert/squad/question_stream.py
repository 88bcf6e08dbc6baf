"""Questions of a file (rows.py), checked one at a time."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detalbert.errors import UserError
from detalbert.squad.rows import MAX_CONTEXT, Question, file_questions
from detalbert.squad.windows import Example

MAX_QUESTION = 10_000  # characters
REPEATED = "answers stand more than once in their text (the first is taken)"


def read_questions(path: Path, columns: Mapping[str, str] | None = None) -> Iterator[Example]:
    """Yield the questions of a file to answer; `answers` is None if the file has none. Raises
    UserError, naming file and place, if something is not a question.
    """
    count = 0
    for example in checked_examples(file_questions(path, columns), answers_needed=False):
        check_text(f"{path}: question {example.id}", example.question, example.context)
        count += 1
        yield example
    if not count:
        raise UserError(f"{path}: no question in it")


def checked_examples(
    questions: Iterable[Question],
    faults: Counter | None = None,
    answers_needed: bool = True,
    notes: Counter | None = None,
) -> Iterator[Example]:
    """Check and yield every question, one at a time; only their ids stay in memory.

    `faults` counts the faulty questions, which are skipped; None: raise UserError, naming the file
    and the question id. Unless `answers_needed`, a question without answers gets `answers` None.
    `notes` counts what a user should know of the others.
    """
    seen: set[str] = set()
    notes = Counter() if notes is None else notes
    for where, title, context, question in questions:
        try:
            example = _checked(title, context, question, answers_needed, notes)
            if example.id in seen:
                raise _Fault("duplicate id", f"question {example.id}: another one has this id")
        except _Fault as fault:
            kind, text = fault.args
            if faults is None:
                hint = " or set data.skip_invalid: true" if answers_needed else ""
                hint = "" if kind == "no answer" else hint  # it may be so of all of them
                raise UserError(f"{where}: {text}; fix it{hint}") from None
            faults[kind] += 1
            continue
        seen.add(example.id)
        yield example


class _Fault(Exception):
    """A fault of one question: its kind, and what is wrong."""


def _checked(
    title: str, context: Any, question: Any, answers_needed: bool, notes: Counter
) -> Example:
    if not isinstance(question, dict):
        raise _Fault("not a question", f"article {title!r}: a question is not a mapping")
    text, name = question.get("question"), question.get("id")
    name = str(name) if type(name) is int else name
    if not isinstance(name, str) or not name:
        raise _Fault("no id", f"article {title!r}: question {text!r} has no id")
    said = f"question {name}:"
    if not isinstance(text, str) or not text.strip():
        raise _Fault("no text", f"{said} it has no text")
    if not isinstance(context, str) or not context.strip():
        raise _Fault("empty context", f"{said} its context is empty")
    if not is_unicode(f"{name}{text}{context}"):
        raise _Fault("not UTF-8", f"question {name!r}: id, question or context is not UTF-8 text")
    answers, impossible = question.get("answers"), question.get("is_impossible")
    if not (answers_needed or answers or "is_impossible" in question):
        return Example(name, title, context, text, None)
    if isinstance(answers, str) and answers and not impossible:  # a cell that is no JSON
        why = "its answers are no list or mapping; write them as JSON, or as texts in `answer`"
        raise _Fault("bad answer", f"{said} {why}")
    answers = [] if impossible else answers
    if not isinstance(answers, list) or not (answers or impossible):
        why = "no answers and not marked is_impossible; give it an `answer` (empty: there is none)"
        raise _Fault("no answer", f"{said} {why}")
    found = [_answer(said, context, answer) for answer in answers]
    notes[REPEATED] += bool(found) and found[0][2] > 1
    return Example(name, title, context, text, tuple((text, at) for text, at, _ in found))


def _answer(said: str, context: str, answer: Any) -> tuple[str, int, int]:
    """Return an answer's text as it stands in the context, its start, and how often it is there if
    the start was not given.
    """
    given = answer if isinstance(answer, dict) else {}
    text, start = given.get("text"), given.get("answer_start")
    if not isinstance(text, str) or not text.strip() or type(start) not in (int, type(None)):
        why = "an answer needs a text, and answer_start is a number"
        raise _Fault("bad answer", f"{said} {why}")
    if start is None:
        if (found := find_answer(context, text)) is None:
            raise _Fault("answer not found", f"{said} answer {text!r:.80} is not in its context")
        start, end, count = found
        return context[start:end], start, count
    there = context[start : start + len(text)] if start >= 0 else ""
    if there != text:
        why = f"answer {text!r} is not at character {start} (there: {there!r})"
        raise _Fault("misplaced answer", f"{said} {why}")
    return text, start, 1


def find_answer(context: str, answer: str) -> tuple[int, int, int] | None:
    """Return start and end (characters, end exclusive) of an answer, and how often it is there.

    The first of these that is there counts: the text as it is, between words; as it is, within a
    word; without regard to case and white space, between words; so within a word. "art" of "A
    party for art" is at 12, not at 3.
    """
    answer = answer.strip()
    words = r"\s+".join(map(re.escape, answer.split()))
    for pattern, flags in ((re.escape(answer), 0), (words, re.IGNORECASE)):
        found = [(m.start(), m.end()) for m in re.finditer(pattern, context, flags)]
        whole = [place for place in found if _is_whole(context, *place)]
        if places := whole or found:
            return (*places[0], len(places))
    return None


def _is_whole(context: str, start: int, end: int) -> bool:
    """Return whether no word goes on over the start or the end."""
    edges = context[max(start - 1, 0) : start + 1], context[end - 1 : end + 1]
    return not any(len(edge) == 2 and edge.isalnum() for edge in edges)


def check_text(where: str, question: str, context: str, max_context: int = MAX_CONTEXT) -> None:
    """Raise UserError if question or context is empty, too long or not Unicode text."""
    limits = {"question": (question, MAX_QUESTION), "context": (context, max_context)}
    for name, (text, limit) in limits.items():
        if not text.strip():
            raise UserError(f"{where}: the {name} is empty; give it some text")
        if len(text) > limit:
            size = f"{len(text):,} characters, {limit:,} at most are read"
            raise UserError(f"{where}: the {name} has {size}; cut it")
        if not is_unicode(text):
            raise UserError(f"{where}: the {name} is not UTF-8 text; fix it")


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON and broken encodings can contain."""
    return not re.search("[\ud800-\udfff]", text)
