"""The command `runs`: scores of runs, best first, beside what they cost and the config keys in
which they differ.
"""

import argparse

import pandas as pd

from cluster.facts.prices import price_notes, prices_head
from cluster.facts.rates import Rates
from detalbert.errors import UserError
from reports import bills
from reports.ledger import fetch_ledger
from reports.report import METHOD, TABLES, Report, Table
from reports.run import Run, read_runs
from reports.usage import Selection

SECTIONS = "hyperparameters", "data", "resources"  # of a config
NARROW_KEYS = 4  # columns of them without --wide
NARROW = {
    "run": "run",
    "steps\nstate": "{steps}/{of}\n{state}",
    "hours\nstarts": "{worked h}\n{starts}",
    "win-\ndows/s": "windows/s",
}


def run(args: argparse.Namespace) -> Report:
    """Report scores, steps, hours, dollars and differing config keys of runs and trials."""
    rates = Rates(args.prices, args.region, args.live, args.today)
    on_prices = rates.use_named(args.run)
    runs, notes = read_runs(args.run, rates.table())
    title = "Runs, best first"
    ledger = fetch_ledger(Selection.of(args), rates, args.price_pool)
    if ledger is not None:
        runs += bills.trial_runs(ledger.records, ledger.table)
        notes += ledger.notes
        notes += bills.notes(ledger.records, ledger.table)
        on_prices += price_notes(rates.used(), args.today)
        title += f": {prices_head(rates.used(), args.today)}"
    if not runs:
        raise UserError("runs: nothing to report; give RUN, --experiment or --project")
    runs.sort(key=_rank)
    metrics = [_metric(run) for run in runs]
    scores = [
        name
        for name in dict.fromkeys((*metrics, "f1", "exact"))
        if any(name in run.scores for run in runs)
    ]
    columns = pd.DataFrame([_columns(run, scores) for run in runs])
    keys = _differing_keys(runs)
    hidden = keys.shape[1] - NARROW_KEYS
    if hidden > 0:
        notes.append(f"{hidden} more config keys differ; --wide, --csv and --json have them")
    rows = pd.concat([columns, keys], axis=1).convert_dtypes()
    formats = dict.fromkeys(rows.select_dtypes("number"), "{:.6g}") | TABLES["formats"]
    narrow = dict(NARROW)
    for head in (*columns.columns[8:], *keys.columns[:NARROW_KEYS]):
        narrow[head.removeprefix("hyperparameters.").replace("_", "_\n")] = head
    table = Table("Runs", rows, formats, narrow)
    return Report(title, [table], METHOD["runs"], [*notes, *on_prices])


def _metric(run: Run) -> str:
    return (run.config.get("searcher") or {}).get("metric") or ""


def _rank(run: Run) -> tuple[bool, str, bool, float]:
    """Return a run's place: apart by metric, best first; runs without a config or score last."""
    metric = _metric(run)
    score = run.scores.get(metric)
    smaller = (run.config.get("searcher") or {}).get("smaller_is_better", True)
    place = score or 0
    return not metric, metric, score is None, place if smaller else -place


def _differing_keys(runs: list[Run]) -> pd.DataFrame:
    """Return a column per key in which the configs differ; runs without one are not counted."""
    sections = [{name: run.config.get(name) for name in SECTIONS} for run in runs]
    keys = pd.json_normalize(sections)
    keys = keys.map(lambda value: str(value) if isinstance(value, list) else value)
    with_config = keys[[bool(run.config) for run in runs]]
    values = with_config.nunique() + with_config.isna().any()  # no value is one, too
    return keys.loc[:, values > 1]


def _columns(run: Run, scores: list[str]) -> dict[str, object]:
    """Return a run's columns but those of its config."""
    keys = run.config.get("hyperparameters") or {}
    work = run.work
    best = run.scores.get("steps")
    limit = keys.get("max_steps")
    patience = (keys.get("early_stopping") or 0) * (keys.get("validation_period") or 0)
    state = run.state
    if not state and limit and work.steps >= limit:
        state = "done"
    elif not state and patience and work.steps - (best or 0) >= patience:
        state = "done early"
    row = {
        "run": run.name,
        "state": state or None,
        "steps": work.steps,
        "of": limit,
        "best at": best,
        "worked h": work.worked,
        "starts": work.starts,
        "windows/s": work.throughput,
        **{name: run.scores.get(name) for name in scores},
    }
    return row | ({"cost": run.bill.cost} if run.bill.cost else {})
