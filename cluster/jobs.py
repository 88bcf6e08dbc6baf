"""Checks of an experiment against its pool: slots, batch size, precision, memory."""

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from cluster.exprules import is_number
from cluster.fleet import pool_name, slots_of
from cluster.masterconf import Cluster, Pool
from cluster.models import find_model
from cluster.planner import Planned, faults, plan
from cluster.published import KNOWN_WINDOWS
from cluster.ranges import RANGES
from cluster.schema import Finding, mapping, nearest
from detalbert.errors import UserError
from detalbert.settings.hparams import StepHParams
from detalbert.training.workload import Workload
from lm.data import load_tokenizer
from lm.hparams import LmHParams, parse_documents_config
from lm.layout import choose_layout, parse_layout
from workloads import choose

# A reclaim without notice may cost every slot at most this much work.
MAX_LOSS_MINUTES = 15


def check_job(
    file: str, config: dict[str, Any], cluster: Cluster | None, root: Path
) -> Iterator[Finding]:
    """Yield the findings of one of this package's experiments, alone or against its pool.

    Args:
        root: parent folder of relative model folders.
    """
    try:
        workload = choose(config)
    except UserError as error:
        yield _from_error(file, error)
        return
    yield from _check_searcher(file, config, workload)
    try:
        workload.parsers.data(config.get("data"))
    except UserError as error:
        yield _from_error(file, error)
    slots = max(1, slots_of(config))
    pool = cluster and cluster.pools.get(pool_name(config, cluster))
    seen = set()
    for values in samples(mapping(config.get("hyperparameters"))):
        for finding in _check_trial(file, config, values, slots, pool, root):
            if finding not in seen:
                seen.add(finding)
                yield finding


