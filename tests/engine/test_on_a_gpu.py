"""Runs on a real GPU: CUDA_VISIBLE_DEVICES=0 python -m pytest -m gpu.

They take two minutes on an H100 (estimated), because each start compiles the layers; with SOAK=1
there are three twins and eight cuts of each. test_watched.py has the same on a CPU, where nothing
waits and nothing is compiled.
"""

import pytest
import torch

from tests.conftest import SOAK, TINY, TINY_LM, TINY_PRETRAINING
from tests.engine.trials import config_file
from tests.engine.watched import Watched
from tests.fakes.runs import change

WORKLOADS = {"fine-tuning": TINY, "pretraining": TINY_PRETRAINING, "language model": TINY_LM}
# Dropout of attention weights keeps attention from the kernel.
WITHOUT = {"attention_probs_dropout_prob", "attention_dropout"}
# Steps after which runs are stopped, in turn: none is a twin. With dropout there are fewer.
CUTS = {False: [(), (3, 8)], True: [(5,)]}
if SOAK > 1:
    CUTS = {dropout: [(), (), tuple(range(1, 9))] for dropout in (False, True)}
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def as_before():
    """train.py chooses exact kernels for its process, which here goes on."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("dropout", [False, True])
def test_runs_end_in_one_hash_without_waits_and_new_shapes(
    workload,
    dropout,
    cache_dir,
    tmp_path,
    monkeypatch,
):
    compiled = {"compile": True} if workload == "language model" else {}  # the others: by default
    path = config_file(tmp_path, WORKLOADS[workload], cache_dir, **compiled)
    if not dropout:
        shape = WORKLOADS[workload]["hyperparameters"]["model_config"]
        change(path, model_config=dict.fromkeys(WITHOUT & shape.keys(), 0.0))
    run = Watched(path, monkeypatch)

    uncut = run.weights_after(tmp_path / "uncut")

    assert run.devices == {"cuda"}
    for number, cuts in enumerate(CUTS[dropout]):
        assert run.weights_after(tmp_path / str(number), cuts) == uncut, cuts
