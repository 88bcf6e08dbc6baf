"""The answers that a real master gave, replayed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http import AnswerServer, Request
from tests.reports.test_records import report


def recorded(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "golden" / "determined-api.json").read_text())


def replay(exchanges: list[dict[str, Any]], **changed: Any) -> AnswerServer:
    """A master that gives recorded answers; `changed`: what others give, by the path's end."""
    found = {x["path"].partition("?")[0]: x["response"] for x in exchanges if x["method"] == "GET"}

    def respond(request: Request) -> tuple[int, Any]:
        for end, given in changed.items():
            if request.path.endswith(end.replace("__", "/")):
                return 200, given
        if request.path == "/api/v1/me":
            return 200, {}
        if request.path.endswith("allocations-csv"):
            return 200, b"allocation_id,slots,start_time,end_time\n"
        return (200, found[request.path]) if request.path in found else (404, {})

    return AnswerServer(respond)


def test_the_recorded_paused_run(capsys, shared):
    """It was paused once for 9 s; 61 s of work and 70 s in all; nothing was lost."""
    with replay(recorded(shared)["exchanges"][106:114]) as master:
        until = ["--until", "2026-11-22T01:00:00Z", "--price-pool", "default=g5.xlarge"]
        found = report(capsys, master, "cost", "--experiment", "20", *until)
    (row,) = found["tables"][0]["rows"]
    assert (row["stops"], row["kinds"], row["lost h"]) == (1, "1 paused", 0)
    assert row["worked h"] * 3600 == pytest.approx(32.866 + 28.416, abs=0.01)
    assert row["elapsed h"] * 3600 == pytest.approx(69.966, abs=0.01)
    assert row["windows/s"] == pytest.approx(93.2, abs=0.5)
    assert (row["EM"], row["F1"], row["slots"]) == (50, pytest.approx(52.876, abs=1e-3), 1)
    assert row["cost"] == pytest.approx(61.282 / 3600 * 1.006, abs=1e-5)
    (parts,) = found["tables"][1]["rows"]
    started = (23.177 - 4.396 - 2.13) / 61.28
    assert parts["start-up"] / row["cost"] == pytest.approx(started, abs=0.01)
    assert parts["restart"] > 0 and parts["lost"] == 0


def test_the_recorded_run_continued(capsys, shared):
    """`trial.taskIds` names a second task then, and its allocations count as well."""
    exchanges = recorded(shared)["exchanges"]
    trial = exchanges[121]["response"]["trial"]
    asked = exchanges[117]["request"]["acceleratorData"]
    first = exchanges[108]["response"]["task"]
    again = {**first["allocations"][0], "allocationId": asked["allocationId"]}
    again |= {"startTime": "2026-11-22T01:15:00", "endTime": "2026-11-22T01:15:20"}
    page = {"trials": [trial], "pagination": exchanges[107]["response"]["pagination"]}
    changed = {
        "__trials": page,
        "-1": {"task": {**first, "allocations": [again]}},
        "-1__acceleratorData": {"acceleratorData": [{**asked, "resourcePool": "default"}]},
    }
    with replay(exchanges[106:114], **changed) as master:
        until = ["--until", "2026-11-22T02:00:00Z"]
        found = report(capsys, master, "cost", "--experiment", "20", *until)
    (row,) = found["tables"][0]["rows"]
    assert row["kinds"] == "1 continued, 1 paused" and row["run"].endswith("(running)")
    assert row["elapsed h"] * 3600 == pytest.approx(48 * 60 + 75.6, abs=1)
    assert row["worked h"] * 3600 == pytest.approx(61.282 + 20, abs=0.01)
