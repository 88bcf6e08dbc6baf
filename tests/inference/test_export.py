"""An exported folder: the plain library's logits, our own answers, and a card that says enough."""

import json
import shutil
import stat
from itertools import pairwise

import pytest
import torch
import yaml
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

import predict
from detalbert.engine.models import named_config
from detalbert.errors import UserError
from detalbert.inference import answering
from detalbert.inference.export import _front_matter, export
from detalbert.inference.model import choose_threshold, load_model
from detalbert.squad.encoding import named_tokenizer, tokenizer_sum
from tests.fakes.questions import read_questions
from tests.older import ids_and_outputs


def export_to(folder, model, *words):
    assert predict.main(["--model", str(model), "--export", str(folder), *words]) == 0


@pytest.fixture(scope="module")
def folder(local_run, once):
    def fill(folder):
        export_to(folder / "some" / "model", local_run.path, "--license", "apache-2.0")

    return once("exported", fill) / "some" / "model"


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_library_agrees(folder, model, local_run, attention):
    """By the library's attentions and its GELU, which round in other ways."""
    plain = AutoModelForQuestionAnswering.from_pretrained(folder, attn_implementation=attention)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert not plain.training
    assert plain.dtype is torch.float32
    chunk = answering.featurise(model, list(read_questions(local_run.questions))[:30])

    compared = 0
    for row in chunk.rows:
        logits = torch.stack(model.forward(row))  # [2, tokens of the row]
        bounds = row["cu_seqlens"].tolist()
        for window, (first, last) in zip(row["windows"], pairwise(bounds), strict=True):
            example = chunk.examples[chunk.windows.example_index[window]]
            inputs = tokenizer(
                example.question,
                example.context,
                return_token_type_ids=True,
                return_tensors="pt",
            )
            output = plain(**inputs)
            expected = torch.cat([output.start_logits, output.end_logits])
            torch.testing.assert_close(logits[:, first:last], expected, rtol=3e-5, atol=3e-5)
            compared += 1
    assert compared == 30


@pytest.mark.soak
@torch.no_grad()
def test_transformers_4_gives_the_same_logits(folder, tmp_path):
    text = "Where is the ship? The ship is in Kiel."
    ids, *logits = ids_and_outputs("AutoModelForQuestionAnswering", folder, text, tmp_path / "4.pt")

    assert ids[0].tolist() == AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    output = AutoModelForQuestionAnswering.from_pretrained(folder)(input_ids=ids)
    torch.testing.assert_close(output.to_tuple(), tuple(logits), rtol=0, atol=1e-5)


def test_it_answers_alike(folder, model, local_run, tmp_path):
    assert stat.S_IMODE((folder / "model.safetensors").stat().st_mode) == 0o644
    loaded = load_model(str(folder))

    weights = model.model.state_dict()
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert tokenizer_sum(loaded.tokenizer) == tokenizer_sum(model.tokenizer)
    assert loaded.scores == model.scores
    assert choose_threshold(loaded, "best") == local_run.best["best_f1_thresh"]

    questions = list(read_questions(local_run.questions))[:40]
    answers = next(answering.answer(model, questions, 0.0))
    answers_of_loaded = next(answering.answer(loaded, questions, 0.0))
    assert answers == answers_of_loaded

    # Exported again, with another threshold.
    export_to(tmp_path / "again", folder, "--threshold", "-1.25")
    assert choose_threshold(load_model(str(tmp_path / "again"))) == -1.25


READ = {
    "config.json",
    "model.safetensors",
    "question_answering.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.mark.parametrize("name", sorted(READ | {"sums.json"}))
def test_every_file_is_loaded_by_its_sum(name, folder, tmp_path):
    """Each way that reads it: to answer, to train on, for its tokenizer alone."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    sums = json.loads((copy / "sums.json").read_text())
    assert sums["files"].keys() >= READ
    (copy / "README.md").write_text("edited")
    load_model(str(copy))

    content = (copy / name).read_bytes()
    if name == "sums.json":
        changed = content.replace(b"model.s", b"model.t")
    else:
        changed = content + b" "
    (copy / name).write_bytes(changed)

    problem = "not as it was written; copy it again, or remove sums.json there"
    if name != "sums.json":  # of which only a part is damaged: the file that it names
        problem = f"{name}: {problem}"
    readers = [load_model]
    if name != "model.safetensors":
        readers += [named_config, named_tokenizer]
    for reader in readers:
        with pytest.raises(UserError, match=problem):
            reader(str(copy))


def test_the_card_says_what_it_is(folder, local_run):
    _, front, body = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["license"] == "apache-2.0"
    assert yaml.safe_load(front)["language"] == "en"
    best = local_run.best
    assert f"| exact | {best['exact']:.6g} |" in body

    for path in folder.iterdir():  # nothing of this machine
        assert str(local_run.path.parent).encode() not in path.read_bytes(), path


def test_a_card_names_the_language_that_is_known():
    known = {"de": {"train": "a.csv", "language": "de"}, "en": {"train": "a.csv"}}
    for language, data in known.items():
        assert f"language: {language}\n" in _front_matter("random weights", data, "mit")
    for data in ({}, {"text": "a.txt"}):
        assert "language" not in _front_matter("random weights", data, "mit")


def test_failures_leave_nothing(folder, model, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    killed = folder.parent / ".detalbert-tmp-model-01234abc"
    killed.mkdir()
    with pytest.raises(UserError, match="it exists; give a new folder"):
        export(model, folder)
    assert not killed.exists()
    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr(type(model.tokenizer), "save_pretrained", full)
        export(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--export"):
        export(model, tmp_path / "file")
