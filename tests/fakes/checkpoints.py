"""A Determined master on loopback that lists, describes and hands out checkpoints.

Answers have what the bindings' own types must have, so that the real client reads what it expects.
"""

import io
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from determined.common.api import bindings

from tests.fakes.http import NOW, FakeServer, Request, blank, trial_json

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
    """Experiment 3 with trial 7, their checkpoints in `storage`, its `checkpoint_storage:`. Where
    that is not on this machine, the client downloads through the master."""

    def __init__(self, stored: list[Stored], storage: dict[str, Any]) -> None:
        self.stored, self.storage = stored, storage
        self.calls: list[str] = []
        self.models: dict[str, list[dict[str, Any]]] = {}  # what the registry was sent
        super().__init__()

    def log_in(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """Have this process work in `folder`, and the client there talk to this master."""
        values = {"DET_MASTER": self.url, "DET_USER": "me", "DET_USER_TOKEN": TOKEN}
        values |= {"DET_DEBUG_CONFIG_PATH": str(folder / "config"), "NO_PROXY": "127.0.0.1"}
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder)
        # The client asks a master that is away five more times, and waits 15 s in all.
        monkeypatch.setattr("urllib3.util.retry.Retry.get_backoff_time", lambda _: 0)

    def respond(self, request: Request) -> Any:
        self.calls.append(request.path)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": {"error": "no such user"}}
        held = {item.uuid: item for item in self.stored}
        match request.path.split("/"):
            case ["", "api", "v1", "models", *path]:
                return self._registry(request, *path)
            case ["", "api", "v1", "trials", "7"]:
                return {"trial": trial_json(7, experiment=3, state="STATE_COMPLETED")}
            case ["", "api", "v1", "experiments", "3"]:
                facts = {"id": 3, "startTime": NOW, "state": "STATE_COMPLETED", "config": {}}
                return {"experiment": blank(bindings.v1Experiment, **facts)}
            case ["", "api", "v1", ("trials" | "experiments") as owner, "7" | "3", "checkpoints"]:
                listed = self._sorted(owner, request.query)
                return _page("checkpoints", [self._describe(item) for item in listed])
            case ["", "api", "v1", "checkpoints", uuid] if uuid in held:
                return {"checkpoint": self._describe(held[uuid])}
            case ["", "checkpoints", uuid] if uuid in held:
                buffer = io.BytesIO()
                with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
                    tar.add(held[uuid].folder, arcname=".")
                return buffer.getvalue()
        return None

    def _registry(self, request: Request, *path: str) -> Any:
        """As a real 0.38.1 answered: golden/determined-api.json, `registry`."""
        sent = json.loads(request.body or "{}")
        match (request.method, *path):
            case ["POST"]:
                self.models[sent["name"]] = []
                return {"model": self._model(sent["name"])}
            case ["POST", name, "versions"]:
                self.models[name].append(sent)
                return {"modelVersion": self._version(name, len(self.models[name]))}
            case ["GET", name] if name in self.models:
                return {"model": self._model(name)}
            case ["GET", name, "versions"] if name in self.models:
                numbers = range(len(self.models[name]), 0, -1)
                listed = [self._version(name, n) for n in numbers]
                listed = listed[: int(request.query.get("limit", len(listed)))]
                return {"model": self._model(name), **_page("modelVersions", listed)}
            case ["GET", name, "versions", number] if int(number) <= len(self.models[name]):
                return {"modelVersion": self._version(name, int(number))}
        return None

    def _model(self, name: str) -> dict[str, Any]:
        facts = {"name": name, "metadata": {}, "creationTime": NOW, "lastUpdatedTime": NOW}
        return blank(bindings.v1Model, **facts, numVersions=len(self.models[name]))

    def _version(self, name: str, number: int) -> dict[str, Any]:
        sent = self.models[name][number - 1]
        held = next(item for item in self.stored if item.uuid == sent["checkpointUuid"])
        facts = {"metadata": sent.get("metadata") or {}, "notes": sent.get("notes") or ""}
        facts |= {"checkpoint": self._describe(held), "model": self._model(name), "version": number}
        return blank(bindings.v1ModelVersion, **facts, creationTime=NOW, lastUpdatedTime=NOW)

    def _sorted(self, owner: str, query: dict[str, str]) -> list[Stored]:
        if query.get("sortByAttr") == "SORT_BY_END_TIME":
            down = query["orderBy"] == "ORDER_BY_DESC"
            return sorted(self.stored, key=lambda item: item.ended, reverse=down)
        assert query.get("sortByAttr") == "SORT_BY_SEARCHER_METRIC" and "orderBy" not in query
        if owner == "trials":  # as a real 0.38.1: ascending, those without a validation first
            return sorted(self.stored, key=lambda item: item.scores is None and item.f1)
        return sorted(self.stored, key=lambda item: -item.f1)  # smaller_is_better: false

    def _describe(self, item: Stored) -> dict[str, Any]:
        scores = {"f1": item.f1} if item.scores is None else item.scores
        training = {"trialId": item.trial, "experimentId": 3, "hparams": item.hparams}
        training |= {"validationMetrics": {"avgMetrics": scores}}
        config = {"searcher": {"metric": "f1", "smaller_is_better": False}, **item.config}
        training |= {"experimentConfig": {**config, "checkpoint_storage": self.storage}}
        facts = {"uuid": item.uuid, "metadata": {"steps_completed": item.steps}, "resources": {}}
        facts |= {"state": f"STATE_{item.state}", "training": training}
        return {**facts, "reportTime": NOW.replace("00Z", f"{item.ended:02d}Z")}


def _page(name: str, items: list[Any]) -> dict[str, Any]:
    return {name: items, "pagination": {"endIndex": len(items), "total": len(items)}}
