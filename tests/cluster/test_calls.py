"""The fake master answers, and a trial calls it, as a real 0.38.1 was recorded to do."""

import json
import re
import urllib.parse
from collections.abc import Iterable
from typing import Any

import pytest

from tests.fakes.http import Request, assert_recorded
from tests.fakes.master import TOKEN, FakeMaster

OURS = r"^/api/v1/(allocations/|trials/34(/|$)|runs/start|checkpoints$|experiments/20/searcher/)"
# Sent by threads, or not in the record; the last comes before or after the checkpoint, as it falls.
LEFT_OUT = ("metrics", "task/logs", "context_directory", "signals/preemption", "ack_preemption")


@pytest.fixture(scope="module")
def exchanges(shared) -> list[dict[str, Any]]:
    """Those of the containers of trial 34: paused after step 40, activated, continued."""
    first, last = 30, 131  # a trial before it, and others after it, are in the file too
    recorded = json.loads((shared / "golden" / "determined-api.json").read_text())["exchanges"]
    found = recorded[first : last + 1]
    found = [x for x in found if x["method"] != "PATCH" and not x["path"].endswith("limit=0")]
    return [x for x in found if re.search(OURS, x["path"].split("?")[0])]


def test_it_answers_as_the_real_one_did(exchanges):
    master = FakeMaster()
    headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {TOKEN}"}
    try:
        for number, recorded in enumerate(exchanges):
            method, path, query, body = asked(recorded)
            if "ack_preemption" in path:
                master.preempt.clear()  # the container ends; another one follows
            elif query == {"timeout_seconds": "60"}:
                master.preempt.set()
            request = Request(method, path, query, json.dumps(body).encode(), headers)
            status, answer = master.respond(request)
            assert status == recorded["status"], (number, path, answer)
            assert_recorded(answer, recorded["response"], path)
    finally:
        master.close()
    assert master.unknown == [] and len(exchanges) > 70


def calls_of(exchanges: Iterable[tuple[str, str, dict[str, str], Any]]) -> list[str]:
    """The calls that a container makes one after another, without the numbers in them."""
    names = []
    for method, path, _, body in exchanges:
        name = re.sub(r"^/api/v1|/[0-9]+(\.[^/]*)?(?=/|$)|/[0-9a-f-]{36}|/0(?=/)", "", path)
        if not name.endswith(LEFT_OUT):
            state = f" {body['state']}" if name == "/trials/runner/metadata" else ""
            names.append(f"{method} {name}{state}")
    return names


def asked(exchange: dict[str, Any]) -> tuple[str, str, dict[str, str], Any]:
    url = urllib.parse.urlsplit(exchange["path"])
    query = dict(urllib.parse.parse_qsl(url.query))
    return exchange["method"], url.path, query, exchange["request"]


KEEPS = {"GET /runs/metadata", "POST /runs/metadata"}
KEEPS |= {f"POST /trials/runner/metadata {state}" for state in ("loading", "stopped")}
PERIODS = {"max_steps": 10, "reporting_period": 1, "validation_period": 2, "checkpoint_period": 2}


@pytest.mark.parametrize("trial", [PERIODS], indirect=True)
def test_a_trial_makes_the_calls_that_were_recorded(trial, exchanges):
    """The recorded run had ten times these periods; both are stopped at the second validation.
    The recorder lost its last call. Since then a trial also has its run's metadata kept, shows
    that it loads and how it ended, and asks for its best validation at the end."""
    starts = [n for n, x in enumerate(exchanges) if x["path"].endswith("acceleratorData")]
    first, second = (exchanges[a:b] for a, b in zip(starts[:2], starts[1:3], strict=True))
    with trial.master(preempt_at=("validating", 2)) as master:
        trial.run(master)
        stopped = master.checkpoints[-1]
        assert stopped.metadata["steps_completed"] == 4
        *made, best = calls_of(master.heard)
        assert best == "GET /trials" and set(made) >= KEEPS
        assert [x for x in made if x not in KEEPS] == calls_of(map(asked, first))
        assert master.acknowledged == 1
        master.heard.clear()
        master.preempt_at = None
        master.preempt.clear()
        trial.run(master, checkpoint=stopped.uuid, steps=4)
        done = "POST /trials/runner/metadata done"
        *made, last, best = (x for x in calls_of(master.heard) if x not in {*KEEPS, done})
        assert made == calls_of(map(asked, second))
        assert (last, best) == ("POST /checkpoints", "GET /trials")
