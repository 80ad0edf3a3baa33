"""Random numbers of other distributions, made of uniform and normal ones, and of draws that take a few
tries (ops/jit/rejection.py). An element's number decides on all that is drawn for it, so no layout and
no number of workers changes a bit.

One block each: parameters, and a sampler of what `Draw` has of a call. `distribution` makes of it the
function that users call; `Generator` (ops/random/generator.py) has the same as methods."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypedDict, Unpack, overload

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..array.arithmetic import ceil, clip, floor, maximum, minimum, remainder, sqrt
from ..array.casts import as_dtype, astype
from ..array.comparisons import less, less_equal
from ..array.concatenation import stack
from ..array.contraction import matmul
from ..array.creation import ANYWHERE, as_shape, iota, placed
from ..array.cumulative import cumulative_sum
from ..array.elementwise import broadcast, where
from ..array.reduction import sum
from ..array.shape import axis_of, broadcast_to, expand_dims, matrix_transpose, whole_number
from ..array.sorting import argsort, searchsorted
from ..array.transcendental import exp, expm1, log, log1p, tan
from ..core.apply import apply, as_array
from ..core.array import Array, weak_kind
from ..core.array_methods import Operandish
from ..core.operand import Split
from ..core.parameters import unfit, wrong_number
from ..core.registry import op, stream_cost
from ..core.spec import (
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
from ..core.user_line import misfit
from ..jit.arrays import formula_kernel
from ..special.special_functions import _gamma_density, _gammainc_by_a
from .draws import (
    _DIGITS,
    _float_dtype,
    _unit,
    asked,
    integers,
    normal,
    permutation,
    sorted_out,
    uniform,
)
from .seeds import as_seed, fold

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


Real = Operandish
Size = ShapeLike | None


class How(TypedDict, total=False):
    """What each draw takes by name: NumPy's `size` is `shape`, and comes with NumPy's dtypes."""

    size: Size
    dtype: DTypeLike | None
    seed: Any
    split: Split


@dataclass(frozen=True, slots=True)
class Draw:
    """A call: the parameters, in the dtype that is computed in, the result's shape and dtype, a seed."""

    given: list[Array]
    shape: Shape
    dtype: DType
    work: DType
    seed: Array

    def unit(self, stream: str = "exponential") -> Array:
        """Numbers from (0, 1)."""
        u = _unit(self.shape, stream, self.seed, self.work, ANYWHERE, open_below=True)
        return clip(u, None, 1 - 2.0 ** -_DIGITS[self.work])

    def unit_of(self, number: int) -> Array:
        """Numbers from (0, 1] of a seed of their own."""
        return 1.0 - uniform(self.shape, dtype=float64, seed=fold(self.seed, number))

    def normal(self, number: int | None = None) -> Array:
        seed = self.seed if number is None else fold(self.seed, number)
        return normal(self.shape, dtype=self.work, seed=seed)

    def tried(self, name: str, *parameters: Array, number: int | None = None) -> Array:
        seed = self.seed if number is None else fold(self.seed, number)
        return apply(f"{name}_draw", seed, numbers_of(self.shape), *parameters)


P = ParamSpec("P")
Sampler = Callable[Concatenate[Draw, P], Array]


def distribution(
    work: DType | None = None, whole: bool = False, vectors: Sequence[int] = ()
) -> Callable[[Sampler[P]], Callable[P, Array]]:
    """Make a function of a sampler's. `work`: the dtype it computes in, or that of the result, if that is
    wider than float32. `whole`: it makes whole numbers. Parameters that are vectors have a last axis that
    the shape is without."""

    def decorate(sampler: Sampler[P]) -> Callable[P, Array]:
        name = sampler.__name__
        signature = _signature(sampler, int64 if whole else None)

        @wraps(sampler)
        def drawn(*args: P.args, **kw: P.kwargs) -> Array:
            try:
                call = signature.bind(*args, **kw)
            except TypeError as wrong:
                raise TypeError(f"{name}(): {wrong}") from None
            call.apply_defaults()
            *given, shape, size, dtype, seed, split = call.arguments.values()
            if whole:
                shape, kind = shape if size is None else size, as_dtype(dtype)
            else:
                shape, dtype = asked(shape, size, dtype)
                kind = _float_dtype(dtype)
            found = work or promote(kind, float32)
            parameters = [astype(as_array(x), found) for x in given]
            for k in vectors:
                if parameters[k].ndim < 1:
                    got = f"{parameters[k].spec.bare}"
                    raise misfit(ShapeError, name, got=got, needed="one axis or more")
            own = [x[..., 0] if k in vectors else x for k, x in enumerate(parameters)]
            draw = Draw(parameters, _size(name, shape, *own), kind, found, as_seed(seed))
            return placed(astype(sampler(draw, *args, **kw), kind), split)

        drawn.__signature__ = signature  # type: ignore[attr-defined]
        return drawn

    return decorate


