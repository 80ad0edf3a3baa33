"""What is reached for on the first day: quantiles, histograms, groups, sets, of 1,000,000 elements.

A row is one function in each library. Where a library writes it otherwise, the row has that
library's own function beside; where it has nothing of the kind, it has None."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .libraries import Function, NumPy, case, jax_case, nothing, ostinato_case, together
from .peers import dask_threads
from .streaming import STREAMING
from .workload import SYSTEMS as LIBRARIES
from .workload import Case, Numbers, System, Workload, scaled

N = scaled(1_000_000)
STARTED: Mapping[str, System] = {
    **LIBRARIES,
    "dask": replace(LIBRARIES["dask"], modules=("dask.array",)),  # on threads
}
WORKLOADS: list[Workload] = []
Operands = Callable[[], Sequence[Numbers]]
MACHINES: Mapping[str, Callable[[Function, Sequence[Numbers]], Case]]


def row(
    about: str,
    operands: Operands,
    *,
    name: str = "",
    traffic: float | None = None,
    flops: float = 0,
    tolerance: float = 1e-4,
    seconds: float = 4.0,
    cases: Mapping[str, Callable[[], Case]] | None = None,
    **others: Function | None,
) -> Callable[[Function], Function]:
    """Adds a function `(library, *operands)` to the suite. `others`: what it is in some
    libraries, or None where they lack it; `cases`: what is no such function. NumPy's is what is
    expected."""

    def add(function: Function) -> Function:
        written = {name: others.get(name, function) for name in MACHINES}
        expected = written["numpy"] or function
        made = {
            name: functools.partial(_made, name, f, operands)
            for name, f in written.items()
            if f is not None
        }
        given = sum(x.nbytes for x in operands()) if traffic is None else traffic
        WORKLOADS.append(
            Workload(
                name or function.__name__,
                about,
                lambda: _answer(expected(NumPy(), *operands())),
                {**made, **(cases or {})},
                tolerance=tolerance,
                traffic=given,
                flops=flops,
                seconds=seconds,
                systems=STARTED,
            )
        )
        return function

    return add


def _made(name: str, function: Function, operands: Operands) -> Case:
    return MACHINES[name](function, operands())


def _answer(made: Any) -> Any:
    return together(made if isinstance(made, tuple) else (made,))


def numpy_case(function: Function, operands: Sequence[Numbers]) -> Case:
    return case(functools.partial(function, NumPy()), operands, nothing, np.asarray)


def dask_case(function: Function, operands: Sequence[Numbers]) -> Case:
    """On a pool of threads, two chunks of each operand."""
    import dask.array as da  # type: ignore[import-not-found, unused-ignore]

    compute = dask_threads()
    given = [da.from_array(x, chunks=(-(-len(x) // 2), *x.shape[1:])) for x in operands]

    def run(*xs: Any) -> Any:
        made = function(da, *xs)
        return tuple(map(compute, made)) if isinstance(made, tuple) else compute(made)

    return case(run, given, nothing, np.asarray)


MACHINES = {
    "ostinato": ostinato_case,
    "numpy": numpy_case,
    "jax": jax_case,
    "dask": dask_case,
}


# -- data ----------------------------------------------------------------------------------
@functools.cache
def normal() -> Sequence[Numbers]:
    return [np.random.default_rng(3).normal(size=N).astype(np.float32)]


@functools.cache
def small_numbers() -> Sequence[Numbers]:
    """Whole numbers below 1,000."""
    return [np.random.default_rng(4).integers(0, 1000, N)]


@functools.cache
def groups() -> Sequence[Numbers]:
    return [*small_numbers(), *normal()]


QUANTILES = np.array([0.01, 0.25, 0.5, 0.75, 0.99], np.float32)


# -- elements ------------------------------------------------------------------------------
@functools.cache
def points() -> Sequence[Numbers]:
    rng = np.random.default_rng(6)
    return [rng.normal(size=N).astype(np.float32) for _ in "xy"]


@functools.cache
def anywhere() -> Sequence[Numbers]:
    """Numbers, and places in any order."""
    return [*normal(), np.random.default_rng(7).integers(0, N, N).astype(np.int32)]


def square() -> Sequence[Numbers]:
    side = math.isqrt(N)
    return [normal()[0][: side * side].reshape(side, side)]


@row("1,000,000 numbers at equal distances, times x", normal, dask=None)
def linspace(xp: Any, x: Any) -> Any:
    return xp.linspace(0, 1, N) * x


@row("float32 times 0, 1, 2, ...", normal, dask=None)
def arange(xp: Any, x: Any) -> Any:
    return x * xp.arange(N, dtype=np.float32)


@row("1,000,000 elements at any places", anywhere, dask=None)
def take(xp: Any, x: Any, places: Any) -> Any:
    return x[places]


@row("angles of points", points)
def arctan2(xp: Any, x: Any, y: Any) -> Any:
    return xp.arctan2(x, y)


@row("lengths of points, as large as float32 is", points)
def hypot(xp: Any, x: Any, y: Any) -> Any:
    return xp.hypot(x, y)


@row("slopes down the columns of a square", square, dask=None)
def gradient(xp: Any, x: Any) -> Any:
    return xp.gradient(x, axis=0)


@row("covariances of 8 columns", lambda: [normal()[0][: N // 8 * 8].reshape(-1, 8)], dask=None)
def cov(xp: Any, x: Any) -> Any:
    kept = {} if xp.__name__.startswith("jax") else {"dtype": np.float32}  # as JAX does unasked
    return xp.cov(x.T, **kept)


# -- order ---------------------------------------------------------------------------------
@row("the median", normal, dask=lambda da, x: da.median(x.rechunk(-1), axis=0))
def median(xp: Any, x: Any) -> Any:
    return xp.median(x)


@row("five quantiles", normal, dask=lambda da, x: da.quantile(x.rechunk(-1), QUANTILES, axis=0))
def quantile(xp: Any, x: Any) -> Any:
    return xp.quantile(x, QUANTILES)


@row("the median of each of 1,000 rows", lambda: [normal()[0].reshape(-1, 1000)],
     dask=lambda da, x: da.median(x, axis=1))  # fmt: skip
def row_medians(xp: Any, x: Any) -> Any:
    return xp.median(x, axis=1)


@row("the element in the middle in its place", normal, dask=None)
def partition(xp: Any, x: Any) -> Any:
    return xp.partition(x, N // 2)[N // 2]


# -- counts --------------------------------------------------------------------------------
@row("100 bins of equal width", normal, dask=lambda da, x: da.histogram(x, 100, (-4, 4))[0])
def histogram(xp: Any, x: Any) -> Any:
    return xp.histogram(x, 100, (-4, 4))[0]


EDGES = np.sort(np.random.default_rng(5).normal(size=65)).astype(np.float32)


@row("64 bins of their own widths", normal)
def histogram_edges(xp: Any, x: Any) -> Any:
    return xp.histogram(x, EDGES)[0]


@row("50 x 50 bins", lambda: [normal()[0], normal()[0][::-1].copy()])
def histogram2d(xp: Any, x: Any, y: Any) -> Any:
    return xp.histogram2d(x, y, 50, ((-4, 4), (-4, 4)))[0]


@row(
    "how often each of 1,000 numbers occurs",
    small_numbers,
    ostinato=lambda ost, k: ost.bincount(k, length=1000),
    jax=lambda jnp, k: jnp.bincount(k, length=1000),
)
def bincount(xp: Any, k: Any) -> Any:
    return xp.bincount(k, minlength=1000)


# -- groups --------------------------------------------------------------------------------
def numpy_means(xp: Any, k: Any, x: Any) -> Any:
    return np.bincount(k, x, 1000) / np.bincount(k, minlength=1000)


def jax_sums(jnp: Any, k: Any, x: Any) -> Any:
    import jax  # type: ignore[import-not-found, unused-ignore]

    return jax.ops.segment_sum(x, k, 1000)


@row("sums of 1,000 groups", groups, numpy=lambda xp, k, x: np.bincount(k, x, 1000), jax=jax_sums,
     dask=lambda da, k, x: da.bincount(k, x, 1000))  # fmt: skip
def group_sum(ost: Any, k: Any, x: Any) -> Any:
    return ost.groupby(k, size=1000).sum(x)


@row("means of 1,000 groups", groups, numpy=numpy_means,
     jax=lambda jnp, k, x: jax_sums(jnp, k, x) / jnp.bincount(k, length=1000),
     dask=lambda da, k, x: da.bincount(k, x, 1000) / da.bincount(k, minlength=1000))  # fmt: skip
def groupby(ost: Any, k: Any, x: Any) -> Any:
    return ost.groupby(k, size=1000).mean(x)


def numpy_largest(xp: Any, k: Any, x: Any) -> Any:
    made = np.full(1000, -np.inf, x.dtype)
    np.maximum.at(made, k, x)
    return made


def jax_largest(jnp: Any, k: Any, x: Any) -> Any:
    import jax

    return jax.ops.segment_max(x, k, 1000)


@row("the largest of each of 1,000 groups", groups, numpy=numpy_largest, jax=jax_largest, dask=None)
def group_max(ost: Any, k: Any, x: Any) -> Any:
    return ost.groupby(k, size=1000).max(x)


# -- sets ----------------------------------------------------------------------------------
@row(
    "the 1,000 values of whole numbers",
    small_numbers,
    ostinato=lambda ost, k: ost.unique_values(k, size=1000),
    jax=lambda jnp, k: jnp.unique(k, size=1000),
)
def unique(xp: Any, k: Any) -> Any:
    return xp.unique(k)


@row("which of 1,000,000 are among 1,000", lambda: [*small_numbers(), np.arange(0, 2000, 2)])
def isin(xp: Any, k: Any, some: Any) -> Any:
    return xp.isin(k, some)


# -- many small problems at once -------------------------------------------------------------
SYSTEMS, UNKNOWNS = scaled(1000), 16
TIMES = np.linspace(0, 5, 11, dtype=np.float32)
TIGHT = {"rtol": 1e-5, "atol": 1e-5}


@functools.cache
def systems() -> Sequence[Numbers]:
    """Positive definite matrices, and right-hand sides."""
    rng = np.random.default_rng(12)
    roots = rng.normal(size=(SYSTEMS, UNKNOWNS, UNKNOWNS))
    matrices = roots @ roots.transpose(0, 2, 1) + UNKNOWNS * np.eye(UNKNOWNS)
    return [matrices.astype(np.float32), rng.normal(size=(SYSTEMS, UNKNOWNS)).astype(np.float32)]


@functools.cache
def starts() -> Sequence[Numbers]:
    """Numbers of prey and of hunters."""
    rng = np.random.default_rng(13)
    return [
        np.stack([rng.uniform(5, 12, SYSTEMS), rng.uniform(2, 6, SYSTEMS)], 1, dtype=np.float32)
    ]


def numpy_solve(xp: Any, a: Any, b: Any) -> Any:
    return np.linalg.solve(a, b[..., None])[..., 0]


def jax_solve(jnp: Any, a: Any, b: Any) -> Any:
    import jax

    return jax.vmap(jnp.linalg.solve)(a, b)


def jax_cg(jnp: Any, a: Any, b: Any) -> Any:
    import jax

    return jax.vmap(lambda a, b: jax.scipy.sparse.linalg.cg(a, b, tol=1e-5)[0])(a, b)


@row("1,000 systems of 16 equations, mapped", systems, numpy=numpy_solve, jax=jax_solve, dask=None)
def vmap_solve(ost: Any, a: Any, b: Any) -> Any:
    return ost.vmap(ost.linalg.solve)(a, b)


@row("the same by conjugate gradients", systems, numpy=numpy_solve, jax=jax_cg, dask=None)
def vmap_cg(ost: Any, a: Any, b: Any) -> Any:
    return ost.vmap(lambda a, b: ost.solve.cg(a, b, rtol=1e-5).x)(a, b)


def hunt(xp: Any, y: Any) -> Any:
    """Lotka and Volterra's equation."""
    return xp.stack([1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3 * y[1]])


