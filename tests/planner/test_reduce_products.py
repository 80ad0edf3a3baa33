"""Products of which only what is made of their rows is wanted are one kernel on a GPU: which are, values against
NumPy's by any tile, on the host, and that NVIDIA's compiler keeps tiles in registers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.spec import strided_like
from ostinato.ops.gpu.loops import tile_rows, tiles
from ostinato.ops.gpu.loops.text import OPTIONS
from ostinato.ops.jit.epilogues import begin_of
from ostinato.planner.gpu import reduce_products as module
from ostinato.planner.prediction import runs, work_of
from ostinato.planner.tuning.sites import APART, sites

import ostinato as ost
from tests import nvrtc
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS, WITH_KERNELS

KERNEL = "fused_matmul_rows"
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
Shapes = list[tuple[int, ...]]


def plan_of(function: Any, shapes: Shapes, dtype: str = "float32", **how: Any) -> Any:
    given = [ost.spec(s, dtype) for s in shapes]
    return ost.plan(function, *given, device=KERNELS, **{"machine": "h100", **how})


def kernels(plan: Any) -> list[str]:
    graph = plan.program.graph
    return [node.op for k, node in enumerate(graph.nodes) if runs(plan.program, k)]


def nearest(x: Any, c: Any) -> Any:
    return ost.argmin(ost.sum(c * c, axis=1) - 2 * (x @ c.T), axis=1)


def both(x: Any, c: Any) -> Any:
    apart = ost.sum(x * x, 1)[:, None] + ost.sum(c * c, 1) - 2 * (x @ c.T)
    return ost.min(apart, 1), ost.argmin(apart, 1)


# -- which ---------------------------------------------------------------------------------------
LONG: Shapes = [(100_000, 64), (2000, 64)]


@pytest.mark.parametrize(("function", "count"), [(nearest, 2), (both, 3)])
def test_distances_are_never_in_memory(function: Any, count: int) -> None:
    plan = plan_of(function, LONG)
    graph = plan.program.graph
    assert kernels(plan).count(KERNEL) == 1
    assert len(kernels(plan)) == count, "squares of centres, of points, and all else"
    assert max(s.size for s in graph.specs) == 100_000 * 64
    moved = sum(work_of(graph, n).moved for k, n in enumerate(graph.nodes) if runs(plan.program, k))
    assert moved < 2.1 * (100_000 * 64 + 2000 * 64 + 3 * 100_000) * 4


def test_it_is_taken_where_it_is_predicted_to_take_less_time() -> None:
    """Than the library, and a matrix that is written and read: not on a card that multiplies more slowly."""
    wide = plan_of(nearest, LONG)
    (node,) = (n for n in wide.program.graph.nodes if n.op == KERNEL)
    taken = {}
    for card in ("h100", "h200", "a100", "rtx4090"):
        plan = plan_of(nearest, LONG, machine=card)
        machine, rates = plan.target.machine, tiles.rates_of(plan.target.machine.about)
        apart = machine.flops_seconds(2.0 * 100_000 * 2000 * 64, True) + machine.call_seconds
        apart += machine.moving_seconds(1.6e9, 1.6e9)
        found = tile_rows.fastest(node.kw["body"], (100_000, 2000), 64, rates)
        assert found is not None
        taken[card] = KERNEL in kernels(plan)
        assert taken[card] == (found[0] <= tiles.LIMITS.share * apart)
    assert taken == {"h100": True, "h200": True, "a100": False, "rtx4090": True}


def test_under_fast_it_is_timed_beside_the_librarys_way() -> None:
    plan = plan_of(nearest, LONG, numerics="fast")
    graph = plan.program.graph
    (site,) = (s for s in sites(graph, plan.target, 1) if KERNEL in str(s.graphs[0]))
    assert site.ways[1:] == (APART,)
    ops = [n.op for n in site.graphs[1].nodes if n.op.startswith("fused")]
    assert ops == ["fused_matmul", "fused_nest"]


def attention(q: Any, k: Any, v: Any) -> Any:
    return ost.nn.softmax(q @ ost.matrix_transpose(k), 2) @ v


THEIRS: dict[str, tuple[Any, Shapes, dict[str, Any]]] = {
    "long sums": (lambda x, y: ost.max(x @ y, 1), [(4096, 4096)] * 2, {}),
    "few rows": (lambda x, y: ost.max(x @ y, 1), [(64, 64), (64, 2000)], {}),
    "the matrix is wanted": (lambda x, c: (x @ c.T, ost.max(x @ c.T, 1)), LONG, {}),
    "columns": (lambda x, c: ost.max(x @ c.T, 0), LONG, {}),
    "another product reads it": (attention, [(16, 2048, 64)] * 3, {}),
    "a maximum is subtracted": (lambda x, c: ost.logsumexp(x @ c.T, 1), LONG, {}),
    "halves": (nearest, LONG, {"dtype": "bfloat16"}),
    "sums of halves": (lambda x, c: ost.max((x @ c.T).astype("float16"), 1), LONG, {}),
    "any workers": (nearest, LONG, {"numerics": "any-workers"}),
    "TF32": (nearest, LONG, {"precision": "mixed_tf32"}),
    "a few centres": (nearest, [(2_000_000, 16), (8, 16)], {}),
}


@pytest.mark.parametrize("name", THEIRS)
def test_others_are_the_librarys(name: str) -> None:
    function, shapes, how = THEIRS[name]
    assert KERNEL not in kernels(plan_of(function, shapes, **how))


def test_what_waits_for_a_reduction_is_not_in_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it would save: terms of the sum need the maximum of all of their row."""
    monkeypatch.setattr(module, "price_by_library", every_product)
    shapes: Shapes = [(500, 64), (200, 64)]
    assert KERNEL in kernels(plan_of(lambda x, c: ost.max(x @ c.T, 1), shapes))

    def above(x: Any, c: Any) -> Any:
        scores = x @ c.T
        return ost.sum(scores - ost.max(scores, 1, keepdims=True), 1)

    assert KERNEL not in kernels(plan_of(above, shapes))


