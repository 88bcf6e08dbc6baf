"""The checker against what a real 0.38.1 master answered: refused or harmful is a problem, and its
line names the key that is wrong."""

import copy
import json
import re

import pytest

from cluster.check import check_experiment
from cluster.rules import ADVICE
from detalbert.errors import UserError
from detalbert.settings.yaml_files import read_yaml
from tests.conftest import ROOT

# The recording, of validateOnly alone, calls them clean. On a real 0.38.1 none of them runs. Six
# are refused at creation: "invalid source checkpoint UUID: invalid UUID length: 4". Two are
# created, and train.py ends with an error: no data at all, and a metric that no validation has.
HARMFUL_TOO = {
    "upstream/searcher/partially-filled searcher is allowed and merges correctly",
    "valid/without-data",
    "upstream/searcher/random searcher defaults",
    "upstream/searcher-random/random searcher defaults",
    "upstream/searcher/random searcher (valid)",
    "upstream/searcher-random/random searcher (valid)",
    "upstream/searcher/grid searcher (valid)",
    "upstream/searcher-grid/grid searcher (valid)",
}
# Accepted, harmful and not named: what only a master, its pools, Docker or the WebUI says.
MISSED = {
    "searcher/source-trial-nonexistent",
    "resources/slots-odd-of-machines",
    "resources/max-slots-below-trial",
    "bind_mounts/twice-the-same-target",
    "integrations/webhook-id-nonexistent",
}
ELSEWHERE = {  # changed is one key, wrong then is another
    "searcher/grid-without-count": "hyperparameters.lr_scale.count",
    "workspace/without-project": "project",
    "workspace/project-alone": "workspace",
}


def text_of(case, bases):
    """The file of a recorded case; JSON is YAML, and quotes what Go would read otherwise."""
    if "text" in case:
        return case["text"]
    config = copy.deepcopy(case["config"] if "config" in case else bases[case["base"]])
    for path in case.get("unset", []):
        node = config
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]
    for path, value in case.get("set", []):
        node = config
        for key in path[:-1]:
            node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
        node[path[-1]] = value
    return json.dumps(config)


def is_named(case, errors):
    """Whether a problem is at the key that a recorded case changes, or above or below it."""
    paths = [path for path, _ in case.get("set", [])] + case.get("unset", [])
    if len(paths) != 1:
        return True
    changed = keys(ELSEWHERE.get(case["id"], ".".join(map(str, paths[0]))))
    for error in errors:
        key = keys(error.key)
        shared = min(len(key), len(changed))
        if key[:shared] == changed[:shared]:
            return True
    return False


def keys(path):
    return re.findall(r"[^.\[\]]+", path)


def check_text(text, path):
    path.write_text(text, encoding="utf-8")
    try:
        _, errors = check_experiment(read_yaml(path), ROOT)
    except UserError as error:
        return [error]
    return errors


@pytest.mark.slow
def test_the_real_masters_answers(golden_dir, tmp_path):
    recorded = json.loads((golden_dir / "determined-answers.json").read_text())
    missed = {"refused": set(), "harmful": set(), "clean": set()}
    for case in recorded["experiment_cases"]:
        errors = check_text(text_of(case, recorded["bases"]), tmp_path / "config.yaml")
        verdict = "refused" if not case["accepted"] else "clean"
        if "accepted_but" in case:
            verdict = "harmful"
        if (verdict == "clean" and errors) or (verdict != "clean" and not errors):
            missed[verdict].add(case["id"])
        elif errors:
            assert is_named(case, errors), (case["id"], errors)
    assert missed["clean"] == HARMFUL_TOO
    assert missed["harmful"] == MISSED  # of 34
    assert len(missed["refused"]) == 11, missed  # of 201; --ask gives the master's own words


# Public configs, which a real 0.38.1 was asked about: trials of others, for which advice about
# ours is none.
PUBLIC = {
    "c01_albert_records.yaml": [],
    "c02_trial_flag.yaml": [],
    "c03_lora_asha.yaml": ["searcher.time_metric", "searcher.max_time"],
    "c04_grid_inference.yaml": [],
    "c05_categorical_maps.yaml": [],
    "c06_task_entrypoint_list.yaml": ["searcher", "resources.slots"],
    "c07_adaptive_simple.yaml": ["batches_per_step", "searcher.name", "min_validation_period"],
    "c08_scheduling_unit.yaml": [],
    "c09_records_per_epoch.yaml": [],
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_configs(name, golden_dir, capsys):
    from cluster import check

    path = golden_dir / "public-configs" / name
    assert check.main([str(path), "--json"]) == (2 if PUBLIC[name] else 0)
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert [line["key"] for line in lines] == PUBLIC[name]
    assert not any(line["is_note"] for line in lines)


# What configs of others hold that run a train.py of their own: key names that are ours as well.
OTHERS = [
    {"hyperparameters": {"model": "resnet18", "lr": 0.1, "batch_size": 64}},
    {"hyperparameters": {"model": {"depth": 18}, "optimizer": {"lr": 0.1}}},
    {"hyperparameters": {"model": "gpt2", "seed": 1}, "searcher": {"metric": "eval_loss"}},
    {"data": {"train": "s3://b/train", "val": "s3://b/val"}, "hyperparameters": {"lr": 0.1}},
    {"data": {"text": "corpus.bin"}, "entrypoint": "python3 scripts/train.py"},
    {"data": {"train": "a.bin"}, "entrypoint": ["sh", "-c", "python3 train.py"]},
]


@pytest.mark.parametrize("config", OTHERS, ids=str)
def test_the_train_py_of_another_program(config, tmp_path):
    """The uploaded folder says whose train.py it is; with ours, these configs have problems."""
    config = {"name": "x", "entrypoint": "python3 train.py"} | config
    config["searcher"] = {"name": "single", "metric": "x"} | config.get("searcher", {})
    assert check_experiment(config, ROOT)[1]

    (tmp_path / "train.py").touch()
    experiment, errors = check_experiment(config, tmp_path)
    assert errors == []
    assert not any(note for rule in ADVICE for note in rule(experiment))
