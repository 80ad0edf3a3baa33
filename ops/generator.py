"""A sequence of draws of its own, with NumPy's names and orders of arguments
(`numpy.random.Generator`)."""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from . import assigning, distributions, draws, more_distributions
from .core.array import Array, Operandish, as_array
from .core.spec import DTypeLike, ShapeLike, float64, int64
from .core.spelling import hint
from .seeds import fold, mix, seeds
from .shape import whole_number


class Generator:
    """Draws numbers that depend on its seed and on how many draws came before, and on nothing else: no
    layout and no number of workers changes them. Within a compiled function each call draws anew, as
    functions without a seed do.

    >>> rng = ost.random.default_rng(7)
    >>> rng.integers(0, 10, size=3)
    Array([2, 3, 2], dtype=int64)
    """

    __slots__ = ("_base", "_count")

    def __init__(self, seed: int) -> None:
        self._base = mix(seed & (2**64 - 1), 0)
        self._count = itertools.count(1)

    def __repr__(self) -> str:
        return f"ostinato.random.Generator({self._base:#x})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            older = hasattr(RandomState, name) and not name.startswith("_")
            said = "; ostinato.random.RandomState has it" if older else hint(name, "random")
            message = f"a Generator has no attribute {name!r}{said}"
            raise AttributeError(message, name=name, obj=self)

    def _next(self) -> Any:
        if seeds.draw is not None:  # of a function that is traced
            return fold(seeds.draw(), np.uint64(self._base))
        return mix(self._base, next(self._count))

    def spawn(self, n_children: int) -> list[Generator]:
        """Generators that are independent of this one and of each other."""
        many = whole_number(n_children, "spawn", 0)
        return [Generator(mix(~self._base & (2**64 - 1), next(self._count))) for _ in range(many)]

    # -- uniform and normal ------------------------------------------------------------------
    def random(self, size: ShapeLike = (), dtype: DTypeLike = float64) -> Array:
        """Numbers from [0, 1)."""
        return draws.uniform(_of(size), dtype=dtype, seed=self._next())

    def uniform(
        self, low: Operandish = 0.0, high: Operandish = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Numbers from [low, high)."""
        shape = distributions._size("uniform", size, as_array(low), as_array(high))
        return draws.uniform(low, high, shape, seed=self._next())

    def standard_normal(self, size: ShapeLike = (), dtype: DTypeLike = float64) -> Array:
        """Normally distributed numbers of mean 0 and standard deviation 1."""
        return draws.normal(_of(size), dtype=dtype, seed=self._next())

    def normal(
        self, loc: Operandish = 0.0, scale: Operandish = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Normally distributed numbers."""
        shape = distributions._size("normal", size, as_array(loc), as_array(scale))
        return draws.normal(loc, scale, shape, seed=self._next())

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: ShapeLike = (),
        dtype: DTypeLike = int64,
        endpoint: bool = False,
    ) -> Array:
        """Whole numbers from low (or 0) up to, but without, high; with `endpoint`, high, too."""
        return draws.integers(
            low, high, _of(size), endpoint=endpoint, dtype=dtype, seed=self._next()
        )

    # -- order -------------------------------------------------------------------------------
    def permutation(self, x: int | Operandish, axis: int = 0) -> Array:
        """The numbers below x, or an array's slices along an axis, in random order."""
        return draws.permutation(x, axis=axis, seed=self._next())

    def shuffle(self, x: Operandish, axis: int = 0) -> Array:
        """An array's slices along an axis in random order, as a new array; as a statement, it shuffles
        the array itself, as NumPy's does."""
        made = draws.permutation(as_array(x), axis=axis, seed=self._next())
        return assigning.changed(x, made, "shuffle", sys._getframe(1))

    def permuted(self, x: Operandish, axis: int | None = None) -> Array:
        """The elements along an axis in random order, in each line another."""
        return draws.permuted(x, axis, seed=self._next())

    def choice(
        self,
        a: int | Operandish,
        size: ShapeLike = (),
        replace: bool = True,
        p: Operandish | None = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Array:
        """Some of the numbers below a, or of an array's slices along an axis. They come in random
        order, whatever `shuffle` says."""
        return distributions.choice(
            a, _of(size), replace=replace, p=p, axis=axis, seed=self._next()
        )

    # -- distributions -----------------------------------------------------------------------
    def standard_exponential(self, size: ShapeLike = (), dtype: DTypeLike = float64) -> Array:
        """Numbers of the exponential distribution of mean 1."""
        return distributions.exponential(1.0, _of(size), dtype=dtype, seed=self._next())

    def standard_gamma(
        self, shape: Operandish, size: ShapeLike | None = None, dtype: DTypeLike = float64
    ) -> Array:
        """Numbers of the gamma distribution of scale 1."""
        return distributions.gamma(shape, size, dtype=dtype, seed=self._next())

    def gamma(
        self, shape: Operandish, scale: Operandish = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Numbers of the gamma distribution."""
        return distributions.gamma(shape, size, scale=scale, dtype=float64, seed=self._next())

    def standard_cauchy(self, size: ShapeLike = ()) -> Array:
        """Numbers of the Cauchy distribution."""
        return distributions.cauchy(0.0, 1.0, _of(size), dtype=float64, seed=self._next())

    def exponential(self, scale: Operandish = 1.0, size: ShapeLike | None = None) -> Array:
        """Numbers of the exponential distribution."""
        return distributions.exponential(scale, size, dtype=float64, seed=self._next())

    def laplace(
        self, loc: Operandish = 0.0, scale: Operandish = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Numbers of the Laplace distribution."""
        return distributions.laplace(loc, scale, size, dtype=float64, seed=self._next())

    def logistic(
        self, loc: Operandish = 0.0, scale: Operandish = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Numbers of the logistic distribution."""
        return distributions.logistic(loc, scale, size, dtype=float64, seed=self._next())

    def gumbel(
        self, loc: Operandish = 0.0, scale: Operandish = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Numbers of the Gumbel distribution."""
        return distributions.gumbel(loc, scale, size, dtype=float64, seed=self._next())

    def lognormal(
        self, mean: Operandish = 0.0, sigma: Operandish = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """exp of normally distributed numbers."""
        return distributions.lognormal(mean, sigma, size, dtype=float64, seed=self._next())

    def pareto(self, a: Operandish, size: ShapeLike | None = None) -> Array:
        """Numbers of the Pareto distribution II (Lomax)."""
        return distributions.pareto(a, size, dtype=float64, seed=self._next())

    def power(self, a: Operandish, size: ShapeLike | None = None) -> Array:
        """Numbers from [0, 1] with density a x**(a - 1)."""
        return distributions.power(a, size, dtype=float64, seed=self._next())

    def weibull(self, a: Operandish, size: ShapeLike | None = None) -> Array:
        """Numbers of the Weibull distribution."""
        return distributions.weibull(a, size, dtype=float64, seed=self._next())

    def rayleigh(self, scale: Operandish = 1.0, size: ShapeLike | None = None) -> Array:
        """Numbers of the Rayleigh distribution."""
        return distributions.rayleigh(scale, size, dtype=float64, seed=self._next())

    def triangular(
        self, left: Operandish, mode: Operandish, right: Operandish, size: ShapeLike | None = None
    ) -> Array:
        """Numbers whose density is a triangle."""
        return distributions.triangular(left, mode, right, size, dtype=float64, seed=self._next())

    def beta(self, a: Operandish, b: Operandish, size: ShapeLike | None = None) -> Array:
        """Numbers of the beta distribution."""
        return distributions.beta(a, b, size, dtype=float64, seed=self._next())

    def chisquare(self, df: Operandish, size: ShapeLike | None = None) -> Array:
        """Sums of squares of df normally distributed numbers."""
        return distributions.chisquare(df, size, dtype=float64, seed=self._next())

    def f(self, dfnum: Operandish, dfden: Operandish, size: ShapeLike | None = None) -> Array:
        """Numbers of the F distribution."""
        return distributions.f(dfnum, dfden, size, dtype=float64, seed=self._next())

    def standard_t(self, df: Operandish, size: ShapeLike | None = None) -> Array:
        """Numbers of Student's t distribution."""
        return distributions.standard_t(df, size, dtype=float64, seed=self._next())

    def dirichlet(self, alpha: Operandish, size: ShapeLike = ()) -> Array:
        """Shares that add up to 1."""
        return distributions.dirichlet(alpha, _of(size), dtype=float64, seed=self._next())

    def multivariate_normal(
        self, mean: Operandish, cov: Operandish, size: ShapeLike = (), *, method: str = "cholesky"
    ) -> Array:
        """Normally distributed vectors with a mean and covariances."""
        return distributions.multivariate_normal(
            mean, cov, _of(size), method=method, dtype=float64, seed=self._next()
        )

    def poisson(self, lam: Operandish = 1.0, size: ShapeLike | None = None) -> Array:
        """Counts of independent events, of which lam are expected."""
        return distributions.poisson(lam, size, seed=self._next())

    def binomial(self, n: Operandish, p: Operandish, size: ShapeLike | None = None) -> Array:
        """How many of n tries succeed."""
        return distributions.binomial(n, p, size, seed=self._next())

    def hypergeometric(
        self,
        ngood: Operandish,
        nbad: Operandish,
        nsample: Operandish,
        size: ShapeLike | None = None,
    ) -> Array:
        """How many good ones are among those that are taken, none of which is put back."""
        return distributions.hypergeometric(ngood, nbad, nsample, size, seed=self._next())

    def negative_binomial(
        self, n: Operandish, p: Operandish, size: ShapeLike | None = None
    ) -> Array:
        """How many tries fail before n succeed."""
        return distributions.negative_binomial(n, p, size, seed=self._next())

    def geometric(self, p: Operandish, size: ShapeLike | None = None) -> Array:
        """How many tries it takes to succeed."""
        return distributions.geometric(p, size, seed=self._next())

    def logseries(self, p: Operandish, size: ShapeLike | None = None) -> Array:
        """Whole numbers k of probabilities in the ratio of p**k / k."""
        return more_distributions.logseries(p, size, seed=self._next())

    def zipf(self, a: Operandish, size: ShapeLike | None = None) -> Array:
        """Whole numbers k of probabilities in the ratio of k**-a."""
        return more_distributions.zipf(a, size, seed=self._next())

    def vonmises(self, mu: Operandish, kappa: Operandish, size: ShapeLike | None = None) -> Array:
        """Angles around mu, as near to it as kappa says."""
        return more_distributions.vonmises(mu, kappa, size, dtype=float64, seed=self._next())

    def wald(self, mean: Operandish, scale: Operandish, size: ShapeLike | None = None) -> Array:
        """Numbers of the inverse Gaussian distribution."""
        return more_distributions.wald(mean, scale, size, dtype=float64, seed=self._next())

    def noncentral_chisquare(
        self, df: Operandish, nonc: Operandish, size: ShapeLike | None = None
    ) -> Array:
        """Sums of squares of df normally distributed numbers whose squared means add up to nonc."""
        return more_distributions.noncentral_chisquare(
            df, nonc, size, dtype=float64, seed=self._next()
        )

    def noncentral_f(
        self,
        dfnum: Operandish,
        dfden: Operandish,
        nonc: Operandish,
        size: ShapeLike | None = None,
    ) -> Array:
        """Numbers of the noncentral F distribution."""
        return more_distributions.noncentral_f(
            dfnum, dfden, nonc, size, dtype=float64, seed=self._next()
        )

    def multinomial(self, n: Operandish, pvals: Operandish, size: ShapeLike | None = None) -> Array:
        """How many of n tries give each result."""
        return distributions.multinomial(n, pvals, size, seed=self._next())


class RandomState(Generator):
    """A generator that has NumPy's older names, too; the numbers are not those of NumPy's.

    >>> ost.random.RandomState(7).rand(2, 3).shape
    (2, 3)
    """

    __slots__ = ()

    def __init__(self, seed: int | None = None) -> None:
        self.seed(seed)

    def seed(self, seed: int | None = None) -> None:
        """Begin anew with a whole number, or with the system's randomness."""
        super().__init__(_begun(seed))

    def rand(self, *shape: int) -> Array:
        """Numbers from [0, 1), in the shape of the arguments."""
        return self.random(shape)

    def randn(self, *shape: int) -> Array:
        """Normally distributed numbers, in the shape of the arguments."""
        return self.standard_normal(shape)

    def randint(
        self, low: int, high: int | None = None, size: ShapeLike = (), dtype: DTypeLike = int64
    ) -> Array:
        """Whole numbers from low (or 0) up to, but without, high."""
        return self.integers(low, high, size, dtype)

    def random_sample(self, size: ShapeLike = ()) -> Array:
        """Numbers from [0, 1)."""
        return self.random(size)


def _of(size: Any) -> Any:
    return () if size is None else size


def default_rng(seed: int | Generator | None = None) -> Generator:
    """A generator from a whole number, which then draws the same each time; without one, from the
    system's randomness.

    >>> rng = ost.random.default_rng(7)
    >>> rng.normal(size=3)
    Array([ 2.5425, -0.373 , -1.2215], dtype=float64)
    """
    if isinstance(seed, Generator):
        return seed
    return Generator(_begun(seed))


def _begun(seed: int | None) -> int:
    if seed is None:
        return int.from_bytes(os.urandom(8), "little")
    return whole_number(seed, "default_rng")


__all__ = ["Generator", "RandomState", "default_rng"]
