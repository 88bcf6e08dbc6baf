"""Loading of a trained language model: its facts, and its weights as an unsharded model.

A checkpoint's shards are read directly into the model, so its weights are in memory once.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert.engine import determinism
from detalbert.engine.models import load_weights
from detalbert.engine.safe_load import read_config
from detalbert.errors import UserError, all_lines, as_user_error
from detalbert.hub import PRETRAINED
from detalbert.inference.find import read_json
from detalbert.inference.model import find_scores
from detalbert.inference.references import EXPERIMENT
from detalbert.settings import experiment
from detalbert.training.manifest import MANIFEST, find_fault
from detalbert.training.parts import read_sharded_weights
from detalbert.training.table import is_sharded
from lm import initial
from lm.hparams import LmHParams, parse_lm_hparams
from lm.model import empty_model

SETTINGS = "language_model.json"  # in an exported folder: what is no part of a library config


class SavedLm(NamedTuple):
    """A language model on disk, and all known facts on its training."""

    folder: Path
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    hparams: LmHParams
    data: dict[str, Any]  # `data:` of its experiment config; empty where it is not known
    steps: int | None  # optimizer steps trained, where known
    scores: dict[str, float]  # of a validation at this step; empty where none is known


def open_saved(folder: Path) -> SavedLm:
    """Return the contents of a checkpoint, an exported folder or another of transformers. Raises
    UserError if the folder is damaged or incomplete.
    """
    sharded = is_sharded(folder)
    if sharded and (folder / MANIFEST).is_file() and (fault := find_fault(folder)):
        raise UserError(f"{folder}: not a complete checkpoint ({fault}); give another")
    library = folder / PRETRAINED if sharded else folder
    with as_user_error(partial(_no_model, folder)):
        config = read_config(library)
        tokenizer = AutoTokenizer.from_pretrained(library, trust_remote_code=False)
        facts = _checkpoint_facts(folder) if sharded else read_json(folder / SETTINGS)
    positions = getattr(config, "max_position_embeddings", None)
    longest = min(filter(None, (1024, positions)))
    values = facts.get("hyperparameters") or {"max_seq_length": longest}
    if not values.get("model_config"):
        values = {**values, "model": values.get("model") or str(folder)}
    steps, scores = facts.get("steps"), facts.get("scores") or {}
    # An older version wrote `compile: null`; a key that is left out has its default.
    hparams = parse_lm_hparams({k: v for k, v in values.items() if v is not None})
    return SavedLm(folder, config, tokenizer, hparams, facts.get("data") or {}, steps, scores)


def _checkpoint_facts(folder: Path) -> dict[str, Any]:
    """Return config, steps and scores of a checkpoint.

    From `experiment.json` (downloaded), else the run's config.yaml and metrics.json two folders up,
    else, if the checkpoint was moved, from the manifest.
    """
    steps = read_json(folder / "metadata.json").get("steps_completed")
    if (folder / EXPERIMENT).is_file():
        return {**read_json(folder / EXPERIMENT), "steps": steps}
    kept, run = read_json(folder / MANIFEST).get("run") or {}, folder.absolute().parent.parent
    mark = "hyperparameters."
    config = {"hyperparameters": {k.removeprefix(mark): v for k, v in kept.items() if mark in k}}
    if folder.absolute().parent.name == "checkpoints" and (run / "config.yaml").is_file():
        config = experiment.load(run / "config.yaml")
    return {**config, "steps": steps, "scores": find_scores(folder, steps)}


def load_model(source: SavedLm, attention: str = "sdpa") -> PreTrainedModel:
    """Load the model in fp32 and evaluation mode, on a GPU if there is one; `attention` is a name
    that transformers knows. Raises UserError if weights are missing, damaged or do not fit.
    """
    determinism.choose_exact_kernels()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = source.folder
    with as_user_error(partial(_no_model, folder)):
        if is_sharded(folder):
            model = empty_model(source.config)
            rules = initial.record_rules(model)
            model.to_empty(device=device)
            model.tie_weights()  # to_empty unties
            read_sharded_weights(folder, model.state_dict())
            initial.fill_buffers(model, rules)
            model.set_attn_implementation(attention)
        else:
            options: Any = {"attention": attention, "use_safetensors": True}
            model, missing = load_weights(AutoModelForCausalLM, str(folder), **options)
            if missing:
                raise UserError(f"{folder}: its weights lack {min(missing)!r}; give a whole model")
        return model.to(device).eval().requires_grad_(False)


def _no_model(folder: Path, error: BaseException) -> UserError:
    reason = all_lines(error)
    return UserError(f"{folder}: does not load as a language model: {reason}; give another")
