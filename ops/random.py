"""Random numbers (`ost.random`): the same for any number of workers and any layout.

A call without a seed goes on with the process's own sequence; with one, it draws the same numbers each
time. `default_rng` has NumPy's names and orders of arguments."""

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
    multinomial,
    multivariate_normal,
    negative_binomial,
    pareto,
    poisson,
    power,
    rayleigh,
    standard_t,
    triangular,
    weibull,
)
from .draws import bernoulli, categorical, integers, normal, permutation, seed, shuffle, uniform
from .generator import Generator, default_rng
from .more_distributions import logseries, noncentral_chisquare, vonmises, wald, zipf
from .seeds import fold

__all__ = [
    "Generator",
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
    "normal",
    "pareto",
    "permutation",
    "poisson",
    "power",
    "rayleigh",
    "seed",
    "shuffle",
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
