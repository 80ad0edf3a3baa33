"""Samples of every operation: a function that uses it, what it should give, and inputs for it.

The tests loop over the registry, so an operation without samples fails. `alike` samples are one
function of a namespace, called with ours and with NumPy's. Inputs cover no and one element, no
axes, repeated axes, steps, uneven parts, NaN and infinities, and every dtype."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import scipy.linalg
import scipy.special
from ostinato.ops.array.indexing import near_places
from ostinato.ops.core.apply import apply, apply_all
from ostinato.ops.core.layout import grid_bounds
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.jit.arrays import formula_kernel
from ostinato.ops.planned.collective import STORED
from ostinato.ops.random.distributions import numbers_of

import ostinato as ost

from . import philox, windows_by_numpy

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)
INF, NAN = math.inf, math.nan


@dataclass(frozen=True, eq=False)
class Sample:
    function: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[Array, ...] = ()
    numerics: str = "same-plan"
    rtol: float | None = None  # where NumPy is more exact: it factorizes in double precision


SAMPLES: dict[str, list[Sample]] = {}

_PLANNED = "put in by the planner; the layouts in which samples run are full of them"
NOT_SAMPLED = {
    **dict.fromkeys(
        ("relayout", "narrow", "all_reduce", "reduce_scatter", "all_gather", "join_pieces"),
        _PLANNED,
    ),
    **dict.fromkeys(("broadcast", "all_to_all", "halo", "start", "wait", "addend"), _PLANNED),
    **dict.fromkeys(("stash", "fetch"), "put in by the planner; see planner/test_offload.py"),
    **dict.fromkeys(("round_addends", "widen_sum"), "put in; see planner/test_narrow_sums.py"),
    "mark": "made by gradients, taken away by the planner",
    "custom": "made by custom_gradient, taken away by the planner",
    "with_gradient": "made by custom_gradient in bodies, taken away by the planner",
    "solution": "made by solvers, taken away by the planner; see test_solve.py",
    "call": "made by checkpoint, taken away by the planner",
    "barrier": "made by gradients of checkpoint",
    "fused_rows": "made by the planner; see test_native.py and planner/test_fuse.py",
    "fused_joins": "made by the planner; see planner/test_joins.py",
    "fused_foreach": "made by the planner; see planner/test_horizontal.py",
    "fused_steps": "made by the planner; see planner/test_step_tiles.py",
    "joined": "made and taken away by the planner; see planner/test_joins.py",
    **dict.fromkeys(
        ("positive_bits", "where_positive"), "made by the planner; see test_cublaslt.py"
    ),
    "pair_distances": "made by the planner; see test_distances.py",
    "gram": "made by the planner; see test_gram.py",
    "wide_matmul": "made by the planner; see test_products.py",
    "wide_conv": "made by the planner; see test_convolution.py",
    "fused": "made by the planner; see test_native.py and planner/test_fuse.py",
    "fused_nest": "made by the planner; see planner/test_nests.py",
    "count": "made by the planner; see planner/test_nests.py",
    **dict.fromkeys(
        ("fused_loop", "fused_while", "fused_whole"),
        "made by the planner; see planner/test_loop_kernels.py",
    ),
    "fused_product": "made by the planner; see planner/test_library_steps.py",
    "fused_matmul": "made by the planner; see planner/test_epilogue.py",
    "fused_matmul_rows": "made by the planner; see planner/test_epilogue.py",
    "fused_tiles": "made by the planner; see planner/test_take_operands.py",
    **dict.fromkeys(
        ("first_number", "numbers", "bits32", "bits64", "normal32", "normal64"),
        "made by the planner; see planner/test_draws.py",
    ),
    "counted": "made by the planner; see planner/test_counting.py",
    "check_bounds": "made by the planner; see planner/test_gathers.py",
    "blocks": "made by the planner; see planner/test_blocking.py",
    **dict.fromkeys(("read", "write", *STORED), "made by the planner; see front/test_files.py"),
}


def sample(
    op: str, function: Callable[..., Any], reference: Callable[..., Any], *inputs: Any, **facts: Any
) -> None:
    given = tuple(np.asarray(x) for x in inputs)
    SAMPLES.setdefault(op, []).append(Sample(function, reference, given, **facts))


def alike(op: str, function: Callable[..., Any], *inputs: Any) -> None:
    """A function of a namespace and arrays."""
    sample(op, partial(function, ost), partial(function, np), *inputs)


# -- data ----------------------------------------------------------------------------------
_rng = np.random.default_rng(20240517)


def dtype_of(name: str) -> np.dtype[Any]:
    return BF16 if name == "bfloat16" else np.dtype(name)


def normal(*shape: int, dtype: Any = "float64") -> Array:
    kind = dtype_of(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if kind.kind == "c":
        return (_rng.normal(size=shape) + 1j * _rng.normal(size=shape)).astype(kind)
    if kind.kind in "iu":
        return _rng.integers(0 if kind.kind == "u" else -9, 10, shape).astype(kind)
    if kind.kind == "b":
        return _rng.random(shape) < 0.5
    return _rng.normal(size=shape).astype(kind)


_EDGES = (-INF, -30.5, -2.5, -1.5, -1.0, -0.5, -1e-4, -0.0)
REAL = np.array([*_EDGES, NAN, *(-v for v in reversed(_EDGES))])
COMPLEX = np.array([0, 1, -1, 1j, -1j, 2 + 3j, -0.5 + 0.25j, -2 - 0.5j])
INTEGERS = {
    "int8": np.array([-128, -7, -1, 0, 1, 5, 127], np.int8),
    "int32": np.array([-(2**31), -7, -1, 0, 1, 5, 2**31 - 1], np.int32),
    "int64": np.array([-(2**63), -7, -1, 0, 1, 5, 2**63 - 1], np.int64),
    "uint8": np.array([0, 1, 5, 200, 255], np.uint8),
    "uint64": np.array([0, 1, 5, 2**64 - 1], np.uint64),
    "bool": np.array([True, False, True]),
}
ORDERED = ("bool", "int8", "int64", "uint8", "float16", "bfloat16", "float32", "float64")
EVERY = (*ORDERED, "complex64", "complex128")
HALVES = (F16, BF16)
CUBE = normal(5, 3, 2)


def unary_data() -> Iterator[Array]:
    yield REAL
    yield REAL[:15].reshape(5, 3).astype(np.float32)
    yield REAL.astype(F16)
    yield REAL.astype(BF16)
    yield np.asarray(0.75)
    yield np.full((1, 1), 0.25, np.float32)
    yield np.zeros((0, 3))
    yield normal(4, 5).T
    yield COMPLEX.reshape(4, 2)
    yield COMPLEX.astype(np.complex64)
    yield from INTEGERS.values()


def binary_data() -> Iterator[tuple[Array, Array]]:
    yield REAL[:, None], REAL[None]
    yield REAL[:15].reshape(5, 3).astype(np.float32), REAL[4:7].astype(np.float32)
    for half in HALVES:
        yield REAL.astype(half), REAL[::-1].astype(half)
    yield REAL.astype(F16)[:, None], REAL[2:5].astype(BF16)
    yield np.asarray(0.75), normal(3)
    yield normal(1, 4), np.full((3, 1, 1), 2.0)
    yield np.zeros((0, 3)), np.ones((1, 3))
    yield np.ones(1, np.float32), np.ones((), np.float32)
    yield COMPLEX[:, None], COMPLEX[::-1]
    yield COMPLEX.astype(np.complex64), np.arange(8, dtype=np.float32)
    for x in INTEGERS.values():
        yield x[:, None], x[None]
    yield INTEGERS["int8"][:, None], INTEGERS["uint8"]
    yield INTEGERS["int32"], np.asarray(1.5)
    yield INTEGERS["bool"], np.arange(3, dtype=np.int8)


def knows(reference: Callable[..., Any], *inputs: Any) -> bool:
    """Whether NumPy has a meaning for these dtypes."""
    try:
        with np.errstate(all="ignore"):
            reference(*inputs)
    except TypeError:
        return False
    return True


def wide(function: Callable[..., Any], like: Any = None) -> Callable[..., Any]:
    """A reference in double precision, or for halves in single, whose result has the dtype that
    `like` has, else the first operand's.
    """

    def reference(*xs: Any) -> Any:
        kind = (like(*xs) if like else xs[0]).dtype
        work = np.float32 if not like else np.complex128 if kind.kind == "c" else np.float64
        if not like and kind not in HALVES:
            return function(*xs)
        return np.asarray(function(*(np.asarray(x).astype(work) for x in xs))).astype(kind)

    return reference


# -- elementwise ---------------------------------------------------------------------------
_erf = np.vectorize(math.erf, otypes=[np.float64])

UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{
        name: (getattr(ost, name), getattr(np, name))
        for name in (
            *("negative", "abs", "sign", "floor", "ceil", "trunc", "sqrt", "square", "cbrt"),
            *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan"),
            *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
            *("conj", "logical_not", "isnan", "isinf", "isfinite", "signbit", "bitwise_invert"),
        )
    },
    "rint": (ost.round, np.rint),
    "reciprocal": (ost.reciprocal, lambda x: 1 / x if x.dtype.kind in "fcV" else 1.0 / x),
    "rsqrt": (ost.rsqrt, wide(lambda x: 1 / np.sqrt(x), np.sqrt)),
    "sigmoid": (ost.sigmoid, wide(lambda x: 1 / (1 + np.exp(-x)), np.exp)),
    "softplus": (ost.softplus, wide(lambda x: np.logaddexp(x, 0.0), np.cbrt)),
    "erf": (ost.erf, wide(_erf, np.cbrt)),
    "real_part": (ost.real, np.real),
    "imag_part": (ost.imag, np.imag),
}
ONLY_COMPLEX = ("conj", "real_part", "imag_part")  # of real x they are x, or 0
ONLY_INEXACT = ("rint", "reciprocal")

for _name, (_mine, _theirs) in UNARY.items():
    for _x in unary_data():
        if _name in ONLY_COMPLEX and _x.dtype.kind != "c":
            continue
        if _name in ONLY_INEXACT and _x.dtype.kind in "biu":
            continue
        if knows(_theirs, _x):
            sample(_name, _mine, _theirs, _x)


BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    name: (getattr(ost, name), getattr(np, name))
    for name in (
        *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "maximum"),
        *("minimum", "atan2", "hypot", "copysign", "nextafter", "logaddexp", "equal", "not_equal"),
        *("less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or"),
        *("logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
    )
}
for _name, (_mine, _theirs) in BINARY.items():
    for _x, _y in binary_data():
        if knows(_theirs, _x, _y):
            sample(_name, _mine, _theirs, _x, _y)

for _x, _y in binary_data():
    if _y.dtype.kind in "fc" and knows(np.pow, _x, _y):
        alike("pow", lambda xp, x, y: xp.pow(x, y), _x, _y)
for _x in INTEGERS.values():
    if _x.dtype != bool:
        alike("pow", lambda xp, x, y: xp.pow(x, y), _x[:, None], np.arange(4, dtype=_x.dtype))
alike("pow", lambda xp, x, y: xp.pow(x, y), REAL.astype(BF16)[:, None], REAL[2:9].astype(BF16))
alike("pow", lambda xp, x, y: xp.pow(x, y), normal(3, 2), np.array([2, -1]))

for _name, _top in (("int8", 7), ("int32", 31), ("int64", 63), ("uint8", 7), ("uint64", 63)):
    _x, _y = INTEGERS[_name][:, None], np.array([0, 1, 3, _top], _name)
    alike("bitwise_left_shift", lambda xp, x, y: xp.bitwise_left_shift(x, y), _x, _y)
    alike("bitwise_right_shift", lambda xp, x, y: xp.bitwise_right_shift(x, y), _x, _y)

CONDITION = np.array([[True], [False], [True]])
for _row in (
    (REAL > 0, REAL, -REAL),
    (CONDITION, normal(3, 4), np.zeros(4)),
    (CONDITION, np.arange(4, dtype=np.int8), np.float32(0.5)),
    (CONDITION, REAL[:4].astype(F16), REAL[:4].astype(F16)),
    (CONDITION, REAL[:4].astype(BF16), REAL[4:8].astype(BF16)),
    (True, COMPLEX, np.complex64(2)),
    (np.zeros((0, 2), bool), np.ones(2), np.zeros(2)),
    (np.array([True]), np.array([True]), np.array([False])),
):
    alike("where", lambda xp, c, x, y: xp.where(c, x, y), *_row)


def _castable(source: str, target: np.dtype[Any]) -> Array:
    """Values of one dtype that another can hold."""
    if source in INTEGERS:
        return INTEGERS[source]
    if source.startswith("complex"):
        return COMPLEX.astype(source)
    x = np.array([0, 0.5, 1, 1.5, 30.5] if target.kind in "iu" else REAL)
    return x.astype(dtype_of(source))


for _source, _target in itertools.product(EVERY, map(dtype_of, EVERY)):
    if dtype_of(_source) != _target and (_source[0] != "c" or _target.kind in "cb"):
        alike("astype", lambda xp, x, t=_target: x.astype(t), _castable(_source, _target))
alike("astype", lambda xp, x: x.astype(np.int32), np.zeros((0, 2)))

for _value in (2.5, 3, True, 1j):
    alike("constant", lambda xp, x, v=_value: xp.multiply(x, v), COMPLEX)
alike("constant", lambda xp: xp.asarray(2.5))
alike("constant", lambda xp: xp.asarray(3, dtype=np.uint8))


# -- special functions ---------------------------------------------------------------------
_POSITIVE = np.array([1e-3, 0.1, 0.5, 1.0, 1.25, 1.75, 2.0, 3.5, 7.0, 8.5, 12.5, 30.5])
_SHARES = np.array([1e-3, 0.01, 0.125, 0.3, 0.49, 0.625, 0.75, 0.9, 0.99])
_SIGNED = np.concatenate([-_POSITIVE[3:9] - 0.25, [-0.1, 0.0, NAN], _POSITIVE[1:]])
OF_SIGNED = "gammaln gamma digamma trigamma erfc ndtr log_ndtr exprel sinc j0 j1 i0 i1 i0e i1e"
OF_POSITIVE = "entr y0 y1 k0 k1 k0e k1e"
OF_SHARES = "erfinv erfcinv ndtri logit"
OF_TWO = "beta betaln xlogy xlog1py rel_entr kl_div gammainc gammaincc zeta"


def special(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Ours, and SciPy's in double precision."""
    if name == "trigamma":
        theirs = partial(scipy.special.polygamma, 1)
        return partial(ost.special.polygamma, 1), wide(theirs, np.cbrt)
    theirs = np.sinc if name == "sinc" else getattr(scipy.special, name)
    return getattr(ost.special, name), wide(theirs, lambda *xs: np.cbrt(sum(map(np.asarray, xs))))


