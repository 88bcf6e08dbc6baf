"""Fast tokenizers: loading by name, checks, and a hash that identifies one."""

import hashlib

import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from detalbert import hub
from detalbert.errors import UserError

# These releases drop overflow windows silently: they covered only 39 % of a long context.
BAD_TOKENIZERS = ("0.23.1", "0.23.2")


def check_tokenizers_version() -> None:
    """Raise UserError if the installed `tokenizers` release loses windows."""
    if tokenizers.__version__ in BAD_TOKENIZERS:
        raise UserError(
            f"tokenizers {tokenizers.__version__} silently drops overflow windows of long "
            "contexts; install 0.23.3: pip install tokenizers==0.23.3"
        )


def tokenizer_sum(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 (hex) of a fast tokenizer: its tokens, merges, normalizer."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def named_tokenizer(name: str, *needed: str, kind: str = "") -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of a folder, a checkpoint of this package, or a hub name.

    `needed` are special tokens that it must have ("mask_token"), `kind` is of models that have
    them. Raises UserError if it does not load, is not fast or lacks one, Unavailable for a network
    fault.
    """
    check_tokenizers_version()
    with hub.hub_errors(f"data.tokenizer: {name!r} does not load as a tokenizer"):
        tokenizer = hub.load_named(AutoTokenizer.from_pretrained, name, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise UserError(f"data.tokenizer: {name!r} has no fast tokenizer; give a tokenizer.json")
    for token in needed:
        if getattr(tokenizer, token) is None:
            raise UserError(f"data.tokenizer: {name!r} has no {token}; give that of {kind}")
    return tokenizer
