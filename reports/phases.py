"""Phases of each allocation: start-up, work, what was lost, and what ended it.

The master records no phase. They are inferred from reports, raw entries, checkpoints and exit
reasons: only the split of a bill depends on it, not its sum.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import median
from typing import NamedTuple, TypeAlias

import pandas as pd

from cluster.configs.expconf import runs
from reports.usage import Allocation, Entry, Experiment, Moment, Records, Span, Trial, merge_spans

SAVED = pd.Timedelta(minutes=1)  # before its end: a trial that is paused saves and leaves
EXITS = {"failed": "failed", "crashed": "failed", "preempted by": "preempted"}  # else paused
WORK = "training", "validation", "checkpointing"  # kinds of raw entries
OVER = {"STATE_ERROR": "failed", "STATE_CANCELED": "canceled", "STATE_COMPLETED": ""}
REAL = "failed", "reclaimed"  # stops that count before the work began, too
PHASES = "start-up", "work", "lost", "idle"  # of a bill

Begun: TypeAlias = Mapping[str, Moment | None]  # allocation -> when its work began; None: never


class Stop(NamedTuple):
    """The end of an allocation before the trial's; the work since `saved` was lost."""

    kind: str
    saved: Moment


class Course(NamedTuple):
    """An allocation is start-up until `begun`, work until `saved`, and lost from then on."""

    begun: Moment
    saved: Moment
    again: bool = False  # it starts work that had begun before
    stop: str = ""  # what ended it before its trial; empty: nothing

    def phase(self, moment: Moment) -> str:
        """Return the phase that `moment` begins or is in."""
        if moment < self.begun:
            return "start-up"
        return "work" if moment < self.saved else "lost"


class Story(NamedTuple):
    """Course of an experiment: its allocations by id, and the time in between."""

    courses: Mapping[str, Course]
    gaps: Sequence[Span]  # from a stop of work to the next start
    machines: Mapping[str, int]  # that were reclaimed, by allocation


def story(experiment: Experiment, records: Records, reclaimed: Mapping[str, int]) -> Story:
    """Return the course of an experiment; `reclaimed` counts machines by allocation.

    An allocation that was taken back before its work began is start-up: it is no stop, unless it
    failed or AWS took its machine, and the next one starts nothing again.
    """
    entries = work_entries(experiment, records)
    predicts = runs(dict(experiment.config), "predict.py")
    courses = {}
    gaps = []
    for trial in experiment.trials:
        begun = {}
        for a in trial.allocations:
            begun[a.id] = _begun(a, trial, entries, predicts, records)
        stops = _stops(trial, records, reclaimed, begun)
        again = False
        last = None
        for a in trial.allocations:
            stop = stops.get(a.id, Stop("", a.end))
            start = begun[a.id]
            if start is None:
                if stop.kind not in REAL:
                    stop = Stop("", a.end)
                start = a.start if stop.kind == "failed" else a.end
            saved = max(start, stop.saved)
            courses[a.id] = Course(start, saved, again, stop.kind)
            if again:
                gaps.append(Span(last, a.start))
            again = again or start < a.end
            last = a.end
    return Story(courses, merge_spans(gaps), reclaimed)


def _begun(
    a: Allocation,
    trial: Trial,
    entries: Mapping[str, Sequence[Entry]],
    predicts: bool,
    records: Records,
) -> Moment | None:
    """Return when the work of an allocation began; None: no record says that it did."""
    reports = [report for report in trial.reports if a.start < report.time <= a.end]
    work = entries.get(a.id, ())
    moments = []
    for report in reports[:1]:
        length = pd.Timedelta(seconds=report.seconds)
        moments.append(report.time - length)
    for entry in work[:1]:
        if entry.kind != "training" or not reports:
            moments.append(entry.start)
    if a.launched is not None:
        moments = [a.launched]
    elif predicts or not moments:
        # Nothing says when, but a sign of work says that it did: it is taken to be all work.
        stored = any(map(a.during, trial.checkpoints))
        last = a is trial.allocations[-1]
        completed = last and "COMPLETED" in trial.state
        if records.entries and not (work or stored or completed):
            return None
        moments = [a.start]
    return min(max(min(moments), a.start), a.end)


def _stops(
    trial: Trial,
    records: Records,
    reclaimed: Mapping[str, int],
    begun: Begun,
) -> dict[str, Stop]:
    """Return the ends of allocations before the trial's, and their causes.

    If the master recorded no cause, `restarts` ends are failures: those that lost most, and each
    that had not just saved.
    """
    stops = {}
    unknown = []
    for a, after in zip_longest(trial.allocations, trial.allocations[1:]):
        kind = _cause(a, after, trial, records, reclaimed)
        saved = max(filter(a.during, trial.checkpoints), default=a.start)
        asked = kind in ("paused", "preempted") and "killed" not in a.exit
        if asked or kind == "continued" or (kind == "unknown" and begun[a.id] is None):
            saved = a.end  # it saved and left, or had nothing to save
        if kind == "unknown":
            unknown.append(a)
        if kind:
            stops[a.id] = Stop(kind, saved)
    unseen = trial.restarts - sum(stop.kind == "failed" for stop in stops.values())
    unknown.sort(key=lambda a: stops[a.id].saved - a.end)
    for rank, a in enumerate(unknown):
        saved = stops[a.id].saved
        if rank >= unseen and a.end - saved <= SAVED:
            stops[a.id] = Stop("paused", a.end)
        else:
            stops[a.id] = Stop("failed", saved)
    return stops


def _cause(
    a: Allocation,
    after: Allocation | None,
    trial: Trial,
    records: Records,
    reclaimed: Mapping[str, int],
) -> str:
    """Return what ended an allocation that `after` follows; empty: its trial, or nothing yet."""
    last = after is None
    if last and ("COMPLETED" in trial.state or a.end == records.now):
        return ""
    if after is not None and after.task != a.task:
        return "continued"
    if a.id in reclaimed:
        return "reclaimed"
    if last and trial.state in OVER:
        return OVER[trial.state]
    for words, kind in EXITS.items():
        if words in a.exit:
            return kind
    if a.exit:
        return "paused"
    return "" if last else "unknown"


def work_entries(experiment: Experiment, records: Records) -> dict[str, list[Entry]]:
    """Return the raw entries of each allocation in order; the first one without the start-up.

    An entry begins where the trial's last one ended, the first one where the allocation did: it is
    taken to be as long as the experiment's others of its kind are, if there are any.
    """
    by_allocation = defaultdict[str, list[Entry]](list)
    ends = {a: a.start for a in experiment.allocations}
    for entry in sorted(records.entries, key=lambda entry: entry.start):
        if entry.experiment != experiment.id or entry.kind not in WORK:
            continue
        # Of several trials at once, the one whose last entry ended last before this one begins.
        fits = [a for a in ends if ends[a] <= entry.start < a.end]
        if fits:
            last = max(fits, key=lambda a: (ends[a], a.start))
            by_allocation[last.id].append(entry)
            ends[last] = entry.end
    lengths = defaultdict[str, list[pd.Timedelta]](list)
    for entries in by_allocation.values():
        for entry in entries[1:]:
            lengths[entry.kind].append(entry.end - entry.start)
    for entries in by_allocation.values():
        first = entries[0]
        length = first.end - first.start
        usual = median(lengths[first.kind] or [length])
        start = first.end - min(usual, length)
        entries[0] = first._replace(start=start)
    return dict(by_allocation)
