"""Chunks change nothing, few are held, and every answer is a part of the text."""

import dataclasses
import json
from collections import ChainMap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from hypothesis import given
from hypothesis import strategies as st

from detalbert.engine import rows as packed
from detalbert.inference import answering
from detalbert.inference.model import Trained, prepare
from detalbert.inference.reply import ask, format_reply, sentence
from detalbert.settings.hparams import HParams
from detalbert.squad.windows import Example
from tests.conftest import max_examples
from tests.fakes import encoders
from tests.fakes.questions import read_questions
from tests.fakes.trained import LocalRun


@pytest.fixture(scope="module")
def examples(local_run: LocalRun) -> list[Example]:
    return list(read_questions(local_run.questions))


SHORT_WINDOWS: dict[str, Any] = {
    "max_seq_length": 96,
    "doc_stride": 32,
    "max_query_length": 24,
    "max_tokens_per_forward": 500,
}


@pytest.mark.parametrize("size", [1, 7, 50])
def test_chunks_answer_as_one_pass_does(
    size: int, model: Trained, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, as the rows are the same; three chunks are held at most."""
    for module in (packed, answering):
        monkeypatch.setattr(module, "CHUNK", size)
    model = model._replace(hparams=dataclasses.replace(model.hparams, **SHORT_WINDOWS))
    questions = examples[:52]

    # All questions in one pass.
    chunk = answering.featurise(model, questions)
    assert len(chunk.windows) > len(questions)  # several to a question
    evaluated = answering.evaluate_windows(model, chunk)
    expected = answering.merge_chunk(model, chunk, *evaluated, -1.0)

    read = 0

    def counted() -> Iterator[Example]:
        nonlocal read
        for example in questions:
            read += 1
            yield example

    chunks = []
    answered = 0
    for answers in answering.answer(model, counted(), -1.0):
        assert len(answers.examples) in (size, 52 % size)
        answered += len(answers.examples)
        assert read - answered <= 3 * size
        chunks.append(answers)

    for name in ("predictions", "null_odds", "n_best"):
        by_chunk = [getattr(answers, name) for answers in chunks]
        assert dict(ChainMap(*by_chunk)) == getattr(expected, name)
    losses = np.concatenate([answers.losses for answers in chunks])
    assert np.array_equal(losses, expected.losses)


def test_losses_are_those_of_known_answers(model: Trained, examples: list[Example]) -> None:
    answered = examples[:30]
    unanswered = [example._replace(answers=None) for example in answered]
    mixed = list(unanswered)
    mixed[::2] = answered[::2]

    of_answered = next(answering.answer(model, answered, 0.0))
    of_mixed = next(answering.answer(model, mixed, 0.0))
    of_unanswered = next(answering.answer(model, unanswered, 0.0))

    assert of_answered.predictions == of_mixed.predictions == of_unanswered.predictions
    assert of_answered.null_odds == of_mixed.null_odds == of_unanswered.null_odds
    assert len(of_answered.losses) == 30
    assert np.array_equal(of_mixed.losses, of_answered.losses[::2])
    assert len(of_unanswered.losses) == 0


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=300).filter(str.strip)


@max_examples(60)
@given(question=texts, context=texts, threshold=st.sampled_from([-5.0, 0.0, 5.0, float("inf")]))
def test_replies_are_text(model: Trained, question: str, context: str, threshold: float) -> None:
    reply = ask(model, question, context, threshold)

    for choice in reply.n_best:
        assert choice.text == context[choice.start : choice.end] == choice.text.strip()
    assert reply.abstained == (not reply.answer)
    if not reply.abstained:
        assert reply.answer == context[reply.start : reply.end]
        assert -reply.margin <= threshold
    elif reply.margin is not None:
        assert -reply.margin > threshold
    assert format_reply(reply, context).startswith("answer ")
    json.dumps(dataclasses.asdict(reply))


def test_the_sentence_around_an_answer() -> None:
    text = "One. Two is here!  Three?\nFour " + "x" * 500
    sentences = {
        "One": "**One**.",
        "is": "Two **is** here!",
        "Three?": "**Three?**",
        "Two is here!  Three?": "**Two is here! Three?**",
        "Four": f"**Four** {'x' * 199}",
    }
    for answer, marked in sentences.items():
        start = text.index(answer)
        assert sentence(text, start, start + len(answer)) == marked


TOKENS = range(encoders.SHAPE["vocab_size"])  # a tokenizer as far as `prepare` looks at it
COMPILED = HParams(model="albert", max_seq_length=64, compile=True, precision="fp32")


def prepared(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    torch._dynamo.reset()
    encoders.compile_with(backend, monkeypatch)
    return prepare(encoders.make_model(), TOKENS, COMPILED, torch.device("cpu"))


@pytest.mark.slow
def test_prediction_compiles_the_forward_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gradients = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        with_gradients.append(torch.is_grad_enabled())
        return graph.forward

    model = prepared(backend, monkeypatch).model
    assert with_gradients
    assert not any(with_gradients)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_prediction_does_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even where the run was to be compiled: who has a checkpoint cannot change its config."""
    run = prepared(encoders.broken_compiler, monkeypatch)
    encoders.assert_runs_uncompiled(run, caplog.text)