for _names, _x in ((OF_SIGNED, _SIGNED), (OF_POSITIVE, _POSITIVE), (OF_SHARES, _SHARES)):
    for _name in _names.split():
        _given = [_x, _x[:9].reshape(3, 3).astype(np.float32), _x[:9].astype(F16)]
        _given += [_x[:9].astype(BF16), np.asarray(_x[3]), np.zeros((0, 3)), _x[:8].reshape(4, 2).T]
        for _operand in _given:
            sample(_name, *special(_name), _operand)
        if _names != OF_SHARES:
            sample(_name, *special(_name), np.array([1, 2, 5]))
for _name in OF_TWO.split():
    _x = _POSITIVE[4:] if _name == "zeta" else _POSITIVE
    sample(_name, *special(_name), _x[:, None], _POSITIVE[None])
    sample(_name, *special(_name), _x[:6].reshape(3, 2).astype(np.float32), np.float32(1.5))
    sample(_name, *special(_name), _x[:6].astype(F16), _POSITIVE[1:7].astype(F16))
    sample(_name, *special(_name), np.zeros((0, 3)), np.ones(3))
    sample(_name, *special(_name), np.array([2, 3]), np.array([1, 4]))
sample("betainc", *special("betainc"), _POSITIVE[:, None, None], _POSITIVE[:, None], _SHARES)
sample("betainc", *special("betainc"), *(np.float32([0.5, 2]),) * 2, np.float32([[0.25], [0.75]]))
sample("betainc", *special("betainc"), np.zeros((0, 3)), np.ones(3), np.ones(()))


