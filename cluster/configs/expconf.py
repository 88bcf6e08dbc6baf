"""Checks of an experiment config (0.38.1): its keys, and rules that span several keys.

Keys, types and limits are those of experiment.yaml; what an entrypoint runs is judged by its words,
so a launcher of another make is taken for none.
"""

from collections.abc import Iterator

from cluster.configs import schema
from cluster.configs.schema import Findings
from cluster.configs.values import Finding, at, dotted, mapping
from detalbert.settings.values import Config
from workloads import DATA_KEYS

RANGES = ("const", "categorical", "int", "double", "log")
PREDICTION_FLAGS = ("--model", "--data")
LAUNCHER = "python3 -m determined.launch.torch_distributed"


def check_experiment(config: Config) -> Findings:
    """Yield findings on keys, types and limits of an experiment config, and on its entrypoint."""
    yield from schema.check(config, kind="experiment")
    if at(config, "searcher.name") in (None, "single"):
        # The master draws one random value of the range; a run of this package refuses it.
        for key in _ranges(config.get("hyperparameters"), "hyperparameters"):
            yield Finding(
                key,
                problem="a search range under searcher.name single",
                cure="give one value",
                warning=not is_ours(config),
            )
    yield from _check_entrypoint(config)


def _ranges(values: object, *path: str) -> Iterator[str]:
    """Yield the dotted key of every range in `values`, which are at `path`."""
    for name, value in mapping(values).items():
        kind = mapping(value).get("type")
        if kind is None:
            yield from _ranges(value, *path, name)
        elif kind in RANGES and kind != "const":
            yield dotted((*path, name))


def _check_entrypoint(config: Config) -> Findings:
    """Yield findings if predict.py lacks a flag, or several slots lack a launcher."""
    text = " ".join(entrypoint_words(config))
    foreign = not (is_ours(config) or predicts(config))
    if runs(config, "predict.py"):
        for flag in PREDICTION_FLAGS:
            if flag not in text:
                problem = f"predict.py without {flag}"
                yield Finding("entrypoint", problem=problem, cure="say which", warning=foreign)

    # Without a launcher one process starts, and all slots but one are paid for and idle. Another
    # script of that name may start the others itself.
    slots = at(config, "resources.slots_per_trial")
    is_started = runs(config, "predict.py") or runs(config, "train.py")
    has_launcher = "determined.launch" in text
    if isinstance(slots, int) and slots > 1 and is_started and not has_launcher:
        yield Finding(
            "entrypoint",
            problem=f"{slots} slots need a launcher: {LAUNCHER} before the rest",
            warning=foreign,
        )


def is_ours(config: Config) -> bool:
    """Return whether the experiment runs this package's train.py, not another file of that name."""
    data = mapping(config.get("data"))
    hparams = mapping(config.get("hyperparameters"))
    has_our_data = not data.keys().isdisjoint(DATA_KEYS)
    has_our_model = "model" in hparams or "model_config" in hparams
    return (has_our_data or has_our_model) and runs(config, "train.py")


def predicts(config: Config) -> bool:
    """Return whether the experiment runs this package's predict.py, not another file of that name:
    one with any of its flags.
    """
    words = " ".join(entrypoint_words(config))
    return runs(config, "predict.py") and any(flag in words for flag in PREDICTION_FLAGS)


def runs(config: Config, script: str) -> bool:
    """Return whether the entrypoint runs a file named `script`."""
    names = [word.split("/")[-1] for word in entrypoint_words(config)]
    return script in names


def entrypoint_words(config: Config) -> list[str]:
    """Return the words of the entrypoint, which a config gives as one text or as a list."""
    entrypoint = config.get("entrypoint")
    words = entrypoint if isinstance(entrypoint, list) else str(entrypoint or "").split()
    return [str(word) for word in words]
