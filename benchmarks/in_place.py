"""What scientists' loops do: fields that feed each other, sweeps along an axis, factors and tables made
element by element.

Ostinato and JAX run the same text, with updates by `at`. NumPy runs it, too, and assigns to slices; where
a loop is over elements it has slices of growing extents, which the others have masks for. Numba has the loops
as one would write them for it, in one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from .kernels import workload
from .libraries import Function, case, nothing
from .workload import Case, Numbers, Workload

WORKLOADS: list[Workload] = []


def work(
    into: list[Workload],
    about: str,
    *operands: Numbers,
    numpy: Function | None = None,
    numba: Function | None = None,
    tolerance: float = 1e-3,
) -> Callable[[Function], Function]:
    """Adds a function to a suite; `numpy` and `numba`, without a library to begin with, are how these do it."""

    def add(function: Function) -> Function:
        by_hand = {} if numba is None else {"numba": lambda: numba_case(numba, operands)}
        in_steps = None if numpy is None else lambda _, *xs: numpy(*xs)
        made = workload(
            *(function.__name__, about, function, lambda: operands, 0),
            tolerance=tolerance,
            in_steps=in_steps,
            others=by_hand,
            only=("ostinato", "jax", "numpy", "numba"),
            seconds=4.0,
        )
        into.append(replace(made, cases={n: _timed(c) for n, c in made.cases.items()}))
        return function

    return add


def _timed(make: Callable[[], Case]) -> Callable[[], Case]:
    """Notes what the first call takes."""

    def made() -> Case:
        found = make()
        took: list[float] = []

        def answer() -> Any:
            start = perf_counter()
            y = found.answer()
            took.append(perf_counter() - start)
            return y

        return replace(found, answer=answer, note=lambda: f"first call {took[0]:.2g} s")

    return made


def numba_case(function: Function, operands: Sequence[Numbers]) -> Case:
    import numba

    return case(numba.njit(fastmath=True)(function), operands, nothing, np.asarray)


def row(about: str, *operands: Numbers, **more: Any) -> Callable[[Function], Function]:
    return work(WORKLOADS, about, *operands, **more)


def drawn(seed: int, *shape: int) -> Numbers:
    return np.random.default_rng(seed).standard_normal(shape)


def definite(seed: int, n: int) -> Numbers:
    x = drawn(seed, n, n)
    return np.asarray(x @ x.T / n + np.eye(n))


# -- fields --------------------------------------------------------------------------------
@row("FDTD: three fields of 250 x 300 by slices, 100 steps",
     drawn(1, 250, 300), drawn(2, 250, 300), drawn(3, 250, 300), drawn(4, 100))  # fmt: skip
def fdtd(xp: Any, ex: Any, ey: Any, hz: Any, pulse: Any) -> Any:
    def step(t: Any, fields: Any) -> Any:
        ex, ey, hz = fields
        ey = xp.put(ey, 0, pulse[t])
        ey = xp.put(ey, np.s_[1:], ey[1:] - 0.5 * (hz[1:] - hz[:-1]))
        ex = xp.put(ex, np.s_[:, 1:], ex[:, 1:] - 0.5 * (hz[:, 1:] - hz[:, :-1]))
        around = ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1]
        return ex, ey, xp.put(hz, np.s_[:-1, :-1], hz[:-1, :-1] - 0.7 * around)

    return xp.stack(list(xp.rounds(0, 100, step, (ex + 0, ey + 0, hz + 0))))


def _across(here: Any) -> list[tuple[Any, ...]]:
    """Inner rows of a channel that is closed to a ring: here, east, west, north and south of it."""
    columns = ((slice(1, -1), slice(2, None), slice(None, -2)), (-1, 0, -2), (0, 1, -1))
    rows = (slice(1, -1), slice(2, None), slice(None, -2))
    return [
        ((rows[0], c), (rows[0], e), (rows[0], w), (rows[1], c), (rows[2], c))
        for c, e, w in columns
    ]


@row("flow through a channel of 41 x 61, 30 steps with 20 of the pressure",
     drawn(18, 41, 61) / 10, drawn(19, 41, 61) / 10)  # fmt: skip
def channel(xp: Any, u: Any, v: Any) -> Any:
    dx, dt, density, viscosity, force = 0.05, 0.005, 1.0, 0.1, 1.0
    places = _across(u)

    def pull(u: Any, v: Any) -> Any:
        b = xp.zeros_like(u)
        for c, e, w, n, s in places:
            ux, uy = (u[e] - u[w]) / (2 * dx), (u[n] - u[s]) / (2 * dx)
            vx, vy = (v[e] - v[w]) / (2 * dx), (v[n] - v[s]) / (2 * dx)
            b = xp.put(b, c, density * ((ux + vy) / dt - ux * ux - 2 * uy * vx - vy * vy))
        return b

    def relax(p: Any, b: Any) -> Any:
        old = xp.copy(p)
        for c, e, w, n, s in places:
            p = xp.put(p, c, (old[e] + old[w] + old[n] + old[s] - dx * dx * b[c]) / 4)
        p = xp.put(p, -1, p[-2])
        return xp.put(p, 0, p[1])

    def moved(x: Any, y: Any, u: Any, v: Any, push: Any, more: float) -> Any:
        """One component of the velocity; y is changed."""
        for c, e, w, n, s in places:
            along = u[c] * dt / dx * (x[c] - x[w]) + v[c] * dt / dx * (x[c] - x[s])
            spread = viscosity * dt / dx**2 * (x[e] + x[w] + x[n] + x[s] - 4 * x[c])
            y = xp.put(y, c, x[c] - along - push(c, e, w, n, s) + spread + more)
        return xp.put(xp.put(y, 0, 0.0), -1, 0.0)

    def step(_: Any, state: Any) -> Any:
        u, v, p = state
        b = pull(u, v)
        p = xp.rounds(0, 20, lambda _, p: relax(p, b), p)
        scale = dt / (2 * density * dx)
        old_u, old_v = xp.copy(u), xp.copy(v)
        u = moved(old_u, u, old_u, old_v, lambda c, e, w, n, s: scale * (p[e] - p[w]), force * dt)
        v = moved(old_v, v, old_u, old_v, lambda c, e, w, n, s: scale * (p[n] - p[s]), 0.0)
        return u, v, p

    return xp.stack(list(xp.rounds(0, 30, step, (u + 0, v + 0, u * 0))))


@row("gas on a lattice of 100 x 100, nine directions, 50 steps", 1 + 0.1 * drawn(5, 9, 100, 100))
def boltzmann(xp: Any, f: Any) -> Any:
    moves = [(0, 0), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1)]
    weights = [4 / 9] + [1 / 9, 1 / 36] * 4

    def step(_: Any, f: Any) -> Any:
        f = xp.stack([xp.roll(f[k], move, (0, 1)) for k, move in enumerate(moves)])
        density = f.sum(0)
        down = sum(y * f[k] for k, (y, _) in enumerate(moves) if y) / density
        right = sum(x * f[k] for k, (_, x) in enumerate(moves) if x) / density
        size = 1.5 * (down * down + right * right)
        calm = []
        for (y, x), w in zip(moves, weights, strict=True):
            along = 3 * (y * down + x * right)
            calm.append(density * w * (1 + along + along * along / 2 - size))
        return f + (xp.stack(calm) - f) / 0.6

    return xp.rounds(0, 50, step, f)


@row("Conway's life on 300 x 300, 100 turns", (drawn(6, 300, 300) > 0.5).astype(np.int32))
def life(xp: Any, cells: Any) -> Any:
    def step(_: Any, x: Any) -> Any:
        around = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
        n = sum(xp.roll(x, move, (0, 1)) for move in around)
        return ((n == 3) | ((n == 2) & (x == 1))).astype(x.dtype)

    return xp.rounds(0, 100, step, cells)


def _escape_by_element(x: Any, y: Any) -> Any:
    n = np.zeros(x.shape)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            z, c = 0j, complex(x[i, j], y[i, j])
            for _ in range(60):
                if z.real * z.real + z.imag * z.imag > 4:
                    break
                z = z * z + c
                n[i, j] += 1
    return n


@row("when 160 x 240 points escape from Mandelbrot's set, 60 turns",
     *np.meshgrid(np.linspace(-2.2, 0.8, 240), np.linspace(-1.2, 1.2, 160)),
     numba=_escape_by_element)  # fmt: skip
def escape(xp: Any, x: Any, y: Any) -> Any:
    c = x + 1j * y

    def step(_: Any, state: Any) -> Any:
        z, n = state
        inside = z.real * z.real + z.imag * z.imag <= 4
        return xp.where(inside, z * z + c, z), n + inside

    return xp.rounds(0, 60, step, (c * 0, x * 0))[1]


# -- sweeps along an axis --------------------------------------------------------------------
def _adi_by_element(u: Any) -> Any:
    n, far = u.shape[0], 1.0
    a, b = -far / 2, 1 + far
    u, v, p, q = u.copy(), np.zeros_like(u), np.zeros_like(u), np.zeros_like(u)
    for _ in range(20):
        for turn in range(2):
            for i in range(1, n - 1):
                p[i, 0], q[i, 0] = 0.0, 1.0
                for j in range(1, n - 1):
                    if turn:
                        known = -a * v[i - 1, j] + (1 + 2 * a) * v[i, j] - a * v[i + 1, j]
                    else:
                        known = -a * u[j, i - 1] + (1 + 2 * a) * u[j, i] - a * u[j, i + 1]
                    below = a * p[i, j - 1] + b
                    p[i, j] = -a / below
                    q[i, j] = (known - a * q[i, j - 1]) / below
                if turn:
                    u[i, 0] = u[i, n - 1] = 1.0
                    for j in range(n - 2, 0, -1):
                        u[i, j] = p[i, j] * u[i, j + 1] + q[i, j]
                else:
                    v[0, i] = v[n - 1, i] = 1.0
                    for j in range(n - 2, 0, -1):
                        v[j, i] = p[i, j] * v[j + 1, i] + q[i, j]
    return u


@row("alternating directions (ADI) on 150 x 150, 20 steps", drawn(7, 150, 150),
     numba=_adi_by_element)  # fmt: skip
def adi(xp: Any, u: Any) -> Any:
    n, far = u.shape[0], 1.0
    a, b = -far / 2, 1 + far
    c, low, high = np.s_[1:-1], np.s_[:-2], np.s_[2:]

    def forth(known: Any) -> Any:
        """Thomas's algorithm for all lines at once: what becomes of the upper diagonal and the right."""

        def turn(j: Any, s: Any) -> Any:
            p, q = s
            below = a * p[c, j - 1] + b
            return xp.put(p, (c, j), -a / below), xp.put(
                q, (c, j), (known(j) - a * q[c, j - 1]) / below
            )

        p = xp.zeros_like(u)
        return xp.rounds(1, n - 1, turn, (p, xp.put(xp.zeros_like(u), (c, 0), 1.0)))

    def step(_: Any, state: Any) -> Any:
        u, v = state
        p, q = forth(lambda j: -a * u[j, low] + (1 + 2 * a) * u[j, c] - a * u[j, high])
        v = xp.put(xp.put(v, (0, c), 1.0), (-1, c), 1.0)

        def down(k: Any, v: Any) -> Any:
            j = n - 2 - k
            return xp.put(v, (j, c), p[c, j] * v[j + 1, c] + q[c, j])

        v = xp.rounds(0, n - 2, down, v)
        p, q = forth(lambda j: -a * v[low, j] + (1 + 2 * a) * v[c, j] - a * v[high, j])
        u = xp.put(xp.put(u, (c, 0), 1.0), (c, -1), 1.0)

        def right(k: Any, u: Any) -> Any:
            j = n - 2 - k
            return xp.put(u, (c, j), p[c, j] * u[c, j + 1] + q[c, j])

        return xp.rounds(0, n - 2, right, u), v

    return xp.rounds(0, 20, step, (u + 0, u * 0))[0]