# -- values --------------------------------------------------------------------------------------
def far(x: Any, c: Any) -> Any:
    return ost.sum(x * x, -1)[..., None] + ost.sum(c * c, -1)[..., None, :] - 2 * (x @ c.mT)


FUNCTIONS: dict[str, Any] = {
    "nearest": lambda x, c, mask: (ost.argmin(far(x, c), -1), ost.min(far(x, c), -1)),
    "best of those that count": lambda x, c, mask: (
        ost.max(ost.where(mask, x @ c.mT, -math.inf), -1),
        ost.argmax(ost.where(mask, x @ c.mT, -math.inf), -1),
    ),
    "sums": lambda x, c, mask: (ost.sum(ost.exp(-abs(x @ c.mT)), -1),),
    "how many": lambda x, c, mask: (ost.sum((x @ c.mT > 0.5).astype("int32"), -1),),
}
EXTENTS = st.sampled_from([1, 2, 3, 8, 13, 16, 31, 33, 65, 130])
BATCHES = st.sampled_from([((), ()), ((3,), (3,)), ((2,), ()), ((), (2,)), ((2, 1), (1, 3))])


@needs_compiler
@settings(deadline=None, max_examples=12)
@given(
    name=st.sampled_from([*FUNCTIONS]), m=EXTENTS, n=EXTENTS, k=EXTENTS, batches=BATCHES,
    dtype=st.sampled_from(["float32", "float64"]), which=st.integers(0, 1 << 20),
    values=st.sampled_from(["any", "many alike", "some NaN", "some infinite"]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_any_rows_by_any_tile(
    name: str, m: int, n: int, k: int, batches: Any, dtype: str, which: int, values: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, c = (rng.standard_normal((*b, r, k)) for b, r in zip(batches, (m, n), strict=True))
    if values != "any":  # products are exact, and many are alike
        x, c = x.round(), c.round()
    for at, fill in ((x, "some NaN"), (c, "some infinite")):
        if values == fill:
            at[rng.random(at.shape) < 0.02] = math.nan if fill == "some NaN" else math.inf
    x, c = x.astype(dtype), c.astype(dtype)
    mask = rng.random((*np.broadcast_shapes(*batches), m, n)) < 0.7
    function = FUNCTIONS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "price_by_library", every_product)
        patch.setattr(tile_rows, "_fastest", lambda *problem: any_tiling(which, *problem))
        with ost.connect(device=KERNELS):
            f = ost.compile(function)
            got = [[np.asarray(y) for y in f(x, c, mask)] for _ in range(2)]
    if min(m, n, k) > 1:  # others are sums
        assert KERNEL in kernels(f.plan)
    with np.errstate(all="ignore"):
        wanted = [np.asarray(y) for y in function(*map(ost.asarray, (x, c, mask)))]
    for own, again, other in zip(*got, wanted, strict=True):
        np.testing.assert_array_equal(own, again)
        if own.dtype.kind != "f" and values == "any":
            continue  # rounding decides
        np.testing.assert_allclose(own, other, 1e-4, 1e-4 * k)


def every_product(graph: Any, target: Any) -> dict[int, float]:
    return {k: math.inf for k, node in enumerate(graph.nodes) if node.op == "matmul"}


def any_tiling(which: int, *problem: Any) -> Any:
    able = tile_rows.find_tilings(*problem[:6], problem[8])
    return (0.0, able[which % len(able)]) if able else None


@needs_compiler
def test_each_of_several_workers_reduces_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "price_by_library", every_product)
    rng = np.random.default_rng(4)
    x, c = (rng.standard_normal((n, 20)).round().astype("f4") for n in (301, 70))
    with ost.connect(2, device=KERNELS):
        f = ost.compile(lambda x, c: ost.argmin(far(x, c), -1))
        got = np.asarray(f(x, c))
    assert KERNEL in kernels(f.plan)
    np.testing.assert_array_equal(got, ((x[:, None] - c) ** 2).sum(-1).argmin(-1))


def test_arrays_that_no_kernel_takes_go_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where arrays lie is known only when it runs."""
    monkeypatch.setattr(module, "price_by_library", every_product)
    graph = plan_of(lambda x, c: ost.argmax(x @ c, 1), [(30, 20), (20, 7)]).program.graph
    (node,) = (n for n in graph.nodes if n.op == KERNEL)
    specs = (*(graph.specs[v] for v in node.inputs), *node.specs)
    rng = np.random.default_rng(5)
    given = [rng.standard_normal(s.shape).astype(s.dtype) for s in specs]
    monkeypatch.setattr(WITH_KERNELS, "has_own_kernels", False)
    run = WITH_KERNELS.dynamic_kernel(node, specs, ())
    assert run is not None
    arrays = [WITH_KERNELS.from_host(x) for x in given]
    run(*arrays)
    found = WITH_KERNELS.to_host(arrays[-1])
    np.testing.assert_array_equal(found, (given[0] @ given[1]).argmax(1))


# -- text ----------------------------------------------------------------------------------------
def kernel_of(function: Any, shapes: Shapes) -> Any:
    """Of arrays in order, and a right matrix that is a transpose."""
    graph = plan_of(function, shapes).program.graph
    (node,) = (n for n in graph.nodes if n.op == KERNEL)
    arrays = [
        strided_like(s.shape, s.dtype)
        for s in (*(graph.specs[v] for v in node.inputs), *node.specs)
    ]
    body = node.kw["body"]
    right = begin_of(body)
    v = body.nodes[right].inputs[1]
    arrays[v] = strided_like(arrays[v].shape[::-1], arrays[v].dtype).T
    return tile_rows.kernel_of(body, arrays, tiles.H100)


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12")
@pytest.mark.parametrize("function", [nearest, both])
def test_nvrtc_keeps_tiles_in_registers(function: Any) -> None:
    kernel = kernel_of(function, LONG)
    made = nvrtc.compiled(kernel.text, OPTIONS)
    assert ".local" not in made
    assert "ld.global.v4" in made.replace(".nc", "")
    assert made.count("fma.rn.f32") == 8 * 8 * 16, "a turn's terms of a thread's tile"
    assert kernel.grid == (782, 1), "a block for 128 rows"
