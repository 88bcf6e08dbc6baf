"""Questions that wait are answered together; whom the server answers; what it counts."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from detalbert.errors import UserError
from detalbert.inference import engine
from detalbert.inference.answering import Stopped, answer_together
from detalbert.inference.guard import Access, host_name, read_token
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask
from tests.fakes.runs import wait_for
from tests.inference.test_server import ASKED, TEXT, connected, get, send, serving_here

OTHER = "The Belmira was loaded with salt. " * 3
PAIRS = [(f"What did ship {n} carry?", (TEXT, OTHER)[n % 2]) for n in range(24)]
QUESTIONS = [{"question": question, "context": context} for question, context in PAIRS]


def alike(reply: dict[str, Any], model: Trained) -> bool:
    """Whether a reply is that of the question by itself, but for rounding."""
    context = next(q["context"] for q in QUESTIONS if q["question"] == reply["question"])
    alone = ask(model, reply["question"], context, 0.0)
    close = pytest.approx(alone.pop("probability"), abs=1e-4)
    same = reply["probability"] == close
    names = ("question", "answer", "abstained", "start", "end")
    return same and all(reply[name] == alone[name] for name in names)


class Held:
    """`answer_together`, each call held until it is let go; notes how many questions a call had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = threading.Event()

    def __call__(self, trained: Trained, asked: Any, *more: Any) -> Any:
        self.sizes.append(len(asked))
        assert self.go.wait(60)
        if len(asked) > 1 and any(question == "bad" for question, _ in asked):
            raise RuntimeError("one of them")
        if asked[0][0] == "bad":
            raise RuntimeError("this one")
        return answer_together(trained, asked, *more)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    made = Held()
    monkeypatch.setattr(engine, "answer_together", made)
    return made


def waiting(port: int) -> float:
    text = get(port, "/metrics")[2].decode()
    line = next(line for line in text.splitlines() if line.startswith("waiting "))
    return float(line.split()[1])


def test_a_cpu_has_a_batch_for_each_thread(model: Trained, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine.torch, "get_num_threads", lambda: 3)
    assert engine.slots(model) == 3


def test_questions_that_wait_share_rows(model: Trained, held: Held) -> None:
    with serving_here(model) as port, ThreadPoolExecutor(30) as pool:
        first = pool.submit(send, port, QUESTIONS[0])
        wait_for(lambda: held.sizes == [1])  # it found the model idle: nothing is waited for
        others = [pool.submit(send, port, question) for question in QUESTIONS[1:]]
        wait_for(lambda: waiting(port) == 23)
        held.go.set()
        replies = [future.result() for future in (first, *others)]
    assert held.sizes == [1, 23]
    assert [status for status, _, _ in replies] == [200] * 24
    assert [r["question"] for _, _, r in replies] == [q["question"] for q in QUESTIONS]
    assert all(alike(reply, model) for _, _, reply in replies)


def test_a_batch_that_nobody_waits_for_ends_with_its_row(model: Trained) -> None:
    asked = engine.Asked(7, [("Who?", TEXT * 400)], True)  # some rows
    number, error, tokens = engine.answer_batch(model, 0.0, asked, lambda: True)
    assert number == 7 and isinstance(error, Stopped) and len(tokens) == 2
    _, found, tokens = engine.answer_batch(model, 0.0, asked, lambda: False)
    assert len(found) == 1 and len(tokens) > 2


def test_many_questions_are_spread_over_the_threads(
    model: Trained, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "slots", lambda trained: 3)
    with serving_here(model) as port, ThreadPoolExecutor(30) as pool:
        first = pool.submit(send, port, QUESTIONS[0])
        wait_for(lambda: held.sizes == [1])
        others = [pool.submit(send, port, question) for question in QUESTIONS[1:]]
        wait_for(lambda: waiting(port) == 23)  # all threads are at the first one
        held.go.set()
        replies = [future.result() for future in (first, *others)]
    assert sorted(held.sizes) == [1, 7, 8, 8]
    assert [r["question"] for _, _, r in replies] == [q["question"] for q in QUESTIONS]
    assert all(alike(reply, model) for _, _, reply in replies)


def test_no_more_than_a_row_is_taken_at_a_time(model: Trained, held: Held) -> None:
    held.go.set()
    long = {"question": "Who?", "context": "It sank. " * 1000}  # 9,000 of 3 * 4096 characters
    with serving_here(model) as port:
        held.go.clear()
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(send, port, long) for _ in range(4)]
            wait_for(lambda: len(held.sizes) == 1 and waiting(port) == 3)
            held.go.set()
            assert [future.result()[0] for future in asked] == [200] * 4
    assert held.sizes == [1, 1, 1, 1]


