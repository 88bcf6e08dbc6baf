"""An exported folder: the plain library's logits, our own answers, and a card that says enough."""

import dataclasses
import json
import stat
from importlib import metadata
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

import predict
from detalbert.errors import Unavailable, UserError
from detalbert.inference import answering, model_card
from detalbert.inference.export import export, push
from detalbert.inference.model import SETTINGS, Trained, choose_threshold, load_model
from detalbert.squad.question_stream import read_questions
from tests.conftest import LocalRun, Once


@pytest.fixture(scope="module")
def folder(local_run: LocalRun, once: Once) -> Path:
    def fill(folder: Path) -> None:
        words = ["--model", local_run.path, "--export", folder / "some" / "model"]
        assert predict.main([*map(str, words), "--license", "apache-2.0"]) == 0

    return once("exported", fill) / "some" / "model"


def test_all_may_read_the_weights(folder: Path) -> None:
    assert stat.S_IMODE((folder / "model.safetensors").stat().st_mode) == 0o644


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_plain_library_gives_the_same_logits(
    folder: Path, model: Trained, local_run: LocalRun, attention: str
) -> None:
    """By the library's attentions and its GELU, which round in other ways."""
    assert (folder / "model.safetensors").is_file()
    plain = AutoModelForQuestionAnswering.from_pretrained(folder, attn_implementation=attention)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert not plain.training and plain.dtype is torch.float32
    examples = list(read_questions(local_run.questions))[:30]
    chunk = answering.featurise(model, examples)
    compared = 0
    for row in chunk.rows:
        with torch.no_grad():
            start, end = model.forward(row)
        bounds = row["cu_seqlens"].tolist()
        for window, first, last in zip(row["windows"], bounds, bounds[1:], strict=False):
            example = examples[chunk.windows.example_index[window]]
            pair = (example.question, example.context)
            inputs = tokenizer(*pair, return_token_type_ids=True, return_tensors="pt")
            with torch.no_grad():
                output = plain(**inputs)
            ours = torch.stack([start, end])
            theirs = torch.cat([output.start_logits, output.end_logits])
            torch.testing.assert_close(ours[:, first:last], theirs, rtol=3e-5, atol=3e-5)
            compared += 1
    assert compared == 30


def test_weights_config_and_tokenizer_are_the_checkpoint_s(folder: Path, model: Trained) -> None:
    plain = AutoModelForQuestionAnswering.from_pretrained(folder)
    ours = model.model.state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in plain.state_dict().items())
    theirs = AutoTokenizer.from_pretrained(folder).backend_tokenizer.to_str()
    assert theirs == model.tokenizer.backend_tokenizer.to_str()
    assert "packed" not in (folder / "config.json").read_text()


def test_it_answers_as_the_checkpoint_did(
    folder: Path, model: Trained, local_run: LocalRun
) -> None:
    again = load_model(str(folder))
    assert again.data["train"] == model.data["train"] == "generated"
    assert again.scores == model.scores and again.steps == model.steps == local_run.best["steps"]
    assert choose_threshold(again, "best") == local_run.best["best_f1_thresh"]
    examples = list(read_questions(local_run.questions))[:40]
    one, other = (next(answering.answer(x, examples, 0.0)) for x in (model, again))
    assert one[:4] == other[:4]  # all but the losses


def test_it_can_be_exported_again_with_another_threshold(folder: Path, tmp_path: Path) -> None:
    words = ["--model", folder, "--export", tmp_path / "again", "--threshold", "-1.25"]
    assert predict.main([str(word) for word in words]) == 0
    assert choose_threshold(load_model(str(tmp_path / "again"))) == -1.25


def test_the_card_says_what_it_is(folder: Path, local_run: LocalRun, tmp_path: Path) -> None:
    text = (folder / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert "base_model" not in facts  # it is shipped, not of a hub
    assert facts["license"] == "apache-2.0" and facts["pipeline_tag"] == "question-answering"
    best = local_run.best
    for said in (
        "| train | generated |", "| validation | dev.json |", "| base_learning_rate | 0.002 |",
        f"| exact | {best['exact']:.6g} |", f"| best_f1_thresh | {best['best_f1_thresh']:.6g} |",
        "| max_seq_length | 192 |", "token_type_ids",
        "started from embedded/albert-tiny", f"trained for {best['steps']} optimizer steps",
    ):  # fmt: skip
        assert said in body, said
    for package in model_card.PACKAGES:  # what pip would have to install
        assert f"| {package} | {metadata.version(package)} |" in body
    for path in folder.iterdir():  # nothing of this machine
        assert str(local_run.path.parent).encode() not in path.read_bytes(), path


def test_squad_brings_its_licence(model: Trained) -> None:
    squad = model._replace(data={"train": "train-v2.0.json", "validation": "/x/dev-v2.0.json"})
    base = dataclasses.replace(model.hparams, model="albert-base-v2")
    card = model_card.card(squad._replace(scores={}, hparams=base), "unknown")
    assert "\nbase_model: albert-base-v2\n" in card
    assert "SQuAD: cc-by-sa-4.0" in card and "Not validated" in card and "/x/" not in card
    assert "datasets:\n- rajpurkar/squad_v2" in card


def test_a_full_folder_is_not_written_over(folder: Path, model: Trained, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it exists; give a new folder"):
        export(model, folder)
    (tmp_path / "file").write_text("")
    for name in ("file", "file/inside"):
        with pytest.raises(UserError, match="--export"):
            export(model, tmp_path / name)
    (tmp_path / "empty").mkdir()
    export(model, tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").is_file()


def test_an_export_that_fails_leaves_nothing(
    model: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(model.tokenizer), "save_pretrained", full)
    with pytest.raises(UserError, match="No space left"):
        export(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_pushing(
    folder: Path, local_run: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    done = []

    class Hub:
        def create_repo(self, name: str, **options: Any) -> None:
            done.append((name, options))

        def upload_folder(self, repo_id: str, folder_path: Path) -> str:
            done.append((repo_id, sorted(path.name for path in Path(folder_path).iterdir())))
            return f"hub/{repo_id}"

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    words = ["--model", local_run.path, "--export", tmp_path / "out", "--push-to-hub", "me/mine"]
    assert predict.main([str(word) for word in words]) == 0
    assert "uploaded to hub/me/mine" in capsys.readouterr().out
    assert done[0] == ("me/mine", {"private": True, "exist_ok": True})
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= set(done[1][1])

    def fails(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(Hub, "create_repo", fails)
    with pytest.raises(Unavailable, match="--push-to-hub me/mine: not uploaded: no route"):
        push(folder, "me/mine")


def test_a_folder_of_another_make(folder: Path, local_run: LocalRun, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    AutoModelForQuestionAnswering.from_pretrained(folder).save_pretrained(plain)
    AutoTokenizer.from_pretrained(folder).save_pretrained(plain)
    model = load_model(str(plain))
    assert model.scores == {} and model.hparams.max_seq_length == 384
    (plain / SETTINGS).write_text(json.dumps({"hyperparameters": {"lr": 1}}))
    with pytest.raises(UserError, match="hyperparameters.lr: unknown key"):
        load_model(str(plain))
