"""Chunks change nothing, few are held, and every answer is a part of the text."""

import dataclasses
import json
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
from detalbert.squad.sources import read_questions
from detalbert.squad.windows import Example
from tests.conftest import max_examples
from tests.fakes import encoders
from tests.fakes.trained import LocalRun


@pytest.fixture(scope="module")
def examples(local_run: LocalRun) -> list[Example]:
    return list(read_questions(local_run.questions))


@pytest.mark.parametrize("size", [1, 7, 50])
def test_chunks_answer_as_one_pass_does(
    size: int, model: Trained, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, as the rows are the same; three chunks are held at most."""
    for module in (packed, answering):
        monkeypatch.setattr(module, "CHUNK", size)
    sizes = {"max_seq_length": 96, "doc_stride": 32, "max_query_length": 24}
    hparams = dataclasses.replace(model.hparams, max_tokens_per_forward=500, **sizes)
    model = model._replace(hparams=hparams)
    some, read, answered, parts = examples[:52], [], 0, []
    chunk = answering.featurise(model, some)
    assert len(chunk.windows) > len(some)  # several to a question
    whole = answering.merge_chunk(model, chunk, *answering.evaluate_windows(model, chunk), -1.0)
    for part in answering.answer(model, (read.append(e) or e for e in some), -1.0):
        answered += len(part.examples)
        assert len(part.examples) in (size, 52 % size) and len(read) - answered <= 3 * size
        parts.append(part)
    for name in ("predictions", "null_odds", "n_best"):
        found = {id_: value for part in parts for id_, value in getattr(part, name).items()}
        assert found == getattr(whole, name)
    assert np.array_equal(np.concatenate([part.losses for part in parts]), whole.losses)


def test_no_questions_and_broken_ones(model: Trained, examples: list[Example]) -> None:
    assert list(answering.answer(model, [], 0.0)) == []
    broken = (1 / 0 if n else example for n, example in enumerate(examples))
    with pytest.raises(ZeroDivisionError):
        list(answering.answer(model, broken, 0.0))


def test_losses_are_those_of_known_answers(model: Trained, examples: list[Example]) -> None:
    some = examples[:30]
    half = [e._replace(answers=None) if i % 2 else e for i, e in enumerate(some)]
    none = [e._replace(answers=None) for e in some]
    every, known, unknown = (next(answering.answer(model, x, 0.0)) for x in (some, half, none))
    assert every[1:3] == known[1:3] == unknown[1:3]  # predictions and null odds
    assert not len(unknown.losses) and len(every.losses) == 30
    assert np.array_equal(known.losses, every.losses[::2])


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=300).filter(str.strip)


@max_examples(60)
@given(question=texts, context=texts, threshold=st.sampled_from([-5.0, 0.0, 5.0, float("inf")]))
def test_replies_are_text(model: Any, question: str, context: str, threshold: float) -> None:
    reply = ask(model, question, context, threshold)
    for choice in reply.n_best:
        assert choice.text == context[choice.start : choice.end] == choice.text.strip()
    assert reply.abstained == (not reply.answer)
    if not reply.abstained:
        assert reply.answer == context[reply.start : reply.end]
        assert -reply.margin <= threshold
        # In order, white space may differ from the text's; the answer's own words do not.
        shown = sentence(context, reply.start, reply.end, ("\0[", "]\0"))
        inside = shown.split("\0[")[-1].split("]\0")[0] if "\0" not in context else None
        assert inside is None or inside.split() == reply.answer.split()
    elif reply.margin is not None:
        assert -reply.margin > threshold
    assert format_reply(reply, context).startswith("answer ")
    json.dumps(dataclasses.asdict(reply))


def test_the_sentence_around_an_answer() -> None:
    text = "One. Two is here!  Three?\nFour " + "x" * 500
    for part, shown in {
        "One": "<One>.",
        "is": "Two <is> here!",
        "Three?": "<Three?>",
        "Two is here!  Three?": "<Two is here! Three?>",
        "Four": f"<Four> {'x' * 199}...",
    }.items():
        at = text.index(part)
        assert sentence(text, at, at + len(part), ("<", ">")) == shown


PIECES = range(encoders.SHAPE["vocab_size"])  # a tokenizer as far as `prepare` looks at it
COMPILED = HParams(model="albert", max_seq_length=64, compile=True, precision="fp32")


def prepared(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    torch._dynamo.reset()
    encoders.compile_with(backend, monkeypatch)
    return prepare(encoders.make_model(), PIECES, COMPILED, torch.device("cpu"))


def test_prediction_compiles_the_forward_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gradients = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        with_gradients.append(torch.is_grad_enabled())
        return graph.forward

    model = prepared(backend, monkeypatch).model
    assert with_gradients and not any(with_gradients)
    assert not model.training and all(p.grad is None for p in model.parameters())


def test_prediction_does_without_a_compiler(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Even where the run was to be compiled: who has a checkpoint cannot change its config."""
    run = prepared(encoders.broken_compiler, monkeypatch)
    encoders.assert_runs_uncompiled(run, caplog.text)
