"""Each stage, short: a complete result, a row of the table; a planted difference fails it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import baselines, predict, serve, step
from benchmarks.__main__ import BEGIN, END, main
from detalbert.squad import world
from tests.conftest import ROOT, Script

FACTS = set("stage versions device commit load time identical ratio".split())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags: a folder of few generated questions, few documents, the smallest model."""
    folder = tmp_path_factory.mktemp("squad")
    for name, split in (("train", "train"), ("dev", "validation")):
        (folder / f"{name}.json").write_text(json.dumps(world.generate(split)))
    passages = world.generate("train", seed=4, paragraphs=60)["data"]
    texts = [p["context"] for article in passages for p in article["paragraphs"]]
    (folder / "text.txt").write_text("\n".join(["", *texts]))
    given = {"data": folder, "text": folder / "text.txt", "tokenizer": "embedded/albert-tiny"}
    given |= {"repeats": 1, "examples": 40, "windows": 4, "shape": "tiny"}
    return tuple(word for key, value in given.items() for word in (f"--{key}", str(value)))


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    """The processes of a stage are forks of the tests' zygote."""
    monkeypatch.setattr(sys, "executable", python)


@pytest.fixture
def result_of(tiny: tuple[str, ...], tmp_path: Path, monkeypatch: Any, capsys: Any) -> Any:
    """`result_of(stage, *words)`: what a stage writes, after it was put into a page."""

    def result(stage: str, *words: str) -> dict[str, Any]:
        file, page = tmp_path / "results" / f"{stage}.json", tmp_path / "page.md"
        assert main([stage, *tiny, *words, "--json", str(file)]) == 0, capsys.readouterr().err
        found = json.loads(file.read_text())
        assert found.keys() >= FACTS and found["identical"]
        assert [path.name for path in file.parent.iterdir()] == [file.name]  # nothing left aside
        page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
        monkeypatch.setattr(command, "RESULTS", file.parent)
        assert main(["render", "--readme", str(page)]) == 0
        first, *table, last = page.read_text().splitlines()
        assert (first, last) == ("before", "after") and "old" not in table and len(table) == 5
        assert table[3].startswith(f"| {stage}")
        return found

    return result


@pytest.mark.parametrize("workload", ["finetuning", "pretraining", "lm"])
def test_a_step_of_each_workload(workload: str, result_of: Any) -> None:
    result = result_of("step", "--workload", workload)
    for side in ("ours", "peer"):
        found = result["results"][side]
        rate = found["tokens_per_second" if workload == "lm" else "windows_per_second"]
        assert rate["median"] > 0 and {"spread", "repeats"} <= rate.keys()
        assert workload == "lm" or 0 < found["mfu"]["median"] < 1
    assert result["settings"]["workload"] == workload


def test_two_processes(result_of: Any) -> None:
    losses = result_of("lm")["losses"]
    assert len(losses["ours"]) == 8 and losses["ours"] == pytest.approx(losses["peer"], abs=1e-4)


def test_fine_tuning_from_files_to_scores(result_of: Any) -> None:
    result = result_of("finetune", "--examples", "12")
    assert result["settings"]["train"] == 12 and result["settings"]["dev"] == 6
    assert all({"exact", "f1"} <= found.keys() for found in result["results"].values())


def test_prediction_beside_its_model(result_of: Any, script: Script, monkeypatch: Any) -> None:
    monkeypatch.setattr(predict, "SMALL", 6)
    monkeypatch.setattr(predict, "LARGE", 12)
    run = predict.run_python  # with `-c` it would be no fork
    monkeypatch.setattr(predict, "run_python", lambda _, x, *words: run(script(x)[1], *words))
    result = result_of("predict")
    assert result["windows"] >= 12 and set(result["peak_mib"]) == {"6", "12"}
    assert min(result["peak_mib"].values()) > 100 and result["ratio"] > 0


def test_serving_beside_another_checkout(result_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUESTIONS", "CLIENTS", "ALONE"):
        monkeypatch.setattr(serve, name, 4)
    result = result_of("serve", "--before", str(ROOT))
    assert result["settings"]["questions"] == 4
    assert result["median_seconds_of_one_client"]["ours"]["median"] > 0


@pytest.mark.parametrize("workload", ["finetuning", "pretraining"])
def test_another_loss_fails_the_step(
    workload: str, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    right = baselines.Baseline.step
    monkeypatch.setattr(baselines.Baseline, "step", lambda *arguments: right(*arguments) * 1.01)
    assert main(["step", *tiny, "--workload", workload]) == 1
    assert "not equal: step" in capsys.readouterr().err


@pytest.mark.parametrize(("off", "status"), [(0.9e-4, 0), (1.1e-4, 1), (float("nan"), 1)])
def test_one_other_loss_of_a_language_model_is_noticed(
    off: float, status: int, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    found: dict[str, Any] = {"losses": {"ours": [6.0, 5.5], "peer": [6.0, 5.5 + off]}}
    found |= {"seconds": {"ours": [2.0] * 2, "peer": [2.0] * 2}, "flops": [1.0] * 2}
    found["settings"] = {"precision": "torch.float32", "tokens_per_window": 32}
    found["memory"] = {}
    monkeypatch.setattr(step, "train_both", lambda *_: found)
    assert main(["step", "--workload", "lm", *tiny]) == status
    assert not status or "not equal: step: loss 5.5 in step 1" in capsys.readouterr().err


def test_mistakes_are_one_line(tiny: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "predict.py").write_text("raise SystemExit(2)\n")
    for arguments in (
        ["step", "--data", str(tmp_path / "absent")],
        ["finetune", *tiny, "--model", str(tmp_path)],
        ["lm", "--text", str(tmp_path / "absent.txt")],
        ["lm", "--text", str(tmp_path / "file")],
        ["lm", *tiny, "--json", str(tmp_path / "file" / "x.json")],
        ["serve"],
        ["render", "--readme", str(tmp_path / "file")],
        ["serve", "--before", str(tmp_path)],
    ):
        assert main(arguments) == 2, arguments
        said = [line for line in capsys.readouterr().err.splitlines() if "it/s]" not in line]
        assert len([line for line in said if line]) == 1
    assert said[-1].endswith(f"--before {tmp_path}: its predict.py --serve ended at once")
