"""Chunks change nothing, few are held, and every answer is a part of the text."""

import dataclasses
import json
from collections import ChainMap

import pytest
import torch
import torch._dynamo
from hypothesis import given
from hypothesis import strategies as st

from detalbert.engine import rows as packed
from detalbert.inference import answering
from detalbert.inference.model import prepare
from detalbert.inference.reply import ask, format_reply
from detalbert.settings.hparams import HParams
from tests.conftest import max_examples
from tests.fakes import encoders
from tests.fakes.questions import read_questions


@pytest.fixture(scope="module")
def examples(local_run):
    return list(read_questions(local_run.questions))


SHORT_WINDOWS = {
    "max_seq_length": 96,
    "doc_stride": 32,
    "max_query_length": 24,
    "max_tokens_per_forward": 500,
}


@pytest.mark.parametrize("size", [1, 7, 50])
def test_chunks_answer_as_one_pass_does(size, model, examples, monkeypatch):
    """To the bit, as the rows are the same; three chunks are held at most."""
    for module in (packed, answering):
        monkeypatch.setattr(module, "CHUNK", size)
    model = model._replace(hparams=dataclasses.replace(model.hparams, **SHORT_WINDOWS))
    questions = examples[:52]

    # All questions in one pass.
    chunk = answering.featurise(model, questions)
    assert len(chunk.windows) > len(questions)  # several to a question
    evaluated = answering.evaluate_windows(model, chunk)
    expected = answering.merge_chunk(model, chunk, evaluated, -1.0)

    read = 0

    def counted():
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


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=300).filter(str.strip)


@max_examples(60)
@given(question=texts, context=texts, threshold=st.sampled_from([-5.0, 0.0, 5.0, float("inf")]))
def test_replies_are_text(model, question, context, threshold):
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


TOKENS = range(encoders.SHAPE["vocab_size"])  # a tokenizer as far as `prepare` looks at it
COMPILED = HParams(model="albert", max_seq_length=64, compile=True, precision="fp32")


def prepared(backend, monkeypatch):
    torch._dynamo.reset()
    encoders.compile_with(backend, monkeypatch)
    return prepare(encoders.make_model(), TOKENS, COMPILED, torch.device("cpu"))


def test_prediction_does_without_a_compiler(monkeypatch, caplog):
    """Even where the run was to be compiled: who has a checkpoint cannot change its config."""
    run = prepared(encoders.broken_compiler, monkeypatch)
    encoders.assert_runs_uncompiled(run, caplog.text)
