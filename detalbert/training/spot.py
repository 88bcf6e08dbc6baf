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
import logging
import os
import threading
from collections.abc import Callable

import requests
from determined import pytorch

from detalbert.errors import first_line

NOTICE = "spot/instance-action"
RECOMMENDATION = "events/recommendations/rebalance"
# Seconds between two looks, as EC2 recommends, and between two calls to the master.
PERIOD = 5.0
TRIES = 3  # looks before the log says that a service never answered: it may be late
REMEDY = (
    "On EC2, set the machines' metadata hop limit to 2 (cluster/README.md), or network_mode: host "
    "in the master's task_container_defaults"
)
ENDPOINT = "http://169.254.169.254"
TIMEOUT = 2.0  # seconds; the service is on the machine's own link
TOKEN = "X-aws-ec2-metadata-token"
log = logging.getLogger(__name__)


class SpotWatcher(threading.Thread, pytorch.PyTorchCallback):
    """Thread that calls `on_notice(text)` after EC2's interruption notice, until it succeeds once,
    and before it `on_recommendation()` at most once. It logs each kind of error once and retries.
    As a callback of the trial loop, it runs while the loop does.
    """

    def __init__(
        self, on_notice: Callable[[str], None], on_recommendation: Callable[[], None]
    ) -> None:
        super().__init__(name="spot-watcher", daemon=True)
        self.on_notice = on_notice
        self.on_recommendation = on_recommendation
        self.stopped = threading.Event()
        endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
        self.address = f"{endpoint.rstrip('/')}/latest"
        self._session = requests.Session()
        self._session.trust_env = False  # the service is never behind the environment's proxy
        self._answered = False
        self._recommended = False
        self._failed: set[tuple[type, bool]] = set()

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.start()

    def on_trial_shutdown(self) -> None:
        self.stopped.set()

    def run(self) -> None:
        notice = ""
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
                self._say_failure(error, failures, is_read=bool(notice))
            self.stopped.wait(PERIOD)

    def _look(self) -> str:
        """Return the interruption notice, "" if there is none; pass on the first recommendation."""
        notice = self._read(NOTICE)
        if notice:
            # Interface: the log policies of the configs match the first two words.
            log.warning("EC2 announces: %s", notice)
            return notice
        recommendation = "" if self._recommended else self._read(RECOMMENDATION)
        if recommendation:
            self.on_recommendation()
            self._recommended = True
            log.warning(
                "EC2 recommends to leave this machine (%s): "
                "a checkpoint follows at the next report, and the run goes on",
                recommendation,
            )
        return ""

    def _read(self, path: str) -> str:
        """Return `path` and the text there, below meta-data/, in one line; "" for status 404, by
        which the service says that there is no notice.

        Reads with a new token (IMDSv2), or without (IMDSv1) if it gets none: with a metadata hop
        limit of 1 none reaches a container with its own network.
        """
        headers = {}
        with contextlib.suppress(requests.RequestException):
            lifetime = {f"{TOKEN}-ttl-seconds": "60"}
            headers[TOKEN] = self._request("PUT", "api/token", headers=lifetime)
        text = self._request("GET", f"meta-data/{path}", headers=headers)
        if not self._answered:
            log.info("spot notices: read %s a token", "with" if headers else "without")
        self._answered = True
        return " ".join([path, *text.split()]) if text else ""

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        url = f"{self.address}/{path}"
        response = self._session.request(method, url, headers=headers, timeout=TIMEOUT)
        if response.status_code == requests.codes.not_found and method == "GET":
            return ""
        response.raise_for_status()
        return response.text

    def _say_failure(self, error: Exception, failures: int, is_read: bool) -> None:
        """Log an error: at once from a service that is there, else after TRIES looks in a row."""
        is_known = self._answered or is_read
        kind = type(error), is_read
        if kind in self._failed or (not is_known and failures < TRIES):
            return
        self._failed.add(kind)
        reason = first_line(error)
        if is_read:
            log.warning("spot notices: not passed on (%s); asking again", reason)
        elif self._answered:
            log.warning("spot notices: no answer now (%s); asking again", reason)
        else:
            # A service that refuses is there; else this is probably no machine of EC2.
            level = logging.WARNING if isinstance(error, requests.HTTPError) else logging.INFO
            log.log(level, "spot notices: not read at %s (%s). %s", self.address, reason, REMEDY)