def _vertical_by_element(u: Any, wind: Any, before: Any, more: Any) -> Any:
    rows, columns, levels = u.shape
    made, c, d = np.zeros_like(u), np.zeros(levels), np.zeros(levels)
    for i in range(rows):
        for j in range(columns):
            for k in range(levels):
                a, known, own, above = 0.0, 3.0 * before[i, j, k] + more[i, j, k], 3.0, 0.0
                if k > 0:
                    w = -0.125 * (wind[i + 1, j, k] + wind[i, j, k])
                    a, own, known = w, own - w, known - w * (u[i, j, k - 1] - u[i, j, k])
                if k < levels - 1:
                    w = 0.125 * (wind[i + 1, j, k + 1] + wind[i, j, k + 1])
                    above, own, known = w, own - w, known - w * (u[i, j, k + 1] - u[i, j, k])
                if k > 0:
                    own, known = own - c[k - 1] * a, known - d[k - 1] * a
                c[k], d[k] = above / own, known / own
            x = 0.0
            for k in range(levels - 1, -1, -1):
                x = d[k] - c[k] * x
                made[i, j, k] = 3.0 * (x - before[i, j, k])
    return made


@row("vertical advection, 60 x 60 columns of 80 levels", drawn(8, 60, 60, 80), drawn(9, 61, 60, 80),
     drawn(10, 60, 60, 80), drawn(11, 60, 60, 80), numba=_vertical_by_element)  # fmt: skip
