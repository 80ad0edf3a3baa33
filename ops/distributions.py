"""Random numbers of other distributions, made of uniform and normal ones, and of draws that take a few
tries (ops/jit/rejection.py). An element's number decides on all that is drawn for it, so no layout and
no number of workers changes a bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from .contraction import matmul
from .core.array import Array, Operandish, Split, apply, as_array, weak_kind
from .core.parameters import unfit, wrong_number
from .core.registry import op, stream_cost
from .core.spec import (
    DType,
    DTypeLike,
    Shape,
    ShapeLike,
    Spec,
    float32,
    float64,
    int64,
    promote,
    uint64,
)
from .core.user_line import misfit
from .creation import ANYWHERE, as_shape, iota, placed
from .draws import _DIGITS, _float_dtype, _unit, asked, integers, normal, permutation, sorted_out
from .elementwise import (
    astype,
    broadcast,
    ceil,
    clip,
    exp,
    expm1,
    less,
    log,
    log1p,
    maximum,
    minimum,
    sqrt,
    tan,
    where,
)
from .jit.arrays import by_formula
from .reduction import cumulative_sum, sum
from .seeds import as_seed, fold
from .shape import axis_of, broadcast_to, expand_dims, matrix_transpose, stack, whole_number
from .sorting import argsort, searchsorted
from .special_functions import _gamma_density, _gammainc_by_a

Count = int | np.integer[Any]


def _size(name: str, shape: Any, *parameters: Array) -> Shape:
    """The shape that was asked for, to which the parameters broadcast; theirs if none was."""
    own = broadcast(name, *(x.shape for x in parameters))
    if shape is None:
        return own
    size = as_shape(shape)
    if broadcast(name, size, own) != size:
        raise misfit(ShapeError, name, got=f"shape {size}", needed=f"one that {own} broadcasts to")
    return size


def _open(
    stream: str, parameters: Sequence[Operandish], shape: Any, dtype: Any, seed: Any
) -> tuple[DType, list[Array], Array]:
    """What is to be returned, the parameters in the dtype that is computed in, and numbers from
    (0, 1)."""
    kind = _float_dtype(dtype)
    work = promote(kind, float32)
    given = [astype(as_array(x), work) for x in parameters]
    u = _unit(_size(stream, shape, *given), stream, seed, work, ANYWHERE, open_below=True)
    return kind, given, clip(u, None, 1 - 2.0 ** -_DIGITS[work])


# -- by the inverse of a distribution --------------------------------------------------------
def exponential(
    scale: Operandish = 1.0,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the exponential distribution.

    >>> ost.random.exponential(2.0, (3,), seed=7)
    Array([0.9135, 4.3328, 5.8624], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (scale,), u = _open("exponential", [scale], shape, dtype, seed)
    return placed(astype(-scale * log(u), kind), split)


def laplace(
    loc: Operandish = 0.0,
    scale: Operandish = 1.0,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the Laplace distribution.

    >>> ost.random.laplace(0.0, 1.0, (3,), seed=7)
    Array([0.1586, 0.0919, 0.7616], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (loc, scale), u = _open("laplace", [loc, scale], shape, dtype, seed)
    lower = less(u, 0.5)
    tail = log(2 * where(lower, u, 1 - u))
    return placed(astype(loc + scale * where(lower, tail, -tail), kind), split)


def logistic(
    loc: Operandish = 0.0,
    scale: Operandish = 1.0,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the logistic distribution.

    >>> ost.random.logistic(0.0, 1.0, (3,), seed=7)
    Array([ 2.3403, -0.8433,  0.5327], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (loc, scale), u = _open("logistic", [loc, scale], shape, dtype, seed)
    return placed(astype(loc + scale * (log(u) - log1p(-u)), kind), split)


def gumbel(
    loc: Operandish = 0.0,
    scale: Operandish = 1.0,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the Gumbel distribution.

    >>> ost.random.gumbel(0.0, 1.0, (3,), seed=7)
    Array([ 1.1164, -0.21  ,  2.1664], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (loc, scale), u = _open("gumbel", [loc, scale], shape, dtype, seed)
    return placed(astype(loc - scale * log(-log(u)), kind), split)


def cauchy(
    loc: Operandish = 0.0,
    scale: Operandish = 1.0,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the Cauchy distribution.

    >>> ost.random.cauchy(0.0, 1.0, (3,), seed=7)
    Array([ 1.0236, -0.2327, -0.5634], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (loc, scale), u = _open("cauchy", [loc, scale], shape, dtype, seed)
    return placed(astype(loc + scale * tan(math.pi * (u - 0.5)), kind), split)


def pareto(
    a: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the Pareto distribution II (Lomax), as NumPy's.

    >>> ost.random.pareto(3.0, (3,), seed=7)
    Array([0.1645, 1.0588, 1.6567], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (a,), u = _open("exponential", [a], shape, dtype, seed)
    return placed(astype(expm1(-log(u) / a), kind), split)


def power(
    a: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers from [0, 1] with density a x**(a - 1).

    >>> ost.random.power(3.0, (3,), seed=7)
    Array([0.8588, 0.4857, 0.3764], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (a,), u = _open("exponential", [a], shape, dtype, seed)
    return placed(astype(exp(log(u) / a), kind), split)


def weibull(
    a: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the Weibull distribution of scale 1.

    >>> ost.random.weibull(1.5, (3,), seed=7)
    Array([0.5931, 1.6743, 2.0482], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (a,), u = _open("exponential", [a], shape, dtype, seed)
    return placed(astype((-log(u)) ** (1 / a), kind), split)


def rayleigh(
    scale: Operandish = 1.0,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the Rayleigh distribution.

    >>> ost.random.rayleigh(1.0, (3,), seed=7)
    Array([0.9558, 2.0815, 2.4212], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (scale,), u = _open("exponential", [scale], shape, dtype, seed)
    return placed(astype(scale * sqrt(-2 * log(u)), kind), split)


def triangular(
    left: Operandish,
    mode: Operandish,
    right: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers whose density is a triangle over [left, right].

    >>> ost.random.triangular(0.0, 1.0, 4.0, (3,), seed=7)
    Array([1.3828, 0.8352, 0.5373], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, (left, mode, right), u = _open("triangular", [left, mode, right], shape, dtype, seed)
    whole = right - left
    rising = less(u * whole, mode - left)
    below = left + sqrt(u * whole * (mode - left))
    above = right - sqrt((1 - u) * whole * (right - mode))
    return placed(astype(where(rising, below, above), kind), split)


def lognormal(
    mean: Operandish = 0.0,
    sigma: Operandish = 1.0,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """exp of normally distributed numbers.

    >>> ost.random.lognormal(0.0, 1.0, (3,), seed=7)
    Array([1.2275, 0.7569, 1.2225], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind = _float_dtype(dtype)
    work = promote(kind, float32)
    mean, sigma = (astype(as_array(x), work) for x in (mean, sigma))
    x = normal(_size("lognormal", shape, mean, sigma), dtype=work, seed=seed)
    return placed(astype(exp(mean + sigma * x), kind), split)


def geometric(
    p: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """How many tries it takes, each of which succeeds with probability p.

    >>> ost.random.geometric(0.5, (3,), seed=7)
    Array([2, 1, 1], dtype=int64)
    """
    shape = shape if size is None else size
    _, (p,), u = _open("geometric", [p], shape, float64, seed)
    tries = maximum(ceil(log(u) / log1p(-p)), 1)
    return placed(astype(where(p >= 1, 1, tries), dtype), split)


# -- by a few tries --------------------------------------------------------------------------
def _register(name: str, count: int, grad: Callable[..., Any] | None = None) -> None:
    def infer(*xs: Spec, **params: Any) -> Spec:
        if len(xs) != count or params:
            raise wrong_number(name, xs, count, params)
        seed, index, *given = xs
        dtypes = {x.dtype for x in given}
        if seed.dtype != uint64 or index.dtype != int64:
            raise unfit(name, xs, "seeds uint64, numbers of elements int64, and parameters")
        if len(dtypes) != 1 or not dtypes <= {float32, float64}:
            raise unfit(name, xs, "parameters in float32 or float64", DTypeError)
        return Spec(broadcast(name, *(x.shape for x in xs)), given[0].dtype)

    words = ", ".join(f"{{{k}}}" for k in range(count))
    op(
        name,
        infer=infer,
        kernel=by_formula(name),
        grad=grad,
        scalar=f"{name}({words})",
        cost=stream_cost(400),
    )


def _gamma_grad(g: Array, y: Array, seed: Array, index: Array, a: Array) -> Sequence[Array | None]:
    """By the shape, where the share of the distribution below a number stays what it is."""
    return None, None, -g * _gammainc_by_a(a, y) / _gamma_density(a, y)


_register("gamma_draw", 3, _gamma_grad)
_register("poisson_draw", 3)
_register("binomial_draw", 4)
_register("hypergeometric_draw", 5)
_register("vonmises_draw", 3)
_register("zipf_draw", 3)


def numbers_of(shape: Shape) -> Array:
    """Each element's number among all."""
    found = None
    for d in range(len(shape)):
        part = iota(shape, d) * math.prod(shape[d + 1 :])
        found = part if found is None else found + part
    return as_array(np.int64(0)) if found is None else found


def tried(name: str, seed: Any, shape: Shape, *parameters: Array) -> Array:
    return apply(name, as_seed(seed), numbers_of(shape), *parameters)


@overload
def gamma(
    a: Operandish,
    shape: ShapeLike | None = None,
    *,
    scale: Operandish = 1.0,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array: ...
@overload
def gamma(
    a: Operandish,
    scale: Operandish = 1.0,
    size: ShapeLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array: ...
def gamma(
    a: Any = None,
    *given: Any,
    scale: Any = None,
    size: Any = None,
    shape: Any = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the gamma distribution of shape a (Marsaglia and Tsang); they have gradients by a.
    NumPy's `gamma(a, scale, size)` is float64, as there.

    >>> ost.random.gamma(2.0, (3,), seed=7)
    Array([2.1726, 0.6283, 2.5345], dtype=float32)
    >>> ost.random.gamma(2.0, 1.0, 3, seed=7)
    Array([2.1726, 0.6283, 2.5345], dtype=float64)
    """
    if a is None:  # as NumPy calls it
        a, shape = shape, None
    shape, dtype, (scale,) = sorted_out("gamma", given, shape, size, dtype, (scale,), (1.0,))
    kind = _float_dtype(dtype)
    work = promote(kind, float32)
    a, scale = (astype(as_array(x), work) for x in (a, scale))
    x = tried("gamma_draw", seed, _size("gamma", shape, a, scale), a)
    return placed(astype(x * scale, kind), split)


def chisquare(
    df: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Sums of squares of df normally distributed numbers.

    >>> ost.random.chisquare(3.0, (3,), seed=7)
    Array([3.1949, 0.6961, 3.8262], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    half = as_array(df) * 0.5
    return gamma(half, shape, scale=2.0, dtype=dtype, seed=seed, split=split)


def beta(
    a: Operandish,
    b: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the beta distribution.

    >>> ost.random.beta(2.0, 3.0, (3,), seed=7)
    Array([0.5356, 0.1461, 0.1813], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind = _float_dtype(dtype)
    a, b = (astype(as_array(x), float64) for x in (a, b))
    size, seed = _size("beta", shape, a, b), as_seed(seed)
    x = tried("gamma_draw", seed, size, a)
    y = tried("gamma_draw", fold(seed, 1), size, b)
    return placed(astype(x / (x + y), kind), split)


def f(
    dfnum: Operandish,
    dfden: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the F distribution.

    >>> ost.random.f(3.0, 5.0, (3,), seed=7)
    Array([1.8118, 0.1882, 0.3031], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind = _float_dtype(dtype)
    m, n = (astype(as_array(x), float64) for x in (dfnum, dfden))
    size, seed = _size("f", shape, m, n), as_seed(seed)
    x = tried("gamma_draw", seed, size, m * 0.5) / m
    y = tried("gamma_draw", fold(seed, 1), size, n * 0.5) / n
    return placed(astype(x / y, kind), split)


def standard_t(
    df: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of Student's t distribution.

    >>> ost.random.standard_t(5.0, (3,), seed=7)
    Array([-1.8959,  0.0195, -0.0526], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind = _float_dtype(dtype)
    n = astype(as_array(df), promote(kind, float32))
    size, seed = _size("standard_t", shape, n), as_seed(seed)
    half = n * 0.5
    spread = sqrt(half / tried("gamma_draw", seed, size, half))
    x = normal(size, dtype=n.dtype, seed=fold(seed, 1)) * spread
    return placed(astype(x, kind), split)


def dirichlet(
    alpha: Operandish,
    shape: ShapeLike = (),
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Shares that add up to 1, along a last axis as long as alpha's.

    >>> ost.random.dirichlet([1.0, 2.0, 3.0], (2,), seed=7).sum(axis=1)
    Array([1., 1.], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind = _float_dtype(dtype)
    a = astype(as_array(alpha), float64)
    if a.ndim < 1:
        raise misfit(ShapeError, "dirichlet", got=f"{a.spec.bare}", needed="one axis or more")
    size = (*_size("dirichlet", shape, a[..., 0]), a.shape[-1])
    x = tried("gamma_draw", seed, size, a)
    return placed(astype(x / sum(x, axis=-1, keepdims=True), kind), split)


def poisson(
    lam: Operandish = 1.0,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Counts of independent events, of which lam are expected.

    >>> ost.random.poisson(4.0, (3,), seed=7)
    Array([5, 6, 6], dtype=int64)
    """
    shape = shape if size is None else size
    mean = astype(as_array(lam), float64)
    return placed(
        astype(tried("poisson_draw", seed, _size("poisson", shape, mean), mean), dtype), split
    )


def binomial(
    n: Operandish,
    p: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """How many of n tries succeed, each with probability p.

    >>> ost.random.binomial(10, 0.5, (3,), seed=7)
    Array([6, 4, 3], dtype=int64)
    """
    shape = shape if size is None else size
    count, share = (astype(as_array(x), float64) for x in (n, p))
    size = _size("binomial", shape, count, share)
    return placed(astype(tried("binomial_draw", seed, size, count, share), dtype), split)


def hypergeometric(
    ngood: Operandish,
    nbad: Operandish,
    nsample: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """How many good ones are among nsample that are taken, without putting any back, out of ngood good
    and nbad bad ones, up to 10**9 in all.

    >>> ost.random.hypergeometric(5, 5, 4, (3,), seed=7)
    Array([1, 2, 1], dtype=int64)
    """
    shape = shape if size is None else size
    given = [astype(as_array(x), float64) for x in (ngood, nbad, nsample)]
    size = _size("hypergeometric", shape, *given)
    return placed(astype(tried("hypergeometric_draw", seed, size, *given), dtype), split)


def negative_binomial(
    n: Operandish,
    p: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """How many tries fail before n succeed, each with probability p.

    >>> ost.random.negative_binomial(3, 0.5, (3,), seed=7)
    Array([2, 3, 3], dtype=int64)
    """
    shape = shape if size is None else size
    count, share = (astype(as_array(x), float64) for x in (n, p))
    size, seed = _size("negative_binomial", shape, count, share), as_seed(seed)
    mean = tried("gamma_draw", seed, size, count) * ((1 - share) / share)
    return placed(astype(tried("poisson_draw", fold(seed, 1), size, mean), dtype), split)


def multinomial(
    n: Operandish,
    pvals: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """How many of n tries give each result, whose probabilities are `pvals` along their last axis: one
    binomial draw after the other.

    >>> ost.random.multinomial(10, [0.2, 0.3, 0.5], (2,), seed=7)
    Array([[3, 4, 3],
           [3, 1, 6]], dtype=int64)
    """
    shape = shape if size is None else size
    left, p = (astype(as_array(x), float64) for x in (n, pvals))
    if p.ndim < 1 or not p.shape[-1]:
        raise misfit(
            ShapeError, "multinomial", got=f"{p.spec.bare}", needed="one probability or more"
        )
    size, seed = _size("multinomial", shape, left, p[..., 0]), as_seed(seed)
    left = broadcast_to(left, size)
    rest: Array = sum(p, axis=-1)
    found = []
    for k in range(p.shape[-1] - 1):
        share = clip(where(rest > 0, p[..., k] / where(rest > 0, rest, 1), 0), 0, 1)
        here = tried("binomial_draw", fold(seed, k), size, left, share)
        found.append(here)
        left, rest = left - here, rest - p[..., k]
    return placed(astype(stack([*found, left], axis=-1), dtype), split)


# -- of several numbers ----------------------------------------------------------------------
def multivariate_normal(
    mean: Operandish,
    cov: Operandish,
    shape: ShapeLike = (),
    *,
    size: ShapeLike | None = None,
    method: str = "cholesky",
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Normally distributed vectors with a mean and covariances; `method="eigh"` takes those that have
    no Cholesky factor, too.

    >>> ost.random.multivariate_normal([0.0, 5.0], [[1.0, 0.5], [0.5, 2.0]], (2,), seed=7).shape
    (2, 2)
    """
    shape, dtype = asked(shape, size, dtype)
    from .linalg import cholesky, eigh

    if method not in ("cholesky", "eigh", "svd"):
        raise misfit(
            ArgumentError,
            "multivariate_normal",
            got=f"method={method!r}",
            needed="'cholesky', 'eigh' or 'svd'",
        )
    kind = _float_dtype(dtype)
    work = promote(kind, float32)
    centre, cov = (astype(as_array(x), work) for x in (mean, cov))
    if centre.ndim < 1 or cov.ndim < 2 or cov.shape[-2:] != (centre.shape[-1],) * 2:
        raise misfit(
            ShapeError,
            "multivariate_normal",
            got=f"mean {centre.shape}, cov {cov.shape}",
            needed="a vector of n numbers and a matrix of n times n",
        )
    if method == "cholesky":
        factor = cholesky(cov)
    else:
        values, vectors = eigh(cov)
        factor = vectors * expand_dims(sqrt(maximum(values, 0)), axis=-2)
    outer = broadcast("multivariate_normal", centre.shape[:-1], cov.shape[:-2])
    size = broadcast("multivariate_normal", as_shape(shape), outer)
    x = normal((*size, centre.shape[-1]), dtype=work, seed=seed)
    if cov.ndim == 2:
        x = matmul(x if x.ndim > 1 else expand_dims(x, axis=0), matrix_transpose(factor))
        x = x if size else x[0]
    else:
        x = matmul(factor, expand_dims(x, axis=-1))[..., 0]
    return placed(astype(x + centre, kind), split)


def choice(
    a: Count | Operandish,
    shape: ShapeLike = (),
    replace: bool = True,
    p: Operandish | None = None,
    *,
    size: ShapeLike | None = None,
    axis: int = 0,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Some of the numbers below a, or of an array's slices along an axis, with probabilities p if they
    are given; without `replace` each at most once. `ost.random.choice(5, (3,), replace=False)`.

    Drawn with replacement, an element depends on its own words alone. Without, all keys are sorted: by
    Efraimidis and Spirakis, exponential ones over p.

    >>> ost.random.choice(5, (3,), replace=False, seed=7)
    Array([2, 1, 0], dtype=int64)
    """
    shape = shape if size is None else size
    if weak_kind(a) is int or isinstance(a, np.integer):
        source, count = None, whole_number(a, "choice")
    else:
        source = as_array(a)
        axis = axis_of(axis, source.ndim, "choice")
        count = source.shape[axis]
    size = as_shape(shape)
    many = math.prod(size)
    if count < 1 and many:
        raise misfit(ArgumentError, "choice", got="none to choose from", needed="one or more")
    if not replace and many > count:
        raise misfit(
            ArgumentError,
            "choice",
            got=f"{many} of {count} without replacement",
            needed="at most as many as there are",
        )
    share = None if p is None else astype(as_array(p), float64)
    if share is not None and share.shape != (count,):
        raise misfit(
            ShapeError,
            "choice",
            got=f"p {share.shape}",
            needed=f"probabilities of shape ({count},)",
        )
    if replace and share is None:
        places = integers(0, count, size, seed=seed) if count else iota(size, 0)
    elif replace and share is not None:
        ends = cumulative_sum(share)
        u = _unit(size, "choice", seed, float64, ANYWHERE) * ends[-1]
        places = minimum(searchsorted(ends, u, side="right"), count - 1)
    elif share is None:
        places = permutation(count, seed=seed)[:many].reshape(size)
    else:
        u = _unit((count,), "choice", seed, float64, ANYWHERE, open_below=True)
        places = argsort(-log(u) / share)[:many].reshape(size)
    if source is None:
        return placed(astype(places, int64), split)
    flat = apply("take", source, places.reshape(-1), axis=axis)
    return placed(flat.reshape((*source.shape[:axis], *size, *source.shape[axis + 1 :])), split)