def numpy_hunts(xp: Any, y0: Any) -> Any:
    """All at once by Runge and Kutta's classical method, in 100 steps between two times."""
    y, made = y0.T.astype(np.float64), []
    h = (TIMES[1] - TIMES[0]) / 100
    for k in range(100 * (len(TIMES) - 1) + 1):
        if k % 100 == 0:
            made.append(y.T)
        a = hunt(np, y)
        b = hunt(np, y + h / 2 * a)
        c = hunt(np, y + h / 2 * b)
        y = y + h / 6 * (a + 2 * b + 2 * c + hunt(np, y + h * c))
    return np.stack(made, 1).astype(np.float32)


def jax_hunts(jnp: Any, y0: Any) -> Any:
    import jax
    from jax.experimental.ode import odeint  # type: ignore[import-not-found, unused-ignore]

    field = lambda y, t: hunt(jnp, y)  # noqa: E731
    return jax.vmap(lambda y: odeint(field, y, jnp.asarray(TIMES), **TIGHT))(y0)


@row("1,000 differential equations, mapped", starts, numpy=numpy_hunts, jax=jax_hunts, dask=None,
     tolerance=1e-2)  # fmt: skip
def vmap_ode(ost: Any, y0: Any) -> Any:
    field = lambda t, y: hunt(ost, y)  # noqa: E731
    solve = lambda y: ost.solve.rk45(field, (0.0, 5.0), y, t_eval=TIMES, **TIGHT).y  # noqa: E731
    return ost.vmap(solve)(y0)