def vertical(xp: Any, u: Any, wind: Any, before: Any, more: Any) -> Any:
    last = u.shape[2] - 1

    def lower(k: Any) -> tuple[Any, Any]:
        a = -0.125 * (wind[1:, :, k] + wind[:-1, :, k])
        return a, a * (u[:, :, k - 1] - u[:, :, k])

    def upper(k: Any) -> tuple[Any, Any]:
        c = 0.125 * (wind[1:, :, k + 1] + wind[:-1, :, k + 1])
        return c, c * (u[:, :, k + 1] - u[:, :, k])

    def known(k: Any) -> Any:
        return 3.0 * before[:, :, k] + more[:, :, k]

    def forth(k: Any, s: Any) -> Any:
        cs, ds = s
        (a, below), (c, above) = lower(k), upper(k)
        own = 1.0 / (3.0 - a - c - cs[:, :, k - 1] * a)
        cs = xp.put(cs, np.s_[:, :, k], c * own)
        right = known(k) - below - above - ds[:, :, k - 1] * a
        return cs, xp.put(ds, np.s_[:, :, k], right * own)

    c, above = upper(0)
    cs = xp.put(u * 0, np.s_[:, :, 0], c / (3.0 - c))
    ds = xp.put(u * 0, np.s_[:, :, 0], (known(0) - above) / (3.0 - c))
    cs, ds = xp.rounds(1, last, forth, (cs, ds))
    a, below = lower(last)
    x = (known(last) - below - ds[:, :, last - 1] * a) / (3.0 - a - cs[:, :, last - 1] * a)
    made = xp.put(u * 0, np.s_[:, :, last], 3.0 * (x - before[:, :, last]))

    def back(i: Any, s: Any) -> Any:
        made, x = s
        k = last - 1 - i
        x = ds[:, :, k] - cs[:, :, k] * x
        return xp.put(made, np.s_[:, :, k], 3.0 * (x - before[:, :, k])), x

    return xp.rounds(0, last, back, (made, x))[0]


