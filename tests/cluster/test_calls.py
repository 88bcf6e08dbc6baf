"""The fake master answers, and a trial calls it, as a real 0.38.1 was recorded to do."""

import json
import re
import urllib.parse
from typing import Any, NamedTuple

import pytest

from tests.fakes.http import Request, assert_recorded
from tests.fakes.master import TOKEN, FakeMaster

OURS = r"^/api/v1/(allocations/|trials/34(/|$)|runs/start|checkpoints$|experiments/20/searcher/)"
# Sent by threads, or not in the record; the last comes before or after the checkpoint, as it falls.
LEFT_OUT = ("metrics", "task/logs", "context_directory", "signals/preemption", "ack_preemption")


@pytest.fixture(scope="module")
def exchanges(golden_dir):
    """Those of the containers of trial 34: paused after step 40, activated, continued."""
    recorded = json.loads((golden_dir / "determined-api.json").read_text())["exchanges"]
    of_trial = []
    for exchange in recorded[30:132]:  # a trial before it, and others after it, are there too
        path, _, query = exchange["path"].partition("?")
        by_recorder = exchange["method"] == "PATCH" or query.endswith("limit=0")
        if re.search(OURS, path) and not by_recorder:
            of_trial.append(exchange)
    return of_trial


def test_it_answers_as_the_real_one_did(exchanges):
    master = FakeMaster()
    headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {TOKEN}"}
    try:
        for number, recorded in enumerate(exchanges):
            call = call_of(recorded)
            if "ack_preemption" in call.path:
                master.preempt.clear()  # the container ends; another one follows
            elif call.query == {"timeout_seconds": "60"}:
                master.preempt.set()
            body = json.dumps(call.body).encode()
            request = Request(call.method, call.path, call.query, body, headers)
            status, answer, *_ = master.respond(request)
            assert status == recorded["status"], (number, call.path, answer)
            assert_recorded(answer, recorded["response"], call.path)
    finally:
        master.close()
    assert master.unknown == []
    assert len(exchanges) > 70


class Call(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    body: Any


def call_of(exchange):
    url = urllib.parse.urlsplit(exchange["path"])
    query = dict(urllib.parse.parse_qsl(url.query))
    return Call(exchange["method"], url.path, query, body=exchange["request"])


def names_of(calls):
    """Return what a container calls one after another, without the numbers in it."""
    names = []
    for method, path, _, body in calls:
        name = re.sub(r"^/api/v1|/[0-9]+(\.[^/]*)?(?=/|$)|/[0-9a-f-]{36}|/0(?=/)", "", path)
        if not name.endswith(LEFT_OUT):
            if name == "/trials/runner/metadata":
                name += f" {body['state']}"
            names.append(f"{method} {name}")
    return names


# Calls that the recorded trial did not make yet.
METADATA = {
    "GET /runs/metadata",
    "POST /runs/metadata",
    "POST /trials/runner/metadata loading",
    "POST /trials/runner/metadata stopped",
    "POST /trials/runner/metadata done",
}
PERIODS = {"max_steps": 10, "reporting_period": 1, "validation_period": 2, "checkpoint_period": 2}


@pytest.mark.parametrize("trial", [PERIODS], indirect=True)
def test_a_trial_makes_the_calls_that_were_recorded(trial, exchanges):
    """The recorded run had ten times these periods; both are stopped at the second validation.
    The recorder lost its last call. Since then a trial also has its run's metadata kept, and shows
    that it loads and how it ended."""
    calls = [call_of(exchange) for exchange in exchanges]
    starts = [n for n, call in enumerate(calls) if call.path.endswith("acceleratorData")]
    first = names_of(calls[starts[0] : starts[1]])
    second = names_of(calls[starts[1] : starts[2]])

    with trial.master(preempt_at=("validating", 2)) as master:
        trial.run(master)
        stopped = master.checkpoints[-1]
        assert stopped.metadata["steps_completed"] == 4
        made = names_of(master.heard)
        assert METADATA - set(made) == {"POST /trials/runner/metadata done"}
        assert [name for name in made if name not in METADATA] == first
        assert master.acknowledged == 1

        master.heard.clear()
        master.preempt_at = None
        master.preempt.clear()
        trial.run(master, checkpoint=stopped.uuid, steps=4)
        names = [name for name in names_of(master.heard) if name not in METADATA]
        *made, last = names
        assert made == second
        assert last == "POST /checkpoints"
