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
        return _merge_lists(config, template, section)
    if not isinstance(config, dict) or not isinstance(template, dict):
        return config
    if config.get("type") not in (None, template.get("type")):
        template = {key: value for key, value in template.items() if str(key).startswith("save_")}
    return {key: merge(config.get(key), template.get(key), key) for key in template | config}


def _merge_lists(config: list[Any], template: list[Any], section: str) -> list[Any]:
    if section == "environment_variables":
        return template + config
    if section not in KEYS:
        return config
    key = KEYS[section]
    taken = [item.get(key) for item in mappings(config)]
    return config + [item for item in mappings(template) if item.get(key) not in taken]
