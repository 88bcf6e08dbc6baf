"""EC2's two-minute warning before it reclaims a spot machine, read from its metadata service.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-options.html

An interruption notice ends this start of the run. A rebalance recommendation may come earlier, or
without a later reclaim, and stays readable on its machine: it causes one checkpoint only.

What was traded: a thread asks every five seconds, for the whole run, on one rank of each machine. A
notice is so read by every machine that is about to go, not by the master, which reads none.
"""

import contextlib
import http.client
import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

from detalbert.errors import first_line

NOTICE = "spot/instance-action"
RECOMMENDATION = "events/recommendations/rebalance"
# Seconds between two looks, as EC2 recommends, and between two calls to the master.
PERIOD = 5.0
# Looks before a service that never answered counts as absent, and the seconds between two looks
# then: it may be late, and a notice lasts 120 s.
TRIES = 3
SLOW_PERIOD = 30.0
REMEDY = (
    "Set the machines' metadata hop limit to 2 (cluster/README.md), or network_mode: host "
    "in the master's task_container_defaults"
)
ENDPOINT = "http://169.254.169.254"
TIMEOUT = 2.0  # seconds; the service is on the machine's own link
TOKEN = "X-aws-ec2-metadata-token"
log = logging.getLogger(__name__)


class SpotWatcher(threading.Thread):
    """Thread that calls `on_notice(text)` after EC2's interruption notice, until it succeeds once,
    and before it `on_recommendation()` at most once. It logs each kind of error once and retries.
    """

    def __init__(
        self, on_notice: Callable[[str], None], on_recommendation: Callable[[], None]
    ) -> None:
        super().__init__(name="spot-watcher", daemon=True)
        self.on_notice = on_notice
        self.on_recommendation = on_recommendation
        self.stopped = threading.Event()
        endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
        self.address = endpoint.rstrip("/")
        # The service is never behind the proxy of the environment.
        no_proxy = urllib.request.ProxyHandler(proxies={})
        self._open = urllib.request.build_opener(no_proxy).open
        self._answered = False
        self._recommended = False
        self._said: set[str] = set()

    def run(self) -> None:
        notice: str | None = None
        failures = 0  # looks in a row
        while not self.stopped.is_set():
            try:
                # A notice that could not be passed on is not read again.
                notice = notice or self._look()
                failures = 0
                if notice:
                    return self.on_notice(notice)
            except Exception as error:
                failures += 1
                self._say_failure(error, failures, notice)
            is_absent = not self._answered and failures >= TRIES  # probably no EC2 machine
            self.stopped.wait(SLOW_PERIOD if is_absent else PERIOD)

    def _look(self) -> str | None:
        """Return the interruption notice, if there is one; pass on the first recommendation."""
        notice = self._read(NOTICE)
        if notice:
            # Interface: the log policies of the configs match the first two words.
            log.warning("EC2 announces: %s", notice)
            return notice
        if self._recommended:
            return None
        recommendation = self._read(RECOMMENDATION)
        if recommendation:
            self.on_recommendation()
            self._recommended = True
            log.warning(
                "EC2 recommends to leave this machine (%s): "
                "a checkpoint follows at the next report, and the run goes on",
                recommendation,
            )
        return None

    def _read(self, path: str) -> str | None:
        """Return `path` and the text there, below meta-data/, in one line; None for status 404.

        Reads with a new token (IMDSv2), or without (IMDSv1) if it gets none: with a metadata hop
        limit of 1 none reaches a container with its own network. Raises OSError, a PermissionError
        if no token arrives, or http.client.HTTPException.
        """
        token = None
        with contextlib.suppress(OSError, http.client.HTTPException):
            token = self._request("PUT", "api/token", headers={f"{TOKEN}-ttl-seconds": "60"})

        text = None
        headers = {TOKEN: token} if token else {}
        try:
            text = self._request("GET", f"meta-data/{path}", headers=headers)
        except urllib.error.HTTPError as error:
            if error.code == 401 and not token:
                raise PermissionError(
                    "the instance metadata service wants a token, and none arrives here"
                ) from None
            # Status 404 is the service's way to say that there is no notice.
            if error.code != 404:
                raise

        self._answered = True
        if token:
            way = "with a token (IMDSv2)"
        else:
            way = "without a token (IMDSv1), for the token request gets none"
        self._say_once(logging.INFO, kind="way", text=f"read {way}")
        if text is None:
            return None
        return " ".join([path, *text.split()])

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        url = f"{self.address}/latest/{path}"
        request = urllib.request.Request(url, method=method, headers=headers)
        with self._open(request, timeout=TIMEOUT) as response:
            return response.read(4096).decode("utf-8", "replace").strip()

    def _say_failure(self, error: Exception, failures: int, notice: str | None) -> None:
        """Log an error: at once from a service that is there, else after TRIES looks in a row."""
        # urllib wraps the system's error.
        cause = getattr(error, "reason", None)
        reason = first_line(cause if isinstance(cause, Exception) else error)
        if notice or self._answered:
            problem = "not passed on" if notice else "no answer now"
            self._say_once(
                logging.WARNING,
                kind=f"{problem} {type(error)}",
                text=f"{problem} ({reason}); asking again",
            )
        elif failures >= TRIES and isinstance(error, PermissionError):
            self._say_once(logging.WARNING, kind="token", text=f"not read: {error}. {REMEDY}")
        elif failures >= TRIES:
            self._say_once(
                logging.INFO,
                kind="none",
                text=f"not read: no instance metadata at {self.address} ({reason}), "
                f"so probably not on EC2. There: {REMEDY}",
            )

    def _say_once(self, level: int, kind: str, text: str) -> None:
        """Log `text`, unless a line of this kind was logged before."""
        if kind not in self._said:
            self._said.add(kind)
            log.log(level, "spot notices: %s", text)
