"""Mutants of a module: its syntax tree with one operator, number or branch changed."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

_COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMES = {
    "maximum": "minimum",
    "minimum": "maximum",
    "max": "min",
    "min": "max",
    "at_least": "at_most",
    "at_most": "at_least",
    "any": "all",
    "all": "any",
    "log1p": "log",
    "expm1": "exp",
}


class Mutant(NamedTuple):
    """One change: where it is, what it is, and the module with it."""

    line: int
    what: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its lines.

    Examples
    --------
    >>> [mutant.what for mutant in mutants("def f(x): return x + 1")]
    ['x + 1 -> x - 1', '1 -> 2']
    """
    tree = ast.parse(source)
    places = sorted(_places(tree), key=lambda node: (node.lineno, node.col_offset))
    for node in places:
        for changed in _changes(node):
            line, before, after = node.lineno, ast.unparse(node), ast.unparse(changed)
            yield Mutant(line, f"{before} -> {after}", _with(tree, node, changed))


def _places(node: ast.AST) -> Iterator[ast.expr | ast.AugAssign]:
    """Nodes that run: no annotation, no message of an error, no text."""
    if isinstance(node, (ast.Raise, ast.JoinedStr)):
        return
    if isinstance(node, (ast.expr, ast.AugAssign)):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARE:
            yield _changed(node, ops=[_COMPARE[type(op)]()])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            yield _changed(node, op=_ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield _changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield _changed(node, body=orelse, orelse=body)
        case ast.Constant(value=bool(value)):
            yield _changed(node, value=not value)
        case ast.Constant(value=int(value)):
            yield _changed(node, value=value + 1)
        case ast.Constant(value=float(value)):
            yield _changed(node, value=2 * value or 1.0)
        case ast.Attribute(attr=name) if name in _NAMES:
            yield _changed(node, attr=_NAMES[name])
        case ast.Name(id=name, ctx=ast.Load()) if name in _NAMES:
            yield _changed(node, id=_NAMES[name])


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _with(tree: ast.AST, old: ast.AST, new: ast.AST) -> str:
    class Exchange(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    # The transformer writes into lists it visits, so every mutant gets a tree of its own.
    memo: dict[int, object] = {id(old): old}
    return ast.unparse(Exchange().visit(copy.deepcopy(tree, memo)))
