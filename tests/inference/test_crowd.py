"""The server in a crowd: each question gets its own answer once, and memory does not grow."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from detalbert.squad.question_stream import read_questions
from detalbert.squad.windows import Example
from tests.conftest import ROOT, LocalRun
from tests.inference.test_server import connected, get, send, start

CLIENTS, ROUNDS = 100, 8  # each of the file's questions is asked so many times


def ask_until_there_is_room(port: int, example: Example) -> tuple[str, int, Any]:
    while True:
        status, _, said = send(port, {"question": example.question, "context": example.context})
        if status != 503:
            return example.id, status, said
        time.sleep(0.2)


def send_much(port: int) -> str:
    status, _, _ = send(port, b" " * 10 * 2**20)
    return f"10 MB: {status}"


def leave(port: int) -> str:
    with connected(port) as connection:
        connection.request("POST", "/answer", json.dumps({"question": "Who?", "context": "A."}))
    return "left"


@pytest.mark.soak
def test_a_crowd_is_served(local_run: LocalRun, python: str, tmp_path: Path) -> None:
    """A hundred clients ask, beside some that send 10 MB or do not wait."""
    command = [python, "predict.py", "--model", local_run.path, "--data", local_run.questions]
    subprocess.run([*command, "--output-dir", tmp_path / "out"], cwd=ROOT, check=True)
    wanted = json.loads((tmp_path / "out" / "predictions.json").read_text())
    process, port = start(python, "--model", local_run.path)
    examples = list(read_questions(local_run.questions))
    over, memory = Event(), []

    def again(nuisance: Callable[[int], str]) -> Counter[str]:
        seen: Counter[str] = Counter()
        while not over.is_set():
            seen[nuisance(port)] += 1
        return seen

    try:
        with ThreadPoolExecutor(CLIENTS) as clients, ThreadPoolExecutor(8) as others:
            beside = [others.submit(again, one) for one in (send_much, leave, leave)]
            for _ in range(ROUNDS):
                asked = [clients.submit(ask_until_there_is_room, port, e) for e in examples]
                replies = [one.result() for one in asked]
                assert [reply for reply in replies if reply[1] != 200] == []
                answers = {name: said["answer"] for name, _, said in replies}
                assert answers == {name: answer.strip() for name, answer in wanted.items()}
                server = psutil.Process(process.pid)
                family = [server, *server.children(recursive=True)]
                memory.append(sum(each.memory_info().rss for each in family))
            over.set()
            seen = sum((one.result() for one in beside), Counter())
        counted = 'requests_total{path="/answer",status="200"} '
        (line,) = (x for x in get(port, "/metrics")[2].decode().splitlines() if counted in x)
    finally:
        process.kill()
    assert set(seen) <= {"10 MB: 413", "left"} and seen["10 MB: 413"] and seen["left"]
    own = ROUNDS * len(examples)
    assert own <= float(line.split()[1]) <= own + seen["left"]
    assert memory[-1] <= 1.05 * max(memory[:2]), memory