def tried(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Draws that take a few tries, and what the same formulas give on arrays: of which distribution
    they are is in test_distributions.py."""

    def function(*given: Any) -> Any:
        given = tuple(map(ost.asarray, given))
        return apply(name, ost.asarray(np.uint64(7)), numbers_of(given[0].shape), *given)

    def reference(*given: Any) -> Any:
        out = np.empty(given[0].shape, given[0].dtype)
        numbers = np.arange(out.size).reshape(out.shape)
        with np.errstate(all="ignore"):
            formula_kernel(name)(np, out, np.uint64(7).reshape(()), numbers, *given)
        return out

    return function, reference


TRIED = "gamma_draw poisson_draw binomial_draw hypergeometric_draw vonmises_draw zipf_draw"
_MEANS = np.array([0.0, 0.25, 0.5, 1.0, 3.0, 9.5, 12.0, 40.0, 500.0, -1.0])
for _name in TRIED.split():
    for _x in (_MEANS, _MEANS[:9].reshape(3, 3).astype(np.float32), _MEANS[3], np.zeros((0, 2))):
        _x = np.asarray(_x)
        _more = (_x.dtype.type(0.3) + 0 * _x,) if _name.startswith("binomial") else ()
        _more = (np.floor(_x) + 3, np.floor(_x)) if _name.startswith("hyper") else _more
        sample(_name, *tried(_name), *(np.floor(_x) if _more else _x,), *_more)


# -- reductions ----------------------------------------------------------------------------
AXES: tuple[Any, ...] = (None, 0, 1, -1, (0, 2), ())


def reduction(
    op: str,
    function: Callable[..., Any],
    *inputs: Any,
    axes: tuple[Any, ...] = AXES,
    reference: Callable[..., Any] | None = None,
) -> None:
    """A function of a namespace, an array and axes: of a cube along all axes, of others along the
    first.
    """
    first = [None if np.ndim(x) == 0 else 0 for x in inputs]
    for x, a in (*((CUBE, a) for a in axes), *zip(inputs, first, strict=True)):
        theirs = reference if reference is not None else partial(function, np)
        sample(op, partial(function, ost, a=a), partial(theirs, a=a), x)


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's own, but of halves, which it adds up as halves."""
    return lambda x, a: wide(lambda y: function(np, y, a))(x)


_EMPTY = (np.zeros((0, 3)), np.zeros((3, 0)))
_KINDS = [normal(7, 2, dtype=n) for n in EVERY]
_NOT_HALF = [x for x in _KINDS if x.dtype not in HALVES]
_LONG = [np.full((1000, 2), 0.1, half) for half in HALVES]


def _sum(xp: Any, x: Any, a: Any) -> Any:
    return xp.sum(x, axis=a)


def _prod(xp: Any, x: Any, a: Any) -> Any:
    return xp.prod(x, axis=a)


def _mean(xp: Any, x: Any, a: Any) -> Any:
    return xp.mean(x, axis=a)


def _var(xp: Any, x: Any, a: Any) -> Any:
    return xp.var(x, axis=a)


_ODD = (np.array([1.0, NAN, INF]), np.float64(3), np.ones((1, 1)))
_ODD = (*_ODD, normal(20001, 3))  # folded into longer rows
reduction("sum", _sum, *_KINDS, *_LONG, *_ODD, *_EMPTY, reference=in_float32(_sum))
reduction("prod", _prod, *_KINDS, *_ODD, *_EMPTY, reference=in_float32(_prod))
reduction("mean", _mean, *_NOT_HALF, *_ODD)
_ODD = (np.float64(3), normal(50, 2) + 1e4, normal(40000, 2), normal(33000, 2, dtype="complex64"))
reduction("moments", _var, *_KINDS, *_ODD, reference=in_float32(_var))
for _half in HALVES:  # means of halves are sums in float32
    for _x in (normal(7, 2, dtype=_half), np.full((1000, 2), 100, _half)):
        sample("sum", lambda x: x.mean(0), partial(in_float32(_mean), a=0), _x)
alike("sum", lambda xp, x: x.sum(1, keepdims=True), normal(4, 3))
alike("sum", lambda xp, x: x.sum(dtype=np.float32), normal(4, 3))
alike("sum", lambda xp, x: x.sum(0, dtype=np.int8), np.full((9, 2), 100, np.int32))
alike("moments", lambda xp, x: xp.std(x, axis=0, correction=1.5), normal(6, 2))
for _axes, _kind in (((0,), "complex128"), ((1,), "float64"), ((0, 1), "float64"), ((), "float64")):
    sample(
        "moments",  # all three results
        lambda x, a=_axes: apply_all("moments", x, axes=a),
        lambda x, a=_axes: (
            np.float64(math.prod(x.shape[d] for d in a)),
            x.mean(a),
            (abs(x - x.mean(a, keepdims=True)) ** 2).sum(a),
        ),
        normal(7, 3, dtype=_kind),
    )

_EXTREMES = (
    *(normal(7, 2, dtype=n) for n in ORDERED),
    *INTEGERS.values(),
    *(REAL.astype(half) for half in HALVES),
    np.array([[1.0, NAN], [2.0, -INF]]),
    np.array([-INF, -INF]),
    np.array([INF, INF]),
    np.float32(3),
    np.ones((1, 1)),
    np.array([2.0, 1, 2, 1, 2]),
    np.zeros((3, 0, 2)),
)
for _name in ("min", "max"):
    reduction(_name, lambda xp, x, a, n=_name: getattr(xp, n)(x, axis=a), *_EXTREMES)
for _name in ("argmin", "argmax"):
    _find = lambda xp, x, a, n=_name: getattr(xp, n)(x, axis=a)  # noqa: E731
    reduction(f"{_name}_pair", _find, *_EXTREMES, axes=(None, 0, 1, -1))
    alike(
        f"{_name}_pair",
        lambda xp, x, n=_name: getattr(xp, n)(x, axis=1, keepdims=True),
        normal(3, 4),
    )
_TRUTH = [x for x in _KINDS if x.dtype != BF16]
for _name in ("any", "all"):
    reduction(
        _name,
        lambda xp, x, a, n=_name: getattr(xp, n)(x, axis=a),
        *(*_TRUTH, np.zeros((0, 3), bool), np.array(True)),
    )

for _name, _axis in itertools.product(("sum", "prod", "min", "max"), (0, 1)):
    sample(
        "accumulate",
        lambda x, n=_name, a=_axis: apply("accumulate", x, axis=a, monoid=n, dtype=x.dtype),
        lambda x, n=_name, a=_axis: getattr(np, MONOIDS[n].ufunc).accumulate(x, axis=a),
        normal(5, 3),
    )
for _name, _x in itertools.product(("min", "max"), [x for x in _KINDS if x.dtype.kind != "c"]):
    for _axis in range(_x.ndim):
        sample(
            f"cumulative_{_name}",
            partial(getattr(ost, f"cumulative_{_name}"), axis=_axis),
            partial(getattr(np, f"{_name}imum").accumulate, axis=_axis),
            _x,
        )
for _name in ("cumulative_sum", "cumulative_prod"):
    for _axis in (0, 1, -1):
        alike(_name, lambda xp, x, n=_name, a=_axis: getattr(xp, n)(x, axis=a), normal(5, 3))
    for _x in (*(normal(7, dtype=n) for n in EVERY), np.zeros(0), normal(1)):
        sample(
            _name,
            getattr(ost, _name),
            wide(lambda x, n=_name: getattr(np, n)(x, axis=0)),
            _x,
        )
    alike(
        _name,
        lambda xp, x, n=_name: getattr(xp, n)(x, axis=1, include_initial=True, dtype=np.float32),
        normal(4, 3),
    )

# -- products ------------------------------------------------------------------------------
for _a, _b in (
    (normal(5, 4), normal(4, 3)),
    (normal(4), normal(4, 3)),
    (normal(5, 4), normal(4)),
    (normal(4), normal(4)),
    (normal(2, 5, 4), normal(4, 3)),
    (normal(2, 1, 5, 4), normal(3, 4, 2)),
    (normal(1, 5, 4), normal(3, 4, 2)),
    (normal(0, 4), normal(4, 3)),
    (normal(5, 0), normal(0, 3)),
    (normal(1, 1), normal(1, 1)),
    (normal(5, 4).T, normal(5, 3)),
    (normal(5, 4), normal(3, 4).T),
    (normal(5, 8)[:, ::2], normal(4, 3)[::-1]),
    *((normal(5, 40, dtype=n), normal(40, 3, dtype=n)) for n in EVERY),
    (normal(5, 4, dtype="complex128"), normal(4, 3)),
    (normal(5, 4, dtype="int8"), normal(4, 3, dtype="float32")),
    (np.array([[NAN, 1.0]]), np.ones((2, 2))),
):
    sample("matmul", ost.matmul, wide(np.matmul), _a, _b)
alike("matmul", lambda xp, x: x @ x.mT, normal(5, 3))
alike(
    "matmul", lambda xp, a, b: xp.einsum("abcd,abde->abce", a, b), CUBE[None], normal(5, 2, 2)[None]
)

_FOLDED = (normal(3, 4, 5), normal(4, 5, 2))
for _text, _a, _b in (
    ("abc,bcd->ad", *_FOLDED),
    ("abc,bcd->da", *_FOLDED),
    ("abij,abjk->ik", normal(2, 3, 4, 2), normal(2, 3, 2, 3)),
    ("xaby,xcdy->xabcd", normal(2, 3, 2, 4), normal(2, 2, 3, 4)),
    ("abcd,cdab->", normal(2, 3, 4, 2), normal(4, 2, 2, 3)),
    ("abc,bcd->da", normal(3, 0, 5), normal(0, 5, 2)),
    ("abc,bcd->ad", normal(1, 1, 1), normal(1, 1, 1)),
    *(("abc,bcd->ad", *(x.astype(dtype_of(n)) for x in _FOLDED)) for n in EVERY if n != "bool"),
):
    reference = wide(lambda a, b, t=_text: np.einsum(t, a, b))
    sample("einsum", lambda a, b, t=_text: ost.einsum(t, a, b), reference, _a, _b)

for _x in (normal(2, 4, 3), normal(5, 5, dtype="complex64"), np.zeros((0, 3))):
    for _k in (-2, 0, 1, 9):
        sample(
            "diagonal",
            lambda x, k=_k: ost.linalg.diagonal(x, offset=k),
            lambda x, k=_k: np.diagonal(x, k, -2, -1),
            _x,
        )

# -- moving elements -----------------------------------------------------------------------
for _x in (normal(5, 3), np.float64(2), np.zeros((0, 2)), normal(3, dtype="bool")):
    for _name in ("copy", "stop_gradient", "resplit"):
        sample(_name, getattr(ost, _name), np.copy, _x)
for _split in (0, 1, -1):
    sample("resplit", lambda x, s=_split: ost.resplit(x, s), np.copy, normal(5, 3))
    sample("resplit", lambda x, s=_split: ost.resplit(x + 1, s), lambda x: x + 1, normal(1, 2))

for _old, _new in (
    ((6, 4), (24,)),
    ((6, 4), (4, 6)),
    ((6, 4), (3, 2, 4)),
    ((6, 4), (6, 2, 2)),
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (2, 12)),
    ((24,), (2, 3, 4)),
    ((5, 3), (1, 15, 1)),
    ((1, 1), ()),
    ((), (1, 1, 1)),
    ((0, 3), (3, 0, 2)),
    ((4, 1, 3), (2, 2, 3)),
    ((6, 4), (2, -1)),
    ((2, 9, 2), (6, 6)),
):
    alike("reshape", lambda xp, x, s=_new: xp.reshape(x, s), normal(*_old))
