"""Work that a machine's memory and arithmetic limit: fused chains, reductions, products, models.

Every iteration computes the same thing from the same operands and keeps the last result; those of
training go on from the parameters that they made."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import by_hand, ranks, training
from .libraries import Function, NumPy, case, everywhere, nothing, ostinato_case, together
from .machine import THREADS
from .workload import Case, Numbers, Workload, scaled

BLOCK = 512  # rows that are computed at a time in double precision, where results are large


def expected(function: Function, operands: Sequence[Numbers], rows: bool) -> Any:
    """In double precision: NumPy adds up long columns of float32 poorly. `rows`: the results have
    the first operand's rows, and each is made of its own."""
    first, *others = operands
    step = BLOCK if rows else len(first)
    found: list[Any] = []
    for k in range(0, len(first), step):
        given = [x.astype(np.float64) for x in (first[k : k + step], *others)]
        y = function(NumPy(), *given)
        found.append([p.astype(np.float32) for p in y] if rows and isinstance(y, tuple) else y)
    parts = [y if isinstance(y, (tuple, list)) else (y,) for y in found]
    if len(parts) == 1:
        return together(parts[0])
    return together([np.concatenate(p).astype(np.float32) for p in zip(*parts, strict=True)])


def workload(
    name: str,
    about: str,
    function: Function,
    operands: Callable[[], Sequence[Numbers]],
    traffic: float,
    flops: float = 0,
    *,
    rows: bool = False,
    in_steps: Function | None = None,
    tolerance: float = 1e-3,
    others: Mapping[str, Callable[[], Case]] | None = None,
    only: Sequence[str] = (),
    seconds: float = 6.0,
) -> Workload:
    """In each library, or in these only."""
    cases = {**everywhere(function, operands, in_steps), **(others or {})}
    cases = {name: case for name, case in cases.items() if not only or name in only}
    return Workload(
        name,
        about,
        lambda: expected(in_steps or function, operands(), rows),
        cases,
        tolerance=tolerance,
        traffic=traffic,
        flops=flops,
        seconds=seconds,
    )


# -- poly ----------------------------------------------------------------------------------
@functools.cache
def twenty_million() -> tuple[Numbers]:
    return (np.random.default_rng(1).uniform(-1, 1, scaled(20_000_000)).astype(np.float32),)


COEFFICIENTS = (0.5, -0.25, 0.125, 1.5, -0.75, 0.3, 0.2, -0.1, 1.0)


def poly(xp: Any, x: Any) -> Any:
    y = x * COEFFICIENTS[0] + COEFFICIENTS[1]
    for c in COEFFICIENTS[2:]:
        y = y * x + c
    return y


# -- elementwise and reductions ------------------------------------------------------------
@functools.cache
def options() -> tuple[Numbers, ...]:
    rng = np.random.default_rng(2)
    ranges = ((10, 50), (10, 50), (0.25, 2.0))
    return tuple(rng.uniform(a, b, scaled(10_000_000)).astype(np.float32) for a, b in ranges)


def blackscholes(xp: Any, s: Any, k: Any, t: Any) -> Any:
    rate, vol = 0.02, 0.3
    root = vol * xp.sqrt(t)
    d1 = (xp.log(s / k) + (rate + 0.5 * vol * vol) * t) / root
    d2 = d1 - root
    n1 = 0.5 + 0.5 * xp.erf(d1 * math.sqrt(0.5))
    n2 = 0.5 + 0.5 * xp.erf(d2 * math.sqrt(0.5))
    left = k * xp.exp(t * -rate)
    call = s * n1 - left * n2
    return call, call - s + left


def norm(xp: Any, x: Any) -> Any:
    return xp.sum((x - 0.5) ** 2)


@functools.cache
def table() -> tuple[Numbers]:
    x = np.random.default_rng(3).normal(1, 2, (scaled(4_000_000), 16))
    return (x.astype(np.float32),)


def meanstd(xp: Any, x: Any) -> Any:
    return xp.mean(x, axis=0), xp.std(x, axis=0)


@functools.cache
def logits() -> tuple[Numbers, ...]:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((scaled(8192), 32_000), np.float32)
    return x, rng.standard_normal(32_000, np.float32)


def softmax(xp: Any, x: Any, w: Any) -> Any:
    slopes = xp.grad(lambda x: xp.sum(xp.softmax(x, axis=1) * w))
    return xp.softmax(x, axis=1), slopes(x)


def softmax_in_steps(xp: Any, x: Any, w: Any) -> Any:
    y = xp.exp(x - xp.max(x, axis=1, keepdims=True))
    y /= xp.sum(y, axis=1, keepdims=True)
    return y, y * (w - (y @ w)[:, None])


