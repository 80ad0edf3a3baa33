"""Kernels in stages in CUDA C++: what becomes one, and that it computes what NumPy computes, run on the host
(cuda_host.py)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.spec import Spec
from ostinato.ops.gpu import gpu_device as device
from ostinato.ops.gpu.loops import flat, schedule, streams
from ostinato.ops.gpu.loops.schedule import (
    THREADS,
    WARP,
    Tiles,
    analyse,
    analyse_in_order,
    square_tiles,
)
from ostinato.ops.gpu.loops.stages import Finish
from ostinato.ops.gpu.loops.streams import kernel_of
from ostinato.ops.gpu.loops.text import OPTIONS, Kernel
from ostinato.ops.jit.loops import loops_over
from ostinato.planner.fusion import stage_groups as nests

import ostinato as ost
from tests import nvrtc
from tests.cuda_host import COMPILER, HostKernel
from tests.fake_device import KERNELS
from tests.sessions import JOB, use
from tests.thorough import some, turns

pytestmark = [
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]
rng = np.random.default_rng(3)
needs_nvrtc = pytest.mark.skipif(
    not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12"
)


def softmax(x: Any) -> Any:
    return ost.nn.softmax(x)


def normal(x: Any) -> Any:
    return ost.nn.layer_norm(x)


def mean_std(x: Any) -> Any:
    return x.mean(), ((x - x.mean()) ** 2).mean(), x.var()


def of_columns(x: Any) -> Any:
    return x.sum(0), x.max(0), x.mean(0)


def columns_of_squares(x: Any) -> Any:
    return (x * x).sum(0), x.var(0)


def places(x: Any) -> Any:
    return x.argmin(1), x.max(1)


def chain(x: Any) -> Any:
    y = ost.exp(x - x.max(1, keepdims=True))
    return (y / y.sum(1, keepdims=True) * x).sum(1), y.min(1)


def centred(x: Any) -> Any:
    y = x - x.mean(0)
    return y, ost.exp(y).sum(0), x.argmin(0)


def walks(x: Any) -> Any:
    y = ost.cumulative_sum(2 * x, axis=1)
    return y, (ost.cumulative_max(y, axis=1) - y).max(1)


def walks_of_columns(x: Any) -> Any:
    y = ost.cumulative_min(x * x, axis=0)
    return y / y.max(0, keepdims=True), ost.cumulative_prod(1 + x / 99, axis=0).sum(0)


def nearest(x: Any, c: Any) -> Any:
    return ((x[:, None] - c) ** 2).sum(-1).min(1)


def forces(x: Any, mass: Any) -> Any:
    apart = x[None, :, :] - x[:, None, :]
    squares = (apart * apart).sum(2) + 0.01
    weights = mass[None, :] / (squares * ost.sqrt(squares))
    return (weights[:, :, None] * apart).sum(1)


def furthest(x: Any, mass: Any) -> Any:
    d = abs(x[:, None, :] - x[None, :, :]).sum(2)
    return d.max(1), (ost.exp(-d) * mass).sum(1), d.argmin(0)


def lloyd(x: Any, c: Any) -> Any:
    d = ((x[:, None] - c) ** 2).sum(-1)
    near = ost.nn.one_hot(d.argmin(1), c.shape[0])
    return near.T @ x, near.sum(0)


def slope(x: Any, t: Any) -> Any:
    return ost.grad(lambda x: ost.nn.cross_entropy(x, t))(x)


def graph_of(function: Callable[..., Any], *given: Any) -> Graph:
    with use(device=KERNELS):
        graph = ost.compile(function).plan_for(*given).program.graph
    assert isinstance(graph, Graph)
    return graph


def nest_of(function: Callable[..., Any], *given: Any) -> Node:
    (node,) = [n for n in graph_of(function, *given).nodes if n.op == "fused_nest"]
    return node


def tiles_in_order(node: Node) -> Tiles:
    shapes = [s.shape for s in (*node.kw["body"].inputs, *node.specs)]
    tiles = analyse_in_order(**node.kw, shapes=shapes)
    assert tiles is not None
    return tiles


def kernels(kernel: Kernel) -> list[Kernel]:
    return [kernel, *(kernels(kernel.then) if kernel.then else ())]


def run_on_host(node: Node, arrays: Sequence[Any]) -> Tiles:
    """Its kernels for operands and results that lie so."""
    shapes, strides = [x.shape for x in arrays], [x.strides for x in arrays]
    tiles = analyse(**node.kw, shapes=shapes, strides=strides)
    assert tiles is not None
    launch(tiles, arrays)
    return tiles


def launch(tiles: Tiles, arrays: Sequence[Any]) -> None:
    found = kernels(kernel_of(tiles))
    room = (np.full(found[0].room, 7, np.uint8),) if found[0].room else ()
    for kernel in found:
        run = HostKernel(kernel.text, kernel.name, OPTIONS)
        run(kernel.grid, (kernel.threads,), (*arrays, *map(np.int64, kernel.facts), *room))


def results(node: Node) -> list[Any]:
    return [np.empty(s.shape, s.dtype) for s in node.specs]


def by_ops(node: Node, *operands: Any) -> list[Any]:
    """What the operations give one by one."""
    made = results(node)
    whole = [x.copy(order="C") for x in operands]
    kernel = ost.ops.lookup(node.op).kernel
    with np.errstate(all="ignore"):
        kernel(np, tuple(made) if len(made) > 1 else made[0], *whole, **node.kw)
    return made


# -- what is one kernel ----------------------------------------------------------------------------
X = rng.normal(size=(600, 130)).astype(np.float32)
PLANS: list[tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = [
    (softmax, (X,), ["fused_nest"]),
    (normal, (X,), ["fused_nest"]),
    (lambda x: ost.nn.softmax(ost.nn.layer_norm(x)), (X,), ["fused_nest"]),
    (chain, (X,), ["fused_nest"]),
    (of_columns, (X,), ["fused_nest"]),
    (places, (X,), ["fused_nest"]),
    (nearest, (rng.normal(size=(3000, 8)), rng.normal(size=(20, 8))), ["fused_nest"]),
    (lloyd, (rng.normal(size=(3000, 8)), rng.normal(size=(20, 8))), ["fused_nest"]),
    (slope, (X, np.arange(600) % 130), ["check_bounds", "fused_nest"]),
    (walks, (rng.normal(size=(2000, 40)),), ["fused_nest"]),
    (walks_of_columns, (rng.normal(size=(60, 2049)),), ["fused_nest"]),
    (lambda x: (ost.exp(x), (2 * x).sum(1)), (X,), ["fused_rows"]),  # which is one already
]


@pytest.mark.parametrize("case", range(len(PLANS)))
def test_what_is_one_kernel(case: int) -> None:
    function, given, wanted = PLANS[case]
    assert [n.op for n in graph_of(function, *given).nodes] == wanted


def test_any_number_of_workers_has_none() -> None:
    with use(device=KERNELS, numerics="any-workers"):
        graph = ost.compile(softmax).plan_for(X).program.graph
    assert "fused_nest" not in [n.op for n in graph.nodes]


# -- values ----------------------------------------------------------------------------------------
SHAPES = [(20, 1000), (70, 40), (300, 7), (600, 130), (33, 2049), (16, 12_001), (2049, 65)]
FUNCTIONS = [
    *(softmax, normal, mean_std, of_columns),
    *(columns_of_squares, places, chain, centred),
]


LAYOUTS = ("order", "gaps", "behind", "turned")


def lies_somehow(r: random.Random, x: Any, layouts: Sequence[str] = LAYOUTS) -> Any:
    """The same numbers in order, transposed, with gaps, or one element behind where vectors begin."""
    how = r.choice(layouts) if x.ndim else "order"
    if how == "turned":
        made = np.empty(x.shape[::-1], x.dtype).T
    elif how == "gaps":
        made = np.empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
    elif how == "behind":
        made = np.empty(x.size + 1, x.dtype)[1:].reshape(x.shape)
    else:
        return x
    made[...] = x
    return made


@pytest.mark.parametrize("seed", range(16))
def test_any_shape_and_strides(seed: int) -> None:
    r = random.Random(seed)
    function, shape = FUNCTIONS[seed % 8], r.choice(SHAPES)
    x = rng.normal(size=shape).astype(r.choice((np.float32, np.float64)))
    nodes = [n for n in graph_of(function, x).nodes if n.op == "fused_nest"]
    nodes = [n for n in nodes if n.inputs == (0,)]
    assert nodes
    for node in nodes:
        made = [lies_somehow(r, y) for y in results(node)]
        run_on_host(node, [lies_somehow(r, x), *made])
        near = 2e-4 if x.dtype == np.float32 else 1e-11
        for y, z in zip(made, by_ops(node, x.astype(np.float64)), strict=True):
            np.testing.assert_allclose(y, z, rtol=near, atol=near * np.abs(z).max())


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(2049, 40), (40, 2049), (1100, 3), (1500, 17)])
def test_running_sums(shape: tuple[int, int], dtype: str) -> None:
    """A thread carries along what it has combined of its line."""
    r = random.Random(len(dtype) + shape[0])
    x = (9 * rng.random(size=shape)).astype(dtype)
    function = walks if shape[1] < 50 else walks_of_columns
    nodes = [n for n in graph_of(function, x).nodes if n.op == "fused_nest"]
    (node,) = [n for n in nodes if len(nodes) == 1]
    made = [lies_somehow(r, y) for y in results(node)]
    run_on_host(node, [lies_somehow(r, x), *made])
    for y, z in zip(made, by_ops(node, x), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-4)


def paths(x: Any) -> Any:
    prices = ost.cumulative_sum(x * 2, axis=1)
    return (prices * x).mean(1), ost.cumulative_max(prices, axis=1)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8"])
@pytest.mark.parametrize("length", [65, 333, 1500])
def test_running_sums_of_lines_of_a_warp(
    length: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads combine neighbours in pairs, 32 at a time."""
    monkeypatch.setattr(nests, "LINES", 16)
    x = (9 * rng.random(size=(21, length))).astype(dtype)
    if x.dtype.kind == "f":
        x[::3, length // 2] = np.nan
        x[5] = -0.0
    node = nest_of(paths if x.dtype.kind == "f" else walks, x)
    made = results(node)
    tiles = run_on_host(node, [x, *made])
    assert {*tiles.running.values()} == {tiles.near}
    near = 1e-3 if dtype == "float32" else 1e-11
    for y, z in zip(made, by_ops(node, x), strict=True):
        np.testing.assert_allclose(y, z, rtol=near, atol=near)


@pytest.mark.parametrize("shape", [(200, 300), (130, 1025), (40, 2, 80)])
def test_running_sums_alone_are_kernels(shape: tuple[int, ...]) -> None:
    """Of fewer lines than a CPU needs, too."""
    x = rng.normal(size=shape)
    with use(device=KERNELS):
        run = ost.compile(lambda x: ost.cumulative_sum(x, axis=-1))
        made = np.asarray(run(ost.asarray(x)))
        kinds = [n.op for n in run.plan.program.graph.nodes]
    assert ("fused_nest" in kinds) == (shape[0] >= 128)
    np.testing.assert_allclose(made, np.cumsum(x, -1), rtol=1e-9, atol=1e-11)


def test_running_sums_of_long_lines_stay_with_the_library() -> None:
    ops = [n.op for n in graph_of(walks, np.ones((1100, 20_000))).nodes]
    assert ops.count("cumulative_sum") == 1


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("rows", [50, 3000])
def test_rows_with_centres(rows: int, count: int) -> None:
    """Each row's group is known to the block; groups are added row by row where they are many."""
    x, c = rng.normal(size=(rows, 5)), rng.normal(size=(count, 5))
    node = nest_of(lloyd, x, c)
    made = results(node)
    tiles = run_on_host(node, [x, c, *made])
    assert tiles.across
    for y, z in zip(made, by_ops(node, x, c), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(40, 3), (1030, 3), (300, 8), (1100, 2)])
