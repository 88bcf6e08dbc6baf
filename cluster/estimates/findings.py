"""Checks of an experiment against its pool: slots, batch size, precision, memory.

The trainer's own parsers and checks run here, so that a config is refused in the words in which
train.py would refuse it hours later; what they raise becomes findings, and the next check goes on.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from cluster.configs.fleet import slots_of
from cluster.configs.masterconf import Pool
from cluster.configs.schema import from_error
from cluster.configs.values import Finding, at, mapping
from cluster.estimates.estimate import estimate
from cluster.estimates.faults import find_faults
from cluster.estimates.job import Job, known_size, samples
from cluster.facts.published import KNOWN_WINDOWS
from detalbert.errors import SectionError, UnknownKey, UserError
from detalbert.settings.hparams import HParams, StepHParams
from detalbert.settings.schema import as_a_master_reads
from detalbert.settings.values import Config
from detalbert.training.sizing import CONTEXTS, LONG_QUESTION, SPECIAL, Slots, find_model
from detalbert.training.workload import Workload
from workloads import choose

Result = TypeVar("Result")


def check_job(config: Config, pool: Pool | None, root: Path) -> Iterator[Finding]:
    """Yield the findings of one of this package's experiments, alone or against its pool.

    Args:
        config: the experiment, its sections mappings.
        pool: None if it is not known.
        root: parent folder of relative model folders.
    """
    workload, findings = _attempt(choose, config)
    yield from findings
    if workload is None:
        return
    yield from check_searcher(config, workload)
    _, findings = _attempt(workload.parsers.data, config.get("data"))
    yield from findings

    # The trials at the corners of a search, whose findings are mostly the same.
    all_findings: dict[Finding, None] = {}  # in order, each once
    for values in samples(mapping(config.get("hyperparameters"))):
        hparams, findings = _parse(workload, values)
        if hparams is not None:
            model, no_model = _attempt(find_model, workload.sizing, config, hparams, root)
            job = Job(
                config=config,
                workload=workload,
                hparams=hparams,
                slots=max(1, slots_of(config)),
                pool=pool,
                root=root,
                size=known_size(config, hparams),
                model=model,
            )
            findings += [*check_place(job), *check_work(job), *no_model, *_check_size(job)]
        all_findings |= dict.fromkeys(findings)
    yield from all_findings


def _check_size(job: Job) -> Iterator[Finding]:
    """Yield the findings on a trial's layout, memory and time."""
    if job.pool is None:
        _, findings = _attempt(_check_layout, job)
        yield from findings
        return
    estimated, findings = _attempt(estimate, job)
    yield from findings
    if estimated is not None:
        yield from find_faults(estimated)


