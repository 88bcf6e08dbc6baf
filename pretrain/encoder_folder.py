"""Export of a pretrained encoder, with the heads that were trained, as a Hugging Face folder."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

from tokenizers import decoders
from transformers import (
    AlbertForPreTraining,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert.engine.models import load_weights, model_error, named_config
from detalbert.errors import UserError, as_user_error
from detalbert.hub import find_local, is_checkpoint
from detalbert.inference.export import card, new_folder, write_rest
from detalbert.inference.model import find_scores, read_settings
from pretrain.encoders import model_class
from pretrain.hparams import PretrainHParams, parse_pretrain_hparams

CARD = Path(__file__).with_name("card.md")
SETTINGS = "pretraining.json"  # in an exported folder: what is no part of a library config
_ORDER_HEAD = ("albert.pooler.", "sop_classifier.")  # its parameters' prefixes


def export_encoder(checkpoint: Path, folder: Path, license_id: str = "unknown") -> None:
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
        architecture = "AlbertForPreTraining"
        if not hparams.sentence_order:
            architecture = "AlbertForMaskedLM"
            untrained = [name for name in weights if name.startswith(_ORDER_HEAD)]
            for name in untrained:
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
    with as_user_error(partial(model_error, str(checkpoint))):
        kind = model_class(named_config(str(checkpoint)).model_type, hparams)
        model, _ = load_weights(kind, str(checkpoint), None)
        tokenizer = AutoTokenizer.from_pretrained(find_local(str(checkpoint)))
    # One that was learned here has no decoder, which users of the export need.
    if tokenizer.backend_tokenizer.decoder is None:
        tokenizer.backend_tokenizer.decoder = decoders.Metaspace()
    return model, tokenizer