# -- transforms ----------------------------------------------------------------------------
@functools.cache
def waves() -> Sequence[Numbers]:
    return [normal()[0].reshape(-1, 1000)]


@row("the transforms of 1,000 real rows of 1,000", waves, traffic=12.0 * N)
def rfft(xp: Any, x: Any) -> Any:
    return xp.fft.rfft(x, axis=1)


@row("1,000 x 1,000 numbers transformed along both axes", waves, traffic=12.0 * N,
     dask=lambda da, x: da.fft.fft2(x.rechunk(-1)))  # fmt: skip
def fft2(xp: Any, x: Any) -> Any:
    return xp.fft.fft2(x)


@row("a line of 1,000,000 there and back, halved", normal, traffic=8.0 * N, tolerance=1e-3,
     dask=lambda da, x: da.fft.irfft(da.fft.rfft(x.rechunk(-1)) * 0.5, N))  # fmt: skip
def fft_filter(xp: Any, x: Any) -> Any:
    return xp.fft.irfft(xp.fft.rfft(x) * 0.5, N)


# -- complex numbers -----------------------------------------------------------------------
@functools.cache
def plane() -> Sequence[Numbers]:
    """Two lines of complex64."""
    x = np.random.default_rng(8).normal(size=(4, N)).astype(np.float32)
    return [x[0] + np.complex64(1j) * x[1], x[2] + np.complex64(1j) * x[3]]


