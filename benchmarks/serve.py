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
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT, compare, interleave, spread_of
from benchmarks.predict import write_model, write_questions
from detalbert.environment import commit_of
from detalbert.errors import Different, UserError
from detalbert.squad.sources import read_questions

QUESTIONS, CLIENTS = 960, 32  # of a turn
ALONE = 200  # questions of the one client
HEADERS = {"Host": "localhost", "Content-Type": "application/json"}


@contextlib.contextmanager
def serving(model: Path, checkout: Path) -> Iterator[int]:
    """Yield the port of a server started from `checkout`."""
    command = [sys.executable, "predict.py", "--model", str(model), "--serve", "--port", "0"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=checkout, **pipes) as process:
        try:
            line = next(iter(process.stdout or ()), "")
            said = re.match(r"serving on http://127\.0\.0\.1:(\d+)", line)
            if said is None:
                raise UserError(f"--before {checkout}: its predict.py --serve ended at once")
            yield int(said[1])
        finally:
            process.kill()


def ask_all(port: int, bodies: list[bytes], clients: int) -> tuple[list[str], list[float]]:
    """Return answers and seconds of all requests, in order; client i sends each `clients`-th, one
    after another over one connection.
    """

    def ask(first: int) -> list[tuple[str, float]]:
        connection, found = http.client.HTTPConnection("127.0.0.1", port), []
        for body in bodies[first::clients]:
            began = time.perf_counter()
            connection.request("POST", "/answer", body, HEADERS)
            answer = json.load(connection.getresponse())["answer"]
            found.append((answer, time.perf_counter() - began))
        connection.close()
        return found

    found: list[Any] = [None] * len(bodies)
    with ThreadPoolExecutor(clients) as threads:
        for first, replies in enumerate(threads.map(ask, range(clients))):
            found[first::clients] = replies
    return [answer for answer, _ in found], [seconds for _, seconds in found]


def serve(options: Namespace) -> dict[str, Any]:
    """Measure the questions per second of CLIENTS and the median seconds of a single client."""
    if options.before is None:
        raise UserError("serve: give --before a checkout of an earlier commit")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_model(folder / "model")
        examples = list(read_questions(write_questions(folder / "some.json", QUESTIONS)))
        asked = ({"question": e.question, "context": e.context} for e in examples[:QUESTIONS])
        bodies = [json.dumps(each).encode() for each in asked]
        checkouts = {"ours": ROOT, "peer": options.before}
        ports = {side: stack.enter_context(serving(model, x)) for side, x in checkouts.items()}
        given = {side: ask_all(port, bodies, CLIENTS)[0] for side, port in ports.items()}
        if given["ours"] != given["peer"]:
            raise Different("serve: questions answered together have other answers than alone")
        many = {side: partial(ask_all, port, bodies, CLIENTS) for side, port in ports.items()}
        seconds = interleave(many, options.repeats)
        alone: dict[str, list[float]] = {side: [] for side in ports}
        for _ in range(4 * options.repeats):
            for side, port in ports.items():
                alone[side].append(float(np.median(ask_all(port, bodies[:ALONE], 1)[1])))
    one = {"median_seconds_of_one_client": {side: spread_of(x) for side, x in alone.items()}}
    settings = {"peer": f"commit {commit_of(options.before)}", "clients": CLIENTS}
    settings |= {"questions": len(bodies), "alone": min(ALONE, len(bodies))}
    return {**compare(seconds, "questions", len(bodies)), **one, "settings": settings}
