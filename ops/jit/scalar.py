"""What generated kernels compute for one element: an op's scalar text, as instructions.

The text is evaluated with `Value`s, whose operators write instructions: so `1 / (1 + exp(-{0}))`
becomes what it says. Basic operations are IEEE's and give the bits that NumPy gives; functions
(math_functions.py) are our own."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import DType, float32, real_of
from ostinato.ops.jit.random_bits import DRAWS

from . import pairs
from .math_functions import FUNCTIONS, INEXACT
from .pairs import Pair
from .rejection import REJECTION
from .special_formulas import SPECIAL
from .values import HALVES, KINDS, Lines, Unsupported, Value, as_bits, cast

CAST = "astype"  # whose expression depends on what is wanted
SQUARE = "square"  # which moments need
_OPERANDS = ("x0", "x1", "x2", "x3", "x4")
_WORDS = {**FUNCTIONS, **SPECIAL, **REJECTION, **DRAWS}
_OF_PAIRS = pairs.FUNCTIONS  # of the same names


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
    tree = ast.parse(text.format(*_OPERANDS), mode="eval")
    called = {
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    tree = ast.fix_missing_locations(_Branchless().visit(tree))
    return compile(tree, "<ostinato scalar>", "eval"), frozenset(called)


@lru_cache(4096)
def _loop_types(ufunc: str, *dtypes: DType) -> tuple[DType, ...]:
    """List the dtypes to which NumPy's function converts its operands first."""
    try:
        return tuple(getattr(np, ufunc).resolve_dtypes((*dtypes, None))[:-1])
    except TypeError:
        raise Unsupported(ufunc) from None


_CAST = "cast({0})"
_OF_BITS = {"nextafter", "sort_key"}  # which are other numbers in another dtype


def lower(name: str, operands: Sequence[Value], dtype: DType) -> Value:
    """One operation on registers."""
    op = OPS[name]
    if operands and (made := operands[0].lines.shared(name, operands, dtype)) is not None:
        return made
    if op.reduce is not None:  # one element, before it is combined with others
        given = [cast(x, dtype) for x in operands]
        return given[0] if op.reduce.element == "{0}" else expression(op.reduce.element, given)
    if op.scalar == _CAST:
        return cast(operands[0], dtype)
    if not op.scalar:
        raise Unsupported(name)
    given = list(operands)
    if op.element.types:
        types = _loop_types(op.element.types, *(x.dtype for x in operands))
        given = [cast(x, t) for x, t in zip(operands, types, strict=True)]
    if any(x.dtype in HALVES for x in given):
        if _code(op.scalar)[1] & _OF_BITS:
            raise Unsupported(name)
        given = [cast(x, float32) if x.dtype in HALVES else x for x in given]
    if any(x.dtype not in KINDS.values() and not isinstance(x, Pair) for x in given):
        raise Unsupported(name)
    return cast(expression(op.scalar, given), dtype)


def expression(text: str, given: Sequence[Value]) -> Value:
    words: dict[str, Any] = {
        **_WORDS,
        **(_OF_PAIRS if any(isinstance(x, Pair) for x in given) else {}),
    }
    words |= {f"x{k}": x for k, x in enumerate(given)}
    try:
        found = eval(_code(text)[0], {"__builtins__": {}}, words)
    except (NameError, TypeError) as error:
        raise Unsupported(f"{text}: {error}") from None
    if not isinstance(found, Value):
        raise Unsupported(text)
    return found


@lru_cache(4096)
def instructions(
    name: str, dtypes: tuple[DType, ...], out: DType, writer: Callable[[], Lines]
) -> int | None:
    """How many instructions an operation on these dtypes is; None if kernels cannot have it."""
    lines = writer()
    try:
        lower(name, [lines.named(f"%x{k}", d) for k, d in enumerate(dtypes)], out)
    except Unsupported:
        return None
    return len(lines.text)