def check_place(job: Job) -> Iterator[Finding]:
    """Yield the findings on keys that depend on a trial's slots and pool."""
    # The gradient is a mean over the slots of a replicated model: each needs as many windows.
    batch = job.hparams.global_batch_size
    slots = job.slots
    if batch % slots and not job.workload.sharded:
        next_multiple = -(-batch // slots) * slots
        yield Finding(
            "hyperparameters.global_batch_size",
            problem=f"{batch} windows cannot be dealt evenly to {slots} slots",
            cure=f"use {next_multiple}",
        )
    if job.pool is not None:
        yield from _check_precision(job, job.pool)
        if job.pool.spot and job.pool.gpu and not job.hparams.spot_notice:
            yield Finding(
                "hyperparameters.spot_notice",
                problem=f"pool {job.pool.name!r} is spot: EC2's two-minute notice would go unread",
                cure="set it to true",
            )


def check_work(job: Job) -> Iterator[Finding]:
    """Yield the findings on a trial's length, tokenizer and token shards."""
    yield from _check_length(job)
    yield from _check_windows(job)
    _, findings = _attempt(_read_text, job)
    yield from findings


def _attempt(
    check: Callable[..., Result], *arguments: object
) -> tuple[Result | None, list[Finding]]:
    """Return what `check` returns, or None and the findings that its UserError stands for."""
    try:
        return check(*arguments), []
    except UserError as error:
        return None, [from_error(problem) for problem in _problems(error)]


def _problems(error: UserError) -> list[UserError]:
    """Return all problems of a section whose parser raised `error`."""
    return error.problems if isinstance(error, SectionError) else [error]


def check_searcher(config: Config, workload: Workload) -> Iterator[Finding]:
    """Yield the findings on the searcher's metric and unit."""
    if not isinstance(config.get("searcher"), dict):
        return
    searcher = as_a_master_reads(config)["searcher"]
    if isinstance(searcher.get("metric"), str):
        _, findings = _attempt(workload.check_searcher, searcher)
        yield from findings
    if searcher.get("time_metric") not in (None, "batches"):
        yield Finding(
            "searcher.time_metric",
            problem="the trial counts in batches alone",
            cure="set time_metric: batches and max_time to it",
        )


def _parse(workload: Workload, values: Config) -> tuple[StepHParams | None, list[Finding]]:
    """Return the hyperparameters, None if invalid, and the findings on their keys.

    Keys that are not like any of ours are warnings: train.py rejects them as well, but a modified
    one may read them, and the master accepts them. The rest is checked without them.
    """
    try:
        return workload.parsers.hyperparameters(values), []
    except UserError as error:
        problems = _problems(error)
    foreign = []
    for problem in problems:
        if isinstance(problem, UnknownKey) and problem.name in values and not problem.is_typo:
            foreign.append(problem)
    if not foreign:
        return None, [from_error(problem) for problem in problems]

    # The keys that are ours, parsed alone.
    names = {problem.name for problem in foreign}
    own_values = {key: value for key, value in values.items() if key not in names}
    hparams, own_findings = _parse(workload, own_values)
    findings = [from_error(problem)._replace(warning=True) for problem in foreign]
    for finding in own_findings:
        # A key that is missing may be given in another trial.
        name = finding.key.removeprefix("hyperparameters.")
        findings.append(finding._replace(warning=name not in values))
    return hparams, findings


def _check_length(job: Job) -> Iterator[Finding]:
    """Yield findings if the searcher's length is not the number of steps that a trial trains."""
    searcher = mapping(job.config.get("searcher"))
    steps = job.hparams.max_steps
    max_length = searcher.get("max_length")
    max_time = searcher.get("max_time")
    if job.workload.sharded and steps is None and isinstance(max_length, dict):
        yield Finding(
            "hyperparameters.max_steps",
            problem=f"missing, and searcher.max_length {max_length} ends no run of this package: "
            "a trial would train its epochs",
            cure="say its length here",
        )
    if searcher.get("time_metric") == "batches" and max_time != steps:
        yield Finding(
            "searcher.max_time",
            problem=f"{max_time}, but a trial trains hyperparameters.max_steps = {steps} batches",
            cure="set both to one number",
        )


def _check_windows(job: Job) -> Iterator[Finding]:
    """Yield a finding if windows of SQuAD's long questions cannot cover their contexts, which ends
    a run at its start (check_cover of squad/cutting.py).
    """
    hparams = job.hparams
    is_squad = str(at(job.config, "data.train")) in KNOWN_WINDOWS
    if not is_squad or not isinstance(hparams, HParams):
        return
    question = min(LONG_QUESTION, hparams.max_query_length)
    room = hparams.max_seq_length - SPECIAL - question
    if room <= hparams.doc_stride and room < CONTEXTS[-1]:
        yield Finding(
            "hyperparameters.doc_stride",
            problem=f"{hparams.doc_stride} shared tokens, and max_seq_length "
            f"{hparams.max_seq_length} leaves {room} to the context of a question of {question}",
            cure=f"use less than {room}, or a larger max_seq_length",
        )


def _read_text(job: Job) -> None:
    """Load tokenizer and token shards that are folders under `root`, to check that they match.

    Raises:
        UserError: if they do not match each other or max_seq_length, or lack an end of text.
    """
    # Addresses of buckets and hubs are no folders, and stay unread.
    data = dict(mapping(job.config.get("data")))
    absent = []
    for key in ("tokenizer", "shards"):
        if data.get(key):
            path = job.root / str(data[key])
            if path.is_dir():
                data[key] = str(path)
            else:
                absent.append(key)
    if data.get("shards") and not absent:
        job.workload.load(data, job.hparams)
    elif data.get("tokenizer") and "tokenizer" not in absent:
        job.workload.sizing.check_tokenizer(data)


def _check_layout(job: Job) -> None:
    """Raise UserError if the layout of a sharded model does not fit the slots of one machine."""
    # One machine of any width is assumed: how many slots a machine has is not known.
    if job.model is not None:
        slots = Slots(number=job.slots, per_machine=job.slots, has_bf16=True)
        job.workload.sizing.demand(job.model, job.hparams, slots)


def _check_precision(job: Job, pool: Pool) -> Iterator[Finding]:
    key = "hyperparameters.precision"
    gpu = pool.gpu
    precision = job.hparams.precision
    if gpu is None:
        if precision == "fp16" and pool.slots_per_agent is not None:
            problem = f"fp16 needs a GPU, pool {pool.name!r} has none"
            yield Finding(key, problem=problem, cure="use auto")
    elif precision == "bf16" and not gpu.has_bf16:
        yield Finding(key, problem=f"a {gpu.name} has no bf16", cure="use auto or fp16")
    elif precision in ("fp16", "auto") and not gpu.has_fast_fp16:
        problem = f"a {gpu.name} has no tensor cores for fp16"
        yield Finding(key, problem=problem, cure="use fp32")