alike("reshape", lambda xp, x: x.T.reshape(12), normal(4, 3))
alike("reshape", lambda xp, x: x[:, ::-1].reshape(2, -1) + 1, normal(4, 3))
for _axis in (0, 1, -1, 2, (0, 1), (0, -1), (1, 3)):
    alike("expand_dims", lambda xp, x, a=_axis: xp.expand_dims(x, a), normal(4, 3))
alike("expand_dims", lambda xp, x: xp.expand_dims(x, 0), np.float32(1))
for _axis in (1, -3, (1, 3), (3, 1)):
    alike("squeeze", lambda xp, x, a=_axis: xp.squeeze(x, a), normal(4, 1, 3, 1))
alike("squeeze", lambda xp, x: x.squeeze(), np.ones((1, 1)))
for _axes in ((1, 0, 2), (2, 1, 0), (2, 0, 1), (-1, 0, 1)):
    alike("permute_dims", lambda xp, x, a=_axes: xp.permute_dims(x, a), CUBE)
alike("permute_dims", lambda xp, x: x.T + 1, np.zeros((0, 3)))
for _old, _new in (
    ((3,), (4, 3)),
    ((4, 1), (4, 3)),
    ((1, 1), (5, 2)),
    ((), (2, 3)),
    ((1, 3), (0, 3)),
    ((2, 1, 3), (2, 4, 3)),
    ((1,), (2, 1)),
):
    alike("broadcast_to", lambda xp, x, s=_new: xp.broadcast_to(x, s) * 2, normal(*_old))

for _key in (
    np.s_[1:4],
    np.s_[::2],
    np.s_[::-1],
    np.s_[4:0:-2],
    np.s_[-2:],
    np.s_[:, 1:],
    np.s_[1:-1, ::-2],
    np.s_[2],
    np.s_[-1, 1],
    np.s_[3:3],
    np.s_[5:0],
    np.s_[..., 0],
    np.s_[1::3, None, 2:],
):
    alike("slice", lambda xp, x, k=_key: x[k], normal(7, 4))
    alike("slice", lambda xp, x, k=_key: x[k] * 2, normal(7, 4))
alike("slice", lambda xp, x: x[2:] + x[:-2], normal(9, dtype="int8"))
alike("slice", lambda xp, x: xp.flip(x), normal(4, 3))
alike("slice", lambda xp, x: xp.flip(x, axis=1), normal(4, 3).T)
alike("slice", lambda xp, x: x[:, 1:], np.zeros((0, 2)))


def _slides(xp: Any) -> Any:
    return ost.sliding_window_view if xp is ost else np.lib.stride_tricks.sliding_window_view


alike("slide", lambda xp, x: _slides(xp)(x, 3, 0) * 2, normal(7, 4))
alike("slide", lambda xp, x: _slides(xp)(x, (3, 2))[::2, 1:].max((-1, -2)), normal(7, 4))
alike("slide", lambda xp, x: _slides(xp)(x, 2, 1).sum(-1), normal(5, 4, 2).T)
for _steps, _dilations in (((2, 1), (1, 3)), ((3, 2), (2, 1))):
    sample(
        "slide",
        lambda x, s=_steps, d=_dilations: apply(
            "slide", x, axes=(0, 2), sizes=(3, 2), steps=s, dilations=d, beside=(-1, -1)
        ),
        lambda x, s=_steps, d=_dilations: np.lib.stride_tricks.sliding_window_view(
            x, (2 * d[0] + 1, d[1] + 1), (0, 2)
        )[:: s[0], :, :: s[1], :: d[0], :: d[1]],
        normal(9, 2, 6),
    )
sample(
    "slide",
    lambda x: apply("slide", x, axes=(0,), sizes=(3,), steps=(2,), dilations=(2,), beside=(1,)),
    lambda x: np.stack([x[2 * r : 2 * r + 5 : 2, r] for r in range(3)], -1),
    normal(9, 3),
)

for _kind in ("float64", "complex64", "int8"):
    alike(
        "correlation", lambda xp, x, w: xp.convolve(x, w), *(normal(n, dtype=_kind) for n in (9, 4))
    )
    alike(
        "correlation",
        lambda xp, x, w: xp.correlate(x, w),
        *(normal(n, dtype=_kind) for n in (9, 4)),
    )
for _m in (1, 4, 9):
    alike("correlation", lambda xp, x, w: xp.convolve(x, w, "same"), normal(9), normal(_m))

for _axis in (0, 1, -1, None):
    alike("concat", lambda xp, x, a=_axis: xp.concat([x, x + 1, x], axis=a), normal(4, 3))
for _x, _y in (
    (normal(5, 2), normal(1, 2)),
    (normal(0, 2), normal(3, 2)),
    (normal(0, 2), normal(0, 2)),
    (normal(3, dtype="int8"), normal(2, dtype="float32")),
    (normal(3, dtype="bool"), normal(2, dtype="uint8")),
    (normal(3, dtype="complex64"), normal(1)),
):
    alike("concat", lambda xp, x, y: xp.concat([x, y]), _x, _y)
sample(
    "concat",
    lambda x, y: ost.concat([x, y]),
    lambda x, y: np.concat([x.astype(np.float32), y.astype(np.float32)]),
    normal(3, dtype=F16),
    normal(2, dtype=BF16),
)
alike("concat", lambda xp, x, y: xp.stack([x, y], axis=1), REAL, REAL)
alike("concat", lambda xp, x: xp.roll(x, 2, axis=0), normal(5, 3))
for _width in (1, (2, 1), ((0, 2), (1, 0)), ((0, 0), (3, 3))):
    sample(
        "pad",
        lambda x, w=_width: ost.pad(x, w, value=1.5),
        lambda x, w=_width: np.pad(x, w, constant_values=1.5),
        normal(4, 3),
    )
for _x in (*(normal(4, dtype=n) for n in ("int8", "bfloat16", "complex64")), np.zeros(0)):
    alike("pad", lambda xp, x: xp.pad(x, (1, 2)), _x)

UFUNCS = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}
MODES = ("set", *UFUNCS)


def changed(x: Array, v: Any, *, key: Any, mode: str) -> Array:
    """What `x.at[key]` does, by NumPy."""
    y = x.copy()
    if mode == "set":
        y[key] = v
    else:
        UFUNCS[mode].at(y, key, v)
    return y


def update(op: str, key: Any, mode: str, x: Array, v: Array) -> None:
    sample(
        op,
        lambda x, v: getattr(x.at[key], mode)(v),
        partial(changed, key=key, mode=mode),
        *(x, v),
    )


for _key in (np.s_[1:4], np.s_[::-1], np.s_[:, 2], np.s_[5::-2, 1:3], np.s_[4:1], np.s_[-1], ...):
    for _mode in MODES:
        update("update_slice", _key, _mode, normal(6, 4), normal(*np.zeros((6, 4))[_key].shape))
update("update_slice", np.s_[2:4], "set", normal(6, dtype="int8"), np.int8(0))
update("update_slice", np.s_[1:], "add", normal(4, dtype=BF16), normal(3, dtype=BF16))

# -- indexing ------------------------------------------------------------------------------
for _axis in (0, 1, -1):
    for _i in (np.array([2, 0, 2, -1]), np.array([[0, 1], [1, 2]]), np.int64(1), np.zeros(0, int)):
        alike("take", lambda xp, x, i, a=_axis: xp.take(x, i, axis=a), normal(5, 3), _i)
for _x in (normal(7, dtype="int8"), REAL.astype(BF16), normal(7, dtype="bool"), COMPLEX):
    alike("take", lambda xp, x, i: x[i], _x, np.array([6, -1, 0], np.int8))
