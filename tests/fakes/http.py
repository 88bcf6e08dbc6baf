"""Servers on loopback, and what the fakes of a Determined master share: trial, experiment."""

import contextlib
import http.server
import inspect
import json
import threading
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple


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

    def __init__(self):
        self.closing = threading.Event()  # for a `respond` that leaves a request unanswered
        self.listen()
        self.url = f"http://127.0.0.1:{self._port}"

    def listen(self):
        """Serve, after `leave` at the same port."""
        address = ("127.0.0.1", self._port)
        self._server = http.server.ThreadingHTTPServer(address, _handler(self))
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def leave(self):
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    def hinder(self, fault):
        """For `respond`: "cut" ends the connection, "unanswered" keeps it without a word until the
        server closes; any other fault, a status, is the caller's."""
        if fault == "unanswered":
            self.closing.wait()
        if fault in ("cut", "unanswered"):
            raise Cut

    def drip(self, chunk):
        """Return a content that has no end before the server's."""
        while not self.closing.wait(0.01):
            yield chunk

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.closing.set()
        self.leave()

    def respond(self, request):
        """Return bytes or something for JSON; None where nothing is there. If the status is not
        200, a tuple: it, the content, and headers if there are any."""
        raise NotImplementedError

    def answered(self, request, connection):
        """Called when an answer is sent; `connection` reads what the client sends next."""


class AnswerServer(FakeServer):
    """Answers as `answer` does, and keeps the requests in `asked`."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []
        super().__init__()

    def respond(self, request):
        self.asked.append(request)
        return self.answer(request)


def _handler(server):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = server.protocol

        def do_GET(self):
            url = urllib.parse.urlsplit(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if self.headers["Transfer-Encoding"] == "chunked":
                body = b"".join(self.chunks())
            query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
            request = Request(self.command, url.path, query, body, self.headers)
            try:
                response = server.respond(request)
            except Cut:
                self.close_connection = True
                return
            self.answer(MISSING if response is None else response)
            server.answered(request, self.rfile)

        def chunks(self):
            """Yield the chunks of a body, each after its size; the last one is empty."""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass  # trailers

        def answer(self, response):
            """Send what `respond` returned."""
            status, content, *headers = response if isinstance(response, tuple) else (200, response)
            endless = inspect.isgenerator(content)
            data = b"" if endless else content
            if not isinstance(data, bytes):
                data = json.dumps(content).encode()
            with contextlib.suppress(ConnectionError):  # a client that ended leaves its long poll
                self.send_response(status)
                length = {} if endless else {"Content-Length": str(len(data))}
                for name, value in {**length, **dict(*headers)}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.writelines(content if endless else [data])

        do_HEAD = do_POST = do_PUT = do_PATCH = do_GET

        def log_message(self, *_):
            pass

    return Handler


def trial_json(number, experiment, **changes):
    """Return a trial with all that 0.38.1 tells of it: a new one, with `changes`."""
    trial = {
        "id": number,
        "experimentId": experiment,
        "taskId": "1.task",
        "taskIds": ["1.task"],
        "hparams": {},
        "startTime": NOW,
        "endTime": None,
        "wallClockTime": 1.0,
        "runnerState": "",
        "restarts": 0,
        "totalBatchesProcessed": 0,
        "bestValidation": None,
        "latestValidation": None,
        "searcherMetricValue": 0,
        "summaryMetrics": {},
        "bestCheckpoint": None,
        "checkpointCount": 0,
        "totalCheckpointSize": "0",
        "warmStartCheckpointUuid": "",
    }
    return {**trial, **changes}


def validation_json(scores, steps, time=NOW):
    metrics = {"avgMetrics": scores, "batchMetrics": []}
    return {"endTime": time, "totalBatches": steps, "numInputs": 0, "metrics": metrics}


def blank(kind, **values):
    """Return what the client must find in one of its types: these values, and nothing in the other
    keys."""
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    result = {}
    for parameter in parameters:
        if parameter.default is parameter.empty:
            type_ = parameter.annotation
            result[parameter.name] = type_() if type_ in (str, int, float, bool) else None
    return {**result, **values}


# Keys below which a fake may say something else than the real master.
FREE = {
    "config",
    "hparams",
    "summaryMetrics",
    "resources",
    "metadata",
    "metrics",
    "avgMetrics",
    "training",
}


def assert_recorded(fake, real, where):
    """Assert that the fake's answer has no key that the real master's has not, and no value of
    another type."""
    if isinstance(fake, dict) and isinstance(real, dict):
        assert fake.keys() <= real.keys(), (where, fake.keys() - real.keys())
        for key in fake.keys() - FREE:
            assert_recorded(fake[key], real[key], f"{where}.{key}")
    elif isinstance(fake, list) and isinstance(real, list):
        if fake and real:
            assert_recorded(fake[0], real[0], f"{where}[0]")
    elif fake is not None and real is not None:
        are_numbers = isinstance(fake, (int, float)) and isinstance(real, (int, float))
        assert are_numbers or isinstance(fake, type(real)), (where, fake, real)
