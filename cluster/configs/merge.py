"""Templates and a master's storage, merged into an experiment config as the master merges them."""

from typing import Any

from detalbert.settings.schema import mappings

KEYS = {"bind_mounts": "container_path", "log_policies": "name"}  # by what items of a list differ


def merge(config: Any, template: Any, section: str = "") -> Any:
    """Merge a section of a config over that of a template: the config takes precedence.

    Mounts of the template are added unless the config has one with that container path, log
    policies unless it has one of that name; its environment variables come first. A range or a
    storage of another type is the config's alone, but for the storage's `save_` keys.
    """
    if config is None:
        return template
    if isinstance(config, list) and isinstance(template, list):
        if section == "environment_variables":
            return template + config
        if section in KEYS:
            key = KEYS[section]
            taken = [item.get(key) for item in mappings(config)]
            config = config + [item for item in mappings(template) if item.get(key) not in taken]
        return config
    if not isinstance(config, dict) or not isinstance(template, dict):
        return config
    of_other_type = config.get("type") not in (None, template.get("type"))
    merged = {}
    for key in template | config:
        below = template.get(key)
        if of_other_type and not str(key).startswith("save_"):
            below = None
        if key in config or below is not None:
            merged[key] = merge(config.get(key), below, key)
    return merged
