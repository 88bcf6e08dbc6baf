"""Checkpoints of a cluster, by the real client: which one is meant, how it comes, what fails."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants

from detalbert import files
from detalbert.errors import Unavailable, UserError
from detalbert.inference import find as references
from detalbert.inference.export import export
from detalbert.inference.model import choose_threshold, load_model
from detalbert.inference.reply import ask
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.hub import put
from tests.fakes.no_models import refused
from tests.fakes.runs import wait_for

BEST = "aaaaaaaa-1111-2222-3333-444444444444"
LATEST = "bbbbbbbb-1111-2222-3333-444444444444"
BROKEN = "cccccccc-1111-2222-3333-444444444444"
PAUSED = "dddddddd-1111-2222-3333-444444444444"


@pytest.fixture(params=["shared_fs", "elsewhere"])
def master(
    request,
    local_run,
    tmp_path,
    monkeypatch,
):
    """A cluster's checkpoints have no manifest; the newest one failed. `elsewhere`: the storage is
    not on this machine, so files come through the master."""
    folder = tmp_path / "storage"
    for uuid in (BEST, LATEST, PAUSED):
        shutil.copytree(local_run.checkpoint, folder / uuid)
        (folder / uuid / "manifest.json").unlink()
    storages = {
        "shared_fs": {"type": "shared_fs", "host_path": str(folder)},
        "elsewhere": {"type": "shared_fs", "host_path": "/not/here"},
    }
    stored = [
        Stored(LATEST, folder / LATEST, f1=80.0, ended=3),
        Stored(BEST, folder / BEST, f1=90.0, ended=2),
        Stored(BROKEN, folder / BEST, f1=95.0, ended=4, state="ERROR"),
        # Saved at a pause: not validated.
        Stored(PAUSED, folder / PAUSED, f1=0.0, ended=1, scores={}),
    ]
    with CheckpointMaster(stored, storages[request.param]) as master:
        master.log_in(monkeypatch, tmp_path)
        yield master


def on(storage):
    return pytest.mark.parametrize("master", [storage], indirect=True)


REFERENCES = {
    BEST: BEST,
    "trial:7": BEST,
    "trial:7:best": BEST,
    "trial:7:latest": LATEST,
    "experiment:3": BEST,
    "experiment:3:latest": LATEST,
    "model:squad": LATEST,
    "model:squad:1": BEST,
    "model:squad:2": LATEST,
}


def test_references_mean_what_they_say(master):
    master.models["squad"] = [{"checkpointUuid": BEST}, {"checkpointUuid": LATEST}]
    through_master = "/not/here" in master.storage.values()
    for reference, uuid in REFERENCES.items():
        shutil.rmtree(references.CACHE, ignore_errors=True)
        folder = references.fetch(reference)
        assert folder.name == uuid
        assert (folder / "state_dict.pth").is_file()
        assert (f"/checkpoints/{uuid}" in master.calls) == through_master
        master.calls.clear()
        assert [path.name for path in references.CACHE.glob("[!.]*")] == [uuid]  # no remains

    references.fetch(LATEST)
    assert master.calls == []  # fetched once


@on("shared_fs")
def test_the_searcher_says_what_is_best(master):
    smaller_is_better = [{}, {"smaller_is_better": True}]  # the default
    cases = [(keys, LATEST) for keys in smaller_is_better]
    cases.append(({"smaller_is_better": False}, BEST))
    for keys, uuid in cases:
        config = {"searcher": {"metric": "f1", **keys}}
        master.stored = [item._replace(config=config) for item in master.stored]
        for name in ("trial:7", "experiment:3"):
            assert references.find_remote(name, key=name).uuid == uuid
    master.stored = [item._replace(scores={}) for item in master.stored]
    assert references.find_remote("trial:7", key="").uuid == LATEST  # none is validated: the newest


@on("elsewhere")
def test_a_reference_has_the_runs_model(master, local_run, model):
    fetched = load_model("trial:7")
    assert fetched.steps == local_run.best["steps"]
    assert choose_threshold(fetched, "best") == local_run.best["best_f1_thresh"]
    weights = model.model.state_dict()
    for name, value in fetched.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


UNKNOWN = [BEST.replace("a", "e"), "trial:8", "experiment:9", "model:no"]
NO_REFERENCES = ["trial", "trial:x", "run:3", BEST[:-1]]


@on("shared_fs")
def test_what_is_not_there(
    master,
    monkeypatch,
    capsys,
):
    problems = dict.fromkeys(UNKNOWN, "not fetched: ")
    problems |= dict.fromkeys(NO_REFERENCES, "no such folder")
    problems[BROKEN] = "not fetched: "
    for name, problem in problems.items():
        refused(["--model", name, "--question", "a", "--context", "b"], problem, capsys)

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
    assert list(references.CACHE.glob("[!.]*")) == []


def test_a_checkpoint_is_fetched_once(tmp_path, monkeypatch):
    """The second process waits for the first; what a killed one left is removed."""
    monkeypatch.setattr(references, "CACHE", tmp_path)
    (tmp_path / f".detalbert-tmp-{BEST}-01234abc").mkdir()
    fetched = []
    at_the_lock = []

    def download(path):
        fetched.append(path)
        wait_for(lambda: len(at_the_lock) >= 2)

    def hold_lock(path, hold_lock=files.hold_lock):
        at_the_lock.append(path)
        return hold_lock(path)

    monkeypatch.setattr(files, "hold_lock", hold_lock)
    slow = SimpleNamespace(uuid=BEST, download=download, training=None)

    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(references._download, [slow] * 2)) == {tmp_path / BEST}

    assert len(fetched) == 1
    assert {path.name for path in tmp_path.iterdir()} == {BEST, f".{BEST}.lock"}

    # It is fetched again if something else stands where its sums were.
    sums = tmp_path / BEST / "sums.json"
    sums.unlink()
    sums.mkdir()
    references._download(slow)
    assert len(fetched) == 2
    assert sums.is_file()


def test_a_model_of_the_hub_answers_by_its_name(local_run, model, tmp_path, monkeypatch):
    exported = tmp_path / "exported"
    export(model, exported)
    (exported / "question_answering.json").unlink()  # as others make them
    (exported / "sums.json").unlink()
    cache = tmp_path / "hub"
    put(cache, "some/squad-model", "main", exported)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)

    for name in ("some/squad-model", "some/squad-model@main"):
        loaded = load_model(name)
        assert loaded.scores == {}
        assert loaded.hparams.max_seq_length == 384
        assert ask(loaded, "Which ship?", "The Kalonda carried tar.", 1e9).answer

    with pytest.raises(UserError, match="the hub does not give it"):
        load_model("some/other")
