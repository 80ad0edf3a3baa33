"""Work that a machine's memory and arithmetic limit: fused chains, reductions, small models.

Every iteration computes the same thing from the same operands and keeps the last result."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .peers import torch_compiled
from .workload import Case, Numbers, Workload

Function = Callable[..., Any]  # (library, *operands) -> a result, or a tuple


def case(run: Function, operands: Sequence[Any], end: Function, host: Function) -> Case:
    """The same call again and again; `end` waits for the last result."""

    def loop(n: int) -> None:
        for _ in range(n):
            y = run(*operands)
        end(y)

    def answer() -> Any:
        y = run(*operands)
        parts = y if isinstance(y, tuple) else (y,)
        return np.concatenate([np.asarray(host(p)).reshape(-1) for p in parts])

    return Case(answer, loop)


def nothing(y: Any) -> None:
    pass


def ostinato_case(function: Function, operands: Sequence[Numbers]) -> Case:
    import ostinato as ost

    given = [ost.asarray(x, copy=False) for x in operands]
    return case(ost.compile(functools.partial(function, ost)), given, nothing, np.asarray)


def jax_case(function: Function, operands: Sequence[Numbers]) -> Case:
    import jax  # type: ignore[import-not-found, unused-ignore]
    import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]

    given = [jax.device_put(x) for x in operands]
    run = jax.jit(functools.partial(function, _Jax(jnp)))
    return case(run, given, jax.block_until_ready, np.asarray)


class _Jax:
    """The few names that jax.numpy has elsewhere."""

    def __init__(self, jnp: Any) -> None:
        self.jnp = jnp

    def __getattr__(self, name: str) -> Any:
        import jax

        if name == "erf":
            return jax.scipy.special.erf
        if name == "one_hot":
            return lambda i, n: jax.nn.one_hot(i, n, dtype=self.jnp.float32)
        return getattr(self.jnp, name)


def torch_case(function: Function, operands: Sequence[Numbers]) -> Case:
    import torch  # type: ignore[import-not-found, unused-ignore]

    run = torch_compiled(functools.partial(function, _Torch(torch)))
    made = case(run, [torch.from_numpy(x) for x in operands], nothing, np.asarray)
    quiet: Any = torch.inference_mode()
    assert made.loop is not None
    return Case(quiet(made.answer), quiet(made.loop))


class _Torch:
    """PyTorch by NumPy's names."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)

    def max(self, x: Any, axis: int, keepdims: bool) -> Any:
        return self.torch.amax(x, dim=axis, keepdim=keepdims)

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return x.sum() if axis is None else self.torch.sum(x, dim=axis, keepdim=keepdims)

    def std(self, x: Any, axis: int) -> Any:
        return self.torch.std(x, dim=axis, correction=0)

    def mean(self, x: Any, axis: int) -> Any:
        return self.torch.mean(x, dim=axis)

    def argmin(self, x: Any, axis: int) -> Any:
        return self.torch.argmin(x, dim=axis)

    def one_hot(self, i: Any, n: int) -> Any:
        return self.torch.nn.functional.one_hot(i, n).to(self.torch.float32)


class _NumPy:
    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def erf(self, x: Any) -> Any:
        from scipy.special import erf  # type: ignore[import-untyped, unused-ignore]

        return erf(x)

    def one_hot(self, i: Any, n: int) -> Any:
        return (i[:, None] == np.arange(n)).astype(np.float32)


def everywhere(function: Function, operands: Callable[[], Sequence[Numbers]]) -> dict[str, Any]:
    numpy = functools.partial(function, _NumPy())
    return {
        "ostinato": lambda: ostinato_case(function, operands()),
        "numpy": lambda: case(numpy, operands(), nothing, np.asarray),
        "jax": lambda: jax_case(function, operands()),
        "torch": lambda: torch_case(function, operands()),
    }


