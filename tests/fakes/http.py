"""Servers on loopback, and what the fakes of a Determined master share: trial, experiment."""

import contextlib
import http.server
import inspect
import json
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    body: bytes
    headers: Mapping[str, str]


NOW = "2026-01-01T00:00:00Z"
MISSING = 404, {"error": {"code": 5, "error": "not found", "message": "not found"}}


class Cut(Exception):
    """Raised by `respond`: the connection ends without an answer."""


class FakeServer(contextlib.AbstractContextManager):
    """Serves at `url` from the start to the end of its `with` block."""

    protocol = "HTTP/1.0"
    _port = 0

    def __init__(self) -> None:
        self.closing = threading.Event()  # for a `respond` that leaves a request unanswered
        self.listen()
        self.url = f"http://127.0.0.1:{self._port}"

    def listen(self) -> None:
        """Serve, after `leave` at the same port."""
        address = ("127.0.0.1", self._port)
        self._server = http.server.ThreadingHTTPServer(address, _handler(self))
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def leave(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    def hinder(self, fault: int | str) -> None:
        """For `respond`: "cut" ends the connection, "unanswered" keeps it without a word until the
        server closes; any other fault, a status, is the caller's."""
        if fault == "unanswered":
            self.closing.wait()
        if fault in ("cut", "unanswered"):
            raise Cut

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.closing.set()
        self.leave()

    def respond(self, request: Request) -> Any:
        """Bytes or something for JSON; None where nothing is there. If the status is not 200, a
        tuple: it, the content, and headers if there are any."""
        raise NotImplementedError


class AnswerServer(FakeServer):
    """Answers as `answer` does, and keeps the requests in `asked`."""

    def __init__(self, answer: Callable[[Request], Any]) -> None:
        self.answer = answer
        self.asked: list[Request] = []
        super().__init__()

    def respond(self, request: Request) -> Any:
        self.asked.append(request)
        return self.answer(request)


def _handler(server: FakeServer) -> type:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = server.protocol

        def do_GET(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
            request = Request(self.command, url.path, query, body, self.headers)
            try:
                found = server.respond(request)
            except Cut:
                self.close_connection = True
                return
            found = MISSING if found is None else found
            status, answer, *headers = found if isinstance(found, tuple) else (200, found)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            with contextlib.suppress(ConnectionError):  # a client that ended leaves its long poll
                self.send_response(status)
                for header in {"Content-Length": str(len(data)), **dict(*headers)}.items():
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else data)

        do_HEAD = do_POST = do_PUT = do_PATCH = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def trial_json(number: int, experiment: int, **more: Any) -> dict[str, Any]:
    """A trial with all that 0.38.1 tells of it; what `more` does not say is as of a new one."""
    none = ("endTime", "bestValidation", "latestValidation", "bestCheckpoint")
    facts = {**dict.fromkeys(none), "id": number, "experimentId": experiment, "startTime": NOW}
    facts |= dict.fromkeys(("restarts", "totalBatchesProcessed", "checkpointCount"), 0)
    facts |= {"hparams": {}, "summaryMetrics": {}, "runnerState": "", "wallClockTime": 1.0}
    facts |= {"taskId": "1.task", "taskIds": ["1.task"], "warmStartCheckpointUuid": ""}
    return {**facts, "totalCheckpointSize": "0", "searcherMetricValue": 0, **more}


def validation_json(scores: Any, steps: int, time: Any = NOW) -> dict[str, Any]:
    metrics = {"avgMetrics": scores, "batchMetrics": []}
    return {"endTime": time, "totalBatches": steps, "numInputs": 0, "metrics": metrics}


def blank(kind: Any, **facts: Any) -> dict[str, Any]:
    """What the client must find in one of its types: these facts, and nothing in the other keys."""
    asked = list(inspect.signature(kind.__init__).parameters.values())[1:]
    needed = {p.name: p.annotation for p in asked if p.default is p.empty}
    simple = {name: type() for name, type in needed.items() if type in (str, int, float, bool)}
    return {**dict.fromkeys(needed), **simple, **facts}


def assert_recorded(fake: Any, real: Any, where: str) -> None:
    """The fake's answer has no key that the real master's has not, and no value of another type."""
    free = "config hparams summaryMetrics resources metadata metrics avgMetrics training".split()
    if isinstance(fake, dict) and isinstance(real, dict):
        assert fake.keys() <= real.keys(), (where, fake.keys() - real.keys())
        for key in fake.keys() - set(free):
            assert_recorded(fake[key], real[key], f"{where}.{key}")
    elif isinstance(fake, list) and isinstance(real, list):
        if fake and real:
            assert_recorded(fake[0], real[0], f"{where}[0]")
    elif fake is not None and real is not None:
        number = isinstance(fake, (int, float)) and isinstance(real, (int, float))
        assert number or isinstance(fake, type(real)), (where, fake, real)
