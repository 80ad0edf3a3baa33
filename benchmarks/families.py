"""Programs of all families of operations over tables, each a function of arrays of these shapes, for
`python -m benchmarks layouts --families`: is the layout that the planner finds as good as rows, as
columns, and as replicas? The choices that measurements justify are pinned in
tests/planner/test_families.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ostinato as ost

Family = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
LONG, WIDE, SQUARE = (40_000, 64), (64, 40_000), (1200, 1200)


def standardized(x: Any) -> Any:
    return (x - x.mean(0)) / (x.std(0) + 1e-3)


def halves_of_columns(x: Any) -> Any:
    n = x.shape[1] // 2
    return x[:, :n] + x[:, n:]


def halves_of_rows(x: Any) -> Any:
    n = x.shape[0] // 2
    return x[:n] + x[n:]


def heat(x: Any) -> Any:
    inner = x[1:-1, 1:-1]
    return inner + 0.1 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * inner)


def covariance(x: Any) -> Any:
    d = x - x.mean(0)
    return d.T @ d / x.shape[0]


def logistic(x: Any, y: Any, w: Any) -> Any:
    return w - 0.1 * x.T @ (1 / (1 + ost.exp(-(x @ w))) - y) / x.shape[0]


def nearest(x: Any, c: Any) -> Any:
    return ((x[:, None, :] - c[None]) ** 2).sum(-1).argmin(1)


def power(x: Any, v: Any) -> Any:
    for _ in range(3):
        v = x.T @ (x @ v)
        v = v / ost.sqrt((v * v).sum())
    return v


def ridge(x: Any, y: Any) -> Any:
    return ost.linalg.solve(x.T @ x + ost.eye(x.shape[1], dtype=x.dtype), x.T @ y)


def attention(q: Any, k: Any, v: Any) -> Any:
    return ost.nn.softmax(q @ k.T * 0.1) @ v


def layer(x: Any, w: Any, v: Any) -> Any:
    return x + ost.nn.relu(ost.nn.layer_norm(x) @ w) @ v


def families() -> dict[str, Family]:
    return {
        "sums of columns": (lambda x: x.sum(0), (LONG,)),
        "sums of rows": (lambda x: x.sum(1), (LONG,)),
        "sum of all": (lambda x: (x * x).sum(), (LONG,)),
        "moments": (lambda x: (x.mean(0), x.std(0)), (LONG,)),
        "extremes": (lambda x: (x.min(0), x.max(0)), (LONG,)),
        "places of maxima": (lambda x: x.argmax(1), (LONG,)),
        "function": (lambda x: ost.tanh(x) * 2 + 1, (LONG,)),
        "standardize": (standardized, (LONG,)),
        "softmax": (lambda x: ost.nn.softmax(x), (LONG,)),
        "halves of columns": (halves_of_columns, ((20_000, 400),)),
        "halves of rows": (halves_of_rows, ((20_000, 400),)),
        "sums of halves": (lambda x: halves_of_columns(x).sum(0), ((20_000, 400),)),
        "transpose": (lambda x: x + x.T, (SQUARE,)),
        "flip": (lambda x: ost.flip(x, axis=0) + x, (LONG,)),
        "roll": (lambda x: ost.roll(x, 1, axis=0) - x, (LONG,)),
        "differences": (lambda x: x[1:] - x[:-1], (LONG,)),
        "joined": (lambda x, y: ost.concat([x, y], axis=1) * 2, (LONG, LONG)),
        "stencil": (heat, (SQUARE,)),
        "outer": (lambda x, y: x[:, None] * y[None], ((2000,), (2000,))),
        "running sums down": (lambda x: ost.cumulative_sum(x, axis=0), (LONG,)),
        "running sums along": (lambda x: ost.cumulative_sum(x, axis=1), (LONG,)),
        "sort columns": (lambda x: ost.sort(x, axis=0), (LONG,)),
        "sort rows": (lambda x: ost.sort(x, axis=1), (LONG,)),
        "sort long rows": (lambda x: ost.sort(x, axis=1), (WIDE,)),
        "order of columns": (lambda x: ost.argsort(x, axis=0), (LONG,)),
        "largest of rows": (lambda x: ost.topk(x, 5, axis=1)[0], (LONG,)),
        "medians of columns": (lambda x: ost.median(x, axis=0), (LONG,)),
        "medians of rows": (lambda x: ost.median(x, axis=1), (LONG,)),
        "quantiles": (lambda x: ost.quantile(x, 0.3, axis=0), (LONG,)),
        "counts": (lambda x: ost.bincount(ost.astype(x * 9, ost.int32), length=100), ((10**6,),)),
        "gram of columns": (lambda x: x.T @ x, ((20_000, 200),)),
        "gram of rows": (lambda x: x @ x.T, ((1000, 2000),)),
        "covariance": (covariance, ((20_000, 200),)),
        "product": (lambda a, b: a @ b, (SQUARE, SQUARE)),
        "vector": (lambda a, v: a @ v, ((4000, 2000), (2000,))),
        "power": (power, ((20_000, 200), (200,))),
        "ridge": (ridge, ((20_000, 100), (20_000,))),
        "logistic": (logistic, (LONG, LONG[:1], LONG[1:])),
        "nearest": (nearest, (LONG, (50, 64))),
        "attention": (attention, ((1024, 64),) * 3),
        "layer": (layer, ((4096, 256), (256, 1024), (1024, 256))),
    }