def workload(
    name: str,
    about: str,
    function: Function,
    operands: Callable[[], Sequence[Numbers]],
    **more: Any,
) -> Workload:
    def expect() -> Any:
        """In double precision: NumPy adds up long columns of float32 poorly."""
        y = function(_NumPy(), *(x.astype(np.float64) for x in operands()))
        parts = y if isinstance(y, tuple) else (y,)
        return np.concatenate([np.asarray(p).reshape(-1) for p in parts])

    tolerance = more.pop("tolerance", 1e-3)
    cases = {**everywhere(function, operands), **more.pop("others", {})}
    return Workload(name, about, expect, cases, tolerance=tolerance, seconds=6.0)


# -- poly ----------------------------------------------------------------------------------
@functools.cache
def twenty_million() -> tuple[Numbers]:
    return (np.random.default_rng(1).uniform(-1, 1, 20_000_000).astype(np.float32),)


COEFFICIENTS = (0.5, -0.25, 0.125, 1.5, -0.75, 0.3, 0.2, -0.1, 1.0)


def poly(xp: Any, x: Any) -> Any:
    y = x * COEFFICIENTS[0] + COEFFICIENTS[1]
    for c in COEFFICIENTS[2:]:
        y = y * x + c
    return y


def poly_numba() -> Case:
    """By hand, into an array that is kept."""
    import numba  # type: ignore[import-untyped, unused-ignore]

    a = np.array(COEFFICIENTS, np.float32)

    @numba.njit(parallel=True, fastmath=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
    def run(x: Any, out: Any) -> Any:
        for i in numba.prange(x.size):
            y = x[i] * a[0] + a[1]
            for k in range(2, 9):
                y = y * x[i] + a[k]
            out[i] = y
        return out

    (x,) = twenty_million()
    return case(run, (x, np.empty_like(x)), nothing, np.asarray)


# -- the others ----------------------------------------------------------------------------
@functools.cache
def options() -> tuple[Numbers, ...]:
    rng = np.random.default_rng(2)
    ranges = ((10, 50), (10, 50), (0.25, 2.0))
    return tuple(rng.uniform(a, b, 10_000_000).astype(np.float32) for a, b in ranges)


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


@functools.cache
def table() -> tuple[Numbers]:
    return (np.random.default_rng(3).normal(1, 2, (4_000_000, 16)).astype(np.float32),)


@functools.cache
def labelled() -> tuple[Numbers, ...]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(1_000_000, 32)).astype(np.float32)
    w = rng.normal(size=32).astype(np.float32)
    return x, (x @ w > 0).astype(np.float32), w


def logistic(xp: Any, x: Any, y: Any, w: Any) -> Any:
    error = 1 / (1 + xp.exp(-(x @ w))) - y
    return w - 0.1 * (error @ x) / x.shape[0]


@functools.cache
def points() -> tuple[Numbers, ...]:
    x = np.random.default_rng(5).normal(size=(2_000_000, 16)).astype(np.float32)
    return x, x[:8].copy()


def kmeans(xp: Any, x: Any, c: Any) -> Any:
    d = xp.sum((x[:, None, :] - c[None]) ** 2, axis=-1)
    near = xp.one_hot(xp.argmin(d, axis=1), 8)
    return (near.T @ x) / xp.sum(near, axis=0)[:, None]


@functools.cache
def logits() -> tuple[Numbers]:
    return (np.random.default_rng(6).normal(size=(4096, 16_000)).astype(np.float32),)


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)


def meanstd(xp: Any, x: Any) -> Any:
    return xp.mean(x, axis=0), xp.std(x, axis=0)


def norm(xp: Any, x: Any) -> Any:
    return xp.sum((x - 0.5) ** 2)


WORKLOADS = (
    workload(
        "poly",
        "a polynomial of degree 8 of 20M numbers",
        poly,
        twenty_million,
        others={"numba": poly_numba},
    ),
    workload("blackscholes", "calls and puts of 10M options", blackscholes, options),
    workload("norm", "the sum of squares of 20M shifted numbers", norm, twenty_million),
    workload("softmax", "of the rows of (4096, 16000)", softmax, logits),
    workload("kmeans", "a step over 2M x 16 with 8 centres, as written on paper", kmeans, points),
    workload("logistic", "a gradient step over 1M x 32", logistic, labelled),
    workload("meanstd", "of the columns of (4M, 16)", meanstd, table),
)