def _signature(sampler: Callable[..., Array], dtype: DType | None) -> inspect.Signature:
    """The parameters, the shape, and what each draw takes by name."""
    _, *given, _ = inspect.signature(sampler).parameters.values()
    by_name = inspect.Parameter.KEYWORD_ONLY
    defaults = {"dtype": dtype, "split": ANYWHERE}
    given += [
        inspect.Parameter(n, by_name, default=defaults.get(n), annotation=kind.__forward_arg__)
        for n, kind in How.__annotations__.items()
    ]
    return inspect.Signature(given, return_annotation="Array")


# -- by the inverse of a distribution --------------------------------------------------------
@distribution()
def exponential(draw: Draw, scale: Real = 1.0, shape: Size = None, **how: Unpack[How]) -> Array:
    """Numbers of the exponential distribution.

    >>> ost.random.exponential(2.0, (3,), seed=7)
    Array([0.9135, 4.3328, 5.8624], dtype=float32)
    """
    return -draw.given[0] * log(draw.unit())


@distribution()
def laplace(
    draw: Draw, loc: Real = 0.0, scale: Real = 1.0, shape: Size = None, **how: Unpack[How]
) -> Array:
    """Numbers of the Laplace distribution.

    >>> ost.random.laplace(0.0, 1.0, (3,), seed=7)
    Array([0.1586, 0.0919, 0.7616], dtype=float32)
    """
    (loc, scale), u = draw.given, draw.unit("laplace")
    lower = less(u, 0.5)
    tail = log(2 * where(lower, u, 1 - u))
    return loc + scale * where(lower, tail, -tail)


@distribution()
def logistic(
    draw: Draw, loc: Real = 0.0, scale: Real = 1.0, shape: Size = None, **how: Unpack[How]
) -> Array:
    """Numbers of the logistic distribution.

    >>> ost.random.logistic(0.0, 1.0, (3,), seed=7)
    Array([ 2.3403, -0.8433,  0.5327], dtype=float32)
    """
    (loc, scale), u = draw.given, draw.unit("logistic")
    return loc + scale * (log(u) - log1p(-u))


@distribution()
def gumbel(
    draw: Draw, loc: Real = 0.0, scale: Real = 1.0, shape: Size = None, **how: Unpack[How]
) -> Array:
    """Numbers of the Gumbel distribution.

    >>> ost.random.gumbel(0.0, 1.0, (3,), seed=7)
    Array([ 1.1164, -0.21  ,  2.1664], dtype=float32)
    """
    loc, scale = draw.given
    return loc - scale * log(-log(draw.unit("gumbel")))


@distribution()
def cauchy(
    draw: Draw, loc: Real = 0.0, scale: Real = 1.0, shape: Size = None, **how: Unpack[How]
) -> Array:
    """Numbers of the Cauchy distribution.

    >>> ost.random.cauchy(0.0, 1.0, (3,), seed=7)
    Array([ 1.0236, -0.2327, -0.5634], dtype=float32)
    """
    loc, scale = draw.given
    return loc + scale * tan(math.pi * (draw.unit("cauchy") - 0.5))