@row("a product and a sum of complex numbers", plane, traffic=24.0 * N)
def complex_product(xp: Any, z: Any, w: Any) -> Any:
    return z * w + z


@row("quotients of complex numbers", plane, traffic=24.0 * N)
def complex_quotient(xp: Any, z: Any, w: Any) -> Any:
    return z / w


@row("the lengths of complex numbers", lambda: plane()[:1], traffic=12.0 * N)
def complex_abs(xp: Any, z: Any) -> Any:
    return abs(z)


@row("exp of complex numbers", lambda: plane()[:1], traffic=16.0 * N)
def complex_exp(xp: Any, z: Any) -> Any:
    return xp.exp(z)


@row("log of complex numbers", lambda: plane()[:1], traffic=16.0 * N)
def complex_log(xp: Any, z: Any) -> Any:
    return xp.log(z)


@row("square roots of complex numbers", lambda: plane()[:1], traffic=16.0 * N)
def complex_sqrt(xp: Any, z: Any) -> Any:
    return xp.sqrt(z)


@row("tanh of complex numbers", lambda: plane()[:1], traffic=16.0 * N)
def complex_tanh(xp: Any, z: Any) -> Any:
    return xp.tanh(z)


@row("the inner product of two complex lines", plane, traffic=16.0 * N)
def complex_inner(xp: Any, z: Any, w: Any) -> Any:
    return (xp.conj(z) * w).sum()


@row("1,000 complex rows of 1,000, each divided by its length",
     lambda: [plane()[0].reshape(-1, 1000)], traffic=16.0 * N)  # fmt: skip
def complex_rows(xp: Any, z: Any) -> Any:
    return z / xp.sqrt((abs(z) ** 2).sum(axis=1, keepdims=True))


# -- special functions ---------------------------------------------------------------------
@functools.cache
def positive() -> Sequence[Numbers]:
    return [np.random.default_rng(6).uniform(0.1, 20, N).astype(np.float32)]


