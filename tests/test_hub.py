"""Names of the hub: what a revision is, what stays pinned, which failures are worth another try."""

import json
import shutil
from unittest.mock import Mock, call

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoConfig

from detalbert import hub
from detalbert.errors import Unavailable, UserError
from detalbert.hub import hub_error
from detalbert.squad.encoding import named_tokenizer
from tests.conftest import ROOT
from tests.fakes.http import AnswerServer
from tests.fakes.hub import put

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub's client, which is all that it has."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "commits", {})
    return tmp_path / "hub"


def failure(call):
    with pytest.raises(Exception) as raised:  # noqa: PT011  whatever the client raises
        call()
    return raised.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, UserError), (404, UserError), (429, Unavailable), (500, Unavailable), (0, Unavailable)],
)
def test_which_failures_are_worth_another_try(status, kind, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # all of it stays on loopback
    with AnswerServer(lambda _: (status, b"")) as server:
        api = HfApi(endpoint=server.url if status else NOBODY)
        error = failure(lambda: api.dataset_info("nobody/nothing", timeout=60))
    wrapped = OSError("We couldn't connect")
    wrapped.__cause__ = error
    assert hub_error(error) is hub_error(wrapped) is kind
    assert hub_error(OSError("no config.json in it")) is UserError


def test_without_an_answer_the_cache_must_do(cache, tmp_path, monkeypatch, caplog):
    """The failure is worth another try, unlike that of a user's own switch."""
    commit = put(cache, "org/a", "main", model_of(7, tmp_path / "model"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "HfApi", lambda: HfApi(endpoint=NOBODY))
    assert size_of("org/a") == 7
    assert hub.commits == {"models/org/a@main": commit}
    for is_offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        read = Mock(side_effect=LocalEntryNotFoundError("not in the cache"))
        with (
            pytest.raises(UserError, match="^data.train: no: not in the ") as raised,
            hub.hub_errors("no", key="data.train"),
        ):
            hub.load_named(read, "org/b")
        assert isinstance(raised.value, Unavailable) is not is_offline


def model_of(size, folder):
    """The embedded model's files, its config with this size."""
    shutil.copytree(ROOT / "embedded" / "albert-tiny", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": size}))
    return folder


def size_of(name):
    return hub.load_named(AutoConfig.from_pretrained, name).intermediate_size


def test_a_branch_a_tag_and_a_commit(cache, tmp_path, monkeypatch):
    first, second = model_of(1, tmp_path / "first"), model_of(2, tmp_path / "second")
    main, tag = put(cache, "org/a", "main", first), put(cache, "org/a", "v1.0", second)
    names = ("org/a", "org/a@main", "org/a@v1.0", f"org/a@{main}", f"org/a@{tag}")
    assert [size_of(name) for name in names] == [1, 1, 2, 1, 2]
    assert named_tokenizer("org/a@v1.0").is_fast
    assert hub.commits == {"models/org/a@main": main, "models/org/a@v1.0": tag}
    put(cache, "org/a", "main", second)
    assert size_of("org/a@main") == 1  # what it was when the run began
    monkeypatch.setattr(hub, "commits", {})
    assert size_of("org/a@main") == 2
    with pytest.raises(OSError, match="cached files"):
        size_of("org/a@none")


def test_the_revision_of_a_data_set(cache, tmp_path):
    read, folder = Mock(), tmp_path / "data"
    folder.mkdir()
    commit = put(cache, "org/text", "v1", folder, "datasets")
    for name in ("org/text", "org/text@v1", "org/text@v2", str(folder)):
        hub.load_named(read, name, "dataset", name="en")
    calls = [call("org/text", name="en", revision=name) for name in ("main", commit, "v2")]
    assert read.mock_calls == [*calls, call(str(folder), name="en")]


def test_a_folder_comes_first_and_a_run_is_no_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model_of(7, tmp_path / "runs@home")
    assert size_of("runs@home") == 7
    for name in ("runs@home", "./a@b", "/a@b", "a/b/c@d", "name", "org/name"):
        assert hub.split_revision(name) == (name, None)
    for name, revision in (("a", "b"), ("org/a", "refs/pr/1"), ("org/a", "v1.0")):
        assert hub.split_revision(f"{name}@{revision}") == (name, revision)
    (tmp_path / "checkpoints" / "step-00000008").mkdir(parents=True)
    with pytest.raises(UserError, match="a run's folder; name one in its checkpoints/$"):
        named_tokenizer(str(tmp_path))
