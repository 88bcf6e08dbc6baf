"""The table of workloads: the row of a config, and what its modules import."""

import subprocess
from typing import Any

import pytest

from detalbert.errors import UserError
from tests.conftest import ROOT
from workloads import choose, find_row

LM, PRETRAINING, SQUAD = "lm.trial", "pretrain.trial", "model_def"
FITTING: list[tuple[Any, Any, str]] = [
    ({"documents": "a", "train": "b"}, {}, LM),
    ({"shards": "a"}, {"layout": "auto"}, LM),
    ({"shards": "a"}, {"size": "base"}, PRETRAINING),
    ({"text": "a", "validation": "b"}, {"layout": "auto"}, PRETRAINING),
    ({"validation": "a", "trian": "b"}, {}, SQUAD),
    ({"train": "a"}, None, SQUAD),
]


@pytest.mark.parametrize(("data", "hparams", "module"), FITTING)
def test_the_first_row_that_fits_counts(data, hparams, module):
    config = {"data": data, "hyperparameters": hparams}
    assert find_row(config).workload.split(":")[0] == module


@pytest.mark.parametrize("config", [{}, {"data": None}, {"data": {"trian": "a"}}])
def test_a_config_that_no_row_fits_is_one_line(config):
    keys = "documents, text, train, validation, shards"
    with pytest.raises(UserError, match=f"^data: selects no workload; .* keys: {keys}$"):
        choose(config)


def test_parsers_come_without_torch_and_workloads_without_each_other(real_python, script):
    names = "[row.parsers for row in workloads.TABLE]"
    code = f"import sys, pkgutil, workloads; list(map(pkgutil.resolve_name, {names}))"
    check = f"{code}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([real_python, "-c", check], cwd=ROOT).returncode == 0
    code = "import sys, train, model_def; sys.exit(bool({'lm', 'pretrain'} & set(sys.modules)))"
    assert subprocess.run(script(code), cwd=ROOT).returncode == 0
