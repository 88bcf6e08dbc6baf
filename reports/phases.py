"""Phases of each allocation: start-up, work, what was lost, and what ended it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from statistics import median
from typing import NamedTuple

import pandas as pd

from cluster.configs.expconf import runs
from reports.usage import Entry, Experiment, Moment, Records, Trial

SAVED = pd.Timedelta(minutes=1)  # before its end: a trial that is paused saves and leaves
EXITS = {"failed": "failed", "crashed": "failed", "preempted by": "preempted"}  # else paused
WORK = "training", "validation", "checkpointing"  # kinds of raw entries
OVER = {"STATE_ERROR": "failed", "STATE_CANCELED": "canceled", "STATE_COMPLETED": ""}
REAL = "failed", "reclaimed"  # stops that count before the work began, too
PHASES = "start-up", "work", "lost", "idle"  # of a bill

Begun = Mapping[str, Moment | None]  # allocation -> when its work began; None: it did not


class Stop(NamedTuple):
    """The end of an allocation before the trial's; the work since `saved` was lost."""

    allocation: str
    kind: str
    saved: Moment
    end: Moment
    machines: int = 1  # that were reclaimed


class Course(NamedTuple):
    """An allocation is start-up until `begun`, work until `saved`, and lost from then on."""

    begun: Moment
    saved: Moment
    again: bool = False  # it starts work that had begun before


class Story(NamedTuple):
    """Course of an experiment: its allocations by id, its stops, and the time in between."""

    courses: Mapping[str, Course]
    stops: Sequence[Stop]
    gaps: Sequence[tuple[Moment, Moment]]  # from a stop of work to the next start


def story(experiment: Experiment, records: Records, reclaimed: Counter[str]) -> Story:
    """Return the course of an experiment; `reclaimed` counts machines by allocation.

    An allocation that was taken back before its work began is start-up: it is no stop, unless it
    failed or AWS took its machine, and the next one starts nothing again.
    """
    entries = work_entries(experiment, records)
    courses, all_stops, gaps = dict[str, Course](), list[Stop](), list[tuple[Moment, Moment]]()
    for trial in experiment.trials:
        begun = _begun(trial, entries, runs(dict(experiment.config), "predict.py"), records)
        stops = {stop.allocation: stop for stop in _stops(trial, records, reclaimed, begun)}
        all_stops += stops.values()
        again, last = False, None
        for a in trial.allocations:
            start, stop = begun[a.id], stops.get(a.id)
            if start is None:
                start = a.start if stop and stop.kind == "failed" else a.end
            saved = max(start, stop.saved) if stop else a.end
            courses[a.id] = Course(begun=start, saved=saved, again=again)
            if again and last is not None:
                gaps.append((last, a.start))
            again, last = again or start < a.end, a.end
    return Story(courses, all_stops, _merged(gaps))


def _merged(spans: Sequence[tuple[Moment, Moment]]) -> list[tuple[Moment, Moment]]:
    merged = list[tuple[Moment, Moment]]()
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _begun(
    trial: Trial, entries: Mapping[str, Sequence[Entry]], predicts: bool, records: Records
) -> dict[str, Moment | None]:
    """Return when the work of each allocation began, by id; None: no record says that it did."""
    begun = dict[str, Moment | None]()
    for a in trial.allocations:
        reports = [r for r in trial.reports if a.start < r.time <= a.end]
        work = entries.get(a.id, ())
        completed = a is trial.allocations[-1] and "COMPLETED" in trial.state
        stored = any(a.start <= moment <= a.end for moment in trial.checkpoints)
        moments = [r.time - pd.Timedelta(seconds=r.seconds) for r in reports[:1]]
        moments += [e.start for e in work[:1] if e.kind != "training" or not reports]
        if a.launched is not None:
            moment = a.launched
        elif moments and not predicts:
            moment = min(moments)
        elif work or stored or completed or not records.entries:
            moment = a.start
        else:
            begun[a.id] = None
            continue
        begun[a.id] = min(max(moment, a.start), a.end)
    return begun


def _stops(
    trial: Trial, records: Records, reclaimed: Mapping[str, int], begun: Begun
) -> list[Stop]:
    """Return the ends of allocations before the trial's, and their causes.

    If the master recorded no cause, `restarts` ends are failures: those that lost most, and each
    that had not just saved.
    """
    stops, unknown = list[Stop](), list[Stop]()
    for a, after in zip_longest(trial.allocations, trial.allocations[1:]):
        saved = max((c for c in trial.checkpoints if a.start <= c <= a.end), default=a.start)
        if after is None and ("COMPLETED" in trial.state or a.end == records.now):
            continue
        if after is not None and after.task != a.task:
            stops.append(Stop(a.id, "continued", a.end, a.end))
        elif a.id in reclaimed:
            stops.append(Stop(a.id, "reclaimed", saved, a.end, reclaimed[a.id]))
        elif after is None and trial.state in OVER:
            stops.append(Stop(a.id, OVER[trial.state], saved, a.end))
        elif a.exit:
            kind = next((kind for words, kind in EXITS.items() if words in a.exit), "paused")
            kept = kind != "failed" and "killed" not in a.exit
            stops.append(Stop(a.id, kind, a.end if kept else saved, a.end))
        elif after is not None:
            unknown.append(Stop(a.id, "failed", a.end if begun[a.id] is None else saved, a.end))
    unseen = trial.restarts - sum(stop.kind == "failed" for stop in stops)
    unknown.sort(key=lambda stop: stop.saved - stop.end)
    for rank, stop in enumerate(unknown):
        kept = rank >= unseen and stop.end - stop.saved <= SAVED
        stops.append(stop._replace(kind="paused", saved=stop.end) if kept else stop)
    return [stop for stop in stops if stop.kind in REAL or begun[stop.allocation] is not None]


def work_entries(experiment: Experiment, records: Records) -> dict[str, list[Entry]]:
    """Return the raw entries of each allocation in order; the first one without the start-up.

    An entry begins where the trial's last one ended, the first one where the allocation did: it is
    taken to be as long as the experiment's others of its kind are, if there are any.
    """
    by_allocation = defaultdict[str, list[Entry]](list)
    ends = {a: a.start for a in experiment.allocations}
    own = [e for e in records.entries if e.experiment == experiment.id and e.kind in WORK]
    for entry in sorted(own, key=lambda entry: entry.start):
        fits = [a for a in ends if ends[a] <= entry.start < a.end]
        if fits:
            last = max(fits, key=lambda a: (ends[a], a.start))
            by_allocation[last.id].append(entry)
            ends[last] = entry.end
    later = [entry for entries in by_allocation.values() for entry in entries[1:]]
    for entries in by_allocation.values():
        first = entries[0]
        alike = [entry.end - entry.start for entry in later if entry.kind == first.kind]
        usual = median(alike) if alike else first.end - first.start
        entries[0] = first._replace(start=max(first.start, first.end - usual))
    return dict(by_allocation)


def pieces(course: Course | None, start: Moment, end: Moment) -> list[tuple[str, Moment, Moment]]:
    """Return the phases of the part of an allocation that is from `start` to `end`."""
    if course is None:
        return [("work", start, end)]
    cuts = [start, *(min(max(t, start), end) for t in (course.begun, course.saved)), end]
    spans = zip(("start-up", "work", "lost"), pairwise(cuts), strict=True)
    return [(phase, left, right) for phase, (left, right) in spans if left < right]
