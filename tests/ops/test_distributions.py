"""Distributions: each is what SciPy says, in kernels and without, and the same in any layout."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from ostinato.ops.cpu.jit.lines import can_lower
from ostinato.ops.jit.rejection import REJECTION

import ostinato as ost
from ostinato.errors import ArgumentError, DTypeError, GradientError, ShapeError
from tests.helpers import MESHES, assert_same, on
from tests.thorough import some

stats, R = scipy.stats, ost.random
N = 60_000
F8 = ost.float64

REAL: dict[str, tuple[Callable[..., Any], Any]] = {
    "beta": (lambda n, **k: R.beta(2.0, 3.0, n, **k), stats.beta(2, 3)),
    "small beta": (lambda n, **k: R.beta(0.5, 0.25, n, **k), stats.beta(0.5, 0.25)),
    "cauchy": (lambda n, **k: R.cauchy(1.0, 2.0, n, **k), stats.cauchy(1, 2)),
    "chisquare": (lambda n, **k: R.chisquare(3.0, n, **k), stats.chi2(3)),
    "exponential": (lambda n, **k: R.exponential(2.0, n, **k), stats.expon(scale=2)),
    "f": (lambda n, **k: R.f(3.0, 7.0, n, **k), stats.f(3, 7)),
    "gamma": (lambda n, **k: R.gamma(2.5, n, scale=3.0, **k), stats.gamma(2.5, scale=3)),
    "small gamma": (lambda n, **k: R.gamma(0.3, n, **k), stats.gamma(0.3)),
    "large gamma": (lambda n, **k: R.gamma(500.0, n, **k), stats.gamma(500)),
    "gumbel": (lambda n, **k: R.gumbel(1.0, 2.0, n, **k), stats.gumbel_r(1, 2)),
    "laplace": (lambda n, **k: R.laplace(1.0, 2.0, n, **k), stats.laplace(1, 2)),
    "logistic": (lambda n, **k: R.logistic(1.0, 2.0, n, **k), stats.logistic(1, 2)),
    "lognormal": (
        lambda n, **k: R.lognormal(0.5, 0.5, n, **k),
        stats.lognorm(0.5, scale=np.e**0.5),
    ),
    "pareto": (lambda n, **k: R.pareto(3.0, n, **k), stats.lomax(3)),
    "power": (lambda n, **k: R.power(3.0, n, **k), stats.powerlaw(3)),
    "rayleigh": (lambda n, **k: R.rayleigh(2.0, n, **k), stats.rayleigh(scale=2)),
    "standard_t": (lambda n, **k: R.standard_t(5.0, n, **k), stats.t(5)),
    "triangular": (lambda n, **k: R.triangular(0.0, 1.0, 4.0, n, **k), stats.triang(0.25, 0, 4)),
    "noncentral_chisquare": (
        lambda n, **k: R.noncentral_chisquare(3.0, 2.0, n, **k),
        stats.ncx2(3, 2),
    ),
    "vonmises": (lambda n, **k: R.vonmises(0.0, 4.0, n, **k), stats.vonmises(4.0)),
    "wide vonmises": (lambda n, **k: R.vonmises(0.0, 0.1, n, **k), stats.vonmises(0.1)),
    "wald": (lambda n, **k: R.wald(2.0, 3.0, n, **k), stats.invgauss(2 / 3, scale=3)),
    "weibull": (lambda n, **k: R.weibull(1.5, n, **k), stats.weibull_min(1.5)),
}
WHOLE: dict[str, tuple[Callable[..., Any], Any]] = {
    "few of binomial": (lambda n, **k: R.binomial(10, 0.3, n, **k), stats.binom(10, 0.3)),
    "binomial": (lambda n, **k: R.binomial(100, 0.4, n, **k), stats.binom(100, 0.4)),
    "most of binomial": (lambda n, **k: R.binomial(1000, 0.9, n, **k), stats.binom(1000, 0.9)),
    "logseries": (lambda n, **k: R.logseries(0.6, n, **k), stats.logser(0.6)),
    "zipf": (lambda n, **k: R.zipf(3.5, n, **k), stats.zipf(3.5)),
    "geometric": (lambda n, **k: R.geometric(0.3, n, **k), stats.geom(0.3)),
    "negative_binomial": (
        lambda n, **k: R.negative_binomial(3, 0.4, n, **k),
        stats.nbinom(3, 0.4),
    ),
    "few of hypergeometric": (
        lambda n, **k: R.hypergeometric(2, 3, 4, n, **k),
        stats.hypergeom(5, 2, 4),
    ),
    "hypergeometric": (
        lambda n, **k: R.hypergeometric(900, 100, 700, n, **k),
        stats.hypergeom(1000, 900, 700),
    ),
    "few of poisson": (lambda n, **k: R.poisson(4.0, n, **k), stats.poisson(4)),
    "poisson": (lambda n, **k: R.poisson(30.0, n, **k), stats.poisson(30)),
    "many of poisson": (lambda n, **k: R.poisson(1e5, n, **k), stats.poisson(1e5)),
}
ALL = REAL | WHOLE


def distance(x: Any, distribution: Any) -> float:
    """Kolmogorov's, in units of what chance explains: 1.63 is beyond 99 of 100."""
    values = np.unique(x)
    below = np.searchsorted(np.sort(x), values, side="right") / x.size
    return float(np.abs(below - distribution.cdf(values)).max() * x.size**0.5)