@pytest.mark.parametrize("function", [forces, furthest], ids=lambda f: f.__name__)
def test_all_pairs_of_rows_are_never_in_memory(
    function: Callable[..., Any], rows: int, columns: int
) -> None:
    """One value along two indices; what is summed over a short one is in registers, and threads make what
    results along a short one share once."""
    r = random.Random(rows)
    x, mass = rng.normal(size=(rows, columns)), rng.random(rows)
    graph = graph_of(function, x, mass)
    assert all(s.size <= x.size for n in graph.nodes for s in n.specs)
    for node in graph.nodes:
        if node.op != "fused_nest":
            continue
        given = [lies_somehow(r, y) for y in pairs_of(node, x, mass)]
        made = [lies_somehow(r, y) for y in results(node)]
        tiles = run_on_host(node, [*given, *made])
        assert len(tiles.inlined) == 1 or function is furthest
        assert any(map(tiles.abreast, tiles.reductions)) == (
            function is forces and rows > schedule.SOME
        )
        for y, z in zip(made, by_ops(node, *given), strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-11, atol=1e-11)


def pairs_of(node: Node, x: Any, mass: Any) -> list[Any]:
    """What a kernel of pairs is given."""
    shapes = [s.shape for s in node.kw["body"].inputs]
    return [mass.reshape(s) if len(s) < 2 or x.size != np.prod(s) else x.reshape(s) for s in shapes]


