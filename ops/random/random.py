"""Random numbers (`ost.random`): the same for any number of workers and any layout.

A call without a seed goes on with the process's own sequence; with one, it draws the same numbers each
time. Numbers are float32, unless `dtype=` says otherwise or the call is in NumPy's form: by `size=`,
as `normal(loc, scale, size)`, or by one of its older names (`rand`). `default_rng` has NumPy's names,
orders of arguments and dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..array.creation import ANYWHERE
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.operand import Split
from ..core.spec import DTypeLike, ShapeLike, float64, int64
from ..core.spelling import missing
from .distributions import (
    beta,
    binomial,
    cauchy,
    chisquare,
    choice,
    dirichlet,
    exponential,
    f,
    gamma,
    geometric,
    gumbel,
    hypergeometric,
    laplace,
    logistic,
    lognormal,
    logseries,
    multinomial,
    multivariate_normal,
    negative_binomial,
    noncentral_chisquare,
    noncentral_f,
    pareto,
    poisson,
    power,
    rayleigh,
    standard_t,
    triangular,
    vonmises,
    wald,
    weibull,
    zipf,
)
from .draws import (
    bernoulli,
    categorical,
    integers,
    normal,
    permutation,
    permuted,
    seed,
    shuffle,
    uniform,
)
from .generator import Generator, RandomState, default_rng
from .seeds import fold

__all__ = [
    "Generator",
    "RandomState",
    "bernoulli",
    "beta",
    "binomial",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "default_rng",
    "dirichlet",
    "exponential",
    "f",
    "fold",
    "gamma",
    "geometric",
    "gumbel",
    "hypergeometric",
    "integers",
    "laplace",
    "logistic",
    "lognormal",
    "logseries",
    "multinomial",
    "multivariate_normal",
    "negative_binomial",
    "noncentral_chisquare",
    "noncentral_f",
    "normal",
    "pareto",
    "permutation",
    "permuted",
    "poisson",
    "power",
    "rand",
    "randint",
    "randn",
    "random",
    "random_sample",
    "ranf",
    "rayleigh",
    "sample",
    "seed",
    "shuffle",
    "standard_cauchy",
    "standard_exponential",
    "standard_gamma",
    "standard_normal",
    "standard_t",
    "triangular",
    "uniform",
    "vonmises",
    "wald",
    "weibull",
    "zipf",
]


# -- NumPy's older names, float64 as there -------------------------------------------------
def rand(*shape: int, seed: Any = None, split: Split = ANYWHERE) -> Array:
    """Numbers from [0, 1), in the shape of the arguments.

    >>> ost.random.rand(2, seed=7)
    Array([0.1717, 0.2253], dtype=float64)
    """
    return uniform(shape, dtype=float64, seed=seed, split=split)


def randn(*shape: int, seed: Any = None, split: Split = ANYWHERE) -> Array:
    """Normally distributed numbers, in the shape of the arguments.

    >>> ost.random.randn(2, seed=7)
    Array([0.0838, 0.5619], dtype=float64)
    """
    return normal(shape, dtype=float64, seed=seed, split=split)


def randint(
    low: int,
    high: int | None = None,
    size: ShapeLike | None = None,
    dtype: DTypeLike = int64,
    *,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Whole numbers from low up to, but without, high; from 0 up to low, if there is no high.

    >>> ost.random.randint(10, size=4, seed=7)
    Array([1, 8, 2, 2], dtype=int64)
    """
    return integers(
        low, high, size=() if size is None else size, dtype=dtype, seed=seed, split=split
    )


def random(
    size: ShapeLike | None = None,
    dtype: DTypeLike = float64,
    *,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers from [0, 1); `random_sample`, `ranf` and `sample` are the same.

    >>> ost.random.random(2, seed=7)
    Array([0.1717, 0.2253], dtype=float64)
    """
    return uniform(() if size is None else size, dtype=dtype, seed=seed, split=split)


random_sample = ranf = sample = random


def standard_normal(
    size: ShapeLike | None = None,
    dtype: DTypeLike = float64,
    *,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Normally distributed numbers of mean 0 and standard deviation 1.

    >>> ost.random.standard_normal(2, seed=7)
    Array([0.0838, 0.5619], dtype=float64)
    """
    return normal(() if size is None else size, dtype=dtype, seed=seed, split=split)


def standard_exponential(
    size: ShapeLike | None = None,
    dtype: DTypeLike = float64,
    *,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the exponential distribution of mean 1.

    >>> ost.random.standard_exponential((2, 3), seed=7).shape
    (2, 3)
    """
    return exponential(1.0, size, dtype=dtype, seed=seed, split=split)


def standard_gamma(
    shape: Operandish,
    size: ShapeLike | None = None,
    dtype: DTypeLike = float64,
    *,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the gamma distribution of scale 1.

    >>> ost.random.standard_gamma(2.0, 3, seed=7).shape
    (3,)
    """
    return gamma(shape, size, dtype=dtype, seed=seed, split=split)


def standard_cauchy(
    size: ShapeLike | None = None, *, seed: Any = None, split: Split = ANYWHERE
) -> Array:
    """Numbers of the Cauchy distribution.

    >>> ost.random.standard_cauchy(3, seed=7).dtype
    dtype('float64')
    """
    return cauchy(0.0, 1.0, size, dtype=float64, seed=seed, split=split)


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("random")
