"""YAML as the master parses it: Go's yaml.v2, by way of JSON.

Unlike in PyYAML, 5e-5 and 048 are numbers, y and n are booleans, and a date is text. A duplicate
key is an error: `det` rejects it, the master keeps the last one and drops the others.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from detalbert.errors import UserError

_TRUTHS = re.compile(
    r"(?:[yYnN]|[yY]es|YES|[nN]o|NO|[tT]rue|TRUE|[fF]alse|FALSE|[oO]n|ON|[oO]ff|OFF)$"
)
_NULLS = re.compile(r"(?:~|null|Null|NULL|)$")
_INTEGERS = re.compile(r"[-+]?(?:0x[0-9a-fA-F_]+|0b[01_]+|0o?[0-7_]*|[1-9][0-9_]*)$")
_FLOATS = re.compile(r"[-+]?(?:\.[0-9_]*[0-9]|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?$")
_NO_NUMBERS = re.compile(r"[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$")


# libyaml, of which yaml.v2 is a translation, where PyYAML was built with it.
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Safe):
    """PyYAML's safe loader with Go's rules for plain scalars."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping with text keys, as in JSON. Raises UserError for a duplicate key."""
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise UserError(
                        f"line {key.start_mark.line + 1}: {key.value!r} is there twice; take one"
                    )
                seen.add(key.value)
        self.flatten_mapping(node)
        return {
            _name(self.construct_object(key, deep=True)): self.construct_object(value, deep=deep)
            for key, value in node.value
        }


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value.replace("_", "").lower()
    digits = text.lstrip("+-")
    base = {"0x": 16, "0b": 2, "0o": 8}.get(digits[:2], 8 if digits[:1] == "0" else 10)
    value = int(digits, base) if digits not in ("0o", "") else 0
    return -value if text.startswith("-") else value


def _truth(loader: _Loader, node: yaml.ScalarNode) -> bool:
    return node.value.lower() in ("y", "yes", "true", "on")


_TYPES = [("bool", _TRUTHS), ("null", _NULLS), ("int", _INTEGERS), ("float", _FLOATS)]
for _tag, _pattern in [*_TYPES, ("float", _NO_NUMBERS), ("merge", re.compile("<<$"))]:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, None)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:bool", _truth)


def load(path: Path) -> dict[str, Any]:
    """Load the mapping in a YAML file; all keys are text, as in JSON.

    Raises:
        UserError: if the file cannot be read, holds no mapping, or has values that JSON lacks.
    """
    try:
        value = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)  # noqa: S506  a safe one
        _check_numbers("", value)
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror}); give a YAML file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; give a config in YAML") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise UserError(f"{path}: not YAML{where}; fix it") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: not a config; expected a mapping of keys")
    return value


def _check_numbers(key: str, value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(f"{key}.{name}".lstrip("."), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_numbers(f"{key}[{number}]", inner)
    elif isinstance(value, float) and value - value != 0:
        raise UserError(f"{key}: {value} is no number in JSON; give a finite one")


def _name(key: Any) -> str:
    names = {True: "true", False: "false", None: "null"}
    return names[key] if key is None or isinstance(key, bool) else str(key)