@distribution()
def pareto(draw: Draw, a: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Numbers of the Pareto distribution II (Lomax), as NumPy's.

    >>> ost.random.pareto(3.0, (3,), seed=7)
    Array([0.1645, 1.0588, 1.6567], dtype=float32)
    """
    return expm1(-log(draw.unit()) / draw.given[0])


@distribution()
def power(draw: Draw, a: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Numbers from [0, 1] with density a x**(a - 1).

    >>> ost.random.power(3.0, (3,), seed=7)
    Array([0.8588, 0.4857, 0.3764], dtype=float32)
    """
    return exp(log(draw.unit()) / draw.given[0])


@distribution()
def weibull(draw: Draw, a: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Numbers of the Weibull distribution of scale 1.

    >>> ost.random.weibull(1.5, (3,), seed=7)
    Array([0.5931, 1.6743, 2.0482], dtype=float32)
    """
    return (-log(draw.unit())) ** (1 / draw.given[0])


@distribution()
def rayleigh(draw: Draw, scale: Real = 1.0, shape: Size = None, **how: Unpack[How]) -> Array:
    """Numbers of the Rayleigh distribution.

    >>> ost.random.rayleigh(1.0, (3,), seed=7)
    Array([0.9558, 2.0815, 2.4212], dtype=float32)
    """
    return draw.given[0] * sqrt(-2 * log(draw.unit()))


@distribution()
def triangular(
    draw: Draw, left: Real, mode: Real, right: Real, shape: Size = None, **how: Unpack[How]
) -> Array:
    """Numbers whose density is a triangle over [left, right].

    >>> ost.random.triangular(0.0, 1.0, 4.0, (3,), seed=7)
    Array([1.3828, 0.8352, 0.5373], dtype=float32)
    """
    (left, mode, right), u = draw.given, draw.unit("triangular")
    whole = right - left
    rising = less(u * whole, mode - left)
    below = left + sqrt(u * whole * (mode - left))
    above = right - sqrt((1 - u) * whole * (right - mode))
    return where(rising, below, above)


@distribution()
def lognormal(
    draw: Draw, mean: Real = 0.0, sigma: Real = 1.0, shape: Size = None, **how: Unpack[How]
) -> Array:
    """exp of normally distributed numbers.

    >>> ost.random.lognormal(0.0, 1.0, (3,), seed=7)
    Array([1.2275, 0.7569, 1.2225], dtype=float32)
    """
    mean, sigma = draw.given
    return exp(mean + sigma * draw.normal())


@distribution(work=float64, whole=True)
def geometric(draw: Draw, p: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """How many tries it takes, each of which succeeds with probability p.

    >>> ost.random.geometric(0.5, (3,), seed=7)
    Array([2, 1, 1], dtype=int64)
    """
    (p,), u = draw.given, draw.unit("geometric")
    return where(p >= 1, 1, maximum(ceil(log(u) / log1p(-p)), 1))


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
        kernel=formula_kernel(name),
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
    size = _size("gamma", shape, a, scale)
    x = apply("gamma_draw", as_seed(seed), numbers_of(size), a)
    return placed(astype(x * scale, kind), split)


@distribution()
def chisquare(draw: Draw, df: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Sums of squares of df normally distributed numbers.

    >>> ost.random.chisquare(3.0, (3,), seed=7)
    Array([3.1949, 0.6961, 3.8262], dtype=float32)
    """
    return draw.tried("gamma", draw.given[0] * 0.5) * 2.0


@distribution(work=float64)
def beta(draw: Draw, a: Real, b: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Numbers of the beta distribution.

    >>> ost.random.beta(2.0, 3.0, (3,), seed=7)
    Array([0.5356, 0.1461, 0.1813], dtype=float32)
    """
    a, b = draw.given
    x = draw.tried("gamma", a)
    return x / (x + draw.tried("gamma", b, number=1))


@distribution(work=float64)
def f(draw: Draw, dfnum: Real, dfden: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Numbers of the F distribution.

    >>> ost.random.f(3.0, 5.0, (3,), seed=7)
    Array([1.8118, 0.1882, 0.3031], dtype=float32)
    """
    m, n = draw.given
    x = draw.tried("gamma", m * 0.5) / m
    return x / (draw.tried("gamma", n * 0.5, number=1) / n)


@distribution()
def standard_t(draw: Draw, df: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Numbers of Student's t distribution.

    >>> ost.random.standard_t(5.0, (3,), seed=7)
    Array([-1.8959,  0.0195, -0.0526], dtype=float32)
    """
    half = draw.given[0] * 0.5
    spread = sqrt(half / draw.tried("gamma", half))
    return draw.normal(1) * spread


@distribution(work=float64)
def vonmises(draw: Draw, mu: Real, kappa: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Angles from [-pi, pi] around mu, as near to it as kappa says (Best and Fisher).

    >>> ost.random.vonmises(0.0, 4.0, (3,), seed=7)
    Array([ 0.3021, -0.0266,  0.6078], dtype=float32)
    """
    middle, k = draw.given
    angle = middle + draw.tried("vonmises", k)
    return remainder(angle + math.pi, 2 * math.pi) - math.pi


@distribution(work=float64)
def wald(draw: Draw, mean: Real, scale: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Numbers of the inverse Gaussian distribution.

    >>> ost.random.wald(1.0, 2.0, (3,), seed=7)
    Array([1.0522, 0.4449, 0.7891], dtype=float32)
    """
    m, s = draw.given
    n = draw.normal(1)
    y = m * n * n / (2.0 * s)
    x = m / (1.0 + y + sqrt(y * (2.0 + y)))  # the smaller root, without cancellation
    return where(less_equal(draw.unit_of(2), m / (m + x)), x, m * m / x)


@distribution(work=float64)
def noncentral_chisquare(
    draw: Draw, df: Real, nonc: Real, shape: Size = None, **how: Unpack[How]
) -> Array:
    """Sums of squares of df normally distributed numbers whose squared means add up to nonc.

    >>> ost.random.noncentral_chisquare(3.0, 2.0, (3,), seed=7)
    Array([6.1099, 7.3551, 1.5416], dtype=float32)
    """
    d, extra = draw.given
    more = poisson(extra / 2.0, draw.shape, seed=fold(draw.seed, 1))
    seed = fold(draw.seed, 2)
    return chisquare(d + 2.0 * more, draw.shape, dtype=draw.dtype, seed=seed)


@distribution(work=float64)
def noncentral_f(
    draw: Draw, dfnum: Real, dfden: Real, nonc: Real, shape: Size = None, **how: Unpack[How]
) -> Array:
    """Numbers of the F distribution whose numerator's squared means add up to nonc.

    >>> ost.random.noncentral_f(3.0, 5.0, 2.0, (3,), seed=7).shape
    (3,)
    """
    m, n, extra = draw.given
    size, seeds = draw.shape, [fold(draw.seed, k) for k in (3, 4)]
    above = noncentral_chisquare(m, extra, size, dtype=float64, seed=seeds[0]) / m
    return above / (chisquare(n, size, dtype=float64, seed=seeds[1]) / n)


@distribution(work=float64, whole=True)
def poisson(draw: Draw, lam: Real = 1.0, shape: Size = None, **how: Unpack[How]) -> Array:
    """Counts of independent events, of which lam are expected.

    >>> ost.random.poisson(4.0, (3,), seed=7)
    Array([5, 6, 6], dtype=int64)
    """
    return draw.tried("poisson", *draw.given)


@distribution(work=float64, whole=True)
def binomial(draw: Draw, n: Real, p: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """How many of n tries succeed, each with probability p.

    >>> ost.random.binomial(10, 0.5, (3,), seed=7)
    Array([6, 4, 3], dtype=int64)
    """
    return draw.tried("binomial", *draw.given)


@distribution(work=float64, whole=True)
def hypergeometric(
    draw: Draw, ngood: Real, nbad: Real, nsample: Real, shape: Size = None, **how: Unpack[How]
) -> Array:
    """How many good ones are among nsample that are taken, without putting any back, out of ngood good
    and nbad bad ones, up to 10**9 in all.

    >>> ost.random.hypergeometric(5, 5, 4, (3,), seed=7)
    Array([1, 2, 1], dtype=int64)
    """
    return draw.tried("hypergeometric", *draw.given)


@distribution(work=float64, whole=True)
def zipf(draw: Draw, a: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Whole numbers k of probabilities in the ratio of k**-a, for a > 1 (Devroye).

    >>> ost.random.zipf(2.0, (4,), seed=7)
    Array([1, 4, 1, 1], dtype=int64)
    """
    return draw.tried("zipf", *draw.given)


@distribution(work=float64, whole=True)
def negative_binomial(
    draw: Draw, n: Real, p: Real, shape: Size = None, **how: Unpack[How]
) -> Array:
    """How many tries fail before n succeed, each with probability p.

    >>> ost.random.negative_binomial(3, 0.5, (3,), seed=7)
    Array([2, 3, 3], dtype=int64)
    """
    count, share = draw.given
    mean = draw.tried("gamma", count) * ((1 - share) / share)
    return draw.tried("poisson", mean, number=1)


@distribution(work=float64, whole=True)
def logseries(draw: Draw, p: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Whole numbers k of probabilities in the ratio of p**k / k (Kemp).

    >>> ost.random.logseries(0.6, (4,), seed=7)
    Array([1, 1, 2, 1], dtype=int64)
    """
    (p,), v = draw.given, draw.unit_of(2)
    q = -expm1(log1p(-p) * draw.unit_of(1))
    large = floor(1.0 + log(v) / log(q))
    return where(less_equal(v, q * q), large, where(less_equal(v, q), 2.0, 1.0))


# -- of several numbers ----------------------------------------------------------------------
@distribution(work=float64, vectors=[0])
def dirichlet(draw: Draw, alpha: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """Shares that add up to 1, along a last axis as long as alpha's.

    >>> ost.random.dirichlet([1.0, 2.0, 3.0], (2,), seed=7).sum(axis=1)
    Array([1., 1.], dtype=float32)
    """
    (a,) = draw.given
    size = (*draw.shape, a.shape[-1])
    x = apply("gamma_draw", draw.seed, numbers_of(size), a)
    return x / sum(x, axis=-1, keepdims=True)


@distribution(vectors=[1], work=float64, whole=True)
def multinomial(draw: Draw, n: Real, pvals: Real, shape: Size = None, **how: Unpack[How]) -> Array:
    """How many of n tries give each result, whose probabilities are `pvals` along their last axis: one
    binomial draw after the other.

    >>> ost.random.multinomial(10, [0.2, 0.3, 0.5], (2,), seed=7)
    Array([[3, 4, 3],
           [3, 1, 6]], dtype=int64)
    """
    left, p = draw.given
    if not p.shape[-1]:
        got = f"{p.spec.bare}"
        raise misfit(ShapeError, "multinomial", got=got, needed="one probability or more")
    left = broadcast_to(left, draw.shape)
    rest: Array = sum(p, axis=-1)
    found = []
    for k in range(p.shape[-1] - 1):
        share = clip(where(rest > 0, p[..., k] / where(rest > 0, rest, 1), 0), 0, 1)
        found.append(draw.tried("binomial", left, share, number=k))
        left, rest = left - found[-1], rest - p[..., k]
    return stack([*found, left], axis=-1)


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
    from ..linalg import cholesky, eigh

    if method not in ("cholesky", "eigh", "svd"):
        needed = "'cholesky', 'eigh' or 'svd'"
        raise misfit(ArgumentError, "multivariate_normal", got=f"method={method!r}", needed=needed)
    kind = _float_dtype(dtype)
    work = promote(kind, float32)
    centre, cov = (astype(as_array(x), work) for x in (mean, cov))
    if centre.ndim < 1 or cov.ndim < 2 or cov.shape[-2:] != (centre.shape[-1],) * 2:
        got = f"mean {centre.shape}, cov {cov.shape}"
        needed = "a vector of n numbers and a matrix of n times n"
        raise misfit(ShapeError, "multivariate_normal", got=got, needed=needed)
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
        got = f"{many} of {count} without replacement"
        raise misfit(ArgumentError, "choice", got=got, needed="at most as many as there are")
    share = None if p is None else astype(as_array(p), float64)
    if share is not None and share.shape != (count,):
        got = f"p {share.shape}"
        raise misfit(ShapeError, "choice", got=got, needed=f"probabilities of shape ({count},)")
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