def test_a_question_that_fails_fails_alone(model: Trained, held: Held) -> None:
    with serving_here(model) as port, ThreadPoolExecutor(4) as pool:
        first = pool.submit(send, port, QUESTIONS[0])
        wait_for(lambda: held.sizes == [1])
        bad = pool.submit(send, port, {"question": "bad", "context": TEXT})
        good = pool.submit(send, port, QUESTIONS[1])
        wait_for(lambda: waiting(port) == 2)
        held.go.set()
        assert (first.result()[0], bad.result()[0], good.result()[0]) == (200, 500, 200)


def post(port: int, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    with connected(port) as connection:
        kind = {"Content-Type": "application/json", **headers}
        connection.request("POST", path, json.dumps(body), kind)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.fixture(scope="module")
def port(model: Trained) -> Iterator[int]:
    with serving_here(model, access=Access.of("::1", ["Ask.Example"], "secret")) as port:
        yield port


TOKEN = {"Authorization": "Bearer secret"}


def test_a_list_is_answered_in_order(port: int, model: Trained) -> None:
    status, replies = post(port, "/answers", QUESTIONS, **TOKEN)
    assert status == 200 and [r["question"] for r in replies] == [q["question"] for q in QUESTIONS]
    assert all(alike(reply, model) for reply in replies)
    status, said = post(port, "/answers", [ASKED, {"question": " ", "context": "b"}], **TOKEN)
    assert status == 422 and "the question is empty" in said["error"]
    assert post(port, "/answers", [], **TOKEN)[0] == 422
    status, said = post(port, "/answers", [ASKED] * 65, **TOKEN)  # more than may wait
    assert status == 503 and "too many questions" in said["error"]


SERVED = "localhost LOCALHOST:80 127.0.0.1:9 [::1]:8000 [::1] ask.example:1234 ask.example"
OTHERS = "evil.example ask.example.evil.example 127.0.0.1.evil.example localhost:80:80 0.0.0.0"


@pytest.mark.parametrize("host", [*SERVED.split(), *OTHERS.split(), ""])
def test_only_its_own_names_are_served(host: str, port: int) -> None:
    served = host in SERVED.split()
    for path in ("/", "/health"):
        with connected(port) as connection:
            connection.request("GET", path, headers={"Host": host})
            response = connection.getresponse()
            body = response.read()
        assert response.status == (200 if served else 421)
        assert served or b"not served under" in body


def test_a_host_is_known_without_its_port() -> None:
    hosts = {"a:80": "a", "A": "a", "[::1]:80": "[::1]", "[::1]": "[::1]", "a:b": "a:b", "": ""}
    assert {host: host_name(host) for host in hosts} == hosts


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])  # RFC 9110: any case
def test_with_the_token_it_answers(scheme: str, port: int) -> None:
    assert post(port, "/answer", ASKED, Authorization=f"{scheme} secret")[0] == 200


@pytest.mark.parametrize("given", [None, "", "secret", "Bearer", "Bearer secre", "basic secret"])
def test_without_the_token_nothing_is_answered(given: str | None, port: int) -> None:
    headers = {} if given is None else {"Authorization": given}
    for path in ("/answer", "/answers", "/nowhere"):
        status, said = post(port, path, ASKED, **headers)
        assert status == 401 and "Authorization: Bearer TOKEN" in said["error"]
    assert get(port, "/metrics")[0] == 401
    assert get(port, "/")[0] == get(port, "/health")[0] == 200


def test_the_token_may_be_in_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert json.loads(get(port, "/health")[2]) == {"status": "ok", "model": "albert"}
        for _ in range(3):
            assert send(port, ASKED)[0] == 200
        send(port, {"question": "a"})
        get(port, "/etc/passwd")
        status, headers, body = get(port, "/metrics")
        text = body.decode()
    assert status == 200 and headers["content-type"].startswith("text/plain")
    assert 'requests_total{path="/answer",status="200"} 3.0' in text
    assert 'requests_total{path="/answer",status="422"} 1.0' in text
    assert 'requests_total{path="other",status="404"} 1.0' in text
    assert 'request_seconds_count{path="/answer"} 4.0' in text
    assert "row_tokens_count 3.0" in text and "waiting 0.0" in text
