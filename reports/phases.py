"""Phases of each allocation: start-up, work, what was lost, and what ended it.

The master records no phase. They are inferred from reports, raw entries, checkpoints and exit
reasons: only the split of a bill depends on it, not its sum. So a wrong guess moves dollars between
the phases of one experiment, and never to another one.
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
WORK = "training", "validation", "checkpointing"  # kinds of raw entries of a trial
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
        for allocation in trial.allocations:
            begun[allocation.id] = _begun(allocation, trial, entries, predicts, records)
        stops = _stops(trial, records, reclaimed, begun)
        again = False
        last_end = None
        for allocation in trial.allocations:
            stop = stops.get(allocation.id, Stop("", saved=allocation.end))
            start = begun[allocation.id]
            if start is None:
                # It never worked: all of it is start-up, or lost if it failed.
                if stop.kind not in REAL:
                    stop = Stop("", saved=allocation.end)
                start = allocation.start if stop.kind == "failed" else allocation.end
            courses[allocation.id] = Course(
                begun=start,
                saved=max(start, stop.saved),
                again=again,
                stop=stop.kind,
            )
            # From the first work on, what precedes an allocation is a pause of the trial.
            if again:
                gaps.append(Span(last_end, allocation.start))
            again = again or start < allocation.end
            last_end = allocation.end
    return Story(courses=courses, gaps=merge_spans(gaps), machines=reclaimed)


def _begun(
    allocation: Allocation,
    trial: Trial,
    entries: Mapping[str, Sequence[Entry]],
    predicts: bool,
    records: Records,
) -> Moment | None:
    """Return when the work of an allocation began; None: no record says that it did."""
    start = allocation.start
    end = allocation.end
    reports = [report for report in trial.reports if start < report.time <= end]
    work = entries.get(allocation.id, ())

    # The first report says how long it trained for; the first entry when it was at work.
    moments = []
    if reports:
        length = pd.Timedelta(seconds=reports[0].seconds)
        moments.append(reports[0].time - length)
    if work and (work[0].kind != "training" or not reports):
        moments.append(work[0].start)
    if allocation.launched is not None:
        moments = [allocation.launched]
    elif predicts or not moments:
        # Nothing says when, but a sign of work says that it did: it is taken to be all work.
        stored = any(allocation.during(moment) for moment in trial.checkpoints)
        is_last = allocation is trial.allocations[-1]
        completed = is_last and "COMPLETED" in trial.state
        if records.entries and not (work or stored or completed):
            return None
        moments = [start]
    return min(max(min(moments), start), end)


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
    for allocation, following in zip_longest(trial.allocations, trial.allocations[1:]):
        kind = _cause(allocation, following, trial, records, reclaimed)
        stored = [moment for moment in trial.checkpoints if allocation.during(moment)]
        saved = max(stored, default=allocation.start)

        # It saved and left, or had nothing to save.
        requested = kind in ("paused", "preempted") and "killed" not in allocation.exit
        idle = kind == "unknown" and begun[allocation.id] is None
        if requested or kind == "continued" or idle:
            saved = allocation.end
        if kind == "unknown":
            unknown.append(allocation)
        if kind:
            stops[allocation.id] = Stop(kind, saved)

    # The master counted failures, and not which: those that lost most come first.
    failures = sum(stop.kind == "failed" for stop in stops.values())
    unseen_failures = trial.restarts - failures
    unknown.sort(key=lambda allocation: stops[allocation.id].saved - allocation.end)
    for rank, allocation in enumerate(unknown):
        saved = stops[allocation.id].saved
        has_just_saved = allocation.end - saved <= SAVED
        if rank >= unseen_failures and has_just_saved:
            stops[allocation.id] = Stop("paused", saved=allocation.end)
        else:
            stops[allocation.id] = Stop("failed", saved)
    return stops


def _cause(
    allocation: Allocation,
    following: Allocation | None,
    trial: Trial,
    records: Records,
    reclaimed: Mapping[str, int],
) -> str:
    """Return what ended an allocation that another follows; empty: its trial, or nothing yet."""
    is_last = following is None
    if is_last and ("COMPLETED" in trial.state or allocation.end == records.now):
        return ""
    if following is not None and following.task != allocation.task:
        return "continued"
    # Machines say more than exit reasons: a job that loses one ends as if it had failed.
    if allocation.id in reclaimed:
        return "reclaimed"
    if is_last and trial.state in OVER:
        return OVER[trial.state]
    for words, kind in EXITS.items():
        if words in allocation.exit:
            return kind
    if allocation.exit:
        return "paused"
    return "" if is_last else "unknown"


def work_entries(experiment: Experiment, records: Records) -> dict[str, list[Entry]]:
    """Return the raw entries of each allocation in order; the first one without the start-up.

    An entry begins where the trial's last one ended, the first one where the allocation did: it is
    taken to be as long as the experiment's others of its kind are, if there are any.
    """
    by_allocation = defaultdict[str, list[Entry]](list)
    ends = {allocation: allocation.start for allocation in experiment.allocations}
    for entry in sorted(records.entries, key=lambda entry: entry.start):
        if entry.experiment != experiment.id or entry.kind not in WORK:
            continue
        # Of several trials at once, the one whose last entry ended last before this one begins.
        candidates = []
        for allocation, last_end in ends.items():
            if last_end <= entry.start < allocation.end:
                candidates.append(allocation)
        if candidates:
            owner = max(candidates, key=lambda a: (ends[a], a.start))
            by_allocation[owner.id].append(entry)
            ends[owner] = entry.end

    # All entries but the first of an allocation have their true length.
    lengths = defaultdict[str, list[pd.Timedelta]](list)
    for entries in by_allocation.values():
        for entry in entries[1:]:
            lengths[entry.kind].append(entry.end - entry.start)

    # The first begins where the allocation did: cut it to what is usual for its kind.
    for entries in by_allocation.values():
        first = entries[0]
        length = first.end - first.start
        usual = median(lengths[first.kind] or [length])
        start = first.end - min(usual, length)
        entries[0] = first._replace(start=start)
    return dict(by_allocation)
