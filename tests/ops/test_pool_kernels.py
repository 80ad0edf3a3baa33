"""Pools and their gradients as kernels that read windows where their elements lie, against NumPy: of any shape,
layout, memory order and number of workers, on CPUs and as CUDA text."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.cpu.cpu_device import CPU
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.nn import pooling

import ostinato as ost
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS
from tests.sessions import JOB, MESHES, use

from . import windows_by_numpy as by_numpy
from .test_cuda_stages import by_ops, graph_of, lies_somehow, results, run_on_host

Array = np.ndarray[Any, Any]
needs_kernels = pytest.mark.skipif(bool(why_not()), reason="needs machine code")
LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


class Pool:
    """A random pool of images with channels first, or last."""

    def __init__(self, draw: random.Random, seed: int, k: int, large: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.k, self.last = k, draw.random() < 0.6
        self.sizes, self.stride = (tuple(draw.choices((1, 2, 3), k=k)) for _ in range(2))
        self.dilation = tuple(draw.choices((1, 1, 1, 2), k=k))
        dilated = zip(self.dilation, self.sizes, strict=True)
        self.reaches = [d * (m - 1) + 1 for d, m in dilated]
        self.pads = [(draw.randint(0, (r - 1) // 2),) * 2 for r in self.reaches]
        self.ceil = draw.random() < 0.5
        side = {1: 60, 2: 17, 3: 7}[k] if large else 4
        self.space = tuple([r + draw.randint(side // 2, side) for r in self.reaches])
        self.dtype = draw.choice((np.float32, np.float64))
        shape = (draw.choice((2, 3, 5)), draw.choice((4, 17, 40)), *self.space)
        self.x = rng.integers(0, 4, shape).astype(self.dtype)  # with many that are equal
        self.y = self(self.turned(self.x))
        self.g = rng.normal(size=self.y.shape).astype(self.dtype)

    def __call__(self, x: Any) -> Any:
        return ost.nn.max_pool(
            x, self.sizes, stride=self.stride, padding=self.pads, dilation=self.dilation,
            ceil_mode=self.ceil, layout=LAST[self.k] if self.last else None,
        )  # fmt: skip

    def mean(self, x: Any) -> Any:
        return ost.nn.avg_pool(
            x, self.sizes, stride=self.stride, padding=self.pads, dilation=self.dilation,
            ceil_mode=self.ceil, layout=LAST[self.k] if self.last else None,
            count_include_pad=False,
        )  # fmt: skip

    def turned(self, x: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if self.last else x

    def expected(self) -> tuple[Array, Array, Array]:
        """The pool, its slope, and that of the means."""
        first = (lambda v: np.moveaxis(v, -1, 1)) if self.last else (lambda v: v)
        g, extents = first(self.g).astype(np.float64), first(self.y).shape[2:]
        given = self.sizes, self.stride, self.pads, self.dilation
        taps = by_numpy.views(self.x, *given, -np.inf, extents)
        y = np.max(taps, axis=0)
        share = g / np.sum([tap == y for tap in taps], axis=0)
        places = np.arange(self.x.size).reshape(self.x.shape)
        slope, even = np.zeros((2, self.x.size))
        seen = by_numpy.views(places, *given, -1, extents)
        mean = g / np.sum([at >= 0 for at in seen], axis=0)
        for tap, at in zip(taps, seen, strict=True):
            inside = at >= 0
            np.add.at(slope, at[inside], ((tap == y) * share)[inside])
            np.add.at(even, at[inside], mean[inside])
        shape = self.x.shape
        return self.turned(slope.reshape(shape)), self.turned(even.reshape(shape)), self.turned(y)


def slopes(pool: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, g: ost.vjp(pool, x)[1](g)[0]


@pytest.mark.parametrize("seed", range(18))
def test_any_pool(seed: int) -> None:
    draw = random.Random(seed)
    p = Pool(draw, seed, seed % 3 + 1)
    slope, even, y = p.expected()
    x = p.turned(p.x)
    lying = np.asfortranarray(x) if draw.random() < 0.3 else x
    near = {"rtol": 2e-5, "atol": 2e-5} if p.dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-11}
    mesh = draw.choice([m for m in MESHES if len(m) == 1][:3])
    with use(mesh):
        for split in (None, 0, 1, x.ndim - 1):
            given = ost.asarray(lying) if split is None else ost.asarray(x, split=split)
            for wanted, run in (
                (y, lambda x, g: p(x)),
                (slope, slopes(p)),
                (even, slopes(p.mean)),
            ):
                np.testing.assert_allclose(np.asarray(ost.compile(run)(given, p.g)), wanted, **near)


@needs_kernels
@pytest.mark.skipif(JOB > 1, reason="one worker")
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    ("sizes", "stride", "padding", "space"),
    [(3, 2, 1, (28, 28)), (2, 2, 0, (20, 33)), (3, 1, 1, (14, 14)), (2, 2, 0, (8, 12, 10))],
)
def test_two_kernels_are_a_gradient(
    sizes: int, stride: int, padding: int, space: tuple[int, ...], last: bool
) -> None:
    """One of the largest and how many there are, and one of the slopes; nothing has the shape of a count."""
    order = (*space, 32) if last else (32, *space)
    x = np.random.default_rng(0).normal(size=(4, *order)).astype(np.float32)

    def pool(x: Any) -> Any:
        layout = LAST[len(space)] if last else None
        return ost.nn.max_pool(x, sizes, stride=stride, padding=padding, layout=layout)

    with use():
        shape = pool(x).shape
        run = ost.compile(slopes(pool))
        nodes = run.plan_for(x, np.ones(shape, np.float32)).program.graph.nodes
        alone = ost.compile(pool).plan_for(x).program.graph.nodes
    kinds = [n.op for n in nodes if n.op not in ("permute_dims", "copy")]
    assert kinds == (["fused_nest"] * 2 if last else ["fused_nest", "fused", "fused_nest"])
    assert [n.op for n in alone].count("fused_nest") == 1
    # Of the images once, for both kernels, and what the result is turned back to.
    assert [n.op for n in nodes].count("copy") == (0 if last else 2)


@needs_kernels
@pytest.mark.skipif(JOB > 1, reason="one worker")
def test_what_is_around_pools_joins_them() -> None:
    x = np.random.default_rng(1).normal(size=(4, 20, 20, 32)).astype(np.float32)
    with use():
        run = ost.compile(lambda x: 2 * ost.nn.max_pool(x, 3, stride=2, layout="NHWC") + 1)
        made = np.asarray(run(x))
        kinds = [n.op for n in run.plan.program.graph.nodes]
        relu = ost.compile(lambda x: ost.nn.max_pool(ost.nn.relu(x), 2, layout="NHWC"))
        positive = np.asarray(relu(x))
    assert kinds == ["fused_nest"]
    taps = by_numpy.views(np.moveaxis(x, -1, 1), (3, 3), (2, 2), [(0, 0)] * 2, (1, 1), 0)
    np.testing.assert_allclose(made, np.moveaxis(2 * np.max(taps, axis=0) + 1, 1, -1), rtol=1e-6)
    whole = np.maximum(x, 0).reshape(4, 10, 2, 10, 2, 32).max((2, 4))
    np.testing.assert_array_equal(positive, whole)


@needs_kernels
@pytest.mark.skipif(JOB > 1, reason="one worker")
def test_what_a_sum_joins_a_pool_with() -> None:
    """The sum before knows the pool's axes by other labels, which turn out to be the same ones."""
    a, b, x, y = (np.random.default_rng(k).integers(1, 5, (2, 35, 35, 48)) / 1.0 for k in range(4))
    pool = lambda x: ost.nn.avg_pool(x, 3, stride=1, padding=1, layout="NHWC")  # noqa: E731

    def by_columns(a: Any, b: Any, x: Any, y: Any) -> Any:
        z = a + b + pool(x)
        return z / z.sum(-1, keepdims=True)

    def by_maxima(a: Any, b: Any, x: Any, y: Any) -> Any:
        return (a + b + pool(x)) * (y.max(-1, keepdims=True) + pool(y))

    with use():
        averages = {id(v): np.asarray(ost.compile(pool)(v)) for v in (x, y)}
        made = [np.asarray(ost.compile(f)(a, b, x, y)) for f in (by_columns, by_maxima)]
    z = a + b + averages[id(x)]
    np.testing.assert_allclose(made[0], z / z.sum(-1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(
        made[1], z * (y.max(-1, keepdims=True) + averages[id(y)]), rtol=1e-12
    )


def pools_in(graph: Graph) -> list[str]:
    inner = [name for n in graph.nodes for _, body in n.subgraphs() for name in pools_in(body)]
    return [*inner, *(n.op for n in graph.nodes if n.op.endswith("_pool"))]


@needs_kernels
@pytest.mark.cpu_only
@pytest.mark.skipif(JOB > 1, reason="two and three workers")
@pytest.mark.parametrize(
    ("sizes", "stride", "padding", "workers"),
    [(2, 2, 0, 3), (3, 2, 1, 2), (3, 2, 1, 3), (3, 1, 1, 3)],
)
@pytest.mark.parametrize("by", ["kernels", "operations", "CUDA text"])
def test_slabs_have_kernels_too(
    by: str, sizes: int, stride: int, padding: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose windows begin where those of the whole do, in the planes that a worker has of its neighbours; with
    what is before and behind."""
    if by == "CUDA text" and COMPILER is None:
        pytest.skip("needs a C++ compiler")
    x = np.random.default_rng(3).integers(0, 9, (2, 31, 20, 9, 8)).astype(np.float32)
    x[1, 16, 3, 4, 5] = np.nan
    layout = LAST[3]

    def both(x: Any) -> Any:
        facts = {"stride": stride, "padding": padding, "layout": layout}
        pool = lambda x: 2 * ost.nn.max_pool(ost.abs(x - 4), sizes, **facts)  # noqa: E731
        mean = lambda x: ost.nn.avg_pool(x, sizes, **facts)  # noqa: E731
        slope, even = (ost.grad(lambda x, f=f: (f(x) ** 2).sum())(x) for f in (pool, mean))
        return pool(x), mean(x), slope, even

    with use():
        wanted = [np.asarray(v) for v in ost.compile(both)(x)]

    def never(*_: Any) -> Any:
        raise AssertionError("a pool ran element by element of its windows")

    if by == "operations":
        stages = CPU.natives["fused_nest"]
        nothing = replace(stages, make=lambda *_, **__: None)
        monkeypatch.setitem(CPU.natives, "fused_nest", nothing)
    with use((workers,), device=KERNELS if by == "CUDA text" else "cpu"):
        run = ost.compile(both)
        graph = run.plan_for(given := ost.asarray(x, split=1)).program.graph
        if by == "kernels":
            monkeypatch.setattr(pooling, "_pairs", never)
        made = [np.asarray(v) for v in run(given)]
    nests = [name for n in graph.nodes if n.op == "fused_nest" for name in pools_in(n.kw["body"])]
    assert len(pools_in(graph)) == 5
    assert len(nests) >= 2
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_nan_and_infinite_slopes() -> None:
    """Windows with NaN are NaN; what is no maximum has no part of an infinite slope."""
    x = np.random.default_rng(2).normal(size=(2, 18, 18, 32)).astype(np.float32)
    x[0, 3, 4, 5] = np.nan
    pool = lambda x: ost.nn.max_pool(x, 3, stride=2, padding=1, layout="NHWC")  # noqa: E731
    y = np.asarray(ost.compile(pool)(x))
    taps = by_numpy.views(np.moveaxis(x, -1, 1), (3, 3), (2, 2), [(1, 1)] * 2, (1, 1), -np.inf)
    np.testing.assert_array_equal(y, np.moveaxis(np.max(taps, axis=0), 1, -1))
    x[0, 3, 4, 5] = 9.0
    slope = np.asarray(ost.compile(slopes(pool))(x, np.full_like(y, np.inf)))
    assert set(np.unique(slope)) == {0.0, np.inf}


@pytest.mark.skipif(JOB > 1 or COMPILER is None, reason="needs a C++ compiler, and threads")
@pytest.mark.parametrize("seed", range(6))
def test_cuda_text(seed: int) -> None:
    draw = random.Random(300 + seed)
    p = Pool(draw, seed, seed % 3 + 1, large=False)
    x = p.turned(p.x)
    for run, given in (
        (p, (x,)),
        (slopes(p), (x, p.g)),
        (slopes(p.mean), (x, p.g)),
    ):
        graph = graph_of(run, *given)
        nodes = [n for n in graph.nodes if n.op == "fused_nest"]
        for node in nodes:
            ins = [np.random.default_rng(seed).integers(0, 3, s.shape).astype(s.dtype)
                   for s in node.kw["body"].inputs]  # fmt: skip
            made = [lies_somehow(draw, v) for v in results(node)]
            run_on_host(node, [*(lies_somehow(draw, v) for v in ins), *made])
            for a, b in zip(made, by_ops(node, *ins), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
