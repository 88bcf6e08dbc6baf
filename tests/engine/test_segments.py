"""Token types are those of the library's call for a pair, but for what transformers 5 dropped."""

import logging

import pytest
import torch
from transformers import AlbertTokenizer, AutoTokenizer, PreTrainedTokenizerFast

from detalbert.engine.inputs import follow_tokenizer, takes_segments
from detalbert.engine.models import build_span_model
from detalbert.inference import answering
from detalbert.inference.export import export
from detalbert.inference.model import load_model
from detalbert.settings.hparams import HParams
from detalbert.squad.encoding import named_tokenizer
from detalbert.squad.example import Example
from tests.fakes.encoders import make_model

LISTED = ["input_ids", "token_type_ids", "attention_mask"]
CONTEXT = "The Zanto was loaded with pottery. The Belmira was built in Orvane."
QUESTIONS = [
    "What was the Zanto loaded?",
    "What was the Zanto built?",
    "Who was the Zanto loaded?",
    "Who was the Zanto built?",
]


def tokenizer(*, listed):
    """The shipped tokenizer, whose template has two segments, in another class."""
    shipped = named_tokenizer("embedded/albert-tiny")
    return PreTrainedTokenizerFast(
        tokenizer_object=shipped.backend_tokenizer,
        cls_token=shipped.cls_token,
        sep_token=shipped.sep_token,
        pad_token=shipped.pad_token,
        unk_token=shipped.unk_token,
        **({"model_input_names": LISTED} if listed else {}),
    )


def folder_of(folder, model_type, *, listed):
    """A folder with a model of random weights, and that tokenizer."""
    own = tokenizer(listed=listed)
    model = make_model(model_type, "sdpa", vocab_size=len(own), type_vocab_size=2).eval()
    model.save_pretrained(folder)
    own.save_pretrained(folder)
    return folder


def library_logits(folder, question, **call):
    from transformers import AutoModelForQuestionAnswering

    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(question, CONTEXT, return_tensors="pt", **call)
    with torch.no_grad():
        output = model(**inputs)
    return torch.stack([output.start_logits[0], output.end_logits[0]])


def own_logits(trained, question):
    chunk = answering.featurise(trained, [Example("1", "", CONTEXT, question, None)])
    with torch.no_grad():
        return torch.stack(trained.forward(chunk.rows[0]))


SAID = "lists no token_type_ids: it"


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("model_type", ["bert", "electra"])
def test_logits_are_those_of_the_librarys_call(model_type, listed, tmp_path, caplog):
    folder = folder_of(tmp_path / "model", model_type, listed=listed)
    with caplog.at_level(logging.INFO, logger="detalbert"):
        trained = load_model(str(folder))
    assert (f"{SAID} runs without, as in transformers" in caplog.text) != listed
    for question in QUESTIONS:
        expected = library_logits(folder, question)
        torch.testing.assert_close(own_logits(trained, question), expected, rtol=1e-4, atol=1e-4)
        with_types = library_logits(folder, question, return_token_type_ids=True)
        assert torch.allclose(expected, with_types) == listed  # it makes a difference


@pytest.mark.parametrize("model_type", ["bert", "electra"])
def test_what_is_made_of_a_model_without_segments_has_none(model_type, tmp_path):
    """What is exported from it runs as it does, and so does what is fine-tuned from it."""
    folder = folder_of(tmp_path / "model", model_type, listed=False)
    export(load_model(str(folder)), tmp_path / "exported")
    exported = load_model(str(tmp_path / "exported"))
    assert not takes_segments(exported.model)
    hparams = HParams(model=str(folder), max_seq_length=64, seed=0)
    assert not takes_segments(build_span_model(hparams, named_tokenizer(str(folder))))


@pytest.mark.parametrize("listed", [True, False])
def test_albert_keeps_both_segments(listed, tmp_path, caplog):
    folder = folder_of(tmp_path / "model", "albert", listed=listed)
    with caplog.at_level(logging.INFO, logger="detalbert"):
        trained = load_model(str(folder))
    assert (f"{SAID} gets both segments" in caplog.text) != listed
    assert not hasattr(trained.model.config, "segments")
    for question in QUESTIONS[:2]:
        expected = library_logits(folder, question, return_token_type_ids=True)
        torch.testing.assert_close(own_logits(trained, question), expected, rtol=1e-4, atol=1e-4)


def test_the_real_albert_tokenizer_keeps_both_segments_for_any_model(albert):
    assert type(albert) is AlbertTokenizer
    assert "token_type_ids" not in albert.model_input_names
    for model in (make_model("albert"), make_model("bert")):
        follow_tokenizer(model, albert)
        assert takes_segments(model)
