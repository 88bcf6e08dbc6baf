"""An exported encoder in plain transformers, and what a model of another kind is told."""

import contextlib
import itertools
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, pipeline

import predict
from detalbert.engine.safe_load import read_weights
from tests.conftest import ROOT, TINY, TINY_LM, TINY_PRETRAINING, configured
from tests.engine.trials import config_file, trial_of
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.no_models import refused
from tests.fakes.runs import metrics, newest, refusal, train_into


@pytest.fixture(scope="session")
def encoder_run(once: Any, cache_dir: Path) -> Path:
    """The output directory of a pretraining."""
    values = configured(TINY_PRETRAINING, cache_dir, span_fraction=0.3)
    return once("encoder", lambda folder: train_into(folder, values)) / "out"


def as_of_596c121(checkpoint: Path, folder: Path) -> Path:
    """A copy with what that version wrote: no class in the config, fewer and other keys."""
    shutil.copytree(checkpoint, folder)
    (folder / "manifest.json").unlink()
    changes: dict[str, Any] = {"pretrained/config.json": ({}, "architectures")}
    changes["load_data.json"] = ({"max_validation_examples": 40}, "max_validation_windows")
    for name, (more, gone) in changes.items():
        values = json.loads((folder / name).read_text())
        inner = values.get("experiment_config", {"data": values})["data"]
        del inner[gone]
        inner.update(more)
        values.get("hparams", {}).pop("early_stopping", None)
        (folder / name).write_text(json.dumps(values))
    return folder


WAYS = "a run", "fetched", "of 596c121", "masked tokens alone"
UUID = "aaaaaaaa-1111-2222-3333-444444444444"


@pytest.fixture(params=WAYS)
def exported(request, encoder_run, tmp_path, cache_dir, monkeypatch) -> tuple[str, Path, Path]:
    """The way, the run and its exported folder."""
    run = model = encoder_run
    if request.param == "masked tokens alone":
        values = configured(TINY_PRETRAINING, cache_dir, sentence_order=False)
        train_into(tmp_path, values)
        run = model = tmp_path / "out"
    elif request.param == "of 596c121":
        model = as_of_596c121(newest(run), tmp_path / "old")
    folder = tmp_path / "encoder"
    with contextlib.ExitStack() as stack:
        if request.param == "fetched":
            kept = as_of_596c121(newest(run), tmp_path / "storage" / UUID)
            known = Stored(UUID, kept, 0.0, 1, scores=metrics(run)["last"])
            storage = {"type": "shared_fs", "host_path": str(tmp_path / "storage")}
            master = stack.enter_context(CheckpointMaster([known], storage))
            master.log_in(monkeypatch, tmp_path)
            model = "trial:7"
        words = ["--model", model, "--export", folder, "--license", "mit"]
        assert predict.main([str(word) for word in words]) == 0
    monkeypatch.chdir(ROOT)
    return request.param, run, folder


def test_transformers_gives_the_trials_logits(exported, tmp_path, cache_dir):
    """The trial reads rows of several windows, transformers each window alone."""
    how, run, folder = exported
    whole, compared = how != "masked tokens alone", 0
    library = load("PreTraining" if whole else "MaskedLM", folder)
    keys = {"sentence_order": whole, "span_fraction": 0.3 * whole}
    with trial_of(config_file(tmp_path, TINY_PRETRAINING, cache_dir), **keys) as trial:
        trial.model.load_state_dict(read_weights(newest(run) / "state_dict.pth"))
        trial.model.eval()
        trial.forward.refresh()
        for row in (row for rows in trial.build_validation_data_loader() for row in rows):
            with torch.no_grad():
                masked, order, *_ = trial.forward(row)
                bounds = row["cu_seqlens"].tolist()
                alone = [library(**window(row, *pair)) for pair in itertools.pairwise(bounds)]
            logits = [each.prediction_logits if whole else each.logits for each in alone]
            found = torch.cat([part[0] for part in logits])[row["masked"]]
            torch.testing.assert_close(found, masked, rtol=0, atol=1e-5)
            if whole:
                found = torch.cat([each.sop_logits for each in alone])
                torch.testing.assert_close(found, order, rtol=0, atol=1e-5)
            compared += len(masked)
    assert compared > 150 and float(masked.abs().max()) > 0.01


def window(row: Any, begin: int, end: int) -> dict[str, torch.Tensor]:
    return {name: row[name][None, begin:end] for name in ("input_ids", "token_type_ids")}


