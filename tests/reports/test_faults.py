"""Planted faults in what reports are given: each is one line on standard error, and status 2."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.http import AnswerServer, Request
from tests.fakes.records import DEFAULT, answer
from tests.reports.conftest import refused

FAULTS = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text())
SPEED = {"examples_per_second": 8.0, "training_seconds": 60.0, "training_windows": 480}
SPEED |= {"checkpoint_seconds": [1.0]}


@pytest.mark.parametrize("text", FAULTS["cost --published"])
def test_a_wrong_argument_of_cost(capsys, text):
    said = refused(capsys, "cost", "--published", *text.split())
    assert FAULTS["cost --published"][text] in said


def test_words_that_ask_for_nothing(capsys, tmp_path):
    for text in ("", "moon", "cost", "scaling", "cost --experiment"):
        refused(capsys, *text.split())
    (tmp_path / "metrics.json").write_text(json.dumps({"throughput": SPEED}))
    said = refused(capsys, "cost", "--run", str(tmp_path), "--budget", "5")
    assert "not all of it has a price" in said


def change(content: dict[str, Any], where: str, value: Any) -> None:
    *path, last = where.split(".")
    for key in path:
        content = content.setdefault(key, {})
    content[last] = value


def each(kind: str) -> list[tuple[str, Any]]:
    return [(where, value) for where, values in FAULTS[kind].items() for value in values]


@pytest.mark.parametrize("where, value", each("metrics"))
def test_metrics_that_are_none(capsys, tmp_path, where, value):
    content = {"throughput": dict(SPEED), "best": {"f1": 1.0}, "last": {"steps": 5}}
    change(content, where, value)
    (tmp_path / "metrics.json").write_text(json.dumps(content))
    (tmp_path / "config.yaml").write_text("hyperparameters: {global_batch_size: 8}")
    said = refused(capsys, "cost", "--run", f"{tmp_path}@p3.2xlarge")
    assert "metrics.json: " in said and where.partition(".")[0] in said


@pytest.mark.parametrize("config", FAULTS["configs"])
def test_a_config_that_is_none(capsys, tmp_path, config):
    (tmp_path / "metrics.json").write_text(json.dumps({"throughput": SPEED}))
    (tmp_path / "config.yaml").write_text(config)
    assert "config.yaml: " in refused(capsys, "cost", "--run", f"{tmp_path}@p3.2xlarge")


@pytest.mark.parametrize("where, value", each("benchmark"))
def test_a_benchmark_that_is_none(capsys, tmp_path, where, value):
    content = {"stage": "step", "results": {"ours": {"windows_per_second": {"median": 50.0}}}}
    change(content, where, value)
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    refused(capsys, "cost", "--run", f"{path}@p3.16xlarge")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff", '{"a": 1}', "null"])
def test_a_file_that_is_no_result(capsys, tmp_path, text):
    (tmp_path / "bench.json").write_bytes(text.encode("latin-1"))
    for command in ("cost", "scaling"):
        refused(capsys, command, "--run", f"{tmp_path}/bench.json")


@pytest.mark.parametrize("path, status, said", FAULTS["masters"])
def test_a_master_that_is_none(capsys, path, status, said):
    """A login page and a proxy in front of the master, or a program that is none."""

    def respond(request: Request) -> tuple[int, Any]:
        if request.path.endswith(path):
            return status, said.encode() if isinstance(said, str) else said
        found = answer(DEFAULT, request.path, request.query)
        return (404, {}) if found is None else (200, found)

    with AnswerServer(respond) as master:
        refused(capsys, "cost", "--experiment", "7", "--master", master.url)
