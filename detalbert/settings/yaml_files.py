"""Reader of users' YAML files: as the master parses them, which is Go's yaml.v2 by way of JSON.

Unlike in PyYAML, 5e-5 and 048 are numbers, y and n are booleans, and a date is text. A key that
stands twice is an error: `det` rejects it, the master keeps the last one and drops the others.
libyaml's own loader is not used: it ends the process at 100,000 levels of nesting. So a large file
takes seconds to read, and MOST_VALUES keeps it from being larger than any config is.
"""

import contextlib
import math
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml

from detalbert.errors import UserError
from detalbert.settings.values import Config

# Values in a file, those included that an alias repeats: ten lines of aliases can mean a billion.
MOST_VALUES = 50_000
# Before the name of a type of YAML: `tag:yaml.org,2002:int`.
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with Go's rules for plain scalars, JSON's types and MOST_VALUES."""

    # None of PyYAML's rules for scalars, and of its types only those of JSON.
    yaml_implicit_resolvers: dict[str, Any] = {}
    yaml_constructors = {
        f"{_TAG}{kind}": yaml.SafeLoader.yaml_constructors[f"{_TAG}{kind}"]
        for kind in ("str", "map", "seq")
    } | {None: yaml.SafeLoader.construct_undefined}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._sizes: dict[str, int] = {}  # values below each anchor

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node as PyYAML does. Raises UserError beyond MOST_VALUES."""
        event: Any = self.peek_event()
        values_before = self._values
        self._values += 1
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and event.anchor in self.anchors:
            # An alias inside its own anchor would be endless.
            self._values += self._sizes.get(event.anchor, MOST_VALUES)
        if self._values > MOST_VALUES:
            raise UserError(
                f"more than {MOST_VALUES:,} values, aliases counted",
                key=f"line {event.start_mark.line + 1}",
                cure="use fewer",
            )
        node = super().compose_node(parent, index)
        if not is_alias and event.anchor is not None:
            self._sizes[event.anchor] = self._values - values_before
        return node

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        """Return a mapping with text keys, as in JSON. Raises UserError for a duplicate key."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            # Keys of a merged mapping may be set again: its own win.
            if key.tag == f"{_TAG}merge":
                continue
            name = self._name(key)
            line = key.start_mark.line + 1
            if name in lines:
                raise UserError(
                    f"{name!r} is there twice, on line {lines[name]} too",
                    key=f"line {line}",
                    cure="take one out",
                )
            lines[name] = line
        self.flatten_mapping(node)
        mapping: dict[Hashable, object] = {}
        for key, value in node.value:
            mapping[self._name(key)] = self.construct_object(value, deep=deep)
        return mapping

    def _name(self, node: yaml.Node) -> str:
        """Return a key as text, as JSON has it: true, and not Python's True."""
        key = self.construct_object(node, deep=True)
        names = {True: "true", False: "false", None: "null"}
        return names[key] if key is None or isinstance(key, bool) else str(key)


# The plain scalars that are not text, and what they mean.
_KINDS: dict[str, tuple[str, Callable[[str], float | None]]] = {
    "bool": (
        r"[yYnN]|[yY]es|YES|[nN]o|NO|[tT]rue|TRUE|[fF]alse|FALSE|[oO]n|ON|[oO]ff|OFF",
        lambda text: text.lower() in ("y", "yes", "true", "on"),
    ),
    "null": (r"~|null|Null|NULL|", lambda text: None),
    "int": (
        r"[-+]?(?:0x[0-9a-fA-F_]+|0b[01_]+|0|0o?[0-7_]+|[1-9][0-9_]*)",
        lambda text: int(text.replace("_", ""), 8 if re.match("[-+]?0_*[0-7]", text) else 0),
    ),
    "float": (
        r"[-+]?(?:\.[0-9_]*[0-9]|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        lambda text: float(re.sub(r"_|\.(?=[a-zA-Z])", "", text)),  # .inf and .nan, too
    ),
}


def _construct(loader: _Loader, node: yaml.ScalarNode) -> object:
    """Return the value of a scalar that looks like one of `_KINDS`, or has its tag."""
    kind = node.tag.removeprefix(_TAG)
    text = str(loader.construct_scalar(node))
    pattern, convert = _KINDS[kind]
    if re.fullmatch(pattern, text):
        # A number of 400 digits overflows in isfinite; of 5,000 Python makes none.
        with contextlib.suppress(ValueError, OverflowError):
            value = convert(text)
            if value is None or math.isfinite(value):
                return value
        # In Go what is too large for a number is text, such as the secret key 97565576e708.
        if not re.fullmatch(r"[-+]?\.[a-zA-Z]+", text):
            return text
    word = {"int": "number", "float": "number"}.get(kind, kind)
    raise UserError(
        f"{text[:40]} is no {word} in JSON",
        key=f"line {node.start_mark.line + 1}",
        cure="change it",
    )


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which also quotes texts that Go would read as something else."""


for _kind, (_pattern, _) in _KINDS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"{_TAG}{_kind}", regexp=re.compile(f"(?:{_pattern})$"), first=None
        )
    _Loader.add_constructor(f"{_TAG}{_kind}", _construct)
_Loader.add_implicit_resolver(f"{_TAG}merge", regexp=re.compile("<<$"), first=None)


def parse_yaml(text: str) -> Any:
    """Return the value that a YAML text holds; all keys are text, as in JSON. Raises UserError,
    with the line, if it is not YAML, has a key twice or a value that JSON lacks, or is too large.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506  a safe one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1})" if mark else ""
        raise UserError(f"not YAML{place}", cure="fix it") from None
    except RecursionError:
        raise UserError("not a config: hundreds of levels deep", cure="nest less") from None


def read_yaml(path: Path) -> Config:
    """Read the mapping in a YAML file. Raises UserError, naming the file, if it cannot be read, is
    not UTF-8, holds no mapping, or `parse_yaml` refuses it.
    """
    try:
        value = parse_yaml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(
            f"cannot read it ({error.strerror})", key=str(path), cure="give a YAML file"
        ) from None
    except UnicodeDecodeError:
        raise UserError("not UTF-8 text", key=str(path), cure="give a config in YAML") from None
    except UserError as error:
        # Its key is the line, which stays in sight.
        problem = f"{error.key}: {error.problem}" if error.key else error.problem
        raise UserError(problem, key=str(path), cure=error.cure) from None
    if not isinstance(value, dict):
        raise UserError("not a config", key=str(path), cure="expected a mapping of keys")
    return value


def dump_yaml(value: object) -> str:
    """Return `value` as YAML that `parse_yaml` and any other reader read as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
