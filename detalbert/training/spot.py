"""The two minutes that EC2 gives before it takes a spot machine back.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
"""

import contextlib
import http.client
import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import determined
from determined.common.api import authentication, bindings, certs

ENDPOINT = "http://169.254.169.254"
NOTICES = ("spot/instance-action", "events/recommendations/rebalance")
PERIOD = 5.0  # seconds between two looks, as EC2 recommends
TIMEOUT = 1.0  # seconds; the service is on the machine's own link
log = logging.getLogger(__name__)


class SpotWatcher(threading.Thread):
    """Calls `on_notice(text)` once, when the instance metadata service announces a reclaim.

    Speaks IMDSv2 (a token first). Says nothing where there is no such service: it gives up after
    three failures in a row unless the service has answered before.
    """

    def __init__(self, on_notice: Callable[[str], None]) -> None:
        super().__init__(name="spot-watcher", daemon=True)
        self.on_notice = on_notice
        endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
        self.base = f"{endpoint.rstrip('/')}/latest"
        self.stopped = threading.Event()
        self._token: str | None = None
        # The metadata service is never behind the proxy of the environment.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def run(self) -> None:
        answered = False
        failures = 0
        while not self.stopped.is_set():
            try:
                notice = self._look()
                answered, failures = True, 0
                if notice:
                    log.warning("EC2 announces: %s", notice)
                    self.on_notice(notice)
                    return
            except (OSError, http.client.HTTPException) as error:  # also cut answers
                failures += 1
                log.debug("no instance metadata: %s", error)
                if failures == 3 and not answered:
                    return
            self.stopped.wait(PERIOD)

    def _look(self) -> str | None:
        for path in NOTICES:
            try:
                body = self._request("GET", f"meta-data/{path}", self._headers())
            except urllib.error.HTTPError as error:
                if error.code == 401:  # the token ran out; the next look takes a new one
                    self._token = None
                elif error.code != 404:  # 404: nothing announced
                    raise
                continue
            return f"{path} {body.strip()}"
        return None

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
            self._token = self._request("PUT", "api/token", lifetime)
        return {"X-aws-ec2-metadata-token": self._token}

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(f"{self.base}/{path}", method=method, headers=headers)
        with self._open(request, timeout=TIMEOUT) as response:
            return response.read(4096).decode("utf-8", "replace")


@contextlib.contextmanager
def watching(enabled: bool, on_notice: Callable[[str], None]) -> Iterator[None]:
    """A SpotWatcher for the time of a run, where `enabled` (one per machine is enough)."""
    watcher = SpotWatcher(on_notice)
    if enabled:
        watcher.start()
    try:
        yield
    finally:
        watcher.stopped.set()


def preempt_allocation(notice: str) -> None:
    """Have the Determined master preempt this allocation: the trial checkpoints and is put back
    into the queue, and `max_restarts` is not spent."""
    info = determined.get_cluster_info()
    session = authentication.login_from_task(info.master_url, certs.default_load(info.master_url))
    bindings.post_AllocationPendingPreemptionSignal(
        session,
        allocationId=info.allocation_id,
        body=bindings.v1AllocationPendingPreemptionSignalRequest(allocationId=info.allocation_id),
    )
