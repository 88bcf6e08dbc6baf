"""`--ask`: the master's own verdict on a config, and its pools; nothing is created."""

import json

import pytest
import yaml

from cluster import check
from cluster.master import BoundedSession
from tests.fakes.http import AnswerServer

LOGIN = "/api/v1/auth/login"
EXPERIMENTS = "/api/v1/experiments"


@pytest.fixture
def recorded(golden_dir):
    """What a real 0.38.1 master answered: four configs to validate, its pools and agents."""
    text = (golden_dir / "determined-api.json").read_text()
    exchanges = json.loads(text)["search_registry_and_more"]
    return exchanges["validate_only"] + exchanges["cluster"]


class Replay:
    """The recorded answers; `verdict` in place of those on configs, `fault` is a status for all
    but the login."""

    def __init__(self, recorded):
        self.recorded = recorded
        self.verdict = None
        self.fault = 0

    def say(self, path, response):
        """Answer so from now on."""
        exchange = {"method": "GET", "path": f"/api/v1/{path}", "status": 200, "response": response}
        self.recorded = [exchange, *self.recorded]

    def __call__(self, request):
        body = json.loads(request.body or "{}")
        if request.path == LOGIN:
            if body["username"] != "ada":
                return 403, _error("wrong")
            return {"token": "t", "user": {"active": True, "admin": False, "username": "ada"}}
        if self.fault:
            return self.fault, _error("a fault")
        if request.path == "/api/v1/me":  # whether a stored token is still valid
            return {}
        if request.path == EXPERIMENTS and self.verdict is not None:
            return self.verdict
        for exchange in self.recorded:
            same_path = (request.method, request.path) == (exchange["method"], exchange["path"])
            if same_path and _same_config(body, exchange):
                return exchange["status"], exchange["response"]
        return 403, _error("not recorded, or not this user's to read")


def _same_config(body, exchange):
    """Return whether a request has no config, or that of a recorded validation."""
    if "config" not in body:
        return True
    config = yaml.safe_load(exchange["request"]["config"])
    return body["validateOnly"] is True and yaml.safe_load(body["config"]) == config


def _error(text, code=13, reason="Internal"):
    return {"error": {"code": code, "reason": reason, "error": text}}


