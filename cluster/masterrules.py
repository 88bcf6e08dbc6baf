"""Rules for master configs in Determined 0.38.1; keys.yaml refers to them by name."""

import re
from typing import Any

from cluster import gotext, schema
from cluster.parts import given
from detalbert.errors import nearest

LEAST_PASSWORD = 8  # characters; `det` warns of shorter ones, and asks for a, A and 0 in it
_SAML_NEEDS = "provider idp_recipient_url idp_sso_url idp_sso_descriptor_url idp_metadata_url"
_LOGO_KINDS = "dark_horizontal dark_vertical light_horizontal light_vertical"


def empty_problem(text: str) -> str | None:
    """Say that a text is empty; None if it is not."""
    return None if text else "empty; fill it in"


def network_problem(name: str) -> str | None:
    """Say that `name` looks like a misspelt mode: Docker takes any word as a network's name."""
    modes = ["bridge", "host", "none", "default"]
    hint = nearest(name, modes)
    if name and (name in modes or name.startswith("container:") or "did you" not in hint):
        return None
    return f"{name!r} is a Docker network that may not be there; {hint}"


def no_default_problem(none: bool) -> str | None:
    """Say why an agent manager cannot do without default pools."""
    return "0.38.1 refuses it, with default pools and without; leave it out" if none else None


def gateway_problem(gateway: dict[str, Any]) -> str | None:
    """Say why a gateway's port range is empty."""
    first = schema.whole(gateway.get("gateway_port_range_start", 32768))
    last = schema.whole(gateway.get("gateway_port_range_end", 65535))
    if first is not None and last is not None and first >= last:
        return f"the port range {first} to {last} is empty"
    return None


def cpu_problem(manager: dict[str, Any]) -> str | None:
    """Say which resource request slots of type cpu lack."""
    requests = schema.mapping(manager.get("slot_resource_requests"))
    if manager.get("slot_type") == "cpu" and not (requests.get("cpu") or 0):
        return "slot_type cpu needs slot_resource_requests.cpu above 0"
    return None


def skip_problem(tls: dict[str, Any]) -> str | None:
    """Say why a configured certificate would not be read."""
    if tls.get("skip_verify") and tls.get("certificate"):
        return "a certificate is not read with skip_verify; leave one out"
    return None


def login_problem(login: dict[str, Any]) -> str | None:
    """Say that one of username and password is missing."""
    one = len({"username", "password"} & given(login)) == 1
    return "username and password go together" if one else None


def saml_problem(saml: dict[str, Any]) -> str | None:
    """Say which keys an enabled SAML needs."""
    if saml.get("enabled") and not all(saml.get(name) for name in _SAML_NEEDS.split()):
        return f"enabled needs all of {', '.join(_SAML_NEEDS.split())}"
    return None


def destination_problem(url: str) -> str | None:
    """Say that a proxied server's address has no port."""
    if re.match(r"[a-z]+://[^/]+:\d+", url):
        return None
    return f"{url!r} has no port; write it as http://HOST:PORT"


def logos_problem(logos: dict[str, Any]) -> str | None:
    """Say that some kinds of logos are missing; all or none are needed."""
    if logos and not all(logos.get(kind) for kind in _LOGO_KINDS.split()):
        return f"give all of {_LOGO_KINDS}"
    return None


def digits_problem(value: Any) -> str | None:
    """Say that `value` is not a number: the master would silently read it as 0."""
    if isinstance(value, str) and not value.isdigit():
        return f"{value!r} is no number; give one"
    return None


def port_problem(port: Any) -> str | None:
    """Say why `port` is not a valid port number."""
    if str(port).isdigit() and 0 < int(port) < 65536:
        return None
    return f"{port!r} is no port; give a number up to 65535"


def url_problem(value: Any) -> str | None:
    """Say which characters of `value` would break the database's URL."""
    return gotext.userinfo_problem(str(value))


def tls_problem(tls: dict[str, Any]) -> str | None:
    """Say that one of cert and key is missing."""
    one = {"cert", "key"} & {name for name in given(tls) if tls[name] != ""}
    return "cert and key go together; give both or neither" if len(one) == 1 else None


def ssh_problem(ssh: dict[str, Any]) -> str | None:
    """Say which key size an RSA key needs."""
    size = ssh.get("rsa_key_size", 0)
    if ssh.get("key_type") == "RSA" and not (isinstance(size, int) and 1 <= size <= 16384):
        return "key_type RSA needs rsa_key_size, 1 to 16384"
    return None


def token_problem(token: dict[str, Any]) -> str | None:
    """Say which lifespan of a token is out of range."""
    longest = schema.whole(token.get("max_lifespan_days", 30))
    usual = schema.whole(token.get("default_lifespan_days", 30))
    for name, days in (("max_lifespan_days", longest), ("default_lifespan_days", usual)):
        if days is not None and (days < -1 or days > 106751):
            return f"{name} {days}: give 0 to 106751, or -1 for ever"
    if longest is None or usual is None or longest == -1:
        return None
    if usual > longest or usual == -1:
        return f"default_lifespan_days {usual} is more than max_lifespan_days {longest}"
    return None


def password_problem(password: Any) -> str | None:
    """Say why a password is too short."""
    if 0 < len(str(password)) < LEAST_PASSWORD:
        return f"less than {LEAST_PASSWORD} characters, for an administrator; take a longer one"
    return None


def name_problem(name: Any) -> str | None:
    """Say that a name is empty; None if it is not."""
    return None if str(name) else "empty"
