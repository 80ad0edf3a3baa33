"""Elementwise operations: `... -> ...`, with broadcasting.

One block each: name, NumPy function, gradient, scalar expression (from which fused kernels are
generated; in it, max and min give NaN if there is one). Gradients at kinks follow JAX: abs has
slope 0 at 0, the two sides of a tie in maximum and minimum get half each, floor and sign are
flat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from typing import Any, Protocol, cast, overload

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from . import like_numpy
from .core import array
from .core.array import (
    Array,
    Axis,
    Operandish,
    Scalar,
    another,
    apply,
    as_array,
    export,
    functions,
    in_dtype,
    unify,
    unmasked,
    weak_kind,
)
from .core.parameters import DTYPE, NUMBER, check_value, unfit, wrong_number
from .core.registry import ANY, OPS, Scratch, op, stream_cost
from .core.spec import (
    DTYPES,
    DType,
    DTypeLike,
    Shape,
    Spec,
    bool_,
    float32,
    float64,
    is_float,
    is_inexact,
    is_integer,
    promote,
    real_of,
    widened,
)
from .core.user_line import misfit

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "clip",
    "copysign",
    "cos",
    "cosh",
    "divide",
    "equal",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "remainder",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "softplus",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "where",
]

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
    """The same of two operands, with what NumPy's functions have as methods (ops/ufuncs.py)."""

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
            raise misfit(
                ShapeError,
                name,
                got=" and ".join(str(s) for s in shapes),
                needed="shapes that are equal, or 1, in each axis counted from the last",
                do="insert axes with x[:, None] or reshape one operand",
            )
        found.append(sizes.pop() if sizes else 1)
    return tuple(reversed(found))


@lru_cache(4096)
def _resolve(ufunc: str, *dtypes: DType) -> DType | None:
    """The result dtype of NumPy's own rule; None if it has none."""
    try:
        return getattr(np, ufunc).resolve_dtypes((*widened(dtypes), None))[-1]
    except TypeError:
        return None


def _no_meaning(name: str, specs: Sequence[Spec]) -> Exception:
    return misfit(
        DTypeError,
        name,
        got=" and ".join(s.dtype.name for s in specs),
        needed="a dtype for which it has a meaning",
        do="convert with x.astype(...)",
    )


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
            raise _no_meaning(name, specs)
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
    """Register a function of one operand. `like` names the NumPy function whose dtype rule it
    shares; it then takes floats only, and the function converts what it is given.
    """
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
    ufunc: str,
    *,
    doc: str,
    grad: Grad | None = None,
    scalar: str = "",
    flops: float = 1,
    kernel: Callable[..., None] | None = None,
    **facts: Any,
) -> Binary:
    """Register a function of two operands that broadcast."""
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
    """Take down a function of two operands, to be given its methods."""
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
    """The same of two operands."""

    @wraps(function)
    def run(
        x: Operandish, y: Operandish, /, out: Out = None, *, where: Operandish | None = None
    ) -> Array:
        if out is None and where is None:
            return function(x, y)
        return into(function, function.__name__, (x, y), out, where)

    return _of_two(run)


def put_out(made: Array, out: Out, name: str) -> Array:
    """What was made, assigned to `out` if there is one."""
    return made if out is None else into(lambda: made, name, (), out, None)


def into(
    function: Callable[..., Array],
    name: str,
    given: Sequence[Operandish],
    out: Out,
    which: Operandish | None,
    what: str = "",
) -> Array:
    """What a function makes of elements where a mask is True, assigned to `out` if there is one. The others
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
            return in_dtype(n != 0, bool_)
        return (
            in_dtype(math.copysign(math.inf, n), float64) if dtype == bool_ else in_dtype(n, dtype)
        )

    return [number(int(x)) if weak_kind(x) is int else as_array(x) for x in given]


def _named(function: Callable[..., Array], name: str, doc: str) -> Callable[..., Array]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    functions[name] = function
    return function


# -- sign and rounding ---------------------------------------------------------------------
negative: Unary = unary(
    "negative",
    "negative",
    doc="""-x

    >>> ost.negative([1, -2])
    Array([-1,  2], dtype=int64)
    """,
    grad=lambda g, y, x: (-g,),
    scalar="-{0}",
    adds=((0,),),
)
abs: Unary = unary(
    "abs",
    "absolute",
    doc="""Absolute value.

    >>> ost.abs([-1, 2])
    Array([1, 2], dtype=int64)
    """,
    grad=lambda g, y, x: (g * conj(sign(x)),),
    scalar="abs({0})",
)


def _sign_grad(g: Array, y: Array, x: Array) -> Sequence[Array | None]:
    if x.dtype.kind != "c":
        return (None,)
    size = abs(x)
    flat = (g - real(g * y) * conj(y)) / where(equal(size, 0), 1, size)
    return (where(equal(size, 0), 0, flat),)


def _sign_kernel(xp: Any, out: Any, x: Any) -> None:
    """NumPy's gives numbers for infinities beside NaN."""
    if out.dtype.kind != "c":
        xp.sign(x, out)
        return
    nan = xp.isnan(x)
    xp.sign(x, out)
    xp.copyto(out, complex(math.nan, math.nan), where=nan)


