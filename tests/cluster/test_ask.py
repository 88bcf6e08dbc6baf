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


Exchange = dict[str, Any]  # method, path, request, status and response


@pytest.fixture
def recorded(shared: pathlib.Path) -> list[Exchange]:
    """What a real 0.38.1 master answered: four configs to validate, its pools and agents."""
    text = (shared / "golden" / "determined-api.json").read_text()
    exchanges = json.loads(text)["search_registry_and_more"]
    return exchanges["validate_only"] + exchanges["cluster"]


class Replay:
    """The recorded answers; `fault` is a status for all but the login."""

    def __init__(self, recorded: list[Exchange]) -> None:
        self.recorded = recorded
        self.fault = 0

    def say(self, path: str, response: object) -> None:
        """Answer so from now on."""
        exchange = {"method": "GET", "path": f"/api/v1/{path}", "status": 200, "response": response}
        self.recorded = [exchange, *self.recorded]

    def __call__(self, request: Request) -> tuple[int, Any]:
        body = json.loads(request.body or "{}")
        if request.path == LOGIN:
            if body["username"] != "ada":
                return 403, _error("wrong")
            user = {"active": True, "admin": False, "username": "ada"}
            return 200, {"token": "t", "user": user}
        if self.fault:
            return self.fault, _error("a fault")
        if request.path == "/api/v1/me":  # whether a stored token is still valid
            return 200, {}
        for exchange in self.recorded:
            same_path = (request.method, request.path) == (exchange["method"], exchange["path"])
            if same_path and _same_config(body, exchange):
                return exchange["status"], exchange["response"]
        return 403, _error("not recorded, or not this user's to read")


def _same_config(body: dict[str, Any], exchange: Exchange) -> bool:
    """Return whether a request has no config, or that of a recorded validation."""
    if "config" not in body:
        return True
    config = yaml.safe_load(exchange["request"]["config"])
    return body["validateOnly"] is True and yaml.safe_load(body["config"]) == config


def _error(text: str, code: int = 13, reason: str = "Internal") -> dict[str, Any]:
    return {"error": {"code": code, "reason": reason, "error": text}}


