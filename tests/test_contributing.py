"""The workload of CONTRIBUTING.md: it learns, and a stop and a restart leave no trace."""

import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import train
from detalbert.training.checkpoints import read_manifest
from tests.conftest import ROOT, TINY
from tests.fakes.runs import cut_and_go_on, newest, run
from tests.same_bits import differences

PAGE = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.usefixtures("cache_dir")  # it trains
def test_the_example_trains_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example, choice = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
    assert PAGE.count("\n") <= 120 and sum(map(bool, example.split("\n"))) <= 60
    (tmp_path / "parity.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    head, source = re.split(r"(?<=def choose)", (ROOT / "workloads.py").read_text())
    place = source.index('"""\n') + 4  # behind the docstring
    workloads = ModuleType("workloads")
    exec(head + source[:place] + choice + source[place:], vars(workloads))
    monkeypatch.setattr(train, "choose", workloads.choose)
    hparams = {"model_config": TINY["hyperparameters"]["model_config"], "num_workers": 0}
    hparams |= {"global_batch_size": 8, "max_steps": 48, "base_learning_rate": 0.06}
    hparams |= {"validation_period": 12, "checkpoint_period": 13, "reporting_period": 4}
    config = tmp_path / "parity.yaml"
    content = {"data": {"parity": 100}, "searcher": {"name": "single", "metric": "loss"}}
    config.write_text(yaml.safe_dump({**content, "hyperparameters": hparams}))
    assert run(config, tmp_path / "uncut") == 0
    cut_and_go_on(config, tmp_path / "cut", monkeypatch, at=18)
    assert differences(tmp_path / "uncut", tmp_path / "cut") == []
    losses = [v["loss"] for v in read_manifest(newest(tmp_path / "cut"))["validations"]]
    assert len(losses) == 4 and losses[-1] < losses[0] / 2