@pytest.fixture
def master(recorded, monkeypatch, tmp_path):
    for name in ("DET_USER_TOKEN", "DET_SESSION_TOKEN", "DET_MASTER_CERT_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with AnswerServer(Replay(recorded)) as server:
        monkeypatch.setenv("DET_MASTER", server.url)
        monkeypatch.setenv("DET_USER", "ada")
        monkeypatch.setenv("DET_PASS", "Secret-123")
        yield server


# What a real master says of a pool on AWS, as far as the client needs it.
AWS_TEXTS = "iamInstanceProfileArn imageId instanceName securityGroupId sshKeyName tagKey tagValue"
ON_AWS = {
    **dict.fromkeys(AWS_TEXTS.split(), ""),
    "publicIp": False,
    "region": "us-west-2",
    "rootVolumeSize": 200,
    "spotEnabled": True,
}


@pytest.fixture
def ask(master, tmp_path, capsys):
    """`ask(config, *flags)`: the exit status, the lines and the errors of `check --ask`."""
    path = tmp_path / "job.yaml"

    def run(config, *flags):
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        status = check.main([str(path), "--ask", "--context", str(tmp_path), *flags])
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

    # Nothing was created.
    posts = [request for request in master.asked if request.method == "POST"]
    assert {post.path for post in posts} == {LOGIN, EXPERIMENTS}
    for post in posts:
        assert post.path == LOGIN or json.loads(post.body)["validateOnly"] is True


def test_pools_of_the_master(recorded, master, ask):
    config = yaml.safe_load(recorded[0]["request"]["config"])
    config["resources"] = {"slots_per_trial": 3, "resource_pool": "wide"}
    _, lines, err = ask(config)
    assert any("3 slots on machines of 2: none would start" in line for line in lines), err

    master.answer.verdict = {"experiment": {"id": 0}}
    assert ask(config, "--set", "resources.slots_per_trial=4")[0] == 0

    # One of a provider, as the API shows it.
    (exchange,) = [exchange for exchange in recorded if exchange["path"].endswith("pools")]
    pool = {
        **exchange["response"]["resourcePools"][0],
        "name": "cloud",
        "type": "RESOURCE_POOL_TYPE_AWS",
        "slotsPerAgent": 8,
        "maxAgents": 9,
        "instanceType": "p4d.24xlarge",
        "details": {"aws": ON_AWS},
    }
    master.answer.say("resource-pools", {"resourcePools": [pool]})
    for slots, key in {96: "slots_per_trial: 96 slots", 12: "a multiple, 8 or 16"}.items():
        config["resources"] = {"slots_per_trial": slots, "resource_pool": "cloud"}
        _, lines, _ = ask(config)
        assert any(key in line for line in lines), lines


@pytest.mark.parametrize(
    "verdict",
    [
        (500, _error("invalid experiment configuration: <config>.a: unknown")),
        (400, _error("<config>.a: unknown", code=3, reason="InvalidArgument")),  # of the fork
        (403, _error("<config>.a: unknown", code=7, reason="PermissionDenied")),
        (404, _error("<config>.a: unknown", code=5, reason="NotFound")),
    ],
)
def test_refusals_by_any_status(verdict, recorded, master, ask):
    master.answer.verdict = verdict
    status, lines, _ = ask(recorded[0]["request"]["config"])
    assert status == 2
    (line,) = [line for line in lines if line.startswith("job: master: ")]
    assert line.count("<config>.a: unknown") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"USER": "eve"}, "does not know this user and password"),
        ({"PASS": None}, "log in with `det user login`"),
        ({"MASTER": "http://a:b"}, "no master answers at http://a:b"),
        (401, "wants a login"),
        (503, "(a fault); set DET_MASTER"),
        ("away", "; set DET_MASTER"),
        (b"null", "not an answer of a master"),
        ([], "not an answer of a master"),
        ({"experiment": None}, "not an answer of a master"),
        ((429, _error("too many requests")), "does not answer (too many requests)"),
        ((500, b"<html>"), "does not answer"),
        ((302, b"", {"Location": "/api/v1/me"}), "not an answer of a master"),
        (b"[" * 100_000, "not an answer of a master"),
        ("large", "an answer of over 10,000 bytes"),
        ("mute", "answer"),
        ("dripping", "answer"),
    ],
)
def test_a_master_that_cannot_be_asked(change, words, recorded, master, ask, monkeypatch):
    """One line, exit status 4, whatever the config."""
    if isinstance(change, dict) and "experiment" not in change:
        for name, value in change.items():
            monkeypatch.delenv(f"DET_{name}")
            if value:
                monkeypatch.setenv(f"DET_{name}", value)
    elif change == "away":
        master.leave()
    elif change in ("mute", "dripping"):
        monkeypatch.setattr(BoundedSession, "seconds", 0.5)
        master.answer.verdict = master.drip(b" " if change == "dripping" else b"")
    elif change == "large":
        monkeypatch.setattr("cluster.master.MAX_BYTES", 10_000)
        master.answer.verdict = b" " * 20_000
    elif isinstance(change, int):
        master.answer.fault = change
    else:
        master.answer.verdict = change

    status, lines, err = ask(recorded[1]["request"]["config"])

    assert status == 4
    assert lines == []
    assert err.count("\n") == 1
    assert words in err
    assert err.startswith("cluster.check: unavailable: ")


def test_an_emoji_reaches_the_master_as_it_is(recorded, master, ask):
    """In JSON it would be two halves, which Go's YAML refuses."""
    master.answer.verdict = {"experiment": {"id": 0}}
    config = yaml.safe_load(recorded[0]["request"]["config"]) | {"description": "\U0001f600"}
    assert ask(yaml.safe_dump(config, allow_unicode=True), "--set", "max_restarts=1")[0] == 0
    assert "\U0001f600" in json.loads(master.asked[-1].body)["config"]
