"""A Determined experiment config: loaded, changed by `--set`, its sections checked."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detalbert.errors import UnknownKey, UserError, as_user_error, hide_logins
from detalbert.settings.yaml_files import parse_yaml, read_yaml

# The top-level keys of Determined 0.38.1's experiment config, version 0.
KNOWN_KEYS = """
bind_mounts checkpoint_policy checkpoint_storage data debug description entrypoint environment
hyperparameters integrations labels log_policies max_restarts min_checkpoint_period
min_validation_period name optimizations pachyderm perform_initial_validation pbs preemption_timeout
profiling project records_per_epoch reproducibility resources retention_policy scheduling_unit
searcher security slurm tensorboard_storage version workspace
""".split()

# What stands under one of these keys is secret: those of Determined's schemas, and `env`, of a pod.
_SECRETS = """
access_key auth connection_string credential env environment_variables identitytoken password
registry_auth secret_key token
""".split()

# Determined hands these to no trainer script, so setting them would do nothing, silently.
UNREAD = {
    "min_checkpoint_period": "hyperparameters.checkpoint_period (optimizer steps)",
    "min_validation_period": "hyperparameters.validation_period (optimizer steps)",
    "scheduling_unit": "hyperparameters.reporting_period (optimizer steps)",
    "optimizations": "hyperparameters.max_tokens_per_forward and precision",
    "records_per_epoch": "nothing: epochs are counted from the data",
}
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


def masked(value: Any, under: str = "") -> Any:
    """Return a copy of a config, or part of one, with "***" in place of every secret.

    Configs are written to files, checkpoints and metadata in this form only. `under` is the key of
    `_SECRETS` that `value` is below, if any.
    """
    if isinstance(value, Mapping):
        below = {key: under or (key if key in _SECRETS else "") for key in value}
        return {key: masked(each, below[key]) for key, each in value.items()}
    if isinstance(value, list):
        return [masked(each, under) for each in value]
    if not under or value is None:
        return hide_logins(value) if isinstance(value, str) else value
    name, equals, _ = str(value).partition("=")
    return f"{name}=***" if equals and under == "environment_variables" else "***"


def check_sections(config: dict[str, Any]) -> None:
    """Raise UserError for a key that is unknown to Determined or not passed to training scripts."""
    for key in config:
        if key not in KNOWN_KEYS:
            raise UnknownKey(key, "config", KNOWN_KEYS)
        if key in UNREAD:
            raise UserError(f"config.{key}: a trainer script does not get it; use {UNREAD[key]}")
    for section in ("hyperparameters", "data", "searcher"):
        if not isinstance(config.get(section), dict):
            raise UserError(f"config.{section}: missing; an experiment config needs this section")


def trial_seed(config: Mapping[str, Any]) -> int:
    """Return the seed of a local run without one: `reproducibility.experiment_seed`, or 42.

    A cluster derives each trial's seed from the same key, with another result: two runs of one file
    are equal there, and equal here, but not across. Raises UserError if a master would reject it.
    """
    seed = (config.get("reproducibility") or {}).get("experiment_seed")
    if seed is None:
        return 42
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        said = f"{seed!r}; give a whole number below 2^32"
        raise UserError(f"config.reproducibility.experiment_seed: {said}")
    return seed


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
