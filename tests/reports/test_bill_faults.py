"""Planted faults of `cost` and `scaling`: each is one line on standard error, and status 2."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.__main__ import main
from tests.fakes.http import AnswerServer, Request
from tests.fakes.records import DEFAULT, answer

SPEED = {"examples_per_second": 8.0, "training_seconds": 60.0, "training_windows": 480}
SPEED |= {"checkpoint_seconds": [1.0]}


def refusal(capsys: Any, arguments: list[str]) -> str:
    """The one line; nothing else is printed."""
    assert main(arguments) == 2, arguments
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("reports: error: ") and err.count("\n") == 1, err
    assert len(err) < 400, err
    return err


ARGUMENTS = {
    "--windows inf": "expected a number from",
    "--budget -1": "expected a number from",
    "--budget nan": "expected a number from",
    "--by moon": "invalid choice",
    "--by user": "give --experiment or --since",
    "--live=maybe": "invalid choice",
    "--price-pool a=p9.huge": "no price for this instance",
    "--price-pool a": "no price for this instance",
    "--price-pool a=p3.2xlarge:cheap": "expected INSTANCE",
    "--baseline nobody": "not the name of a run",
    "--until never": "invalid",
    "--until NaT": "invalid",
    "--since 2026-11-02T00:00:00Z --until 2026-11-01T00:00:00Z": "not before --until",
    "--today yesterday": "invalid",
    "--experiment seven": "invalid int value",
    "--experiment 7 --master http://": "no master answers",
    "--experiment 7 --master http://user:pass@x/?q": "no master answers",
    "--experiment 7 --master http://127.0.0.1:9": "no master answers",
    "--json --csv": "not allowed with",
    "--html /no/such/folder/page.html": "cannot write there",
    "--run /no/such/run": "cannot read it",
    "--run /no/such/run@p3.2xlarg": "did you mean",
    "--run /no/such/run@p3.2xlarge:free": "expected INSTANCE",
}


@pytest.mark.parametrize("text", ARGUMENTS)
def test_an_argument_that_is_wrong(capsys, text):
    assert ARGUMENTS[text] in refusal(capsys, ["cost", "--published", *text.split()])


@pytest.mark.parametrize("text", ["", "moon", "cost", "scaling", "cost --experiment"])
def test_nothing_to_report(capsys, text):
    refusal(capsys, text.split())


def changed(where: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        *path, last = where.split(".")
        for key in path:
            content = content.setdefault(key, {})
        content[last] = value

    return change


METRICS = [
    ("throughput", "fast"), ("throughput", [8]), ("throughput.examples_per_second", "8"),
    ("throughput.examples_per_second", -8), ("throughput.examples_per_second", True),
    ("throughput.training_seconds", -60), ("throughput.training_seconds", None),
    ("throughput.training_windows", 0), ("throughput.checkpoint_seconds", ["a"]),
    ("throughput.checkpoint_seconds", 7), ("throughput.checkpoint_seconds", [-100000]),
    ("throughput.starts", ["today"]), ("throughput.starts", [{"start": "today", "end": 7}]),
    ("throughput.tokens_per_second", "many"), ("best", "good"), ("best.exact", [1]),
    ("best.f1", float("nan")), ("last.steps", -3), ("last", 7),
]  # fmt: skip


@pytest.mark.parametrize("where, value", METRICS)
def test_metrics_that_are_none(capsys, tmp_path, where, value):
    content = {"throughput": dict(SPEED), "best": {"f1": 1.0}, "last": {"steps": 5}}
    changed(where, value)(content)
    (tmp_path / "metrics.json").write_text(json.dumps(content))
    (tmp_path / "config.yaml").write_text("hyperparameters: {global_batch_size: 8}")
    said = refusal(capsys, ["cost", "--run", f"{tmp_path}@p3.2xlarge"])
    assert "metrics.json: " in said and where.partition(".")[0] in said


CONFIGS = ["resources: 7", "resources: {slots_per_trial: many}", "resources: {slots_per_trial: -8}"]


@pytest.mark.parametrize(
    "config", [*CONFIGS, "hyperparameters: [1]", "- 1", "data: x", "a: [", "\0"]
)
def test_a_config_that_is_none(capsys, tmp_path, config):
    (tmp_path / "metrics.json").write_text(json.dumps({"throughput": SPEED}))
    (tmp_path / "config.yaml").write_text(config)
    assert "config.yaml: " in refusal(capsys, ["cost", "--run", f"{tmp_path}@p3.2xlarge"])


BENCHMARKS = [
    ("stage", "decode"), ("stage", None), ("stage", ["step"]), ("results", 5), ("device", "a GPU"),
    ("results.ours.windows_per_second.median", -2.0), ("device.count", "eight"), ("settings", 7),
    ("results.ours.windows_per_second", 50), ("settings.tokens_per_window", "many"),
    ("device.count", 60),
]  # fmt: skip


@pytest.mark.parametrize("where, value", BENCHMARKS)
def test_a_benchmark_that_is_none(capsys, tmp_path, where, value):
    content = {"stage": "step", "results": {"ours": {"windows_per_second": {"median": 50.0}}}}
    changed(where, value)(content)
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    refusal(capsys, ["cost", "--run", f"{path}@p3.16xlarge"])


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff", '{"a": 1}', "null"])
def test_a_file_that_is_no_result(capsys, tmp_path, text):
    path = tmp_path / "bench.json"
    path.write_bytes(text.encode("latin-1"))
    for command in ("cost", "scaling"):
        refusal(capsys, [command, "--run", str(path)])


PAGE = b"<html><body>Please log in</body></html>"
MASTERS: dict[str, Any] = {
    "a login page": lambda path: (200, PAGE),
    "nothing": lambda path: (200, b""),
    "other JSON": lambda path: (200, {"hello": "world"}),
    "a list": lambda path: (200, []),
    "null": lambda path: (200, None),
    "an experiment of text": lambda path: (200, {"experiment": "seven", "config": {}}),
    "an error page": lambda path: (500, PAGE),
    "a proxy's error": lambda path: (502, PAGE),
    "forbidden": lambda path: (403, {"error": {"code": 7, "error": "no"}}),
    "another CSV": "allocations-csv",
    "pools of text": "resource-pools",
    "trials without tasks": "experiments/7/trials",
    "times of text": "tasks/7.task",
}


@pytest.mark.parametrize("name", MASTERS)
def test_a_master_that_is_none(capsys, name):
    """A login page and a proxy in front of the master, or a program that is none."""

    def respond(request: Request) -> tuple[int, Any]:
        how = MASTERS[name]
        if callable(how):
            return how(request.path)
        if not request.path.endswith(how):
            found = answer(DEFAULT, request.path, request.query)
            return (404, {}) if found is None else (200, found)
        task = {"allocationId": "a", "startTime": "noon", "taskId": "t", "state": "STATE_RUNNING"}
        facts = {"startTime": "x", "taskId": "t", "taskType": "TASK_TYPE_TRIAL"}
        given = {"tasks/7.task": {"task": {"allocations": [task], **facts}}}
        given |= {"allocations-csv": b"a,b\n1,2\n"}
        return 200, given.get(how, {"trials": [{"id": "x"}], "resourcePools": ["x"]})

    with AnswerServer(respond) as master:
        refusal(capsys, ["cost", "--experiment", "7", "--master", master.url])


def test_a_budget_without_all_prices(capsys, tmp_path: Path):
    (tmp_path / "metrics.json").write_text(json.dumps({"throughput": SPEED}))
    said = refusal(capsys, ["cost", "--run", str(tmp_path), "--budget", "5"])
    assert "not all of it has a price" in said
