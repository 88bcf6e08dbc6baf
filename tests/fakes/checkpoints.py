"""A Determined master on loopback that lists, describes and hands out checkpoints.

Answers are made of the bindings' own types, so that the real client reads what it expects.
"""

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from determined.common.api import bindings

from tests.fakes.http import FakeServer, Request, experiment_record, trial_record

TOKEN = "user-token"
_TIME = "2026-01-01T00:00:{:02d}Z"


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

    def respond(self, request: Request) -> tuple[int, Any]:
        self.calls.append(request.path)
        missing = {"error": {"error": "no such thing"}}
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, missing
        answer = self._registry(request) or self._find(request.path, request.query)
        if answer is None:
            return 404, missing
        return 200, answer if isinstance(answer, bytes) else answer.to_json(True)

    def _find(self, path: str, query: dict[str, str]) -> Any:
        """Something of the bindings, bytes, or None where there is nothing."""
        if path == "/api/v1/trials/7":
            return bindings.v1GetTrialResponse(trial=trial_record(7, experiment=3))
        if path == "/api/v1/experiments/3":
            return bindings.v1GetExperimentResponse(experiment=experiment_record(3))
        if re.fullmatch(r"/api/v1/(trials/7|experiments/3)/checkpoints", path):
            kind = "Trial" if "trials" in path else "Experiment"
            chosen = [self._describe(item) for item in self._sorted(query)]
            answer = getattr(bindings, f"v1Get{kind}CheckpointsResponse")
            return answer(checkpoints=chosen, pagination=_page(chosen))
        found = re.fullmatch(r"(/api/v1)?/checkpoints/([0-9a-f-]+)", path)
        item = next((x for x in self.stored if found and x.uuid == found[2]), None)
        if item is None:
            return None
        if found[1]:
            return bindings.v1GetCheckpointResponse(checkpoint=self._describe(item))
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            tar.add(item.folder, arcname=".")
        return buffer.getvalue()

    def _registry(self, request: Request) -> Any:
        """As a real 0.38.1 answered: golden/determined-api.json, `registry`."""
        asked = re.fullmatch(r"/api/v1/models(/([^/]+))?(/versions)?(/(\d+))?", request.path)
        if not asked:
            return None
        sent = json.loads(request.body) if request.method == "POST" else {}
        name = asked[2] or sent["name"]
        if sent and not asked[3]:
            self.models[name] = []
            return bindings.v1PostModelResponse(model=self._model(name))
        if name not in self.models:
            return None
        if not asked[3]:
            return bindings.v1GetModelResponse(model=self._model(name))
        if sent:
            self.models[name].append(sent)
        listed = [self._version(name, n) for n in range(len(self.models[name]), 0, -1)]
        if sent:
            return bindings.v1PostModelVersionResponse(modelVersion=listed[0])
        if asked[5]:
            found = [each for each in listed if each.version == int(asked[5])]
            return bindings.v1GetModelVersionResponse(modelVersion=found[0]) if found else None
        listed = listed[: int(request.query.get("limit", len(listed)))]
        return bindings.v1GetModelVersionsResponse(
            model=self._model(name), modelVersions=listed, pagination=_page(listed)
        )

    def _model(self, name: str) -> bindings.v1Model:
        facts: dict[str, Any] = {"metadata": {}, "labels": [], "notes": "", "description": ""}
        facts |= {"archived": False, "creationTime": _TIME.format(1), "username": "me", "userId": 2}
        facts |= {"lastUpdatedTime": _TIME.format(1), "numVersions": len(self.models[name])}
        return bindings.v1Model(id=1, name=name, workspaceId=1, **facts)

    def _version(self, name: str, number: int) -> bindings.v1ModelVersion:
        sent = self.models[name][number - 1]
        held = next(item for item in self.stored if item.uuid == sent["checkpointUuid"])
        facts = {"metadata": sent.get("metadata") or {}, "notes": sent.get("notes") or ""}
        facts |= {"creationTime": _TIME.format(2), "lastUpdatedTime": _TIME.format(2), "name": ""}
        facts |= {"checkpoint": self._describe(held), "model": self._model(name), "username": "me"}
        return bindings.v1ModelVersion(id=number, version=number, **facts)

    def _sorted(self, query: dict[str, str]) -> list[Stored]:
        if query.get("sortByAttr") == "SORT_BY_END_TIME":
            down = query["orderBy"] == "ORDER_BY_DESC"
            return sorted(self.stored, key=lambda item: item.ended, reverse=down)
        assert query.get("sortByAttr") == "SORT_BY_SEARCHER_METRIC" and "orderBy" not in query
        return sorted(self.stored, key=lambda item: -item.f1)  # smaller_is_better: false

    def _describe(self, item: Stored) -> bindings.v1Checkpoint:
        scores = {"f1": item.f1} if item.scores is None else item.scores
        facts: dict[str, Any] = {"trialId": item.trial, "experimentId": 3, "hparams": {}}
        facts |= {"validationMetrics": bindings.v1Metrics(avgMetrics=scores)}
        facts |= {"experimentConfig": {**item.config, "checkpoint_storage": self.storage}}
        training = bindings.v1CheckpointTrainingMetadata(**facts)
        facts = {"uuid": item.uuid, "metadata": {"steps_completed": item.steps}, "resources": {}}
        facts |= {"state": getattr(bindings.checkpointv1State, item.state), "training": training}
        return bindings.v1Checkpoint(reportTime=_TIME.format(item.ended), **facts)


def _page(items: list[Any]) -> bindings.v1Pagination:
    page = bindings.v1Pagination(offset=0, total=len(items))
    page.startIndex, page.endIndex = 0, len(items)
    return page
