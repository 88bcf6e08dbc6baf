"""A Determined experiment config: loaded, changed by `--set`, its sections checked.

On a cluster the master has done all this. A local run reads the same file by the same rules, so
that it never takes what a master would refuse, nor reads a value in another way. The price is a
schema of our own, experiment.yaml, that follows Determined's.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from detalbert.errors import SectionError, UserError
from detalbert.settings.schema import as_a_master_reads, find_problems
from detalbert.settings.sections import Parsers, collected
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import parse_yaml, read_yaml

# What a hyperparameter's `type` says that it is if it is not one value: a range of a search.
_RANGES = ("categorical", "int", "double", "log")


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load the mapping in a YAML file, apply `--set` texts, and return it as a master reads it.
    Raises UserError as `read_yaml` and `apply_overrides` do.
    """
    config = read_yaml(path)
    apply_overrides(config, overrides)
    return as_a_master_reads(config)


def apply_overrides(config: Config, overrides: Sequence[str]) -> None:
    """Change `config` in place by `key.path=value` texts; values are parsed as YAML. Raises
    UserError for an invalid text.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        flag = f"--set {override[:100]}"
        if not equals or not path:
            raise UserError("expected key.path=value", key=flag)

        # Go down to the section of the last key; a section that is missing is made.
        *parents, last_key = path.split(".")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise UserError(f"{parent!r} is a value, not a section", key=flag)
        section[last_key] = parse_yaml(text, flag)


def check(config: Config, find_parsers: Callable[[Config], Parsers]) -> Config:
    """Check all sections of a config for a local run; return its hyperparameters.

    Args:
        config: as `load` returns it.
        find_parsers: of the workload that the config selects.

    Raises:
        SectionError: with all problems of the config, one for each key.
    """
    problems = find_problems(config)
    hyperparameters = config["hyperparameters"]
    if isinstance(hyperparameters, dict):
        hyperparameters = single_values(hyperparameters, problems)
    with collected(problems):
        find_parsers(config).both(config["data"], hyperparameters)
    by_key: dict[str, UserError] = {}
    for problem in problems:
        by_key.setdefault(problem.key, problem)
    if by_key:
        raise SectionError(list(by_key.values()))
    return hyperparameters


def single_values(
    hyperparameters: Config, problems: list[UserError], section: str = "hyperparameters"
) -> Config:
    """Return hyperparameters for a run outside a search: `{type: const, val: x}` unwrapped, at any
    depth.

    Args:
        hyperparameters: of the config.
        problems: receives one for each search range, whose key is left out.
        section: the dotted key of `hyperparameters`.
    """
    values = {}
    for key, value in hyperparameters.items():
        name = f"{section}.{key}"
        kind = value.get("type") if isinstance(value, dict) else None
        if kind == "const":
            values[key] = value.get("val")
        elif kind in _RANGES:
            problem = "a search range, and this is no search"
            problems.append(UserError(problem, key=name, cure="give one value, by --set"))
        elif isinstance(value, dict):
            values[key] = single_values(value, problems, section=name)
        else:
            values[key] = value
    return values


def trial_seed(config: Config) -> int:
    """Return the seed of a local run without one: `reproducibility.experiment_seed`, or 42.

    A cluster derives each trial's seed from the same key, with another result: two runs of one file
    are equal there, and equal here, but not across.
    """
    return config.get("reproducibility", {}).get("experiment_seed", 42)
