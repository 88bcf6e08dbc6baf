"""Checks of an experiment against its pool: slots, batch size, precision, memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cluster.configs.fleet import slots_of
from cluster.configs.masterconf import Pool
from cluster.estimates.estimate import Estimate, estimate, find_faults
from cluster.estimates.job import Job, known_size, samples
from cluster.estimates.models import find_model
from cluster.facts.spot import LONGEST
from detalbert.errors import UnknownKey, UserError
from detalbert.settings.hparams import StepHParams
from detalbert.settings.schema import Finding, mapping, without_nulls
from detalbert.settings.sections import SectionError
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.training.workload import Workload
from lm.corpus import load_tokenizer
from lm.hparams import LmHParams, parse_documents_config
from lm.layout import choose_layout
from workloads import choose


def check_job(config: dict[str, Any], pool: Pool | None, root: Path) -> Iterator[Finding]:
    """Yield the findings of one of this package's experiments, alone or against its pool.

    Args:
        root: parent folder of relative model folders.
    """
    workload, wrong = _tried(choose, config)
    yield from wrong
    if workload is None:
        return
    yield from _check_searcher(config, workload)
    yield from _tried(workload.parsers.data, config.get("data"))[1]
    found: dict[Finding, None] = {}  # in order, each once
    for values in samples(mapping(config.get("hyperparameters"))):
        hparams, wrong = _parse(workload, values)
        found |= dict.fromkeys(wrong)
        if hparams is not None:
            job = Job(
                config, workload, hparams, max(1, slots_of(config)), pool, root, known_size(config)
            )
            found |= dict.fromkeys(_check(job))
    yield from found


def _tried(call: Callable[..., Any], *given: Any) -> tuple[Any, list[Finding]]:
    """Return `call(*given)`, or None and the findings that its UserError stands for."""
    try:
        return call(*given), []
    except UserError as error:
        return None, list(map(_from_error, _problems(error)))


def _problems(error: UserError) -> list[UserError]:
    """Return all problems of a section whose parser raised `error`."""
    return error.problems if isinstance(error, SectionError) else [error]


def _from_error(error: UserError) -> Finding:
    key, _, problem = str(error).partition(": ")
    return Finding(key, problem)


def _check_searcher(config: dict[str, Any], workload: Workload) -> Iterator[Finding]:
    if not isinstance(config.get("searcher"), dict):
        return
    searcher = without_nulls(config["searcher"])
    metric = str(searcher.get("metric", workload.metric))
    smaller = searcher.get("smaller_is_better", True)  # a master's default
    yield from _tried(workload.check_searcher, {"metric": metric, "smaller_is_better": smaller})[1]
    if searcher.get("time_metric") not in (None, "batches"):
        problem = "the trial counts in batches alone; set time_metric: batches and max_time to it"
        yield Finding("searcher.time_metric", problem)


def _parse(workload: Workload, values: dict[str, Any]) -> tuple[StepHParams | None, list[Finding]]:
    """Return the hyperparameters, None if invalid, and the findings on their keys.

    Keys that are not like any of ours are warnings: train.py rejects them as well, but a modified
    one may read them, and the master accepts them. The rest is checked without them.
    """
    try:
        return workload.parsers.hyperparameters(values), []
    except UserError as error:
        wrong = _problems(error)
    unknown = [e for e in wrong if isinstance(e, UnknownKey) and e.key in values]
    foreign = [error for error in unknown if not error.is_typo]
    if not foreign:
        return None, [_from_error(error) for error in wrong]
    names = {error.key for error in foreign}
    hparams, found = _parse(workload, {k: v for k, v in values.items() if k not in names})
    warnings = [_from_error(error)._replace(warning=True) for error in foreign]
    for fault in found:  # what is not given may be another trial's matter
        given = fault.key.removeprefix("hyperparameters.") in values
        warnings.append(fault._replace(warning=not given))
    return hparams, warnings


def _check(job: Job) -> Iterator[Finding]:
    """Yield the findings on a trial whose keys are right."""
    batch, slots, hparams, pool = job.hparams.global_batch_size, job.slots, job.hparams, job.pool
    if batch % slots and not isinstance(hparams, LmHParams):
        problem = f"{batch} windows cannot be dealt evenly to {slots} slots"
        cure = f"use {-(-batch // slots) * slots}"
        yield Finding("hyperparameters.global_batch_size", f"{problem}; {cure}")
    yield from _check_length(job)
    yield from _tried(_read_text, job)[1]
    if pool is not None:
        yield from _check_precision(job, pool)
    found, wrong = _tried(estimate if pool is not None else _check_layout, job)
    yield from wrong
    if found is not None:
        yield from find_faults(found)
    known = found is not None or (isinstance(hparams, LmHParams) and not wrong)
    if pool is not None and pool.gpu and pool.spot and known and not hparams.spot_notice:
        problem = f"pool {pool.name!r} is spot: EC2's two-minute notice would go unread"
        yield Finding("hyperparameters.spot_notice", f"{problem}; set it to true")
    if found is not None and found.pool.spot:
        yield from _check_loss(job, found)


def _check_length(job: Job) -> Iterator[Finding]:
    """Yield findings if the searcher's length is not the number of steps that a trial trains."""
    searcher, steps = mapping(job.config.get("searcher")), job.hparams.max_steps
    length, most = searcher.get("max_length"), searcher.get("max_time")
    if isinstance(job.hparams, LmHParams) and steps is None and isinstance(length, dict):
        problem = f"missing, and searcher.max_length {length} ends no run of this package"
        cure = "a trial would train its epochs; say its length here"
        yield Finding("hyperparameters.max_steps", f"{problem}: {cure}")
    if searcher.get("time_metric") == "batches" and most != steps:
        problem = f"{most}, but a trial trains hyperparameters.max_steps = {steps} batches"
        yield Finding("searcher.max_time", f"{problem}; set both to one number")


