"""Mutants of a source file: copies with one small fault each, found on its syntax tree.

A fault is a comparison off by one or turned round, another operator, a dropped term, call, keyword,
condition or assignment, two swapped arguments, or another number. Left alone are annotations,
decorators, imports, text, and what only an error message or the log says.
"""

import ast
import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_OTHER: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_LEFT_ALONE = {"annotation", "returns", "decorator_list", "format_spec", "type_params"}
_SAID = ("print", "logging.", "warnings.")  # calls whose arguments somebody reads
# Calls whose arguments may change places.
_SYMMETRIC = ("max", "min", "maximum", "minimum", "transpose")
PLACES = {"device", "map_location", "non_blocking"}  # keywords: a CPU takes any value of them
_LEFT_OUT = {"strict", *PLACES}  # the first only looks for a mistake elsewhere


class Mutant(NamedTuple):
    """A file with one fault."""

    line: int  # in the file without it
    before: str  # the changed expression or statement, on one line
    after: str
    source: str


def find_mutants(source: str, skipped: Mapping[str, str]) -> list[Mutant]:
    """Every mutant of `source`, in the order of its lines.

    Args: skipped: statements that stay as they are: how each begins, as `ast.unparse` writes it,
        and why. Raises ValueError for one that is not there.
    """
    tree = ast.parse(source)
    unseen = set(skipped)
    found = []
    for parent, field, at, node in _places(tree, unseen, tuple(skipped)):
        line = getattr(node, "lineno", getattr(parent, "lineno", 0))
        for variant in _variants(node):
            changed = _with(tree, parent, field, at, variant)
            found.append(Mutant(line, _first_line(node), _first_line(variant), changed))
    if unseen:
        raise ValueError(f"no statement begins with {min(unseen)!r}")
    return sorted((m for m in found if m.before != m.after), key=lambda mutant: mutant.line)


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).strip().split("\n")[0]


def _with(tree: ast.Module, parent: ast.AST, field: str, at: int | None, node: ast.AST) -> str:
    """The source of `tree` with `node` in this place."""
    value = getattr(parent, field)
    kept = list(value) if at is not None else value
    if at is None:
        setattr(parent, field, node)
    else:
        value[at] = node
    try:
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    finally:
        if at is None:
            setattr(parent, field, kept)
        else:
            value[:] = kept


def _places(
    node: ast.AST, unseen: set[str], skipped: tuple[str, ...]
) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """(parent, field, place in the field's list or None, node) of all that may change."""
    for field, value in ast.iter_fields(node):
        if field in _LEFT_ALONE:
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _stays(child):
                continue
            if isinstance(child, ast.stmt):
                begins = [text for text in skipped if ast.unparse(child).startswith(text)]
                unseen.difference_update(begins)
                if begins:
                    continue
            yield node, field, at, child
            if not (isinstance(child, ast.Raise) or _is_said(child) or _is_left_out(child)):
                yield from _places(child, unseen, skipped)


def _stays(node: ast.AST) -> bool:
    """Imports, with what replaces one that fails, and what only a type checker reads."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TypeVar("):
        return True
    if isinstance(node, ast.Try):
        return any(h.type is not None and "ImportError" in ast.unparse(h.type)
                   for h in node.handlers)  # fmt: skip
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _is_said(node: ast.AST) -> bool:
    node = node.value if isinstance(node, ast.Expr) else node
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(_SAID)


def _is_left_out(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg in _LEFT_OUT


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    """The faults that `node` can have."""
    if isinstance(node, ast.expr):
        yield from _operators(node)
        yield from _terms(node)
        yield from _numbers(node)
    elif isinstance(node, ast.stmt):
        yield from _statements(node)
    elif isinstance(node, ast.comprehension) and node.ifs:
        yield _like(node, ifs=[])


def _like(node: Any, **fields: Any) -> Any:
    """A copy of `node` with other fields."""
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def _operators(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield _like(node, ops=[*node.ops[:i], _OTHER[type(op)](), *node.ops[i + 1 :]])
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OTHER:
        yield _like(node, op=_OTHER[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield node.operand


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            left = node.values[:i] + node.values[i + 1 :]
            yield left[0] if len(left) == 1 else _like(node, values=left)
    elif isinstance(node, ast.Call):
        first = node.args[:2]
        stars = any(isinstance(x, ast.Starred) for x in first)
        if len(first) == 2 and not stars and not ast.unparse(node.func).endswith(_SYMMETRIC):
            yield _like(node, args=[*reversed(first), *node.args[2:]])
        for word in node.keywords:
            if word.arg is not None and not _is_left_out(word):
                yield _like(node, keywords=[k for k in node.keywords if k is not word])


def _numbers(node: ast.expr) -> Iterator[ast.expr]:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield ast.Constant(value * 2 or 1.0)


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.UnaryOp):
        yield _like(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.With) and all(item.optional_vars is None for item in node.items):
        yield ast.If(ast.Constant(True), node.body, [])
    elif isinstance(node, ast.AugAssign):
        yield ast.Pass()
        if type(node.op) in _OTHER:
            yield _like(node, op=_OTHER[type(node.op)]())
    elif isinstance(node, ast.Assign):
        if all(isinstance(x, ast.Attribute | ast.Subscript) for x in node.targets):
            yield ast.Pass()
    elif isinstance(node, ast.Raise | ast.Continue | ast.Break) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield ast.Pass()
