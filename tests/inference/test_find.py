"""Checkpoints of a cluster, by the real client: which one is meant, how it comes, what fails."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import predict
from detalbert.errors import Unavailable, UserError
from detalbert.inference import find, register
from detalbert.inference.model import choose_threshold, load_model
from tests.conftest import LocalRun
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.no_models import refused

BEST, LATEST, BROKEN = (f"{digit * 8}-1111-2222-3333-444444444444" for digit in "abc")


@pytest.fixture
def stored(local_run: LocalRun, tmp_path: Path) -> list[Stored]:
    """A cluster's checkpoints have no manifest; the newest one failed."""
    folders = []
    for uuid in (BEST, LATEST):
        folders.append(tmp_path / "storage" / uuid)
        shutil.copytree(local_run.checkpoint, folders[-1])
        (folders[-1] / "manifest.json").unlink()
    return [
        Stored(LATEST, folders[1], 80.0, 3),
        Stored(BEST, folders[0], 90.0, 2),
        Stored(BROKEN, folders[0], 95.0, 4, state="ERROR"),
    ]


@pytest.fixture(params=["directory", "shared_fs", "elsewhere"])
def master(
    request: pytest.FixtureRequest,
    stored: list[Stored],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CheckpointMaster]:
    """`elsewhere`: the storage is not on this machine, so files come through the master."""
    here = str(tmp_path / "storage")
    storage = {
        "directory": {"type": "directory", "container_path": here},
        "shared_fs": {"type": "shared_fs", "host_path": here},
        "elsewhere": {"type": "shared_fs", "host_path": "/not/here"},
    }[request.param]
    with CheckpointMaster(stored, storage) as master:
        master.log_in(monkeypatch, tmp_path)
        yield master


REFERENCES = dict.fromkeys([BEST, "trial:7", "trial:7:best", "experiment:3"], BEST)
REFERENCES |= {"trial:7:latest": LATEST, "experiment:3:latest": LATEST}


def test_references_mean_what_they_say(master: CheckpointMaster, tmp_path: Path) -> None:
    proxied = master.storage.get("host_path") == "/not/here"
    for reference, uuid in REFERENCES.items():
        shutil.rmtree(find.CACHE, ignore_errors=True)
        folder = find.fetch(reference)
        assert folder.name == uuid and (folder / "state_dict.pth").is_file()
        assert (f"/checkpoints/{uuid}" in master.calls) == proxied
        master.calls.clear()
        assert [path.name for path in find.CACHE.glob("[!.]*")] == [uuid]  # no remains
    find.fetch(LATEST)
    assert master.calls == []  # fetched once


@pytest.mark.parametrize("master", ["elsewhere"], indirect=True)
def test_a_reference_answers_as_the_run(
    master: CheckpointMaster, local_run: LocalRun, tmp_path: Path
) -> None:
    words = ["--model", "trial:7", "--data", local_run.questions, "--output-dir", tmp_path / "out"]
    assert predict.main([str(word) for word in words]) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    best = local_run.best
    assert {"steps": best["steps"], **metrics} == best
    assert choose_threshold(load_model(BEST), "best") == best["best_f1_thresh"]


@pytest.mark.parametrize("master", ["directory"], indirect=True)
def test_what_is_not_there(
    master: CheckpointMaster, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    other = BEST.replace("a", "d")
    cases = {
        other: "the master knows no such thing",
        "trial:8": "the master knows no such thing",
        "experiment:9": "the master knows no such thing",
        BROKEN: "not fetched: ",
    }
    for name, message in cases.items():
        refused(["--model", name, "--question", "a", "--context", "b"], message, capsys)
    master.stored = [item for item in master.stored if item.state == "ERROR"]
    with pytest.raises(UserError, match="it has no finished checkpoint"):
        find.fetch("trial:7")
    monkeypatch.setenv("DET_USER_TOKEN", "old")
    with pytest.raises(UserError, match="the master wants a login"):
        find.fetch("trial:7")
    monkeypatch.setenv("DET_MASTER", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="trial:7"):
        find.fetch("trial:7")
    assert not find.CACHE.exists() or not list(find.CACHE.glob("[!.]*"))


def test_a_checkpoint_is_fetched_once(tmp_path: Path) -> None:
    """The second process waits for the first; what a killed one left is removed."""
    (tmp_path / f".{BEST}.writing-abc").mkdir()
    fetched = []

    class Slow:
        uuid = BEST

        def download(self, path: str) -> None:
            fetched.append(path)
            time.sleep(0.2)

    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(find._download, [Slow()] * 2, [tmp_path] * 2)) == {tmp_path / BEST}
    assert len(fetched) == 1
    assert {path.name for path in tmp_path.iterdir()} == {BEST, f".{BEST}.lock"}


def test_what_is_a_reference() -> None:
    assert all(map(find.is_reference, [*REFERENCES, "trial:7:newest"]))
    no = ("trial", "trial:x", "run:3", "trial:", BEST[:-1], f"x{BEST}", "runs/local")
    assert not any(map(find.is_reference, no))


@pytest.mark.parametrize("master", ["shared_fs"], indirect=True)
def test_the_registry_has_the_best_checkpoint_with_its_scores(
    master: CheckpointMaster, capsys: pytest.CaptureFixture
) -> None:
    assert register.main(["experiment:3", "--as", "squad-albert"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("squad-albert version 1: steps 1, f1 ")
    assert last == "python predict.py --model model:squad-albert:1"
    (sent,) = master.models["squad-albert"]
    assert sent["checkpointUuid"] == BEST and sent["modelName"] == "squad-albert"
    kept = json.loads((find.CACHE / BEST / "scores.json").read_text())
    assert sent["metadata"] == {**kept, "steps": 1, "null_score_diff_threshold": 0.0}
    assert f"| best_f1_thresh | {kept['best_f1_thresh']:.6g} |" in sent["notes"]
    assert register.main(["experiment:3", "--as", "squad-albert"]) == 0  # again: nothing is added
    assert "as version 1" in capsys.readouterr().out and len(master.models["squad-albert"]) == 1
    assert register.main([LATEST, "--as", "squad-albert"]) == 0
    assert "version 2" in capsys.readouterr().out
    wanted = {"model:squad-albert": LATEST, "model:squad-albert:1": BEST}
    for name, uuid in {**wanted, "model:squad-albert:2": LATEST}.items():
        folder = find.fetch(name)
        assert folder.name == uuid and (folder / "state_dict.pth").is_file()


@pytest.mark.parametrize("master", ["shared_fs"], indirect=True)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["squad", "--as", "a"], "squad: give experiment:ID, trial:ID or a UUID"),
        (["model:squad", "--as", "a"], "give experiment:ID"),
        (["experiment:3", "--as", "a:b"], "a name without ':' and '/'"),
        (["experiment:4", "--as", "a"], "experiment:4: the master knows no such thing"),
        (["experiment:3:first", "--as", "a"], "give experiment:ID, :best or :latest"),
    ],
)
def test_what_cannot_be_registered_is_one_line(
    master: CheckpointMaster, words: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    assert register.main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and master.models == {}
    with pytest.raises(UserError, match="the master knows no such thing"):
        find.fetch("model:none")
    master.models["empty"] = []
    with pytest.raises(UserError, match="it has no version yet"):
        find.fetch("model:empty")