@pytest.fixture
def master(recorded, monkeypatch, tmp_path) -> Iterator[AnswerServer]:
    for name in ("DET_USER_TOKEN", "DET_SESSION_TOKEN", "DET_MASTER_CERT_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with AnswerServer(Replay(recorded)) as server:
        monkeypatch.setenv("DET_MASTER", server.url)
        monkeypatch.setenv("DET_USER", "ada")
        monkeypatch.setenv("DET_PASS", "Secret-123")
        yield server


Config = str | dict[str, Any]
Ask = Callable[[Config], tuple[int, list[str], str]]


@pytest.fixture
def ask(master, tmp_path, capsys) -> Ask:
    """`ask(config)`: the exit status, the lines and the errors of `check --ask`."""
    path = tmp_path / "job.yaml"
    empty = tmp_path / "empty"

    def run(config: Config) -> tuple[int, list[str], str]:
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        empty.mkdir(exist_ok=True)
        status = check.main([str(path), "--ask", "--context", str(empty)])
        out, err = capsys.readouterr()
        return status, out.replace(str(path), "job").splitlines(), err

    return run


# What the master says of the recorded configs, in their order.
VERDICTS = [
    "",
    '<config>.resources: additionalProperties "slots" not allowed',
    "slots requested exceeds cluster capacity",
    "resource pool aws does not exist",
]


def test_the_masters_verdict(recorded, master, ask):
    for exchange, words in zip(recorded, VERDICTS, strict=False):
        status, lines, _ = ask(exchange["request"]["config"])
        refusals = [line for line in lines if line.startswith("job: master: refuses it: ")]
        if not words:
            assert status == 0, lines
            assert refusals == []
        else:
            assert status == 2, lines
            (refusal,) = refusals
            assert words in refusal
    assert len(lines) == 2  # a pool that is not there: the one line, and what is not checked

    # Nothing was created.
    posts = [request for request in master.asked if request.method == "POST"]
    assert {post.path for post in posts} == {LOGIN, "/api/v1/experiments"}
    for post in posts:
        assert post.path == LOGIN or json.loads(post.body)["validateOnly"] is True


def test_pools_and_images_of_the_master(recorded, master, ask):
    config = yaml.safe_load(recorded[0]["request"]["config"])
    config["resources"] = {"slots_per_trial": 3, "resource_pool": "wide"}
    _, lines, _ = ask(config)
    assert any("3 slots on machines or pods of 2: none would start" in line for line in lines)
    assert not any("environment.image" in line for line in lines)  # not this user's to read

    config["resources"]["slots_per_trial"] = 4
    _, lines, _ = ask(config)
    assert any(line.startswith("job: image Determined's own; pool wide: 2 of") for line in lines)

    # The fork has pools in its database, which its config does not name: they have the master's.
    tasks = {"image": {"cpu": "registry/a:1"}}
    for pools in ([{"pool_name": "wide"}], []):
        master_config = {"task_container_defaults": tasks, "resource_pools": pools}
        master.answer.say("master/config", {"config": master_config})
        _, lines, _ = ask(config)
        assert any(line.startswith("job: image registry/a:1; pool wide: 2 of") for line in lines)


def test_machines_that_the_master_starts(recorded, master, ask):
    """A pool of a provider, spot or not, as the API shows it; then one of Kubernetes: its
    `maxAgents` is 0 in 0.38.1, `slotsPerAgent` is what a pod may have."""
    (exchange,) = [exchange for exchange in recorded if exchange["path"].endswith("pools")]
    pool = {**exchange["response"]["resourcePools"][0], "name": "cloud"}
    of_aws = {
        **pool,
        "type": "RESOURCE_POOL_TYPE_AWS",
        "slotsPerAgent": 8,
        "maxAgents": 9,
        "instanceType": "p3.16xlarge",
        "details": {"aws": {"spotEnabled": True}},
    }
    config = yaml.safe_load(recorded[0]["request"]["config"])
    config["environment"] = {"image": "registry/a:1"}
    config["resources"] = {"slots_per_trial": 64, "resource_pool": "cloud"}
    config["hyperparameters"] |= {
        "global_batch_size": 64,
        "spot_notice": False,
        "model": "albert-xxlarge-v2",
    }

    master.answer.say("resource-pools", {"resourcePools": [of_aws]})
    _, lines, _ = ask(config)
    machines = "pool cloud: 8 to 9 p3.16xlarge (spot) at the start, $58.75 to $66.10 an hour"
    assert f"job: image registry/a:1; {machines}" in lines
    assert any("EC2's two-minute notice would go unread" in line for line in lines)

    of_kubernetes = {
        **pool,
        "type": "RESOURCE_POOL_TYPE_K8S",
        "slotsPerAgent": 8,
        "instanceType": "n/a",
    }
    master.answer.say("resource-pools", {"resourcePools": [of_kubernetes]})
    _, lines, _ = ask(config)
    assert not any("at most" in line for line in lines)
    assert any("pool cloud: 8 of your own machines" in line for line in lines)


def test_a_static_pool_is_its_enabled_agents(recorded, master, ask):
    """Neither agents that are switched off nor those of other pools count."""
    (exchange,) = [exchange for exchange in recorded if exchange["path"].endswith("pools")]
    pool = {**exchange["response"]["resourcePools"][0], "name": "racks"}
    pool |= {"type": "RESOURCE_POOL_TYPE_STATIC", "slotsAvailable": 8}

    def agent(slots: int, **changes: object) -> dict[str, object]:
        numbered = {str(number): {} for number in range(slots)}
        return {"enabled": True, "resourcePools": ["racks"], "slots": numbered, **changes}

    agents = [agent(4), agent(4), agent(2, enabled=False), agent(8, resourcePools=["other"])]
    master.answer.say("resource-pools", {"resourcePools": [pool]})
    master.answer.say("agents", {"agents": agents})
    config = yaml.safe_load(recorded[0]["request"]["config"])
    config["environment"] = {"image": "registry/a:1"}
    config["resources"] = {"slots_per_trial": 8, "resource_pool": "racks"}

    _, lines, _ = ask(config)

    assert any("pool racks: 2 of your own machines" in line for line in lines), lines


@pytest.mark.parametrize(
    "status, code, reason",
    [(500, 13, "Internal"), (400, 3, "InvalidArgument"), (403, 7, "PermissionDenied")],
)
def test_the_forks_refusals_are_told_as_0_38_1s(recorded, master, ask, status, code, reason):
    """400 for a bad config, where 0.38.1 has 500, and 403 for a restricted pool; read in the source
    of 0.42, not run: master/internal/core_experiment.go and docs/maintenance."""
    text = "invalid experiment configuration: <config>.hyperparameters: unknown"
    recorded[0] |= {"status": status, "response": _error(text, code, reason)}

    exit_status, lines, _ = ask(recorded[0]["request"]["config"])

    assert exit_status == 2
    (line,) = [line for line in lines if line.startswith("job: master: ")]
    assert "refuses it: " in line
    assert "invalid experiment" not in line
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

    assert status == 4
    assert lines == []
    assert err.count("\n") == 1
    assert words in err
    assert err.startswith("cluster.check: unavailable: ")


def test_ask_and_a_master_file_exclude_each_other(capsys):
    assert check.main(["configs/local.yaml", "--ask", "--master", "cluster/master-local.yaml"]) == 2
    assert "leave --master out" in capsys.readouterr().err
