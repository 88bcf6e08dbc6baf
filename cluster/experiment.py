"""An experiment as the rules of the checker read it: its config, its trials, its pool.

Trials are the section `hyperparameters` as each of a search's choices makes it, one key at a time:
a limit of a key, or a rule of two keys beside their first values, is found so without all corners.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import workloads
from detalbert.errors import UserError
from detalbert.settings.experiment import as_a_master_reads, single_values
from detalbert.settings.hparams import StepHParams
from detalbert.settings.sections import Parsers, collected
from detalbert.settings.values import Config

if TYPE_CHECKING:
    from cluster.pools import Pool


class Experiment(NamedTuple):
    """An experiment's config, whose sections may be of wrong types, and what was read of it."""

    config: Config  # as a master reads it
    folder: Path  # that is uploaded with it
    pools: "dict[str, Pool] | None"  # of its cluster, by name; None: not known
    parsers: Parsers | None = None  # of our own workloads; None of another program's experiment
    trials: Sequence[StepHParams] = ()  # those that are valid
    foreign: Sequence[UserError] = ()  # hyperparameters that are none of ours

    def at(self, path: str) -> Any:
        """Return what the config has at `a.b.c`; None if it has nothing there."""
        value: Any = self.config
        for key in path.split("."):
            value = mapping(value).get(key)
        return value

    def rows(self, path: str) -> list[Config]:
        """Return the mappings of the list at `a.b`, an empty one for what is none."""
        rows = self.at(path)
        return [mapping(row) for row in rows] if isinstance(rows, list) else []

    @property
    def pool(self) -> "Pool | None":
        """The pool that it names, or the default one; None if it is not known or not there."""
        name = self.at("resources.resource_pool")
        for pool in (self.pools or {}).values():
            if pool.name == name or (not name and pool.is_default):
                return pool
        return None

    @property
    def slots(self) -> int:
        """Slots of a trial; Determined's default, 1, if the config has no valid number."""
        slots = self.at("resources.slots_per_trial")
        return slots if isinstance(slots, int) else 1

    @property
    def command(self) -> str:
        """The entrypoint, which a config gives as one text or as a list of words."""
        entrypoint = self.at("entrypoint") or ""
        return " ".join(map(str, entrypoint)) if isinstance(entrypoint, list) else str(entrypoint)

    def runs(self, script: str) -> bool:
        """Return whether the entrypoint runs a file named `script`."""
        return script in [word.split("/")[-1] for word in self.command.split()]

    @property
    def trains(self) -> bool:
        """Whether it runs this package's train.py, not another file of that name: the folder has
        no other one, and the config has a key of ours.
        """
        files = {path.name for path in self.folder.glob("*.py")}
        if not self.runs("train.py") or ("train.py" in files and "workloads.py" not in files):
            return False
        keys = {*mapping(self.at("data")), *mapping(self.at("hyperparameters"))}
        return not keys.isdisjoint((*workloads.DATA_KEYS, "model", "model_config"))

    @property
    def predicts(self) -> bool:
        """Whether it runs this package's predict.py, not another file of that name."""
        return self.runs("predict.py") and "--model" in self.command


def parse_experiment(
    config: Config, folder: Path, pools: "dict[str, Pool] | None" = None
) -> tuple[Experiment, list[UserError]]:
    """Return an experiment, and the problems of our own sections if it runs train.py.

    Args:
        config: of the experiment, as its file has it.
        folder: that is uploaded with it.
        pools: of its cluster; None: not known.
    """
    experiment = Experiment(as_a_master_reads(config), folder=folder, pools=pools)
    problems: list[UserError] = []
    if not experiment.trains:
        return experiment, problems

    with collected(problems):
        parsers = workloads.parsers(experiment.config)
        experiment = experiment._replace(parsers=parsers)
        searcher = mapping(experiment.at("searcher"))
        with collected(problems):
            parsers.data(experiment.config["data"])
        if isinstance(searcher.get("metric"), str):
            with collected(problems):
                parsers.check_searcher(searcher)

        hyperparameters = mapping(experiment.config["hyperparameters"])
        if searcher.get("name", "single") == "single":
            hyperparameters = single_values(hyperparameters, problems)
        trials = []
        for values in _choices(hyperparameters):
            with collected(problems):
                trials.append(parsers.hyperparameters(single_values(values, problems=[])))

        # A modified train.py may read keys of its own, and not need some of ours.
        foreign = {problem.key: problem for problem in problems if _is_foreign(problem)}
        if foreign:
            problems = [
                problem
                for problem in problems
                if problem.key not in foreign and experiment.at(problem.key) is not None
            ]
        experiment = experiment._replace(trials=trials, foreign=[*foreign.values()])
    return experiment, problems


def _is_foreign(problem: UserError) -> bool:
    """Return whether it is an unknown hyperparameter that is like none of ours: no misspelt one."""
    is_unknown = problem.problem == "unknown key" and problem.cure.startswith("known: ")
    return is_unknown and problem.key.startswith("hyperparameters.")


def _choices(hyperparameters: Config) -> Iterator[Config]:
    """Yield the first trial of a search, and one for each other choice or end of a range."""
    ends = {key: choice_ends(value) for key, value in hyperparameters.items()}
    first = {key: values[0] for key, values in ends.items() if values}
    yield first
    for key, values in ends.items():
        for value in values[1:]:
            yield {**first, key: value}


def choice_ends(value: object) -> list[Any]:
    """Return the choices of a hyperparameter, or the ends of its range; none of an invalid one."""
    keys = mapping(value)
    kind = keys.get("type")
    ends = [keys[end] for end in ("minval", "maxval") if keys.get(end) is not None]
    if kind == "const":
        return [keys.get("val")]
    if kind == "categorical":
        choices = keys.get("vals")
        return choices if isinstance(choices, list) else []
    if kind in ("int", "double"):
        return ends
    if kind == "log":
        with contextlib.suppress(KeyError, TypeError, ValueError, ArithmeticError):
            return [float(keys["base"]) ** end for end in ends]
        return []
    return [value]


def mapping(value: object) -> Config:
    """Return `value` if it is a mapping, else an empty one: its type is the schema's to refuse."""
    return value if isinstance(value, dict) else {}
