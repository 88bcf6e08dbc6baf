"""Schemas read from `keys.yaml`: keys of experiment and master configs, and their types."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cluster.schema import Either, Map, Named, Rule, Seq, Spec, Union_, Value

_TYPES = {kind.__name__: kind for kind in (str, int, float, bool, dict, list)}


def _read(node: Any, kinds: Mapping[str, Spec]) -> Any:
    """Return the schema that a node of `keys.yaml` describes or names."""
    if isinstance(node, str):
        return kinds[node]
    rule = _rule(node.get("rule"))
    if "keys" in node:
        old = _spread(node.get("deprecated", {}))
        keys = {name: _read(inner, kinds) for name, inner in _spread(node["keys"]).items()}
        return Map(keys, tuple(node.get("required", "").split()), old, rule)
    if "by" in node:
        bare = _read(node["bare"], kinds) if "bare" in node else None
        maps = {name: _read(inner, kinds) for name, inner in node["kinds"].items()}
        more = node.get("required", True), node.get("default", ""), bare, rule
        return Union_(node["by"], maps, *more)
    if "list" in node:
        return Seq(_read(node["list"], kinds), rule)
    if "named" in node:
        return Named(_read(node["named"], kinds))
    if "forms" in node:
        return Either({_TYPES[name]: _read(form, kinds) for name, form in node["forms"].items()})
    types = tuple(_TYPES[name] for name in node.get("types", "str").split())
    limits = node.get("least"), node.get("most"), tuple(node.get("choices", ()))
    return Value(types, *limits, node.get("hint", ""), rule, node.get("nulls"))


def _spread(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for names, value in keys.items() for name in names.split()}


def _rule(text: str | None) -> Rule | None:
    if text is None:
        return None
    path, *words = text.split()
    module, name = path.split(".")
    found = getattr(importlib.import_module(f"cluster.{module}"), name)
    return found(*words) if words else found


def _load() -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    for name, node in yaml.safe_load(text).items():
        kinds[name] = _read(node, kinds)
    return kinds


KINDS = _load()
