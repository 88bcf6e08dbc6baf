"""Speedup from batching questions in the server: 32 clients, and one, over loopback.

python -m benchmarks serve --before FOLDER    # minutes on two cores

The embedded model with a random span head behind `predict.py --serve`, of this checkout and of
FOLDER, one of an earlier commit: e206833 is the last that answers one question at a time.
"""

import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.environment import commit_of
from benchmarks.measure import ROOT, Result, compare, interleave, spread_of
from benchmarks.predict import write_model, write_questions
from detalbert.errors import Different, UserError
from detalbert.squad.questions import read_questions

QUESTIONS = 960  # of a turn
CLIENTS = 32
ALONE = 200  # questions of the one client
HEADERS = {"Host": "localhost", "Content-Type": "application/json"}


class TimedAnswer(NamedTuple):
    """An answer, and how long it took."""

    answer: str
    seconds: float


@contextlib.contextmanager
def serving(model: Path, checkout: Path) -> Iterator[int]:
    """Yield the port of a server started from `checkout`."""
    server = subprocess.Popen(
        [sys.executable, "predict.py", "--model", str(model), "--serve", "--port", "0"],
        cwd=checkout,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with server:
        try:
            line = next(iter(server.stdout or ()), "")
            address = re.match(r"serving on http://127\.0\.0\.1:(\d+)", line)
            if address is None:
                raise UserError("its predict.py --serve ended at once", key=f"--before {checkout}")
            yield int(address[1])
        finally:
            server.kill()


def ask_all(port: int, bodies: list[bytes], clients: int) -> list[TimedAnswer]:
    """Return the replies to all requests, in order; client i sends each `clients`-th, one after
    another over one connection.
    """
    replies: dict[int, TimedAnswer] = {}

    def ask(client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for number in range(client, len(bodies), clients):
            start = time.perf_counter()
            connection.request("POST", "/answer", bodies[number], HEADERS)
            answer = json.load(connection.getresponse())["answer"]
            replies[number] = TimedAnswer(answer=answer, seconds=time.perf_counter() - start)
        connection.close()

    # Each client is a thread; they wait for the server nearly all the time.
    with ThreadPoolExecutor(clients) as threads:
        for _ in threads.map(ask, range(clients)):  # raises what a thread raised
            pass
    return [replies[number] for number in range(len(bodies))]


def serve(options: Namespace) -> Result:
    """Measure the questions per second of CLIENTS and the median seconds of a single client."""
    if options.before is None:
        raise UserError("give --before a checkout of an earlier commit", key="serve")
    checkouts = {"ours": ROOT, "peer": options.before}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_model(folder / "model")
        bodies = write_bodies(folder)
        # Both servers run all the time, and wait in turn.
        ports = {}
        for side, checkout in checkouts.items():
            ports[side] = stack.enter_context(serving(model, checkout))
        check_answers(ports, bodies)

        # Many clients at a time, then one.
        many = {}
        for side, port in ports.items():
            many[side] = partial(ask_all, port, bodies, clients=CLIENTS)
        seconds = interleave(many, repeats=options.repeats)
        alone: dict[str, list[float]] = {side: [] for side in ports}
        for _ in range(4 * options.repeats):
            for side, port in ports.items():
                replies = ask_all(port, bodies[:ALONE], clients=1)
                alone[side].append(float(np.median([reply.seconds for reply in replies])))
    return {
        **compare(seconds, unit="questions", amount=len(bodies)),
        "median_seconds_of_one_client": {side: spread_of(alone[side]) for side in alone},
        "settings": {
            "peer": f"commit {commit_of(options.before)}",
            "clients": CLIENTS,
            "questions": len(bodies),
            "alone": min(ALONE, len(bodies)),
        },
    }


def write_bodies(folder: Path) -> list[bytes]:
    """Return the bodies of QUESTIONS requests."""
    examples = read_questions(write_questions(folder / "some.json", QUESTIONS))
    # A paragraph may have more questions than are missing.
    bodies = []
    for example in islice(examples, QUESTIONS):
        body = json.dumps({"question": example.question, "context": example.context})
        bodies.append(body.encode())
    return bodies


def check_answers(ports: dict[str, int], bodies: list[bytes]) -> None:
    """Raise Different unless both servers give the same answers."""
    answers = {}
    for side, port in ports.items():
        replies = ask_all(port, bodies, clients=CLIENTS)
        answers[side] = [reply.answer for reply in replies]
    if answers["ours"] != answers["peer"]:
        raise Different("questions answered together have other answers than alone", key="serve")
