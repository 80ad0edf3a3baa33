"""Elementwise operations: `... -> ...`, with broadcasting; how they are made, and `where`.

One block each in arithmetic.py, transcendental.py and comparisons.py: name, NumPy function, gradient,
scalar expression (from which fused kernels are generated; in it, max and min give NaN if there is
one)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from typing import Any, Protocol, cast, overload

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..core.apply import apply, as_array, as_array_of, unify
from ..core.array import Array, weak_kind
from ..core.array_methods import Axis, Operandish, export, functions
from ..core.parameters import unfit, wrong_number
from ..core.registry import ANY, OPS, op, stream_cost
from ..core.spec import DType, Shape, Spec, bool_, float64, is_inexact, promote, widened
from ..core.user_line import misfit
from .casts import astype

__all__ = ["where"]

Grad = Callable[..., Sequence[Array | None]]


class Unary(Protocol):
    """A function of elements. `where`: for which it is computed; the others are what `out` has there, or
    0. `out` is assigned to, and returned; as NumPy's it may come by its place, which to type checkers is
    a mistake."""

    __name__: str

    def __call__(
        self, x: Operandish, /, *, out: Out = None, where: Operandish | None = None
    ) -> Array: ...


class Binary(Protocol):
    """A function of two operands, with what NumPy's functions have as methods (ops/array/ufuncs.py)."""

    __name__: str

    def __call__(
        self, x: Operandish, y: Operandish, /, *, out: Out = None, where: Operandish | None = None
    ) -> Array: ...
    def outer(self, a: Operandish, b: Operandish, /, **how: Any) -> Array: ...
    def reduce(self, a: Operandish, /, axis: Axis = 0, *more: Any, **how: Any) -> Array: ...
    def accumulate(self, a: Operandish, /, axis: int = 0, *more: Any, **how: Any) -> Array: ...
    def reduceat(
        self, a: Operandish, indices: Operandish, /, axis: int = 0, *more: Any, **how: Any
    ) -> Array: ...
    def at(self, a: Array, indices: Any, b: Operandish, /) -> None: ...


Out = Array | tuple[Array] | None


def flat(g: Array, y: Array, *xs: Array) -> Sequence[Array | None]:
    """The gradient of steps: none."""
    return (None,) * len(xs)


def broadcast(name: str, *shapes: Shape) -> Shape:
    """The common shape, or an error that names the operands."""
    found: list[int] = []
    for k in range(1, max((len(s) for s in shapes), default=0) + 1):
        sizes = {s[-k] for s in shapes if len(s) >= k} - {1}
        if len(sizes) > 1:
            got = " and ".join(str(s) for s in shapes)
            needed = "shapes that are equal, or 1, in each axis counted from the last"
            do = "insert axes with x[:, None] or reshape one operand"
            raise misfit(ShapeError, name, got=got, needed=needed, do=do)
        found.append(sizes.pop() if sizes else 1)
    return tuple(reversed(found))


@lru_cache(4096)
def _resolve(ufunc: str, *dtypes: DType) -> DType | None:
    """The result dtype of NumPy's own rule; None if it has none."""
    try:
        return getattr(np, ufunc).resolve_dtypes((*widened(dtypes), None))[-1]
    except TypeError:
        return None


def no_meaning(name: str, specs: Sequence[Spec]) -> Exception:
    got, needed = " and ".join(s.dtype.name for s in specs), "a dtype for which it has a meaning"
    return misfit(DTypeError, name, got=got, needed=needed, do="convert with x.astype(...)")


def ufunc_rule(name: str, ufunc: str, inexact: bool = False) -> Callable[..., Spec]:
    """Broadcast shape; NumPy's dtype rule, perhaps for floats only."""

    count: int = getattr(np, ufunc).nin

    def infer(*specs: Spec, **params: Any) -> Spec:
        if len(specs) != count or params:
            raise wrong_number(name, specs, count, params)
        shape = specs[0].shape
        for s in specs[1:]:
            if s.shape != shape:
                shape = broadcast(name, *(s.shape for s in specs))
                break
        dtype = _resolve(ufunc, *[s.dtype for s in specs])
        if dtype is None or (inexact and not is_inexact(specs[0].dtype)):
            raise no_meaning(name, specs)
        return Spec(shape, dtype)

    return infer


