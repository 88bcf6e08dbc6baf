"""The server that completes text: many at once, places that come free, limits, the page."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from detalbert.corpus.learn_tokenizer import train_byte_bpe
from detalbert.inference.guard import LOCAL, Access
from lm.inference import server
from lm.inference.complete import Sampling, complete
from tests.fakes.browser import chromium
from tests.fakes.runs import wait_for
from tests.fakes.serving import serving as serve
from tests.lm.ranks import tiny

Model = tuple[Any, Any]


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(1)
    keys = {"vocab_size": 300, "max_position_embeddings": 4096}
    llama = AutoModelForCausalLM.from_config(tiny("llama", **keys)).eval()
    return llama, train_byte_bpe(["the ship sank", "the crew swam to the shore"] * 5, 300)


def serving(
    model: Model, access: Access = LOCAL, **limits: float
) -> contextlib.AbstractContextManager[int]:
    return serve(server.make_app(*model, server.Limits(**limits), access))


@pytest.fixture(scope="module")
def port(model: Model) -> Iterator[int]:
    with serving(model) as port:
        yield port


@contextlib.contextmanager
def asking(port: int, **asked: Any) -> Iterator[Any]:
    """The response to a request, its lines not read yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body, kind = json.dumps(asked), {"Content-Type": "application/json"}
    connection.request("POST", "/completions", body, kind)
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def send(port: int, **asked: Any) -> tuple[int, str, str]:
    """Status; text and why it ended, or the error and the header Retry-After."""
    with asking(port, **asked) as response:
        if response.status != 200:
            again = response.headers.get("retry-after", "")
            return response.status, json.loads(response.read())["error"], again
        lines = [json.loads(line) for line in response]
    assert all("ended" not in line for line in lines[:-1])
    return 200, "".join(line["text"] for line in lines), lines[-1]["ended"]


def slowly(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    def slow(*arguments: Any) -> Iterator[Any]:
        for step in complete(*arguments):
            time.sleep(seconds)
            yield step

    monkeypatch.setattr(server, "complete", slow)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[server.Worker]:
    """The workers that got a request."""
    workers: list[server.Worker] = []
    submit = server.Worker.submit

    def submit_and_tell(worker: server.Worker, job: server.Job) -> None:
        submit(worker, job)
        workers.append(worker)

    monkeypatch.setattr(server.Worker, "submit", submit_and_tell)
    return workers


def test_fifty_at_once_each_as_if_alone(port: int, model: Model) -> None:
    asked = [{"prompt": f"the ship {n % 7}", "seed": n, "max_new_tokens": 12} for n in range(50)]
    barrier = threading.Barrier(50)

    def one(request: dict[str, Any]) -> tuple[int, str, str]:
        barrier.wait(60)
        return send(port, **request)

    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(one, asked))
    for request, (status, text, ended) in zip(asked, replies, strict=True):
        steps = list(complete(*model, request["prompt"], Sampling(12, seed=request["seed"])))
        assert (status, text) == (200, "".join(step.text for step in steps))
        assert ended == steps[-1].ended
    assert len({text for _, text, _ in replies}) > 45


