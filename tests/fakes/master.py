"""A Determined master on loopback: the parts of the REST API that a trial's container calls."""

import base64
import contextlib
import json
import threading

from determined.common.api import bindings

from tests.fakes.http import FakeServer, trial_json, validation_json

TOKEN = "task-token"
NONE_YET = {"error": {"code": 5, "reason": "NotFound", "error": "no validations for experiment"}}


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
        context=b"",
        slots=(1,),
        preempt_at=None,
        dropped_at=None,
        metric="f1",
    ):
        self.context = context
        self.slots = slots
        self.preempt_at = preempt_at
        self.dropped_at = dropped_at
        self.metric = metric
        self.asked_since = 0  # for its state, after that step
        self.trial_faults = []  # as `pending_faults`, after that step
        self.heard = []  # method, path, query, body
        self.unknown = []  # those that this master does not speak
        self.metrics = []  # group, steps, metrics
        self.name = "answers"  # of the experiment
        self.metadata = {}  # of the run
        self.kept = []  # each time that it was set
        self.checkpoints = []
        self.states = []
        self.progress = []
        self.on_training = lambda: None  # the trial waits for its end
        self.acknowledged = 0
        self.pending = 0  # the container's own requests to be preempted
        # What happens to them before one is taken: a status, or "cut" or "unanswered".
        self.pending_faults = []
        self.preempt = threading.Event()
        self.told = threading.Event()
        super().__init__()

    def __getstate__(self):
        """Return what it has heard, for pickle."""
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, (list, dict, int))
        }

    def close(self):
        self.preempt.set()
        super().close()

    def reports(self, group):
        """Return what was reported as "training" or "validation", in order of arrival."""
        return [report for report in self.metrics if report["group"] == group]

    def respond(self, request):
        if request.headers.get("Grpc-Metadata-x-allocation-token") != f"Bearer {TOKEN}":
            return 401, {"message": "no valid task token"}
        body = json.loads(request.body or "null")
        self.heard.append((request.method, request.path, request.query, body))
        answer = self._answer(request, body)
        if answer is None:
            self.unknown.append(f"{request.method} {request.path}")
            return 501, {"message": "this master does not speak it"}
        return answer if isinstance(answer, tuple) else (200, answer)

    def _answer(self, request, body):
        """Return the answer, with its status where that is not 200; None to what this master does
        not speak."""
        match (request.method, *request.path.removeprefix("/api/v1/").split("/")):
            # Before the entry point: the harness prepares the container.
            case "GET", "tasks", _, "context_directory":
                return {"b64Tgz": base64.b64encode(self.context).decode()}
            case "POST", "allocations", _, "acceleratorData":
                bindings.v1PostAllocationAcceleratorDataRequest.from_json(body)
                return {}
            case "GET", "allocations", _, "resources", own, "rendezvous":
                return self._rendezvous(own)
            # While the trial runs.
            case "POST", "runs", "start":
                bindings.v1RunPrepareForReportingRequest.from_json(body)
                return {"storageId": 1}
            case "GET", "runs", _, "metadata":
                return {"metadata": self.metadata}
            case "POST", "runs", run, "metadata":
                change = bindings.v1PostRunMetadataRequest.from_json(body)
                assert change.runId == int(run)
                return self.keep_metadata(dict(change.metadata))
            case "GET", "experiments", _:
                return {"experiment": {"name": self.name}, "config": {}}
            case "PATCH", "experiments", number:
                return self._rename(int(number), bindings.v1PatchExperiment.from_json(body))
            case "POST", "checkpoints":
                self.checkpoints.append(bindings.v1Checkpoint.from_json(body))
                return {}
            case "GET", "experiments", _, "searcher", _:
                return self._best_validation()
            case "GET", "trials", number:
                return self._send_trial(int(number))
            case "POST", "trials", _, *what:
                return self._take("/".join(what), body)
            case _, "allocations", _, "signals", name:
                return self._signal(name, request.query, body)

    def _rendezvous(self, resources):
        rank = int(resources) if resources.isdigit() else 0  # a UUID on a real master
        addresses = ["127.0.0.1"] * len(self.slots)
        slots = list(self.slots)
        return {"rendezvousInfo": {"addresses": addresses, "rank": rank, "slots": slots}}

    def _rename(self, number, patch):
        assert patch.id == number
        assert isinstance(patch.name, str)
        self.name = patch.name
        return {"experiment": {"name": self.name}}

    def keep_metadata(self, metadata):
        self.metadata = metadata
        self.kept.append(metadata)
        return {"metadata": metadata}

    def _best_validation(self):
        scores = [report["metrics"][self.metric] for report in self.reports("validation")]
        if not scores:
            return 404, NONE_YET
        return {"metric": min(scores) if self.metric == "loss" else max(scores)}

    def _send_trial(self, number):
        validations = self.reports("validation")
        state = "STATE_RUNNING"
        if self.dropped_at in [report["steps"] for report in validations]:
            if self.trial_faults:
                return self._fail(self.trial_faults.pop(0))
            self.asked_since += 1
            if self.asked_since > 1:
                state = "STATE_STOPPING_COMPLETED"
        best = None
        if validations:
            report = max(validations, key=lambda report: report["metrics"].get("f1", 0.0))
            best = validation_json(report["metrics"], report["steps"])
        return {"trial": trial_json(number, 7, state=state, bestValidation=best)}

    def _take(self, what, body):
        if what == "metrics":
            report = bindings.v1ReportTrialMetricsRequest.from_json(body)
            steps = report.metrics.stepsCompleted
            metrics = report.metrics.metrics.avgMetrics
            self.metrics.append({"group": report.group, "steps": steps, "metrics": metrics})
        elif what == "progress":
            self.progress.append(body["progress"])
            self._preempt_at("progress", len(self.progress))
        elif what == "runner/metadata":
            self.states.append(body["state"])
            if body["state"] == "training":
                self.on_training()
            self._preempt_at(body["state"], self.states.count(body["state"]))
        else:
            return None
        return {}

    def _preempt_at(self, what, times):
        if self.preempt_at == (what, times):
            self.preempt.set()
            self.told.wait(300)

    def _signal(self, name, query, body):
        if name == "preemption":
            preempt = self.preempt.wait(float(query["timeout_seconds"]))
            close = {"Connection": "close"} if preempt else {}  # see `answered`
            return 200, {"preempt": preempt}, close
        if name == "ack_preemption":
            self.acknowledged += 1
            return {}
        if name != "pending_preemption":
            return None
        bindings.v1AllocationPendingPreemptionSignalRequest.from_json(body)
        if self.pending_faults:
            return self._fail(self.pending_faults.pop(0))
        self.pending += 1
        self.preempt.set()
        return {}

    def answered(self, request, connection):
        """Once the trial was told to stop, wait until it has read that, and so closes."""
        if request.path.endswith("/signals/preemption") and self.preempt.is_set():
            with contextlib.suppress(ConnectionError):
                connection.read()
            self.told.set()

    def _fail(self, fault):
        self.hinder(fault)
        return fault, {"message": "a fault"}
