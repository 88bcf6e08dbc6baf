"""Templates and a master's storage, merged into an experiment config as the master merges them."""

from typing import Any

from detalbert.settings.schema import mappings

LISTS = {"bind_mounts": "container_path", "log_policies": "name"}  # by what their items differ


def merge(config: Any, template: Any, key: str = "") -> Any:
    """Merge the section `key` of a config over that of a template: the config takes precedence.

    Mounts of the template are added unless the config has one with that container path, log
    policies unless it has one of that name; its environment variables come first. A range or a
    storage of another type is the config's alone, but for the storage's `save_` keys.
    """
    if config is None:
        return template
    if isinstance(config, list) and isinstance(template, list):
        if key == "environment_variables":
            return [*template, *config]
        if name := LISTS.get(key):
            taken = [item.get(name) for item in mappings(config)]
            return config + [each for each in mappings(template) if each.get(name) not in taken]
    if not isinstance(config, dict) or not isinstance(template, dict):
        return config
    if config.get("type") not in (None, template.get("type")):
        template = {k: value for k, value in template.items() if str(k).startswith("save_")}
    return {name: merge(config.get(name), template.get(name), name) for name in template | config}
