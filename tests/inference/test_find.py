"""Checkpoints of a cluster, by the real client: which one is meant, how it comes, what fails."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants

import predict
from detalbert.errors import Unavailable, UserError
from detalbert.inference import references, register
from detalbert.inference.export import export
from detalbert.inference.model import choose_threshold, load_model
from detalbert.inference.reply import ask
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.hub import put
from tests.fakes.no_models import refused
from tests.fakes.runs import official
from tests.fakes.trained import LocalRun

BEST, LATEST, BROKEN, PAUSED = (f"{digit * 8}-1111-2222-3333-444444444444" for digit in "abcd")


@pytest.fixture(params=["directory", "shared_fs", "elsewhere"])
def master(request: Any, local_run: LocalRun, tmp_path: Path, monkeypatch: Any) -> Iterator[Any]:
    """A cluster's checkpoints have no manifest; the newest one failed. `elsewhere`: the storage is
    not on this machine, so files come through the master."""
    folder = tmp_path / "storage"
    for uuid in (BEST, LATEST, PAUSED):
        shutil.copytree(local_run.checkpoint, folder / uuid)
        (folder / uuid / "manifest.json").unlink()
    here = request.param != "elsewhere"
    storage = {"type": "shared_fs", "host_path": str(folder) if here else "/not/here"}
    if request.param == "directory":
        storage = {"type": "directory", "container_path": str(folder)}
    stored = [
        Stored(LATEST, folder / LATEST, 80.0, 3),
        Stored(BEST, folder / BEST, 90.0, 2),
        Stored(BROKEN, folder / BEST, 95.0, 4, state="ERROR"),
        Stored(PAUSED, folder / PAUSED, 0.0, 1, scores={}),  # saved at a pause: not validated
    ]
    with CheckpointMaster(stored, storage) as master:
        master.log_in(monkeypatch, tmp_path)
        yield master


def on(storage: str) -> Any:
    return pytest.mark.parametrize("master", [storage], indirect=True)


REFERENCES = dict.fromkeys([BEST, "trial:7", "trial:7:best", "experiment:3"], BEST)
REFERENCES |= {"trial:7:latest": LATEST, "experiment:3:latest": LATEST}


def test_references_mean_what_they_say(master: CheckpointMaster) -> None:
    proxied = "/not/here" in master.storage.values()
    for reference, uuid in REFERENCES.items():
        shutil.rmtree(references.CACHE, ignore_errors=True)
        folder = references.fetch(reference)
        assert folder.name == uuid and (folder / "state_dict.pth").is_file()
        assert (f"/checkpoints/{uuid}" in master.calls) == proxied
        master.calls.clear()
        assert [path.name for path in references.CACHE.glob("[!.]*")] == [uuid]  # no remains
    references.fetch(LATEST)
    assert master.calls == []  # fetched once


@on("directory")
def test_the_searcher_says_what_is_best(master: CheckpointMaster) -> None:
    for smaller, uuid in ((True, LATEST), (False, BEST)):
        config = {"searcher": {"metric": "f1", "smaller_is_better": smaller}}
        master.stored = [item._replace(config=config) for item in master.stored]
        for name in ("trial:7", "experiment:3"):
            assert references.find_remote(name).uuid == uuid
    master.stored = [item._replace(scores={}) for item in master.stored]
    assert references.find_remote("trial:7").uuid == LATEST  # none is validated: the newest


@on("elsewhere")
def test_a_reference_answers_as_the_run(master: Any, local_run: LocalRun, tmp_path: Path) -> None:
    words = ["--model", "trial:7", "--data", local_run.questions, "--output-dir", tmp_path / "out"]
    assert predict.main([str(word) for word in words]) == 0
    metrics, best = json.loads((tmp_path / "out" / "metrics.json").read_text()), local_run.best
    assert {"steps": best["steps"], **metrics} == official(best)
    assert choose_threshold(load_model(BEST), "best") == best["best_f1_thresh"]


@on("directory")
def test_what_is_not_there(master: CheckpointMaster, monkeypatch: Any, capsys: Any) -> None:
    unknown, no_reference = "the master knows no such thing", "no such folder"
    cases = dict.fromkeys([BEST.replace("a", "e"), "trial:8", "experiment:9", "model:no"], unknown)
    names = ["trial", "trial:x", "run:3", "trial:", BEST[:-1], f"x{BEST}", "runs/none"]
    cases |= dict.fromkeys(names, no_reference)
    for name, message in {**cases, BROKEN: "not fetched: "}.items():
        refused(["--model", name, "--question", "a", "--context", "b"], message, capsys)
    master.models["empty"] = []
    with pytest.raises(UserError, match="it has no version yet"):
        references.fetch("model:empty")
    master.stored = [item for item in master.stored if item.state == "ERROR"]
    with pytest.raises(UserError, match="it has no finished checkpoint"):
        references.fetch("trial:7")
    monkeypatch.setenv("DET_USER_TOKEN", "old")
    with pytest.raises(UserError, match="not logged in to the master; run `det user login`"):
        references.fetch("trial:7")
    monkeypatch.setenv("DET_MASTER", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="trial:7"):
        references.fetch("trial:7")
    assert not references.CACHE.exists() or not list(references.CACHE.glob("[!.]*"))


def test_a_checkpoint_is_fetched_once(tmp_path: Path, monkeypatch: Any) -> None:
    """The second process waits for the first; what a killed one left is removed."""
    monkeypatch.setattr(references, "CACHE", tmp_path)
    (tmp_path / f".detalbert-tmp-0123456789abcdef-{BEST}").mkdir()
    fetched = []

    def download(path: str) -> None:
        fetched.append(path)
        time.sleep(0.2)

    slow = SimpleNamespace(uuid=BEST, download=download)
    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(references._download, [slow] * 2)) == {tmp_path / BEST}
    assert len(fetched) == 1
    assert {path.name for path in tmp_path.iterdir()} == {BEST, f".{BEST}.lock"}
    # It is fetched again if something else stands where its sums were.
    sums = tmp_path / BEST / "sums.json"
    sums.unlink()
    sums.mkdir()
    references._download(slow)
    assert len(fetched) == 2 and sums.is_file()


@on("shared_fs")
def test_the_registry_has_the_best_with_its_scores(master: CheckpointMaster, capsys: Any) -> None:
    assert register.main(["experiment:3", "--as", "squad-albert"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("squad-albert version 1: f1 ") and ", steps 1, " in first
    assert last == "python predict.py --model model:squad-albert:1"
    (sent,) = master.models["squad-albert"]
    assert sent["checkpointUuid"] == BEST and sent["modelName"] == "squad-albert"
    kept = json.loads((references.CACHE / BEST / "scores.json").read_text())
    assert sent["metadata"] == {**kept, "steps": 1, "null_score_diff_threshold": 0.0}
    assert sent["comment"] == first.removeprefix("squad-albert version 1: ")
    assert f"| best_f1_thresh | {kept['best_f1_thresh']:.6g} |" in sent["notes"]
    assert register.main(["experiment:3", "--as", "squad-albert"]) == 0  # again: nothing is added
    assert "as version 1" in capsys.readouterr().out and len(master.models["squad-albert"]) == 1
    assert register.main([LATEST, "--as", "squad-albert"]) == 0
    assert "version 2" in capsys.readouterr().out
    for number, uuid in {"": LATEST, ":1": BEST, ":2": LATEST}.items():
        folder = references.fetch(f"model:squad-albert{number}")
        assert folder.name == uuid and (folder / "state_dict.pth").is_file()
    for reference, version in (("model:squad-albert", 2), ("model:squad-albert:2", 2)):
        described = references.describe_reference(reference, uuid=LATEST)
        assert described == {"checkpoint": LATEST, "version": version}
    assert references.describe_reference("experiment:3", uuid=BEST) == {"checkpoint": BEST}
    assert references.describe_reference("runs/local", uuid="local") == {}
    for checkpoint, name, said in (
        ("squad", "a", "squad: give experiment:ID, trial:ID or a UUID"),
        ("model:squad", "a", "give experiment:ID"),
        ("experiment:3", "a:b", "a name without ':' and '/'"),
        ("experiment:4", "a", "experiment:4: the master knows no such thing"),
        ("experiment:3:first", "a", "give experiment:ID, :best or :latest"),
    ):
        assert register.main([checkpoint, "--as", name]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1 and list(master.models) == ["squad-albert"]


def test_a_model_of_the_hub_answers_by_its_name(local_run, model, tmp_path, monkeypatch):
    exported, cache = tmp_path / "exported", tmp_path / "hub"
    export(model, exported)
    (exported / "question_answering.json").unlink()  # as others make them
    (exported / "sums.json").unlink()
    put(cache, "some/squad-model", "main", exported)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    for name in ("some/squad-model", "some/squad-model@main"):
        found = load_model(name)
        assert found.scores == {} and found.hparams.max_seq_length == 384
        assert ask(found, "Which ship?", "The Kalonda carried tar.", 1e9).answer
    for name in ("some/other", "exported/nothing"):
        said = "the hub does not give it" if name == "some/other" else "no such folder; give a"
        with pytest.raises(UserError, match=said) as error:
            load_model(name)
        assert "\n" not in str(error.value)