_NEAR = np.array([0, 0, 1, 2, 2, 3, 4, 4]), np.array([3, 1, 4]), np.array([1, 2, 3, 4, 4])
for _axis, _i in itertools.product((0, 1), _NEAR):
    _near = {"axis": _axis, "near": near_places(_i, 5)}
    sample(
        "take_near",
        lambda x, i, p=_near: apply("take_near", x, i, **p),
        lambda x, i, a=_axis: x.take(i, a),
        normal(5, 5, 2),
        _i,
    )
    sample(
        "put_near",
        lambda x, i, v, p=_near: apply("put_near", x, i, v, **p),
        lambda x, i, v, a=_axis: x + np.moveaxis(np.eye(5)[:, i] @ np.moveaxis(v, a, -2), -2, a),
        normal(5, 5, 2),
        _i,
        normal(5, 5, 2).take(_i, _axis),
    )
for _i in (np.array([6, -1, 0], np.int8), np.array([[0, -7], [1, 2]])):
    for _checks in (False, True):
        sample(
            "take_places",
            lambda i, c=_checks: apply("take_places", i, size=7, checks=c),
            lambda i, c=_checks: np.int64(0) if c else i % np.int64(7),
            _i,
        )

for _axis, _mode in itertools.product((0, 1), MODES):
    for _i in (np.array([4, 0, -4]), np.array([3, 3, 1]), np.zeros(0, int)):
        if _mode == "set" and len(set(_i.tolist())) < len(_i):
            continue  # see test_indexing
        sample(
            "put",
            lambda x, i, v, a=_axis, m=_mode: apply("put", x, i, v, axis=a, mode=m),
            lambda x, i, v, a=_axis, m=_mode: changed(x, v, key=(slice(None),) * a + (i,), mode=m),
            normal(5, 5),
            _i,
            normal(*((len(_i), 5) if _axis == 0 else (5, len(_i)))),
        )
for _mode, _kind, _i in (
    ("add", "int8", np.array([[0, 0], [4, 0]], np.uint8)),
    ("set", "bfloat16", np.array([[3, 1], [0, 2]])),
    ("max", "bool", np.array([[3, 1], [3, 2]])),
):
    sample(
        "put",
        lambda x, i, v, m=_mode: getattr(x.at[i], m)(v),
        lambda x, i, v, m=_mode: changed(x, v, key=i, mode=m),
        normal(5, dtype=_kind),
        _i,
        normal(2, 2, dtype=_kind),
    )

# -- boxes that begin where numbers say ---------------------------------------------------------
_BOXES: tuple[tuple[Any, ...], ...] = (  # shape, begins, axes, their bounds, and extents
    ((5, 4), (4, -2), (0, 1), ("index", "index"), (1, 1)),
    ((5, 4, 3), (1, 2), (0, 2), ("slice", "clip"), (3, 2)),
    ((5, 4), (-4, 9), (0, 1), ("slice", "clip"), (2, 3)),
    ((5, 4), (-9,), (1,), ("clip",), (2,)),
    ((5, 4), (0,), (0,), ("slice",), (0,)),
)
for _shape, _begins, _axes, _how, _sizes in _BOXES:
    _x, _at = normal(*_shape), [np.int64(i) for i in _begins]
    _cut, _inner = [slice(None)] * len(_shape), [slice(1, 3)] * len(_shape)
    for _i, _a, _n in zip(_begins, _axes, _sizes, strict=True):
        _first = min(max(_i + _shape[_a] if _i < 0 else _i, 0), _shape[_a] - _n)
        _cut[_a] = _inner[_a] = slice(_first, _first + _n)
    sample(
        "dynamic_slice",
        lambda x, *i, a=_axes, n=_sizes, how=_how: apply(
            "dynamic_slice", x, *i, axes=a, sizes=n, bounds=how
        ),
        lambda x, *i, cut=tuple(_cut): x[cut],
        *(_x, *_at),
    )
    _starts = tuple(0 if d in _axes else 1 for d in range(_x.ndim))
    for _mode in MODES:
        sample(
            "dynamic_update_slice",
            lambda x, v, *i, a=_axes, s=_starts, m=_mode, how=_how: apply(
                "dynamic_update_slice", x, v, *i, axes=a, starts=s, mode=m, bounds=how
            ),
            lambda x, v, *i, cut=tuple(_inner), m=_mode: changed(x, v, key=cut, mode=m),
            *(_x, normal(*_x[tuple(_inner)].shape), *_at),
        )
for _kind in ("int8", "bfloat16", "bool", "complex64"):
    alike(
        "dynamic_slice",
        lambda xp, x, i, j: x[i, j],
        normal(3, 4, dtype=_kind),
        *map(np.int64, (2, -1)),
    )
    sample(
        "dynamic_update_slice",
        lambda x, v, i, j: x.at[i, j].set(v),
        lambda x, v, i, j: changed(x, v, key=(i, j), mode="set"),
        *(normal(3, 4, dtype=_kind), normal(1, dtype=_kind)[0], np.int64(2), np.int64(-1)),
    )

# -- Fourier transforms ----------------------------------------------------------------------
for _x, _axis, _norm in (
    (normal(5, 3), 0, None),
    (normal(4, 6, dtype="complex128"), 1, "ortho"),
    (normal(2, 3, 4, dtype="complex64"), 1, "forward"),
    (normal(1, dtype="float32"), 0, "ortho"),
    (np.zeros((0, 3)), 1, None),
    (normal(128, 300, dtype="complex128"), 1, None),  # lines that threads share
):
    for _name in ("fft", "ifft"):
        alike(
            "fft",
            lambda xp, x, f=_name, a=_axis, m=_norm: getattr(xp.fft, f)(x, axis=a, norm=m),
            _x,
        )
    if _x.dtype.kind == "f":
        alike("rfft", lambda xp, x, a=_axis, m=_norm: xp.fft.rfft(x, axis=a, norm=m), _x)
    for _n in (None, 7) if _x.shape[_axis] > 1 else (1,):
        if _x.dtype.kind == "c":
            alike("irfft", lambda xp, x, n=_n, a=_axis, m=_norm: xp.fft.irfft(x, n, a, m), _x)

for _x, _axis, _shape in (
    (normal(5, 3), 0, (2, 3)),
    (normal(5, 3), 1, (5, 4)),
    (normal(5, 3), -1, (5, 1)),
    (normal(5, 3), 0, (2, 1)),
    (normal(5, 3), 0, (0, 3)),
    (normal(1, 3, dtype=BF16), 1, (4, 2)),
):
    alike(
        "take_along_axis",
        lambda xp, x, i, a=_axis: xp.take_along_axis(x, i, axis=a),
        _x,
        _rng.integers(-3, 3, _shape),
    )


def _put_along(x: Array, i: Array, v: Array, axis: int) -> Array:
    y = x.copy()
    for place in np.ndindex(i.shape):
        to = list(place)
        to[axis] = i[place]
        y[tuple(to)] += v[place]
    return y


for _axis, _shape in ((0, (4, 3)), (1, (5, 4)), (1, (5, 0))):
    sample(
        "put_along_axis",
        lambda x, i, v, a=_axis: apply("put_along_axis", x, i, v, axis=a),
        partial(_put_along, axis=_axis),
        normal(5, 3),
        _rng.integers(-3, 3, _shape),
        normal(*_shape),
    )


# -- order ---------------------------------------------------------------------------------
def in_order(x: Array, axis: int, descending: bool) -> Array:
    """NumPy has no stable descending order, and none at all of bfloat16."""
    x = x.astype(np.float32) if x.dtype == BF16 else x
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    back = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - back, axis)


for _axis, _down in itertools.product((0, -1), (False, True)):
    for _x in (
        normal(5, 3),
        np.array([[2.0, NAN, 1.0], [INF, -INF, 0.0]]),
        np.array([3, 1, 2, 1, 3, 1], np.int8),
        np.array([200, 1, 255, 0], np.uint8),
        np.array([True, False, True]),
        REAL[::-1].astype(F16),
        REAL[::-1].astype(BF16),
        normal(4, 2, dtype=BF16),
        np.zeros((0, 2)),
        np.ones(1),
    ):
        find = partial(in_order, axis=_axis, descending=_down)
        sample("argsort", partial(ost.argsort, axis=_axis, descending=_down), find, _x)
        sample(
            "sort",
            partial(ost.sort, axis=_axis, descending=_down),
            lambda x, f=find, a=_axis: np.take_along_axis(x, f(x), axis=a),
            _x,
        )
sample("sort", lambda x: ost.sort(x, stable=False), np.sort, normal(4, 6))
for _side in ("left", "right"):
    for _x, _v in (
        (np.array([1.0, 2, 2, 3]), np.array([[0.0, 2], [2.5, 9]])),
        (np.array([1.0, NAN]), np.array([NAN, 0.0])),
        (np.array([-3, 0, 5], np.int8), np.array([0, 100], np.int16)),
        (np.array([1.0, 2, 3]).astype(BF16), np.array([2.0, 0, NAN]).astype(BF16)),
        (np.zeros(0), np.ones(3)),
        (np.ones(1), np.float64(1)),
    ):
        _theirs = wide(lambda x, v, s=_side: np.searchsorted(x, v, side=s), lambda x, v: np.intp(0))
        sample("searchsorted", partial(ost.searchsorted, side=_side), _theirs, _x, _v)


