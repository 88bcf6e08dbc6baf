"""Questions that wait are answered together, also in a crowd; whom the server answers."""

import contextlib
import json
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from detalbert.engine.evaluation import evaluate_row
from detalbert.errors import UserError
from detalbert.inference import answering, server, web
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask, ask_together
from detalbert.inference.web import LOOPBACK, describe_access, read_token, served_names
from detalbert.squad.sources import read_questions
from detalbert.squad.windows import Example
from tests.conftest import ROOT
from tests.fakes.runs import wait_for
from tests.fakes.trained import LocalRun
from tests.inference.test_attacks import listening
from tests.inference.test_server import (
    ASKED,
    JSON,
    connected,
    get,
    meter,
    send,
    serving_here,
    start,
)

TEXT = ASKED["context"]
OTHER = "The Belmira was loaded with salt. " * 3
PAIRS = [(f"What did ship {n} carry?", (TEXT, OTHER)[n % 2]) for n in range(24)]
QUESTIONS = [{"question": question, "context": context} for question, context in PAIRS]


def assert_answered(replies: list[dict[str, Any]], model: Trained) -> None:
    """Each reply is that of the question by itself, but for rounding; they are in order."""
    for reply, (question, context) in zip(replies, PAIRS, strict=True):
        alone = ask(model, question, context, 0.0)
        assert reply["probability"] == pytest.approx(alone.probability, abs=1e-4)
        for name in ("question", "answer", "abstained", "start", "end"):
            assert reply[name] == getattr(alone, name)


