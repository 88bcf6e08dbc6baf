"""Export of a pretrained encoder, with the heads that were trained, as a Hugging Face folder."""

from pathlib import Path
from types import SimpleNamespace

from tokenizers import decoders
from transformers import AlbertForPreTraining, AutoTokenizer

from detalbert.engine.models import load_weights
from detalbert.errors import UserError, all_lines, as_user_error
from detalbert.hub import find_local, is_checkpoint
from detalbert.inference.export import card, new_folder, write_rest
from detalbert.inference.model import find_scores, read_settings
from pretrain.hparams import parse_pretrain_hparams
from pretrain.objectives import AlbertForSpanPreTraining

CARD = Path(__file__).with_name("card.md")
SETTINGS = "pretraining.json"  # in an exported folder: what is no part of a library config
_ORDER_HEAD = "albert.pooler.", "sop_classifier."


def export(checkpoint: Path, folder: Path, license_id: str = "unknown") -> None:
    """Write weights (fp32), config, tokenizer, settings and card to a new `folder`.

    Heads have transformers' names: masked tokens (`predictions`), sentence order (`sop_classifier`
    with the pooler) and spans (`qa_outputs`); an untrained one is left out. The folder is written
    atomically. Raises UserError if it exists or cannot be written, and if `checkpoint` is damaged.
    """
    if not is_checkpoint(str(checkpoint)):
        raise UserError(f"--export: {checkpoint} is a model folder already; copy it")
    facts = read_settings(checkpoint)
    hparams = parse_pretrain_hparams(facts["hyperparameters"])
    kind = AlbertForSpanPreTraining if hparams.span_fraction else AlbertForPreTraining
    failed = f"{checkpoint}: does not load as a model"
    with as_user_error(lambda error: UserError(f"{failed}: {all_lines(error)}; give another")):
        model, _ = load_weights(kind, str(checkpoint), None)
        tokenizer = AutoTokenizer.from_pretrained(find_local(str(checkpoint)))
    if tokenizer.backend_tokenizer.decoder is None:  # of one that was learned here
        tokenizer.backend_tokenizer.decoder = decoders.Metaspace()
    facts |= {"hparams": hparams, "tokenizer": tokenizer}
    source = SimpleNamespace(**facts | {"scores": find_scores(checkpoint, facts["steps"])})
    untrained = () if hparams.sentence_order else _ORDER_HEAD
    kept = {k: v for k, v in model.state_dict().items() if not k.startswith(untrained)}
    with new_folder(folder) as aside:
        model.save_pretrained(aside, state_dict=kept)
        model.config.architectures = ["AlbertForMaskedLM" if untrained else "AlbertForPreTraining"]
        model.config.save_pretrained(aside)
        write_rest(aside, source, SETTINGS, card(CARD, source, model, license_id))
