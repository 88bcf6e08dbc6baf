"""A config, changed by --set; its mistakes, through the commands that read one."""

import json
import subprocess

import pytest
import yaml

from cluster import check
from detalbert.errors import UserError
from detalbert.settings import experiment
from detalbert.settings.experiment import as_a_master_reads, find_problems
from tests.conftest import ROOT, TINY
from tests.fakes.secrets import PLANTED


def test_overrides_change_what_they_name():
    overrides = """hyperparameters.epochs=3|hyperparameters.base_learning_rate=5e-5|max_restarts=0
data.train=a=b.json|data.no_answer=[n/a, '']|data.validation=null"""
    config = {"hyperparameters": {"epochs": 2}}
    experiment.apply_overrides(config, overrides.replace("\n", "|").split("|"))
    assert config == yaml.safe_load(
        """{hyperparameters: {epochs: 3, base_learning_rate: 5.0e-5}, max_restarts: 0,
        data: {train: a=b.json, no_answer: [n/a, ''], validation: null}}"""
    )
    for wrong in ("hyperparameters.epochs", "=3", "max_restarts.x=1", "name={", "a=!!bool x"):
        with pytest.raises(UserError, match=f"^--set {wrong}: "):
            experiment.apply_overrides(config, [wrong])


def test_a_config_is_read_as_a_master_reads_it(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("checkpoint_storage: {save_trial_best: 2.0, type: null}\ndata: {train: null}")
    config = experiment.load(path, ["searcher.metric=f1", "labels=[a, null]"])
    assert json.dumps(config, sort_keys=True) == (
        '{"checkpoint_storage": {"save_trial_best": 2}, "data": {"train": null}, '
        '"hyperparameters": {}, "labels": ["a", null], '
        '"searcher": {"metric": "f1", "smaller_is_better": true}}'
    )


def test_constants_are_values_and_ranges_of_a_search_are_named():
    problems = []
    hyperparameters = yaml.safe_load(
        """{epochs: {type: const, val: 3}, lr_scale: {type: double, minval: 0.5, maxval: 1},
        model_config: {hidden_size: {type: categorical, vals: [8, 16]},
        rope: {type: linear, factor: 2}, vocab_size: {type: const, val: null}}}"""
    )
    values = experiment.single_values(hyperparameters, problems)
    model = {"rope": {"type": "linear", "factor": 2}, "vocab_size": None}
    assert values == {"epochs": 3, "model_config": model}
    keys = [problem.key.removeprefix("hyperparameters.") for problem in problems]
    assert keys == ["lr_scale", "model_config.hidden_size"]


def test_no_error_shows_a_secret():
    assert "planted" in str(PLANTED)
    problems = find_problems(as_a_master_reads(PLANTED))
    assert problems
    assert "planted" not in " ".join(map(str, problems))


MISTAKES = {"max_restart": 5, "hyperparameters.lr_scal": 1, "data.trian": "generated"}


@pytest.fixture
def mistaken(tmp_path):
    """A config with three mistakes."""
    path = tmp_path / "mistaken.yaml"
    config = json.loads(json.dumps(TINY))
    experiment.apply_overrides(config, [f"{key}={value}" for key, value in MISTAKES.items()])
    path.write_text(yaml.safe_dump(config))
    return path


TRAIN = "train.py --config"
CORPUS = "-m detalbert.corpus --output out"
SHARDS = "--set data.documents=null --set data.vocab_size=null --set data.shards"
MISSING = {
    f"configs/lm_local.yaml {SHARDS}=no.such": "data.shards: no.such",
    "configs/local.yaml --set data.train=/no/such.csv": "data.train: /no/such.csv",
    "configs/local.yaml --set data.validation=no.json.gz": "data.validation: no.json.gz",
    "configs/lm_local.yaml --set data.documents=[a,no.txt]": "data.documents: no.txt",
    'configs/pretrain_local.yaml --set data.text={"source":"no/"}': "data.text: no/",
}
NOT_THERE = [
    (
        CORPUS if "documents=[" in words or "text=" in words else TRAIN,
        words,
        [f"{text}: no such file"],
    )
    for words, text in MISSING.items()
]
UNKNOWN = [f"{key}: unknown key; did you mean " for key in MISTAKES]


@pytest.mark.parametrize(
    ("command", "words", "problems"),
    [(TRAIN, "MISTAKEN", UNKNOWN), (CORPUS, "MISTAKEN", UNKNOWN), *NOT_THERE],
)
def test_a_command_names_all_mistakes_before_it_imports_torch(
    command, words, problems, mistaken, real_python
):
    arguments = f"{command} {words}".replace("MISTAKEN", str(mistaken)).split()
    run = subprocess.run(
        [real_python, "-X", "importtime", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 2
    (line,) = [line for line in run.stderr.splitlines() if ": error: " in line]
    for problem in problems:
        assert problem in line
    imported = {line.split("|")[-1].strip() for line in run.stderr.splitlines()}
    assert "pydantic" in imported
    assert imported.isdisjoint({"torch", "transformers", "numpy"})


def test_the_checker_names_all_mistakes(mistaken, capsys):
    assert check.main([str(mistaken), "--context", str(ROOT)]) == 2
    out = capsys.readouterr().out
    for key in MISTAKES:
        assert f"{mistaken}: {key}: unknown key; did you mean " in out
