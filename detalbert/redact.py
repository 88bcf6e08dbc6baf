"""Secrets in configs and in lines of text, known by the name of their key, replaced by "***".

A name is secret by its end: HF_TOKEN, apiKey and --db-password are, tokenizer, max_tokens and
pad_token are not. What was traded: a secret under another name is not known, but for the logins of
addresses, nor is the word after a flag (write --token=WORD), and a harmless value under a secret
name is hidden as well.
"""

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
# The end of a name; what is before it may be anything. "Key" alone is one of a mapping.
_END = (
    r"(?:passw(?:or)?ds?|passphrase|pwd|[_-]pass|[_-]pat|secrets?|credentials?|auth|cookie"
    r"|sig|signature|connection_string"
    r"|(?<!pad_)(?<!bos_)(?<!eos_)(?<!cls_)(?<!sep_)(?<!unk_)(?<!mask_)token"
    r"|(?:(?:api|access|secret|private|account|storage|signing)[_-]?|(?-i:[A-Z0-9]_))key(?:_?id)?)"
)
_NAME = rf"[\w.-]*{_END}"
_SECRET = re.compile(rf"(?i){_NAME}")
# What is assigned to such a name, also in the query of an address, where `key` is one.
_ASSIGNED = re.compile(rf"(?i)((?:[?&]key|(?<![\w.-]){_NAME})=)(?:'[^']*'|\"[^\"]*\"|[^\s&]+)")
# In https://USER:PASSWORD@HOST all before the "@"; of another scheme, whose USER may be no secret
# (abfs://CONTAINER@ACCOUNT), the password.
_LOGIN = re.compile(r"(https?://|://[^/?#\s:@]*:)[^/?#\s]*@")


def hide_secrets(text: str) -> str:
    """Return `text` with "***" for logins in addresses and what is assigned to a secret name."""
    return _ASSIGNED.sub(rf"\1{MASK}", _LOGIN.sub(rf"\1{MASK}@", text))


def masked(value: Any, is_hidden: bool = False) -> Any:
    """Return a copy of a config, or part of one, with "***" in place of every secret.

    Configs are written to files, checkpoints and metadata in this form only.

    Args:
        value: any value of YAML.
        is_hidden: whether it is below a secret key.
    """
    if isinstance(value, Mapping):
        hidden = {}
        for key, inner in value.items():
            # {name: TOKEN, value: ...}, of a pod, is a pair like TOKEN: ...
            name = value.get("name") if key == "value" else key
            is_secret = _SECRET.fullmatch(str(name)) is not None
            hidden[key] = masked(inner, is_hidden or is_secret)
        return hidden
    if isinstance(value, list):
        return [masked(item, is_hidden) for item in value]
    if is_hidden and value is not None:
        return MASK
    return hide_secrets(value) if isinstance(value, str) else value
