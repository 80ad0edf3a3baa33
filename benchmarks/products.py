"""Matrix products: square ones, small layers, Gram matrices; and products between kernels.

`between` is the work of `chains`, `layer` and `layer64` in turn. It should take the sum of their
times: more says that pools of threads wait for each other on the same cores."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .kernels import workload
from .libraries import case, nothing
from .workload import Case, Numbers, Workload

Operands = Callable[[], Sequence[Numbers]]
quick = functools.partial(workload, only=("ostinato", "numpy"))  # others have no float64 here


def numbers(*shapes: tuple[int, ...], dtype: Any = np.float32) -> Operands:
    @functools.cache
    def made() -> Sequence[Numbers]:
        rng = np.random.default_rng(7)
        return [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]

    return made


def product(xp: Any, a: Any, b: Any) -> Any:
    return a @ b


def turned(xp: Any, a: Any, b: Any) -> Any:
    return a @ b.T


def turned_left(xp: Any, a: Any, b: Any) -> Any:
    return a.T @ b


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


def in_turns(function: Any, operands: Operands, many: int) -> Case:
    """So many equal right matrices in turn: one may be kept in another order, several may not."""
    import ostinato as ost

    a, b = operands()
    left, rights = ost.asarray(a), itertools.cycle([ost.asarray(b) for _ in range(many)])
    run = ost.compile(functools.partial(function, np))
    return case(lambda: run(left, next(rights)), (), nothing, np.asarray)


def few(name: str, about: str, function: Any) -> Workload:
    """Few rows by a matrix that stays the same; and, as `changing`, by one that does not."""
    operands = numbers((16, 1024), (1024, 1024))
    others = {
        "ostinato": lambda: in_turns(function, operands, 1),
        "ostinato/changing": lambda: in_turns(function, operands, 2),
    }
    return workload(name, about, function, operands, *work(16, 1024, 1024), others=others)


def work(m: int, k: int, n: int, item: int = 4) -> tuple[int, int]:
    """The bytes and operations of a product."""
    return item * (m * k + k * n + m * n), 2 * m * k * n


LAYER = (4 * 4 * (2 * 528 * 784 + 128 * 784), 4 * 2 * 128 * 528 * 784)
CHAINS = 4 * 8 * 500 * 1000

WORKLOADS = (
    workload(
        "dense",
        "max(x @ w + b, 0), 128 x 784 x 528",
        dense,
        numbers((128, 784), (784, 528), (528,)),
        *work(128, 784, 528),
    ),
    workload(
        "rows",
        "(1M, 32) @ (32,)",
        product,
        numbers((1_000_000, 32), (32,)),
        *work(1_000_000, 32, 1),
    ),
    workload(
        "vector",
        "(20000, 1000) @ (1000,)",
        product,
        numbers((20_000, 1000), (1000,)),
        *work(20_000, 1000, 1),
    ),
    workload(
        "vector_turned",
        "x.T @ y, (50000, 300) and (50000,), in float64",
        turned_left,
        numbers((50_000, 300), (50_000,), dtype=np.float64),
        *work(300, 50_000, 1, 8),
    ),
    workload(
        "batch",
        "64 of 128 x 64 x 128",
        product,
        numbers((64, 128, 64), (64, 64, 128)),
        *(64 * w for w in work(128, 64, 128)),
    ),
    few("few", "16 x 1024 x 1024", product),
    few("few_turned", "x @ w.T, 16 x 1024 x 1024", turned),
    quick(
        "dgemm1024",
        "1024 x 1024 x 1024 in float64",
        product,
        numbers((1024, 1024), (1024, 1024), dtype=np.float64),
        *work(1024, 1024, 1024, 8),
    ),
    quick("chains", "four kernels over 500 x 1000", chains, numbers(TABLE), CHAINS, 0),
    quick("layer", "four products 128 x 528 x 784", layers, numbers(LEFT, RIGHT), *LAYER),
    quick(
        "layer64",
        "the same in float64",
        layers,
        numbers(LEFT, RIGHT, dtype=np.float64),
        2 * LAYER[0],
        LAYER[1],
    ),
    quick(
        "between",
        "chains, layer and layer64 in turn",
        in_turn,
        mixed,
        CHAINS + 3 * LAYER[0],
        2 * LAYER[1],
    ),
)
