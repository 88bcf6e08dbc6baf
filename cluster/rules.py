"""Rules for experiments that a master accepts and that then fail, or train for nothing.

A rule is one function in one list: it takes an Experiment and yields a UserError for each problem.
The schema (detalbert/settings/experiment.yaml) says what a single key may hold, and classes say it
of `hyperparameters` and `data`. A rule of our own trials loops over `experiment.trials` or asks
`experiment.trains`; one of machines asks `experiment.pool`, which is None if it is not known.
"""

import re
from collections.abc import Callable, Iterator

from cluster.experiment import Experiment
from cluster.uploads import not_uploaded
from detalbert.command import needing
from detalbert.errors import UserError, nearest

Problems = Iterator[UserError]
Rule = Callable[[Experiment], Problems]

LAUNCHER = "python3 -m determined.launch.torch_distributed"
# <<anything>>, and the names that the configs which ship use for a bucket and a checkpoint.
PLACEHOLDER = re.compile(
    r"<<[^<>]*>>|(?<![\w.-])my-(?:bucket|pretrained-checkpoint|questions)(?![\w.-])"
)


def placeholders(value: object, key: str = "") -> Problems:
    """Yield a problem for each place of the user's that is not filled in, of a value at `key`."""
    if isinstance(value, str):
        for text in PLACEHOLDER.findall(value):
            yield UserError(f"placeholder {text} is not filled in", key=key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from placeholders(item, key=f"{key}[{number}]")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from placeholders(inner, key=f"{key}.{name}".lstrip("."))


def no_launcher(experiment: Experiment) -> Problems:
    """Several slots without a launcher: one process starts, and the other slots are idle."""
    is_ours = experiment.trains or experiment.predicts
    if experiment.slots > 1 and is_ours and "determined.launch" not in experiment.command:
        yield UserError(
            f"{experiment.slots} slots need a launcher",
            key="entrypoint",
            cure=f"put {LAUNCHER} before the rest",
        )


def words_in_one_item(experiment: Experiment) -> Problems:
    """A list whose first item has several words: it is run as the name of one program."""
    entrypoint = experiment.at("entrypoint")
    program = str(entrypoint[0]) if isinstance(entrypoint, list) and entrypoint else ""
    if len(program.split()) > 1:
        yield UserError(
            f"{program!r} is run as the name of one program",
            key="entrypoint",
            cure="give one word an item, or a text",
        )


def uncompiled_log_pattern(experiment: Experiment) -> Problems:
    """A log policy whose pattern Go does not compile, in RE2's syntax."""
    with needing("cluster"):
        import re2

    silent = re2.Options()
    silent.log_errors = False  # on stderr
    for number, policy in enumerate(experiment.rows("log_policies")):
        pattern = policy.get("pattern")
        if not isinstance(pattern, str):
            continue
        try:
            re2.compile(pattern, silent)
        except re2.error as error:
            reason = error.args[0].decode(errors="replace")[:80]
            yield UserError(
                f"Go's regexp does not compile it ({reason}), and the master then watches for none "
                "of the policies after it",
                key=f"log_policies[{number}].pattern",
                cure="write it in RE2's syntax",
            )


def searchers_time(experiment: Experiment) -> Problems:
    """An ASHA that counts its rungs in another unit, or to another end, than a trial."""
    metric = experiment.at("searcher.time_metric")
    if not experiment.trains or metric is None:
        return
    if metric != "batches":
        yield UserError(
            "the trial counts in batches alone",
            key="searcher.time_metric",
            cure="set time_metric: batches and max_time to it",
        )
        return
    max_time = experiment.at("searcher.max_time")
    for trial in experiment.trials:
        if trial.max_steps != max_time:
            yield UserError(
                f"{max_time}, but a trial trains hyperparameters.max_steps = {trial.max_steps} "
                "batches",
                key="searcher.max_time",
                cure="set both to one number",
            )


def uneven_batch(experiment: Experiment) -> Problems:
    """A global batch that the slots of a replicated model cannot share evenly."""
    slots = max(1, experiment.slots)
    for trial in experiment.trials:
        batch = trial.global_batch_size
        is_sharded = hasattr(trial, "layout")  # a language model, whose ranks may share windows
        if batch % slots and not is_sharded:
            yield UserError(
                f"{batch} windows cannot be dealt evenly to {slots} slots",
                key="hyperparameters.global_batch_size",
                cure=f"use {-(-batch // slots) * slots}",
            )


def missing_pool(experiment: Experiment) -> Problems:
    """A pool that the cluster does not have."""
    if experiment.pools is not None and experiment.pool is None:
        name = experiment.at("resources.resource_pool") or "default"
        yield UserError(
            f"the master has no pool {name!r}",
            key="resources.resource_pool",
            cure=nearest(str(name), experiment.pools),
        )


def slots_of_machines(experiment: Experiment) -> Problems:
    """Slots of a trial that do not fit the machines of its pool: it waits forever."""
    pool = experiment.pool
    slots = experiment.slots
    if pool is None or pool.slots is None or slots == 0:
        return
    width = pool.slots
    most = slots if pool.max_machines is None else width * pool.max_machines
    if width == 0:
        yield UserError(
            f"pool {pool.name!r} has no slots",
            key="resources.resource_pool",
            cure="name a pool of machines with GPUs",
        )
    elif slots > width and slots % width:
        below = slots - slots % width
        yield UserError(
            f"{slots} slots on machines of {width}: none would start",
            key="resources.slots_per_trial",
            cure=f"use a multiple, {below} or {below + width}",
        )
    elif slots > most:
        yield UserError(
            f"{slots} slots, but pool {pool.name!r} has at most {most}",
            key="resources.slots_per_trial",
            cure="lower it, or add machines (max_instances)",
        )


def precision_of_gpu(experiment: Experiment) -> Problems:
    """A precision that the pool's GPU lacks."""
    pool = experiment.pool
    uses_bf16 = any(trial.precision == "bf16" for trial in experiment.trials)
    if pool is not None and pool.gpu is not None and uses_bf16 and not pool.gpu.has_bf16:
        yield UserError(
            f"a {pool.gpu.name} has no bf16",
            key="hyperparameters.precision",
            cure="use auto or fp16",
        )


RULES: list[Rule] = [
    words_in_one_item,
    no_launcher,
    uncompiled_log_pattern,
    searchers_time,
    uneven_batch,
    missing_pool,
    slots_of_machines,
    precision_of_gpu,
    not_uploaded,
]


def foreign_hyperparameter(experiment: Experiment) -> Problems:
    """A hyperparameter that this package's train.py refuses, and a modified one may read."""
    for unknown in experiment.foreign:
        yield UserError("not a key of this package", key=unknown.key)


def retired_machine(experiment: Experiment) -> Problems:
    """A pool of machines that AWS no longer launches."""
    pool = experiment.pool
    if pool is not None and pool.gpu is not None and pool.gpu.retired:
        yield UserError(
            f"AWS launches no {pool.machine} since {pool.gpu.retired:%-d %B %Y}",
            key="resources.resource_pool",
            cure="take another type",
        )


# These leave the exit status at 0.
ADVICE: list[Rule] = [foreign_hyperparameter, retired_machine]
