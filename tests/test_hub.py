"""Which failures of a hub are worth another try; what a revision is."""

import json
import shutil
from pathlib import Path
from unittest.mock import Mock, call

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import OfflineModeIsEnabled
from transformers import AutoConfig

from detalbert import hub
from detalbert.errors import Unavailable, UserError
from detalbert.hub import hub_error
from detalbert.squad.tokenizer import named_tokenizer
from tests.conftest import ROOT
from tests.fakes.http import AnswerServer
from tests.fakes.hub import put


@pytest.fixture(autouse=True)
def online(monkeypatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # all of it stays on loopback


def failure(endpoint: str) -> Exception:
    with pytest.raises(Exception) as raised:  # whatever the client raises
        HfApi(endpoint=endpoint).dataset_info("nobody/nothing", timeout=60)
    assert not isinstance(raised.value, OfflineModeIsEnabled)
    return raised.value


def test_which_failures_are_worth_another_try():
    kinds = {401: UserError, 404: UserError, 429: Unavailable, 500: Unavailable}
    for status, kind in kinds.items():
        with AnswerServer(lambda _, status=status: (status, b"")) as server:
            assert hub_error(failure(server.url)) is kind
    error, wrapped = failure("http://127.0.0.1:9"), OSError("We couldn't connect")
    wrapped.__cause__ = error
    assert hub_error(error) is hub_error(wrapped) is Unavailable
    assert hub_error(OSError("no config.json in it")) is UserError
    assert hub_error(ValueError("no such model type")) is UserError


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_hub_without_an_answer_is_one_line_at_once(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "commits", {})
    monkeypatch.setattr(hub, "HfApi", lambda: HfApi(endpoint="http://127.0.0.1:9"))
    tries = []

    def read(*_, **__):
        tries.append(constants.HF_HUB_OFFLINE)
        raise OSError("not in the cache")

    line = (
        r"data.train: does not load: no answer from the hub \(.*\), and 'org/a' is not in its cache"
    )
    with pytest.raises(Unavailable, match=line), hub.hub_errors("does not load", key="data.train"):
        hub.load_named(read, "org/a", kind)
    assert tries == [True] and not constants.HF_HUB_OFFLINE  # and the cache it has is used
    assert hub.load_named(Mock(return_value=7), "org/a", kind) == 7


def test_a_run_is_no_model(tmp_path):
    (tmp_path / "checkpoints" / "step-00000008").mkdir(parents=True)
    with pytest.raises(UserError, match="such as .*/checkpoints/step-00000008$"):
        named_tokenizer(str(tmp_path))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub's client, which is all that it has."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "commits", {})
    return tmp_path / "hub"


def model_of(size: int, folder: Path) -> Path:
    """The embedded model's files, its config with this size."""
    shutil.copytree(ROOT / "embedded" / "albert-tiny", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": size}))
    return folder


def size_of(name: str) -> int:
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
    v1, v2 = (call("org/text", name="en", revision=one) for one in (commit, "v2"))
    assert read.mock_calls == [call("org/text", name="en"), v1, v2, call(str(folder), name="en")]


def test_a_path_with_an_at_sign_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model_of(7, tmp_path / "runs@home")
    assert size_of("runs@home") == 7
    for name in ("runs@home", "./a@b", "/a@b", "a/b/c@d", "name", "org/name"):
        assert hub.split_revision(name) == (name, None)
    for name, revision in (("a", "b"), ("org/a", "refs/pr/1"), ("org/a", "v1.0")):
        assert hub.split_revision(f"{name}@{revision}") == (name, revision)