def load(name: str, folder: Path, missing: Iterable[str] = ()) -> Any:
    """An Auto class's model, which has weights for all but `missing`."""
    kind = getattr(transformers, f"AutoModelFor{name}" if name else "AutoModel")
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert set(info["missing_keys"]) == {*missing} and not info["mismatched_keys"]
    return model.eval()


def test_what_an_exported_folder_is_good_for(exported, tmp_path, capsys):
    how, run, folder = exported
    whole = how != "masked tokens alone"
    unknown = set() if whole else {"pooler.weight", "pooler.bias"}
    load("", folder, unknown)
    classifier = {"classifier.weight", "classifier.bias"}
    load("SequenceClassification", folder, classifier | {f"albert.{name}" for name in unknown})
    for name in ("MaskedLM", *("PreTraining", "QuestionAnswering") * whole):
        load(name, folder)
    named = AutoConfig.from_pretrained(folder).architectures
    assert named == ["AlbertForPreTraining" if whole else "AlbertForMaskedLM"]
    filled = pipeline("fill-mask", str(folder))("The ship was [MASK] with tar.")
    assert len(filled) == 5 and all("the ship was " in guess["sequence"] for guess in filled)
    card, scores = (folder / "README.md").read_text(), metrics(run)["last"]
    assert card.startswith("---\nlicense: mit\n") and "for 12 optimizer steps" in card
    known = {name for name in scores if f"| {name} | {scores[name]:.6g} |" in card}
    wanted = {"mlm_accuracy", *["sop_accuracy", "span_accuracy"] * whole}
    assert known >= (wanted if how != "of 596c121" else set())  # that copy is far from its run
    capsys.readouterr()
    words = ["--model", folder, "--export", tmp_path / "again"]
    refused(words, "encoder is a model folder already; copy it", capsys)


def test_a_checkpoints_config_names_its_class(encoder_run, local_run, lm_run):
    runs = [encoder_run, local_run.path, lm_run]
    named = [AutoConfig.from_pretrained(newest(r) / "pretrained").architectures for r in runs]
    classes = "AlbertForPreTraining", "AlbertForQuestionAnswering", "LlamaForCausalLM"
    assert named == [[name] for name in classes]


QUESTION = "--question a --context b"
EXPORT_FIRST = "{} is a language model; export it first: python predict.py --model {} "
COMMANDS = [
    ("encoder", QUESTION, "--question: {} is a pretrained encoder; give --export, or fine-tune"),
    ("encoder", "--data x", "python train.py --config CONFIG --set hyperparameters.model={}"),
    ("encoder", "--serve", "--serve: {} is a pretrained encoder; give --export, or"),
    ("encoder", "--prompt a", "--prompt: {} is a pretrained encoder; give --export, or"),
    ("encoder", "--export x --top 3", "--top: "),
    ("squad", "--prompt a", "--prompt: {} is a model that answers questions; give --data"),
    ("squad", "--perplexity a", "--perplexity: {} is a model that answers questions; give --data"),
    ("lm", QUESTION, "--question: {} is a language model; give --prompt, --perplexity, or"),
    ("lm", "--serve", "then serve DIR with `transformers serve` or vLLM"),
]
STARTS = [
    ("lm", TINY_LM, EXPORT_FIRST),
    ("lm", TINY, EXPORT_FIRST),
    ("lm", TINY_PRETRAINING, EXPORT_FIRST),
    ("encoder", TINY_LM, "{} is a pretrained encoder; give a language model, or hyper"),
    ("squad", TINY_LM, "{} is a model that answers questions; give a language model, or"),
]


@pytest.fixture
def trained(run, encoder_run, local_run, lm_run) -> Path:
    return {"encoder": encoder_run, "lm": lm_run, "squad": local_run.path}[run]


@pytest.mark.parametrize(("run", "words", "said"), COMMANDS)
def test_a_command_for_another_kind_is_refused(words, said, trained, capsys):
    folder = predict.find(str(trained))
    refused(["--model", trained, *words.split()], said.format(folder, folder), capsys)


@pytest.mark.parametrize(("run", "config", "said"), STARTS)
def test_a_start_from_another_kind_is_refused(config, said, trained, tmp_path, capsys, cache_dir):
    folder = newest(trained)
    values = {"model": str(folder), "model_config": None}
    line = refusal(capsys, config_file(tmp_path, config, cache_dir, **values), tmp_path / "out")
    assert "hyperparameters.model: " + said.format(folder, folder) in line
    assert not (tmp_path / "out").exists()
