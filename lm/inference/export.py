"""Export of a sharded checkpoint as a Hugging Face model folder: weights, config, tokenizer, card.

Weights are copied one file at a time, so the model is never in memory as a whole. The price is that
each file reads the checkpoint's shards once more.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from transformers import PreTrainedModel

from detalbert.engine.safe_load import INDEX
from detalbert.errors import UserError
from detalbert.files import write_json
from detalbert.inference.export import card, new_folder, write_rest
from detalbert.training.parts import read_sharded_weights
from detalbert.training.table import is_sharded
from lm.inference.load import SETTINGS, SavedLm
from lm.initial import FILED_AS
from lm.model import empty_model

CARD = Path(__file__).with_name("card.md")
FILE_BYTES = 1 << 30  # of a file of weights, at most, unless one parameter has more


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
        model = empty_model(source.config)
        _write_weights(source.folder, model, temporary)
        # The class that `AutoModelForCausalLM` is to take.
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(temporary)
        model.generation_config.save_pretrained(temporary)
        readme = card(CARD, source, model, license_id)
        write_rest(temporary, source, settings=SETTINGS, readme=readme)


def _write_weights(checkpoint: Path, model: PreTrainedModel, folder: Path) -> None:
    """Write the weights of `model`, on the meta device; of tied parameters, write the first."""
    parameters = _untied_parameters(model)
    split = split_torch_state_dict_into_shards(parameters, max_shard_size=FILE_BYTES)
    filed_as = FILED_AS.get(model.config.model_type, {})
    for file, names in split.filename_to_tensors.items():
        _write_file(checkpoint, {name: parameters[name] for name in names}, folder / file, filed_as)
    if split.is_sharded:
        files = {}
        for name, file in split.tensor_to_filename.items():
            files[filed_as.get(name, name)] = file
        write_json(folder / INDEX, {"metadata": split.metadata, "weight_map": files})


def _write_file(
    checkpoint: Path,
    parameters: Mapping[str, torch.Tensor],
    file: Path,
    filed_as: Mapping[str, str],
) -> None:
    """Write the weights of `parameters`, on the meta device, to one file of safetensors, under the
    names of `filed_as`.
    """
    weights = {}
    for name, parameter in parameters.items():
        weights[name] = torch.empty(parameter.shape, dtype=parameter.dtype)
    read_sharded_weights(checkpoint, weights)
    filed = {filed_as.get(name, name): tensor for name, tensor in weights.items()}
    save_file(filed, file, metadata={"format": "pt"})


def _untied_parameters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the state of `model`; of tied parameters, only the first, at the place of the last."""
    state = model.state_dict(keep_vars=True)
    names: dict[int, str] = {}  # the first of each parameter's, by id
    for name, parameter in state.items():
        names.setdefault(id(parameter), name)
    parameters: dict[str, torch.Tensor] = {}
    for parameter in state.values():
        name = names[id(parameter)]
        parameters.pop(name, None)
        parameters[name] = parameter
    return parameters