# -- selection -----------------------------------------------------------------------------
def ordered(x: Array, axes: tuple[int, ...]) -> Array:
    """Lines along the last axis, in order; NumPy has none of bfloat16."""
    left = [d for d in range(x.ndim) if d not in axes]
    wide = x.astype(np.float32) if x.dtype == BF16 else x
    lines = wide.transpose((*left, *axes)).reshape((*(x.shape[d] for d in left), -1))
    return np.sort(lines, axis=-1).astype(x.dtype)


def at_ranks(x: Array, ranks: Array, axes: tuple[int, ...]) -> Array:
    lines = ordered(x, axes)
    places = np.broadcast_to(ranks, (*lines.shape[:-1], ranks.shape[-1]))
    return np.take_along_axis(lines, places, axis=-1)


for _x, _ranks, _axes in (
    (normal(7), np.array([3]), (0,)),
    (normal(6, 5), np.array([[0, 2, 2, 4]]), (1,)),
    (normal(6, 5), np.array([[5, 1]]), (0,)),
    (normal(4, 3, 5), _rng.integers(0, 20, (3, 2)), (0, 2)),
    (normal(4, 3, 5), np.array([7]), (0, 1, 2)),
    (np.array([2.0, NAN, 1.0, -INF, 2.0, -3.0, INF]), np.array([0, 3, 5, 6]), (0,)),
    (np.array([3, 1, 2, 1, 3, 1], np.int8), np.array([0, 3]), (0,)),
    (np.array([200, 1, 255, 0], np.uint8), np.array([3, 0]), (0,)),
    (INTEGERS["int64"], np.array([6, 0, 3]), (0,)),
    (INTEGERS["uint64"], np.array([2, 3]), (0,)),
    (np.array([True, False, True]), np.array([1]), (0,)),
    (REAL.astype(F16), np.array([2, 9]), (0,)),
    (REAL.astype(BF16), np.array([2, 9]), (0,)),
    (normal(300, dtype="float32"), np.array([150, 7]), (0,)),
):
    sample(
        "order_statistics",
        lambda x, r, a=_axes: apply("order_statistics", x, r, axes=a),
        partial(at_ranks, axes=_axes),
        _x,
        _ranks,
    )
for _x in (*(normal(7, dtype=n) for n in ORDERED), *INTEGERS.values(), REAL.astype(np.float32)):
    sample(
        "sort_keys",
        lambda x: x[..., None][ost.argsort(apply("sort_keys", x))],
        lambda x: x[..., None][in_order(x, 0, False)],
        _x,
    )
    sample(
        "sorted_numbers",
        lambda x: apply("sorted_numbers", apply("sort_keys", x), of=x.dtype),
        lambda x: x,
        _x,
    )
for _axis, _places in ((0, (2,)), (1, (0, 2)), (1, ())):
    for _x in (normal(5, 3), normal(5, 3, dtype="int8"), normal(5, 3, dtype=BF16)):
        for _name in ("partition", "argpartition"):
            sample(
                _name,
                partial(
                    lambda x, name, axis, places: ost.take(
                        apply(name, x, axis=axis, places=places)
                        if name == "partition"
                        else ost.take_along_axis(
                            x, apply(name, x, axis=axis, places=places), axis=axis
                        ),
                        np.array(places, int),
                        axis=axis,
                    ),
                    name=_name,
                    axis=_axis,
                    places=_places,
                ),
                lambda x, a=_axis, k=_places: np.take(
                    np.moveaxis(ordered(x, (a,)), -1, a), np.array(k, int), axis=a
                ),
                _x,
            )


for _x, _table in (
    (normal(5, 3, dtype="int8"), np.array([-3, 0, 2, 2, 7], np.int8)),
    (INTEGERS["int64"], np.array([-(2**63), 0, 2**63 - 1])),
    (INTEGERS["uint64"], np.array([1, 2**64 - 1], np.uint64)),
    (REAL, np.array([-INF, -1.5, 0.0, INF, NAN])),
    (REAL.astype(BF16), np.array([-1.5, 0.0, INF]).astype(BF16)),
    (np.zeros((0, 2)), np.ones(1)),
):
    sample(
        "is_member",
        lambda x, t: apply("is_member", x, t),
        lambda x, t: (x[..., None] == t).any(-1),
        _x,
        _table,
    )


def first_values(x: Array, size: int) -> Array:
    """NumPy has no unique of bfloat16."""
    wide = x.astype(np.float32) if x.dtype == BF16 else x
    values = np.unique(wide, equal_nan=False)[:size].astype(x.dtype)
    return np.concatenate([values, np.repeat(values[:1], size - len(values))])


for _x, _bounds in (
    (normal(9), (0, 4, 9)),
    (normal(9, dtype="int8"), (0, 9)),
    (np.array([2.0, NAN, 1.0, NAN, 2.0, -INF, 1.0]), (0, 3, 4, 7)),
    (np.array([NAN, NAN]), (0, 1, 2)),
    (INTEGERS["uint64"], (0, 1, 4)),
    (np.array([True, False, True]), (0, 2, 3)),
    (REAL.astype(F16), (0, 5, 17)),
    (REAL.astype(BF16), (0, 5, 17)),
):
    for _size in (1, 3, 20):
        sample(
            "distinct",
            lambda x, n=_size: apply("distinct", x, size=n),
            partial(first_values, size=_size),
            _x,
        )
        sample(
            "distinct_of_parts",
            lambda x, n=_size, b=_bounds: apply("distinct_of_parts", x, bounds=b, size=n),
            lambda x, n=_size, b=_bounds: np.stack(
                [first_values(x[lo:hi], n) for lo, hi in itertools.pairwise(b)]
            ),
            _x,
        )


def true_places(x: Array, size: int) -> Array:
    found = np.flatnonzero(x)[:size]
    return np.concatenate([found, np.zeros(size - len(found), np.int64)])


for _x in (REAL > 0, np.ones(3, bool), np.zeros(5, bool), np.zeros(0, bool)):
    for _size in (0, 2, 20):
        sample(
            "true_places",
            lambda x, n=_size: apply("true_places", x, size=n),
            partial(true_places, size=_size),
            _x.reshape(-1),
        )


# -- counts, groups ------------------------------------------------------------------------
def tallied(x: Array, axes: tuple[int, ...], count: int) -> Array:
    left = [d for d in range(x.ndim) if d not in axes]
    lines = x.transpose((*left, *axes)).reshape((*(x.shape[d] for d in left), -1))
    return (lines[..., None] == np.arange(count)).sum(-2)


for _x, _axes, _count in (
    (np.array([3, 1, 3, 0, 5, -1]), (0,), 4),
    (_rng.integers(0, 5, (4, 6)).astype(np.int8), (1,), 5),
    (_rng.integers(0, 5, (4, 6)).astype(np.int16), (0,), 5),
    (_rng.integers(0, 5, (4, 3, 6)).astype(np.uint8), (0, 2), 3),
    (np.array([0, 2**63 + 1, 2], np.uint64), (0,), 3),
    (np.zeros(0, np.int32), (0,), 2),
    (np.arange(3), (0,), 0),
):
    sample(
        "tally",
        lambda x, a=_axes, n=_count: apply("tally", x, axes=a, count=n),
        partial(tallied, axes=_axes, count=_count),
        _x,
    )


def grouped(x: Array, ids: Array, count: int, ufunc: Any, first: Any) -> Array:
    made = np.full((count, *x.shape[1:]), first, x.dtype)
    for row, k in zip(x, ids, strict=True):
        if 0 <= k < count:
            made[k] = ufunc(made[k], row)
    return made


for _monoid, _ufunc in (
    ("sum", np.add),
    ("prod", np.multiply),
    ("min", np.minimum),
    ("max", np.maximum),
):
    for _kind in ("float64", "float32", "int64", "int8", "bfloat16", "bool", "complex128"):
        if (_kind[0] == "c" and _monoid in ("min", "max")) or (
            _kind == "bfloat16" and _monoid in ("sum", "prod")
        ):
            continue
        _first: Any = {"sum": 0, "prod": 1}.get(_monoid)
        if _first is None:
            _low = _monoid == "max"
            _first = (
                (-INF if _low else INF)
                if _kind[0] in "fb" and _kind != "bool"
                else (not _low)
                if _kind == "bool"
                else getattr(np.iinfo(_kind), "min" if _low else "max")
            )
        for _ids, _count in (
            (np.array([2, 0, 2, 2, 0, 3, 1]), 5),
            (np.array([2, -1, 9, 2, 0, 3, 1], np.int8), 3),
        ):
            sample(
                f"segment_{_monoid}",
                lambda x, i, m=_monoid, n=_count: apply(f"segment_{m}", x, i, count=n),
                partial(grouped, count=_count, ufunc=_ufunc, first=_first),
                normal(7, 2, dtype=_kind) if _kind != "int8" else normal(7, dtype=_kind),
                _ids,
            )
    sample(
        f"segment_{_monoid}",
        lambda x, i, m=_monoid: apply(f"segment_{m}", x, i, count=2),
        partial(
            grouped,
            count=2,
            ufunc=_ufunc,
            first={"sum": 0, "prod": 1, "min": INF, "max": -INF}[_monoid],
        ),
        np.zeros((0, 3)),
        np.zeros(0, np.int64),
    )

