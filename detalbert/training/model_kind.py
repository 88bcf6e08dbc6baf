"""Kinds of trained models, recognized by their folders, and what each is for.

A model is recognized by what its files say, not by what loads it: so a wrong flag is refused in a
moment. The price is a table of words, which a new workload or class of models must join.
"""

import json
from pathlib import Path
from typing import NamedTuple

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from detalbert.errors import UserError
from detalbert.sums import Json
from detalbert.training.table import is_sharded


class ModelKind(NamedTuple):
    """A kind of trained model."""

    name: str
    modes: frozenset[str]  # of predict.py, that it has
    use: str  # what to do with it; {} is its folder


ANSWERING = ModelKind(
    name="a model that answers questions",
    modes=frozenset({"data", "question", "serve", "export"}),
    use="--data, --question, --serve or --export",
)
LANGUAGE = ModelKind(
    name="a language model",
    modes=frozenset({"export"}),
    use="--export DIR, then serve DIR with `transformers serve` or vLLM",
)
ENCODER = ModelKind(
    name="a pretrained encoder",
    modes=frozenset({"export"}),
    use="--export, or fine-tune it: python train.py --config CONFIG --set hyperparameters.model={}",
)
# By words of a checkpoint's trial, or of the class that a config.json names.
_WORDS = {
    "Squad": ANSWERING,
    "Pretrain": ENCODER,
    "ForQuestionAnswering": ANSWERING,
    "ForPreTraining": ENCODER,
    "ForMaskedLM": ENCODER,
}
_CAUSAL = dict.fromkeys(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), LANGUAGE)


def find_kind(folder: Path) -> ModelKind | None:
    """Return the kind of a checkpoint or model folder; None if its files do not say."""
    if is_sharded(folder):
        return LANGUAGE
    try:
        # Determined's file in every checkpoint; else a model folder of transformers.
        trial_file = folder / "load_data.json"
        if trial_file.is_file():
            return _kind_of_trial(json.loads(trial_file.read_text()))
        config = json.loads((folder / "config.json").read_text())
        (class_name,) = config["architectures"]
        return _CAUSAL.get(class_name) or _find_word(class_name)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _find_word(name: str) -> ModelKind | None:
    """Return the kind of the first word of _WORDS that is in `name`, of a class."""
    for word, kind in _WORDS.items():
        if word in name:
            return kind
    return None


def _kind_of_trial(saved: Json) -> ModelKind:
    """Return the kind of a checkpoint from what Determined saves of its trial. One of a class that
    is not this package's answers questions if it has their windows.
    """
    trial = saved["trial_cls_spec"]
    kind = _find_word(trial)
    if kind is not None:
        return kind
    if "doc_stride" in saved["hparams"]:
        return ANSWERING
    name = f"a checkpoint of {trial}, a workload of your own"
    return ModelKind(name=name, modes=frozenset(), use="")


def check_mode(mode: str, folder: Path) -> ModelKind:
    """Return the kind of a model, by default ANSWERING.

    Args:
        mode: of predict.py, as its flag is called without dashes.
        folder: of the model.

    Raises:
        UserError: predict.py does not have `mode` for it.
    """
    kind = find_kind(folder) or ANSWERING
    if not kind.modes:
        raise UserError(
            f"{folder} is {kind.name}, and predict.py is for questions and text",
            key=f"--{mode}",
            cure="load it in code of that workload",
        )
    if mode not in kind.modes:
        raise UserError(
            f"{folder} is {kind.name}", key=f"--{mode}", cure=f"give {kind.use.format(folder)}"
        )
    return kind


def check_start(name: str, language: bool) -> None:
    """Raise UserError if a training cannot start from a checkpoint or model folder.

    Args:
        name: of the folder; a hub name and "" are taken for right.
        language: whether a language model is to be trained.
    """
    kind = find_kind(Path(name))
    if kind is None:
        return
    if is_sharded(Path(name)):
        cure = f"export it first: python predict.py --model {name} --export DIR"
    elif language and kind is not LANGUAGE:
        cure = "give a language model, or hyperparameters.model_config"
    else:
        return
    raise UserError(f"{name} is {kind.name}", key="hyperparameters.model", cure=cure)
