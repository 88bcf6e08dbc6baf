"""The benchmarks on tiny inputs: every stage runs, its JSON is whole, a difference is noticed.

`scaling` and `predict` take minutes and are left out.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    lm,
    loader,
    parity,
    peer,
    predict,
    pretraining,
    render,
    sharding,
    step,
    threads,
)
from benchmarks.__main__ import main
from benchmarks.measure import Options

pytestmark = pytest.mark.usefixtures("fork")

SIDES = ("ours", "peer")
FIELDS = {
    "stage",
    "results",
    "ratio",
    "versions",
    "device",
    "clocks",
    "commit",
    "load",
    "identical",
}


@pytest.mark.parametrize(
    "stage",
    [
        "featurize",
        "decode",
        "score",
        "step",
        "parity",
        "loader",
        "allreduce",
        "shards",
        "lm",
        "checkpoint",
    ],  # fmt: skip
)
def test_every_stage_writes_a_whole_result(
    stage: str, tiny: tuple[str, ...], tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "results" / f"{stage}.json"
    assert main([stage, *tiny, "--json", str(file)]) == 0, capsys.readouterr().err
    result = json.loads(file.read_text())
    assert result.keys() >= FIELDS and result["stage"] == stage and result["identical"]
    assert set(SIDES) == result["results"].keys() and result["device"]["type"]
    name = render.SHOWN[stage][0]
    for side in SIDES:
        shown = result["results"][side][name]
        assert stage == "parity" or {"median", "spread", "repeats"} <= shown.keys()
    assert [path.name for path in file.parent.iterdir()] == [file.name]  # nothing left aside
    capsys.readouterr()
    assert main(["render", "--results", str(file.parent)]) == 0
    table = capsys.readouterr().out
    assert f"| {stage}" in table and "not measured" in table


def test_prediction_is_measured_beside_its_model(
    monkeypatch: pytest.MonkeyPatch, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    monkeypatch.setattr(predict, "SMALL", 6)
    monkeypatch.setattr(predict, "LARGE", 12)
    assert main(["predict", *tiny, "--json", str(tmp_path / "predict.json")]) == 0
    result = json.loads((tmp_path / "predict.json").read_text())
    assert result["windows"] >= 12 and set(result["peak_mib"]) == {"6", "12"}
    assert min(result["peak_mib"].values()) > 100 and result["ratio"] > 0


def test_memory_of_sharding_is_measured_at_three_sizes(tiny: tuple[str, ...]) -> None:
    options = Options(Path(), "embedded/albert-tiny", text=Path(tiny[tiny.index("--text") + 1]))
    found = [sharding.memory_of(options, times) for times in (1, 2)]
    assert 1.9 < found[1]["text_megabytes"] / found[0]["text_megabytes"] < 2.3
    assert all(facts["worker_peak_mib"] > 50 for facts in found)


def test_pretraining_is_measured(
    tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Steps, loaders and whole runs; of one process, for speed."""
    short = {"WORKERS": (0, 1), "LOADER_STEPS": 2, "RUN_STEPS": 2, "PROCESSES": 1}
    for name, value in short.items():
        monkeypatch.setattr(pretraining, name, value)
    file = tmp_path / "pretrain.json"
    assert main(["pretrain", *tiny, "--json", str(file)]) == 0, capsys.readouterr().err
    result = json.loads(file.read_text())
    assert result.keys() >= FIELDS - {"ratio"} and result["loader"].keys() == {"0", "1"}
    for side in ("one_forward", "accumulated"):
        assert 0 < result["results"][side]["mfu"]["median"] < 1
    forwards = [result["results"][side]["forwards"] for side in ("one_forward", "accumulated")]
    assert forwards[0] == 1 < forwards[1]
    assert result["scaling"].keys() == {"no accumulation", "2 x accumulation"}
    capsys.readouterr()
    assert main(["render", "--results", str(tmp_path)]) == 0
    assert "- pretrain, tiny ALBERT: " in capsys.readouterr().out