# -- models --------------------------------------------------------------------------------
@functools.cache
def labelled() -> tuple[Numbers, ...]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(scaled(1_000_000), 32)).astype(np.float32)
    w = rng.normal(size=32).astype(np.float32)
    return x, (x @ w > 0).astype(np.float32), w


def logistic(xp: Any, x: Any, y: Any, w: Any) -> Any:
    error = 1 / (1 + xp.exp(-(x @ w))) - y
    return w - 0.1 * (error @ x) / x.shape[0]


@functools.cache
def points(clusters: int, many: int = 2_000_000, numbers: int = 16) -> tuple[Numbers, ...]:
    x = np.random.default_rng(5).normal(size=(scaled(many), numbers)).astype(np.float32)
    return x, x[:clusters].copy()


def many_centres() -> tuple[Numbers, ...]:
    return points(1024, 100_000, 128)


def kmeans(xp: Any, x: Any, c: Any) -> Any:
    d = xp.sum((x[:, None, :] - c[None]) ** 2, axis=-1)
    near = xp.one_hot(xp.argmin(d, axis=1), c.shape[0])
    return (near.T @ x) / xp.sum(near, axis=0)[:, None]


def kmeans_product(xp: Any, x: Any, c: Any) -> Any:
    d = xp.sum(c * c, axis=1) - 2 * (x @ c.T)
    near = xp.one_hot(xp.argmin(d, axis=1), c.shape[0])
    return (near.T @ x) / xp.sum(near, axis=0)[:, None]


def kmeans_sklearn(clusters: int) -> Case:
    """What its KMeans runs in each iteration, without what it does once before and after. That is
    no public function; the answer comes from the public one, after one iteration."""
    import warnings

    from sklearn.cluster import KMeans  # type: ignore[import-not-found, unused-ignore]
    from sklearn.cluster._k_means_lloyd import (  # type: ignore[import-not-found, unused-ignore]
        lloyd_iter_chunked_dense,
    )
    from threadpoolctl import threadpool_limits  # type: ignore[import-not-found, unused-ignore]

    x, c = points(clusters)
    weights, labels = np.ones(len(x), np.float32), np.zeros(len(x), np.int32)
    moved, inside, shift = np.empty_like(c), np.empty(len(c), np.float32), np.empty_like(c[:, 0])

    def loop(n: int) -> None:
        with threadpool_limits(1, "blas"):  # as KMeans has it: its blocks are its threads
            for _ in range(n):
                lloyd_iter_chunked_dense(x, weights, c, moved, inside, labels, shift, THREADS)

    def answer() -> Any:
        model = KMeans(len(c), init=c, n_init=1, max_iter=1, tol=0, algorithm="lloyd")
        with warnings.catch_warnings(action="ignore"):
            centres = model.fit(x).cluster_centers_
        loop(1)
        np.testing.assert_allclose(moved, centres, rtol=1e-3, atol=1e-4)
        return centres

    return Case(answer, loop)


# -- products ------------------------------------------------------------------------------
@functools.cache
def clouds() -> tuple[Numbers, ...]:
    rng = np.random.default_rng(8)
    shape = (scaled(20_000), 64)
    return tuple(rng.standard_normal(shape, np.float32) for _ in "xy")


def cdist(xp: Any, x: Any, y: Any) -> Any:
    squares = xp.sum(x * x, axis=1)[:, None] + xp.sum(y * y, axis=1)
    return xp.sqrt(xp.maximum(squares - 2 * (x @ y.T), 0))


def cdist_sklearn() -> Case:
    from sklearn.metrics.pairwise import (  # type: ignore[import-not-found, unused-ignore]
        euclidean_distances,
    )

    return case(euclidean_distances, clouds(), nothing, np.asarray)


def cdist_torch() -> Case:
    import torch  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(THREADS)
    return case(torch.cdist, [torch.from_numpy(x) for x in clouds()], nothing, np.asarray)


def nearest(xp: Any, x: Any, c: Any) -> Any:
    return xp.argmin(xp.sum(c * c, axis=1) - 2 * (x @ c.T), axis=1)


@functools.cache
def addresses() -> tuple[Numbers, ...]:
    rng = np.random.default_rng(11)
    shapes = (scaled(100_000), 64), (scaled(2000), 64)
    return tuple(rng.standard_normal(s, np.float32) for s in shapes)


@functools.cache
def heads() -> tuple[Numbers, ...]:
    rng = np.random.default_rng(12)
    return tuple(rng.standard_normal((scaled(4096), 64), np.float32) for _ in "qkv")


def attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return xp.softmax(q @ k.T / 8, axis=1) @ v


def attention_slopes(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return xp.grad(lambda q: xp.sum(attention(xp, q, k, v) ** 2))(q)


def attention_slopes_in_steps(xp: Any, q: Any, k: Any, v: Any) -> Any:
    p = xp.softmax(q @ k.T / 8, axis=1)
    slopes = p * (2 * (p @ v) @ v.T)
    return (slopes - p * xp.sum(slopes, axis=1, keepdims=True)) @ k / 8


def whole(function: Function, operands: Callable[[], Sequence[Numbers]]) -> dict[str, Any]:
    """Ours, with what is large between products made at once and kept in memory."""

    def ready() -> Case:
        from ostinato.planner.passes import cache_blocking

        cache_blocking.MIN_VALUE_BYTES = sys.maxsize
        return ostinato_case(function, operands())

    return {"ostinato/whole": ready}


@functools.cache
def tall() -> tuple[Numbers]:
    return (np.random.default_rng(9).standard_normal((scaled(2_000_000), 64), np.float32),)


def gram(xp: Any, x: Any) -> Any:
    return x.T @ x


def squares(n: int) -> Callable[[], tuple[Numbers, ...]]:
    rng = np.random.default_rng(n)
    return lambda: tuple(rng.standard_normal((n, n), np.float32) for _ in "ab")


def product(xp: Any, a: Any, b: Any) -> Any:
    return a @ b


def sgemm(n: int) -> Workload:
    name, n = f"sgemm{n}", scaled(n)
    operands = functools.cache(squares(n))
    about = f"the product of two matrices of {n} x {n}"
    return workload(name, about, product, operands, 12 * n * n, 2 * n**3, rows=True)


@functools.cache
def factored() -> tuple[Numbers]:
    return (np.random.default_rng(10).standard_normal((scaled(1_000_000), 64), np.float32),)


def signless(qr: Any) -> Any:
    """R and the first rows of Q, whose columns have either sign."""
    q, r = qr
    return together([np.abs(np.asarray(r)), np.abs(np.asarray(q[:1000]))])


def qr_ostinato() -> Case:
    import ostinato as ost

    ost.connect(workers=2)
    x = ost.asarray(factored()[0], split=0)
    run = ost.compile(lambda x: tuple(ost.linalg.qr(x)))
    made = case(run, [x], nothing, np.asarray)
    return Case(lambda: signless(run(x)), made.loop)


def qr_numpy() -> Case:
    made = case(np.linalg.qr, factored(), nothing, np.asarray)
    return Case(lambda: signless(np.linalg.qr(*factored())), made.loop)


def qr_jax() -> Case:
    import jax  # type: ignore[import-not-found, unused-ignore]

    run, x = jax.jit(jax.numpy.linalg.qr), jax.device_put(*factored())
    made = case(run, [x], jax.block_until_ready, np.asarray)
    return Case(lambda: signless(run(x)), made.loop)


def qr_torch() -> Case:
    import torch

    torch.set_num_threads(THREADS)
    x = torch.from_numpy(*factored())
    made = case(torch.linalg.qr, [x], nothing, np.asarray)
    return Case(lambda: signless(torch.linalg.qr(x)), made.loop)


def qr() -> Workload:
    n = scaled(1_000_000)
    return Workload(
        "qr",
        f"of {n:,} x 64, two workers",
        lambda: signless(np.linalg.qr(factored()[0].astype(np.float64))),
        {
            "ostinato": qr_ostinato,
            "numpy": qr_numpy,
            "jax": qr_jax,
            "torch": qr_torch,
            "heat": lambda: ranks.heat_qr(factored(), signless),
            "mpi": lambda: ranks.mpi_qr(factored(), signless),
        },
        tolerance=1e-3,
        traffic=8 * n * 64,
        flops=4 * n * 64**2,
        seconds=6.0,
    )


def heat(function: Function, operands: Callable[[], Sequence[Numbers]], *split: int) -> Any:
    return lambda: ranks.heat_case(function, operands(), split)


def mpi(function: Function, operands: Callable[[], Sequence[Numbers]], *split: int) -> Any:
    return lambda: ranks.mpi_case(function, operands(), split)


def step_of_kmeans(name: str, clusters: int, function: Function, how: str) -> Workload:
    n, operands = scaled(2_000_000), functools.partial(points, clusters)
    return workload(
        name,
        f"a step over {n:,} x 16 with {clusters} centres, {how}",
        function,
        operands,
        4 * n * 16,
        (2 * clusters + 1) * n * 16,  # all distances, and each point added to its centre's
        others={
            "numba": lambda: by_hand.kmeans(*operands()),
            "sklearn": lambda: kmeans_sklearn(clusters),
            "heat": heat(ranks.heat_kmeans, operands, 0),
            "mpi": mpi(ranks.mpi_kmeans, operands, 0),
        },
    )


WORKLOADS = (
    workload(
        "poly",
        f"a polynomial of degree 8 of {scaled(20_000_000):,} numbers",
        poly,
        twenty_million,
        8 * scaled(20_000_000),
        others={"numba": lambda: by_hand.poly(COEFFICIENTS, *twenty_million())},
    ),
    workload(
        "blackscholes",
        f"calls and puts of {scaled(10_000_000):,} options",
        blackscholes,
        options,
        20 * scaled(10_000_000),
        others={"numba": lambda: by_hand.blackscholes(*options())},
    ),
    workload(
        "norm",
        f"the sum of squares of {scaled(20_000_000):,} shifted numbers",
        norm,
        twenty_million,
        4 * scaled(20_000_000),
        others={"numba": lambda: by_hand.norm(*twenty_million())},
    ),
    workload(
        "meanstd",
        f"of the columns of ({scaled(4_000_000):,}, 16)",
        meanstd,
        table,
        64 * scaled(4_000_000),
        others={
            "numba": lambda: by_hand.meanstd(*table()),
            "heat": heat(meanstd, table, 0),
            "mpi": mpi(ranks.mpi_meanstd, table, 0),
        },
    ),
    workload(
        "logistic",
        f"a gradient step over {scaled(1_000_000):,} x 32",
        logistic,
        labelled,
        128 * scaled(1_000_000),
        others={
            "heat": heat(logistic, labelled, 0, 1),
            "mpi": mpi(ranks.mpi_logistic, labelled, 0, 1),
        },
    ),
    step_of_kmeans("kmeans", 8, kmeans, "as written on paper"),
    step_of_kmeans("kmeans64", 64, kmeans_product, "its distances by a product"),
    workload(
        "cdist",
        f"distances between {scaled(20_000):,} points and as many others, of 64 numbers",
        cdist,
        clouds,
        4 * scaled(20_000) ** 2,
        128 * scaled(20_000) ** 2,
        rows=True,
        others={
            "torch/cdist": cdist_torch,
            "sklearn": cdist_sklearn,
            "heat": heat(ranks.heat_cdist, clouds, 0),
            "mpi": mpi(ranks.mpi_cdist, clouds, 0),
        },
    ),
    workload(
        "gram",
        f"x.T @ x of ({scaled(2_000_000):,}, 64)",
        gram,
        tall,
        256 * scaled(2_000_000),
        64 * 65 * scaled(2_000_000),  # of what is symmetric, one half
        others={"heat": heat(gram, tall, 0), "mpi": mpi(ranks.mpi_gram, tall, 0)},
    ),
    workload(
        "attention",
        f"of {scaled(4096):,} x 64",
        attention,
        heads,
        16 * scaled(4096) * 64,
        4 * scaled(4096) ** 2 * 64,
        rows=True,
        others=whole(attention, heads),
    ),
    workload(
        "attention_slopes",
        "of the sum of its squares, by the queries",
        attention_slopes,
        heads,
        16 * scaled(4096) * 64,
        8 * scaled(4096) ** 2 * 64,
        rows=True,
        in_steps=attention_slopes_in_steps,
        others=whole(attention_slopes, heads),
    ),
    workload(
        "nearest",
        f"of {scaled(2000):,} centres for each of {scaled(100_000):,} points of 64 numbers",
        nearest,
        addresses,
        4 * scaled(100_000) * 64,
        2 * scaled(100_000) * scaled(2000) * 64,
        rows=True,
        others=whole(nearest, addresses),
    ),
    workload(
        "kmeans1024",
        f"a step over {scaled(100_000):,} x 128 with 1,024 centres",
        kmeans_product,
        many_centres,
        4 * scaled(100_000) * 128,
        (2 * 1024 + 1) * scaled(100_000) * 128,
        others=whole(kmeans_product, many_centres),
    ),
    *(sgemm(n) for n in (512, 1024, 4096)),
    *(training.mlp(layers) for layers in (1, 4, 16)),
    qr(),
    workload(
        "softmax",
        f"of the rows of ({scaled(8192):,}, 32000), and the slopes of a loss",
        softmax,
        logits,
        12 * scaled(8192) * 32_000,
        rows=True,
        in_steps=softmax_in_steps,
    ),
)
