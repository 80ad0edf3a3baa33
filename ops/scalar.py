"""What generated kernels compute for one element: an op's scalar text, as LLVM instructions.

The text is evaluated with `Value`s, whose operators write instructions: so `1 / (1 + exp(-{0}))`
becomes what it says. Basic operations are IEEE's and give the bits that NumPy gives; functions
(functions.py) are our own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from .draws import DRAWS
from .functions import FUNCTIONS, INEXACT
from .registers import KINDS, Lines, Unsupported, Value, cast
from .registry import OPS
from .spec import DType


# -- whole expressions ---------------------------------------------------------------------
class _Branchless(ast.NodeTransformer):
    """`a if c else b`, `and`, `or`, `not` as calls."""

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        return _call("where", node.test, node.body, node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        return _call(name, *node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return _call("not_", node.operand) if isinstance(node.op, ast.Not) else node


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


@lru_cache(1024)
def _code(text: str) -> tuple[CodeType, frozenset[str]]:
    tree = ast.parse(text.format("x0", "x1", "x2"), mode="eval")
    called = {
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    tree = ast.fix_missing_locations(_Branchless().visit(tree))
    return compile(tree, "<ostinato scalar>", "eval"), frozenset(called)


@lru_cache(4096)
def _loop_types(ufunc: str, *dtypes: DType) -> tuple[DType, ...]:
    """What NumPy's function turns its operands into first."""
    try:
        return tuple(getattr(np, ufunc).resolve_dtypes((*dtypes, None))[:-1])
    except TypeError:
        raise Unsupported(ufunc) from None


def lower(name: str, operands: Sequence[Value], dtype: DType) -> Value:
    """One operation on registers."""
    op = OPS[name]
    if name == "astype":
        return cast(operands[0], dtype)
    if not op.scalar:
        raise Unsupported(name)
    given = list(operands)
    if op.ufunc:
        types = _loop_types(op.ufunc, *(x.dtype for x in operands))
        given = [cast(x, t) for x, t in zip(operands, types, strict=True)]
    if any(x.dtype not in KINDS.values() for x in given):
        raise Unsupported(name)
    words: dict[str, Any] = {**FUNCTIONS, **DRAWS, **{f"x{k}": x for k, x in enumerate(given)}}
    try:
        found = eval(_code(op.scalar)[0], {"__builtins__": {}}, words)
    except (NameError, TypeError) as error:
        raise Unsupported(f"{name}: {error}") from None
    if not isinstance(found, Value):
        raise Unsupported(name)
    return cast(found, dtype)


@lru_cache(4096)
def can_lower(name: str, dtypes: tuple[DType, ...], out: DType) -> bool:
    """Whether kernels can be generated for an operation on these dtypes."""
    if out not in KINDS.values() or any(d not in KINDS.values() for d in dtypes):
        return False
    lines = Lines()
    try:
        lower(name, [Value(lines, f"%x{k}", d) for k, d in enumerate(dtypes)], out)
    except Unsupported:
        return False
    return True


@lru_cache(1024)
def has_own_bits(name: str) -> bool:
    """Whether a generated kernel's results may differ from NumPy's in the last bits."""
    return bool(_code(OPS[name].scalar)[1] & set(INEXACT)) if OPS[name].scalar else False
