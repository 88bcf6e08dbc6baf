"""Planted faults in what reports are given: each is one line on standard error, and status 2."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.http import AnswerServer, Request
from tests.fakes.records import DEFAULT, answer

FAULTS = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text())
SPEED = {"examples_per_second": 8.0, "training_seconds": 60.0, "training_windows": 480}
FILES: dict[str, dict[str, Any]] = {
    "metrics": {
        "throughput": {**SPEED, "checkpoint_seconds": [1.0]},
        "best": {},
        "last": {},
    },
    "benchmark": {
        "stage": "step",
        "results": {"ours": {"windows_per_second": {"median": 50.0}}},
    },
}


@pytest.mark.parametrize("text, words", FAULTS["cost --published"].items())
def test_a_wrong_argument_of_cost(refused, text, words):
    assert words in refused("cost", "--published", *text.split())


def test_words_that_ask_for_nothing(refused, tmp_path):
    for text in ("", "moon", "cost", "scaling", "cost --experiment"):
        refused(*text.split())

    # A run without a price, to which no budget can be compared.
    (tmp_path / "metrics.json").write_text(json.dumps(FILES["metrics"]))
    line = refused("cost", "--run", str(tmp_path), "--budget", "5")
    assert "not all of it has a price" in line


def planted() -> list[tuple[str, str, object]]:
    """Return kind of file, dotted key and value of each fault."""
    faults = []
    for kind in FILES:
        for key, values in FAULTS[kind].items():
            faults += [(kind, key, value) for value in values]
    return faults


@pytest.mark.parametrize("kind, key, value", planted())
def test_a_key_that_cannot_be(refused, tmp_path, kind, key, value):
    content = copy.deepcopy(FILES[kind])
    section = content
    *path, last = key.split(".")
    for name in path:
        section = section.setdefault(name, {})
    section[last] = value
    (tmp_path / "metrics.json").write_text(json.dumps(content))

    line = refused("cost", "--run", f"{tmp_path}@p3.16xlarge")

    assert "metrics.json: " in line
    if kind == "metrics":
        assert key.partition(".")[0] in line


@pytest.mark.parametrize("config", FAULTS["configs"])
def test_a_config_that_is_none(refused, tmp_path, config):
    (tmp_path / "metrics.json").write_text(json.dumps(FILES["metrics"]))
    (tmp_path / "config.yaml").write_text(config)

    assert "config.yaml: " in refused("cost", "--run", f"{tmp_path}@p3.2xlarge")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff", '{"a": 1}', "null"])
def test_a_file_that_is_no_result(refused, tmp_path, text):
    (tmp_path / "bench.json").write_bytes(text.encode("latin-1"))

    for command in ("cost", "scaling"):
        refused(command, "--run", f"{tmp_path}/bench.json")


@pytest.mark.parametrize("path, status, body", FAULTS["masters"])
def test_a_master_that_is_none(refused, path, status, body):
    """A login page and a proxy in front of the master, or a program that is none."""

    def respond(request: Request) -> Any:
        if not request.path.endswith(path):
            return answer(DEFAULT, request.path, request.query)
        if isinstance(body, str):
            return status, body.encode()
        return status, body

    with AnswerServer(respond) as master:
        refused("cost", "--experiment", "7", "--master", master.url)
