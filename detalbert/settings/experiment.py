"""A Determined experiment config: loaded, changed by `--set`, its sections checked."""

import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detalbert.errors import SectionError, UserError, as_user_error
from detalbert.settings import schema
from detalbert.settings.yaml_files import parse_yaml, read_yaml

log = logging.getLogger(__name__)

OWN_SECTIONS = "hyperparameters", "data"  # whose keys are this package's

# Types of ranges -> (random numbers, facts) -> a value, uniform, of `log` the exponent.
_DRAWN: dict[str, Callable[[random.Random, Any], Any]] = {
    "const": lambda _, facts: facts["val"],
    "categorical": lambda dice, facts: dice.choice(facts["vals"]),
    "int": lambda dice, facts: dice.randint(facts["minval"], facts["maxval"]),
    "double": lambda dice, facts: dice.uniform(facts["minval"], facts["maxval"]),
    "log": lambda dice, facts: float(facts.get("base", 10) ** _DRAWN["double"](dice, facts)),
}


def load(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Load the mapping in a YAML file and apply `--set` texts. Raises UserError as `read_yaml` and
    `apply_overrides` do.
    """
    config = read_yaml(path)
    apply_overrides(config, overrides)
    return config


def apply_overrides(config: dict[str, Any], overrides: Sequence[str]) -> None:
    """Change `config` in place by `key.path=value` texts; values are parsed as YAML. Raises
    UserError for an invalid text.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise UserError(f"--set {override}: expected key.path=value")
        *parents, last = path.split(".")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise UserError(f"--set {override}: {parent!r} is a value, not a section")
        try:
            section[last] = parse_yaml(text)
        except UserError:
            said = f"--set {override[:100]}: {text[:60]!r} is not a YAML value"
            raise UserError(said) from None


def check_sections(config: dict[str, Any]) -> None:
    """Check the sections that Determined defines, by experiment.yaml, as cluster.check does.

    In `config` they then hold the values as a master takes them: a key with the value null is
    absent, and 8.0 is 8. A missing section of our own is empty. Logs a line for each key that is
    accepted and does nothing. Raises SectionError for a wrong key or value.
    """
    findings = list(schema.check(config, local=True))
    faults = [finding for finding in findings if not finding.warning]
    if faults:
        raise SectionError([UserError(fault.problem, key=fault.key) for fault in faults])
    for key, problem, *_ in findings:
        if os.environ.get("RANK", "0") == "0":
            log.warning("%s: %s", key, problem)
    for section in list(config):
        if section not in OWN_SECTIONS:
            config[section] = _as_a_master_reads(schema.without_nulls(config[section]))
    for section in OWN_SECTIONS:
        config[section] = config.get(section) or {}


def _as_a_master_reads(value: Any) -> Any:
    """Return part of a config with whole numbers for floats that are whole, as Go has them."""
    if isinstance(value, dict):
        return {key: _as_a_master_reads(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_a_master_reads(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def trial_seed(config: Mapping[str, Any]) -> int:
    """Return the seed of a local run without one: `reproducibility.experiment_seed`, or 42.

    A cluster derives each trial's seed from the same key, with another result: two runs of one file
    are equal there, and equal here, but not across. `check_sections` has checked it.
    """
    return (config.get("reproducibility") or {}).get("experiment_seed", 42)


def single_values(
    hyperparameters: dict[str, Any], seed: int = 0, draw: int | None = None, under: str = ""
) -> dict[str, Any]:
    """Return hyperparameters for a run outside a search: `{type: const, val: x}` unwrapped, and of
    each search range the value of this `draw`, which is a function of (seed, draw, key).
    Raises UserError for a range without a draw, or one that cannot be drawn from.
    """
    return {k: _single_value(f"{under}{k}", v, seed, draw) for k, v in hyperparameters.items()}


def _single_value(name: str, value: Any, seed: int, draw: int | None) -> Any:
    kind = str(value.get("type")) if isinstance(value, dict) else ""
    if kind in _DRAWN and kind != "const" and draw is None:
        said = "a search range; a local run needs one value, by --set, or --draw N of a search"
        raise UserError(f"hyperparameters.{name}: {said}")
    if kind in _DRAWN:
        wrong = f"hyperparameters.{name}: not a search range that can be drawn from"
        with as_user_error(lambda error: UserError(f"{wrong}: {error}")):
            return _DRAWN[kind](random.Random(f"{seed} {draw} {name}"), value)
    return single_values(value, seed, draw, f"{name}.") if isinstance(value, dict) else value
