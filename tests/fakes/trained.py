"""Finished runs that several test files use: fixtures, which tests/conftest.py imports."""

import json
import pathlib
from typing import NamedTuple

import pytest
import yaml

from tests.conftest import ROOT, TINY, TINY_LM, configured, settings
from tests.fakes import secrets
from tests.fakes.questions import shipped


class LocalRun(NamedTuple):
    """A short run that learned something, and its validation questions: more than one chunk."""

    path: pathlib.Path
    questions: pathlib.Path

    @property
    def best(self):
        return json.loads((self.path / "metrics.json").read_text())["best"]

    @property
    def checkpoint(self):
        return self.path / "checkpoints" / f"step-{self.best['steps']:08d}"


@pytest.fixture(scope="session")
def local_run(once, train, cache_dir):
    def fill(folder):
        document = shipped("validation", paragraphs=90)
        (folder / "dev.json").write_text(json.dumps(document))
        done = train(
            "--output-dir",
            folder / "out",
            "--set",
            f"data.validation={folder}/dev.json",
            "--set",
            f"data.cache_dir={cache_dir}",
            *settings(max_steps=100, validation_period=50, checkpoint_period=40, num_workers=0),
        )
        assert done.returncode == 0, done.stderr

    folder = once("local_run", fill)
    return LocalRun(folder / "out", folder / "dev.json")


@pytest.fixture(scope="session")
def finished(once, train, cache_dir):
    """TINY, its config in tiny.yaml, trained into out/ with all three checkpoints; to copy. The
    config has secrets."""

    def fill(folder):
        config = {
            **configured(TINY, cache_dir),
            "checkpoint_storage": {"save_trial_latest": 3},
            **secrets.PLANTED,
        }
        (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
        done = train("--config", folder / "tiny.yaml", "--output-dir", folder / "out")
        assert done.returncode == 0, done.stderr
        (folder / "shown").write_text(done.stderr)

    return once("finished", fill)


@pytest.fixture(scope="session")
def lm_run(once, cache_dir):
    """The output directory of a language model's run, beside the text that it validated on."""
    from tests.fakes.runs import train_into

    def fill(folder):
        pages = {"text.jsonl": ROOT / "README.md", "held.jsonl": ROOT / "lm" / "README.md"}
        for name, page in pages.items():
            sections = page.read_text().split("\n## ")
            rows = [json.dumps({"text": section}) for section in sections]
            (folder / name).write_text("\n".join(rows))
        config = configured(TINY_LM, cache_dir, max_validation_windows=None, checkpoint_period=6)
        config["data"]["documents"] = str(folder / "text.jsonl")
        config["data"]["validation_documents"] = str(folder / "held.jsonl")
        config["data"]["shard_mib"] = 0.001
        train_into(folder, config)

    return once("lm", fill) / "out"


@pytest.fixture(scope="session")
def model(local_run):
    """The best of `local_run`, as `Trained`."""
    from detalbert.inference.model import load_model

    return load_model(str(local_run.path))