def moments(name, distribution):
    if "vonmises" in name:  # whose quantiles SciPy would integrate, one by one
        square = scipy.integrate.quad(lambda x: x * x * distribution.pdf(x), -np.pi, np.pi)[0]
        return 0.0, square
    return distribution.stats("mv")


@pytest.mark.parametrize(
    ("name", "size"), [(name, n) for k, name in enumerate(ALL) for n in some([2000, N], 2, k)]
)
def test_distributions(name, size):
    draw, distribution = ALL[name]
    for dtype in (ost.float32, F8) if name in REAL else (ost.int64,):
        x = np.asarray(draw((size,), seed=3, dtype=dtype))
        assert x.dtype == dtype
        assert distance(x.astype(np.float64), distribution) < 1.8
        mean, variance = moments(name, distribution)
        if np.isfinite(mean) and np.isfinite(variance):
            assert abs(x.mean(dtype=float) - mean) < 4.5 * (variance / size) ** 0.5
        if name in ("poisson", "binomial", "gamma", "laplace"):
            assert abs(x.var(dtype=float) / variance - 1) < 0.15 if size == 2000 else 0.03


@pytest.mark.parametrize("name", ["gamma", "poisson", "binomial", "beta", "exponential"])
def test_neighbours_and_seeds_have_no_relation(name):
    draw, _ = ALL[name]
    one, two = (np.asarray(draw((N,), seed=s)).astype(float) for s in (1, 2))
    lines = np.array([one[0::2], one[1::2], two[0::2]])
    assert np.abs(np.corrcoef(lines) - np.eye(3)).max() < 4.5 / (N / 2) ** 0.5


@pytest.mark.parametrize("name", ALL)
def test_the_same_bits_in_any_layout(name):
    draw, _ = ALL[name]
    with on(1):
        wanted = np.asarray(draw((7, 6), seed=11))
        assert np.asarray(draw((42,), seed=11)).tobytes() == wanted.tobytes()
        assert np.asarray(draw((7, 6), seed=12)).tobytes() != wanted.tobytes()
    meshes = some(MESHES, 3, [*ALL].index(name))
    assert_same(lambda: draw((7, 6), seed=11), lambda: wanted, rtol=0, atol=0, meshes=meshes)


@pytest.mark.parametrize("name", ["gamma", "poisson", "binomial", "laplace", "standard_t"])
def test_the_same_bits_in_kernels_on_any_number_of_workers(name):
    draw, _ = ALL[name]
    with on(1):
        wanted = np.asarray(draw((150_001,), seed=11))
    for workers in (2, 3):
        with on(workers):
            assert np.asarray(draw((150_001,), seed=11, split=0)).tobytes() == wanted.tobytes()
    with on(1):  # beside others
        more = ost.compile(lambda: draw((150_001,), seed=11) * 2 + 1)()
        np.testing.assert_array_equal(np.asarray(more), wanted * 2 + 1)


def test_they_are_part_of_kernels():
    kinds = {"seed": np.dtype("uint64"), "index": np.dtype("int64"), "real": np.dtype("float64")}
    for name, many in (("gamma_draw", 1), ("poisson_draw", 1), ("binomial_draw", 2)):
        assert name in REJECTION
        given = (kinds["seed"], kinds["index"], *(kinds["real"],) * many)
        assert can_lower(name, given, kinds["real"])


