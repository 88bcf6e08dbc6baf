"""Chunks change nothing, few are held, and every answer is a part of the text."""

import dataclasses
import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detalbert.engine import batches
from detalbert.engine.batches import pack_rows, validation_rows
from detalbert.errors import UserError
from detalbert.inference import answering
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask, describe, sentence
from detalbert.squad.answers import merge_answers, n_best_list
from detalbert.squad.metrics import Tally, score
from detalbert.squad.question_stream import read_questions
from detalbert.squad.windows import Example, build_windows
from tests.conftest import LocalRun, max_examples


@pytest.fixture(scope="module")
def examples(local_run: LocalRun) -> list[Example]:
    return list(read_questions(local_run.questions))


def in_chunks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(batches, "CHUNK", size)
    monkeypatch.setattr(answering, "CHUNK", size)


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
def test_a_reader_in_chunks_packs_the_rows_of_the_whole(
    size: int, model: Trained, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_chunks(monkeypatch, size)
    some = examples[:120]
    windows = build_windows(some, model.tokenizer, 96, 32, 24)  # several to a question
    assert len(windows) > len(some)
    budget = 500
    sizes = {"max_seq_length": 96, "doc_stride": 32, "max_query_length": 24}
    hparams = dataclasses.replace(model.hparams, max_tokens_per_forward=budget, **sizes)
    model = model._replace(hparams=hparams)
    shares = validation_rows(windows, budget)
    whole = [row for share in shares for row in pack_rows(windows, share, budget)]
    parts = [some[at : at + size] for at in range(0, len(some), size)]
    rows = [row for part in parts for row in answering.featurise(model, part).rows]
    assert len(rows) == len(whole) >= len(parts)
    for one, other in zip(rows, whole, strict=True):
        for name in ("input_ids", "token_type_ids", "cu_seqlens", "start_positions"):
            assert torch.equal(one[name], other[name])


def test_chunks_answer_as_one_pass_over_everything(
    model: Trained, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_chunks(monkeypatch, 16)
    some = examples[:50]
    chunk = answering.featurise(model, some)
    spans, losses = answering.evaluate(model, chunk)
    answers = merge_answers(some, chunk.windows, spans, -1.0)
    order = np.argsort(np.concatenate([found.windows for found in spans]))
    found = list(answering.answer(model, iter(some), -1.0))
    assert [len(part.examples) for part in found] == [16, 16, 16, 2]
    tally, n_best = Tally(), {}
    for part in found:
        tally.add(part.examples, part.predictions, part.null_odds)
        n_best.update(part.n_best)
    assert tally.metrics(-1.0) == score(some, *answers, -1.0)
    assert n_best == n_best_list(some, chunk.windows, spans, model.hparams.n_best_size)
    assert np.array_equal(np.concatenate([part.losses for part in found]), losses[order])


def test_questions_are_read_as_they_are_needed(
    model: Trained, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_chunks(monkeypatch, 8)
    read = []

    def reader() -> Iterator[Example]:
        for example in examples[:80]:
            read.append(example)
            yield example

    answered = 0
    for part in answering.answer(model, reader(), 0.0):
        answered += len(part.examples)
        assert len(read) - answered <= 3 * 8
    assert answered == 80


def test_a_reader_that_fails_fails_the_whole(model: Trained, examples: list[Example]) -> None:
    def reader() -> Iterator[Example]:
        yield examples[0]
        raise UserError("file: broken")

    with pytest.raises(UserError, match="file: broken"):
        list(answering.answer(model, reader(), 0.0))


def test_losses_are_those_of_questions_with_known_answers(
    model: Trained, examples: list[Example]
) -> None:
    some = examples[:30]
    half = [e._replace(answers=None) if i % 2 else e for i, e in enumerate(some)]
    none = [e._replace(answers=None) for e in some]
    (every,), (known,), (unknown,) = (
        list(answering.answer(model, x, 0.0)) for x in (some, half, none)
    )
    assert every[1:3] == known[1:3] == unknown[1:3]  # predictions and null odds
    assert not len(unknown.losses)
    assert not len(answering.evaluate(model, answering.featurise(model, none))[1])
    assert len(every.losses) == 30 and np.array_equal(known.losses, every.losses[::2])


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=300).filter(str.strip)


@max_examples(60)
@given(question=texts, context=texts, threshold=st.sampled_from([-5.0, 0.0, 5.0, float("inf")]))
def test_replies_stand_in_the_text(
    model: Trained, question: str, context: str, threshold: float
) -> None:
    reply = ask(model, question, context, threshold)
    for entry in reply["n_best"]:
        assert entry["text"] == context[entry["start"] : entry["end"]]
        assert entry["text"] == entry["text"].strip()
    assert reply["abstained"] == (not reply["answer"])
    if not reply["abstained"]:
        assert reply["answer"] == context[reply["start"] : reply["end"]]
        assert -reply["margin"] <= threshold
        # In order, white space may differ from the text's; the answer's own words do not.
        shown = sentence(context, reply["start"], reply["end"], ("\0[", "]\0"))
        inside = shown.split("\0[")[-1].split("]\0")[0] if "\0" not in context else None
        assert inside is None or inside.split() == reply["answer"].split()
    elif reply["margin"] is not None:
        assert -reply["margin"] > threshold
    assert describe(reply, context).startswith("answer ")
    json.dumps(reply)


def test_the_sentence_around_an_answer() -> None:
    text = "One. Two is here!  Three?\nFour " + "x" * 500
    at = text.index

    def shown(word: str) -> str:
        return sentence(text, at(word), at(word) + len(word), ("<", ">"))

    assert shown("One") == "<One>."
    assert shown("is") == "Two <is> here!"
    assert shown("Three?") == "<Three?>"
    assert shown("Two is here!  Three?") == "<Two is here! Three?>"
    assert shown("Four").startswith("<Four> xxx") and shown("Four").endswith("xxx...")


def test_who_waits_no_longer_is_not_answered(model: Trained) -> None:
    asked = iter([True, False])
    context = "The Kalonda carried tar. " * 2000
    with pytest.raises(answering.Stopped):
        answering.answer_together(model, [("Who?", context)], 0.0, lambda tokens: next(asked))


def test_an_empty_file_of_questions_gives_nothing(model: Trained) -> None:
    assert list(answering.answer(model, [], 0.0)) == []