def _implicit(u: Any) -> Any:
    n = u.shape[1]
    for _ in range(20):
        d, x = np.full(n, 1.8), u.copy()
        for j in range(1, n):
            d[j] -= 0.16 / d[j - 1]
            x[:, j] += 0.4 / d[j - 1] * x[:, j - 1]
        x[:, -1] /= d[-1]
        for j in range(n - 2, -1, -1):
            x[:, j] = (x[:, j] + 0.4 * x[:, j + 1]) / d[j]
        u = x
    return u


@row("heat along 1,000 rods of 150 by solvers of tridiagonal systems, 20 steps",
     drawn(21, 1000, 150), numpy=_implicit)  # fmt: skip
def implicit(xp: Any, u: Any) -> Any:
    side, d = xp.full(150, -0.4), xp.full(150, 1.8)
    return xp.rounds(0, 20, lambda _, u: xp.tridiagonal(side, d, side, u), u)


A1, A2, A3, A4 = 0.0576, 0.0412, 0.0735, -0.0388
B1, B2 = 1.5576, -0.6065


def _deriche_by_element(image: Any) -> Any:
    rows, columns = image.shape
    y, z, made = np.zeros_like(image), np.zeros_like(image), np.zeros_like(image)
    for i in range(rows):
        x1 = y1 = y2 = 0.0
        for j in range(columns):
            y[i, j] = A1 * image[i, j] + A2 * x1 + B1 * y1 + B2 * y2
            x1, y1, y2 = image[i, j], y[i, j], y1
        x1 = x2 = y1 = y2 = 0.0
        for j in range(columns - 1, -1, -1):
            z[i, j] = A3 * x1 + A4 * x2 + B1 * y1 + B2 * y2
            x1, x2, y1, y2 = image[i, j], x1, z[i, j], y1
        for j in range(columns):
            made[i, j] = y[i, j] + z[i, j]
    return made


