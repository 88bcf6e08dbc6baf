"""Templates and a master's storage, merged into an experiment config as the master merges them.

The master merges values that it has checked before; here the same rules work on YAML as it was
read, so that a section of a wrong type passes through, and the schema's check reports it.
"""

from typing import Any

from cluster.configs.values import mappings

# Lists whose items are merged by a key of each, and that key.
ITEM_KEYS = {"bind_mounts": "container_path", "log_policies": "name"}


def merge(config: Any, template: object, section: str = "") -> Any:
    """Merge a section of a config over that of a template: the config takes precedence.

    Mounts of the template are added unless the config has one with that container path, log
    policies unless it has one of that name; its environment variables come first. A range or a
    storage of another type is the config's alone, but for the storage's `save_` keys.
    """
    if config is None:
        return template
    if isinstance(config, list) and isinstance(template, list):
        return _merge_lists(config, template, section)
    if not isinstance(config, dict) or not isinstance(template, dict):
        return config

    # Keys of an S3 bucket mean nothing to a shared folder: storages of two types do not mix.
    of_other_type = config.get("type") not in (None, template.get("type"))
    merged = {}
    for key in template | config:
        default = template.get(key)
        if of_other_type and not str(key).startswith("save_"):
            default = None
        if key in config or default is not None:
            merged[key] = merge(config.get(key), default, section=key)
    return merged


def _merge_lists(config: list[object], template: list[object], section: str) -> list[object]:
    """Return the items of a list of the config, with those that the template adds to it."""
    if section == "environment_variables":
        return template + config
    if section not in ITEM_KEYS:
        return config
    key = ITEM_KEYS[section]
    names = [item.get(key) for item in mappings(config)]
    return config + [item for item in mappings(template) if item.get(key) not in names]
