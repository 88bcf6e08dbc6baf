"""YAML files, read by PyYAML, whose safe loader is changed where the master differs.

Here as there 5e-5 is a number, and a day or 1:30 is text. A key that stands twice is refused, as by
`det`: the master would keep the last one. What else the two read differently, such as `y`, has
another type than a key wants, so it is refused and not misread.
"""

import re
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from detalbert.errors import UserError, as_user_error, first_line
from detalbert.settings.values import Config

LARGEST = 1_000_000  # characters in a file
_TAG = "tag:yaml.org,2002:"
# As in YAML 1.2, with 0b, octal numbers and "_" of 1.1.
_NUMBERS = {
    "int": r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)",
    "float": r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}
_OCTAL = re.compile(r"[-+]?0[0-7_]+")


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with `_NUMBERS`, without dates, and with text keys, each at most once."""

    # Of PyYAML's rules for plain texts those of null, true, false and "<<".
    yaml_implicit_resolvers = {
        first: [(tag, rule) for tag, rule in rules if tag[len(_TAG) :] in ("null", "bool", "merge")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        names = set[str]()
        for key, _ in node.value:
            name = str(key.value)
            if name in names:
                raise yaml.MarkedYAMLError(
                    problem=f"{name!r} is there twice", problem_mark=key.start_mark
                )
            names.add(name)
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                key.tag = f"{_TAG}str"
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: Any) -> Any:
        node.value.encode()  # Go's YAML refuses half characters, too
        # 010 is 8 to the master, and 10 to `det --config`.
        if node.tag == f"{_TAG}int" and _OCTAL.fullmatch(node.value):
            problem = f"{node.value} is octal to some programs, decimal to others; take out the 0"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return super().construct_scalar(node)


for _kind, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(
        f"{_TAG}{_kind}",
        regexp=re.compile(f"(?:{_pattern})$"),
        first=list("-+.0123456789"),
    )


def parse_yaml(text: str, key: str = "") -> Any:
    """Return the value that a YAML text holds. Raises UserError for `key`, with the line, if it is
    not YAML or has a key twice.
    """
    with as_user_error(partial(_unreadable, key)):
        return yaml.load(text, _Loader)


def _unreadable(key: str, error: Exception) -> UserError:
    mark = getattr(error, "problem_mark", None)
    place = "" if mark is None else f"line {mark.line + 1}: "
    reason = getattr(error, "problem", None) or first_line(error)
    return UserError(f"cannot read it: {place}{reason}", key=key, cure="give valid YAML")


def read_yaml(path: Path) -> Config:
    """Read the mapping in a YAML file. Raises UserError, naming the file, if it cannot be read, is
    too large, is not UTF-8, holds no mapping, or `parse_yaml` refuses it.
    """
    key = str(path)
    with as_user_error(partial(_unreadable, key)), path.open(encoding="utf-8-sig") as file:
        text = file.read(LARGEST + 1)  # a device has no end
    if len(text) > LARGEST:
        raise UserError(f"more than {LARGEST:,} characters", key=key, cure="give a config")
    value = parse_yaml(text, key)
    if not isinstance(value, dict):
        raise UserError("not a config", key=key, cure="expected a mapping of keys")
    return value
