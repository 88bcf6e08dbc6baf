"""An exported folder: the plain library's logits, our own answers, and a card that says enough."""

import contextlib
import dataclasses
import json
import shutil
import stat
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
import yaml
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

import predict
from detalbert.engine.models import named_config
from detalbert.errors import Unavailable, UserError
from detalbert.inference import answering
from detalbert.inference.export import CARD, PACKAGES, card, export, push
from detalbert.inference.model import SETTINGS, Trained, choose_threshold, load_model
from detalbert.integrity import checksum, seal
from detalbert.squad.encoding import tokenizer_sum
from detalbert.squad.sources import read_questions
from detalbert.squad.tokenizer import named_tokenizer
from tests.conftest import Once
from tests.fakes.trained import LocalRun


def export_to(folder: Path, model: Path, *words: str) -> None:
    assert predict.main(["--model", str(model), "--export", str(folder), *words]) == 0


@pytest.fixture(scope="module")
def folder(local_run: LocalRun, once: Once) -> Path:
    def fill(folder: Path) -> None:
        export_to(folder / "some" / "model", local_run.path, "--license", "apache-2.0")

    return once("exported", fill) / "some" / "model"


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_library_agrees(folder: Path, model: Any, local_run: LocalRun, attention: str) -> None:
    """By the library's attentions and its GELU, which round in other ways."""
    plain = AutoModelForQuestionAnswering.from_pretrained(folder, attn_implementation=attention)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert not plain.training and plain.dtype is torch.float32
    chunk = answering.featurise(model, list(read_questions(local_run.questions))[:30])
    compared = 0
    for row in chunk.rows:
        ours = torch.stack(model.forward(row))
        bounds = row["cu_seqlens"].tolist()
        for window, first, last in zip(row["windows"], bounds, bounds[1:], strict=False):
            example = chunk.examples[chunk.windows.example_index[window]]
            pair = (example.question, example.context)
            inputs = tokenizer(*pair, return_token_type_ids=True, return_tensors="pt")
            output = plain(**inputs)
            theirs = torch.cat([output.start_logits, output.end_logits])
            torch.testing.assert_close(ours[:, first:last], theirs, rtol=3e-5, atol=3e-5)
            compared += 1
    assert compared == 30


def test_it_answers_alike(folder: Path, model: Any, local_run: LocalRun, tmp_path: Path) -> None:
    assert stat.S_IMODE((folder / "model.safetensors").stat().st_mode) == 0o644
    assert "packed" not in (folder / "config.json").read_text()
    again = load_model(str(folder))
    theirs, ours = again.model.state_dict(), model.model.state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in theirs.items())
    assert tokenizer_sum(again.tokenizer) == tokenizer_sum(model.tokenizer)
    assert again.data["train"] == model.data["train"] == "generated"
    assert again.scores == model.scores and again.steps == model.steps == local_run.best["steps"]
    assert choose_threshold(again, "best") == local_run.best["best_f1_thresh"]
    examples = list(read_questions(local_run.questions))[:40]
    one, other = (next(answering.answer(x, examples, 0.0)) for x in (model, again))
    assert one[:4] == other[:4]  # all but the losses
    export_to(tmp_path / "again", folder, "--threshold", "-1.25")
    assert choose_threshold(load_model(str(tmp_path / "again"))) == -1.25


READ = "config.json model.safetensors question_answering.json tokenizer.json tokenizer_config.json"


@pytest.mark.parametrize("name", [*READ.split(), "sums.json"])
def test_every_file_is_loaded_by_its_sum(name: str, folder: Path, tmp_path: Path) -> None:
    """Each way that reads it: to answer, to train on, for its tokenizer alone."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert set(READ.split()) <= json.loads((copy / "sums.json").read_text())["files"].keys()
    (copy / "README.md").write_text("edited")
    load_model(str(copy))
    content = (copy / name).read_bytes()
    changed = content + b" " if name != "sums.json" else content.replace(b"model.s", b"model.t")
    (copy / name).write_bytes(changed)
    cure = f"{name}: not as it was written; copy it again, or remove sums.json there"
    readers = [load_model]
    if name != "model.safetensors":
        readers += [named_config, named_tokenizer]
    for reader in readers:
        with pytest.raises(UserError, match=cure):
            reader(str(copy))
    if name != "sums.json":
        (copy / "sums.json").unlink()
        with contextlib.nullcontext() if name != "model.safetensors" else pytest.raises(UserError):
            load_model(str(copy))


@pytest.mark.parametrize("name", ["special_tokens_map.json", "added_tokens.json"])
def test_a_file_that_would_change_the_tokenizer_is_refused(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """It came later. Other files beside the export do no harm."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "LICENSE").write_text("mine")
    load_model(str(copy))
    (copy / name).write_text('{"cls_token": "a"}')
    for reader in (load_model, named_tokenizer):
        with pytest.raises(UserError, match=f"{name}: not as it was written"):
            reader(str(copy))


