"""Export of a sharded checkpoint as a Hugging Face model folder: weights, config, tokenizer, card.

Weights are copied one file at a time, so the model is never in memory as a whole.
"""

from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from transformers import PreTrainedModel

from detalbert.atomic import write_json
from detalbert.engine.safe_load import INDEX
from detalbert.errors import UserError
from detalbert.inference.export import card, new_folder, write_rest
from detalbert.training.parts import read_sharded_weights
from detalbert.training.table import is_sharded
from lm.inference.load import SETTINGS, SavedLm
from lm.initial import FILED_AS
from lm.model import empty_model

CARD = Path(__file__).with_name("card.md")
FILE_BYTES = 1 << 30  # of a file of weights, at most, unless one parameter has more


def export(source: SavedLm, folder: Path, license_id: str = "unknown") -> None:
    """Write weights (fp32), config, tokenizer, settings and card to a new `folder`.

    `AutoModelForCausalLM.from_pretrained` loads it. The folder is written atomically. Raises
    UserError if it exists or cannot be written, and if `source` is not a checkpoint.
    """
    if not is_sharded(source.folder):
        raise UserError(f"--export: {source.folder} is a model folder already; copy it")
    with new_folder(folder) as aside:
        model = empty_model(source.config)
        _write_weights(source.folder, model, aside)
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(aside)
        model.generation_config.save_pretrained(aside)
        write_rest(aside, source, SETTINGS, card(CARD, source, model, license_id))


def _write_weights(checkpoint: Path, model: PreTrainedModel, folder: Path) -> None:
    """Write the weights of `model`, on the meta device; of tied parameters, write the first."""
    named = model.state_dict(keep_vars=True)
    tensors = {id(tensor): (name, tensor) for name, tensor in reversed(named.items())}
    wanted = dict(reversed(tensors.values()))
    split = split_torch_state_dict_into_shards(wanted, max_shard_size=FILE_BYTES)
    filed = FILED_AS.get(model.config.model_type, {})
    for file, names in split.filename_to_tensors.items():
        held = {name: torch.empty(wanted[name].shape, dtype=wanted[name].dtype) for name in names}
        read_sharded_weights(checkpoint, held)
        held = {filed.get(name, name): tensor for name, tensor in held.items()}
        save_file(held, folder / file, metadata={"format": "pt"})
        del held  # before the next one's are there
    if split.is_sharded:
        placed = {filed.get(name, name): file for name, file in split.tensor_to_filename.items()}
        index = {"metadata": split.metadata, "weight_map": placed}
        write_json(folder / INDEX, index)