sign: Unary = unary(
    "sign",
    "sign",
    kernel=_sign_kernel,
    doc="""-1, 0 or 1; x / |x| for complex x.

    >>> ost.sign([-3, 0, 3])
    Array([-1,  0,  1], dtype=int64)
    """,
    grad=_sign_grad,
)
floor: Unary = unary(
    "floor",
    "floor",
    doc="""The largest integer not above x.

    >>> ost.floor([1.2, -1.2])
    Array([ 1., -2.], dtype=float64)
    """,
    grad=flat,
)
ceil: Unary = unary(
    "ceil",
    "ceil",
    doc="""The smallest integer not below x.

    >>> ost.ceil([1.2, -1.2])
    Array([ 2., -1.], dtype=float64)
    """,
    grad=flat,
)
trunc: Unary = unary(
    "trunc",
    "trunc",
    doc="""The integer part of x.

    >>> ost.trunc([1.2, -1.2])
    Array([ 1., -1.], dtype=float64)
    """,
    grad=flat,
)
_rint: Unary = unary("rint", "rint", doc="Nearest integer, halves to even.", grad=flat)


@export
def round(x: Operandish, /, decimals: int = 0, out: Out = None) -> Array:
    """Nearest number with so many decimals (before the point if negative); halves go to even.

    >>> ost.round([1.25, 2.5], 0)
    Array([1., 2.], dtype=float64)
    """
    x = as_array(x)
    if decimals == 0 or (is_integer(x.dtype) and decimals > 0):
        made = another(x) if is_integer(x.dtype) else _rint(x)
    elif decimals > 0:
        made = _rint(x * 10.0**decimals) / 10.0**decimals
    else:
        made = astype(_rint(x / 10.0**-decimals) * 10.0**-decimals, x.dtype)
    return put_out(made, out, "round")


@export
@unary_function
def positive(x: Operandish, /) -> Array:
    """+x

    >>> ost.positive([1, -2])
    Array([ 1, -2], dtype=int64)
    """
    x = as_array(x)
    if x.dtype.kind == "b":
        raise _no_meaning("positive", [x.spec])
    return another(x)


# -- roots and powers ----------------------------------------------------------------------
sqrt: Unary = unary(
    "sqrt",
    "sqrt",
    doc="""Square root.

    >>> ost.sqrt([4.0, 9.0])
    Array([2., 3.], dtype=float64)
    """,
    grad=lambda g, y, x: (g * 0.5 / y,),
    flops=4,
)
square: Unary = unary(
    "square",
    "square",
    doc="""x * x

    >>> ost.square([2, 3])
    Array([4, 9], dtype=int64)
    """,
    grad=lambda g, y, x: (2 * g * x,),
    scalar="{0} * {0}",
)
cbrt: Unary = unary(
    "cbrt",
    "cbrt",
    doc="""Cube root.

    >>> ost.cbrt([8.0, 27.0])
    Array([2., 3.], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (3 * y * y),),
    flops=10,
)


_reciprocal: Unary = unary(
    "reciprocal",
    "reciprocal",
    kernel=like_numpy.reciprocal,
    doc="1 / x",
    grad=lambda g, y, x: (-g * y * y,),
    scalar="1 / {0}",
)


@export
@unary_function
def reciprocal(x: Operandish, /) -> Array:
    """1 / x; integers are divided as real numbers.

    >>> ost.reciprocal([2.0, 4.0])
    Array([0.5 , 0.25], dtype=float64)
    """
    return _reciprocal(floating(x))


def _rsqrt_kernel(xp: Any, out: Any, x: Any) -> None:
    xp.sqrt(x, out)
    xp.reciprocal(out, out)


rsqrt: Unary = unary(
    "rsqrt",
    like="sqrt",
    doc="""1 / sqrt(x)

    >>> ost.rsqrt([4.0, 16.0])
    Array([0.5 , 0.25], dtype=float64)
    """,
    kernel=_rsqrt_kernel,
    grad=lambda g, y, x: (-0.5 * g * y / x,),
    scalar="1 / sqrt({0})",
    flops=5,
)

# -- exponentials and logarithms -----------------------------------------------------------
exp: Unary = unary(
    "exp",
    "exp",
    doc="""e to the x.

    >>> ost.exp([0.0, 1.0])
    Array([1.    , 2.7183], dtype=float64)
    """,
    grad=lambda g, y, x: (g * y,),
    flops=10,
)
exp2: Unary = unary(
    "exp2",
    "exp2",
    doc="""2 to the x.

    >>> ost.exp2([3.0, 4.0])
    Array([ 8., 16.], dtype=float64)
    """,
    grad=lambda g, y, x: (g * y * math.log(2),),
    flops=10,
)


expm1: Unary = unary(
    "expm1",
    "expm1",
    kernel=like_numpy.expm1,
    doc="""exp(x) - 1

    >>> ost.expm1([0.0, 1e-10])
    Array([0., 0.], dtype=float64)
    """,
    grad=lambda g, y, x: (g * (y + 1),),
    flops=12,
)
log: Unary = unary(
    "log",
    "log",
    doc="""Natural logarithm.

    >>> ost.log([1.0, 2.0])
    Array([0.    , 0.6931], dtype=float64)
    """,
    grad=lambda g, y, x: (g / x,),
    flops=10,
)
log1p: Unary = unary(
    "log1p",
    "log1p",
    doc="""log(1 + x)

    >>> ost.log1p([0.0, 1e-10])
    Array([0., 0.], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (1 + x),),
    flops=12,
)