def best(x: Any) -> Any:
    return x.argmin(1), x.argmax(0), abs(x).argmax(1)


@pytest.mark.parametrize(
    "shape", [(20, 9000), (9000, 20), (17, 40), (1, 30_000), (3000, 3), (30, 7001)]
)
def test_places_of_the_best_are_found_by_all_blocks(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equals the first, NaN before all, however many share a line."""
    if shape == (30, 7001):  # enough lines for a warp each
        monkeypatch.setattr(flat, "BLOCKS", 3)
    x = rng.integers(-400, 400, shape).astype(np.float32)
    x[0, -5:] = np.nan
    with use(device=KERNELS):
        run = ost.compile(best)
        made = [np.asarray(y) for y in run(ost.asarray(x))]
    for y, z in zip(made, (x.argmin(1), x.argmax(0), abs(x).argmax(1)), strict=True):
        np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(16, 1_000_000), (1_000_000, 16), (4096, 4096), (50_000, 200)])
@pytest.mark.parametrize("name", ["sum", "max", "argmin"])
def test_reductions_have_blocks_for_all_multiprocessors(
    name: str, shape: tuple[int, int], axis: int
) -> None:
    """Those of the largest GPU here, 132."""
    spec = ost.spec(shape, "float32")
    plan = ost.plan(lambda x: getattr(x, name)(axis), spec, device=KERNELS)
    (node,) = [n for n in plan.program.graph.nodes if n.op in ("fused_nest", "fused_rows")]
    if node.op == "fused_nest":
        assert math.prod(kernel_of(tiles_in_order(node)).grid) > 132
    else:
        rows = node.specs[0].size
        assert rows * flat.blocks_of(math.prod(shape) // rows, rows) > 132


def bags(x: Any, places: Any) -> Any:
    found = x[places]
    return found.mean(1) + found.max(1)


def picked(x: Any, places: Any) -> Any:
    rows = ost.take_along_axis(x, places, axis=1)
    return (rows * x[:, : places.shape[1]]).sum(1), rows.max(1)


@pytest.mark.parametrize("columns", [64, 7, 6])
@pytest.mark.parametrize("function", [bags, picked], ids=lambda f: f.__name__)
def test_gathered_rows_are_read_at_once(function: Callable[..., Any], columns: int) -> None:
    """Where neighbours have one place, that is known before they are read."""
    x = rng.normal(size=(500, columns)).astype(np.float32)
    places = rng.integers(0, 500 if function is bags else columns, (500, 4))
    with use(device=KERNELS):
        run = ost.compile(function)
        made = run(ost.asarray(x), ost.asarray(places))
        found = [np.asarray(y) for y in (made if isinstance(made, tuple) else (made,))]
        nodes = [n for n in run.plan.program.graph.nodes if n.op == "fused_nest"]
    (node,) = nodes
    rows = x[places] if function is bags else np.take_along_axis(x, places, 1)
    if function is bags:
        wanted: tuple[Any, ...] = (rows.mean(1) + rows.max(1),)
    else:
        wanted = (rows * x[:, :4]).sum(1), rows.max(1)
    for y, z in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-5)
    if nvrtc.is_here() and columns == 64:
        for kernel in kernels(kernel_of(tiles_in_order(node))):
            nvrtc.compiled(kernel.text, OPTIONS)


def test_nan_and_infinities() -> None:
    x = rng.normal(size=(40, 200)).astype(np.float32)
    x[1, 7], x[2, 150], x[3, 0], x[4, 20:] = np.nan, np.inf, -np.inf, 0.0
    x[5, 3], x[5, 9], x[6, :] = np.nan, np.nan, np.inf
    x[7, ::2], x[7, 1::2] = 0.0, -0.0
    for function in (places, softmax):
        node = nest_of(function, x)
        made = results(node)
        run_on_host(node, [x, *made])
        for y, z in zip(made, by_ops(node, x), strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-5)
    wide = x.astype(np.float64)
    node = nest_of(lambda x: x.var(0), wide)
    made = results(node)
    run_on_host(node, [wide, *made])
    for y, z in zip(made, by_ops(node, wide), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-12)


@pytest.mark.parametrize("function", [softmax, normal, of_columns, columns_of_squares, chain])
def test_bits_do_not_depend_on_where_arrays_lie(function: Callable[..., Any]) -> None:
    """Nor on what memory held before, or on the run."""
    x = rng.normal(size=(150, 256)).astype(np.float32)
    node = nest_of(function, x)
    behind = np.empty(x.size + 1, x.dtype)[1:].reshape(x.shape)
    behind[...] = x
    found = []
    for given in (x, x, behind):
        made = results(node)
        run_on_host(node, [given, *made])
        found.append(made)
    for other in found[1:]:
        for y, z in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(y, z)


# -- transposes ------------------------------------------------------------------------------------
def squares(x: Any, turned: Any, result: Any) -> Tiles | None:
    """Of a sum of products of two operands, and the product."""
    spec = Spec(x.shape, x.dtype)
    body = Builder([spec] * 2)
    y = body.add("multiply", (0, 1), (), (spec,))[0]
    graph = body.graph([body.add("add", (y, 0), (), (spec,))[0], y])
    arrays = [x, turned, result, np.empty_like(x)]
    return square_tiles(graph, loops_over(x.shape, [a.strides for a in arrays]))


@pytest.mark.parametrize("seed", range(10))
def test_what_lies_across_goes_through_shared_memory(seed: int) -> None:
    r = random.Random(seed)
    shape = (*r.choice(((), (3,), (2, 2))), r.choice((8, 33, 100)), r.choice((9, 64, 130)))
    dtype = np.dtype(r.choice(("float32", "float64", "uint8", "int16")))
    x = rng.integers(0, 12, shape).astype(dtype)
    other = rng.integers(0, 12, (*shape[:-2], *shape[:-3:-1])).astype(dtype).swapaxes(-1, -2)
    made, product = np.empty(shape, dtype), np.empty(shape, dtype)
    if seed % 3 == 0:
        made = np.empty((*shape[:-2], *shape[:-3:-1]), dtype).swapaxes(-1, -2)
    tiles = squares(x, other, made)
    assert tiles is not None
    assert {1} <= tiles.held <= {1, *tiles.body.outputs}
    launch(tiles, [x, other, made, product])
    np.testing.assert_array_equal(product, x * other)
    np.testing.assert_array_equal(made, x * other + x)


def test_what_lies_in_order_needs_no_squares() -> None:
    x = np.ones((40, 50), np.float32)
    for other in (x, x[:, ::-1], np.broadcast_to(x[:1], x.shape), x[:, :1] + 0 * x):
        assert squares(x, other, x) is None
    assert squares(x[:, :4], np.ones((4, 40), np.float32).T, x[:, :4]) is None  # few beside


@pytest.mark.parametrize("shape", [(70, 90), (64, 128)])
def test_a_plan_has_squares(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    monkeypatch.setattr(
        device, "square_tiles", lambda *how: names.append(square_tiles(*how)) or names[-1]
    )
    x, y = rng.normal(size=shape), rng.normal(size=shape[::-1])
    with use(device=KERNELS):
        made = np.asarray(ost.compile(lambda x, y: x + 2 * y.T)(ost.asarray(x), ost.asarray(y)))
    np.testing.assert_array_equal(made, x + 2 * y.T)
    assert [tiles is not None for tiles in names] == [True]


# -- from memory into registers ---------------------------------------------------------------------
def kind_of(tiles: Tiles) -> str:
    return kernel_of(tiles).name.partition("_")[0]


IN_REGISTERS = turns((softmax, normal, chain, places), (40, 513, 768, 2049, 5000), (32, 2))


@pytest.mark.parametrize(
    ("function", "terms", "kept"), IN_REGISTERS, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_lines_in_registers(
    function: Callable[..., Any], terms: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of any length is a warp's or a block's, and is read again where registers do not hold it."""
    monkeypatch.setattr(streams, "KEPT", kept)
    r = random.Random(terms)
    x = rng.normal(size=(37, terms)).astype(r.choice((np.float32, np.float64)))
    (node, *others) = [n for n in graph_of(function, x).nodes if n.op == "fused_nest"]
    made = [lies_somehow(r, y, LAYOUTS[:3]) for y in results(node)]
    assert kind_of(run_on_host(node, [lies_somehow(r, x, LAYOUTS[:3]), *made])) == "lines"
    near = 2e-4 if x.dtype == np.float32 else 1e-11
    for y, z in zip(made, by_ops(node, x.astype(np.float64)), strict=True):
        np.testing.assert_allclose(y, z, rtol=near, atol=near * np.abs(z).max())
    assert not others


def normal_slopes(x: Any, scale: Any, groups: Any) -> Any:
    def loss(p: Any) -> Any:
        y = (p[0] - p[0].mean(1, keepdims=True)) / p[0].std(1, keepdims=True)
        return ost.sum(ost.exp(-((p[1] * y) ** 2)) * x)

    return ost.grad(loss)((x, scale))


def likelihood(x: Any, scale: Any, groups: Any) -> Any:
    rows = ost.log(ost.exp(x * scale).sum(1))
    return rows.mean(), rows.max(), x.argmax(1)


def loss_and_slopes(x: Any, scale: Any, groups: Any) -> Any:
    return ost.value_and_grad(lambda x: ost.nn.cross_entropy(x * scale, groups))(x)


def slopes_of_factors(x: Any, scale: Any, groups: Any) -> Any:
    def loss(p: Any) -> Any:
        return ost.nn.cross_entropy(x * p[0] + p[1], groups, reduction="sum")

    return ost.grad(loss)((scale, scale))


LINES = [(700, 40), (1100, 300), (2049, 768), (600, 1000)]
SUMMED = [
    (function, shape)
    for k, function in enumerate((normal_slopes, likelihood, loss_and_slopes))
    for shape in some([*LINES[k:], *LINES[:k]], 2)
]
SUMMED += [
    (slopes_of_factors, (16, 1000)),  # which one block does
]


@pytest.mark.parametrize(
    ("function", "shape"), SUMMED, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_lines_and_what_is_summed_over_them(
    function: Callable[..., Any], shape: tuple[int, int]
) -> None:
    """Each thread sums what its own elements of all lines are; few lines are one block's."""
    r = random.Random(shape[1])
    dtype = r.choice((np.float32, np.float64))
    x, scale = rng.normal(size=shape).astype(dtype), rng.random(shape[1]).astype(dtype)
    groups = np.arange(shape[0]) % shape[1]
    nodes = [n for n in graph_of(function, x, scale, groups).nodes if n.op == "fused_nest"]
    kinds, near = set[str](), 3e-4 if dtype == np.float32 else 1e-10
    for node in nodes:
        takes = {v.size: v for v in (x, scale, groups)}
        ins = node.kw["body"].inputs
        given = [takes.get(s.size, np.ones((), s.dtype)).reshape(s.shape) for s in ins]
        made = [lies_somehow(r, y, LAYOUTS[:3]) for y in results(node)]
        kinds.add(kind_of(run_on_host(node, [*given, *made])))
        wide = [g.astype(np.float64) if g.dtype.kind == "f" else g for g in given]
        for y, z in zip(made, by_ops(node, *wide), strict=True):
            np.testing.assert_allclose(y, z, rtol=near, atol=near * np.abs(z).max())
    assert kinds == {"lines"} or shape[1] == 40


def table_of(x: Any, scale: Any) -> Any:
    y = ost.maximum(x * scale, 0)
    return (y * x).sum(0), y.max(0), x.argmin(0), y


@pytest.mark.parametrize(
    "shape", [(5000, 16), (3001, 3), (700, 300), (300, 528), (130, 2, 6), (2000, 515)], ids=str
)
@pytest.mark.parametrize("function", [table_of, columns_of_squares], ids=lambda f: f.__name__)
def test_columns_in_registers(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    """Each thread has the same columns in all rows; a table of few rows needs no second kernel."""
    r = random.Random(sum(shape))
    x, scale = (
        rng.normal(size=shape).astype(r.choice((np.float32, np.float64))),
        rng.random(shape[1:]),
    )
    given = (x, scale.astype(x.dtype))[: 1 + (function is table_of)]
    for node in graph_of(function, *given).nodes:
        if node.op != "fused_nest":
            continue
        made = [lies_somehow(r, y, LAYOUTS[:3]) for y in results(node)]
        tiles = run_on_host(node, [lies_somehow(r, given[0], LAYOUTS[:3]), *given[1:], *made])
        if not tiles.gathered:  # of a short table, columns are done one by one
            assert shape[0] < 1000
            continue
        assert kind_of(tiles) == "columns"
        assert kernel_of(tiles).then is None or shape[0] > 100
        near = 2e-5 if x.dtype == np.float32 else 1e-12
        for y, z in zip(made, by_ops(node, *(g.astype(np.float64) for g in given)), strict=True):
            np.testing.assert_allclose(y, z, rtol=near, atol=near * np.abs(z).max())


def test_moments_of_columns() -> None:
    """None is lost where means are large, and NaN and infinities are found as by NumPy."""
    x = rng.normal(size=(6000, 12))
    x[:, 1] += 1e6
    x[:, 2], x[0, 3], x[7, 4], x[4000, 5], x[0, 6] = 3.25, np.inf, -np.inf, np.nan, 1e9
    x[:, 7], x[5999, 8] = -0.0, np.inf
    node = nest_of(lambda x: (x.mean(0), x.var(0)), x)
    made = results(node)
    assert kind_of(run_on_host(node, [x, *made])) == "columns"
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        wanted = [wide.mean(0), wide.var(0)]  # which is divided where all has been put together
    np.testing.assert_allclose(made[0], wanted[0].astype(float), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(made[1], wanted[1].astype(float), rtol=1e-10)


@pytest.mark.parametrize(("columns", "turns"), [(3, 2), (16, 600), (300, 40), (5000, 9)])
def test_turns_are_put_together_by_many_blocks(columns: int, turns: int) -> None:
    """Neighbouring results are one block's only where there are many."""
    node = nest_of(columns_of_squares, np.ones((10_000, columns), np.float32))
    tiles = tiles_in_order(node)
    made = [Finish(tiles, turns).kernel() for _ in range(2)]
    assert made[0] == made[1]
    assert min(columns, 128) <= made[0].grid[0] <= columns


# -- who does what ---------------------------------------------------------------------------------
def reductions(tiles: Tiles) -> set[int]:
    return {tiles.team(v) for v in tiles.reductions}


@pytest.mark.parametrize(
    ("shape", "rows", "teams"),
    [((5000, 512), 8, {WARP}), ((40_000, 40), 64, {WARP}), ((300, 40), 1, {WARP}),
     ((700, 5000), 1, {THREADS}), ((300, 513), 1, {THREADS}), ((300_000, 8), 256, {1})],
)  # fmt: skip
def test_rows_of_a_tile(shape: tuple[int, int], rows: int, teams: set[int]) -> None:
    """Long rows are a block's, shorter ones a warp's, the shortest a thread's."""
    tiles = tiles_in_order(nest_of(softmax, np.zeros(shape, np.float32)))
    assert ([*tiles.cut.values()], reductions(tiles)) == ([rows], teams)
    assert tiles.across == (shape[1] <= schedule.ACROSS)
    assert sum(map(tiles.room, tiles.held)) <= schedule.SHARED


def test_what_does_not_fit_is_made_again() -> None:
    """Of long rows, exponentials; what is reduced is kept, but for sums of few terms."""
    short, long = (
        tiles_in_order(nest_of(softmax, np.ones((64, n), np.float32))) for n in (5000, 50_000)
    )
    made = {v for v in short.held if v not in short.reductions}
    assert made
    assert {v for v in long.held if v not in long.reductions} == set()
    few, many = (
        tiles_in_order(nest_of(nearest, np.ones((64, n)), np.ones((20_000, n)))) for n in (4, 12)
    )
    inner = {v for v in many.reductions if v not in many.body.outputs}
    assert (few.inlined, many.inlined) == (inner, set())
    assert few.held <= set(range(few.operands))
    assert inner <= many.held
    for tiles in (short, long, few, many):
        assert sum(map(tiles.room, tiles.held)) <= schedule.SHARED


def test_threads_that_wait_for_nobody_are_found() -> None:
    text = 'extern "C" __global__ void waits(s64 n) {{ if (threadIdx.x < n) {} }}'
    preamble = "typedef long long s64;\n"
    for waits, many, wrong in (("__syncthreads();", 40, True), ("__syncthreads();", 256, False),
                               ("from_lane(n, 1);", 40, True), ("from_lane(n, 1);", 64, False)):  # fmt: skip
        kernel = HostKernel(preamble + text.format(waits), "waits", OPTIONS)
        if wrong:
            with pytest.raises(AssertionError, match="wait for others"):
                kernel((1, 1), (THREADS,), (np.int64(many),))
        else:
            kernel((1, 1), (THREADS,), (np.int64(many),))


# -- NVIDIA's compiler -----------------------------------------------------------------------------
@needs_nvrtc
@pytest.mark.parametrize("case", range(len(PLANS) - 1))
def test_nvrtc_compiles_them(case: int) -> None:
    """Without atomic operations, without memory of threads, in no more shared memory than there is."""
    function, given, _ = PLANS[case]
    for kernel in kernels(kernel_of(tiles_in_order(nest_of(function, *given)))):
        made = nvrtc.compiled(kernel.text, OPTIONS)
        assert kernel.name in made
        assert not {word for word in ("atom.", "red.global", ".local ", ".ftz") if word in made}
        shared = [line for line in made.splitlines() if line.startswith(".shared")]
        sizes = [int(line.rpartition("[")[2].rstrip("];")) for line in shared if "[" in line]
        assert sum(sizes) <= 48 << 10


@needs_nvrtc
@pytest.mark.parametrize(("terms", "vectors"), [(512, 4), (2048, 2), (32_000, 8)])
def test_softmax_reads_each_element_once(terms: int, vectors: int) -> None:
    """All of a thread's are on their way before the first is used, and nothing is in shared memory."""
    tiles = tiles_in_order(nest_of(softmax, np.ones((5000, terms), np.float32)))
    kernel = kernel_of(tiles)
    made = nvrtc.compiled(kernel.text, OPTIONS).replace(".nc", "")
    assert kernel.name.startswith("lines_")
    assert made.count("ld.global.v4.f32") == made.count("st.global.v4.f32") == vectors
    first = made.index("ld.global.v4.f32")
    assert "max" not in made[first : made.rindex("ld.global.v4.f32")]
    assert "ld.shared.v4" not in made
    assert "shfl.sync.down" in made
    assert "atom" not in made


@needs_nvrtc
def test_nvrtc_compiles_squares() -> None:
    """Each element is read once, along its own lines."""
    x = np.ones((4096, 4096), np.float32)
    tiles = squares(x, x.T, x)
    assert tiles is not None
    made = nvrtc.compiled(kernel_of(tiles).text, OPTIONS)
    assert ".local " not in made
    assert ".shared .align 16 .b8 " in made
