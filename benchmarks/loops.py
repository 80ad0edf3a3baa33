"""Many short turns in one call: solvers, recurrences, samplers, whose arrays are small.

Each function is written once; its loops are what each library has for them, and Python's in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import in_place
from .libraries import Function
from .workload import Numbers, Workload

WORKLOADS: list[Workload] = []


def work(about: str, *operands: Numbers, tolerance: float = 1e-3) -> Callable[[Function], Function]:
    return in_place.work(WORKLOADS, about, *operands, tolerance=tolerance)


def numbers(seed: int, *shape: int) -> Numbers:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def definite(seed: int, n: int) -> Numbers:
    x = numbers(seed, n, n)
    return (x @ x.T / n + np.eye(n)).astype(np.float32)


def sigmoid(xp: Any, x: Any) -> Any:
    return 1 / (1 + xp.exp(-x))


# -- equations that move -------------------------------------------------------------------
@work("Lorenz's equations by Runge and Kutta, 300 steps", numbers(1, 3))
def lorenz(xp: Any, start: Any) -> Any:
    def slope(x: Any, y: Any, z: Any) -> tuple[Any, ...]:
        return 10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z

    def go(state: Any, slopes: Any, h: float) -> tuple[Any, ...]:
        return tuple(a + h * b for a, b in zip(state, slopes, strict=True))

    def step(s: Any) -> tuple[Any, ...]:
        k1 = slope(*s)
        k2 = slope(*go(s, k1, 0.005))
        k3 = slope(*go(s, k2, 0.005))
        k4 = slope(*go(s, k3, 0.01))
        mean = tuple(p + 2 * q + 2 * r + t for p, q, r, t in zip(k1, k2, k3, k4, strict=True))
        return go(s, mean, 0.01 / 6)

    return xp.stack(list(xp.turns(300, step, (start[0], start[1], start[2]))))


@work("waves on a ring of 2,000 points, 200 steps", numbers(2, 2000), numbers(3, 2000))
def wave(xp: Any, u: Any, before: Any) -> Any:
    def step(s: Any) -> tuple[Any, Any]:
        u, before = s
        return 2 * u - before + 0.1 * (xp.roll(u, 1) + xp.roll(u, -1) - 2 * u), u

    return xp.turns(200, step, (u, before))[0]


@work("Jacobi's method on a grid of 64 x 64, 100 turns", numbers(4, 64, 64))
def grid(xp: Any, u: Any) -> Any:
    def step(u: Any) -> Any:
        inside = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
        return xp.pad(inside, 1)

    return xp.turns(100, step, u)


# -- updates in place ----------------------------------------------------------------------
@work("heat on a grid of 350 x 350 by slices, 200 steps", numbers(20, 350, 350).astype(np.float64))
def heat2d(xp: Any, u: Any) -> Any:
    inner = (slice(1, -1), slice(1, -1))

    def step(u: Any) -> Any:
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return xp.put(u, inner, u[inner] + 0.1 * (around - 4 * u[inner]))

    return xp.turns(200, step, u + 0)


@work("heat in a cube of 64 by slices, 50 steps", numbers(21, 64, 64, 64).astype(np.float64))
def heat3d(xp: Any, u: Any) -> Any:
    inner = (slice(1, -1),) * 3

    def step(u: Any) -> Any:
        around = u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, 2:, 1:-1]
        around = around + u[1:-1, :-2, 1:-1] + u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2]
        return xp.put(u, inner, u[inner] + 0.1 * (around - 6 * u[inner]))

    return xp.turns(50, step, u + 0)


@work("rows of 800 x 800 that follow from those before", numbers(22, 800, 800).astype(np.float64))
def rows(xp: Any, s: Any) -> Any:
    def step(state: Any) -> Any:
        s, k = state
        return xp.put(s, k + 1, 0.5 * s[k] + s[k + 1]), k + 1

    return xp.turns(799, step, (s + 0, 0))[0]


# -- solvers -------------------------------------------------------------------------------
@work("conjugate gradients for 100 unknowns, 30 turns", definite(5, 100), numbers(6, 100))
def gradients(xp: Any, a: Any, b: Any) -> Any:
    def step(s: Any) -> tuple[Any, ...]:
        x, r, p, old = s
        ap = a @ p
        far = old / (p * ap).sum()
        x, r = x + far * p, r - far * ap
        new = (r * r).sum()
        return x, r, r + new / old * p, new

    return xp.turns(30, step, (b * 0, b, b, (b * b).sum()))[0]


@work("the largest eigenvalue of 64 x 64, 200 turns", definite(7, 64), numbers(8, 64))
def power(xp: Any, a: Any, v: Any) -> Any:
    def step(v: Any) -> Any:
        w = a @ v
        return w / xp.sqrt((w * w).sum())

    return xp.turns(200, step, v)


@work("1,000 square roots by Newton, until they are good", numbers(9, 1000) ** 2 + np.float32(0.5))
def roots(xp: Any, a: Any) -> Any:
    return xp.until(
        lambda x: xp.max(xp.abs(x * x - a) / a) > 1e-5, lambda x: (x + a / x) / 2, a, 99
    )


@work("heat that spreads until the largest is below 0.05", numbers(10, 200), tolerance=1e-2)
def cooling(xp: Any, u: Any) -> Any:
    def step(u: Any) -> Any:
        return u + 0.2 * (xp.roll(u, 1) - 2 * u + xp.roll(u, -1))

    return xp.until(lambda u: xp.max(xp.abs(u)) > 0.05, step, u, 3000)


@work("Adam for 8 weights of a regression, 100 turns", numbers(11, 200, 8), numbers(12, 200))
def adam(xp: Any, x: Any, y: Any) -> Any:
    def step(s: Any) -> tuple[Any, ...]:
        w, m, v = s
        g = x.T @ (x @ w - y) / 200
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return w - 0.01 * m / (xp.sqrt(v) + 1e-8), m, v

    nothing = y[:8] * 0
    return xp.turns(100, step, (nothing, nothing, nothing))[0]


@work("20 leapfrog steps for a logistic posterior", numbers(13, 200, 8), numbers(14, 8))
def leapfrog(xp: Any, x: Any, p: Any) -> Any:
    def slope(q: Any) -> Any:
        return x.T @ (0.5 - sigmoid(xp, x @ q)) - q

    def step(s: Any) -> tuple[Any, Any]:
        q, p = s
        p = p + 0.005 * slope(q)
        q = q + 0.01 * p
        return q, p + 0.005 * slope(q)

    return xp.stack(list(xp.turns(20, step, (p * 0.1, p))))


@work("k-means of 500 points in 5 clusters, 50 turns", numbers(15, 500, 2), numbers(16, 5, 2))
def clusters(xp: Any, x: Any, centres: Any) -> Any:
    def step(c: Any) -> Any:
        near = ((x[:, None, :] - c[None]) ** 2).sum(-1).argmin(1)
        hot = xp.one_hot(near, 5)
        return (hot.T @ x) / (hot.sum(0)[:, None] + 1e-6)

    return xp.turns(50, step, centres)


# -- recurrences ---------------------------------------------------------------------------
@work("a filter of 2,000 samples", numbers(17, 2000))
def recursion(xp: Any, x: Any) -> Any:
    def step(s: Any, v: Any) -> tuple[Any, Any]:
        s = 0.9 * s + 0.1 * v
        return s, s

    return xp.scan(step, x[0] * 0, x)[1]


@work("a Kalman filter of 4 states and 2 measurements, 200 steps", numbers(26, 2, 4),
      numbers(27, 200, 2), np.eye(4, dtype=np.float32))  # fmt: skip
def kalman(xp: Any, seen: Any, measured: Any, one: Any) -> Any:
    def step(s: Any, z: Any) -> tuple[Any, Any]:
        x, p = s[0] * 0.9, s[1] * 0.81 + 0.1 * one
        gain = xp.linalg.solve(seen @ p @ seen.T + one[:2, :2], seen @ p).T
        x = x + gain @ (z - seen @ x)
        return (x, p - gain @ (seen @ p)), x

    return xp.scan(step, (seen[0] * 0, one), measured)[1]


@work("a recurrent network of 32, 100 steps", numbers(18, 100, 16), numbers(19, 16, 32) / 10,
      numbers(20, 32, 32) / 10)  # fmt: skip
def network(xp: Any, x: Any, w: Any, u: Any) -> Any:
    def step(h: Any, v: Any) -> tuple[Any, Any]:
        h = xp.tanh(v @ w + h @ u)
        return h, h

    return xp.scan(step, u[0] * 0, x)[1]


@work("gated units for 16 sequences, 50 steps", numbers(21, 50, 16, 24), numbers(22, 24, 96) / 10,
      numbers(23, 32, 96) / 10)  # fmt: skip
def gated(xp: Any, x: Any, w: Any, u: Any) -> Any:
    def step(h: Any, v: Any) -> tuple[Any, Any]:
        a, b = v @ w, h @ u
        r, z = (sigmoid(xp, a[:, k : k + 32] + b[:, k : k + 32]) for k in (0, 32))
        h = (1 - z) * xp.tanh(a[:, 64:] + r * b[:, 64:]) + z * h
        return h, h

    return xp.scan(step, x[0] @ w[:, :32] * 0, x)[1]


@work("the likeliest path through 32 states, 100 steps", numbers(24, 100, 32), numbers(25, 32, 32))
def path(xp: Any, seen: Any, moves: Any) -> Any:
    def step(s: Any, v: Any) -> tuple[Any, Any]:
        ways = s[:, None] + moves
        return xp.max(ways, axis=0) + v, ways.argmax(0)

    return xp.scan(step, seen[0], seen)[1]


WORKLOADS += in_place.WORKLOADS
