"""Fast tokenizers: loading by name, and checks."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from detalbert import hub
from detalbert.errors import UserError
from detalbert.hub import check_model_folder


def named_tokenizer(
    name: str, *needed: str, kind: str = "", key: str = "data.tokenizer"
) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of a folder, a checkpoint of this package, or a hub name, without
    truncation and padding.

    Args:
        name: the folder, checkpoint or hub name.
        needed: special tokens that it must have, such as "mask_token".
        kind: of models that have these, for messages.
        key: of the config that holds the name, for messages.

    Raises:
        UserError: it does not load, is not fast or lacks a token.
        Unavailable: the network fails.
    """
    check_model_folder(Path(hub.find_local(name)))
    with hub.hub_errors(f"{name!r} does not load as a tokenizer", key=key):
        tokenizer = hub.load_named(AutoTokenizer.from_pretrained, name, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise UserError(
            f"{name!r} has no fast tokenizer",
            key=key,
            cure="give a tokenizer.json",
        )
    # Those of sentence encoders cut and pad each text. Windows have rules of their own, and the sum
    # of a tokenizer must not depend on whether it has encoded something.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    for token in needed:
        if getattr(tokenizer, token) is None:
            raise UserError(f"{name!r} has no {token}", key=key, cure=f"give that of {kind}")
    return tokenizer