def test_parameters_that_have_none():
    assert np.isnan(np.asarray(R.gamma(ost.asarray([-1.0, np.nan])))).all()
    assert np.asarray(R.gamma(ost.asarray([0.0]))) == 0
    assert np.asarray(R.poisson(ost.asarray([0.0, 0.0]))).tolist() == [0, 0]
    assert np.asarray(R.binomial(ost.asarray([0, 5, 5, 60]), ost.asarray([0.5, 0, 1, 1]))).tolist() == [
        0, 0, 5, 60,
    ]  # fmt: skip
    assert np.asarray(R.geometric(ost.asarray([1.0]))).tolist() == [1]


def test_parameters_broadcast():
    means = np.array([[1.0], [50.0], [4000.0]])
    x = np.asarray(R.poisson(means, (3, 5000), seed=1))
    np.testing.assert_allclose(x.mean(1), means[:, 0], rtol=0.05)
    assert np.asarray(R.gamma(np.ones((2, 1)), seed=1)).shape == (2, 1)
    assert R.gamma(2.0, (4,), dtype="float16", seed=1).dtype == ost.float16
    with pytest.raises(ShapeError, match="poisson"):
        R.poisson(np.ones(3), (2,))
    with pytest.raises(DTypeError, match="int32"):
        R.gamma(1.0, (2,), dtype="int32")


# -- several numbers -------------------------------------------------------------------------
def test_dirichlet():
    alpha = np.array([0.5, 2.0, 7.5])
    x = np.asarray(R.dirichlet(alpha, (20_000,), dtype=F8, seed=1))
    np.testing.assert_allclose(x.sum(1), 1, rtol=1e-12)
    for k in range(3):
        rest = float(alpha.sum() - alpha[k])
        assert distance(x[:, k], stats.beta(alpha[k], rest)) < 1.8


def test_multinomial():
    p = np.array([0.1, 0.2, 0.0, 0.7])
    x = np.asarray(R.multinomial(50, p, (20_000,), seed=1))
    assert (x.sum(1) == 50).all()
    assert (x[:, 2] == 0).all()
    for k in (0, 1, 3):
        assert distance(x[:, k], stats.binom(50, p[k])) < 1.8
    covariance = np.cov(x.T.astype(float))
    np.testing.assert_allclose(covariance, 50 * (np.diag(p) - np.outer(p, p)), atol=0.25)


@pytest.mark.parametrize("method", ["cholesky", "eigh"])
def test_multivariate_normal(method):
    mean = np.array([1.0, -2.0, 0.5])
    cov = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.5]])
    x = np.asarray(R.multivariate_normal(mean, cov, (50_000,), method=method, dtype=F8, seed=1))
    np.testing.assert_allclose(x.mean(0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(x.T), cov, atol=0.05)
    assert np.asarray(R.multivariate_normal(mean, cov, method=method)).shape == (3,)
    stacked = R.multivariate_normal(mean, np.stack([cov] * 4), (2, 4), method=method)
    assert np.asarray(stacked).shape == (2, 4, 3)
    with pytest.raises(ShapeError, match="multivariate_normal"):
        R.multivariate_normal(mean, cov[:2])
    with pytest.raises(ArgumentError, match="qr"):
        R.multivariate_normal(mean, cov, method="qr")


def test_choice():
    p = np.array([0.1, 0.0, 0.6, 0.3])
    x = np.asarray(R.choice(4, (20_000,), p=p, seed=1))
    np.testing.assert_allclose(np.bincount(x, minlength=4) / 20_000, p, atol=0.015)
    x = np.asarray(R.choice(4, (20_000,), seed=1))
    np.testing.assert_allclose(np.bincount(x) / 20_000, 0.25, atol=0.015)
    for weights in (None, np.arange(1.0, 101)):
        x = np.asarray(R.choice(100, (10, 6), replace=False, p=weights, seed=1))
        assert x.shape == (10, 6)
        assert len(np.unique(x)) == 60
    firsts = [int(R.choice(4, (2,), replace=False, p=p, seed=s)[0]) for s in range(600)]
    np.testing.assert_allclose(np.bincount(firsts, minlength=4) / 600, p, atol=0.07)
    rows = np.arange(12.0).reshape(3, 4)
    found = np.asarray(R.choice(rows, (2, 5), axis=1, seed=1))
    assert found.shape == (3, 2, 5)
    assert {tuple(c) for c in found.reshape(3, -1).T} <= {tuple(c) for c in rows.T}
    assert np.asarray(R.choice(rows[0])) in rows[0]


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: R.choice(3, (4,), replace=False), "4 of 3 without replacement"),
        (lambda: R.choice(3, (4,), p=[0.5, 0.5]), r"p \(2,\)"),
        (lambda: R.choice(0, (4,)), "none to choose from"),
    ],
)
def test_choices_that_there_are_not(draw, said):
    with pytest.raises((ArgumentError, ShapeError), match=said):
        draw()


