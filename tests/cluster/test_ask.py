"""`--ask`: the master's own verdict on a config, and its pools; nothing is created."""

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from cluster import check
from tests.fakes.http import AnswerServer, Request

LOGIN = "/api/v1/auth/login"


@pytest.fixture
def recorded(shared: pathlib.Path) -> list[dict[str, Any]]:
    """What a real 0.38.1 master answered: four configs to validate, its pools and agents."""
    text = (shared / "golden" / "determined-api.json").read_text()
    said = json.loads(text)["search_registry_and_more"]
    return said["validate_only"] + said["cluster"]


class Replay:
    """The recorded answers; `fault` is a status for all but the login."""

    def __init__(self, recorded: list[dict[str, Any]]) -> None:
        self.recorded, self.fault = recorded, 0

    def say(self, path: str, response: Any) -> None:
        """Answer so from now on."""
        facts = {"method": "GET", "path": f"/api/v1/{path}", "status": 200, "response": response}
        self.recorded = [facts, *self.recorded]

    def __call__(self, request: Request) -> tuple[int, Any]:
        asked = json.loads(request.body or "{}")
        if request.path == LOGIN:
            user = {"active": True, "admin": False, "username": "ada"}
            known = asked["username"] == "ada"
            return (200, {"token": "t", "user": user}) if known else (403, _error("wrong"))
        if self.fault:
            return self.fault, _error("a fault")
        if request.path == "/api/v1/me":  # whether a stored token is still valid
            return 200, {}
        for one in self.recorded:
            if (request.method, request.path) == (one["method"], one["path"]) and (
                "config" not in asked
                or asked["validateOnly"] is True
                and yaml.safe_load(asked["config"]) == yaml.safe_load(one["request"]["config"])
            ):
                return one["status"], one["response"]
        return 403, _error("not recorded, or not this user's to read")


def _error(text: str, code: int = 13, reason: str = "Internal") -> dict[str, Any]:
    return {"error": {"code": code, "reason": reason, "error": text}}


