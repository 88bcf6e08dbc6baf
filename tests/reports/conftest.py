"""What all tests of reports share."""

import json

import pytest
import yaml

from reports.__main__ import main
from tests.fakes.records import TOKEN, Cluster, FakeRecords

KINDS = {2: "error", 4: "unavailable"}  # of an error, by exit status


SPEED = {"examples_per_second": 8.0, "training_windows": 480, "training_seconds": 60.0}


def write_run(
    folder,
    best=None,
    steps=20,
    metric="f1",
    speed=None,
    **hparams,
):
    """Write what a run leaves, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    throughput = {**SPEED, **(speed or {})}
    metrics = {"best": best or {}, "last": {"steps": steps}, "throughput": throughput}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    config = {
        "hyperparameters": hparams,
        "searcher": {"metric": metric, "smaller_is_better": metric == "loss"},
        "data": {"train": "a.json"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return str(folder)


@pytest.fixture(autouse=True)
def logged_in(monkeypatch, tmp_path):
    """As ada, at the fake master."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_USER_TOKEN", TOKEN)


@pytest.fixture
def report(capsys):
    """What a command prints as JSON; with a cluster or a master, of that one."""

    def run(*arguments, of=None):
        if of is not None:
            with FakeRecords(of) if isinstance(of, Cluster) else of as master:
                return run(*arguments, "--master", master.url)
        status = main([*arguments, "--json"])
        out, err = capsys.readouterr()
        assert status == 0, err
        return json.loads(out)

    return run


@pytest.fixture
def refused(capsys):
    """The one line with which `python -m reports` refuses; nothing else is printed."""

    def run(*arguments):
        status = main([*arguments])
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"reports: {KINDS[status]}: "), err
        assert err.count("\n") == 1, err
        return err

    return run