def unary(
    name: str,
    ufunc: str = "",
    *,
    doc: str,
    grad: Grad | None = None,
    scalar: str = "",
    flops: float = 1,
    kernel: Callable[..., None] | None = None,
    like: str = "",
    **facts: Any,
) -> Unary:
    """Register a function of one operand, NumPy's `ufunc`, which has its name unless said otherwise.
    `like` names the NumPy function whose dtype rule it shares, where NumPy has none; it then takes
    floats only, and the function converts what it is given."""
    ufunc = ufunc or ("" if like else name)
    op(
        name,
        infer=ufunc_rule(name, ufunc or like, inexact=bool(like)),
        ufunc="" if kernel else ufunc,
        types=ufunc,
        kernel=kernel,
        grad=grad,
        scalar=scalar or f"{name}({{0}})",
        cost=stream_cost(flops),
        overwrite=ANY,
        **facts,
    )

    def function(x: Operandish, /, out: Out = None, *, where: Operandish | None = None) -> Array:
        x = as_array(x)
        if like and not is_inexact(x.dtype):
            x = astype(x, _resolve(like, x.dtype) or x.dtype)
        if out is None and where is None:
            return apply(name, x)
        return into(partial(apply, name), name, (x,), out, where)

    return _named(function, name, doc)


def binary(
    name: str,
    ufunc: str = "",
    *,
    doc: str,
    grad: Grad | None = None,
    scalar: str = "",
    flops: float = 1,
    kernel: Callable[..., None] | None = None,
    **facts: Any,
) -> Binary:
    """Register a function of two operands that broadcast, as NumPy's `ufunc` (of that name) does."""
    ufunc = ufunc or name
    op(
        name,
        infer=ufunc_rule(name, ufunc),
        ufunc="" if kernel else ufunc,
        types=ufunc,
        kernel=kernel,
        grad=grad,
        scalar=scalar or f"{name}({{0}}, {{1}})",
        cost=stream_cost(flops),
        overwrite=ANY,
        **facts,
    )

    def function(
        x: Operandish, y: Operandish, /, out: Out = None, *, where: Operandish | None = None
    ) -> Array:
        x, y = together(ufunc, x, y)
        if out is None and where is None:
            return apply(name, x, y)
        return into(partial(apply, name), name, (x, y), out, where)

    return _of_two(_named(function, name, doc))


binaries: list[Binary] = []  # all functions of two operands


def _of_two(function: Any) -> Binary:
    """Register a function of two operands, to be given its methods."""
    binaries.append(function)
    return cast(Binary, function)


def unary_function(function: Callable[[Operandish], Array]) -> Unary:
    """A function of elements that is made of others, with `out` and `where`."""

    @wraps(function)
    def run(x: Operandish, /, out: Out = None, *, where: Operandish | None = None) -> Array:
        if out is None and where is None:
            return function(x)
        return into(function, function.__name__, (x,), out, where)

    return cast(Unary, run)


def binary_function(function: Callable[[Operandish, Operandish], Array]) -> Binary:
    """A function of two operands, with `out` and `where`."""

    @wraps(function)
    def run(
        x: Operandish, y: Operandish, /, out: Out = None, *, where: Operandish | None = None
    ) -> Array:
        if out is None and where is None:
            return function(x, y)
        return into(function, function.__name__, (x, y), out, where)

    return _of_two(run)


def put_out(made: Array, out: Out, name: str) -> Array:
    """Assign what was made to `out` if there is one."""
    return made if out is None else into(lambda: made, name, (), out, None)


def into(
    function: Callable[..., Array],
    name: str,
    given: Sequence[Operandish],
    out: Out,
    which: Operandish | None,
    what: str = "",
) -> Array:
    """Apply a function to elements where a mask is True, and assign to `out` if there is one. The others
    it is not given: they make no NaN, in gradients neither."""
    target = out[0] if isinstance(out, tuple) and len(out) == 1 else out
    if target is not None and not isinstance(target, Array):
        raise misfit(
            ArgumentError,
            f"{name}(out=)",
            got=f"a {type(target).__name__}",
            needed="an array of ostinato's",
            do=f"np.copyto(buffer, ost.{name}(...)) writes to another",
        )
    if which is None or which is True:
        made = function(*given)
    else:
        mask = as_array(which)
        if mask.dtype != bool_:
            raise misfit(DTypeError, f"{name}(where=)", got=mask.dtype.name, needed="bools")
        calm = OPS[name].element.calm if name in OPS else 0.5
        made = function(*[x if weak_kind(x) else _only(x, mask, calm) for x in given])
        made = where(mask, made, astype(0, made.dtype) if target is None else target)
    if target is None:
        return made
    if made.ndim <= target.ndim and broadcast(name, made.shape, target.shape) == target.shape:
        made = functions["broadcast_to"](made, target.shape)
    written: Array = functions["written"](target, made, what or f"{name}(out=)")
    return written


