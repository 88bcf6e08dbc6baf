"""Planted faults in what a plan is given: each is one line on standard error, and exit status 2."""

import json
import os
import pathlib

import pytest
import yaml

from cluster import windows
from cluster.prices import PRICE_FILE
from reports.__main__ import main

FEW = ["plan", "--runs", "10"]
FLAGS = [
    ("--windows inf", "--windows inf: expected a number from 1 to"),
    ("--windows nan", "--windows nan: expected a number"),
    ("--windows 0", "--windows 0: expected"),
    ("--windows many", "--windows many: expected a number"),
    ("--windows 5 --data generated", "--windows and --data: give one of them"),
    ("--windows 5 --tokens 5", "--windows and --tokens: give one of them"),
    ("--tokens inf", "--tokens inf: expected"),
    ("--tokens 0", "--tokens 0: expected"),
    ("--epochs 2", "only --data has epochs"),
    ("--epochs -2 --data generated", "--epochs -2: expected"),
    ("--data none.json", "none.json: no such file"),
    ("--deadline -1", "--deadline -1: expected"),
    ("--deadline soon", "--deadline soon: expected a number"),
    ("--batch 0", "--batch 0: expected"),
    ("--batch nan", "--batch nan: expected"),
    ("--checkpoint-seconds inf", "--checkpoint-seconds inf: expected"),
    ("--checkpoint-seconds 0", "--checkpoint-seconds 0: expected"),
    ("--checkpoint-period 0", "--checkpoint-period 0: expected a whole number from 1"),
    ("--checkpoint-period 2.5", "--checkpoint-period 2.5: expected a whole number"),
    ("--restart-seconds -1", "--restart-seconds -1"),
    ("--boot-seconds inf", "--boot-seconds inf: expected"),
    ("--image-seconds x", "--image-seconds x: expected"),
    ("--wait-seconds inf", "--wait-seconds inf: expected a number from 0 to 2,592,000"),
    ("--notice-read 2", "--notice-read 2: expected a number from 0 to 1"),
    ("--together 1", "unrecognized arguments: --together"),
    ("--hourly -0.1", "--hourly -0.1"),
    ("--hourly inf", "--hourly inf: expected a number from 0 to 60"),
    ("--hourly 0.1 --trace t.csv", "--hourly and --trace: give one of them"),
    ("--wait-seconds 5 --trace t.csv", "--wait-seconds and --trace: give one of them"),
    ("--runs 1", "--runs 1: expected a whole number from 10 to 1,000,000"),
    ("--runs 1e9", "--runs 1e9: expected a whole number"),
    ("--seed x", "--seed x: expected a whole number"),
    ("--slots 0", "--slots 0: expected a whole number from 1 to 1,024"),
    ("--slots 1000000000", "--slots 1000000000: expected a whole number from 1 to 1,024"),
    ("--slots 60", "60 slots do not fill machines of 8"),
    ("--slots 60 --pool p3.16xlarge", "60 slots do not fill machines of 8"),
    ("--slots 4 --pool p4d.24xlarge", "4 slots do not fill machines of 8"),
    ("--pool p3.17xlarge", "did you mean 'p3.16xlarge'"),
    ("--throughput 8=15,8=150", "--throughput 8=150: expected SLOTS=RATE,...@INSTANCE, each"),
    ("--throughput 8=-1", "--throughput 8=-1: expected SLOTS=RATE"),
    ("--throughput 8=inf", "--throughput 8=inf: expected SLOTS=RATE"),
    ("--throughput 8=1@m5.large", "an instance whose GPU is not known"),
    ("--throughput ,", "--throughput : expected SLOTS=RATE"),
    ("--trace none.csv", "none.csv: expected a CSV"),
    ("--prices none.yaml", "none.yaml: cannot read it"),
    ("--prices .", ".: cannot read it"),
    ("--region eu-west-1", "only --live asks for a region"),
    ("--html /nowhere/page.html --pool p4d.24xlarge", "cannot write"),
]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*FEW, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("reports: error: ")
    return err


@pytest.mark.parametrize("arguments, said", FLAGS)
def test_a_wrong_flag(capsys, arguments, said):
    flag, _, value = arguments.partition(" ")
    text = [f"{flag}={value}"] if value.startswith("-") and " " not in value else arguments.split()
    assert said in refused(capsys, *text)


def test_a_wrong_flag_after_another(capsys):
    assert "--epochs -2" in refused(capsys, "--data=generated", "--epochs=-2")


def test_a_hub_that_cannot_be_reached_is_not_tried_for_a_minute(capsys, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(windows, "HUB", "127.0.0.1")  # nothing listens there
    assert "none.json: no such file" in refused(capsys, "--data", "none.json")
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    "text, said", [("instances: {}", "no instance has machines"), ("a: [", "YAML")]
)
def test_a_wrong_price_file(capsys, tmp_path, text, said):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    assert said in refused(capsys, "--prices", str(path))


def test_a_type_whose_gpu_is_not_known(capsys, tmp_path):
    content = yaml.safe_load(PRICE_FILE.read_text())
    del content["instances"]["p6-b200.48xlarge"]["teraflops"]
    path = tmp_path / "prices.yaml"
    path.write_text(yaml.safe_dump(content))
    assert "p6-b200.48xlarge: its GPU is not known" in refused(capsys, "--prices", str(path))


@pytest.mark.parametrize(
    "name, text",
    [
        ("t.json", '{"data": [1]}'),
        ("t.json", "<html>"),
        ("t.json", '{"metadata": {"gap_seconds": 0}, "data": [1, 2]}'),
        ("t.json", '{"metadata": {"gap_seconds": 300}, "data": [1, "x"]}'),
        ("t.json", "[" * 100_000),
        ("t.csv", ""),
        ("t.csv", "hours,machines\n0,1\n0,2\n"),
        ("t.csv", "hours,machines\n0,1e400\n1,2\n"),
        ("t.csv", "hours,event\n8,machines\n100,end\n"),
        ("t.csv", "hours,machines\n0,1\n2\n"),
    ],
)
def test_a_wrong_trace(capsys, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    said = refused(capsys, "--trace", str(path), "--pool", "p4d.24xlarge", "--slots", "8")
    assert str(path) in said and "expected" in said


def test_a_job_that_is_wider_than_the_trace(capsys, tmp_path: pathlib.Path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [4, 0, 4]}))
    said = refused(capsys, "--trace", str(path), "--pool", "p4d.24xlarge", "--slots", "64")
    assert "4 machines at most, the job needs 8" in said
