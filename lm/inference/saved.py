"""The folder of a trained language model: config, tokenizer, settings and scores are read of it,
and a sharded checkpoint is exported as a Hugging Face model folder.

transformers writes the weights, under the names that its older versions read too. The price is
memory for the whole model, 4 bytes for each parameter.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert.engine.safe_load import read_config
from detalbert.errors import UserError, as_user_error, first_line
from detalbert.hub import PRETRAINED
from detalbert.inference.export import card, new_folder, write_rest
from detalbert.inference.find import EXPERIMENT, read_json
from detalbert.inference.model import find_scores
from detalbert.settings import experiment
from detalbert.training.manifest import MANIFEST, find_fault
from detalbert.training.parts import read_sharded_weights
from detalbert.training.workload import is_sharded
from lm.hparams import LmHParams, parse_lm_hparams
from lm.model import empty_model

SETTINGS = "language_model.json"  # in an exported folder: what is no part of a library config
CARD = Path(__file__).with_name("card.md")


class SavedLm(NamedTuple):
    """A language model on disk, and all known facts on its training."""

    folder: Path
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    hparams: LmHParams
    data: dict[str, Any]  # `data:` of its experiment config; empty if it is not known
    steps: int | None  # optimizer steps trained, if known
    scores: dict[str, float]  # of a validation at this step; empty if none is known


def open_saved(folder: Path) -> SavedLm:
    """Return the contents of a checkpoint, an exported folder or another of transformers.

    Raises:
        UserError: if the folder is damaged or incomplete.
    """
    # A checkpoint of this package has a manifest; a model folder of transformers has none.
    sharded = is_sharded(folder)
    fault = find_fault(folder) if sharded and (folder / MANIFEST).is_file() else None
    if fault:
        raise UserError(
            f"not a complete checkpoint ({fault})", key=str(folder), cure="give another"
        )
    pretrained = folder / PRETRAINED if sharded else folder
    with as_user_error(partial(_no_model, folder)):
        config = read_config(pretrained)
        tokenizer = AutoTokenizer.from_pretrained(pretrained, trust_remote_code=False)
        saved = _read_experiment(folder) if sharded else read_json(folder / SETTINGS)
    return SavedLm(
        folder=folder,
        config=config,
        tokenizer=tokenizer,
        hparams=_parse_hparams(saved.get("hyperparameters"), config, folder),
        data=saved.get("data") or {},
        steps=saved.get("steps"),
        scores=saved.get("scores") or {},
    )


def _parse_hparams(
    values: dict[str, Any] | None, config: PretrainedConfig, folder: Path
) -> LmHParams:
    """Return the hyperparameters of a run; if they are not known, those of windows of 1,024 tokens,
    or of as many as the model has positions.
    """
    if not values:
        positions = getattr(config, "max_position_embeddings", None)
        values = {"max_seq_length": min(1024, positions) if positions else 1024}
    if not values.get("model_config"):
        values = {**values, "model": values.get("model") or str(folder)}
    return parse_lm_hparams(values)


def _read_experiment(folder: Path) -> dict[str, Any]:
    """Return config, steps and scores of a checkpoint.

    From `experiment.json` (downloaded), else the run's config.yaml and metrics.json two folders up,
    else, if the checkpoint was moved, from the manifest.
    """
    # Determined writes the step beside the weights.
    steps = read_json(folder / "metadata.json").get("steps_completed")
    if (folder / EXPERIMENT).is_file():
        return {**read_json(folder / EXPERIMENT), "steps": steps}
    checkpoints = folder.absolute().parent
    run_config = checkpoints.parent / "config.yaml"
    if checkpoints.name == "checkpoints" and run_config.is_file():
        config = experiment.load(run_config)
    else:
        config = {"hyperparameters": _manifest_hparams(folder)}
    return {**config, "steps": steps, "scores": find_scores(folder, steps)}


def _manifest_hparams(folder: Path) -> dict[str, Any]:
    """Return the hyperparameters that a manifest names: those that fix a run's results."""
    prefix = "hyperparameters."
    identity = read_json(folder / MANIFEST).get("run") or {}
    return {key.removeprefix(prefix): identity[key] for key in identity if prefix in key}


def _no_model(folder: Path, error: BaseException) -> UserError:
    return UserError(
        f"does not load as a language model: {first_line(error)}",
        key=str(folder),
        cure="give another",
    )


def export_language_model(source: SavedLm, folder: Path, license_id: str = "unknown") -> None:
    """Write weights (fp32), config, tokenizer, settings and card to a new `folder`.

    `AutoModelForCausalLM.from_pretrained` loads it. The folder is written atomically.

    Args:
        source: a checkpoint, opened.
        folder: does not exist yet.
        license_id: for the card.

    Raises:
        UserError: if the folder exists or cannot be written, and if `source` is not a checkpoint.
    """
    if not is_sharded(source.folder):
        raise UserError(
            f"{source.folder} is a model folder already", key="--export", cure="copy it"
        )
    with new_folder(folder) as temporary:
        model = _read_model(source)
        model.save_pretrained(temporary)
        readme = card(CARD, source, model, license_id)
        write_rest(temporary, source, settings=SETTINGS, readme=readme)


def _read_model(source: SavedLm) -> PreTrainedModel:
    """Return the model of a checkpoint with its weights, on the CPU."""
    model = empty_model(source.config)
    weights = {name: torch.empty(tensor.shape) for name, tensor in model.state_dict().items()}
    read_sharded_weights(source.folder, weights)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    return model
