"""Templates and a master's storage, merged into an experiment config as the master merges them."""

from typing import Any

from cluster.schema import mapping, mappings


def merge(config: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """Merge `config` over `template`: values of the config take precedence, key by key.

    Mounts and devices of the template are added unless the config has one with that container path,
    log policies unless it has one of that name; the template's environment variables come first.
    """
    merged = _over(config, template)
    for key, name in (("bind_mounts", "container_path"), ("log_policies", "name")):
        merged[key] = _added(config.get(key), template.get(key), name)
    own, other = mapping(config.get("environment")), mapping(template.get("environment"))
    variables: list[Any] = [each.get("environment_variables") for each in (other, own)]
    if all(isinstance(each, list) for each in variables):
        merged["environment"]["environment_variables"] = [*variables[0], *variables[1]]
    merged["checkpoint_storage"] = merge_storage(config, template.get("checkpoint_storage")).get(
        "checkpoint_storage"
    )
    return {key: value for key, value in merged.items() if value is not None}


def _over(config: Any, template: Any) -> Any:
    if config is None:
        return template
    if not isinstance(config, dict) or not isinstance(template, dict):
        return config
    if "type" in config and config["type"] != template.get("type"):
        return config  # a search range, or another kind of storage: taken whole
    return {key: _over(config.get(key), template.get(key)) for key in [*template, *config]}


def _added(own: Any, other: Any, name: str) -> Any:
    if not isinstance(own, list) or not isinstance(other, list):
        return other if own is None else own
    taken = [item.get(name) for item in mappings(own)]
    return [*own, *(item for item in mappings(other) if item.get(name) not in taken)]


def merge_storage(config: dict[str, Any], storage: Any) -> dict[str, Any]:
    """Return `config` with its checkpoint storage completed from `storage`, if of the same type."""
    own = config.get("checkpoint_storage")
    if not isinstance(storage, dict) or not isinstance(own, (dict, type(None))):
        return config
    own = {key: value for key, value in (own or {}).items() if value is not None}
    kinds = {own.get("type"), storage.get("type")} - {None}
    if len(kinds) > 1:
        storage = {key: value for key, value in storage.items() if key.startswith("save_")}
    return {**config, "checkpoint_storage": {**storage, **own}}
