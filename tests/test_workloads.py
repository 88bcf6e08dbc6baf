"""The table of workloads: the row of a config, what its modules import, and the hook's check."""

import json
import subprocess

import pytest

from detalbert.errors import UserError
from tests.conftest import ROOT
from workloads import check_sources, choose, find_row, main

LM, PRETRAINING, SQUAD = "lm.trial", "pretrain.trial", "model_def"
MASKED = {"model_config": {"model_type": "modernbert"}, "masked_fraction": 0.3}
FITTING = [
    ({"documents": "a", "train": "b"}, {}, LM),
    ({"shards": "a"}, {"layout": "auto"}, LM),
    ({"shards": "a"}, {"model_config": {"model_type": "gpt2"}}, LM),
    ({"shards": "a"}, {"size": "base"}, PRETRAINING),
    ({"shards": "a"}, {"model": "albert-base-v2"}, PRETRAINING),
    ({"shards": "a"}, MASKED, PRETRAINING),
    ({"text": "a", "validation": "b"}, {"layout": "auto"}, PRETRAINING),
    ({"text": None, "train": "b"}, {}, SQUAD),
    ({"train": "a"}, None, SQUAD),
]


@pytest.mark.parametrize(("data", "hparams", "module"), FITTING)
def test_a_key_of_the_data_selects_the_row(data, hparams, module):
    config = {"data": data, "hyperparameters": hparams}
    assert find_row(config).workload.split(":")[0] == module


@pytest.mark.parametrize("kind", ["documents", "examples"])
def test_shards_say_what_they_hold(kind, tmp_path):
    (tmp_path / "index.json").write_text(json.dumps({"kind": kind}))
    config = {"data": {"shards": str(tmp_path)}, "hyperparameters": {"layout": "auto"}}
    assert find_row(config).kind == kind


@pytest.mark.parametrize("config", [{}, {"data": None}, {"data": 5}, {"data": {"trian": "a"}}])
def test_a_config_that_no_row_fits_is_one_line(config):
    keys = "documents, text, train, shards"
    with pytest.raises(UserError, match=f"^data: selects no workload; give one .* keys: {keys}$"):
        choose(config)


def test_parsers_come_without_torch_and_workloads_without_each_other(real_python, script):
    names = "[row.parsers for row in workloads.TABLE]"
    code = f"import sys, pkgutil, workloads; list(map(pkgutil.resolve_name, {names}))"
    check = f"{code}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([real_python, "-c", check], cwd=ROOT).returncode == 0
    code = "import sys, train, model_def; sys.exit(bool({'lm', 'pretrain'} & set(sys.modules)))"
    assert subprocess.run(script(code), cwd=ROOT).returncode == 0


def test_a_fault_of_a_small_file_is_told_without_torch(real_python, tmp_path):
    """Of either file, as far as a run reads it."""
    good = {"question": "Where?", "context": "It is in Kiel.", "answer": "Kiel"}
    rows = [good, {**good, "context": "It is in Bonn.", "answer": "Ulm"}]
    (tmp_path / "bad.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "good.jsonl").write_text(json.dumps(good))
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("bad", "good")}
    for data in (
        {"train": files["bad"], "validation_fraction": 0.1},
        {"train": files["good"], "validation": files["bad"]},
    ):
        with pytest.raises(UserError, match=r"bad\.jsonl: line 2: .* 'Ulm' is not in its context"):
            check_sources({"data": data})
    for key in ({"skip_invalid": True}, {"max_validation_examples": 1}):
        check_sources({"data": {**data, **key}})
    code = (
        f"import sys, workloads; workloads.check_sources({{'data': {{'train': {files['good']!r}, "
    )
    code += f"'validation': {files['good']!r}}}}}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([real_python, "-c", code], cwd=ROOT).returncode == 0


def test_the_hook_names_all_mistakes_of_a_task(monkeypatch, capsys):
    monkeypatch.delenv("DET_EXPERIMENT_CONFIG", raising=False)
    assert main() == 0  # a notebook
    config = {"data": {"documents": "generated", "vocab_sise": 400}}
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", json.dumps(config))
    monkeypatch.setenv("DET_HPARAMS", json.dumps({"layuot": "auto"}))
    assert main() == 2
    line = capsys.readouterr().err
    assert "data.vocab_sise: unknown key; did you mean 'vocab_size'?" in line
    assert "hyperparameters.layuot: unknown key; did you mean 'layout'?" in line

    prediction = {"entrypoint": "python3 predict.py --model x"}
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", json.dumps(prediction))
    assert main() == 0