@pytest.fixture
def master(recorded, monkeypatch, tmp_path) -> Iterator[AnswerServer]:
    for name in ("DET_USER_TOKEN", "DET_SESSION_TOKEN", "DET_MASTER_CERT_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with AnswerServer(Replay(recorded)) as server:
        for name, value in {"MASTER": server.url, "USER": "ada", "PASS": "Secret-123"}.items():
            monkeypatch.setenv(f"DET_{name}", value)
        yield server


Ask = Callable[[str | dict[str, Any]], tuple[int, list[str], str]]


@pytest.fixture
def ask(master: AnswerServer, tmp_path: pathlib.Path, capsys: Any) -> Ask:
    """`ask(config)`: the exit status, the lines and the errors of `check --ask`."""

    def run(config: str | dict[str, Any]) -> tuple[int, list[str], str]:
        path = tmp_path / "job.yaml"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        (tmp_path / "empty").mkdir(exist_ok=True)
        status = check.main([str(path), "--ask", "--context", str(tmp_path / "empty")])
        out, err = capsys.readouterr()
        return status, out.replace(str(path), "job").splitlines(), err

    return run


def test_the_masters_verdict(recorded: Any, master: AnswerServer, ask: Ask) -> None:
    refused = '<config>.resources: additionalProperties "slots" not allowed'
    full, gone = "slots requested exceeds cluster capacity", "resource pool aws does not exist"
    for one, words in zip(recorded, ["", refused, full, gone], strict=False):
        status, lines, _ = ask(one["request"]["config"])
        assert status == (2 if words else 0), lines
        refusals = [line for line in lines if line.startswith("job: master: refuses it: ")]
        assert len(refusals) == bool(words) and words in "".join(refusals)
    assert len(lines) == 2  # a pool that is not there: the one line, and what is not checked
    posts = [request for request in master.asked if request.method == "POST"]
    assert {post.path for post in posts} == {LOGIN, "/api/v1/experiments"}
    assert all(p.path == LOGIN or json.loads(p.body)["validateOnly"] is True for p in posts)


def test_pools_and_images_of_the_master(recorded: Any, master: Any, ask: Ask) -> None:
    config = yaml.safe_load(recorded[0]["request"]["config"])
    config["resources"] = {"slots_per_trial": 3, "resource_pool": "wide"}
    _, lines, _ = ask(config)
    assert any("3 slots on machines or pods of 2: none would start" in line for line in lines)
    assert not any("environment.image" in line for line in lines)  # not this user's to read
    config["resources"]["slots_per_trial"] = 4
    _, lines, _ = ask(config)
    assert any(line.startswith("job: image Determined's own; pool wide: 2 of") for line in lines)
    image, pools = {"cpu": "registry/a:1"}, [{"pool_name": "wide"}]
    # The fork has pools in its database, which its config does not name: they have the master's.
    for named in (pools, []):
        config_of = {"task_container_defaults": {"image": image}, "resource_pools": named}
        master.answer.say("master/config", {"config": config_of})
        _, lines, _ = ask(config)
        assert any(line.startswith("job: image registry/a:1; pool wide: 2 of") for line in lines)


def test_machines_that_the_master_starts(recorded: Any, master: Any, ask: Ask) -> None:
    """A pool of a provider, spot or not, as the API shows it; then one of Kubernetes: its
    `maxAgents` is 0 in 0.38.1, `slotsPerAgent` is what a pod may have."""
    pool = next(one for one in recorded if one["path"].endswith("pools"))["response"]
    provided = {**pool["resourcePools"][0], "name": "cloud", "type": "RESOURCE_POOL_TYPE_AWS"}
    provided |= {"slotsPerAgent": 8, "maxAgents": 9, "instanceType": "p3.16xlarge"}
    provided |= {"details": {"aws": {"spotEnabled": True}}}
    master.answer.say("resource-pools", {"resourcePools": [provided]})
    config = yaml.safe_load(recorded[0]["request"]["config"])
    config["environment"] = {"image": "registry/a:1"}
    config["resources"] = {"slots_per_trial": 64, "resource_pool": "cloud"}
    config["hyperparameters"]["global_batch_size"] = 64
    config["hyperparameters"] |= {"spot_notice": False, "model": "albert-xxlarge-v2"}
    _, lines, _ = ask(config)
    plan = "pool cloud: 8 to 9 p3.16xlarge (spot) at the start, $58.75 to $66.10 an hour"
    assert f"job: image registry/a:1; {plan}" in lines
    assert any("EC2's two-minute notice would go unread" in line for line in lines)
    nodes = {**pool["resourcePools"][0], "name": "cloud", "instanceType": "n/a"}
    nodes |= {"type": "RESOURCE_POOL_TYPE_K8S", "slotsPerAgent": 8}
    master.answer.say("resource-pools", {"resourcePools": [nodes]})
    _, lines, _ = ask(config)
    assert not any("at most" in line for line in lines)
    assert any("pool cloud: 8 of your own machines" in line for line in lines)


def test_the_forks_refusals_are_told_as_0_38_1s(recorded: Any, master: Any, ask: Ask) -> None:
    """400 for a bad config, where 0.38.1 has 500, and 403 for a restricted pool; read in the source
    of 0.42, not run: master/internal/core_experiment.go and docs/maintenance."""
    kinds = {500: (13, "Internal"), 400: (3, "InvalidArgument"), 403: (7, "PermissionDenied")}
    text = "invalid experiment configuration: <config>.hyperparameters: unknown"
    for status, kind in kinds.items():
        recorded[0] |= {"status": status, "response": _error(text, *kind)}
        found, lines, _ = ask(recorded[0]["request"]["config"])
        (line,) = [line for line in lines if line.startswith("job: master: ")]
        assert found == 2 and "refuses it: " in line and "invalid experiment" not in line
        assert line.count("<config>.hyperparameters: unknown") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"USER": "eve"}, "does not know this user and password"),
        ({"PASS": None}, "log in with `det user login`"),
        ({"MASTER": "http://a:b"}, "no master answers at http://a:b"),
        (401, "wants a login"),
        (503, "is not ready"),
        ("away", "; set DET_MASTER"),
    ],
)
def test_a_master_that_cannot_be_asked(change, words, recorded, master, ask, monkeypatch):
    """One line, exit status 4, whatever the config."""
    if isinstance(change, dict):
        for name, value in change.items():
            monkeypatch.delenv(f"DET_{name}")
            if value:
                monkeypatch.setenv(f"DET_{name}", value)
    elif change == "away":
        master.leave()
    else:
        master.answer.fault = change
    status, lines, err = ask(recorded[1]["request"]["config"])
    assert (status, lines) == (4, [])
    assert err.count("\n") == 1 and words in err
    assert err.startswith("cluster.check: unavailable: ")


def test_ask_and_a_master_file_exclude_each_other(capsys: Any) -> None:
    assert check.main(["a.yaml", "--ask", "--master", "b.yaml"]) == 2
    assert "leave --master out" in capsys.readouterr().err