def samples(hyperparameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trials at a search's corners (at most 1024): all choices, both ends of ranges."""
    choices = []
    for value in hyperparameters.values():
        kind = str(mapping(value).get("type"))
        if kind == "const":
            choices.append([value.get("val")])
        elif kind == "categorical":
            vals = value.get("vals")
            choices.append(vals if isinstance(vals, list) and vals else [None])
        elif kind == "log":
            base, ends = value.get("base"), (value.get("minval"), value.get("maxval"))
            sound = all(map(is_number, (base, *ends))) and base > 0
            sound = sound and all(abs(end * math.log(base)) < 700 for end in ends)
            choices.append([base**end for end in ends] if sound else [None])
        elif kind in RANGES:
            choices.append([value.get("minval"), value.get("maxval")])
        else:
            choices.append([value])
    corners = itertools.islice(itertools.product(*choices), 1024)
    return [dict(zip(hyperparameters, corner, strict=True)) for corner in corners]


def _check_searcher(file: str, config: dict[str, Any], workload: Workload) -> Iterator[Finding]:
    searcher = config.get("searcher")
    if not isinstance(searcher, dict):
        return
    metric = str(searcher.get("metric", workload.metric))
    if metric not in (known := ["loss", *workload.metrics]):
        problem = f"validation gives no {metric!r}; {nearest(metric, known)}"
        yield Finding(file, "searcher.metric", problem)
    elif searcher.get("smaller_is_better", True) is not (metric in workload.smaller_is_better):
        right = str(metric in workload.smaller_is_better).lower()
        problem = f"would keep the worst {metric}; set smaller_is_better: {right}"
        yield Finding(file, "searcher.smaller_is_better", problem)
    if searcher.get("time_metric") not in (None, "batches"):
        problem = "the trial counts in batches alone; set time_metric: batches and max_time to it"
        yield Finding(file, "searcher.time_metric", problem)


def _check_trial(
    file: str,
    config: dict[str, Any],
    values: dict[str, Any],
    slots: int,
    pool: Pool | None,
    root: Path,
) -> Iterator[Finding]:
    unknown: list[UserError] = []
    hparams = None
    try:
        hparams = _parse(choose(config), values, unknown)
    except UserError as error:
        fault = _from_error(file, error)
        given = fault.key.removeprefix("hyperparameters.") in values
        yield fault._replace(warning=bool(unknown) and not given)  # may be another trial's config
    yield from (_from_error(file, key)._replace(warning=True) for key in unknown)
    if hparams is None:
        return
    if hparams.global_batch_size % slots and not _split(hparams):
        yield Finding(
            file,
            "hyperparameters.global_batch_size",
            f"{hparams.global_batch_size} windows cannot be dealt evenly to {slots} slots; "
            f"use {-(-hparams.global_batch_size // slots) * slots}",
        )
    yield from _check_length(file, config, hparams)
    try:
        _read_text(config, hparams, root)
        if pool is None and _split(hparams) and (model := find_model(config, hparams, root)):
            choose_layout(parse_layout(hparams.layout), model.config, slots, slots)
    except UserError as error:
        yield _from_error(file, error)
    if pool is not None:
        yield from _check_on_pool(file, config, hparams, slots, pool, root)


def _check_length(file: str, config: dict[str, Any], hparams: StepHParams) -> Iterator[Finding]:
    """Yield findings if the searcher's length is not the number of steps that a trial trains."""
    searcher = mapping(config.get("searcher"))
    length = searcher.get("max_length")
    if _split(hparams) and hparams.max_steps is None and isinstance(length, dict):
        problem = f"missing, and searcher.max_length {length} ends no run of this package"
        cure = "a trial would train its epochs; say its length here"
        yield Finding(file, "hyperparameters.max_steps", f"{problem}: {cure}")
    if searcher.get("time_metric") == "batches" and searcher.get("max_time") != hparams.max_steps:
        yield Finding(
            file,
            "searcher.max_time",
            f"{searcher.get('max_time')}, but a trial trains hyperparameters.max_steps = "
            f"{hparams.max_steps} batches; set both to one number",
        )


def _read_text(config: dict[str, Any], hparams: StepHParams, root: Path) -> None:
    """Load tokenizer and token shards that are folders under `root`, to check that they match.

    Raises:
        UserError: if they do not match each other or max_seq_length, or lack an end of text.
    """
    data = mapping(config.get("data"))
    paths = {key: root / str(data[key]) for key in ("tokenizer", "shards") if data.get(key)}
    here = {key: str(path) for key, path in paths.items() if path.is_dir()}
    if {"tokenizer", "shards"} <= here.keys():
        choose(config).load({**data, **here}, hparams)
    elif "tokenizer" in here and _split(hparams):
        load_tokenizer(parse_documents_config({**data, **here}))


def _parse(workload: Workload, values: dict[str, Any], unknown: list[UserError]) -> StepHParams:
    """Return the hyperparameters; append one error per unknown key to `unknown`.

    train.py rejects unknown keys as well, but a modified one may read them, and the master accepts
    them: so the caller reports them as warnings. Raises UserError for anything else.
    """
    while True:
        try:
            return workload.parsers.hyperparameters(values)
        except UserError as error:
            name = re.match(r"hyperparameters\.(\S+): unknown key; known keys", str(error))
            if not name or name[1] not in values:
                raise
            unknown.append(error)
            values = {key: value for key, value in values.items() if key != name[1]}


def _check_on_pool(
    file: str, config: dict[str, Any], hparams: StepHParams, slots: int, pool: Pool, root: Path
) -> Iterator[Finding]:
    """Yield findings that depend on the machines: precision, memory, losses to spot reclaims."""
    yield from _check_precision(file, hparams, pool)
    try:
        planned = plan(config, hparams, pool, root)
    except UserError as error:
        yield _from_error(file, error)
        return
    if planned is not None:
        yield from (Finding(file, key, problem) for key, problem in faults(planned))
    if pool.gpu is not None and pool.spot and (planned is not None or _split(hparams)):
        if not hparams.spot_notice:
            problem = f"pool {pool.name!r} is spot: EC2's two-minute notice would go unread"
            yield Finding(file, "hyperparameters.spot_notice", f"{problem}; set it to true")
        if planned is not None:
            yield from _check_loss(file, planned)


def _split(hparams: StepHParams) -> TypeGuard[LmHParams]:
    return isinstance(hparams, LmHParams)


def _check_precision(file: str, hparams: StepHParams, pool: Pool) -> Iterator[Finding]:
    key, gpu = "hyperparameters.precision", pool.gpu
    if gpu is None:
        if hparams.precision == "fp16" and pool.slots_per_agent is not None:
            yield Finding(file, key, f"fp16 needs a GPU, pool {pool.name!r} has none; use auto")
    elif hparams.precision == "bf16" and not gpu.has_bf16:
        yield Finding(file, key, f"a {gpu.name} has no bf16; use auto or fp16")
    elif hparams.precision in ("fp16", "auto") and not gpu.has_fast_fp16:
        yield Finding(file, key, f"a {gpu.name} has no tensor cores for fp16; use fp32")


def _check_loss(file: str, planned: Planned) -> Iterator[Finding]:
    """Yield a finding if a reclaim without notice loses too much work, with full-length windows."""
    hparams, windows = planned.hparams, None
    train = str(mapping(planned.config.get("data")).get("train"))
    if (windows := KNOWN_WINDOWS.get(train)) is not None:
        windows //= hparams.global_batch_size
    period = hparams.checkpoint_period or windows
    if period is None:
        return
    step = planned.step * hparams.max_seq_length / planned.window
    if period * step > MAX_LOSS_MINUTES * 60:
        said = "" if hparams.checkpoint_period else " (an epoch, the default)"
        yield Finding(
            file,
            "hyperparameters.checkpoint_period",
            f"{period} steps{said} on spot pool {planned.pool.name!r}: a reclaim without notice "
            f"costs up to {period * step / 60:.0f} minutes of {planned.slots} slots "
            f"({planned.rate.source}); use {max(1, int(MAX_LOSS_MINUTES * 60 / step))} or less",
        )


def _from_error(file: str, error: UserError) -> Finding:
    key, _, problem = str(error).partition(": ")
    return Finding(file, key, problem)
