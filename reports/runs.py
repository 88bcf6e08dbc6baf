"""The command `runs`: scores of runs, best first, beside the config keys in which they differ."""

import argparse

import pandas as pd

from cluster.facts.prices import load_prices
from reports.report import METHOD, TABLES, Report, Table
from reports.run import Run, read_runs

SECTIONS = "hyperparameters", "data", "resources"  # of a config
NARROW_KEYS = 4  # columns of them without --wide


def run(args: argparse.Namespace) -> Report:
    """Report scores, steps, hours and differing config keys of local runs."""
    runs, notes = read_runs(args.run, load_prices(), None)
    runs.sort(key=_rank)
    names = dict.fromkeys((*(_rank(run)[1] for run in runs), "f1", "exact"))
    scores = [name for name in names if any(name in run.best for run in runs)]
    facts = pd.DataFrame([_facts(run, scores) for run in runs])
    keys = pd.json_normalize([{name: run.config.get(name) for name in SECTIONS} for run in runs])
    keys = keys.map(lambda value: str(value) if isinstance(value, list) else value)
    known = keys[[bool(run.config) for run in runs]]
    keys = keys.loc[:, known.nunique() + known.isna().any() > 1]
    if (more := keys.shape[1] - NARROW_KEYS) > 0:
        notes.append(f"{more} more config keys differ; --wide, --csv and --json have them")
    rows = pd.concat([facts, keys], axis=1).convert_dtypes()
    formats = dict.fromkeys(rows.select_dtypes("number"), "{:.6g}") | TABLES["formats"]
    narrow = {"run": "run", "steps\nstate": "{steps}/{of}\n{state}"}
    narrow |= {"hours\nstarts": "{worked h}\n{starts}", "win-\ndows/s": "windows/s"}
    for head in (*facts.columns[8:], *keys.columns[:NARROW_KEYS]):
        narrow[head.removeprefix("hyperparameters.").replace("_", "_\n")] = head
    return Report("Runs, best first", [Table("Runs", rows, formats, narrow)], METHOD["runs"], notes)


def _rank(run: Run) -> tuple[bool, str, bool, float]:
    """Return a run's place: apart by metric, best first; runs without a config or score last."""
    searcher = run.config.get("searcher") or {}
    metric, sign = searcher.get("metric") or "", 1 if searcher.get("smaller_is_better", 1) else -1
    return not metric, metric, run.best.get(metric) is None, sign * (run.best.get(metric) or 0)


def _facts(run: Run, scores: list[str]) -> dict[str, object]:
    """Return a run's columns but those of its config."""
    keys, best = run.config.get("hyperparameters") or {}, run.best.get("steps")
    limit, patience, period = map(keys.get, ("max_steps", "early_stopping", "validation_period"))
    early = patience and period and run.steps - (best or 0) >= patience * period
    state = "done" if limit and run.steps >= limit else "done early" if early else None
    row = {"run": run.name, "state": state, "steps": run.steps, "of": limit, "best at": best}
    row |= {"worked h": run.worked, "starts": 1 + sum((run.stops or {}).values())}
    row |= {"windows/s": run.throughput} | {name: run.best.get(name) for name in scores}
    return row | ({"cost": run.cost} if run.cost else {})
