"""Queries to a Determined 0.38.1 master about what ran: one method for each kind of answer.

With the client's own types (`determined.common.api.bindings`) and the login of `ask.py`. Pitfalls
of that release: allocations of a task have no slots, exit reason and time zone (UTC); a continued
trial has another task; raw entries name the experiment and not the trial, begin where the previous
one ended, and are not cut to the requested span; metrics of steps that were rolled back are
missing. Who else used a machine is in the CSV of `det resources allocations`. A reclaimed machine's
`instance` entry stays open until the master restarts, its `agent` entry ends; a spot request that
waits has an `instance` entry as well; none names its pool. A container reports its machine when it
has started, those of commands, TensorBoards and clean-up never do; agents log from the assignment
on, in lines that name no allocation.
"""

import contextlib
import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pandas as pd
from determined.common import api
from determined.common.api import bindings, errors

from reports.usage import Entry, Moment

Row: TypeAlias = Mapping[str, str]  # of the CSV
Machines: TypeAlias = defaultdict[str, dict[str, str]]  # allocation -> machine -> pool

REFUSED = errors.APIException, errors.ForbiddenException, bindings.APIHttpError
STOP_REQUEST = "remaining resources (reason: "  # how the master logs it
LAUNCH = "determined: Launching: "  # logged as the script of a task starts
SKEW = pd.Timedelta(seconds=1)  # an agent logs a moment before the master records the start


def parse_time(text: str) -> Moment:
    """Parse RFC 3339, with or without a zone, or Go's "2026-11-20 10:00:00.5 +0000 UTC"; in UTC."""
    moment = pd.Timestamp(str(text).removesuffix(" UTC"))
    # pandas reads "now", "" and numbers, too.
    if moment is pd.NaT or not re.match(r"\d{4}-\d\d-\d\d", str(text)):
        raise ValueError(f"not a time: {text!r}")
    return moment.tz_localize("UTC") if moment.tz is None else moment.tz_convert("UTC")


class Queries:
    """A session with the master, and the queries made through it.

    Args:
        now: end of what still runs.
    """

    def __init__(self, session: api.Session, now: Moment) -> None:
        self.session = session
        self.now = now
        self.notes = list[str]()  # on what this user may not see
        self._machines = dict[str, Machines]()  # by task: its allocations have one answer

    def ask(self, name: str, **keys: Any) -> Any:
        """Return the answer of the master to a query of the client's bindings, get_`name`."""
        query = getattr(bindings, f"get_{name}")
        return query(self.session, **keys)

    @contextlib.contextmanager
    def noting(self, note: str) -> Iterator[None]:
        """End the block and note `note` if the user lacks the permission for a query in it."""
        try:
            yield
        except REFUSED:
            self.notes.append(note)

    def entries(self, since: Moment, until: Moment) -> Iterator[Entry]:
        """Yield the raw entries of a span: workloads of experiments, and lives of machines."""
        raw = self.ask(
            "ResourceAllocationRaw",
            timestampAfter=_zulu(since),
            timestampBefore=_zulu(until),
        )
        for entry in raw.resourceEntries or []:
            yield Entry(
                kind=entry.kind or "",
                experiment=entry.experimentId or 0,
                name=entry.username or "",
                start=parse_time(entry.startTime),
                end=self.end(entry.endTime),
                slots=entry.slots,
            )

    def csv_rows(self, since: Moment, until: Moment) -> list[Row]:
        """Return all allocations of the cluster: columns as in Determined's internal/core.go."""
        span = {"timestamp_after": _zulu(since), "timestamp_before": _zulu(until)}
        text = self.session.get("resources/allocation/allocations-csv", params=span).text

        # Without these columns no row can be read: the text is of another release, or an HTML page.
        rows = csv.DictReader(text.splitlines())
        columns = set(rows.fieldnames or ())
        if not {"allocation_id", "slots", "start_time", "end_time"} <= columns:
            raise ValueError("the CSV of allocations has other columns")
        return list(rows)

    def end(self, text: str | None) -> Moment:
        """Return the end of a stretch of time; `now` if it has none yet."""
        return parse_time(text) if text else self.now

    def machines_of(
        self,
        allocation: str,
        pool: str,
        start: Moment,
        end: Moment,
    ) -> Mapping[str, str]:
        """Return the pool of each machine of an allocation; empty if this user may not see it."""
        task, _, _ = allocation.rpartition(".")
        with contextlib.suppress(*REFUSED):
            machines = self.machines(task)[allocation]
            if machines:
                return machines
            # Commands and TensorBoards report no machine; the agent's lines in their log have it.
            lines = self.lines(task, start - SKEW, end, sources=["agent"])
            return {line.agentId: pool for line in lines if line.agentId}
        return {}

    def machines(self, task: str) -> Machines:
        """Return the pool of each machine, by allocation and machine."""
        if task not in self._machines:
            machines: Machines = defaultdict(dict)
            for entry in self.ask("GetTaskAcceleratorData", taskId=task).acceleratorData:
                if entry.allocationId and entry.nodeName:
                    machines[entry.allocationId][entry.nodeName] = entry.resourcePool or ""
            self._machines[task] = machines
        return self._machines[task]

    def lines(self, task: str, start: Moment, end: Moment, **which: Any) -> list[Any]:
        """Return those lines of the log, in order, of the allocation from `start` to `end`, which
        they do not name. Empty if this user may not see them.
        """
        with contextlib.suppress(*REFUSED):
            lines = self.ask("TaskLogs", taskId=task, **which)
            return [line for line in lines if start <= parse_time(line.timestamp) <= end]
        return []

    def exit(self, task: str, allocation: str, start: Moment, end: Moment) -> str:
        """Return why an allocation ended: its exit reason, and from the log who requested it."""
        # The exit reason says that it was preempted, and the log alone by whom.
        with contextlib.suppress(*REFUSED):
            answer = self.ask("GetAllocation", allocationId=allocation).allocation
            reason = answer.exitReason or ""
            reasons = [reason]
            if "preempted" in reason or "killed" in reason:
                lines = self.lines(task, start, end, searchText=STOP_REQUEST)
                reasons += [line.log for line in lines]
            return "; ".join(reasons)
        return ""

    def launched(self, task: str, start: Moment, end: Moment) -> Moment | None:
        """Return when the script of an allocation was started; None if its log does not say it."""
        lines = self.lines(task, start, end, searchText=LAUNCH)
        return parse_time(lines[0].timestamp) if lines else None


def has_run(row: Row) -> bool:
    """Return whether an allocation of the CSV got machines: one that only waited has no start, or
    two times of the master's last heartbeat.
    """
    return row["start_time"] not in ("", row["end_time"])


def _zulu(moment: Moment) -> str:
    """Return a time in the one form that the master's CSV takes."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
