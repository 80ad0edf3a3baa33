"""Small pieces of work of many kinds: stencils, statistics, layers, pairs, pictures, moved axes.

Nothing is tuned to these. They are here to see what is slow, and how it fares with the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .kernels import workload
from .libraries import Function
from .products import numbers
from .workload import Workload

WORKLOADS: list[Workload] = []


def work(
    about: str, *shapes: tuple[int, ...], result: int, flops: float = 0, steps: int = 1
) -> Callable[[Function], Function]:
    """Adds a function to the suite; `result`: how many elements it gives, in each of its `steps`."""
    traffic = 4 * steps * (sum(map(math.prod, shapes)) + result)

    def add(function: Function) -> Function:
        WORKLOADS.append(
            workload(
                function.__name__,
                about,
                function,
                numbers(*shapes),
                traffic,
                flops,
                seconds=4.0,
            )
        )
        return function

    return add


# -- neighbours ----------------------------------------------------------------------------
@work("four neighbours' mean on a grid of 2048 x 2048", (2048, 2048), result=2046**2)
def jacobi(xp: Any, u: Any) -> Any:
    return 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])


@work("ten steps of the heat equation on 1024 x 1024", (1024, 1024), result=1004**2)
def heat(xp: Any, u: Any) -> Any:
    for _ in range(10):
        inside = u[1:-1, 1:-1]
        u = inside + 0.1 * (
            u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * inside
        )  # fmt: skip
    return u


@work("the Laplacian on 200 x 200 x 200", (200, 200, 200), result=198**3)
def laplace(xp: Any, u: Any) -> Any:
    inside = u[1:-1, 1:-1, 1:-1]
    sides = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
    return sides + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * inside


@work("a picture of 1080 x 1920 in grey, blurred", (1080, 1920, 3), result=1078 * 1918)
def blur(xp: Any, x: Any) -> Any:
    grey = 0.299 * x[:, :, 0] + 0.587 * x[:, :, 1] + 0.114 * x[:, :, 2]
    across = grey[:, :-2] + 2 * grey[:, 1:-1] + grey[:, 2:]
    return across[:-2] + 2 * across[1:-1] + across[2:]


@work("shifted round by one in four directions, 2048 x 2048", (2048, 2048), result=2048**2)
def periodic(xp: Any, u: Any) -> Any:
    return (xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1)) / 4


# -- windows -------------------------------------------------------------------------------
# What bounds the first three is multiplying and adding, of which a core of AVX-512 does two vectors at a
# time; the last one reads its operand once.
TAPS, LAGS, N = 200, 64, 1_000_000


@work("200 taps along 1,000,000 numbers", (N,), (TAPS,), result=N, flops=2.0 * TAPS * N)
def taps(xp: Any, x: Any, w: Any) -> Any:
    return xp.convolve(x, w, "same")


@work(
    "64 lags of the autocorrelation of 1,000,000",
    (N + LAGS - 1,),
    result=LAGS,
    flops=2.0 * LAGS * N,
)
def lags(xp: Any, x: Any) -> Any:
    return xp.correlate(x, x[:N], "valid")


@work(
    "31 taps along both axes, 1024 x 1024", (1054, 1054), (31,), result=1024**2, flops=124.0 * 2**20
)
def separable(xp: Any, x: Any, w: Any) -> Any:
    rows = sum(w[k] * x[k : k + 1024] for k in range(31))
    return sum(w[k] * rows[:, k : k + 1024] for k in range(31))


@work("the largest of 3 x 3, every other place of 2049 x 2049", (2049, 2049), result=1024**2)
def max_pool(xp: Any, x: Any) -> Any:
    rows = xp.maximum(xp.maximum(x[:-2:2], x[1:-1:2]), x[2::2])
    return xp.maximum(xp.maximum(rows[:, :-2:2], rows[:, 1:-1:2]), rows[:, 2::2])


@work("eight steps of a five-point stencil by concat, 2048 x 2048", (2048, 2048),
      result=2048**2, steps=8)  # fmt: skip
def joined_steps(xp: Any, u: Any) -> Any:
    for _ in range(8):
        inside = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
        rows = xp.concatenate([u[1:-1, :1], inside, u[1:-1, -1:]], axis=1)
        u = xp.concatenate([u[:1], rows, u[-1:]], axis=0)
    return u


@work("eight steps of a five-point stencil by roll, 2048 x 2048", (2048, 2048),
      result=2048**2, steps=8)  # fmt: skip
def rolled_steps(xp: Any, u: Any) -> Any:
    for _ in range(8):
        u = 0.25 * (xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1))
    return u


@work("a 27-point stencil in two steps, 200 x 200 x 200", (200,) * 3, result=200**3, steps=2)
def cubes(xp: Any, v: Any) -> Any:
    n, m, k = v.shape
    places = [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]
    for _ in range(2):
        p = xp.pad(v, 1)
        v = sum(p[a : a + n, b : b + m, c : c + k] for a, b, c in places) / 27
    return v


@work("Sobel's edges with their maximum and mean, 2048 x 2048", (2048, 2048), result=1)
def sobel(xp: Any, u: Any) -> Any:
    p = xp.pad(u, 1, mode="edge")
    left, right = p[:, :-2], p[:, 2:]
    across = right[:-2] + 2 * right[1:-1] + right[2:] - left[:-2] - 2 * left[1:-1] - left[2:]
    above, below = p[:-2], p[2:]
    down = below[:, :-2] + 2 * below[:, 1:-1] + below[:, 2:]
    down = down - above[:, :-2] - 2 * above[:, 1:-1] - above[:, 2:]
    size = xp.sqrt(across * across + down * down)
    return size.max() + size.mean()


@work("an unsharp mask of five by five, 2048 x 2048", (2048, 2048), result=2048**2)
def unsharp(xp: Any, u: Any) -> Any:
    p, (n, m), w = xp.pad(u, 2, mode="edge"), u.shape, (1, 4, 6, 4, 1)
    along = sum(w[i] * p[:, i : i + m] for i in range(5)) / 16
    blurred = sum(w[i] * along[i : i + n] for i in range(5)) / 16
    return xp.clip(u + 0.7 * (u - blurred), 0, 1)


@work("the largest drawdown of 20,000 random walks of 250 steps", (20_000, 250), result=20_000)
def drawdown(xp: Any, x: Any) -> Any:
    walk = xp.cumsum(x, axis=1)
    return xp.max(xp.maximum.accumulate(walk, axis=1) - walk, axis=1)


@work("a turn of the game of life on int32, 2048 x 2048", (2048, 2048), result=2048**2)
def life(xp: Any, u: Any) -> Any:
    u = xp.astype(u > 0, xp.int32)
    places = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    near = sum(xp.roll(u, place, (0, 1)) for place in places)
    return xp.astype((near == 3) | ((u == 1) & (near == 2)), xp.int32)


@work("a resonance curve's largest and mean power, 4,000,000", (4_000_000,), result=2)
def resonance(xp: Any, f: Any) -> Any:
    power = xp.abs(1 / (1 - f * f + 0.05j * f)) ** 2
    return power.max() + power.mean()


# -- statistics ----------------------------------------------------------------------------
@work("the mean squared step of 4,000,000 numbers", (4_000_000,), result=1)
def steps(xp: Any, x: Any) -> Any:
    return ((x[1:] - x[:-1]) ** 2).mean()


@work("the correlations of 100 columns of 200,000", (200_000, 100), result=100**2, flops=2e9)
def correlations(xp: Any, x: Any) -> Any:
    z = (x - x.mean(0)) / xp.std(x, axis=0)
    return z.T @ z / x.shape[0]


@work("the correlation of two columns of 3,000,000", (3_000_000,), (3_000_000,), result=1)
def pearson(xp: Any, x: Any, y: Any) -> Any:
    a, b = x - x.mean(), y - y.mean()
    return (a * b).sum() / xp.sqrt((a * a).sum() * (b * b).sum())


@work("sums over the first two axes of (256, 256, 64)", (256, 256, 64), result=64)
def outer_sums(xp: Any, x: Any) -> Any:
    return x.sum((0, 1))


@work("means over the first and last axis of (256, 256, 64)", (256, 256, 64), result=256)
def middle_means(xp: Any, x: Any) -> Any:
    return x.mean((0, 2))


@work("means of rows of 64, (65536, 64)", (65536, 64), result=65536)
def short_rows(xp: Any, x: Any) -> Any:
    return x.mean(1)


@work("the largest of 40 for each of 100,000", (100_000, 40), result=100_000)
def best(xp: Any, x: Any) -> Any:
    return xp.max(x, axis=1)


@work("the log of the sum of exponentials by columns, (4000, 2000)", (4000, 2000), result=2000)
def logsumexp(xp: Any, x: Any) -> Any:
    return xp.log(xp.exp(x).sum(0))


@work("a step of expectation and maximisation, 500,000 x 8, 16 normal distributions",
      (500_000, 8), (16, 8), (16, 8), result=16 * 8, flops=500_000 * 16 * 8 * 6)  # fmt: skip
def mixture(xp: Any, x: Any, means: Any, widths: Any) -> Any:
    off = (((x[:, None, :] - means[None]) ** 2) * (widths * widths)[None]).sum(-1)
    likely = xp.exp(-0.5 * off)
    share = likely / likely.sum(1)[:, None]
    return (share.T @ x) / share.sum(0)[:, None]


@work("a Poisson regression's gradient, 500,000 x 20", (500_000, 20), (500_000,), (20,), result=20)
def poisson(xp: Any, x: Any, y: Any, w: Any) -> Any:
    return (xp.exp(x @ w) - y) @ x


@work("a logistic regression's Hessian, 500,000 x 20", (500_000, 20), (20,), result=400, flops=4e8)
def hessian(xp: Any, x: Any, w: Any) -> Any:
    p = 1 / (1 + xp.exp(-(x @ w)))
    return (x * (p * (1 - p))[:, None]).T @ x


@work("2,000 systems of 6 equations", (2000, 6, 6), (2000, 6, 3), result=2000 * 18)
def systems(xp: Any, a: Any, b: Any) -> Any:
    return xp.linalg.solve(a, b)


# -- order and places ----------------------------------------------------------------------
@work("2,000 lines of 2,000 numbers in order", (2000, 2000), result=2000**2)
def ordered(xp: Any, x: Any) -> Any:
    return xp.sort(x, axis=1)


@work("medians of 31 for each of 100,000", (100_000, 31), result=100_000)
def medians(xp: Any, x: Any) -> Any:
    return xp.sort(x, axis=1)[:, 15]


@work("1,000,000 numbers by the places of their order", (1_000_000,), result=1_000_000)
def by_places(xp: Any, x: Any) -> Any:
    return xp.take(x, xp.argsort(x), axis=0)


@work("running sums of 4,000,000", (4_000_000,), result=4_000_000)
def running(xp: Any, x: Any) -> Any:
    return xp.cumulative_sum(x)


@work("a table of 1,000 at 1,000,000 places between", (1000,), (1_000_000,), result=1_000_000)
def between(xp: Any, table: Any, x: Any) -> Any:
    ends = xp.sort(table)
    k = xp.clip(xp.searchsorted(ends, x), 1, 999)
    low, high = (xp.take(ends, j, axis=0) for j in (k - 1, k))
    return (x - low) / (high - low + 1e-3)


@work("rows of 64 at 200,000 places of 50,000", (50_000, 64), (200_000,), result=200_000 * 64)
def picked(xp: Any, x: Any, places: Any) -> Any:
    return xp.take(x, _places(xp, places, 50_000), axis=0)


@work("100,000 rows of 64 added at 20,000 places", (100_000, 64), (100_000,), result=20_000 * 64)
def added(xp: Any, rows: Any, places: Any) -> Any:
    total, k = xp.zeros((20_000, 64), dtype=rows.dtype), _places(xp, places, 20_000)
    if hasattr(total, "at"):
        return total.at[k].add(rows)
    np.add.at(total, k, rows)
    return total


def _places(xp: Any, x: Any, size: int) -> Any:
    """Of numbers between -1 and 1, the same in any precision."""
    return xp.astype(x * 2**20, xp.int32) % size


# -- layers --------------------------------------------------------------------------------
@work("layer norm of (16384, 1024)", (16384, 1024), (1024,), (1024,), result=16384 * 1024)
def layer_norm(xp: Any, x: Any, g: Any, b: Any) -> Any:
    c = x - x.mean(1)[:, None]
    return c / xp.sqrt((c * c).mean(1) + 1e-5)[:, None] * g + b


@work("batch norm of pictures, (32, 64, 56, 56)", (32, 64, 56, 56), result=32 * 64 * 56**2)
def batch_norm(xp: Any, x: Any) -> Any:
    c = x - x.mean((0, 2, 3))[None, :, None, None]
    return c / xp.sqrt((c * c).mean((0, 2, 3)) + 1e-5)[None, :, None, None]


@work("means of squares of four, (32, 64, 56, 56)", (32, 64, 56, 56), result=32 * 64 * 28**2)
def pooling(xp: Any, x: Any) -> Any:
    return x.reshape(32, 64, 28, 2, 28, 2).mean((3, 5))


@work("Adam for 10,000,000 parameters", *[(10_000_000,)] * 4, result=10_000_000)
def adam(xp: Any, p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v * v + 0.001 * g * g
    return p - 1e-3 * m / (xp.sqrt(v) + 1e-8)


@work(
    "pairs of numbers rotated, (8, 512, 8, 64)",
    (8, 512, 8, 64),
    (512, 32),
    (512, 32),
    result=1 << 21,
)
def rotated(xp: Any, x: Any, c: Any, s: Any) -> Any:
    a, b, c, s = x[..., :32], x[..., 32:], c[:, None], s[:, None]
    return xp.concat([a * c - b * s, a * s + b * c], axis=-1)


@work("one half gates the other, (4096, 2048)", (4096, 2048), result=4096 * 1024)
def halves(xp: Any, x: Any) -> Any:
    y = 0.5 * x + 1
    return y[:, :1024] / (1 + xp.exp(-y[:, 1024:]))


@work("eight heads of attention, 8 x 256 x 256", *[(8, 256, 8, 32)] * 3, result=8 * 256**2,
      flops=4 * 8 * 8 * 256**2 * 32)  # fmt: skip
def heads(xp: Any, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (t.swapaxes(1, 2) for t in (q, k, v))
    found = xp.softmax(q @ k.swapaxes(2, 3) * 0.17, axis=3) @ v
    return found.swapaxes(1, 2).reshape(8, 256, 256)


# -- pairs ---------------------------------------------------------------------------------
@work("forces between 3,000 bodies", (3000, 3), (3000,), result=9000, flops=3000**2 * 18)
def bodies(xp: Any, p: Any, m: Any) -> Any:
    d = p[None, :, :] - p[:, None, :]
    square = (d * d).sum(-1) + 1e-3
    return ((m / (square * xp.sqrt(square)))[:, :, None] * d).sum(1)


@work("sums of absolute differences, 2,000 x 2,000 x 64", (2000, 64), (2000, 64), result=2000**2,
      flops=3 * 2000**2 * 64)  # fmt: skip
def manhattan(xp: Any, x: Any, y: Any) -> Any:
    return xp.abs(x[:, None, :] - y[None]).sum(-1)


@work("a kernel's matrix of 2,000 points of 100 numbers", (2000, 100), result=2000**2, flops=8e8)
def kernel_matrix(xp: Any, x: Any) -> Any:
    return xp.exp(0.01 * (x @ x.T))


# -- moved axes ----------------------------------------------------------------------------
@work("a matrix and its transpose, 4096 x 4096", (4096, 4096), result=4096**2)
def symmetric(xp: Any, x: Any) -> Any:
    return x + x.T


@work("the first and the last axis of (50, 50, 50, 50) exchanged", (50,) * 4, result=50**4)
def exchanged(xp: Any, x: Any) -> Any:
    return x.swapaxes(0, 3) * 1.5
