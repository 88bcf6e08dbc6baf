"""Fixtures and helpers that several test files use."""

import copy
import json
import logging
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported: no test goes out
# `threads: auto` is 1 in this process and all that it starts: the number makes bits.
os.environ["LOKY_MAX_CPU_COUNT"] = "1"

import hypothesis
import pytest
import torch
import yaml
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from detalbert.inference.model import Trained, load_model
from detalbert.squad import world
from detalbert.squad.windows import Example, Windows, build_windows
from tests.fakes.questions import read_squad

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")
torch.set_num_threads(1)


def pytest_configure() -> None:
    """Tests are of the CPU on a machine with GPUs, too, unless the command says which to see."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


ROOT = pathlib.Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

# An ALBERT small enough for seconds, from random weights, on a corner of the embedded world.
TINY: dict[str, Any] = {
    "name": "test",
    "entrypoint": "python3 train.py",
    "hyperparameters": {
        "model_config": {
            "embedding_size": 16,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        },
        "global_batch_size": 8,
        "max_steps": 12,
        "base_learning_rate": 1e-3,
        "max_seq_length": 192,
        "doc_stride": 64,
        "max_tokens_per_forward": 512,
        "num_workers": 0,
        "validation_period": 6,
        "checkpoint_period": 4,
        "reporting_period": 3,
    },
    "data": {
        "train": "generated",
        "validation": "generated",
        "tokenizer": "embedded/albert-tiny",
        "max_train_examples": 60,
        "max_validation_examples": 40,
    },
    "searcher": {"name": "single", "metric": "f1", "smaller_is_better": False},
}

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

# The same model, from scratch on the embedded world's text.
TINY_PRETRAINING: dict[str, Any] = {
    "name": "test",
    "entrypoint": "python3 train.py",
    "hyperparameters": {
        "model_config": TINY["hyperparameters"]["model_config"],
        **{
            key: TINY["hyperparameters"][key]
            for key in ("global_batch_size", "max_steps", "num_workers", "reporting_period")
        },
        "base_learning_rate": 2e-3,
        "base_batch_size": 8,
        "optimizer": "lamb",
        "max_seq_length": 64,
        "max_tokens_per_forward": 512,
        "validation_period": 6,
        "checkpoint_period": 4,
    },
    "data": {
        "text": "generated",
        "tokenizer": "embedded/albert-tiny",
        "shard_mib": 0.02,
        "shuffle_shards": 2,
        "max_validation_examples": 40,
    },
    "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True},
}


# A Llama of two narrow layers on the same text.
TINY_LM: dict[str, Any] = {
    "name": "test",
    "entrypoint": "python3 train.py",
    "hyperparameters": {
        "model_config": {
            "model_type": "llama",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 32,
            "attention_dropout": 0.1,
        },
        "global_batch_size": 6,
        "max_steps": 12,
        "base_learning_rate": 1e-2,
        "base_batch_size": 6,
        "max_seq_length": 32,
        "max_tokens_per_forward": 64,
        "max_validation_windows": 9,
        "num_workers": 0,
        "validation_period": 6,
        "checkpoint_period": 4,
        "reporting_period": 3,
    },
    "data": {"documents": "generated", "vocab_size": 320, "shard_mib": 0.05, "shuffle_shards": 2},
    "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True},
}


def configured(config: dict[str, Any], cache_dir: pathlib.Path, **hparams: Any) -> dict[str, Any]:
    """A copy of an experiment config with this feature cache and other hyperparameters."""
    config = copy.deepcopy(config)
    config["data"]["cache_dir"] = str(cache_dir)
    config["hyperparameters"].update(hparams)
    return config


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of real SQuAD files, the real tokenizer and the golden results."""
    if not (SHARED / "golden").is_dir():
        pytest.skip("../shared (real SQuAD files and golden results) is not there")
    return SHARED


@pytest.fixture(scope="session")
def albert(shared: pathlib.Path) -> PreTrainedTokenizerBase:
    """The real tokenizer."""
    return AutoTokenizer.from_pretrained(str(shared / "albert-tokenizer"))


@pytest.fixture(scope="session")
def dev(shared: pathlib.Path, albert: PreTrainedTokenizerBase) -> tuple[list[Example], Windows]:
    """The questions of the real dev file and their windows."""
    examples = read_squad(shared / "squad" / "dev.json")
    return examples, build_windows(examples, albert)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """One feature cache for all runs of a session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tiny_config(tmp_path: pathlib.Path, cache_dir: pathlib.Path) -> pathlib.Path:
    """TINY as a YAML file."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(configured(TINY, cache_dir)))
    return path


class LocalRun(NamedTuple):
    """A short run that learned something, and its validation questions: more than one chunk."""

    path: pathlib.Path
    questions: pathlib.Path

    @property
    def best(self) -> dict[str, float]:
        return json.loads((self.path / "metrics.json").read_text())["best"]

    @property
    def checkpoint(self) -> pathlib.Path:
        return self.path / "checkpoints" / f"step-{self.best['steps']:08d}"


@pytest.fixture(scope="session")
def local_run(tmp_path_factory: pytest.TempPathFactory, cache_dir: pathlib.Path) -> LocalRun:
    folder = tmp_path_factory.mktemp("run")
    run = LocalRun(folder / "out", folder / "dev.json")
    document = world.generate("validation", seed=1, paragraphs=180)
    run.questions.write_text(json.dumps(document))
    done = train(
        "--output-dir", run.path,
        *settings(max_steps=100, validation_period=50, checkpoint_period=40, num_workers=0),
        *("--set", f"data.validation={run.questions}", "--set", f"data.cache_dir={cache_dir}"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="session")
def model(local_run: LocalRun) -> Trained:
    """The best of `local_run`."""
    return load_model(str(local_run.path))


def launcher(processes: int) -> list[str]:
    """The words before the trainer's: Python, with torchrun for more than one process."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return [sys.executable, *(torchrun if processes > 1 else [])]


def train(*arguments: Any, processes: int = 1, **env: str) -> subprocess.CompletedProcess:
    """Run the real entry point in a process of its own (or in two, under torchrun)."""
    command = [*launcher(processes), str(ROOT / "train.py"), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=1800, env={**os.environ, **env}
    )


def settings(**values: Any) -> list[str]:
    """--set arguments: settings(max_steps=5) -> ["--set", "hyperparameters.max_steps=5"]."""
    pairs = (f"hyperparameters.{key}={json.dumps(value)}" for key, value in values.items())
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A run in this process has it say its lines; the tests after it do without."""
    yield
    root = logging.getLogger()
    for handler in list(root.handlers):
        if type(handler).__module__ == "detalbert.log":
            root.removeHandler(handler)
