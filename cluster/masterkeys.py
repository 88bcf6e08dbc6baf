"""The keys of a master config, as Determined 0.38.1's master takes them.

It refuses an unknown key and does not start; in a pool, in task_container_defaults and in a
provider's network_interface it ignores one silently, which is as bad: all are named here.
"""

import re
from typing import Any

from cluster import gotext, parts, schema
from cluster.managers import MANAGER, SCHEDULER, TASKS, TLS_CLIENT
from cluster.parts import CHECKPOINT_STORAGE
from cluster.provider import PROVIDER
from cluster.schema import (
    COUNT,
    FLAG,
    TEXT,
    WHOLE,
    Map,
    Seq,
    Union_,
    Value,
    keys,
)

LOOSE_TEXT = Value((str, int, float, bool))  # text to sections without a decoder of their own
POOL = Map(
    {
        "pool_name": schema.FILLED,
        "description": TEXT,
        "provider": PROVIDER,
        "scheduler": SCHEDULER,
        "max_aux_containers_per_agent": COUNT,
        "max_cpu_containers_per_agent": Value((int,), minimum=-1),
        "agent_reattach_enabled": FLAG,
        "task_container_defaults": TASKS,
        "agent_reconnect_wait": Value((str,), rule=gotext.duration_problem, null=False),
    },
    ("pool_name",),
    {
        "agent_reattach_enabled": "always on since 0.21; leave it out",
        "max_cpu_containers_per_agent": "use max_aux_containers_per_agent",
        "max_slots": "no key of a pool any more; leave it out",
    },
)
_EXTRA = Map({"resource_manager": MANAGER, "resource_pools": Seq(POOL)}, ("resource_manager",))

_LOGGING = Union_(
    "type",
    {
        "default": Map({"type": TEXT}),
        "elastic": Map(
            {
                **keys(TEXT, "type host"),
                "port": WHOLE,
                "security": Map(
                    {**keys(TEXT, "username password"), "tls": TLS_CLIENT},
                    rule=lambda login: (
                        "username and password go together"
                        if len({"username", "password"} & parts.given(login)) == 1
                        else None
                    ),
                ),
            }
        ),
    },
    required=False,
)
_PROVISION = "auto_provision_users always_redirect enabled"
_ATTRIBUTES = """provider idp_recipient_url idp_sso_url groups_attribute_name
display_name_attribute_name agent_uid_attribute_name agent_gid_attribute_name
agent_user_name_attribute_name agent_group_name_attribute_name"""
_SAML_NEEDS = "provider idp_recipient_url idp_sso_url idp_sso_descriptor_url idp_metadata_url"
_SAML = Map(
    {
        **keys(FLAG, _PROVISION),
        **keys(LOOSE_TEXT, f"{_ATTRIBUTES} idp_sso_descriptor_url idp_metadata_url"),
    },
    rule=lambda saml: (
        f"enabled needs all of {', '.join(_SAML_NEEDS.split())}"
        if saml.get("enabled") and not all(saml.get(name) for name in _SAML_NEEDS.split())
        else None
    ),
)
_SCIM_AUTH = Union_(
    "type",
    {
        "basic": Map(
            {"type": TEXT, **keys(schema.FILLED, "username password")}, ("username", "password")
        ),
        "oauth": Map({"type": TEXT}),
    },
    required=False,
)
_DESTINATION = Value(
    (str,),
    rule=lambda url: (
        None
        if re.match(r"[a-z]+://[^/]+:\d+", url)
        else f"{url!r} has no port; write it as http://HOST:PORT"
    ),
)
_PROXIED = Map(
    {"path_prefix": schema.FILLED, "destination": _DESTINATION}, ("path_prefix", "destination")
)
_SESSIONS = Map(keys(LOOSE_TEXT, "login_uri logout_uri invalidation_uri jwt_key org_id cluster_id"))
_INTERNAL = Map(
    {
        "audit_logging_enabled": FLAG,
        "external_sessions": _SESSIONS,
        "proxied_servers": Seq(_PROXIED),
        "preemption_timeout": TEXT,  # moved to task_container_defaults
    }
)
_LOGO_KINDS = "dark_horizontal dark_vertical light_horizontal light_vertical"
_LOGOS = Map(
    keys(TEXT, _LOGO_KINDS),
    rule=lambda logos: (
        f"give all of {_LOGO_KINDS}"
        if logos and not all(logos.get(kind) for kind in _LOGO_KINDS.split())
        else None
    ),
)
_LEVELS = ("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")
_TRUTHS = ("true", "True", "TRUE", "t", "T", "1", "false", "False", "FALSE", "f", "F", "0")
LOOSE_FLAG = Value((bool, str, int), choices=(True, False, *_TRUTHS))  # and a truth value of these


def _digits_problem(value: Any) -> str | None:
    """Any other text is the same as 0 to the master."""
    if isinstance(value, str) and not value.isdigit():
        return f"{value!r} is no number; give one"
    return None


LOOSE_COUNT = Value((int, str), minimum=0, rule=_digits_problem)
SECTIONS: dict[str, Any] = {
    "log": Map({"level": Value((str,), choices=_LEVELS), "color": LOOSE_FLAG}),
    "telemetry": Map(
        {
            **keys(LOOSE_FLAG, "enabled otel_enabled"),
            **keys(LOOSE_TEXT, "segment_master_key segment_webui_key otel_endpoint"),
            "cluster_id": LOOSE_TEXT,
        }
    ),
    "logging": _LOGGING,
    "retention_policy": Map(
        {
            "log_retention_days": Value((int,), minimum=-1, maximum=32767),
            "schedule": Value((str,), rule=gotext.schedule_problem),
        }
    ),
    "observability": Map({"enable_prometheus": FLAG}),
    "cache": Map({"cache_dir": LOOSE_TEXT}),
    "webhooks": Map(keys(LOOSE_TEXT, "base_url signing_key")),
    "integrations": Map({"pachyderm": Map({"address": LOOSE_TEXT})}),
    "ui_customization": Map({"logo_paths": _LOGOS}),
    "scim": Map({"enabled": FLAG, "auth": _SCIM_AUTH}),
    "saml": _SAML,
    "oidc": Map(
        {
            **keys(FLAG, f"{_PROVISION} exclude_groups_scope"),
            **keys(LOOSE_TEXT, f"{_ATTRIBUTES} client_id client_secret authentication_claim"),
            "scim_authentication_attribute": LOOSE_TEXT,
        }
    ),
    "det_cloud": Map({**keys(FLAG, "enabled always_redirect"), "login_url": LOOSE_TEXT}),
    "__internal": _INTERNAL,
}
ROOT: dict[str, Any] = {
    **keys(LOOSE_TEXT, "config_file root cluster_name"),
    **keys(COUNT, "tensorboard_timeout notebook_timeout"),
    **keys(FLAG, "enable_cors launch_error"),
    "feature_switches": schema.TEXTS,
    "reserved_ports": Seq(WHOLE),
    "additional_resource_managers": Seq(_EXTRA),
    "port": Value((int, str), minimum=0, maximum=65535, rule=_digits_problem),
    "checkpoint_storage": CHECKPOINT_STORAGE,
    "task_container_defaults": TASKS,
    "resource_manager": MANAGER,
    "resource_pools": Seq(POOL),
}
