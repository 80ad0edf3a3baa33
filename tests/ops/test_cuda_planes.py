"""Sums around axes that stay, as those of a batch norm: a GPU's blocks share them, in any order of axes."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.loops.schedule import BLOCKS
from ostinato.ops.gpu.loops.streams import kernel_of
from ostinato.ops.gpu.loops.text import OPTIONS
from ostinato.ops.jit.labels import reads_elsewhere
from ostinato.planner.prediction import runs

import ostinato as ost
from tests import nvrtc
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS
from tests.ops.test_cuda_stages import (
    by_ops,
    kernels,
    kind_of,
    results,
    run_on_host,
    tiles_in_order,
)
from tests.sessions import JOB, use
from tests.thorough import some

pytestmark = [
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]
rng = np.random.default_rng(5)


def nodes_of(function: Callable[..., Any], *given: Any) -> list[Any]:
    """What runs, of arrays or specs."""
    program = ost.plan(function, *given, device=KERNELS).program
    return [n for k, n in enumerate(program.graph.nodes) if runs(program, k)]


def spec(shape: Sequence[int], dtype: str = "float32") -> Any:
    return ost.spec(tuple(shape), dtype)


def lying(r: random.Random, x: Any) -> Any:
    """The same numbers with axes in any order in memory, or with gaps."""
    if r.random() < 0.25:
        made = np.empty([n + (d == r.randrange(x.ndim)) for d, n in enumerate(x.shape)], x.dtype)
        made = made[tuple(slice(n) for n in x.shape)]
    else:
        order = r.sample(range(x.ndim), x.ndim)
        made = np.empty([x.shape[d] for d in order], x.dtype).transpose(np.argsort(order))
    made[...] = x
    return made


# -- values ----------------------------------------------------------------------------------------
def sums(x: Any, g: Any, axes: Any) -> Any:
    y = ost.maximum(x, 0) * g
    return x.sum(axes), (x * g).sum(axes), y.max(axes), y


def moments(x: Any, g: Any, axes: Any) -> Any:
    return x.mean(axes), x.var(axes), (x * g).sum(axes)


def behind(x: Any, g: Any, axes: Any) -> Any:
    mean, var, both = x.mean(axes), x.var(axes), (x * g).sum(axes)
    return 0.9 * both + mean, ost.rsqrt(var + 1), both / (1 + mean * mean)


CASES = [
    ((8, 24, 24, 16), (0, 1, 2)),
    ((3, 16, 40, 52), (0, 2, 3)),
    ((5, 40, 33, 31), (0, 2, 3)),
    ((4, 600, 35), (0, 2)),
    ((2, 700, 7, 7), (0, 2, 3)),
    ((6, 5, 50, 3, 40), (1, 3)),
    ((9, 3, 700, 12), (0, 2)),
    ((30, 17, 200), (0, 2)),
    ((3000, 5, 4), (0, 2)),
    ((64, 65, 66), (1,)),
]


ANY_AXES = some([*itertools.product(range(len(CASES)), (sums, moments, behind))], 2)


@pytest.mark.parametrize(
    ("seed", "function"), ANY_AXES, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_any_axes_in_any_order(function: Callable[..., Any], seed: int) -> None:
    """Also of an operand that is one number for some of what is combined."""
    shape, axes = CASES[seed]
    r = random.Random(seed)
    x = rng.normal(size=shape).astype(r.choice((np.float32, np.float64)))
    once = [1 if r.random() < 0.4 else n for n in shape]
    g = rng.normal(size=once).astype(x.dtype)
    nodes = nodes_of(
        lambda x, g: function(x, g, axes), spec(shape, str(x.dtype)), spec(once, str(x.dtype))
    )
    nodes = [n for n in nodes if n.op == "fused_nest" and max(n.inputs) < 2]
    assert nodes
    for node in nodes:
        given = [(x, g)[v] for v in node.inputs]
        made = [lying(r, y) for y in results(node)]
        run_on_host(node, [*(lying(r, v) for v in given), *made])
        near = 2e-5 if x.dtype == np.float32 else 1e-12
        wanted = by_ops(node, *(v.astype(np.float64) for v in given))
        for y, z in zip(made, wanted, strict=True):
            np.testing.assert_allclose(y, z, rtol=near, atol=near * np.abs(z).max())


@pytest.mark.parametrize(
    ("shape", "axes", "kind"),
    [((6, 20, 30, 24), (0, 1, 2), "columns"), ((6, 9, 40, 50), (0, 2, 3), "planes")],
)
def test_what_is_joined_is_read_where_it_lies(
    shape: tuple[int, ...], axes: tuple[int, ...], kind: str
) -> None:
    """As slopes of strided convolutions are, between zeros."""
    x, g = (rng.normal(size=n).astype(np.float32) for n in (shape, [n + 3 for n in shape]))

    def padded(x: Any, g: Any) -> Any:
        y = ost.maximum(ost.pad(x, [(1, 2)] * 4) + g, 0)
        return y, y.sum(axes), (y * g).sum(axes)

    given = [ost.spec(v.shape, "float32") for v in (x, g)]
    (node,) = [n for n in nodes_of(padded, *given) if n.op == "fused_nest"]
    assert any(n.op == "pad" for n in node.kw["body"].nodes)
    arrays, made = [(x, g)[v] for v in node.inputs], results(node)
    assert kind_of(run_on_host(node, [*arrays, *made])) == kind
    for y, z in zip(made, by_ops(node, *(v.astype(np.float64) for v in arrays)), strict=True):
        np.testing.assert_allclose(y, z, rtol=2e-5, atol=2e-5 * np.abs(z).max())


def between(r: random.Random, shape: Sequence[int]) -> tuple[Callable[..., Any], list[int]]:
    """A function that makes this shape of something smaller, which lies between zeros, or behind some; and of
    which shape that is."""
    axes = r.sample(range(len(shape)), r.randint(1, len(shape)))
    begins, ends, steps = (
        [r.choice(some) if d in axes else some[0] for d in range(len(shape))]
        for some in ((0, 1, 2), (0, 1, 2), (1, 2, 3))
    )
    if r.random() < 0.4:
        wide = [*zip(begins, ends, strict=True)]
        return (lambda x: ost.pad(x, wide)), [n - sum(w) for n, w in zip(shape, wide, strict=True)]
    there = [slice(*of) for of in zip(begins, shape, steps, strict=True)]
    inner = [len(range(n)[at]) for n, at in zip(shape, there, strict=True)]
    return (lambda x: ost.zeros(shape, x.dtype).at[tuple(there)].set(x)), inner


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2), (0, 2, 3), (0, 3), (1, 3)])
@pytest.mark.parametrize("seed", range(2))
def test_joins_in_any_order_of_axes(axes: tuple[int, ...], seed: int) -> None:
    """What is joined lies at other places, which are known when the rest is read already."""
    r = random.Random(f"{axes} {seed}")
    for dtype, near in [("float32", 2e-5), (("float64", 1e-12), ("float16", 2e-3))[seed]]:
        shape = [r.choice(some) for some in ((4, 6), (8, 9, 12), (20, 24, 31), (16, 34, 36))]
        (first, inner), (second, within) = between(r, shape), between(r, shape)
        once = [1 if r.random() < 0.3 else n for n in shape]

        def around(
            x: Any, z: Any, g: Any, first: Callable[..., Any] = first, second: Any = second
        ) -> Any:
            y = ost.where(second(z) > 0.3, first(ost.maximum(x, 0)) + g, second(z) * g)
            return y, y.sum(axes), (y * g).sum(axes), (ost.maximum(y, 0) * g).max(axes)

        nodes = nodes_of(around, *(spec(n, dtype) for n in (inner, within, once)))
        (node,) = [n for n in nodes if n.op == "fused_nest"]
        assert any(map(reads_elsewhere, node.kw["body"].nodes))
        given = [rng.normal(size=s.shape).astype(dtype) for s in node.kw["body"].inputs]
        made = [lying(r, y) for y in results(node)]
        run_on_host(node, [*(lying(r, x) for x in given), *made])
        wanted = by_ops(node, *(x.astype(np.float64) for x in given))
        for y, z in zip(made, wanted, strict=True):
            np.testing.assert_allclose(y, z, rtol=near, atol=near * np.abs(z).max())


@pytest.mark.parametrize("shape", [(2, 3, 4000), (6000, 5, 40)])
def test_moments_of_planes(shape: tuple[int, ...]) -> None:
    """None is lost where means are large, and NaN and infinities are found as by NumPy."""
    x = rng.normal(size=shape)
    x[:, 0] += 1e6
    x[0, 1, 1], x[-1, 2, -1] = np.inf, np.nan
    (node,) = [n for n in nodes_of(lambda x: (x.mean((0, 2)), x.var((0, 2))), spec(shape, "float64"))
               if n.op == "fused_nest"]  # fmt: skip
    made = results(node)
    assert kind_of(run_on_host(node, [x, *made])) == "planes"
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        mean = wide.mean((0, 2), keepdims=True)
        apart = ((wide - mean) ** 2).sum((0, 2))  # which is divided when all of it is there
        divided = any(n.op == "divide" for n in node.kw["body"].nodes)
        wanted = [mean.reshape(-1), apart / (x.size // x.shape[1]) if divided else apart]
    np.testing.assert_allclose(made[0], wanted[0].astype(float), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(made[1], wanted[1].astype(float), rtol=1e-10)


# -- who does what ---------------------------------------------------------------------------------
def normed(x: Any, scale: Any, shift: Any) -> Any:
    return ost.nn.relu(ost.nn.batch_norm_train(x, scale, shift)[0])


def normed_last(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean((0, 1, 2))
    y = (x - mean) * ost.rsqrt(x.var((0, 1, 2)) + 1e-5) * scale + shift
    return ost.maximum(y, 0)


SIZES = [(8, 64, 56), (8, 256, 56), (8, 512, 28), (8, 1024, 14), (8, 2048, 7), (32, 64, 112)]


@pytest.mark.parametrize(("n", "c", "side"), SIZES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("slopes", [False, True])
def test_no_kernel_of_a_batch_norm_leaves_a_gpu_idle(
    n: int, c: int, side: int, last: bool, slopes: bool
) -> None:
    """What is large is read by hundreds of blocks, and as often as it has to be: for the moments and for the
    result; slopes read what comes in, and images, for two sums and for the result."""
    shape = (n, side, side, c) if last else (n, c, side, side)
    text = normed_last if last else normed

    def step(x: Any, scale: Any, shift: Any, g: Any) -> Any:
        return ost.grad(lambda *p: (text(*p) * g).sum(), argnums=(0, 1, 2))(x, scale, shift)

    given = [spec(shape), spec((c,)), spec((c,))]
    program = ost.plan(
        *((step, *given, spec(shape)) if slopes else (text, *given)), device=KERNELS
    ).program
    graph, size, moved, found = program.graph, math.prod(shape), 0.0, list[str]()
    for k, node in enumerate(graph.nodes):
        if not runs(program, k):
            continue
        found.append(node.op)
        read = [v for v in node.inputs if graph.producers[v] < 0
                or graph.nodes[graph.producers[v]].op != "broadcast_to"]  # fmt: skip
        moved += sum(graph.specs[v].size == size for v in (*read, *graph.outs(k)))
        if node.op == "fused_nest":
            kernel = kernel_of(tiles_in_order(node))
            wanted = 256 if size * 4 > 1 << 24 else 128  # blocks
            assert math.prod(kernel.grid) >= wanted, kernel.name
            assert math.prod(kernel.grid) <= 8 * BLOCKS
    assert moved <= (8 if slopes else 3), moved
    assert len(found) <= (4 if slopes else 2), found


@pytest.mark.parametrize(
    ("shape", "axes", "kind", "blocks"),
    [((8, 56, 56, 64), (0, 1, 2), "columns", 392), ((8, 64, 56, 56), (0, 2, 3), "planes", 384),
     ((8, 7, 7, 2048), (0, 1, 2), "columns", 192), ((512, 300, 8, 8), (0, 2, 3), "planes", 300),
     ((64, 1000, 48), (1,), "columns", 504)],
)  # fmt: skip
def test_blocks_share_what_is_around(
    shape: tuple[int, ...], axes: tuple[int, ...], kind: str, blocks: int
) -> None:
    (node, *_) = nodes_of(lambda x: x.sum(axes), spec(shape))
    tiles = tiles_in_order(node)
    assert kind_of(tiles) == kind
    assert math.prod(kernel_of(tiles).grid) >= blocks


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12")
def test_nvidias_compiler_takes_them() -> None:
    for axes, shape in [((0, 2, 3), (4, 20, 56, 56)), ((0, 2), (8, 600, 49)), ((1,), (9, 80, 40))]:
        for function in (moments, behind):
            given = spec(shape), spec((1, *shape[1:]))
            for node in nodes_of(functools.partial(function, axes=axes), *given):
                if node.op == "fused_nest":
                    for kernel in kernels(kernel_of(tiles_in_order(node))):
                        nvrtc.compiled(kernel.text, OPTIONS)


def test_a_batch_norm_has_the_values_of_numpy() -> None:
    x = rng.normal(size=(4, 9, 30, 40)).astype(np.float32)
    scale, shift = rng.random((2, 9)).astype(np.float32)
    with use(device=KERNELS):
        made = np.asarray(ost.compile(normed)(x, scale, shift))
    mean, var = (f(x.astype(float), (0, 2, 3), keepdims=True) for f in (np.mean, np.var))
    each = (1, -1, 1, 1)
    wanted = (x - mean) / np.sqrt(var + 1e-5) * scale.reshape(each) + shift.reshape(each)
    np.testing.assert_allclose(made, np.maximum(wanted, 0), rtol=1e-5, atol=1e-5)
