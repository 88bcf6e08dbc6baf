"""EC2's two-minute warning before it reclaims a spot machine, read from its metadata service.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-options.html

An interruption notice ends this start of the run. A rebalance recommendation may come earlier, or
without a later reclaim, and stays readable on its machine: it causes one checkpoint only.
"""

import contextlib
import http.client
import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

from detalbert.errors import first_line

NOTICE = "spot/instance-action"
RECOMMENDATION = "events/recommendations/rebalance"
PERIOD = 5.0  # seconds between two looks, as EC2 recommends, and between two calls to the master
TRIES = 3  # looks before a service that never answered counts as absent
SLOW_PERIOD = 30.0  # seconds between two looks then: it may be late, and a notice lasts 120 s
REMEDY = (
    "Set the machines' metadata hop limit to 2 (cluster/README.md), or network_mode: host "
    "in the master's task_container_defaults"
)
ENDPOINT = "http://169.254.169.254"
TIMEOUT = 2.0  # seconds; the service is on the machine's own link
TOKEN = "X-aws-ec2-metadata-token"
WANTED = "the instance metadata service wants a token, and none arrives here"
WITH_TOKEN = "with a token (IMDSv2)"
WITHOUT_TOKEN = "without a token (IMDSv1), for the token request gets none"
log = logging.getLogger(__name__)


class Metadata:
    """Client of the service at its own address, or at `AWS_EC2_METADATA_SERVICE_ENDPOINT`.

    Reads with a new token (IMDSv2), or without (IMDSv1) if it gets none: with a metadata hop limit
    of 1 none reaches a container with its own network.
    """

    def __init__(self) -> None:
        endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
        self.address = endpoint.rstrip("/")
        self.way = ""  # how the last answer came
        # The service is never behind the proxy of the environment.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def read(self, path: str) -> str | None:
        """Return the text at `path` (below meta-data/), or None if there is none (status 404).
        Raises OSError, a PermissionError if no token arrives, or http.client.HTTPException.
        """
        token = None
        with contextlib.suppress(OSError, http.client.HTTPException):
            token = self._request("PUT", "api/token", {f"{TOKEN}-ttl-seconds": "60"})
        self.way = WITH_TOKEN if token else WITHOUT_TOKEN
        try:
            return self._request("GET", f"meta-data/{path}", {TOKEN: token} if token else {})
        except urllib.error.HTTPError as error:
            if error.code == 401 and not token:
                raise PermissionError(WANTED) from None
            if error.code != 404:
                raise
            return None

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        url = f"{self.address}/latest/{path}"
        request = urllib.request.Request(url, method=method, headers=headers)
        with self._open(request, timeout=TIMEOUT) as response:
            return response.read(4096).decode("utf-8", "replace").strip()


class SpotWatcher(threading.Thread):
    """Thread that calls `on_notice(text)` after EC2's interruption notice, until it succeeds once,
    and before it `on_recommendation()` at most once. It logs each kind of error once and retries.
    """

    def __init__(
        self, on_notice: Callable[[str], None], on_recommendation: Callable[[], None]
    ) -> None:
        super().__init__(name="spot-watcher", daemon=True)
        self.on_notice, self.on_recommendation = on_notice, on_recommendation
        self.stopped = threading.Event()
        self._metadata = Metadata()
        self._answered = self._recommended = False
        self._said: set[str] = set()

    def run(self) -> None:
        notice: str | None = None
        failures = 0  # looks in a row
        while not self.stopped.is_set():
            try:
                if notice is None and (notice := self._look()) is not None:
                    # The experiments' log policies know this line by its first two words.
                    log.warning("EC2 announces: %s", notice)
                failures = 0
                if notice is not None:
                    return self.on_notice(notice)
            except Exception as error:
                failures += 1
                self._say_failure(error, failures, notice)
            self.stopped.wait(PERIOD if self._answered or failures < TRIES else SLOW_PERIOD)

    def _look(self) -> str | None:
        notice = self._read(NOTICE)
        if notice is None and not self._recommended:
            recommendation = self._read(RECOMMENDATION)
            if recommendation is not None:
                self.on_recommendation()
                self._recommended = True
                log.warning(
                    "EC2 recommends to leave this machine (%s): a checkpoint follows at the next "
                    "report, and the run goes on",
                    recommendation,
                )
        return notice

    def _read(self, path: str) -> str | None:
        text = self._metadata.read(path)
        self._answered = True
        self._say_once(logging.INFO, "way", f"read {self._metadata.way}")
        return None if text is None else " ".join([path, *text.split()])  # one line, for the log

    def _say_failure(self, error: Exception, failures: int, notice: str | None) -> None:
        if notice is not None or self._answered:
            what = "no answer now" if notice is None else "not passed on"
            text = f"{what} ({_reason(error)}); asking again"
            self._say_once(logging.WARNING, f"{what} {type(error)}", text)
        elif failures >= TRIES and isinstance(error, PermissionError):
            self._say_once(logging.WARNING, "token", f"not read: {error}. {REMEDY}")
        elif failures >= TRIES:
            text = f"no instance metadata at {self._metadata.address} ({_reason(error)})"
            text = f"not read: {text}, so probably not on EC2. There: {REMEDY}"
            self._say_once(logging.INFO, "none", text)

    def _say_once(self, level: int, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.log(level, "spot notices: %s", text)


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", None)  # urllib wraps the system's error
    return first_line(cause if isinstance(cause, Exception) else error)


@contextlib.contextmanager
def watching(
    enabled: bool, on_notice: Callable[[str], None], on_recommendation: Callable[[], None]
) -> Iterator[None]:
    """Run a SpotWatcher during the block if `enabled` (one per machine is enough)."""
    watcher = SpotWatcher(on_notice, on_recommendation)
    if enabled:
        watcher.start()
    try:
        yield
    finally:
        watcher.stopped.set()
