"""Export of a sharded checkpoint as a Hugging Face model folder: weights, config, tokenizer, card.

transformers writes the weights, under the names that its older versions read too. The price is
memory for the whole model, 4 bytes for each parameter.
"""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from detalbert.errors import UserError
from detalbert.inference.export import card, new_folder, write_rest
from detalbert.training.parts import read_sharded_weights
from detalbert.training.workload import is_sharded
from lm.inference.load import SETTINGS, SavedLm
from lm.model import empty_model

CARD = Path(__file__).with_name("card.md")


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
