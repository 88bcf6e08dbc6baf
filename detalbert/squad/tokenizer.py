"""Fast tokenizers: loading by name, and checks."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from detalbert import hub
from detalbert.errors import UserError
from detalbert.integrity import check_model_folder

_KEY = "data.tokenizer"


def named_tokenizer(name: str, *needed: str, kind: str = "") -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of a folder, a checkpoint of this package, or a hub name.

    Args:
        name: the folder, checkpoint or hub name.
        needed: special tokens that it must have, such as "mask_token".
        kind: of models that have these, for messages.

    Raises:
        UserError: it does not load, is not fast or lacks a token.
        Unavailable: the network fails.
    """
    check_model_folder(Path(hub.find_local(name)), small=True)
    with hub.hub_errors(f"{name!r} does not load as a tokenizer", key=_KEY):
        tokenizer = hub.load_named(AutoTokenizer.from_pretrained, name, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise UserError(
            f"{name!r} has no fast tokenizer",
            key=_KEY,
            cure="give a tokenizer.json",
        )
    for token in needed:
        if getattr(tokenizer, token) is None:
            raise UserError(f"{name!r} has no {token}", key=_KEY, cure=f"give that of {kind}")
    return tokenizer