def _read_text(job: Job) -> None:
    """Load tokenizer and token shards that are folders under `root`, to check that they match.

    Raises:
        UserError: if they do not match each other or max_seq_length, or lack an end of text.
    """
    data = mapping(job.config.get("data"))
    paths = {key: job.root / str(data[key]) for key in ("tokenizer", "shards") if data.get(key)}
    here = {key: str(path) for key, path in paths.items() if path.is_dir()}
    if "shards" in here and paths.keys() == here.keys():
        job.workload.load({**data, **here}, job.hparams)
    elif "tokenizer" in here and isinstance(job.hparams, LmHParams):
        load_tokenizer(parse_documents_config({**data, **here}), named_tokenizer)


def _check_layout(job: Job) -> None:
    """Raise UserError if the layout of a language model does not fit the slots of one machine."""
    model = find_model(job.config, job.hparams, job.root)
    if isinstance(job.hparams, LmHParams) and model is not None:
        choose_layout(job.hparams.layout, model.config, job.slots, job.slots)


def _check_precision(job: Job, pool: Pool) -> Iterator[Finding]:
    key, gpu, precision = "hyperparameters.precision", pool.gpu, job.hparams.precision
    if gpu is None:
        if precision == "fp16" and pool.slots_per_agent is not None:
            yield Finding(key, f"fp16 needs a GPU, pool {pool.name!r} has none; use auto")
    elif precision == "bf16" and not gpu.has_bf16:
        yield Finding(key, f"a {gpu.name} has no bf16; use auto or fp16")
    elif precision in ("fp16", "auto") and not gpu.has_fast_fp16:
        yield Finding(key, f"a {gpu.name} has no tensor cores for fp16; use fp32")


def _check_loss(job: Job, found: Estimate) -> Iterator[Finding]:
    """Yield a finding if a reclaim without notice loses too much work, with full-length windows."""
    hparams, period = job.hparams, found.period or 0  # 0: not known
    step = found.step * hparams.max_seq_length / found.window
    if period * step > LONGEST:
        said = "" if hparams.checkpoint_period else " (an epoch, the default)"
        yield Finding(
            "hyperparameters.checkpoint_period",
            f"{period} steps{said} on spot pool {found.pool.name!r}: a reclaim without notice "
            f"costs up to {period * step / 60:.0f} minutes of {job.slots} slots "
            f"({found.rate.source}); use {max(1, int(LONGEST / step))} or less",
        )
