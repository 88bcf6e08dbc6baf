"""Secrets in configs and in free text: found by the names beside them, replaced by "***".

Nothing tells a secret from other text but its name and, for some, its shape. A name is secret by
its last words: HF_TOKEN, apiKey and --db-password are, tokenizer, max_tokens and pad_token are not.
What follows such a name is masked up to the next space, so it may take harmless text along: rather
too much is masked than too little.
"""

import re
from collections.abc import Mapping
from typing import Any

# In https://USER:PASSWORD@HOST all before the "@"; of another scheme, whose USER may be no secret
# (abfs://CONTAINER@ACCOUNT), the password.
_LOGIN = re.compile(r"(https?://|://[^/?#\s:@]*:)[^/?#\s]*@")
# Below one of these keys all is secret: those of Determined's schemas, and `env`, of a pod.
_SECTIONS = {"env", "environment_variables", "registry_auth"}
_LAST_WORD = re.compile(
    r"\w*(?:password|passwd|passphrase|secret|apikey|accesskey|secretkey|credentials?|token)"
    r"|pwd|pass|pat|sig|signature|secrets|passwords|auth|cookie"
)
_LAST_WORDS = re.compile(
    r"(?:api|access|secret|private|account|storage|encryption|signing|license)_key"
    r"|connection_string"
)
# Tokens of text: pad_token, mask_token.
_OF_TEXT = set("pad bos eos cls sep mask unk image special start end per no next last".split())
# Texts that are secret by their shape: of Hugging Face, GitHub, GitLab, Slack, OpenAI, npm and AWS;
# JSON web tokens.
_SHAPES = re.compile(
    r"\b(?:hf_|gh[opsu]_|github_pat_|glpat-|xox[abprs]-|npm_)[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\bsk-[\w-]{20,}|\beyJ[\w-]{10,}\.[\w-]+\.[\w-]*"
)
_HEADER = re.compile(
    r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?(?:(?:basic|bearer|digest|token)\s+)?|bearer\s+)\S+"
)
# Who knows such an address may post there.
_WEBHOOK = re.compile(
    r"(?i)(\bhooks\.slack\.com/\w+/|\bdiscord(?:app)?\.com/api/(?:v\d+/)?webhooks/"
    r"|\boffice(?:365)?\.com/webhook\w*/)[^\s'\"<>]+"
)
# The only flag of these programs that a value follows at once, without a space.
_DATABASE_FLAG = re.compile(r"(\b(?:mysql|mariadb)[^\n;|&]{0,200}?\s-p)(?:'[^']*'|\"[^\"]*\"|\S+)")
# In a sentence only a word with a digit is taken for a password: most have one, prose has none.
_SENTENCE = re.compile(
    r"(?i)(\b\w*(?:password|passwd|passphrase)(?::|\s+is|\s+was)?\s+['\"]?)(?=\S*\d)[^\s'\"]{4,}"
)
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'|\S+")
_NAME = r"(?P<name>[A-Za-z_][\w.-]*)"
_ASSIGNED = re.compile(rf"{_NAME}\s?=\s?|['\"]-*{_NAME.replace('name', 'quoted')}['\"]\s*:\s*")
# In configs alone: in a sentence of ours a colon stands after a key, and words after a flag.
_FLAG = re.compile(rf"(?<![\w-])--?{_NAME}\s+")
_PAIR = re.compile(rf"{_NAME}\s*:\s*")


def is_secret(name: str) -> bool:
    """Return whether what is called `name` is secret, in any style: HF_TOKEN, --api-key, apiKey."""
    snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    snake_case = re.sub(r"\W+", "_", snake_case).strip("_")
    *before, last = snake_case.split("_")
    if last == "token" and before and before[-1] in _OF_TEXT:
        return False
    # A variable of the environment, such as KAGGLE_KEY.
    if last == "key" and before and name.isupper():
        return True
    if _LAST_WORD.fullmatch(last):
        return True

    # An access_key_id is as secret as an access_key.
    words = snake_case.removesuffix("_id").split("_")
    last_two = "_".join(words[-2:])
    return _LAST_WORDS.fullmatch(last_two) is not None


def hide_secrets(text: str) -> str:
    """Return `text` with "***" for logins in addresses, headers of authorization, values that are
    assigned to a secret name, and what has the shape of a secret or stands where one is expected.
    """
    text = _LOGIN.sub(r"\1***@", text)
    for before in (_HEADER, _WEBHOOK, _DATABASE_FLAG, _SENTENCE):
        text = before.sub(r"\1***", text)
    return _SHAPES.sub("***", _hide_values(_ASSIGNED, text))


def _hide_values(names: re.Pattern[str], text: str) -> str:
    """Return `text` with "***" for the value after each match of `names` whose name is secret."""
    pieces: list[str] = []
    end = 0  # of the last value that is hidden
    for match in names.finditer(text):
        name = next(group for group in match.groups() if group is not None)
        value = _VALUE.match(text, match.end())
        inside_a_value = match.start() < end
        if inside_a_value or value is None or not is_secret(name):
            continue
        # Quotes stay, so that JSON and YAML stay valid.
        first = value[0][0]
        quote = first if first in "'\"" else ""
        pieces.append(text[end : match.end()])
        pieces.append(f"{quote}***{quote}")
        end = value.end()
    pieces.append(text[end:])
    return "".join(pieces)


def masked(value: Any, under: str = "") -> Any:
    """Return a copy of a config, or part of one, with "***" in place of every secret.

    Configs are written to files, checkpoints and metadata in this form only. It is as valid as the
    config: every masked value is text where text is expected.

    Args:
        value: any value of YAML.
        under: the secret key that `value` is below, if any.
    """
    if isinstance(value, Mapping):
        hidden = {}
        for key, inner in value.items():
            hidden[key] = masked(inner, under=under or _secret_key(key, beside=value))
        return hidden
    if isinstance(value, list):
        return _masked_items(value, under=under)
    if value is None:
        return None
    if not under:
        return _masked_text(value) if isinstance(value, str) else value

    # Of NAME=VALUE, an item of this section's list, the name may be read.
    name, equals, _ = str(value).partition("=")
    if equals and under == "environment_variables":
        return f"{name}=***"
    return "***"


def _secret_key(key: object, beside: Mapping[object, object]) -> str:
    """Return `key` if its value is secret, else an empty text. {name: TOKEN, value: ...} is a pair
    like TOKEN: ...
    """
    name = str(key)
    if key == "value":
        name = str(beside.get("name", ""))
    if key in _SECTIONS or is_secret(name):
        return str(key)
    return ""


def _masked_items(items: list[object], under: str) -> list[object]:
    """Mask a list; in the words of a command, also the one after a secret flag."""
    hidden = []
    before: object = None
    for item in items:
        key = under
        if not key and _is_secret_flag(before) and not isinstance(item, Mapping):
            key = "flag"
        hidden.append(masked(item, under=key))
        before = item
    return hidden


def _is_secret_flag(word: object) -> bool:
    """Return whether a word of a command is a flag such as --token."""
    name = str(word)
    return re.fullmatch(r"--?[\w.-]+", name) is not None and is_secret(name)


def _masked_text(text: str) -> str:
    text = hide_secrets(text)
    return _hide_values(_PAIR, _hide_values(_FLAG, text))