def test_a_client_that_goes_away_frees_its_place(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has the only place, and one that waits for it."""
    slowly(monkeypatch, 0.05)  # the first would take 100 s
    workers = watched(monkeypatch)
    with serving(model, places=1, waiting=1) as port:
        with asking(port, prompt="a", max_new_tokens=2000) as first:
            assert first.readline()
            late = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            late.request("POST", "/completions", '{"prompt": "b"}',
                         {"Content-Type": "application/json"})  # fmt: skip
            wait_for(lambda: len(workers[0].jobs) == 2)
            status, said, again = send(port, prompt="c")
            assert status == 503 and "too many requests" in said and again == "1"
            late.close()  # while it waits for a place
            wait_for(lambda: len(workers[0].jobs) == 1, 20)
        wait_for(lambda: not workers[0].jobs, 20)
        assert send(port, prompt="d", max_new_tokens=5)[2] == "max_new_tokens"


def test_a_server_that_ends_ends_its_texts(model: Model, monkeypatch: Any) -> None:
    slowly(monkeypatch, 0.05)
    workers = watched(monkeypatch)
    with serving(model, places=1) as port, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(send, port, prompt="a", max_new_tokens=2000) for _ in range(2)]
        wait_for(lambda: len(workers) == 2)
        workers[0].end()
        assert [future.result(20)[2] for future in asked] == ["the server stopped"] * 2


def test_limits(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, 0.05)
    with serving(model, seconds=1.0, tokens=100, prompt=50, body=999) as port:
        status, text, ended = send(port, prompt="a", max_new_tokens=100)  # 5 s of them
        assert (status, ended) == (200, "time") and text
        assert send(port, prompt="x" * 51)[:2] == (
            422, "request: 51 characters of prompt, 50 at most; give less"
        )  # fmt: skip
        assert send(port, prompt="x", max_new_tokens=101)[0] == 422
        assert send(port, prompt="x" * 999)[0] == 413


def test_no_place_in_time(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "complete", lambda *_: iter(lambda: time.sleep(3), 1))
    with serving(model, places=1, seconds=0.5) as port:
        assert send(port, prompt="a")[:2] == (504, "no place within 0.5 s; ask again later")


@pytest.mark.parametrize(
    "asked, said",
    [
        ({}, "body.prompt: Field required"),
        ({"prompt": 1}, "body.prompt"),
        ({"prompt": "a", "top_p": 2}, "request.top_p: 2.0 must be greater than 0 and at most 1"),
        ({"prompt": "\udce9"}, "the prompt is not UTF-8 text"),
        ({"prompt": "a b " * 5000}, "and the model 4,096 positions; cut it"),
    ],
)
def test_bad_requests_get_one_line(port: int, asked: dict[str, Any], said: str) -> None:
    status, error, _ = send(port, **asked)
    assert status == 422 and said in error and "\n" not in error
    assert send(port, prompt="", max_new_tokens=2)[0] == 200


def test_whom_it_answers_and_what_it_counts(model: Model) -> None:
    with serving(model, Access(token="secret")) as port:

        def get(path: str, **headers: str) -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            with contextlib.closing(connection):
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                return response.status, response.read().decode()

        assert send(port, prompt="a", max_new_tokens=2)[0] == 401
        assert get("/health") == (200, '{"status":"ok","model":"llama"}')
        assert get("/health", Host="evil.example")[0] == 421
        status, text = get("/metrics", Authorization="Bearer secret")
        assert status == 200 and 'requests_total{path="/completions",status="401"} 1.0' in text


def test_a_failure_of_the_model_ends_one_request(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_later(*arguments: Any) -> Iterator[Any]:
        yield from list(complete(*arguments))[:2]
        raise RuntimeError("oh")

    with monkeypatch.context() as patch:
        patch.setattr(server, "complete", fail_later)
        assert "the model failed" in send(port, prompt="a")[2]
        patch.setattr(server, "complete", lambda *_: iter(lambda: 1 / 0, 1))
        assert send(port, prompt="a")[:2] == (
            500, "the model failed on this request; the server's log says how"
        )  # fmt: skip
    assert send(port, prompt="a", max_new_tokens=2)[0] == 200


def test_the_page_shows_text_as_it_comes_and_stops(
    model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with serving(model) as port, chromium(tmp_path, "900,1000") as browser:
        browser.get(f"http://127.0.0.1:{port}/")

        def find(name: str) -> Any:
            return browser.find_element("css selector", f"#{name}")

        find("prompt").send_keys("the ship")
        find("go").click()
        wait_for(lambda: find("ended").text == "Ended: max new tokens")
        expected = "".join(step.text for step in complete(*model, "the ship", Sampling()))
        assert find("given").get_property("textContent") == "the ship"
        assert find("made").get_property("textContent") == expected
        slowly(monkeypatch, 0.05)
        find("go").click()
        wait_for(lambda: find("made").text)
        assert find("ended").text == "" and not find("go").is_enabled()
        find("stop").click()
        wait_for(lambda: find("ended").text == "Ended: stopped")
        assert (
            expected.startswith(find("made").get_property("textContent"))
            and find("go").is_enabled()
        )
        find("top_p").clear()
        find("top_p").send_keys("0")
        find("go").click()
        wait_for(lambda: "top_p" in find("error").text)
        assert not [e for e in browser.get_log("browser") if "completions" not in e["message"]]
