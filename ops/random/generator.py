"""A sequence of draws of its own, with NumPy's names and orders of arguments
(`numpy.random.Generator`)."""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import numpy as np

from ..array import assigning
from ..array.shape import whole_number
from ..core.apply import as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.spec import DType, DTypeLike, ShapeLike, float64, int64
from ..core.spelling import hint
from . import distributions, draws
from .seeds import fold, mix, seeds

P = ParamSpec("P")


def _method(
    function: Callable[P, Array], dtype: DType = float64
) -> Callable[Concatenate[Generator, P], Array]:
    """A function of ours as a method: `size` comes behind the parameters, dtypes are NumPy's."""
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    theirs = [
        p.replace(name="size") if p.name == "shape" else p
        for p in inspect.signature(function).parameters.values()
        if p.kind != p.KEYWORD_ONLY
    ]

    @wraps(function)
    def method(self: Generator, /, *args: P.args, **kw: P.kwargs) -> Array:
        if "seed" in kw:
            raise TypeError(f"{function.__name__}() of a generator takes no seed")
        return function(*args, **{"dtype": dtype, **kw, "seed": self._next()})

    del method.__wrapped__
    method.__doc__ = str(function.__doc__).partition("\n\n")[0]
    method.__signature__ = inspect.Signature([me, *theirs])  # type: ignore[attr-defined]
    return method


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

    def multivariate_normal(
        self, mean: Operandish, cov: Operandish, size: ShapeLike = (), *, method: str = "cholesky"
    ) -> Array:
        """Normally distributed vectors with a mean and covariances."""
        return distributions.multivariate_normal(
            mean, cov, _of(size), method=method, dtype=float64, seed=self._next()
        )

    exponential = _method(distributions.exponential)
    laplace = _method(distributions.laplace)
    logistic = _method(distributions.logistic)
    gumbel = _method(distributions.gumbel)
    lognormal = _method(distributions.lognormal)
    pareto = _method(distributions.pareto)
    power = _method(distributions.power)
    weibull = _method(distributions.weibull)
    rayleigh = _method(distributions.rayleigh)
    triangular = _method(distributions.triangular)
    beta = _method(distributions.beta)
    chisquare = _method(distributions.chisquare)
    f = _method(distributions.f)
    standard_t = _method(distributions.standard_t)
    vonmises = _method(distributions.vonmises)
    wald = _method(distributions.wald)
    noncentral_chisquare = _method(distributions.noncentral_chisquare)
    noncentral_f = _method(distributions.noncentral_f)
    dirichlet = _method(distributions.dirichlet)
    poisson = _method(distributions.poisson, int64)
    binomial = _method(distributions.binomial, int64)
    hypergeometric = _method(distributions.hypergeometric, int64)
    negative_binomial = _method(distributions.negative_binomial, int64)
    geometric = _method(distributions.geometric, int64)
    logseries = _method(distributions.logseries, int64)
    zipf = _method(distributions.zipf, int64)
    multinomial = _method(distributions.multinomial, int64)


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
