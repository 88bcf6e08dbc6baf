"""The command `runs`: scores of runs, best first, beside what they cost and the config keys in
which they differ.

Runs are ranked by the metric of their own searcher, each metric apart: two metrics have no order.
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
    rates = Rates(path=args.prices, region=args.region, live=args.live, today=args.today)
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
        raise UserError("nothing to report", key="runs", cure="give RUN, --experiment or --project")
    runs.sort(key=_rank)

    # Fixed columns, then those of scores, then a column for each key that differs.
    names = _score_names(runs)
    columns = pd.DataFrame([_columns(run) | _scores(run, names) for run in runs])
    keys = _differing_keys(runs)
    hidden = keys.shape[1] - NARROW_KEYS
    if hidden > 0 and not (args.wide or args.form):
        notes.append(f"{hidden} more config keys differ; --wide, --csv and --json have them")
    rows = pd.concat([columns, keys], axis=1).convert_dtypes()
    formats = dict.fromkeys(rows.select_dtypes("number"), "{:.6g}") | TABLES["formats"]

    # Without --wide heads are broken at underscores, so that columns stay as narrow as figures.
    narrow = dict(NARROW)
    names += [head for head in ("cost", "unpriced h") if head in columns]
    for head in [*names, *keys.columns[:NARROW_KEYS]]:
        short = head.removeprefix("hyperparameters.")
        narrow[short.replace("_", "_\n")] = head
    table = Table("Runs", frame=rows, formats=formats, narrow=narrow)
    return Report(
        title=title,
        tables=[table],
        method=METHOD["runs"],
        notes=[*notes, *on_prices],
    )


def _score_names(runs: list[Run]) -> list[str]:
    """Return the metrics of the searchers, F1 and exact match, as far as a run has them."""
    metrics = [_metric(run) for run in runs]
    names = dict.fromkeys([*metrics, "f1", "exact"])  # in order, each once
    return [name for name in names if any(name in run.scores for run in runs)]


def _metric(run: Run) -> str:
    """Return the metric by which a run's searcher compares validations; empty if it has none."""
    searcher = run.config.get("searcher") or {}
    return searcher.get("metric") or ""


def _rank(run: Run) -> tuple[bool, str, bool, float]:
    """Return a run's place: apart by metric, best first; runs without a config or score last."""
    # Of a metric that is better if greater, the negative sorts in the same direction.
    metric = _metric(run)
    score = run.scores.get(metric)
    searcher = run.config.get("searcher") or {}
    smaller_is_better = searcher.get("smaller_is_better", True)
    ascending = score or 0
    if not smaller_is_better:
        ascending = -ascending
    return not metric, metric, score is None, ascending


def _differing_keys(runs: list[Run]) -> pd.DataFrame:
    """Return a column per key in which the configs differ; runs without one are not counted."""
    sections = [{name: run.config.get(name) for name in SECTIONS} for run in runs]
    keys = pd.json_normalize(sections)  # a row per run, a column per dotted key
    keys = keys.map(lambda value: str(value) if isinstance(value, list) else value)
    with_config = keys[[bool(run.config) for run in runs]]
    values = with_config.nunique() + with_config.isna().any()  # no value is one, too
    return keys.loc[:, values > 1]


def _columns(run: Run) -> dict[str, object]:
    """Return a run's columns but those of its scores, its cost and its config."""
    hparams = run.config.get("hyperparameters") or {}
    work = run.work
    best_step = run.scores.get("steps")
    max_steps = hparams.get("max_steps")

    # A local run records no state: it is done by its number of steps, or once it had waited for
    # `early_stopping` validations without a better one.
    patience = hparams.get("early_stopping") or 0
    patience_steps = patience * (hparams.get("validation_period") or 0)
    state = run.state
    if not state and max_steps and work.steps >= max_steps:
        state = "done"
    elif not state and patience_steps and work.steps - (best_step or 0) >= patience_steps:
        state = "done early"
    return {
        "run": run.name,
        "state": state or None,
        "steps": work.steps,
        "of": max_steps,
        "best at": best_step,
        "worked h": work.worked,
        "starts": work.starts,
        "windows/s": work.throughput,
    }


def _scores(run: Run, names: list[str]) -> dict[str, object]:
    """Return a run's columns of scores, and its cost if it has one."""
    scores: dict[str, object] = {name: run.scores.get(name) for name in names}
    if run.bill.cost:
        scores["cost"] = run.bill.cost
        if run.bill.unpriced:
            scores["unpriced h"] = run.bill.unpriced
    return scores