class Held:
    """`ask_together`, each call held until it is let go; notes how many questions a call had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = Event()

    def __call__(self, trained: Trained, asked: Any, *more: Any) -> Any:
        self.sizes.append(len(asked))
        assert self.go.wait(60)
        if any(question == "bad" for question, _ in asked):
            raise RuntimeError("one of them")
        return ask_together(trained, asked, *more)

    def ask(self, port: int, questions: list[dict[str, str]]) -> list[tuple[int, Any]]:
        """Statuses and replies to questions, of which all but the first come while it is held."""
        with ThreadPoolExecutor(len(questions)) as pool:
            asked = [pool.submit(send, port, questions[0])]
            wait_for(lambda: self.sizes == [1])  # it found the model idle: nothing is waited for
            asked += [pool.submit(send, port, question) for question in questions[1:]]
            wait_for(lambda: meter(port, "waiting") == len(questions) - 1)
            self.go.set()
            return [(one.result()[0], one.result()[2]) for one in asked]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    made = Held()
    monkeypatch.setattr(server, "ask_together", made)
    monkeypatch.setattr(web, "SECONDS", 300.0)  # however busy the machine is
    return made


def test_rows(model: Trained, held: Held) -> None:
    """Questions that wait share rows."""
    with serving_here(model) as port:
        statuses, replies = zip(*held.ask(port, QUESTIONS), strict=True)
    assert held.sizes == [1, 23] and statuses == (200,) * 24
    assert_answered(replies, model)


def test_many_questions_are_spread_over_the_threads(
    model: Trained, held: Held, monkeypatch: Any
) -> None:
    """A list that finds three threads idle; all cores for one question that does."""
    monkeypatch.setattr(server.torch, "get_num_threads", lambda: 3)
    cores = []
    monkeypatch.setattr(server.torch, "set_num_threads", cores.append)
    held.go.set()
    with serving_here(model) as port:
        status, _, replies = send(port, QUESTIONS, "/answers")
        assert status == 200 and sum(held.sizes) == 24 and max(held.sizes) == 8
        assert_answered(replies, model)
        assert set(cores) == {1}
        assert send(port, ASKED)[0] == 200
    assert cores[-1] == 3


def test_a_client_that_leaves_is_noticed(model: Trained, held: Held, monkeypatch: Any) -> None:
    """What it asked is dropped while it waits, and ends before the next row if it is computed."""
    rows = []
    monkeypatch.setattr(
        answering, "evaluate_row", lambda *row: rows.append(row) or evaluate_row(*row)
    )
    asked = {"question": "Who?", "context": TEXT * 400}  # some rows
    with serving_here(model) as port, contextlib.ExitStack() as leaving:
        for number in range(3):
            connection = leaving.enter_context(connected(port))
            connection.request("POST", "/answer", json.dumps(asked), JSON)
            wait_for(lambda: held.sizes == [1] and meter(port, "waiting") == number)  # noqa: B023
        leaving.close()
        wait_for(lambda: b'path="/answer",status="499"} 3.0' in get(port, "/metrics")[2])
        held.go.set()
        assert send(port, ASKED)[0] == 200
    assert held.sizes == [1, 1] and len(rows) == 1


def test_no_more_than_a_row_is_taken_at_a_time(model: Trained, held: Held) -> None:
    long = {"question": "Who?", "context": "It sank. " * 1000}  # 9,000 of 3 * 4096 characters
    with serving_here(model) as port:
        assert [status for status, _ in held.ask(port, [long] * 4)] == [200] * 4
    assert held.sizes == [1, 1, 1, 1]


def test_a_question_that_fails_fails_alone(model: Trained, held: Held) -> None:
    bad = {"question": "bad", "context": TEXT}
    with serving_here(model) as port:
        replies = held.ask(port, [QUESTIONS[0], bad, QUESTIONS[1]])
    assert [status for status, _ in replies] == [200, 500, 200]
    assert "the server's log says how" in replies[1][1]["error"]


@pytest.fixture(scope="module")
def port(model: Trained) -> Iterator[int]:
    names = served_names("::1", ["Ask.Example"])
    with serving_here(model, names=names, token="secret") as port:
        yield port


def test_a_list_is_answered_in_order(port: int, model: Trained) -> None:
    def post(body: Any) -> tuple[int, Any]:
        return send(port, body, "/answers", Authorization="Bearer secret")[::2]

    status, replies = post(QUESTIONS)
    assert status == 200
    assert_answered(replies, model)
    status, said = post([ASKED, {"question": " ", "context": "b"}])
    assert status == 422 and "the question is empty" in said["error"]
    assert post([])[0] == 422
    status, said = post([ASKED] * 65)  # more than may wait
    assert status == 503 and "too many questions" in said["error"]


SERVED = "localhost LOCALHOST:80 127.0.0.1:9 [::1]:8000 [::1] ask.example:1234 ask.example"
OTHERS = "evil.example ask.example.evil.example 127.0.0.1.evil.example localhost:80:80 0.0.0.0"


def test_only_its_own_names_are_served(port: int) -> None:
    for host in [*SERVED.split(), *OTHERS.split(), "localhost:b"]:
        for path in ("/", "/openapi.json", "/health"):
            status, _, body = get(port, path, Host=host, Authorization="Bearer secret")
            if host in SERVED.split() or path == "/health":
                assert status == 200, host
            else:
                assert status == 400 and list(json.loads(body)) == ["error"], host


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_on_all_addresses_has_the_machines_names(host: str, monkeypatch: Any) -> None:
    card = {socket.AF_INET: "10.1.2.3", socket.AF_INET6: "fe80::A%eth0", psutil.AF_LINK: "aa:bb"}
    addresses = [SimpleNamespace(family=kind, address=each) for kind, each in card.items()]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": addresses})
    monkeypatch.setattr(socket, "gethostname", lambda: "Box")
    monkeypatch.setattr(socket, "getfqdn", lambda: "box.example")
    own = {"10.1.2.3", "[fe80::a]", "box", "box.example"}
    names = served_names(host, ["api.example"])
    assert names - LOOPBACK - {"0.0.0.0", "[::]"} == own | {"api.example"}
    who = "whoever reaches it as 10.1.2.3, [fe80::a], api.example, box, box.example"
    assert describe_access(host, names, None) == f"{who} may ask, without a token"
    assert own.isdisjoint(served_names("192.0.2.1", []))
    said = "programs on this machine may ask, with the token"
    assert describe_access("127.0.0.1", LOOPBACK, "secret") == said


def test_only_with_the_token_it_answers(port: int) -> None:
    for scheme in ("Bearer", "bearer"):  # RFC 9110: any case
        assert send(port, ASKED, Authorization=f"{scheme} secret")[0] == 200
    for given in (None, "", "secret", "Bearer", "Bearer secre", "basic secret"):
        headers = {} if given is None else {"Authorization": given}
        for path in ("/answer", "/answers", "/nowhere"):
            status, _, said = send(port, ASKED, path, **headers)
            assert status == 401 and "Authorization: Bearer TOKEN" in said["error"], given
    assert get(port, "/metrics")[0] == get(port, "/metrics", Host="probe.example")[0] == 401
    metered = get(port, "/metrics", Host="probe.example", Authorization="Bearer secret")
    assert metered[0] == 200
    assert get(port, "/")[0] == get(port, "/health")[0] == 200


def test_the_token_may_be_in_a_file_or_the_environment(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("ALBERT_TOKEN", raising=False)
    assert read_token(None, None) is None
    monkeypatch.setenv("ALBERT_TOKEN", "of the environment")
    (tmp_path / "token").write_text("of the file\n")
    (tmp_path / "empty").write_text("\n")
    assert read_token(None, None) == "of the environment"
    assert read_token("given", None) == "given"
    assert read_token(None, tmp_path / "token") == "of the file"
    for file, fault in (("empty", "--token: empty"), ("none", "--token-file .*none: cannot read")):
        with pytest.raises(UserError, match=fault):
            read_token(None, tmp_path / file)


def test_what_is_counted(model: Trained) -> None:
    with serving_here(model) as port:
        assert json.loads(get(port, "/health")[2]) == {
            **{"status": "ok", "model": "albert", "name": "albert-tiny"},
            **{"max_question": 10_000, "max_context": web.CONTEXT},
        }
        for asked in (*[ASKED] * 3, {"question": "a"}):
            send(port, asked)
        get(port, "/etc/passwd")
        for name, count in {
            'requests_total{path="/answer",status="200"}': 3,
            'requests_total{path="/answer",status="422"}': 1,
            'requests_total{path="other",status="404"}': 1,
            'request_seconds_count{path="/answer"}': 4,
            "row_tokens_count": 3,
            "waiting": 0,
        }.items():
            assert meter(port, name) == count, name
        assert get(port, "/metrics")[1]["content-type"].startswith("text/plain")


CLIENTS, ROUNDS = 100, 8  # each of the file's questions is asked so many times


@pytest.mark.soak
def test_a_crowd_is_served(local_run: LocalRun, python: str, tmp_path: Path) -> None:
    """A hundred clients ask, beside some that send 10 MB or do not wait; memory does not grow."""
    command = [python, "predict.py", "--model", local_run.path, "--data", local_run.questions]
    subprocess.run([*command, "--output-dir", tmp_path / "out"], cwd=ROOT, check=True)
    wanted = json.loads((tmp_path / "out" / "predictions.json").read_text())
    process, port = start(
        [python, "predict.py", "--model", local_run.path, "--serve", "--port", "0"]
    )
    served = psutil.Process(listening(port))
    examples = list(read_questions(local_run.questions))
    over, memory = Event(), []

    def ask_until_there_is_room(example: Example) -> tuple[str, int, Any]:
        asked = {"question": example.question, "context": example.context}
        while (answered := send(port, asked))[0] == 503:
            time.sleep(0.2)
        return example.id, answered[0], answered[2]

    def send_much() -> str:
        return f"10 MB: {send(port, b' ' * 10 * 2**20)[0]}"

    def leave() -> str:
        with connected(port) as connection:
            connection.request("POST", "/answer", b'{"question": "Who?", "context": "A."}')
        return "left"

    def again(nuisance: Callable[[], str]) -> Counter[str]:
        return Counter(iter(lambda: over.is_set() or nuisance(), True))

    try:
        with ThreadPoolExecutor(CLIENTS) as clients, ThreadPoolExecutor(8) as others:
            beside = [others.submit(again, one) for one in (send_much, leave, leave)]
            for _ in range(ROUNDS):
                replies = list(clients.map(ask_until_there_is_room, examples))
                assert [reply for reply in replies if reply[1] != 200] == []
                answers = {name: said["answer"] for name, _, said in replies}
                assert answers == {name: answer.strip() for name, answer in wanted.items()}
                memory.append(served.memory_info().rss)
            over.set()
            seen = sum((one.result() for one in beside), Counter())
        count = meter(port, 'requests_total{path="/answer",status="200"}')
    finally:
        process.kill()
    assert set(seen) <= {"10 MB: 413", "left"} and seen["10 MB: 413"] and seen["left"]
    own = ROUNDS * len(examples)
    assert own <= count <= own + seen["left"]
    assert memory[-1] <= 1.05 * max(memory[:2]), memory