@row("Deriche's filter forth and back along 400 rows of 300", drawn(12, 400, 300),
     numba=_deriche_by_element)  # fmt: skip
def deriche(xp: Any, image: Any) -> Any:
    n = image.shape[1]

    def forth(j: Any, y: Any) -> Any:
        x = A1 * image[:, j] + A2 * image[:, j - 1]
        return xp.put(y, np.s_[:, j], x + B1 * y[:, j - 1] + B2 * y[:, j - 2])

    def back(i: Any, z: Any) -> Any:
        j = n - 1 - i
        x = A3 * image[:, j + 1] + A4 * image[:, j + 2]
        return xp.put(z, np.s_[:, j], x + B1 * z[:, j + 1] + B2 * z[:, j + 2])

    y = xp.put(image * 0, np.s_[:, 0], A1 * image[:, 0])
    y = xp.put(y, np.s_[:, 1], A1 * image[:, 1] + A2 * image[:, 0] + B1 * y[:, 0])
    z = xp.put(image * 0, np.s_[:, -2], A3 * image[:, -1])
    return xp.rounds(2, n, forth, y) + xp.rounds(2, n, back, z)


def _seidel(u: Any) -> Any:
    u = u.copy()
    for _ in range(5):
        for i in range(1, u.shape[0] - 1):
            around = u[i - 1, :-2] + u[i - 1, 1:-1] + u[i - 1, 2:] + u[i, 2:]
            u[i, 1:-1] += around + u[i + 1, :-2] + u[i + 1, 1:-1] + u[i + 1, 2:]
            for j in range(1, u.shape[1] - 1):
                u[i, j] = (u[i, j] + u[i, j - 1]) / 9
    return u