@functools.cache
def shares() -> Sequence[Numbers]:
    return [np.random.default_rng(7).uniform(0.001, 0.999, N).astype(np.float32)]


SPECIAL: dict[str, Operands] = {}  # of which benchmarks/errors.py tells the errors


def _special(name: str, about: str, operands: Operands, tolerance: float = 1e-4) -> None:
    """A function that SciPy has by this name, and JAX in its own `scipy`."""

    def numpy(xp: Any, *xs: Any) -> Any:
        import scipy.special  # type: ignore[import-untyped, unused-ignore]

        return getattr(scipy.special, name)(*xs)

    def jax(jnp: Any, *xs: Any) -> Any:
        from jax.scipy import special  # type: ignore[import-not-found, unused-ignore]

        return getattr(special, name)(*xs)

    SPECIAL[name] = operands
    lacks = name in ("j0", "y0")

    def ours(ost: Any, *xs: Any) -> Any:
        return getattr(ost.special, name)(*xs)

    add = row(
        about,
        operands,
        name=name,
        tolerance=tolerance,
        numpy=numpy,
        jax=None if lacks else jax,
        dask=numpy,  # which takes SciPy's functions of elements
    )
    add(ours)


_special("gammaln", "the logarithm of gamma", positive)
_special("digamma", "the slope of gammaln", positive, 1e-3)
_special("ndtri", "the normal distribution's quantile", shares)
_special("log_ndtr", "the logarithm of the normal distribution", normal)
_special("erfinv", "the inverse of erf", shares)
_special("i0e", "a modified Bessel function", positive)
_special("j0", "a Bessel function", positive, 1e-3)
_special("y0", "a Bessel function of the second kind", positive, 1e-3)
_special("logit", "log odds", shares)
_special(
    "gammainc",
    "the incomplete gamma function",
    lambda: [*positive(), positive()[0][::-1].copy()],
    1e-3,
)
_special("betainc", "the incomplete beta function",
         lambda: [*positive(), positive()[0][::-1].copy(), *shares()], 1e-3)  # fmt: skip


# -- random numbers ------------------------------------------------------------------------
SEED = 5


def _drawn(name: str, about: str, given: tuple[float, ...], jax_name: str = "") -> None:
    """Draws of a distribution, which all libraries have of their own: their mean is compared."""

    def numpy(xp: Any, seed: Any) -> Any:
        r = np.random.default_rng(int(seed))
        exact = {"dtype": np.float32} if name in ("standard_gamma", "standard_exponential") else {}
        return getattr(r, name)(*given, size=N, **exact)

    def jax(jnp: Any, seed: Any) -> Any:
        from jax import random  # type: ignore[import-not-found, unused-ignore]

        key = random.key(seed)
        if name in ("poisson", "standard_gamma", "beta", "binomial"):
            return getattr(random, jax_name or name)(key, *given, shape=(N,))
        return getattr(random, jax_name or name)(key, shape=(N,))

    def ours(ost: Any, seed: Any) -> Any:
        own = {"standard_gamma": "gamma", "standard_exponential": "exponential"}.get(name, name)
        return getattr(ost.random, own)(*given, shape=(N,), seed=seed)

    def dask(da: Any, seed: Any) -> Any:
        return getattr(da.random.default_rng(SEED), name)(*given, size=N, chunks=-(-N // 2))

    def mean(function: Function) -> Function:
        return lambda xp, seed: function(xp, seed[0]).mean()

    row(
        about,
        lambda: [np.array([SEED], np.uint32)],
        name=f"draw_{name.removeprefix('standard_')}",
        traffic=4.0 * N,
        tolerance=0.02,
        numpy=mean(numpy),
        jax=mean(jax),
        dask=mean(dask),
    )(mean(ours))


_drawn("standard_exponential", "numbers of the exponential distribution", (), "exponential")
_drawn("standard_gamma", "numbers of a gamma distribution", (2.5,), "gamma")
_drawn("beta", "numbers of a beta distribution", (2.0, 3.0))
_drawn("poisson", "counts of 4 events", (4.0,))
_drawn("binomial", "counts of 100 tries", (100.0, 0.4))


# -- files ---------------------------------------------------------------------------------
WORKLOADS.append(STREAMING)
