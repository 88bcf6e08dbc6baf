"""Token types are those of the library's call for a pair, but for what transformers 5 dropped."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AlbertTokenizer, AutoTokenizer, PreTrainedTokenizerFast

from detalbert.engine.models import build_span_model
from detalbert.engine.segments import follow_tokenizer, takes_segments
from detalbert.inference import answering
from detalbert.inference.export import export
from detalbert.inference.model import load_model
from detalbert.settings.hparams import HParams
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.squad.windows import Example
from tests.fakes.encoders import make_model

LISTED = ["input_ids", "token_type_ids", "attention_mask"]
CONTEXT = "The Zanto was loaded with pottery. The Belmira was built in Orvane."
ASKED = [f"{word} was the Zanto {end}?" for word in ("What", "Who") for end in ("loaded", "built")]


def tokenizer(*, listed: bool, kind: Any = PreTrainedTokenizerFast) -> Any:
    """The shipped tokenizer, whose template has two segments, in another class."""
    own = named_tokenizer("embedded/albert-tiny")
    names = {"model_input_names": LISTED} if listed else {}
    special = {
        key: getattr(own, key) for key in ("cls_token", "sep_token", "pad_token", "unk_token")
    }
    return PreTrainedTokenizerFast(tokenizer_object=own.backend_tokenizer, **special, **names)


def folder_of(folder: Path, model_type: str, *, listed: bool) -> Path:
    own = tokenizer(listed=listed)
    model = make_model(model_type, "sdpa", vocab_size=len(own), type_vocab_size=2).eval()
    model.save_pretrained(folder)
    own.save_pretrained(folder)
    return folder


def library_logits(folder: Path, question: str, **call: Any) -> torch.Tensor:
    from transformers import AutoModelForQuestionAnswering

    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(question, CONTEXT, return_tensors="pt", **call)
    with torch.no_grad():
        output = model(**inputs)
    return torch.stack([output.start_logits[0], output.end_logits[0]])


def own_logits(trained: Any, question: str) -> torch.Tensor:
    chunk = answering.featurise(trained, [Example("1", "", CONTEXT, question, None)])
    with torch.no_grad():
        return torch.stack(trained.forward(chunk.rows[0]))


SAID = "lists no token_type_ids: it"


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("model_type", ["bert", "electra"])
def test_logits_are_those_of_the_librarys_call(
    model_type: str, listed: bool, tmp_path: Path, caplog: Any
) -> None:
    folder = folder_of(tmp_path / "model", model_type, listed=listed)
    with caplog.at_level(logging.INFO, logger="detalbert"):
        trained = load_model(str(folder))
    assert (f"{SAID} runs without, as in transformers" in caplog.text) != listed
    for question in ASKED:
        wanted = library_logits(folder, question)
        torch.testing.assert_close(own_logits(trained, question), wanted, rtol=1e-4, atol=1e-4)
        other = library_logits(folder, question, return_token_type_ids=True)
        assert torch.allclose(wanted, other) == listed  # it makes a difference
    if listed:
        return
    # What is exported from it runs as it does, and so does what is fine-tuned from it.
    export(trained, tmp_path / "exported")
    again = load_model(str(tmp_path / "exported"))
    assert not takes_segments(again.model)
    hparams = HParams(model=str(folder), max_seq_length=64, seed=0)
    assert not takes_segments(build_span_model(hparams, named_tokenizer(str(folder))))


@pytest.mark.parametrize("listed", [True, False])
def test_albert_keeps_both_segments(listed: bool, tmp_path: Path, caplog: Any) -> None:
    folder = folder_of(tmp_path / "model", "albert", listed=listed)
    with caplog.at_level(logging.INFO, logger="detalbert"):
        trained = load_model(str(folder))
    assert (f"{SAID} gets both segments" in caplog.text) != listed
    assert not hasattr(trained.model.config, "segments")
    for question in ASKED[:2]:
        wanted = library_logits(folder, question, return_token_type_ids=True)
        torch.testing.assert_close(own_logits(trained, question), wanted, rtol=1e-4, atol=1e-4)


def test_the_real_albert_tokenizer_keeps_both_segments_for_any_model(albert: Any) -> None:
    assert type(albert) is AlbertTokenizer and "token_type_ids" not in albert.model_input_names
    for model in (make_model("albert"), make_model("bert")):
        follow_tokenizer(model, albert)
        assert takes_segments(model)


def test_models_without_segments_say_nothing(caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    for name in ("roberta", "distilbert"):
        follow_tokenizer(make_model(name), tokenizer(listed=False))
    follow_tokenizer(make_model("bert"), tokenizer(listed=True))
    assert caplog.text == ""
