"""What a model is called: by predict.py, by the workload that wrote it; in the lines of a run."""

import json
from types import SimpleNamespace

import pytest

from detalbert.errors import UserError
from detalbert.training.workload import ANSWERING, ENCODER, check_mode, describe_model

KINDS = [
    ("model_def:SquadTrial", {"doc_stride": 128}, ANSWERING),
    ("mine:MyTrial", {"doc_stride": 128}, ANSWERING),  # of a changed model_def.py
    ("pretrain.trial:PretrainTrial", {}, ENCODER),
]


def saved(folder, trial, hparams):
    facts = {"trial_cls_spec": trial, "hparams": hparams}
    (folder / "load_data.json").write_text(json.dumps(facts))
    return folder


@pytest.mark.parametrize(("trial", "hparams", "kind"), KINDS)
def test_a_checkpoint_of_this_package_is_known(trial, hparams, kind, tmp_path):
    assert check_mode("export", saved(tmp_path, trial, hparams)) == kind


@pytest.mark.parametrize("mode", ["data", "question", "export", "prompt"])
def test_a_checkpoint_of_a_workload_of_ones_own_is_refused_in_one_line(mode, tmp_path):
    folder = saved(tmp_path, "parity:ParityTrial", {"global_batch_size": 8})
    said = f"^--{mode}: .* is a checkpoint of parity:ParityTrial, a workload of your own, and "
    with pytest.raises(UserError, match=f"{said}predict.py is for questions and text; load it"):
        check_mode(mode, folder)


@pytest.mark.parametrize(
    ("hparams", "scratch", "name"),
    [
        ({"model": "a/b"}, False, "a/b, 6 parameters"),
        ({"model": None, "size": "tiny"}, True, "tiny from random weights, 6 parameters"),
        ({"model": None}, True, "bert of hyperparameters.model_config from random weights, 6"),
    ],
)
def test_a_run_names_its_model(hparams, scratch, name):
    config = SimpleNamespace(model_type="bert")
    model = SimpleNamespace(config=config, num_parameters=lambda: 6)
    trial = SimpleNamespace(
        hparams=SimpleNamespace(**hparams), model=model, starts_from_scratch=lambda: scratch
    )
    assert describe_model(trial).startswith(name)
