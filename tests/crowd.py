"""A soak of the server: 200 clients ask 20,000 questions, beside others that misbehave.

    python -m tests.crowd                              # minutes; exit status 1: a fault
    python -m tests.crowd --questions 2000 --clients 50

`predict.py --serve` with the embedded model (its span head random), and `predict.py --data` over
the same questions. Beside the clients some send 10 MB, some a byte a second, some leave before
their answer. Every question has to get one reply, its own, with the answer of the file; the
server's own count of answers has to be that of the clients, and its memory must not grow.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks.predict import write_model, write_questions
from detalbert.squad.question_stream import read_questions
from detalbert.squad.windows import Example
from tests.conftest import ROOT

HEAD = "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LARGE = 10 * 2**20  # bytes


def body_of(example: Example) -> bytes:
    return json.dumps({"question": example.question, "context": example.context}).encode()


class Crowd:
    """The clients of one server, and what they saw."""

    def __init__(self, port: int, server: psutil.Process) -> None:
        self.port, self.server = port, server
        self.statuses: Counter[str] = Counter()
        self.answers: dict[str, list[str]] = {}
        self.memory: dict[int, float] = {}  # MiB, by questions answered
        self.left = 0  # clients that did not wait

    @contextlib.asynccontextmanager
    async def connected(self) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def reply(self, reader: asyncio.StreamReader, kind: str) -> tuple[int, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head.split()[1])
        self.statuses[f"{kind} {status}"] += 1
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        return status, await reader.readexactly(length)

    async def ask(self, examples: list[Example]) -> None:
        """A client that behaves: one connection, asks again where the server is full."""
        async with self.connected() as (reader, writer):
            for example in examples:
                body = body_of(example)
                request = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body
                status = 503
                while status == 503:
                    writer.write(request)
                    status, data = await self.reply(reader, "question")
                    await asyncio.sleep(0.2 if status == 503 else 0)
                said = json.loads(data)
                same = status == 200 and said["question"] == example.question
                answer = said["answer"] if same else f"status {status}: {data[:200]!r}"
                self.answers.setdefault(example.id, []).append(answer)
                if len(self.answers) % 1000 == 0:
                    self.look()

    def look(self) -> None:
        processes = [self.server, *self.server.children()]
        self.memory[len(self.answers)] = sum(p.memory_info().rss for p in processes) / 2**20
        print(
            f"{len(self.answers):,} answered, {self.memory[len(self.answers)]:.0f} MiB", flush=True
        )

    async def send_much(self) -> None:
        while True:
            async with self.connected() as (reader, writer):
                writer.write(f"{HEAD}Content-Length: {LARGE}\r\n\r\n".encode() + b" " * LARGE)
                await self.reply(reader, "10 MB")
            await asyncio.sleep(0.5)

    async def send_slowly(self) -> None:
        while True:
            async with self.connected() as (reader, writer):
                writer.write(f"{HEAD}Content-Length: 100000\r\n\r\n".encode())
                answered = asyncio.ensure_future(self.reply(reader, "slow"))
                while not answered.done():
                    writer.write(b"{")
                    await asyncio.wait([answered], timeout=1)
                answered.result()

    async def leave(self, example: Example) -> None:
        body = body_of(example)
        while True:
            async with self.connected() as (_, writer):
                writer.write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
                await asyncio.sleep(0.01)
                self.left += 1
            await asyncio.sleep(0.2)

    async def visit(self, examples: list[Example], clients: int) -> None:
        nuisances = [self.send_much(), *(self.send_slowly() for _ in range(8))]
        nuisances += [self.leave(examples[n]) for n in range(4)]
        beside = [asyncio.ensure_future(each) for each in nuisances]
        asked = asyncio.gather(*(self.ask(examples[n::clients]) for n in range(clients)))
        done, _ = await asyncio.wait([asked, *beside], return_when=asyncio.FIRST_COMPLETED)
        for task in [*done, asked]:
            await task  # a nuisance that ended met what it must not
        for task in beside:
            task.cancel()


def fault_lines(crowd: Crowd, wanted: dict[str, str], answered: float) -> list[str]:
    """What went wrong. Args: wanted: the file's predictions; answered: by the server's count."""
    faults = []
    if lost := wanted.keys() - crowd.answers.keys():
        faults.append(f"{len(lost)} questions have no reply")
    if twice := [name for name, given in crowd.answers.items() if len(given) > 1]:
        faults.append(f"{len(twice)} questions have more than one reply")
    found = crowd.answers.items()
    other = {name: given for name, given in found if given[0] != wanted[name].strip()}
    for name, given in list(other.items())[:5]:
        faults.append(f"{len(other)} differ: {name}: {given[0]!r}, not {wanted[name]!r}")
    own = crowd.statuses["question 200"]
    if not own <= answered <= own + crowd.left:
        faults.append(f"{own} answers arrived, the server counts {answered:.0f}")
    looks = list(crowd.memory.values())
    early, late = max(looks[: max(1, len(looks) // 4)]), looks[-1]
    if late > 1.05 * early:
        faults.append(f"memory grows: {early:.0f} MiB in the first quarter, {late:.0f} at the end")
    unexpected = {"question 200", "question 503", "10 MB 413", "slow 408"} ^ crowd.statuses.keys()
    if unexpected - {"slow 408", "question 503"}:
        faults.append(f"replies: {sorted(unexpected)}")
    return faults


def serve(model: Path) -> tuple[subprocess.Popen, int]:
    command = [sys.executable, "predict.py", "--model", str(model), "--serve", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline().split("127.0.0.1:")[1].split()[0])


def count_of(port: int) -> float:
    """Questions that the server says it answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    wanted = 'requests_total{path="/answer",status="200"} '
    return next(float(line.split()[1]) for line in lines if line.startswith(wanted))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "model")
        file = write_questions(folder / "questions.json", arguments.questions)
        command = [sys.executable, "predict.py", "--model", str(model), "--data", str(file)]
        subprocess.run([*command, "--output-dir", str(folder / "out")], cwd=ROOT, check=True)
        wanted = json.loads((folder / "out" / "predictions.json").read_text())
        process, port = serve(model)
        try:
            crowd = Crowd(port, psutil.Process(process.pid))
            began = time.monotonic()
            asyncio.run(crowd.visit(list(read_questions(file)), arguments.clients))
            seconds = time.monotonic() - began
            faults = fault_lines(crowd, wanted, count_of(port))
        finally:
            process.kill()
    asked = f"{len(crowd.answers):,} questions, {arguments.clients} clients, {seconds:.0f} s"
    print(asked, f"{crowd.left} left", dict(crowd.statuses), sep="; ")
    print("\n".join(faults) or "nothing is lost, nothing is answered twice, memory is flat")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
