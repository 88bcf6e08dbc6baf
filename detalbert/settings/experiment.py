"""A Determined experiment config: loaded, changed by `--set`, its sections checked.

On a cluster the master has done all this. A local run reads the same file by the same rules, so
that it never takes what a master would refuse, nor reads a value in another way. The price is a
schema of our own, experiment.yaml, that follows Determined's.
"""

import logging
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detalbert.errors import SectionError, UserError, as_user_error
from detalbert.settings import schema
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import parse_yaml, read_yaml

log = logging.getLogger(__name__)

OWN_SECTIONS = "hyperparameters", "data"  # whose keys are this package's

# What a hyperparameter's `type` says that it is: one value, or a range of a search.
_RANGES = ("const", "categorical", "int", "double", "log")


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load the mapping in a YAML file and apply `--set` texts. Raises UserError as `read_yaml` and
    `apply_overrides` do.
    """
    config = read_yaml(path)
    apply_overrides(config, overrides)
    return config


def apply_overrides(config: Config, overrides: Sequence[str]) -> None:
    """Change `config` in place by `key.path=value` texts; values are parsed as YAML. Raises
    UserError for an invalid text.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise UserError("expected key.path=value", key=f"--set {override}")

        # Go down to the section of the last key; a section that is missing is made.
        *parents, last_key = path.split(".")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise UserError(f"{parent!r} is a value, not a section", key=f"--set {override}")
        try:
            section[last_key] = parse_yaml(text)
        except UserError:
            raise UserError(
                f"{text[:60]!r} is not a YAML value", key=f"--set {override[:100]}"
            ) from None


def check_sections(config: Config) -> None:
    """Check the sections that Determined defines, by experiment.yaml, as cluster.check does.

    In `config` they then hold the values as a master takes them: a key with the value null is
    absent, and 8.0 is 8. A missing section of our own is empty. Logs a line for each key that is
    accepted and does nothing. Raises SectionError for a wrong key or value.
    """
    findings = list(schema.check(config, local=True))
    faults = [finding for finding in findings if not finding.warning]
    if faults:
        raise SectionError(
            [UserError(fault.problem, key=fault.key, cure=fault.cure) for fault in faults]
        )
    if os.environ.get("RANK", "0") == "0":
        for warning in findings:
            log.warning("%s: %s", warning.key, warning.detail)

    # In our own sections null is a value: it takes out what a default would set.
    for section in list(config):
        if section not in OWN_SECTIONS:
            present = schema.without_nulls(config[section])
            config[section] = _as_a_master_reads(present)
    for section in OWN_SECTIONS:
        config[section] = config.get(section) or {}


def _as_a_master_reads(value: object) -> object:
    """Return part of a config with whole numbers for floats that are whole, as Go has them."""
    if isinstance(value, dict):
        return {key: _as_a_master_reads(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_a_master_reads(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def trial_seed(config: Config) -> int:
    """Return the seed of a local run without one: `reproducibility.experiment_seed`, or 42.

    A cluster derives each trial's seed from the same key, with another result: two runs of one file
    are equal there, and equal here, but not across. `check_sections` has checked it.
    """
    return (config.get("reproducibility") or {}).get("experiment_seed", 42)


def single_values(
    hyperparameters: Config, seed: int = 0, draw: int | None = None, under: str = ""
) -> Config:
    """Return hyperparameters for a run outside a search: `{type: const, val: x}` unwrapped, and of
    each search range a value.

    Args:
        hyperparameters: with ranges at any depth.
        seed: of the draws.
        draw: number of the draw; a value is a function of (seed, draw, key).
        under: the keys above these, with a dot at the end.

    Raises:
        UserError: there is a range and no draw, or one that cannot be drawn from.
    """
    values = {}
    for key, value in hyperparameters.items():
        name = f"{under}{key}"
        is_range = isinstance(value, dict) and value.get("type") in _RANGES
        if is_range:
            values[key] = _draw_value(name, search_range=value, seed=seed, draw=draw)
        elif isinstance(value, dict):
            values[key] = single_values(value, seed=seed, draw=draw, under=f"{name}.")
        else:
            values[key] = value
    return values


def _draw_value(name: str, search_range: Config, seed: int, draw: int | None) -> Any:
    """Return the value of hyperparameter `name` in this draw of its range."""
    key = f"hyperparameters.{name}"
    if search_range["type"] != "const" and draw is None:
        raise UserError(
            "a search range",
            key=key,
            cure="a local run needs one value, by --set, or --draw N of a search",
        )

    def not_a_range(error: Exception) -> UserError:
        return UserError(f"not a search range that can be drawn from: {error}", key=key)

    # A generator for each key: a range that comes or goes changes no other value.
    generator = random.Random(f"{seed} {draw} {name}")
    with as_user_error(not_a_range):
        return _uniform(search_range, generator)


def _uniform(search_range: Config, generator: random.Random) -> Any:
    """Return a value of a range, uniform; of `log` the exponent is."""
    kind = search_range["type"]
    if kind == "const":
        return search_range["val"]
    if kind == "categorical":
        return generator.choice(search_range["vals"])
    if kind == "int":
        return generator.randint(search_range["minval"], search_range["maxval"])
    number = generator.uniform(search_range["minval"], search_range["maxval"])
    if kind == "log":
        return float(search_range.get("base", 10) ** number)
    return number