# -- out of nothing ------------------------------------------------------------------------
for _kind in map(dtype_of, EVERY):
    alike("full", lambda xp, d=_kind: xp.full((5, 3), 1, dtype=d))
    for _shape, _axis in (((7,), 0), ((4, 3), 0), ((2, 5), 1), ((0,), 0)):
        if _kind.kind != "b":
            sample(
                "iota",
                lambda s=_shape, a=_axis, d=_kind: apply("iota", shape=s, axis=a, dtype=d),
                lambda s=_shape, a=_axis, d=_kind: np.indices(s)[a].astype(d),
            )
alike("full", lambda xp: xp.full((4,), -2.5))
alike("full", lambda xp: xp.zeros((0, 3)))
alike("full", lambda xp: xp.full((2, 2), NAN))

for _shape in ((), (1,), (7,), (5, 3), (2, 3, 4), (0, 2)):
    for _wide in (False, True):
        sample(
            "random_bits",
            lambda s, n=_shape, w=_wide: apply("random_bits", s, shape=n, stream=2**40 + 3, wide=w),
            lambda s, n=_shape, w=_wide: philox.bits(n, 2**40 + 3, int(s), w),
            np.uint64(0xDEADBEEF12345678),
        )
        _kind = np.dtype(np.float64 if _wide else np.float32)
        sample(
            "normal",
            lambda s, n=_shape, d=_kind: apply("normal", s, shape=n, dtype=d),
            lambda s, n=_shape, d=_kind: philox.normal(n, int(s), d),
            np.uint64(11),
        )


# -- reductions in a fixed order -----------------------------------------------------------
fixed = partial(sample, numerics="any-workers")
_TOTAL = {"sum": np.sum, "prod": np.prod}


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(grid_bounds(n))


def _by_block(x: Array, axis: int, monoid: str) -> Array:
    rows = np.moveaxis(x, axis, 0)
    return np.stack([_TOTAL[monoid](rows[a:b], 0) for a, b in _blocks(x.shape[axis])])


def _products(a: Array, b: Array) -> Array:
    return np.stack([a[..., i:j] @ b[..., i:j, :] for i, j in _blocks(a.shape[-1])])


for _shape, _axis in (((50, 3), 0), ((2, 30), 1), ((7,), 0), ((1, 2), 0), ((0, 2), 0), ((24,), 0)):
    for _m in _TOTAL:
        fixed(
            "block_sum",
            lambda x, a=_axis, m=_m: apply("block_sum", x, axis=a, monoid=m),
            partial(_by_block, axis=_axis, monoid=_m),
            normal(*_shape),
        )
        fixed(
            "fixed_sum",
            lambda x, a=_axis, m=_m: apply("fixed_sum", x, axis=a, monoid=m),
            partial(_TOTAL[_m], axis=_axis),
            normal(*_shape),
        )
for _x, _m in ((normal(7, 3), "sum"), (normal(1, 3), "prod")):
    fixed("tree", lambda x, m=_m: apply("tree", x, monoid=m), partial(_TOTAL[_m], axis=0), _x)
for _a, _b in (
    (normal(5, 30), normal(30, 3)),
    (normal(2, 5, 7), normal(7, 3)),
    (normal(5, 1), normal(1, 3)),
    (normal(3, 50, dtype="float32"), normal(50, 2, dtype="float32")),
    (normal(3, 5, dtype="complex128"), normal(5, 2, dtype="complex128")),
):
    fixed("fixed_matmul", lambda a, b: apply("fixed_matmul", a, b), np.matmul, _a, _b)
    fixed("block_matmul", lambda a, b: apply("block_matmul", a, b), _products, _a, _b)


# -- matrices ------------------------------------------------------------------------------
def product(u: Any, s: Any, vh: Any) -> Any:
    """What factors come to, whatever their signs."""
    return (u[..., : s.shape[-1]] * s[..., None, :]) @ vh[..., : s.shape[-1], :]


def signed(x: Array) -> Any:
    """NumPy's QR with our choice of signs."""
    q, r = np.linalg.qr(x)
    d = np.diagonal(r, 0, -2, -1)
    phase = np.where(d == 0, 1, d / np.where(d == 0, 1, abs(d))).astype(x.dtype)
    k = phase.shape[-1]
    return q[..., :k] * phase[..., None, :], phase.conj()[..., None] * r[..., :k, :]


def packed(x: Array) -> Any:
    p, lower, upper = scipy.linalg.lu(x)
    return p.astype(x.dtype), lower, upper


def hermitian(x: Array) -> Array:
    made = x @ np.swapaxes(x.conj(), -1, -2) + np.eye(x.shape[-1])
    return made.astype(x.dtype)


def spectral(xp: Any, x: Any) -> Any:
    w, v = xp.linalg.eigh(x)
    return (v * xp.sqrt(w)[..., None, :]) @ xp.conj(xp.matrix_transpose(v))


def of_parts(x: Array, bounds: tuple[int, ...]) -> Any:
    parts = [signed(x[a:b]) for a, b in itertools.pairwise(bounds)]
    return np.concatenate([q for q, _ in parts]), np.stack([r for _, r in parts])


def by_parts(x: Any, bounds: tuple[int, ...]) -> Any:
    q, w, r = apply_all("qr_of_parts", x, bounds=bounds)
    return apply("matmul_of_parts", q, w, bounds=bounds), r


def reflected(x: Any) -> Any:
    v, t, r = apply_all("reflectors", x)
    upper = ost.pad(ost.triu(r), ((0, x.shape[0] - x.shape[1]), (0, 0)))
    return upper - v @ (t @ (ost.conj(v.mT) @ upper))


def one_by_one(function: Callable[..., Any], x: Array) -> Array:
    """What SciPy makes of each matrix of a stack."""
    made = [function(a.astype("D")) for a in x.reshape(-1, *x.shape[-2:])] if x.size else []
    made = np.array(made).reshape(x.shape)
    return (made if x.dtype.kind == "c" else made.real).astype(x.dtype)


def solved_bands(*xs: Any, lower: int, axis: int, transposed: bool) -> Any:
    """By a whole matrix for each system."""
    *bands, b = (np.moveaxis(x, axis, 0) for x in xs)
    made, n = np.empty_like(b), len(b)
    for place in np.ndindex(b.shape[1:]):
        a = np.zeros((n, n), b.dtype)
        for o, x in zip(range(-lower, len(bands) - lower), bands, strict=True):
            for i in range(max(0, -o), min(n, n - o)):
                a[i, i + o] = x[(i, *place)]
        at = (slice(None), *place)
        made[at] = np.linalg.solve(a.T if transposed else a, b[at])
    return np.moveaxis(made, 0, axis)