def _seidel_by_element(u: Any) -> Any:
    u = u.copy()
    for _ in range(5):
        for i in range(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                around = u[i - 1, j - 1] + u[i - 1, j] + u[i - 1, j + 1] + u[i, j - 1] + u[i, j]
                u[i, j] = (
                    around + u[i, j + 1] + u[i + 1, j - 1] + u[i + 1, j] + u[i + 1, j + 1]
                ) / 9
    return u


@row("Gauss-Seidel's method on 100 x 100, 5 turns", drawn(13, 100, 100),
     numpy=_seidel, numba=_seidel_by_element)  # fmt: skip
def seidel(xp: Any, u: Any) -> Any:
    n = u.shape[0] - 1

    def line(i: Any, u: Any) -> Any:
        around = u[i - 1, :-2] + u[i - 1, 1:-1] + u[i - 1, 2:] + u[i, 2:]
        around = around + u[i + 1, :-2] + u[i + 1, 1:-1] + u[i + 1, 2:]
        u = u.at[i, 1:-1].add(around)
        return xp.rounds(1, n, lambda j, u: u.at[i, j].set((u[i, j] + u[i, j - 1]) / 9), u)

    return xp.rounds(0, 5, lambda _, u: xp.rounds(1, n, line, u), u)


# -- factors -------------------------------------------------------------------------------
def _lu(a: Any) -> Any:
    a = a.copy()
    for i in range(len(a)):
        for j in range(i):
            a[i, j] = (a[i, j] - a[i, :j] @ a[:j, j]) / a[j, j]
        for j in range(i, len(a)):
            a[i, j] -= a[i, :i] @ a[:i, j]
    return a


def _lu_by_element(a: Any) -> Any:
    a = a.copy()
    for i in range(len(a)):
        for j in range(i):
            for k in range(j):
                a[i, j] -= a[i, k] * a[k, j]
            a[i, j] /= a[j, j]
        for j in range(i, len(a)):
            for k in range(i):
                a[i, j] -= a[i, k] * a[k, j]
    return a


@row("LU of 200 x 200, element by element", definite(14, 200),
     numpy=_lu, numba=_lu_by_element)  # fmt: skip
def lu(xp: Any, a: Any) -> Any:
    n = a.shape[0]
    every = xp.arange(n)

    def rest(a: Any, i: Any, j: Any, end: Any) -> Any:
        return a[i, j] - xp.where(every < end, a[i, :], 0.0) @ xp.where(every < end, a[:, j], 0.0)

    def line(i: Any, a: Any) -> Any:
        a = xp.rounds(0, i, lambda j, a: a.at[i, j].set(rest(a, i, j, j) / a[j, j]), a)
        return xp.rounds(i, n, lambda j, a: a.at[i, j].set(rest(a, i, j, i)), a)

    return xp.rounds(0, n, line, a)


def _cholesky(a: Any) -> Any:
    a = a.copy()
    for k in range(len(a)):
        a[k, k] = np.sqrt(a[k, k])
        a[k + 1 :, k] /= a[k, k]
        for j in range(k + 1, len(a)):
            a[j:, j] -= a[j:, k] * a[j, k]
    return np.tril(a)


def _cholesky_by_element(a: Any) -> Any:
    a = a.copy()
    for i in range(len(a)):
        for j in range(i):
            for k in range(j):
                a[i, j] -= a[i, k] * a[j, k]
            a[i, j] /= a[j, j]
        for k in range(i):
            a[i, i] -= a[i, k] * a[i, k]
        a[i, i] = np.sqrt(a[i, i])
    return np.tril(a)


@row("Cholesky's factor of 200 x 200, column by column", definite(15, 200),
     numpy=_cholesky, numba=_cholesky_by_element)  # fmt: skip
def cholesky(xp: Any, a: Any) -> Any:
    n = a.shape[0]
    every = xp.arange(n)

    def factor(k: Any, state: Any) -> Any:
        a, made = state
        root = xp.sqrt(a[k, k])
        line = xp.where(every >= k, a[:, k] / root, 0.0)
        return a - line[:, None] * line, made.at[:, k].set(line)

    return xp.rounds(0, n, factor, (a, a * 0))[1]


def _gram_schmidt(a: Any) -> Any:
    a, q, r = a.copy(), np.zeros_like(a), np.zeros((a.shape[1], a.shape[1]))
    for k in range(a.shape[1]):
        r[k, k] = np.sqrt(a[:, k] @ a[:, k])
        q[:, k] = a[:, k] / r[k, k]
        for j in range(k + 1, a.shape[1]):
            r[k, j] = q[:, k] @ a[:, j]
            a[:, j] -= q[:, k] * r[k, j]
    return q, r


def _gram_schmidt_by_element(a: Any) -> Any:
    a, q, r = a.copy(), np.zeros_like(a), np.zeros((a.shape[1], a.shape[1]))
    for k in range(a.shape[1]):
        for i in range(a.shape[0]):
            r[k, k] += a[i, k] * a[i, k]
        r[k, k] = np.sqrt(r[k, k])
        for i in range(a.shape[0]):
            q[i, k] = a[i, k] / r[k, k]
        for j in range(k + 1, a.shape[1]):
            for i in range(a.shape[0]):
                r[k, j] += q[i, k] * a[i, j]
            for i in range(a.shape[0]):
                a[i, j] -= q[i, k] * r[k, j]
    return q, r


@row("Gram-Schmidt of 240 x 200, column by column", drawn(16, 240, 200),
     numpy=_gram_schmidt, numba=_gram_schmidt_by_element)  # fmt: skip
def gramschmidt(xp: Any, a: Any) -> Any:
    n = a.shape[1]

    def column(k: Any, state: Any) -> Any:
        a, q, r = state
        r = r.at[k, k].set(xp.sqrt(a[:, k] @ a[:, k]))
        q = q.at[:, k].set(a[:, k] / r[k, k])

        def later(j: Any, state: Any) -> Any:
            a, r = state
            r = r.at[k, j].set(q[:, k] @ a[:, j])
            return a.at[:, j].add(-q[:, k] * r[k, j]), r

        a, r = xp.rounds(k + 1, n, later, (a, r))
        return a, q, r

    return xp.rounds(0, n, column, (a, a * 0, a[:n] * 0))[1:]


# -- tables --------------------------------------------------------------------------------
def _floyd_by_element(far: Any) -> Any:
    far = far.copy()
    n = len(far)
    for k in range(n):
        for i in range(n):
            for j in range(n):
                far[i, j] = min(far[i, j], far[i, k] + far[k, j])
    return far


@row("Floyd and Warshall's shortest ways between 200", np.abs(drawn(17, 200, 200)) ** 3,
     numba=_floyd_by_element)  # fmt: skip
def floyd(xp: Any, far: Any) -> Any:
    def through(k: Any, far: Any) -> Any:
        return xp.minimum(far, far[:, k, None] + far[k])

    return xp.rounds(0, 200, through, far)


def _nussinov_by_element(bases: Any) -> Any:
    n = len(bases)
    table = np.zeros((n, n))
    for i in range(n - 2, -1, -1):
        for j in range(i + 1, n):
            best = max(table[i, j - 1], table[i + 1, j])
            pair = 1.0 if bases[i] + bases[j] == 3 and i < j - 1 else 0.0
            best = max(best, table[i + 1, j - 1] + pair)
            for k in range(i + 1, j):
                best = max(best, table[i, k] + table[k + 1, j])
            table[i, j] = best
    return table


def _nussinov(bases: Any) -> Any:
    n = len(bases)
    table = np.zeros((n, n))
    for i in range(n - 2, -1, -1):
        for j in range(i + 1, n):
            best = max(table[i, j - 1], table[i + 1, j])
            pair = 1.0 if bases[i] + bases[j] == 3 and i < j - 1 else 0.0
            best = max(best, table[i + 1, j - 1] + pair)
            if i + 1 < j:
                best = max(best, (table[i, i + 1 : j] + table[i + 2 : j + 1, j]).max())
            table[i, j] = best
    return table


@row("Nussinov's table of pairs for 100 bases",
     np.random.default_rng(20).integers(0, 4, 100).astype(float),
     numpy=_nussinov, numba=_nussinov_by_element)  # fmt: skip
def nussinov(xp: Any, bases: Any) -> Any:
    n = bases.shape[0]

    def line(turn: Any, table: Any) -> Any:
        i = n - 2 - turn

        def place(j: Any, table: Any) -> Any:
            best = xp.maximum(table[i, j - 1], table[i + 1, j])
            pair = xp.where((bases[i] + bases[j] == 3) & (i < j - 1), 1.0, 0.0)
            best = xp.maximum(best, table[i + 1, j - 1] + pair)

            def split(k: Any, best: Any) -> Any:
                return xp.maximum(best, table[i, k] + table[k + 1, j])

            return table.at[i, j].set(xp.rounds(i + 1, j, split, best))

        return xp.rounds(i + 1, n, place, table)

    return xp.rounds(0, n - 1, line, xp.zeros((n, n)))
