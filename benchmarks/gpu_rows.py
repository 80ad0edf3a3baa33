"""Programs of many kinds, as their users write them, at sizes that occupy a GPU: rows of `benchmarks gpu`.

Each function is written once, for all libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .libraries import Function, everywhere
from .workload import Numbers, Workload, scaled

ROWS: list[tuple[Workload, Function, Callable[[], tuple[Numbers, ...]]]] = []
Make = Callable[[np.random.Generator], tuple[Numbers, ...]]


def row(about: str, make: Make, tolerance: float = 1e-3) -> Callable[[Function], Function]:
    """A row by the name of its function; `make` makes its operands."""

    def add(function: Function) -> Function:
        from .libraries import NumPy

        @functools.cache
        def operands() -> tuple[Numbers, ...]:
            return make(np.random.default_rng(30))

        name = function.__name__
        cases = {k: v for k, v in everywhere(function, operands).items() if k != "numpy"}
        expect = lambda: function(NumPy(), *operands())  # noqa: E731
        workload = Workload(name, about, expect, cases, tolerance=tolerance, seconds=6.0)
        ROWS.append((workload, function, operands))
        return function

    return add


def side(n: int) -> int:
    """Of a square that is `scaled` as a whole."""
    return max(16, round(scaled(n * n) ** 0.5))


def normal(rng: np.random.Generator, *shape: int) -> Numbers:
    return rng.standard_normal(shape, np.float32)


@row(
    "8 steps of heat on a square by slices and joins",
    lambda r: (normal(r, side(4096), side(4096)),),
)
def stencil2d(xp: Any, u: Any) -> Any:
    for _ in range(8):
        inner = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        rows = inner + 0.1 * (around - 4 * inner)
        rows = xp.concatenate([u[1:-1, :1], rows, u[1:-1, -1:]], 1)
        u = xp.concatenate([u[:1], rows, u[-1:]], 0)
    return u


def _cells(rng: np.random.Generator) -> tuple[Numbers, ...]:
    return ((rng.random((side(4096), side(4096))) < 0.4).astype(np.int32),)


@row("8 turns of Conway's game of life by rolls of int32", _cells)
def life(xp: Any, cells: Any) -> Any:
    for _ in range(8):
        rows = cells + xp.roll(cells, 1, 0) + xp.roll(cells, -1, 0)
        near = rows + xp.roll(rows, 1, 1) + xp.roll(rows, -1, 1) - cells
        alive = (near == 3) | ((cells == 1) & (near == 2))
        cells = xp.where(alive, cells * 0 + 1, cells * 0)
    return cells


@row(
    "forces of all pairs of bodies, n x n x 3 summed over one",
    lambda r: (normal(r, side(4096), 3), np.abs(normal(r, side(4096)))),
)
def allpairs(xp: Any, x: Any, mass: Any) -> Any:
    apart = x[None, :, :] - x[:, None, :]
    squares = xp.sum(apart * apart, 2) + 0.01
    weights = mass[None, :] / (squares * xp.sqrt(squares))
    return xp.sum(weights[:, :, None] * apart, 1)


def _labelled(rng: np.random.Generator) -> tuple[Numbers, ...]:
    n = scaled(200_000)
    one_hot = np.eye(16, dtype=np.float32)[rng.integers(0, 16, n)]
    return normal(rng, n, 64), normal(rng, 64, 16) / 8, one_hot


@row("the slope of a softmax regression, 64 numbers, 16 classes", _labelled)
def regression(xp: Any, x: Any, w: Any, y: Any) -> Any:
    return x.T @ (xp.softmax(x @ w, 1) - y) / x.shape[0]


def _plane(rng: np.random.Generator) -> tuple[Numbers, ...]:
    n = side(2048)
    a, b = np.linspace(-2, 0.5, n, dtype=np.float32), np.linspace(-1.2, 1.2, n, dtype=np.float32)
    return a[None, :] + 0 * b[:, None], b[:, None] + 0 * a[None, :]


@row("24 steps of a Mandelbrot set's escape times", _plane, tolerance=1.0)
def escape(xp: Any, a: Any, b: Any) -> Any:
    x, y, count = a * 0, b * 0, a * 0
    for _ in range(24):
        inside = x * x + y * y < 4
        count = xp.where(inside, count + 1, count)
        x, y = xp.where(inside, x * x - y * y + a, x), xp.where(inside, 2 * x * y + b, y)
    return count


@row(
    "running sums of 20,000 paths of 512 steps, and their statistics",
    lambda r: (normal(r, scaled(20_000), 512) / 32,),
)
def paths(xp: Any, steps: Any) -> Any:
    prices = xp.exp(xp.cumsum(steps, 1))
    return xp.mean(prices, 1) - xp.max(prices, 1, keepdims=True)[:, 0]


@row(
    "the covariance of the 16 columns of a tall table",
    lambda r: (normal(r, scaled(1_000_000), 16),),
)
def covariance(xp: Any, x: Any) -> Any:
    away = x - xp.mean(x, 0)
    return away.T @ away / x.shape[0]


@row("z-scores of a tall table", lambda r: (normal(r, scaled(1_000_000), 16),))
def zscores(xp: Any, x: Any) -> Any:
    return (x - xp.mean(x, 0)) / xp.std(x, 0)


def _bags(rng: np.random.Generator) -> tuple[Numbers, ...]:
    n = scaled(100_000)
    return normal(rng, n, 64), rng.integers(0, n, (scaled(20_000), 32))


@row("mean and maximum of bags of 32 rows of a table", _bags)
def bags(xp: Any, table: Any, places: Any) -> Any:
    found = table[places]
    return xp.mean(found, 1) + xp.max(found, 1, keepdims=True)[:, 0]


def _cell(rng: np.random.Generator) -> tuple[Numbers, ...]:
    n = 256
    return normal(rng, 16, 64, n), normal(rng, n, 4 * n) / 16, normal(rng, n, 4 * n) / 16


@row("an LSTM of 256 over 16 steps, a batch of 64", _cell)
def lstm(xp: Any, x: Any, w: Any, u: Any) -> Any:
    h, n = x[0] * 0, x.shape[2]
    c = h
    for k in range(16):
        g = x[k] @ w + h @ u
        i, f, o = (1 / (1 + xp.exp(-g[:, j * n : (j + 1) * n])) for j in range(3))
        c = f * c + i * xp.tanh(g[:, 3 * n :])
        h = o * xp.tanh(c)
    return h


@row(
    "a polynomial of degree 6 of complex numbers",
    lambda r: (0.5 * normal(r, scaled(4_000_000), 2).view(np.complex64)[:, 0],),
)
def complexpoly(xp: Any, z: Any) -> Any:
    y = z * 0 + 1
    for k in range(6):
        y = y * z + (k + 1)
    return y.real * y.real + y.imag * y.imag


@row("the autocorrelation of a series at 8 lags", lambda r: (normal(r, scaled(4_000_000)),))
def lags(xp: Any, x: Any) -> Any:
    x = x - xp.mean(x, 0)
    found = [xp.sum(x[k:] * x[: x.shape[0] - k]) for k in range(8)]
    return xp.stack(found) / xp.sum(x * x)


@row("the columns of a square, sorted", lambda r: (normal(r, side(4096), side(4096)),))
def sortcolumns(xp: Any, x: Any) -> Any:
    return xp.sort(x, 0)


@row(
    "least squares by QR of a tall matrix, 400,000 x 32",
    lambda r: (normal(r, scaled(400_000), 32), normal(r, scaled(400_000))),
)
def tallqr(xp: Any, a: Any, b: Any) -> Any:
    q, r = xp.linalg.qr(a)
    return xp.linalg.solve(r, (q.T @ b)[:, None])[:, 0]


@row(
    "10 rounds of Sinkhorn's balancing of a square", lambda r: (normal(r, side(4096), side(4096)),)
)
def sinkhorn(xp: Any, cost: Any) -> Any:
    kernel = xp.exp(-xp.abs(cost))
    v = kernel[0] * 0 + 1
    for _ in range(10):
        u = 1 / (kernel @ v)
        v = 1 / (kernel.T @ u)
    return u[:, None] * kernel * v[None, :]


def _positive(rng: np.random.Generator) -> tuple[Numbers, ...]:
    n = side(4096)
    a = normal(rng, n, n)
    return (a + a.T) / (2 * n**0.5) + 4 * np.eye(n, dtype=np.float32), normal(rng, n)


@row("16 steps of conjugate gradients with a dense matrix", _positive)
def gradients(xp: Any, a: Any, b: Any, steps: int = 16) -> Any:
    x, r, p = b * 0, b, b
    squares = xp.sum(r * r)
    for _ in range(steps):
        q = a @ p
        step = squares / xp.sum(p * q)
        x, r = x + step * p, r - step * q
        new = xp.sum(r * r)
        p, squares = r + new / squares * p, new
    return x


@row(
    "attention of 16 heads of 64 over 2,048 places",
    lambda r: tuple(normal(r, 16, scaled(2048), 64) for _ in range(3)),
)
def heads(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return xp.softmax(q @ xp.swapaxes(k, 1, 2) / 8, 2) @ v


@row("the power spectrum of a series", lambda r: (normal(r, scaled(4_194_304)),))
def spectrum(xp: Any, x: Any) -> Any:
    found = xp.fft.fft(x)
    return found.real * found.real + found.imag * found.imag


@row("how often numbers below 1,000 occur", lambda r: (r.integers(0, 1000, scaled(8_000_000)),))
def counts(xp: Any, x: Any) -> Any:
    return xp.counted(x, 1000)


@row(
    "a running sum of a series, and how far it is below its mean",
    lambda r: (normal(r, scaled(8_000_000)),),
)
def walk(xp: Any, x: Any) -> Any:
    y = xp.cumsum(x, 0) / 1000
    return xp.mean(xp.abs(y - xp.mean(y, 0)), 0)


@row("products of small squares, 8 x 8", lambda r: (normal(r, scaled(200_000), 8, 8),))
def small(xp: Any, x: Any) -> Any:
    return xp.sum(x @ x @ xp.swapaxes(x, 1, 2), 0)


@row("edges of an image by Sobel's filters", lambda r: (normal(r, side(4096), side(4096)),))
def edges(xp: Any, x: Any) -> Any:
    across = x[:, 2:] - x[:, :-2]
    down = x[2:] - x[:-2]
    a = across[:-2] + 2 * across[1:-1] + across[2:]
    b = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    return xp.sqrt(a * a + b * b)


@row("8 steps of waves in a cube by rolls", lambda r: (normal(r, *(3 * (max(16, scaled(256)),))),))
def waves(xp: Any, u: Any) -> Any:
    before = u
    for _ in range(8):
        around = sum(xp.roll(u, s, k) for k in range(3) for s in (1, -1))
        u, before = 2 * u - before + 0.1 * (around - 6 * u), u
    return u


@row(
    "layer norms, GELU and a residual over rows of 768",
    lambda r: (normal(r, scaled(32_768), 768), normal(r, 768), normal(r, 768)),
)
def layernorm(xp: Any, x: Any, scale: Any, shift: Any) -> Any:
    away = x - xp.mean(x, 1)[:, None]
    y = away / xp.sqrt(xp.mean(away * away, 1) + 1e-5)[:, None] * scale + shift
    return x + 0.5 * y * (1 + xp.tanh(0.79788456 * (y + 0.044715 * y * y * y)))


@row("medians of the columns of a table", lambda r: (normal(r, scaled(200_001), 16),))
def medians(xp: Any, x: Any) -> Any:
    return xp.sort(x, 0)[x.shape[0] // 2]


@row(
    "log-likelihoods of 2,000,000 points under 8 normal distributions",
    lambda r: (normal(r, scaled(2_000_000), 4), normal(r, 8, 4), np.abs(normal(r, 8, 4)) + 1),
)
def mixture(xp: Any, x: Any, means: Any, widths: Any) -> Any:
    z = (x[:, None, :] - means[None]) / widths[None]
    logs = -0.5 * xp.sum(z * z, 2) - xp.sum(xp.log(widths), 1)[None]
    most = xp.max(logs, 1, keepdims=True)
    return xp.mean(xp.log(xp.sum(xp.exp(logs - most), 1)) + most[:, 0], 0)
