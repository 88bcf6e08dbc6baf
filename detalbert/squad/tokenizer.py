"""Fast tokenizers: loading by name, and checks."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from detalbert import hub
from detalbert.errors import UserError
from detalbert.integrity import check_model_folder


def named_tokenizer(name: str, *needed: str, kind: str = "") -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of a folder, a checkpoint of this package, or a hub name.

    `needed` are special tokens that it must have ("mask_token"), `kind` is of models that have
    them. Raises UserError if it does not load, is not fast or lacks one, Unavailable for a network
    fault.
    """
    check_model_folder(Path(hub.find_local(name)), small=True)
    with hub.hub_errors(f"data.tokenizer: {name!r} does not load as a tokenizer"):
        tokenizer = hub.load_named(AutoTokenizer.from_pretrained, name, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise UserError(f"data.tokenizer: {name!r} has no fast tokenizer; give a tokenizer.json")
    for token in needed:
        if getattr(tokenizer, token) is None:
            raise UserError(f"data.tokenizer: {name!r} has no {token}; give that of {kind}")
    return tokenizer