def _only(x: Operandish, mask: Array, number: float) -> Array:
    """Elements for which a mask is True, and a number in the place of others; 1 among whole numbers."""
    x = as_array(x)
    return where(mask, x, astype(number if is_inexact(x.dtype) else 1, x.dtype))


def together(ufunc: str, *given: Any) -> list[Array]:
    """Operands, Python's numbers as NumPy's function takes them beside arrays."""
    try:
        return unify(*given)
    except DTypeError:
        pass  # in the words of what follows, if that cannot either
    return _beyond(ufunc, *given)


def _beyond(ufunc: str, *given: Any) -> list[Array]:
    """Operands where a whole number is none that the integers beside it can hold: floating, if the function
    computes so; infinite in a comparison, as it is beyond all of them; else an error, as in NumPy."""
    beside = next(as_array(x).dtype for x in given if weak_kind(x) is not int)
    dtype = _resolve(ufunc, beside, beside)
    if dtype is None or not (dtype == bool_ or is_inexact(dtype)):
        return unify(*given)

    def number(n: int) -> Array:
        if ufunc.startswith("logical"):
            return as_array_of(n != 0, bool_)
        return (
            as_array_of(math.copysign(math.inf, n), float64)
            if dtype == bool_
            else as_array_of(n, dtype)
        )

    return [number(int(x)) if weak_kind(x) is int else as_array(x) for x in given]


def _named(function: Callable[..., Array], name: str, doc: str) -> Callable[..., Array]:
    function.__name__ = function.__qualname__ = name
    function.__module__ = sys._getframe(2).f_globals["__name__"]  # where pickle looks for it
    function.__doc__ = doc
    functions[name] = function
    return function


def _where_rule(c: Spec, x: Spec, y: Spec) -> Spec:
    if c.dtype.kind != "b":
        raise unfit("where", (c,), "a condition of bools", DTypeError)
    return Spec(broadcast("where", c.shape, x.shape, y.shape), promote(x.dtype, y.dtype))


def _where_kernel(xp: Any, out: Any, c: Any, x: Any, y: Any) -> None:
    if out is not y:
        xp.copyto(out, y)
    xp.copyto(out, x, where=c)


op(
    "where",
    infer=_where_rule,
    kernel=_where_kernel,
    grad=lambda g, out, c, x, y: (None, where(c, g, 0), where(c, 0, g)),
    scalar="({1} if {0} else {2})",
    overwrite=(2,),
)


@overload
def where(condition: Operandish, /, *, size: int | None = None) -> tuple[Array, ...]: ...
@overload
def where(condition: Operandish, x: Operandish, y: Operandish, /) -> Array: ...
@export
def where(
    condition: Operandish,
    x: Operandish | None = None,
    y: Operandish | None = None,
    /,
    *,
    size: int | None = None,
) -> Array | tuple[Array, ...]:
    """x where the condition holds, else y; without these, the places where it does: `nonzero`, which
    `size` is for.

    >>> ost.where([True, False], 1, 2)
    Array([1, 2], dtype=int64)
    """
    if x is None or y is None:
        if x is not y:
            raise misfit(ArgumentError, "where", got="one of x and y", needed="both, or none")
        places: tuple[Array, ...] = functions["nonzero"](condition, size=size)
        return places
    if size is not None:
        raise misfit(ArgumentError, "where", got="size, x and y", needed="size, or x and y")
    c = as_array(condition)
    if c.dtype.kind != "b":
        c = functions["not_equal"](c, 0)
    return apply("where", c, *unify(x, y))


def floating(x: Operandish, like: str = "") -> Array:
    """Whole numbers as float64, or as one of NumPy's functions has them; others as they are."""
    x = as_array(x)
    if is_inexact(x.dtype):
        return x
    return astype(x, (_resolve(like, x.dtype) if like else None) or float64)


def alike(ufunc: str, *given: Operandish) -> list[Array]:
    """Operands in the dtype that one of NumPy's functions makes of them."""
    xs = together(ufunc, *given)
    dtype = _resolve(ufunc, *(x.dtype for x in xs))
    if dtype is None:
        raise no_meaning(ufunc, [x.spec for x in xs])
    return [astype(x, dtype) for x in xs]
