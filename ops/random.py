"""Random numbers (`ost.random`): the same for any number of workers and any layout.

A call without a seed goes on with the process's own sequence; with one, it draws the same numbers each
time. Numbers are float32, unless `dtype=` says otherwise or the call is in NumPy's form: by `size=`,
as `normal(loc, scale, size)`, or by one of its older names (`rand`). `default_rng` has NumPy's names,
orders of arguments and dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.spelling import missing
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
from .older_draws import (
    rand,
    randint,
    randn,
    random,
    random_sample,
    ranf,
    sample,
    standard_cauchy,
    standard_exponential,
    standard_gamma,
    standard_normal,
)
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


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("random")