def test_draws_of_choice_and_several_numbers_in_any_layout():
    p = np.array([0.1, 0.2, 0.7])
    for draw in (
        lambda: R.choice(3, (40,), p=p, seed=4),
        lambda: R.choice(40, (20,), replace=False, seed=4),
        lambda: R.multinomial(50, p, (9,), seed=4),
        lambda: R.dirichlet(p * 5, (9,), seed=4),
    ):
        with on(1):
            wanted = np.asarray(draw())
        assert_same(draw, lambda w=wanted: w, rtol=1e-6, atol=0)


# -- gradients -------------------------------------------------------------------------------
def test_gradients_of_gamma_by_its_shape():
    """The mean of gamma is its shape, so the slope of the mean is 1; and it scales with scale."""
    slope = ost.grad(lambda a: ost.mean(R.gamma(a, (N,), dtype=F8, seed=5)))(ost.asarray(2.5))
    assert float(slope) == pytest.approx(1, abs=0.02)
    slope = ost.grad(lambda s: ost.mean(R.exponential(s, (N,), dtype=F8, seed=5)))(ost.asarray(2.5))
    assert float(slope) == pytest.approx(1, abs=0.02)
    with pytest.raises(GradientError, match="poisson_draw"):
        ost.grad(lambda m: ost.mean(R.poisson(m, (3,), dtype=F8)))(ost.asarray(2.5))


# -- generators ------------------------------------------------------------------------------
METHODS = [n for n in dir(R.Generator) if not n.startswith("_")]
OTHERS = {"shuffle": "returns what it made", "spawn": "has its own test"}


@pytest.mark.parametrize("name", METHODS)
def test_generators_have_numpys_methods(name):
    """The same names and the same order of arguments."""
    theirs = getattr(np.random.Generator, name)
    ours = list(inspect.signature(getattr(R.Generator, name)).parameters)[1:]
    listed = re.match(rf"\s*{name}\(([^)]*(?:\([^)]*\))?[^)]*)\)", theirs.__doc__ or "")
    assert listed, name
    wanted = re.findall(r"(?:^|,)\s*(\w+)", listed.group(1))
    wanted = [w for w in wanted if w not in ("check_valid", "tol", "out", "dtype_", "method")]
    assert [w for w in ours if w != "method"] == wanted


_GIVEN = {
    "binomial": (10, 0.3), "beta": (2.0, 3.0), "chisquare": (3.0,), "dirichlet": ([1.0, 2.0],),
    "f": (3.0, 5.0), "gamma": (2.0,), "geometric": (0.5,), "integers": (10,),
    "multinomial": (10, [0.5, 0.5]), "multivariate_normal": ([0.0, 1.0], np.eye(2)),
    "hypergeometric": (5, 7, 4), "negative_binomial": (3, 0.5), "pareto": (3.0,), "power": (3.0,), "standard_gamma": (2.0,),
    "standard_t": (5.0,), "triangular": (0.0, 1.0, 4.0), "weibull": (1.5,), "logseries": (0.5,), "noncentral_chisquare": (3.0, 2.0),
    "vonmises": (0.0, 4.0), "wald": (1.0, 2.0), "zipf": (2.0,), "choice": (5,),
    "permutation": (5,), "shuffle": (np.arange(5),), "permuted": (np.arange(5),), "noncentral_f": (3.0, 5.0, 2.0),
}  # fmt: skip


_UNSIZED = ("permutation", "shuffle", "permuted")


@pytest.mark.parametrize("name", [n for n in METHODS if n != "spawn"])
def test_generators_draw(name):
    given = _GIVEN.get(name, ())
    sized = {} if name in _UNSIZED else {"size": (3, 2)}
    theirs = np.random.default_rng(1)
    wanted = getattr(theirs, name)(*given, **sized)
    wanted = np.arange(5) if name == "shuffle" else wanted
    one, two = R.default_rng(1), R.default_rng(1)
    first = np.asarray(getattr(one, name)(*given, **sized))
    assert (first.shape, first.dtype) == (wanted.shape, wanted.dtype)
    assert first.tobytes() == np.asarray(getattr(two, name)(*given, **sized)).tobytes()
    if name not in _UNSIZED:
        many = np.asarray(getattr(one, name)(*given, size=(50,)))
        again = np.asarray(getattr(one, name)(*given, size=(50,)))
        assert many.tobytes() != again.tobytes()


