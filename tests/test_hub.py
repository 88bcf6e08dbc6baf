"""Which failures of a hub are worth another try."""

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import OfflineModeIsEnabled

from detalbert.errors import Unavailable, UserError
from detalbert.hub import hub_error
from tests.fakes.http import AnswerServer


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # all of it stays on loopback


def failure(endpoint: str) -> Exception:
    with pytest.raises(Exception) as raised:  # whatever the client raises
        HfApi(endpoint=endpoint).dataset_info("nobody/nothing", timeout=60)
    assert not isinstance(raised.value, OfflineModeIsEnabled)
    return raised.value


@pytest.mark.parametrize(
    "status, kind", [(401, UserError), (404, UserError), (429, Unavailable), (500, Unavailable)]
)
def test_what_the_hub_answers(status: int, kind: type) -> None:
    with AnswerServer(lambda _: (status, b"")) as hub:
        assert hub_error(failure(hub.url)) is kind


def test_a_hub_that_is_not_there_is_worth_another_try() -> None:
    error = failure("http://127.0.0.1:9")
    assert hub_error(error) is Unavailable
    wrapped = OSError("We couldn't connect")
    wrapped.__cause__ = error
    assert hub_error(wrapped) is Unavailable


def test_a_folder_without_the_files_is_a_mistake() -> None:
    assert hub_error(OSError("no config.json in it")) is UserError
    assert hub_error(ValueError("no such model type")) is UserError