def can_lower(
    name: str, dtypes: tuple[DType, ...], out: DType, writer: Callable[[], Lines]
) -> bool:
    """Whether kernels can be generated for an operation on these dtypes."""
    return instructions(name, dtypes, out, writer) is not None


_OWN = {*INEXACT, *SPECIAL, *REJECTION}


@lru_cache(1024)
def has_own_bits(name: str) -> bool:
    """Whether a generated kernel's results may differ from NumPy's in the last bits."""
    op = OPS[name]
    text = op.scalar or (op.reduce.element if op.reduce else "")
    return bool(_code(text)[1] & _OWN) if text else False


def multiplies(name: str) -> bool:
    """Whether an operation is one product: of its first operand and its last one."""
    return OPS[name].scalar in ("{0} * {1}", "{0} * {0}")


@lru_cache(1024)
def _rounds_pairs(name: str) -> bool:
    if not (text := OPS[name].scalar):
        return False
    products = any(isinstance(w, ast.Mult | ast.Div) for w in _words(text))
    return products or bool(_code(text)[1] & {"abs", "sign", "sqrt"})


def differs(name: str, dtypes: Sequence[DType]) -> bool:
    """Tell whether its bits differ from NumPy's for operands of these dtypes. Of complex numbers,
    NumPy rounds products once or twice, as the processor can, and its roots are the C library's."""
    pairs = any(d.kind == "c" for d in dtypes)
    return has_own_bits(name) or (pairs and _rounds_pairs(name))


# -- numbers -------------------------------------------------------------------------------
_KNOWING = (ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, ast.Pow)


@lru_cache(1024)
def _is_better_for_knowing(name: str) -> bool:
    """Whether an operation by a number that is known is another, cheaper one."""
    text = OPS[name].scalar if name in OPS else ""
    if not text:
        return False
    return "pow" in _code(text)[1] or any(isinstance(w, _KNOWING) for w in _words(text))


def _words(text: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(text.format(*_OPERANDS), mode="eval"))


Part = tuple[int, int]  # a value, and which part of it: of complex numbers, 1 is the imaginary one


def numbers(body: Graph) -> dict[Part, int]:
    """The numbers that a kernel of this body reads as data, by their bits: so kernels that differ in
    them only share their machine code. They are constants, by value, and what means divide by.

    Zeros, powers of two and whatever has no mantissa stay in the text, as does what an operation is
    better for knowing: there LLVM makes other instructions of them."""
    found: dict[Part, int] = {}
    for node, v in zip(body.nodes, body.starts, strict=True):
        part = real_of(node.specs[0].dtype)
        op = OPS[node.op]
        if op.reduce is not None and op.reduce.divisor:
            found[v, 0] = as_bits(node.kw[op.reduce.divisor], part)
        elif op.element.source == "value" and part.kind in "iuf":
            readers = {body.nodes[u].op for u in body.uses[v]}
            if any(op_of(op).rearranges or _is_better_for_knowing(op) for op in readers):
                continue
            for n, value in enumerate(_parts(node.kw["value"], node.specs[0].dtype)):
                mantissa, _ = math.frexp(abs(value))  # inf and nan are their own
                if 0.5 < mantissa < 1:
                    found[v, n] = as_bits(value, part)
    return found


def _parts(value: Any, dtype: DType) -> tuple[Any, ...]:
    """A number as a dtype's registers have it."""
    return (value.real, value.imag) if dtype.kind == "c" else (value,)


def number(lines: Lines, node: Node, v: int, known: Callable[[int, int], Value | None]) -> Value:
    """A constant, of which parts may be data."""
    dtype = node.specs[0].dtype
    made = []
    for n, value in enumerate(_parts(node.kw["value"], dtype)):
        told = known(v, n)
        made.append(lines.constant(value, real_of(dtype)) if told is None else told)
    return lines.pair(*made) if len(made) > 1 else made[0]