def test_generators_have_their_own_seed():
    with pytest.raises(TypeError, match="takes no seed"):
        R.default_rng(1).laplace(seed=3)
    assert R.default_rng(1).laplace(size=2, dtype="float32").dtype == np.float32


_SCALARS = {n: g for n, g in _GIVEN.items() if all(isinstance(x, (int, float)) for x in g)}


@pytest.mark.parametrize(
    "name", sorted(_SCALARS.keys() - {"choice", "integers", "permutation", "standard_gamma"})
)
def test_parameters_have_the_shape_where_none_is_asked_for(name):
    given = _SCALARS[name]
    asked = getattr(R, name)(*given, (3, 2), seed=7)
    wide = [np.full((3, 2), x) for x in given]
    drawn = getattr(R, name)(*wide, dtype=asked.dtype, seed=7)
    assert np.asarray(drawn).tobytes() == np.asarray(asked).tobytes()


def test_generators_are_apart():
    one = R.default_rng(1)
    assert R.default_rng(one) is one
    children = one.spawn(2)
    lines = [
        np.asarray(g.random(5000)) for g in (one, *children, R.default_rng(2), R.default_rng())
    ]
    assert np.abs(np.corrcoef(lines) - np.eye(5)).max() < 4.5 / 5000**0.5
    with pytest.raises((ArgumentError, TypeError), match="default_rng"):
        R.default_rng("one")
    assert set(np.asarray(one.integers(3, 5, 200, endpoint=True)).tolist()) == {3, 4, 5}


def test_generators_in_compiled_functions_draw_anew():
    one = R.default_rng(1)
    draw = ost.compile(lambda: one.normal(size=4))
    assert np.asarray(draw()).tobytes() != np.asarray(draw()).tobytes()


def test_tries_that_cannot_succeed_are_not_made() -> None:
    """Each of these would be drawn again for ever; what is next to it is drawn all the same."""
    nothing = np.iinfo(np.int64).min  # what NaN becomes
    found = np.asarray(ost.random.zipf([2.0, 1.0, 0.5, np.nan, 1e6, np.inf], seed=1))
    assert found[0] >= 1
    assert found[1:].tolist() == [nothing, nothing, nothing, 1, 1]
    angles = np.asarray(ost.random.vonmises(0.5, [4.0, np.nan, -1.0, 1e300, np.inf], seed=1))
    assert abs(angles[0]) <= np.pi
    np.testing.assert_array_equal(angles[1:], np.float32([np.nan, np.nan, 0.5, 0.5]))


def test_counts_that_are_sure() -> None:
    """All of a kind, none, all taken or nothing; what cannot be taken is NaN, as whole numbers tell it."""
    n = 4000
    for given, wanted in (
        ((7, 0, 5), 5),
        ((0, 7, 5), 0),
        ((3, 4, 7), 3),
        ((3, 4, 0), 0),
        ((0, 0, 0), 0),
    ):
        assert set(np.asarray(R.hypergeometric(*given, (n,), seed=1)).tolist()) == {wanted}
    one = np.asarray(R.hypergeometric(1, 1, 1, (n,), seed=1))
    assert abs(one.mean() - 0.5) < 0.04
    many = np.asarray(R.hypergeometric(4e8, 5e8, 3e8, (n,), seed=1))
    assert abs(many.mean() / (3e8 * 4 / 9) - 1) < 1e-5
    nothing = np.iinfo(np.int64).min
    bad = np.asarray(R.hypergeometric([2, -1, 2, np.nan], [2, 5, 2, 1], [5, 1, -1, 1], seed=1))
    assert bad.tolist() == [nothing] * 4


@pytest.mark.parametrize("a", [np.nextafter(1, 2), 1.0001])
def test_zipf_next_to_its_limit(a: float) -> None:
    """All orders of magnitude below 2**63 are about as likely."""
    found = np.asarray(ost.random.zipf(a, (4000,), seed=3))
    assert found.min() >= 1
    assert abs(np.median(np.log2(found)) - 31.1) < 2


@pytest.mark.parametrize("kappa", [9e5, 1.1e6])
def test_narrow_angles(kappa: float) -> None:
    """On both sides of where they are taken for normally distributed."""
    found = np.asarray(ost.random.vonmises(1.0, kappa, (4000,), dtype=np.float64, seed=3))
    assert abs(found.mean() - 1.0) < 5 / np.sqrt(4000 * kappa)
    assert 0.95 < found.std() * np.sqrt(kappa) < 1.05
