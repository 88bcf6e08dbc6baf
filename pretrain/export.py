"""Export of a pretrained encoder, with the heads that were trained, as a Hugging Face folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import decoders
from transformers import (
    AlbertForPreTraining,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert.engine.models import load_weights, named_config
from detalbert.errors import UserError, as_user_error, first_line
from detalbert.hub import find_local, is_checkpoint
from detalbert.inference.export import card, new_folder, write_rest
from detalbert.inference.model import find_scores, read_settings
from pretrain.hparams import ALBERT, PretrainHParams, parse_pretrain_hparams
from pretrain.objectives import AlbertForSpanPreTraining

CARD = Path(__file__).with_name("card.md")
SETTINGS = "pretraining.json"  # in an exported folder: what is no part of a library config
_ORDER_HEAD = ("albert.pooler.", "sop_classifier.")  # its parameters' prefixes


def export(checkpoint: Path, folder: Path, license_id: str = "unknown") -> None:
    """Write weights (fp32), config, tokenizer, settings and card to a new `folder`.

    Heads have transformers' names: masked tokens (ALBERT's `predictions`), sentence order
    (`sop_classifier` with the pooler) and spans (`qa_outputs`); an untrained one is left out. The
    folder is written atomically.

    Args:
        checkpoint: of a pretraining.
        folder: does not exist yet.
        license_id: for the card.

    Raises:
        UserError: if the folder exists or cannot be written, and if `checkpoint` is damaged.
    """
    if not is_checkpoint(str(checkpoint)):
        raise UserError(f"{checkpoint} is a model folder already", key="--export", cure="copy it")
    settings = read_settings(checkpoint)
    hparams = parse_pretrain_hparams(settings["hyperparameters"])
    hparams = hparams.of_family(named_config(str(checkpoint)).model_type)
    model, tokenizer = _load(checkpoint, hparams)
    settings["scores"] = find_scores(checkpoint, settings["steps"])
    source = SimpleNamespace(**settings, hparams=hparams, tokenizer=tokenizer)

    # Without sentence order the exported class has no head for it.
    weights = model.state_dict()
    architecture = type(model).__name__
    if isinstance(model, AlbertForPreTraining):
        architecture = "AlbertForPreTraining" if hparams.sentence_order else "AlbertForMaskedLM"
    if architecture == "AlbertForMaskedLM":
        for name in list(weights):
            if name.startswith(_ORDER_HEAD):
                del weights[name]
    with new_folder(folder) as temporary:
        model.save_pretrained(temporary, state_dict=weights)
        model.config.architectures = [architecture]
        model.config.save_pretrained(temporary)
        readme = card(CARD, source, model, license_id)
        write_rest(temporary, source, settings=SETTINGS, readme=readme)


def _load(
    checkpoint: Path, hparams: PretrainHParams
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return model and tokenizer of a checkpoint."""

    def no_model(error: Exception) -> UserError:
        return UserError(
            f"does not load as a model: {first_line(error)}",
            key=str(checkpoint),
            cure="give another",
        )

    with as_user_error(no_model):
        kind: Any = AutoModelForMaskedLM
        if named_config(str(checkpoint)).model_type == ALBERT:
            kind = AlbertForSpanPreTraining if hparams.span_fraction else AlbertForPreTraining
        model, _ = load_weights(kind, str(checkpoint), None)
        tokenizer = AutoTokenizer.from_pretrained(find_local(str(checkpoint)))
    # One that was learned here has no decoder, which users of the export need.
    if tokenizer.backend_tokenizer.decoder is None:
        tokenizer.backend_tokenizer.decoder = decoders.Metaspace()
    return model, tokenizer