_KINDS = ("float64", "float32", "complex128", "complex64")
for _kind in _KINDS:
    for _lower, _upper, _axis in ((1, 1, 0), (2, 0, 1), (1, 3, -2)):
        for _shape in ((5,), (6, 7), (1, 9), (2, 4, 3)) if _axis != 1 else ((6, 5), (3, 1)):
            _facts = {"lower": _lower, "axis": max(0, _axis + (_axis < 0) * len(_shape))}
            _facts["transposed"] = _axis == 0
            sample(
                "solve_banded",
                partial(apply, "solve_banded", **_facts),
                partial(solved_bands, **_facts),
                *(
                    normal(*_shape, dtype=_kind) + 5 * (k == _lower)
                    for k in range(_lower + _upper + 1)
                ),
                normal(*_shape, dtype=_kind),
            )
    for _shape in ((4, 4), (1, 1), (0, 0), (2, 3, 3)):
        _x = normal(*_shape, dtype=_kind)
        _h = hermitian(_x)
        for _up in (False, True):
            alike("cholesky", lambda xp, x, u=_up: xp.linalg.cholesky(x, upper=u), _h)
        alike("eigh", lambda xp, x: xp.linalg.eigvalsh(x), _h)
        sample("eigh", lambda x: spectral(ost, x), lambda x: spectral(np, x), _h)
        _wide = np.result_type(_kind, np.complex64)
        sample("eig", ost.linalg.eigvals, lambda x, t=_wide: np.linalg.eigvals(x).astype(t), _x)
        sample(
            "eig",
            lambda x: tuple(ost.linalg.eig(x)),
            lambda x, t=_wide: tuple(y.astype(t) for y in np.linalg.eig(x)),
            _x,
        )
        alike("det", lambda xp, x: xp.linalg.det(x), _h)
        alike("slogdet", lambda xp, x: tuple(xp.linalg.slogdet(x)), _h)
        alike("solve", lambda xp, x: xp.linalg.inv(x), _h)
        alike(
            "solve",
            lambda xp, a, b: xp.linalg.solve(a, b),
            _h,
            normal(*_shape[:-1], 3, dtype=_kind),
        )
        for _low in (False, True):
            sample(
                "solve_triangular",
                lambda a, b, lo=_low: ost.linalg.solve_triangular(a, b, lower=lo),
                lambda a, b, lo=_low: np.linalg.solve(np.tril(a) if lo else np.triu(a), b),
                hermitian(normal(*_shape, dtype=_kind) / 9),
                normal(*_shape[:-1], 2, dtype=_kind),
            )
        sample(
            "expm",
            ost.linalg.expm,
            lambda x: scipy.linalg.expm(x).astype(x.dtype) if x.size else x,
            _h / 4,
        )
        for _name in ("sqrtm", "logm", "signm"):
            for _a in (_h, _h + np.triu(_h, 1) / 4):
                sample(
                    _name,
                    getattr(ost.linalg, _name),
                    partial(one_by_one, getattr(scipy.linalg, _name)),
                    _a,
                )
    for _shape in ((5, 3), (3, 5), (4, 4), (9, 2), (1, 1), (0, 3), (3, 0), (2, 4, 3)):
        _x = normal(*_shape, dtype=_kind)
        _loose = None if np.finfo(_kind).eps < 1e-10 else 5e-4
        sample("qr", lambda x: tuple(ost.linalg.qr(x)), signed, _x, rtol=_loose)
        alike("svd", lambda xp, x: product(*xp.linalg.svd(x)), _x)
        alike("svd", lambda xp, x: product(*xp.linalg.svd(x, full_matrices=False)), _x)
        alike("svd", lambda xp, x: xp.linalg.svdvals(x), _x)
        alike("pinv", lambda xp, x: xp.linalg.pinv(x), _x)
        sample(
            "lstsq",
            lambda a, b: ost.linalg.lstsq(a, b).x,
            lambda a, b: np.linalg.pinv(a) @ b,
            _x,
            normal(*_shape[:-1], 2, dtype=_kind),
        )
        if _x.size:
            sample("lu", lambda x: tuple(ost.linalg.lu(x)), packed, _x)
    for _bounds in ((0, 7), (0, 4, 9), (0, 3, 5, 9, 11)):
        _x = normal(_bounds[-1], 2, dtype=_kind)
        for _name in ("qr_of_parts", "matmul_of_parts"):
            sample(_name, partial(by_parts, bounds=_bounds), partial(of_parts, bounds=_bounds), _x)
    for _shape in ((5, 3), (4, 4), (1, 1), (3, 0)):
        sample("reflectors", reflected, lambda x: x, normal(*_shape, dtype=_kind), rtol=_loose)


def order_of_parts(x: Array, bounds: tuple[int, ...]) -> Array:
    """Keys of each part in order, and below them the places that they come from."""
    parts = itertools.pairwise(bounds)
    places = [np.argsort(x[:, a:b], axis=1, kind="stable") + a for a, b in parts]
    order = np.concatenate(places, axis=1)
    return np.concatenate([np.take_along_axis(x, order, axis=1), order.astype(x.dtype)])


for _bounds in ((0, 7), (0, 4, 9), (0, 3, 5, 9, 11)):
    sample(
        "order_of_parts",
        partial(lambda x, bounds: apply("order_of_parts", x, bounds=bounds), bounds=_bounds),
        partial(order_of_parts, bounds=_bounds),
        _rng.integers(0, 9, (2, _bounds[-1])).astype(np.uint64),
    )
    sample(
        "sort_of_parts",
        partial(lambda x, bounds: apply("sort_of_parts", x, bounds=bounds), bounds=_bounds),
        partial(
            lambda x, bounds: np.concatenate(
                [np.sort(x[:, a:b]) for a, b in itertools.pairwise(bounds)], axis=1
            ),
            bounds=_bounds,
        ),
        _rng.integers(0, 9, (2, _bounds[-1])).astype(np.uint32),
    )
    _places = np.concatenate(
        [_rng.permutation(range(a, b)) for a, b in itertools.pairwise(_bounds)]
    )
    sample(
        "rows_of_parts",
        partial(lambda x, i, bounds: apply("rows_of_parts", x, i, bounds=bounds), bounds=_bounds),
        partial(lambda x, i, bounds: x[i], bounds=_bounds),
        normal(_bounds[-1], 3),
        _places,
    )
for _order in ([0], [1, 0], [2, 0, 1], [3, 1, 0, 2], []):
    sample(
        "parity",
        lambda x: apply("parity", x),
        lambda x: np.int64(np.round(np.linalg.det(np.eye(len(x))[x]))),
        np.array(_order, np.int64),
    )


# -- functions in Python -----------------------------------------------------------------
def _sorted_and_last(x: Array) -> tuple[Array, Array]:
    made = np.sort(x, axis=None)
    return made, made[-1]


for _shape in ((5, 3), (1,)):
    sample(
        "callback",
        lambda x: ost.callback(
            _sorted_and_last, (ost.spec(x.size, x.dtype), ost.spec((), x.dtype)), x
        ),
        _sorted_and_last,
        normal(*_shape),
    )


sample(
    "print",
    lambda x: apply(
        "print", apply("constant", value=False, dtype=np.dtype(bool)), x, text="{0:.1f}"
    ),
    lambda x: np.asarray(False),
    normal(3),
)


# -- control flow --------------------------------------------------------------------------
def _scanned(c: Array, xs: Array, reverse: bool) -> Any:
    ys = np.empty_like(xs)
    for k in reversed(range(len(xs))) if reverse else range(len(xs)):
        ys[k], c = c * xs[k], c + xs[k]
    return c, ys


for _trips in (0, 1, 2, 5):
    sample(
        "loop",
        lambda x, n=_trips: ost.repeat(n, lambda s: s * 0.5 + 1, x),
        lambda x, n=_trips: x * 0.5**n + 2 * (1 - 0.5**n),
        normal(5, 3),
    )
for _down in (False, True):
    sample(
        "loop",
        lambda c, xs, r=_down: ost.scan(lambda s, x: (s + x, s * x), c, xs, reverse=r),
        partial(_scanned, reverse=_down),
        normal(3),
        normal(4, 3),
    )
sample(
    "while",
    lambda x: ost.while_loop(lambda s: (s * s).sum() < 100, lambda s: s * 2, x),
    lambda x: x * 2.0 ** max(0, math.ceil(math.log2(10 / math.sqrt((x * x).sum())))),
    normal(5, 2),
)
sample(
    "while",
    lambda x: ost.while_loop(lambda s: s.sum() < 1e9, lambda s: s + 1, x, most=3),
    lambda x: x + 3,
    normal(5),
)
for _flag in (True, False):
    sample(
        "branch",
        lambda c, x: ost.cond(c, lambda x: x * 2, lambda x: x.sum(0) + x * 0, x),
        lambda c, x: x * 2 if c else x.sum(0) + x * 0,
        np.array(_flag),
        normal(5, 3),
    )
sample(
    "conv",
    lambda x, w: ost.nn.conv(x, w, stride=(2, 1), padding=((1, 0), (0, 2)), groups=2),
    lambda x, w: windows_by_numpy.conv(x, w, (2, 1), ((1, 0), (0, 2)), (1, 1), 2),
    normal(2, 4, 7, 5),
    normal(4, 2, 3, 2),
)
sample(
    "ordered_conv",
    lambda x, w: apply(
        "ordered_conv", x, w, **dict.fromkeys(("strides", "dilation", "every"), (1, 1)),
        offsets=(-1, 0), extents=(6, 6),
    ),
    lambda x, w: np.moveaxis(
        windows_by_numpy.conv(
            np.moveaxis(x[..., 0, :], -1, 1), np.moveaxis(w[..., 0, :], (3, 2), (0, 1)),
            (1, 1), ((1, 0), (0, 2)), (1, 1),
        ), 1, -1,
    )[..., None, :],
    normal(2, 7, 5, 1, 4),
    normal(3, 2, 4, 1, 3),
)  # fmt: skip
for _op, _by in (("max", np.max), ("avg", np.mean)):
    sample(
        f"{_op.replace('avg', 'sum')}_pool",
        lambda x, o=_op: getattr(ost.nn, f"{o}_pool")(x, (3, 2), stride=(2, 1)),
        lambda x, by=_by: windows_by_numpy.pool(
            x, by, (3, 2), (2, 1), ((0, 0),) * 2, (1, 1), (3, 4)
        ),
        normal(2, 3, 7, 5),
    )
sample(
    "matching_pool",
    lambda x: ost.grad(lambda x: (ost.nn.max_pool(x, 2) * 3).sum())(x),
    lambda x: 3.0 * (x == np.repeat(x.reshape(2, 3, -1, 2).max(-1), 2, -1)),
    normal(2, 3, 8),
)