log2: Unary = unary(
    "log2",
    "log2",
    kernel=like_numpy.log2,
    doc="""Logarithm to base 2.

    >>> ost.log2([8.0, 2.0])
    Array([3., 1.], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (x * math.log(2)),),
    flops=10,
)
log10: Unary = unary(
    "log10",
    "log10",
    doc="""Logarithm to base 10.

    >>> ost.log10([10.0, 1000.0])
    Array([1., 3.], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (x * math.log(10)),),
    flops=10,
)

# -- trigonometry --------------------------------------------------------------------------
sin: Unary = unary(
    "sin",
    "sin",
    doc="""Sine.

    >>> ost.sin([0.0, 0.5])
    Array([0.    , 0.4794], dtype=float64)
    """,
    grad=lambda g, y, x: (g * cos(x),),
    flops=12,
)
cos: Unary = unary(
    "cos",
    "cos",
    doc="""Cosine.

    >>> ost.cos([0.0, 0.5])
    Array([1.    , 0.8776], dtype=float64)
    """,
    grad=lambda g, y, x: (-g * sin(x),),
    flops=12,
)
tan: Unary = unary(
    "tan",
    "tan",
    doc="""Tangent.

    >>> ost.tan([0.0, 0.5])
    Array([0.    , 0.5463], dtype=float64)
    """,
    grad=lambda g, y, x: (g * (1 + y * y),),
    flops=16,
)
asin: Unary = unary(
    "asin",
    "arcsin",
    doc="""Inverse sine.

    >>> ost.asin([0.0, 1.0])
    Array([0.    , 1.5708], dtype=float64)
    """,
    grad=lambda g, y, x: (g / sqrt(1 - x * x),),
    flops=16,
)
acos: Unary = unary(
    "acos",
    "arccos",
    doc="""Inverse cosine.

    >>> ost.acos([0.0, 1.0])
    Array([1.5708, 0.    ], dtype=float64)
    """,
    grad=lambda g, y, x: (-g / sqrt(1 - x * x),),
    flops=16,
)
atan: Unary = unary(
    "atan",
    "arctan",
    doc="""Inverse tangent.

    >>> ost.atan([0.0, 1.0])
    Array([0.    , 0.7854], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (1 + x * x),),
    flops=16,
)
sinh: Unary = unary(
    "sinh",
    "sinh",
    doc="""Hyperbolic sine.

    >>> ost.sinh([0.0, 1.0])
    Array([0.    , 1.1752], dtype=float64)
    """,
    grad=lambda g, y, x: (g * cosh(x),),
    flops=16,
)
cosh: Unary = unary(
    "cosh",
    "cosh",
    doc="""Hyperbolic cosine.

    >>> ost.cosh([0.0, 1.0])
    Array([1.    , 1.5431], dtype=float64)
    """,
    grad=lambda g, y, x: (g * sinh(x),),
    flops=16,
)
tanh: Unary = unary(
    "tanh",
    "tanh",
    doc="""Hyperbolic tangent.

    >>> ost.tanh([0.0, 1.0])
    Array([0.    , 0.7616], dtype=float64)
    """,
    grad=lambda g, y, x: (g * (1 - y * y),),
    flops=12,
)
asinh: Unary = unary(
    "asinh",
    "arcsinh",
    doc="""Inverse hyperbolic sine.

    >>> ost.asinh([0.0, 1.0])
    Array([0.    , 0.8814], dtype=float64)
    """,
    grad=lambda g, y, x: (g / sqrt(1 + x * x),),
    flops=16,
)
acosh: Unary = unary(
    "acosh",
    "arccosh",
    doc="""Inverse hyperbolic cosine.

    >>> ost.acosh([1.0, 2.0])
    Array([0.   , 1.317], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (sqrt(x - 1) * sqrt(x + 1)),),
    calm=2.0,
    flops=16,
)
atanh: Unary = unary(
    "atanh",
    "arctanh",
    doc="""Inverse hyperbolic tangent.

    >>> ost.atanh([0.0, 0.5])
    Array([0.    , 0.5493], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (1 - x * x),),
    flops=16,
)


# -- of learning and statistics ------------------------------------------------------------
def _sigmoid_kernel(xp: Any, out: Any, x: Any) -> None:
    xp.negative(x, out)
    xp.exp(out, out)
    xp.add(out, 1, out)
    xp.reciprocal(out, out)


sigmoid: Unary = unary(
    "sigmoid",
    like="exp",
    doc="""1 / (1 + exp(-x))

    >>> ost.sigmoid([0.0, 2.0])
    Array([0.5   , 0.8808], dtype=float64)
    """,
    kernel=_sigmoid_kernel,
    grad=lambda g, y, x: (g * y * (1 - y),),
    scalar="(1 if {0} >= 0 else exp(-abs({0}))) / (1 + exp(-abs({0})))",
    flops=14,
)


def _softplus_kernel(xp: Any, out: Any, x: Any) -> None:
    xp.logaddexp(x, out.dtype.type(0), out)


softplus: Unary = unary(
    "softplus",
    like="cbrt",
    doc="""log(1 + exp(x)), without overflow.

    >>> ost.softplus([0.0, 2.0])
    Array([0.6931, 2.1269], dtype=float64)
    """,
    kernel=_softplus_kernel,
    grad=lambda g, y, x: (g * sigmoid(x),),
    scalar="(max({0}, 0.0) + log1p(exp(-abs({0}))))",
    flops=20,
)

# erf(x) = x * P(x*x) below 1, and 1 - t * exp(Q(t - 1/2) - x*x) with t = 2 / (2 + x) above; Chebyshev
# fits to 1e-19 relative and, of the exponent, 3e-17. Both are the float64 kernels' too.
ERF_SMALL = (
    *(5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08),
    *(-1.6350312701054695e-07, 1.6461000484121368e-06, -1.4925595266831182e-05),
    *(0.0001205533111164271, -0.000854832698083379, 0.0052239776248180145),
    *(-0.026866170645076792, 0.11283791670954879, -0.3761263890318375, 1.1283791670955126),
)
ERF_LARGE = (
    *(-0.4346079254192838, 0.25781661736561406, 0.2898077564737489, -0.35683147810523397),
    *(-0.09592411692365924, 0.34491986658339424, -0.037439949137426355, -0.30026395198979866),
    *(0.11257175260169823, 0.28239803351541576, -0.15796302987693142, -0.3751648818485532),
    *(0.18937322736763207, 1.3452864479553128, -0.6717940840566923),
)
_CHUNK = (
    8192  # elements that a kernel with many steps works on at a time, so that they stay in cache
)


def _horner(xp: Any, coefficients: Sequence[float], x: Any, out: Any) -> None:
    xp.multiply(x, coefficients[0], out)
    for c in coefficients[1:-1]:
        xp.add(out, c, out)
        xp.multiply(out, x, out)
    xp.add(out, coefficients[-1], out)


def _erf_kernel(xp: Any, out: Any, x: Any, *, scratch: Sequence[Any]) -> None:
    source, target = x.reshape(-1), out.reshape(-1)
    for start in range(0, source.size, _CHUNK):
        part = source[start : start + _CHUNK]
        a, t, small, large, inner = (s[: part.size] for s in scratch[:5])
        xp.abs(part, out=a)
        xp.multiply(a, a, t)
        _horner(xp, ERF_SMALL, t, small)
        xp.multiply(small, a, small)
        xp.negative(t, t)  # -x*x
        xp.add(a, 2, large)
        xp.divide(2, large, a)  # t of the formula; |x| is found again below
        xp.subtract(a, 0.5, inner)
        _horner(xp, ERF_LARGE, inner, large)
        xp.add(large, t, large)
        xp.exp(large, large)
        xp.multiply(large, a, large)
        xp.subtract(1, large, large)
        inside = scratch[5][: part.size]
        xp.greater(t, -1, inside)
        xp.copyto(large, small, where=inside)
        xp.copysign(large, part, large)
        target[start : start + _CHUNK] = large


def _erf_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec]
) -> Sequence[Scratch]:
    n, work = min(_CHUNK, math.prod(ins[0])), promote(specs[0].dtype, float32)
    return (*(Scratch((n,), work) for _ in range(5)), Scratch((n,), bool_))


erf: Unary = unary(
    "erf",
    like="cbrt",
    doc="""The error function.

    >>> ost.erf([0.0, 1.0])
    Array([0.    , 0.8427], dtype=float64)
    """,
    kernel=_erf_kernel,
    scratch=_erf_scratch,
    grad=lambda g, y, x: (g * (2 / math.sqrt(math.pi)) * exp(-(x * x)),),
    flops=60,
)

# -- complex numbers -----------------------------------------------------------------------
_conj: Unary = unary(
    "conj", "conjugate", doc="", grad=lambda g, y, x: (conj(g),), scalar="conj({0})"
)


def conj(x: Operandish, /) -> Array:
    """The complex conjugate.

    >>> ost.conjugate([1.0 + 2.0j])
    Array([1.-2.j], dtype=complex128)
    """
    x = as_array(x)
    return _conj(x) if x.dtype.kind == "c" else x


def _part(name: str, factor: complex) -> Callable[[Array], Array]:
    def infer(x: Spec) -> Spec:
        if x.dtype.kind != "c":
            raise unfit(f"{name}_part", (x,), "complex numbers", DTypeError)
        return Spec(x.shape, real_of(x.dtype))

    def kernel(xp: Any, out: Any, x: Any) -> None:
        xp.copyto(out, getattr(x, name))

    def grad(g: Array, y: Array, x: Array) -> Sequence[Array | None]:
        return (astype(g, x.dtype) * factor,)

    op(
        f"{name}_part",
        infer=infer,
        kernel=kernel,
        view=lambda xp, x, at: getattr(x, name),
        grad=grad,
        scalar=f"{{0}}.{name}",
    )
    return lambda x: apply(f"{name}_part", x)


_real_part, _imag_part = _part("real", 1), _part("imag", -1j)


@export
def real(x: Operandish, /) -> Array:
    """The real part.

    >>> ost.real([1 + 2j])
    Array([1.], dtype=float64)
    """
    x = as_array(x)
    return _real_part(x) if x.dtype.kind == "c" else x


@export
def imag(x: Operandish, /) -> Array:
    """The imaginary part.

    >>> ost.imag([1 + 2j])
    Array([2.], dtype=float64)
    """
    x = as_array(x)
    if x.dtype.kind == "c":
        return _imag_part(x)
    return apply("full", shape=x.shape, value=number_of("imag", 0, x.dtype), dtype=x.dtype)


# -- arithmetic ----------------------------------------------------------------------------
add: Binary = binary(
    "add",
    "add",
    doc="""x + y

    >>> ost.add([1, 2], [10, 20])
    Array([11, 22], dtype=int64)
    """,
    grad=lambda g, out, x, y: (g, g),
    scalar="{0} + {1}",
    adds=((0, 1),),
)
subtract: Binary = binary(
    "subtract",
    "subtract",
    doc="""x - y

    >>> ost.subtract([1, 2], [10, 20])
    Array([ -9, -18], dtype=int64)
    """,
    grad=lambda g, out, x, y: (g, -g),
    scalar="{0} - {1}",
    adds=((0, 1),),
)
multiply: Binary = binary(
    "multiply",
    "multiply",
    doc="""x * y

    >>> ost.multiply([1, 2], [10, 20])
    Array([10, 40], dtype=int64)
    """,
    grad=lambda g, out, x, y: (g * y, g * x),
    scalar="{0} * {1}",
    adds=((0,), (1,)),
)
divide: Binary = binary(
    "divide",
    "divide",
    kernel=like_numpy.divide,
    doc="""x / y

    >>> ost.divide([1, 2], 4)
    Array([0.25, 0.5 ], dtype=float64)
    """,
    grad=lambda g, out, x, y: (g / y, -g * out / y),
    scalar="{0} / {1}",
    flops=4,
    adds=((0,),),
)


floor_divide: Binary = binary(
    "floor_divide",
    "floor_divide",
    doc="""floor(x / y); of infinities NaN, and -1 of what is next to 0 from below, as Python's x // y

    >>> ost.floor_divide([7, -7], 2)
    Array([ 3, -4], dtype=int64)
    """,
    grad=flat,
    scalar="{0} // {1}",
    flops=6,
)
remainder: Binary = binary(
    "remainder",
    "remainder",
    doc="""What floor_divide leaves; has the sign of y.

    >>> ost.remainder([7, -7], 3)
    Array([1, 2], dtype=int64)
    """,
    grad=lambda g, out, x, y: (g, -g * floor(x / y)),
    scalar="{0} % {1}",
    flops=6,
)


def _pow_grad(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array | None]:
    by_x = where(equal(y, 0), 0, y * _pow(x, where(equal(y, 0), 1, y - 1)))
    by_y = where(equal(x, 0), 0, log(where(equal(x, 0), 1, x)) * out)
    return g * by_x, (g * by_y if is_inexact(y.dtype) else None)


def _pow_kernel(xp: Any, out: Any, x: Any, y: Any) -> None:
    """NumPy's takes square roots for exponents 1/2, which differ for -0 and -inf."""
    roots = (y == 0.5) if is_float(out.dtype) else None
    if roots is None or not xp.any(roots):
        xp.power(x, y, out)
        return
    zeros, infinite = roots & (x == 0), roots & (x == -math.inf)
    xp.power(x, y, out)
    xp.copyto(out, 0, where=zeros)
    xp.copyto(out, math.inf, where=infinite)


_pow: Binary = binary(
    "pow", "power", kernel=_pow_kernel, doc="x to the y.", grad=_pow_grad, flops=20
)


def _multiplied(x: Array, n: int) -> Array:
    """A power as products, as NumPy makes those of complex numbers."""
    found, power = (x if n & 1 else None), x
    while n := n >> 1:
        power = square(power)
        if n & 1:
            found = power if found is None else found * power
    assert found is not None
    return found


@export
@binary_function
def pow(x: Operandish, y: Operandish, /) -> Array:
    """x to the y.

    >>> ost.pow([1, 2, 3], 2)
    Array([1, 4, 9], dtype=int64)
    """
    if isinstance(x, Array) and is_inexact(x.dtype) and type(y) in (int, float):
        if y == 2:
            return square(x)
        if y == 1:
            return another(x)
        if y == -1:
            return _reciprocal(x)
        if x.dtype.kind == "c" and isinstance(y, int | float) and y in range(3, 17):
            return _multiplied(x, int(y))
    if isinstance(y, int) and y < 0 and not is_inexact(as_array(x).dtype):
        raise misfit(
            ArgumentError,
            "pow",
            got=f"an integer array to the power {y}",
            needed="a floating dtype, since the result is a fraction",
            do="write x.astype(ost.float64) ** y",
        )
    return _pow(x, y)


def _both(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array | None]:
    """The gradient goes to the operand that won; a tie is shared."""
    half = astype(where(equal(x, y), 0.5, 1.0), g.dtype)
    return where(equal(x, out), g * half, 0), where(equal(y, out), g * half, 0)


maximum: Binary = binary(
    "maximum",
    "maximum",
    doc="""The larger one; NaN if either is.

    >>> ost.maximum([1, 5], [3, 3])
    Array([3, 5], dtype=int64)
    """,
    grad=_both,
    scalar="max({0}, {1})",
)
minimum: Binary = binary(
    "minimum",
    "minimum",
    doc="""The smaller one; NaN if either is.

    >>> ost.minimum([1, 5], [3, 3])
    Array([1, 3], dtype=int64)
    """,
    grad=_both,
    scalar="min({0}, {1})",
)
atan2: Binary = binary(
    "atan2",
    "arctan2",
    doc="""The angle of the point (y, x).

    >>> ost.atan2([1.0, -1.0], [0.0, 0.0])
    Array([ 1.5708, -1.5708], dtype=float64)
    """,
    grad=lambda g, out, y, x: (g * x / (x * x + y * y), -g * y / (x * x + y * y)),
    flops=20,
)
hypot: Binary = binary(
    "hypot",
    "hypot",
    doc="""sqrt(x*x + y*y), without overflow.

    >>> ost.hypot([3.0], [4.0])
    Array([5.], dtype=float64)
    """,
    grad=lambda g, out, x, y: (g * x / out, g * y / out),
    flops=8,
)
copysign: Binary = binary(
    "copysign",
    "copysign",
    doc="""The magnitude of x with the sign of y.

    >>> ost.copysign([1.0, 2.0], [-1.0, 1.0])
    Array([-1.,  2.], dtype=float64)
    """,
    grad=lambda g, out, x, y: (where(equal(signbit(x), signbit(y)), g, -g), None),
)


nextafter: Binary = binary(
    "nextafter",
    "nextafter",
    kernel=like_numpy.nextafter,
    doc="""The next number after x towards y.

    >>> ost.nextafter(1.0, 2.0) > 1.0
    Array(True, dtype=bool)
    """,
)


def _logaddexp_grad(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array | None]:
    ahead = where(equal(x, y), 0, x - y)  # infinities, too
    return g * sigmoid(ahead), g * sigmoid(-ahead)


logaddexp: Binary = binary(
    "logaddexp",
    "logaddexp",
    doc="""log(exp(x) + exp(y)), without overflow.

    >>> ost.logaddexp([0.0], [0.0])
    Array([0.6931], dtype=float64)
    """,
    grad=_logaddexp_grad,
    flops=30,
)

# -- comparisons and logic -----------------------------------------------------------------
equal: Binary = binary(
    "equal",
    "equal",
    doc="""x == y

    >>> ost.equal([1, 2], [1, 3])
    Array([ True, False], dtype=bool)
    """,
    scalar="{0} == {1}",
)
not_equal: Binary = binary(
    "not_equal",
    "not_equal",
    doc="""x != y

    >>> ost.not_equal([1, 2], [1, 3])
    Array([False,  True], dtype=bool)
    """,
    scalar="{0} != {1}",
)
less: Binary = binary(
    "less",
    "less",
    doc="""x < y

    >>> ost.less([1, 2], 2)
    Array([ True, False], dtype=bool)
    """,
    scalar="{0} < {1}",
)
less_equal: Binary = binary(
    "less_equal",
    "less_equal",
    doc="""x <= y

    >>> ost.less_equal([1, 2], 2)
    Array([ True,  True], dtype=bool)
    """,
    scalar="{0} <= {1}",
)
greater: Binary = binary(
    "greater",
    "greater",
    doc="""x > y

    >>> ost.greater([1, 2], 1)
    Array([False,  True], dtype=bool)
    """,
    scalar="{0} > {1}",
)
greater_equal: Binary = binary(
    "greater_equal",
    "greater_equal",
    doc="""x >= y

    >>> ost.greater_equal([1, 2], 2)
    Array([False,  True], dtype=bool)
    """,
    scalar="{0} >= {1}",
)


logical_and: Binary = binary(
    "logical_and",
    "logical_and",
    kernel=like_numpy.logical("logical_and"),
    doc="""x and y

    >>> ost.logical_and([True, True], [True, False])
    Array([ True, False], dtype=bool)
    """,
    scalar="bool({0}) and bool({1})",
)
logical_or: Binary = binary(
    "logical_or",
    "logical_or",
    kernel=like_numpy.logical("logical_or"),
    doc="""x or y

    >>> ost.logical_or([False, True], [False, False])
    Array([False,  True], dtype=bool)
    """,
    scalar="bool({0}) or bool({1})",
)
logical_xor: Binary = binary(
    "logical_xor",
    "logical_xor",
    kernel=like_numpy.logical("logical_xor"),
    doc="""Just one of x and y.

    >>> ost.logical_xor([True, True], [True, False])
    Array([False,  True], dtype=bool)
    """,
    scalar="bool({0}) != bool({1})",
)
logical_not: Unary = unary(
    "logical_not",
    "logical_not",
    kernel=like_numpy.logical("logical_not"),
    doc="""not x

    >>> ost.logical_not([True, False])
    Array([False,  True], dtype=bool)
    """,
    scalar="not {0}",
)
isnan: Unary = unary(
    "isnan",
    "isnan",
    doc="""Whether x is not a number.

    >>> ost.isnan([1.0, np.inf, np.nan])
    Array([False, False,  True], dtype=bool)
    """,
    scalar="{0} != {0}",
)
isinf: Unary = unary(
    "isinf",
    "isinf",
    doc="""Whether x is infinite.

    >>> ost.isinf([1.0, np.inf, np.nan])
    Array([False,  True, False], dtype=bool)
    """,
)
isfinite: Unary = unary(
    "isfinite",
    "isfinite",
    doc="""Whether x is neither infinite nor NaN.

    >>> ost.isfinite([1.0, np.inf, np.nan])
    Array([ True, False, False], dtype=bool)
    """,
)
signbit: Unary = unary(
    "signbit",
    "signbit",
    doc="""Whether the sign of x is set.

    >>> ost.signbit([-0.0, 0.0])
    Array([ True, False], dtype=bool)
    """,
)
bitwise_and: Binary = binary(
    "bitwise_and",
    "bitwise_and",
    doc="""x & y

    >>> ost.bitwise_and(6, 3)
    Array(2, dtype=int64)
    """,
    scalar="{0} & {1}",
)
bitwise_or: Binary = binary(
    "bitwise_or",
    "bitwise_or",
    doc="""x | y

    >>> ost.bitwise_or(6, 3)
    Array(7, dtype=int64)
    """,
    scalar="{0} | {1}",
)
bitwise_xor: Binary = binary(
    "bitwise_xor",
    "bitwise_xor",
    doc="""x ^ y

    >>> ost.bitwise_xor(6, 3)
    Array(5, dtype=int64)
    """,
    scalar="{0} ^ {1}",
)
bitwise_invert: Unary = unary(
    "bitwise_invert",
    "invert",
    doc="""~x

    >>> ost.bitwise_invert([0, 1])
    Array([-1, -2], dtype=int64)
    """,
    scalar="~{0}",
)
bitwise_left_shift: Binary = binary(
    "bitwise_left_shift",
    "left_shift",
    doc="""x << y

    >>> ost.bitwise_left_shift([1, 2], 3)
    Array([ 8, 16], dtype=int64)
    """,
    scalar="{0} << {1}",
)
bitwise_right_shift: Binary = binary(
    "bitwise_right_shift",
    "right_shift",
    doc="""x >> y

    >>> ost.bitwise_right_shift([16, 8], 3)
    Array([2, 1], dtype=int64)
    """,
    scalar="{0} >> {1}",
)


# -- choice --------------------------------------------------------------------------------
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
        c = not_equal(c, 0)
    return apply("where", c, *unify(x, y))


@export
def clip(
    x: Operandish,
    /,
    min: Operandish | None = None,
    max: Operandish | None = None,
    out: Out = None,
    *,
    a_min: Operandish | None = None,
    a_max: Operandish | None = None,
) -> Array:
    """x, but at least min and at most max, which NumPy calls `a_min` and `a_max`, too.

    >>> ost.clip([1, 5, 9], 2, 6)
    Array([2, 5, 6], dtype=int64)
    """
    given = x = as_array(x)
    min, max = min if a_min is None else a_min, max if a_max is None else a_max
    for limit, nearer, is_low in ((min, maximum, True), (max, minimum, False)):
        if limit is None:
            continue
        if type(limit) is int and is_integer(x.dtype):
            edge = np.iinfo(x.dtype).min if is_low else np.iinfo(x.dtype).max
            if (limit <= edge) if is_low else (limit >= edge):
                continue  # all of them are within
        x = nearer(x, limit)
    return put_out(another(x) if x is given else x, out, "clip")


# -- dtypes --------------------------------------------------------------------------------
def check_device(name: str, device: str | None) -> None:
    """Arrays live where their session's workers are."""
    here = array.reader.device
    if device not in (None, here):
        needed = f"{here!r} or None"
        raise misfit(ArgumentError, name, got=f"device={device!r}", needed=needed, do=_PLACED)


_PLACED = "arrays live where their session's workers are; see ost.connect"


def _astype_kernel(xp: Any, out: Any, x: Any, *, dtype: DType) -> None:
    xp.copyto(
        out, x.real if x.dtype.kind == "c" and dtype.kind not in "cb" else x, casting="unsafe"
    )


def _astype_rule(x: Spec, *, dtype: DType) -> Spec:
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        raise misfit(
            DTypeError,
            "astype",
            got=f"{x.dtype.name} to {dtype.name}",
            needed="a complex or bool dtype",
            do="take ost.real(x) or abs(x) first",
        )
    return Spec(x.shape, dtype)


op(
    "astype",
    infer=_astype_rule,
    takes={"dtype": DTYPE},
    kernel=_astype_kernel,
    grad=lambda g, y, x, *, dtype: (g if is_inexact(x.dtype) else None,),
    scalar="cast({0})",
    converts=True,
)


_OURS = frozenset(DTYPES.values())


def as_dtype(dtype: Any) -> DType:
    """A dtype from whatever names one."""
    if isinstance(dtype, np.dtype) and dtype in _OURS:
        return dtype
    try:
        found = DTYPES[dtype] if isinstance(dtype, str) and dtype in DTYPES else np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise misfit(
            DTypeError,
            "dtype",
            got=repr(dtype),
            needed="one of " + ", ".join(DTYPES),
            do="pass e.g. ost.float32",
        )
    return found


def number_of(name: str, value: Any, dtype: DType) -> Scalar:
    """A number as a dtype holds it."""
    unmasked(value, name)
    try:
        found = np.asarray(value).reshape(())[()]
        if np.iscomplexobj(found) and dtype.kind not in "cb":
            raise TypeError
        with np.errstate(all="ignore"):
            return cast(Scalar, dtype.type(found.item()).item())
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise misfit(
            DTypeError,
            name,
            got=f"the value {value!r:.60}",
            needed=f"one number that {dtype.name} can hold",
        ) from None


def astype(
    x: Operandish, dtype: DTypeLike, /, *, copy: bool = True, device: str | None = None
) -> Array:
    """The values in another dtype, or the array itself (but see assigning.py)."""
    check_device("astype", device)
    x, dtype = as_array(x), as_dtype(dtype)
    return x if x.dtype == dtype else apply("astype", x, dtype=dtype)


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
        raise _no_meaning(ufunc, [x.spec for x in xs])
    return [astype(x, dtype) for x in xs]


def convert(x: Array, dtype: DType) -> Array:
    """The values in another dtype; of complex ones the real part, if it must be (gradients)."""
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = real(x)
    return astype(x, dtype)


# -- constants -----------------------------------------------------------------------------
def _constant_kernel(xp: Any, out: Any, *, value: Any, dtype: DType) -> None:
    out[...] = value


def _constant_rule(*, value: Scalar, dtype: DType) -> Spec:
    check_value("constant", value, dtype)
    return Spec((), dtype)


op(
    "constant",
    infer=_constant_rule,
    takes={"value": NUMBER, "dtype": DTYPE},
    kernel=_constant_kernel,
    source="value",
)