def test_threads_are_measured_idle_and_beside_a_busy_process(
    tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """One real run; the others of it take its figures."""
    measure, known = threads.throughput_of, []

    def once(config: Any, folder: Path, *rest: Any, **env: str) -> Any:
        known.append(config["hyperparameters"]["threads"])
        if len(known) == 1:
            once.found = measure(config, folder, *rest, **env)
        return once.found

    monkeypatch.setattr(threads, "throughput_of", once)
    file = tmp_path / "threads.json"
    assert main(["threads", *tiny, "--json", str(file)]) == 0, capsys.readouterr().err
    result = json.loads(file.read_text())
    assert result["ratio"] == {"0": 1.0, "1": 1.0} and known == ["auto", 1, "auto", 1]
    assert result["settings"] == {"steps": 2, "peer_threads": 1}
    capsys.readouterr()
    assert main(["render", "--results", str(tmp_path)]) == 0
    assert "- threads: `auto` and a thread" in capsys.readouterr().out


def wrong_answers(*arguments: Any) -> Any:
    predictions, *rest = RIGHT["decode"](*arguments)
    return ({**predictions, next(iter(predictions)): "planted"}, *rest)


def wrong_features(*arguments: Any) -> Any:
    for batch in RIGHT["features"](*arguments):
        batch["start_positions"][0] += 1
        batch["input_ids"][0][1] += 1
        yield batch


def wrong_scores(*arguments: Any) -> Any:
    return {**RIGHT["score"](*arguments), "f1": -1.0}


RIGHT = {name: getattr(peer, name) for name in ("features", "decode", "score")}


@pytest.mark.parametrize(
    ("stage", "name", "wrong"),
    [
        ("featurize", "features", wrong_features),
        ("loader", "features", wrong_features),
        ("decode", "decode", wrong_answers),
        ("score", "score", wrong_scores),
    ],
)
def test_a_planted_difference_fails_the_stage(
    stage: str,
    name: str,
    wrong: Any,
    tiny: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.setattr(peer, name, wrong)
    if stage == "loader":  # shuffled: the first batch may not hold the first window
        monkeypatch.setattr(loader.TrainOrder, "global_batch", lambda self, step: np.arange(4))
    assert main([stage, *tiny]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"not equal: {stage}" in error


@pytest.mark.parametrize("stage", ["step", "parity"])
def test_other_weights_fail_the_stages_with_a_model(
    stage: str, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    right = step.Padded.step
    monkeypatch.setattr(step.Padded, "step", lambda *arguments: right(*arguments) * 1.05)
    assert parity.Padded is step.Padded
    assert main([stage, *tiny]) == 1
    assert f"not equal: {stage}" in capsys.readouterr().err


def test_pretraining_notices_other_tokens_and_other_gradients(
    tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fewer(*arguments: Any) -> Any:
        rows, windows = map_way(*arguments)
        return rows.select(range(1, len(rows))), windows

    def scaled(trial: Any, batch: Any, step: int) -> None:
        train_step(trial, batch, step)
        trial.gradients.flat.mul_(len(batch))

    map_way, train_step = sharding.map_way, pretraining.train_step
    monkeypatch.setattr(sharding, "map_way", fewer)
    monkeypatch.setattr(pretraining, "train_step", scaled)
    for stage in ("shards", "pretrain"):
        assert main([stage, *tiny]) == 1
        assert f"not equal: {stage}" in capsys.readouterr().err


@pytest.mark.parametrize(("off", "status"), [(0.9e-4, 0), (1.1e-4, 1), (float("nan"), 1)])
def test_one_other_loss_of_a_language_model_is_noticed(
    off: float, status: int, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def found(config: Any, repeats: int, folder: Path) -> dict[str, Any]:
        losses = {f"{split} {side}": [6.0, 5.5] for split in lm.SPLITS for side in SIDES}
        losses["tensor peer"] = [6.0, 5.5 + off]
        return {"losses": losses, "seconds": {name: [2.0] for name in losses}}

    monkeypatch.setattr(lm, "two_processes", found)
    assert main(["lm", *tiny]) == status
    error = capsys.readouterr().err
    assert not status or ("not equal: lm: tensor: loss 5.5 in step 1" in error)


def test_mistakes_are_one_line(tiny: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("")
    for arguments in (
        ["nothing"],
        ["featurize", "--data", str(tmp_path / "absent")],
        ["featurize", "--data", str(tmp_path)],
        ["step", *tiny, "--shape", "huge"],
        ["allreduce", "--sizes", "many"],
        ["shards", "--text", str(tmp_path / "absent.txt")],
        ["shards", "--text", str(tmp_path / "file")],
        ["lm", "--text", str(tmp_path / "file")],
        ["featurize", *tiny, "--json", str(tmp_path / "file" / "x.json")],
        ["render", "--results", str(tmp_path)],
        ["render", "--results", str(tmp_path), "--readme", str(tmp_path / "file")],
    ):
        assert main(arguments) == 2, arguments
        assert capsys.readouterr().err.count("\n") == 1


def test_a_peer_that_does_not_serve_is_one_line(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "predict.py").write_text("raise SystemExit(2)\n")
    assert main(["serve", "--before", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"--before {tmp_path}: its predict.py --serve ended at once\n")
