"""A Determined master on loopback that lists, describes and hands out checkpoints.

Answers have what the bindings' own types must have, so that the real client reads what it expects.
"""

import io
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from determined.common.api import bindings

from tests.fakes.http import NOW, FakeServer, blank, trial_json

TOKEN = "user-token"


class Stored(NamedTuple):
    """A checkpoint: where its files are, and what decides which one is best and latest."""

    uuid: str
    folder: Path
    f1: float
    ended: int  # seconds
    state: str = "COMPLETED"
    steps: int = 1
    scores: dict[str, float] | None = None  # of the validation after them; default: f1
    config: dict[str, Any] = {}  # of the experiment, beside its storage
    trial: int = 7
    hparams: dict[str, Any] = {}


class CheckpointMaster(FakeServer):
    """Serves experiment 3 with trial 7, their checkpoints in `storage`, its `checkpoint_storage:`.
    Where that is not on this machine, the client downloads through the master."""

    def __init__(self, stored, storage):
        self.stored = stored
        self.storage = storage
        self.calls = []
        self.models = {}  # what the registry was sent
        super().__init__()

    def log_in(self, monkeypatch, folder):
        """Have this process work in `folder`, and the client there talk to this master."""
        monkeypatch.setenv("DET_MASTER", self.url)
        monkeypatch.setenv("DET_USER", "me")
        monkeypatch.setenv("DET_USER_TOKEN", TOKEN)
        monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(folder / "config"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.chdir(folder)
        # The client asks a master that is away five more times, and waits 15 s in all.
        monkeypatch.setattr("urllib3.util.retry.Retry.get_backoff_time", lambda _: 0)

    def respond(self, request):
        self.calls.append(request.path)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": {"error": "no such user"}}
        stored = {item.uuid: item for item in self.stored}
        match request.path.split("/"):
            case ["", "api", "v1", "models", *path]:
                return self._registry(request, *path)
            case ["", "api", "v1", "trials", "7"]:
                return {"trial": trial_json(7, experiment=3, state="STATE_COMPLETED")}
            case ["", "api", "v1", "experiments", "3"]:
                return {"experiment": _experiment()}
            case ["", "api", "v1", ("trials" | "experiments") as owner, "7" | "3", "checkpoints"]:
                checkpoints = self._sorted(owner, request.query)
                return _page("checkpoints", [self._describe(item) for item in checkpoints])
            case ["", "api", "v1", "checkpoints", uuid] if uuid in stored:
                return {"checkpoint": self._describe(stored[uuid])}
            case ["", "checkpoints", uuid] if uuid in stored:
                return _archive(stored[uuid].folder)
        return None

    def _registry(self, request, *path):
        """As a real 0.38.1 answered: golden/determined-api.json, `registry`."""
        body = json.loads(request.body or "{}")
        match (request.method, *path):
            case ["POST"]:
                self.models[body["name"]] = []
                return {"model": self._model(body["name"])}
            case ["POST", name, "versions"]:
                self.models[name].append(body)
                return {"modelVersion": self._version(name, len(self.models[name]))}
            case ["GET", name] if name in self.models:
                return {"model": self._model(name)}
            case ["GET", name, "versions"] if name in self.models:
                return self._list_versions(name, request.query)
            case ["GET", name, "versions", number] if int(number) <= len(self.models[name]):
                return {"modelVersion": self._version(name, int(number))}
        return None

    def _list_versions(self, name, query):
        """Return a model's versions, newest first."""
        count = len(self.models[name])
        versions = [self._version(name, number) for number in range(count, 0, -1)]
        limit = int(query.get("limit", count))
        return {"model": self._model(name), **_page("modelVersions", versions[:limit])}

    def _model(self, name):
        return blank(
            bindings.v1Model,
            name=name,
            metadata={},
            creationTime=NOW,
            lastUpdatedTime=NOW,
            numVersions=len(self.models[name]),
        )

    def _version(self, name, number):
        body = self.models[name][number - 1]
        stored = next(item for item in self.stored if item.uuid == body["checkpointUuid"])
        return blank(
            bindings.v1ModelVersion,
            version=number,
            model=self._model(name),
            checkpoint=self._describe(stored),
            metadata=body.get("metadata") or {},
            notes=body.get("notes") or "",
            creationTime=NOW,
            lastUpdatedTime=NOW,
        )

    def _sorted(self, owner, query):
        if query.get("sortByAttr") == "SORT_BY_END_TIME":
            down = query["orderBy"] == "ORDER_BY_DESC"
            return sorted(self.stored, key=lambda item: item.ended, reverse=down)
        assert query.get("sortByAttr") == "SORT_BY_SEARCHER_METRIC"
        assert "orderBy" not in query
        if owner == "trials":  # as a real 0.38.1: ascending, those without a validation first
            return sorted(self.stored, key=lambda item: item.scores is None and item.f1)
        return sorted(self.stored, key=lambda item: -item.f1)  # smaller_is_better: false

    def _describe(self, item):
        scores = {"f1": item.f1} if item.scores is None else item.scores
        searcher = {"metric": "f1", "smaller_is_better": False}
        config = {"searcher": searcher, **item.config, "checkpoint_storage": self.storage}
        return {
            "uuid": item.uuid,
            "state": f"STATE_{item.state}",
            "reportTime": NOW.replace("00Z", f"{item.ended:02d}Z"),
            "metadata": {"steps_completed": item.steps},
            "resources": {},
            "training": {
                "trialId": item.trial,
                "experimentId": 3,
                "experimentConfig": config,
                "hparams": item.hparams,
                "validationMetrics": {"avgMetrics": scores},
            },
        }


def _experiment():
    return blank(bindings.v1Experiment, id=3, startTime=NOW, state="STATE_COMPLETED", config={})


def _archive(folder):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, arcname=".")
    return buffer.getvalue()


def _page(name, items):
    return {name: items, "pagination": {"endIndex": len(items), "total": len(items)}}
