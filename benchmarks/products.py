"""Matrix products: square ones, small layers, Gram matrices; and products between kernels.

`between` is the work of `chains`, `layer` and `layer64` in turn. It should take the sum of their
times: more says that pools of threads wait for each other on the same cores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .kernels import workload
from .workload import Numbers, Workload

Operands = Callable[[], Sequence[Numbers]]


def numbers(*shapes: tuple[int, ...], dtype: Any = np.float32) -> Operands:
    @functools.cache
    def made() -> Sequence[Numbers]:
        rng = np.random.default_rng(7)
        return [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]

    return made


def product(xp: Any, a: Any, b: Any) -> Any:
    return a @ b


def gram(xp: Any, x: Any) -> Any:
    return x.T @ x


def dense(xp: Any, x: Any, w: Any, b: Any) -> Any:
    return xp.maximum(x @ w + b, xp.zeros_like(b))


def chain(xp: Any, x: Any) -> Any:
    return xp.exp(x * 0.5) * x - xp.tanh(x)


def in_turn(xp: Any, x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Each step takes something of the one before, so that none moves."""
    for _ in range(4):
        x = chain(xp, x)
        a = a + x[0, 0]
        a = (a @ b)[:, : a.shape[1]] * 1e-3
        c = c + a[0, 0]
        c = (c @ d)[:, : c.shape[1]] * 1e-3
        x = x + c[0, 0]
    return x


def chains(xp: Any, x: Any) -> Any:
    for _ in range(4):
        x = chain(xp, x)
        x = x + x[0, 0]
    return x


def layers(xp: Any, a: Any, b: Any) -> Any:
    for _ in range(4):
        a = a + a[0, 0]
        a = (a @ b)[:, : a.shape[1]] * 1e-3
    return a


TABLE, LEFT, RIGHT = (500, 1000), (128, 528), (528, 784)


def mixed() -> Sequence[Numbers]:
    return [*numbers(TABLE, LEFT, RIGHT)(), *numbers(LEFT, RIGHT, dtype=np.float64)()]


def quick(name: str, about: str, function: Any, operands: Operands) -> Workload:
    """Without the systems that have no float64 here."""
    made = workload(name, about, function, operands)
    kept = {k: v for k, v in made.cases.items() if k in ("ostinato", "numpy")}
    return Workload(name, about, made.expect, kept, tolerance=1e-3, seconds=6.0)


def square(n: int) -> Workload:
    return workload(f"sgemm{n}", f"{n} x {n} x {n}", product, numbers((n, n), (n, n)))


WORKLOADS = (
    square(64),
    square(512),
    square(1024),
    square(4096),
    workload(
        "dense",
        "max(x @ w + b, 0), 128 x 784 x 528",
        dense,
        numbers((128, 784), (784, 528), (528,)),
    ),
    workload("gram", "x.T @ x of (2M, 64)", gram, numbers((2_000_000, 64))),
    workload("rows", "(1M, 32) @ (32,)", product, numbers((1_000_000, 32), (32,))),
    workload("batch", "64 of 128 x 64 x 128", product, numbers((64, 128, 64), (64, 64, 128))),
    quick(
        "dgemm1024",
        "1024 x 1024 x 1024 in float64",
        product,
        numbers((1024, 1024), (1024, 1024), dtype=np.float64),
    ),
    quick("chains", "four kernels over 500 x 1000", chains, numbers(TABLE)),
    quick("layer", "four products 128 x 528 x 784", layers, numbers(LEFT, RIGHT)),
    quick("layer64", "the same in float64", layers, numbers(LEFT, RIGHT, dtype=np.float64)),
    quick("between", "chains, layer and layer64 in turn", in_turn, mixed),
)
