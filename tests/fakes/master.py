"""A Determined master on loopback: the parts of the REST API that a trial's container calls."""

import base64
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from determined.common.api import bindings

from tests.fakes.http import FakeServer, Request, trial_json, validation_json

TOKEN = "task-token"
NONE_YET = {"error": {"code": 5, "reason": "NotFound", "error": "no validations for experiment"}}
Answer = tuple[int, Any]
Handler = Callable[..., Answer]


class FakeMaster(FakeServer):
    """Serves one trial with this `context` (a gzipped tar archive) and remembers what it reported.

    Args:
        slots: of each container of the allocation, all of them on loopback.
        preempt_at: (state, n): preempt when the trial enters this state for the n-th time, or
            reports "progress" that often, and let it go on only after it was told.
        dropped_at: the search drops the trial at the validation of this step. The next time that
            the trial asks for its state it still reads RUNNING, as on a real master.
    """

    protocol = "HTTP/1.1"  # the harness keeps its connection

    def __init__(
        self,
        context: bytes = b"",
        slots: tuple[int, ...] = (1,),
        preempt_at: tuple[str, int] | None = None,
        dropped_at: int | None = None,
        metric: str = "f1",
    ) -> None:
        self.context, self.metric, self.slots = context, metric, slots
        self.preempt_at, self.dropped_at = preempt_at, dropped_at
        self.asked_since = 0  # for its state, after that step
        self.trial_faults: list[int | str] = []  # as `pending_faults`, after that step
        self.heard: list[tuple[str, str, dict[str, str], Any]] = []  # method, path, query, body
        self.unknown: list[str] = []  # those that this master does not speak
        self.metrics: list[dict[str, Any]] = []  # group, steps, metrics
        self.slow = 0.0  # seconds that a validation's report takes to arrive
        self.metadata: dict[str, Any] = {}  # of the run
        self.kept: list[dict[str, Any]] = []  # each time that it was set
        self.checkpoints: list[bindings.v1Checkpoint] = []
        self.states: list[str] = []
        self.progress: list[float] = []
        self.on_training: Callable[[], Any] = lambda: None  # the trial waits for its end
        self.acknowledged = 0
        self.pending = 0  # the container's own requests to be preempted
        # What happens to them before one is taken: a status, or "cut" or "unanswered".
        self.pending_faults: list[int | str] = []
        self.preempt = threading.Event()
        self.told = threading.Event()
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: what it has heard."""
        kept = vars(self).items()
        return {name: value for name, value in kept if isinstance(value, (list, dict, int))}

    def close(self) -> None:
        self.preempt.set()
        super().close()

    def reports(self, group: str) -> list[dict[str, Any]]:
        """What was reported as "training" or "validation", in order of arrival."""
        return [report for report in self.metrics if report["group"] == group]

    def respond(self, request: Request) -> Answer:
        if request.headers.get("Grpc-Metadata-x-allocation-token") != f"Bearer {TOKEN}":
            return 401, {"message": "no valid task token"}
        call = f"{request.method} {request.path}"
        body = json.loads(request.body or "null")
        self.heard.append((request.method, request.path, request.query, body))
        for method, pattern, handler in _ROUTES:
            found = re.fullmatch(f"{method} {pattern}", call)
            if found:
                return handler(self, *found.groups(), query=request.query, body=body)
        self.unknown.append(call)
        return 501, {"message": "this master does not speak it"}

    # Before the entry point: the harness prepares the container.

    def send_context(self, task: str, **_: Any) -> Answer:
        return 200, {"b64Tgz": base64.b64encode(self.context).decode()}

    def take_accelerators(self, allocation: str, body: Any, **_: Any) -> Answer:
        bindings.v1PostAllocationAcceleratorDataRequest.from_json(body)
        return 200, {}

    def rendezvous(self, allocation: str, resources: str, **_: Any) -> Answer:
        addresses = ["127.0.0.1"] * len(self.slots)
        rank = int(resources) if resources.isdigit() else 0  # a UUID on a real master
        info = {"addresses": addresses, "rank": rank, "slots": list(self.slots)}
        return 200, {"rendezvousInfo": info}

    # While the trial runs.

    def start_run(self, body: Any, **_: Any) -> Answer:
        bindings.v1RunPrepareForReportingRequest.from_json(body)
        return 200, {"storageId": 1}

    def send_trial(self, trial: str, **_: Any) -> Answer:
        seen, state = self.reports("validation"), "STATE_RUNNING"
        if self.dropped_at in [report["steps"] for report in seen]:
            if self.trial_faults:
                return self._fail(self.trial_faults.pop(0))
            self.asked_since += 1
            state = "STATE_STOPPING_COMPLETED" if self.asked_since > 1 else state
        best = max(seen, key=lambda report: report["metrics"].get("f1", 0.0), default=None)
        best = best and validation_json(best["metrics"], best["steps"])
        return 200, {"trial": trial_json(int(trial), 7, state=state, bestValidation=best)}

    def take_state(self, trial: str, body: Any, **_: Any) -> Answer:
        self.states.append(body["state"])
        if body["state"] == "training":
            self.on_training()
        self._preempt_at(body["state"], self.states.count(body["state"]))
        return 200, {}

    def _preempt_at(self, what: str, times: int) -> None:
        if self.preempt_at == (what, times):
            self.preempt.set()
            self.told.wait(60)
            time.sleep(1)  # for the trial's watcher thread to read what it was told

    def take_metrics(self, trial: str, body: Any, **_: Any) -> Answer:
        report = bindings.v1ReportTrialMetricsRequest.from_json(body)
        steps, metrics = report.metrics.stepsCompleted, report.metrics.metrics.avgMetrics
        time.sleep(self.slow * (report.group == "validation"))
        self.metrics.append({"group": report.group, "steps": steps, "metrics": metrics})
        return 200, {}

    def take_progress(self, trial: str, body: Any, **_: Any) -> Answer:
        self.progress.append(body["progress"])
        self._preempt_at("progress", len(self.progress))
        return 200, {}

    def send_metadata(self, run: str, **_: Any) -> Answer:
        return 200, {"metadata": self.metadata}

    def take_metadata(self, run: str, body: Any, **_: Any) -> Answer:
        request = bindings.v1PostRunMetadataRequest.from_json(body)
        assert request.runId == int(run)
        return self.keep_metadata(dict(request.metadata))

    def keep_metadata(self, metadata: dict[str, Any]) -> Answer:
        self.metadata = metadata
        self.kept.append(metadata)
        return 200, {"metadata": metadata}

    def take_checkpoint(self, body: Any, **_: Any) -> Answer:
        self.checkpoints.append(bindings.v1Checkpoint.from_json(body))
        return 200, {}

    def best_validation(self, experiment: str, **_: Any) -> Answer:
        scores = [report["metrics"][self.metric] for report in self.reports("validation")]
        best = min if self.metric == "loss" else max
        return (200, {"metric": best(scores)}) if scores else (404, NONE_YET)

    # Preemption.

    def wait_for_preemption(self, allocation: str, query: dict[str, str], **_: Any) -> Answer:
        preempt = self.preempt.wait(float(query["timeout_seconds"]))
        if preempt:
            self.told.set()
        return 200, {"preempt": preempt}

    def acknowledge(self, allocation: str, **_: Any) -> Answer:
        self.acknowledged += 1
        return 200, {}

    def announce_preemption(self, allocation: str, body: Any, **_: Any) -> Answer:
        bindings.v1AllocationPendingPreemptionSignalRequest.from_json(body)
        if self.pending_faults:
            return self._fail(self.pending_faults.pop(0))
        self.pending += 1
        self.preempt.set()
        return 200, {}

    def _fail(self, fault: Any) -> Answer:
        self.hinder(fault)
        return fault, {"message": "a fault"}


_API, _ID = "/api/v1", "([^/]+)"
_ALLOCATION, _TRIAL = f"{_API}/allocations/{_ID}", f"{_API}/trials/{_ID}"
_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", f"{_API}/tasks/{_ID}/context_directory", FakeMaster.send_context),
    ("POST", f"{_ALLOCATION}/acceleratorData", FakeMaster.take_accelerators),
    ("GET", f"{_ALLOCATION}/resources/{_ID}/rendezvous", FakeMaster.rendezvous),
    ("POST", f"{_API}/runs/start", FakeMaster.start_run),
    ("GET", f"{_API}/runs/{_ID}/metadata", FakeMaster.send_metadata),
    ("POST", f"{_API}/runs/{_ID}/metadata", FakeMaster.take_metadata),
    ("GET", _TRIAL, FakeMaster.send_trial),
    ("POST", f"{_TRIAL}/runner/metadata", FakeMaster.take_state),
    ("POST", f"{_TRIAL}/metrics", FakeMaster.take_metrics),
    ("POST", f"{_TRIAL}/progress", FakeMaster.take_progress),
    ("POST", f"{_API}/checkpoints", FakeMaster.take_checkpoint),
    ("GET", f"{_API}/experiments/{_ID}/searcher/.*", FakeMaster.best_validation),
    ("GET", f"{_ALLOCATION}/signals/preemption", FakeMaster.wait_for_preemption),
    ("POST", f"{_ALLOCATION}/signals/ack_preemption", FakeMaster.acknowledge),
    ("POST", f"{_ALLOCATION}/signals/pending_preemption", FakeMaster.announce_preemption),
]