def test_sums_that_are_no_file_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    sums = copy / "sums.json"
    sums.unlink()
    sums.mkdir()
    for reader in (load_model, named_config, named_tokenizer):
        with pytest.raises(UserError, match="sums.json: not as it was written; copy it again"):
            reader(str(copy))
    sums.rmdir()
    sums.symlink_to("elsewhere")
    with pytest.raises(UserError, match="sums.json: not as it was written; copy it again"):
        load_model(str(copy))


def test_an_export_of_an_older_version_loads(folder: Path, tmp_path: Path) -> None:
    """It has a sum of its weights alone."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    files = {"model.safetensors": checksum(copy / "model.safetensors")}
    (copy / "sums.json").write_text(json.dumps(seal({"files": files})))
    (copy / "tokenizer.json").write_bytes((copy / "tokenizer.json").read_bytes() + b" ")
    assert load_model(str(copy)).steps == load_model(str(folder)).steps
    for wrong in ({}, {"files": []}, {"files": {"../x": "0"}}, {"files": {"/etc/passwd": "0"}}):
        (copy / "sums.json").write_text(json.dumps(seal(wrong)))
        with pytest.raises(UserError, match="sums.json: not as it was written"):
            load_model(str(copy))


def test_the_card_says_what_it_is(folder: Path, local_run: LocalRun) -> None:
    _, front, body = (folder / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(front)
    assert "base_model" not in facts  # it is shipped, not of a hub
    assert facts["license"] == "apache-2.0" and facts["pipeline_tag"] == "question-answering"
    best = local_run.best
    rows = {"train": "generated", "validation": "dev.json", "base_learning_rate": 0.002}
    rows |= {key: f"{best[key]:.6g}" for key in ("exact", "best_f1_thresh")}
    rows |= {"max_seq_length": 192}
    rows |= {name: metadata.version(name) for name in PACKAGES}  # what pip installs
    said = [f"| {key} | {value} |" for key, value in rows.items()]
    said += ["token_type_ids", "started from embedded/albert-tiny"]
    for text in [*said, f"trained for {best['steps']} optimizer steps"]:
        assert text in body
    for path in folder.iterdir():  # nothing of this machine
        assert str(local_run.path.parent).encode() not in path.read_bytes(), path


def test_squad_brings_its_licence(model: Trained) -> None:
    squad = model._replace(data={"train": "train-v2.0.json", "validation": "/x/dev-v2.0.json"})
    base = dataclasses.replace(model.hparams, model="me/albert-modèle")
    made = card(CARD, squad._replace(scores={}, hparams=base), model.model, "unknown")
    assert "\nbase_model: me/albert-modèle\n" in made
    assert "SQuAD: cc-by-sa-4.0" in made and "Not validated" in made and "/x/" not in made
    assert "datasets:\n- rajpurkar/squad_v2" in made


def test_failures_leave_nothing(folder: Path, model: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="it exists; give a new folder"):
        export(model, folder)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr(type(model.tokenizer), "save_pretrained", full)
        export(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for name in ("file", "file/inside"):
        with pytest.raises(UserError, match="--export"):
            export(model, tmp_path / name)
    (tmp_path / "empty").mkdir()
    export(model, tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").is_file()


def test_pushing(folder: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    hub, out = Mock(**{"upload_folder.return_value": "hub/me/mine"}), tmp_path / "out"
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    export_to(out, folder, "--push-to-hub", "me/mine")
    assert "uploaded to hub/me/mine" in capsys.readouterr().out
    hub.create_repo.assert_called_once_with("me/mine", private=True, exist_ok=True)
    hub.upload_folder.assert_called_once_with(repo_id="me/mine", folder_path=out)
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= {
        path.name for path in out.iterdir()
    }
    hub.create_repo.side_effect = ConnectionError("no route")
    with pytest.raises(Unavailable, match="--push-to-hub me/theirs: not uploaded: no route"):
        push(folder, "me/theirs")


def test_a_folder_of_another_make(folder: Path, tmp_path: Path) -> None:
    AutoModelForQuestionAnswering.from_pretrained(folder).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    model = load_model(str(tmp_path))
    assert model.scores == {} and model.hparams.max_seq_length == 384
    (tmp_path / SETTINGS).write_text(json.dumps({"hyperparameters": {"lr": 1}}))
    with pytest.raises(UserError, match="hyperparameters.lr: unknown key"):
        load_model(str(tmp_path))
