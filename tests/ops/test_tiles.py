"""Products by our own kernel on a GPU: any matrices against NumPy, by any tile, on the host; which tile is taken,
and that NVIDIA's compiler keeps it in registers."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import Spec
from ostinato.ops.gpu import products
from ostinato.ops.gpu.gpu_device import Gpu
from ostinato.ops.gpu.loops import tiles
from ostinato.ops.gpu.loops.text import OPTIONS
from ostinato.ops.jit.stacks import Stack, stacked, transposed
from ostinato.planner import machine
from ostinato.planner.prediction import runs

import ostinato as ost
from tests import fake_cuda, nvrtc
from tests.cuda_host import COMPILER, HostKernel
from tests.fake_device import KERNELS, WITH_KERNELS
from tests.thorough import few

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
LAYOUTS = ("rows", "columns", "rows of more", "odd rows", "apart", "backwards")
BATCHES = st.sampled_from(
    [((), ()), ((3,), (3,)), ((3,), ()), ((), (4,)), ((2, 3), (2, 3)), ((5, 1), (1, 2))]
)
EXTENTS = st.sampled_from([1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 40, 65])


def laid(x: Any, how: str) -> Any:
    """A matrix, or a stack, that lies in one of these ways."""
    *batch, m, n = x.shape
    if how == "columns":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how in ("rows of more", "odd rows"):
        more = 4 if how == "rows of more" else 3
        around = np.full((*batch, m + 1, n + more), 7, x.dtype)
        around[..., 1:, more:] = x
        return around[..., 1:, more:]
    if how == "apart":
        around = np.full((*batch, m, 2 * n), 7, x.dtype)
        around[..., ::2] = x
        return around[..., ::2]
    return np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :] if how == "backwards" else x.copy()


BEHIND: dict[str, tuple[Any, list[str], int]] = {  # what is made, of which other arrays, and of how many blocks
    "nothing": (lambda y: [y], [], 1),
    "a factor, a matrix and a row": (lambda y, c, r: [-0.125 * y - c + r], ["whole", "row"], 1),
    "a relu and its mask": (lambda y: [ost.where(y <= 0, 0, y), y <= 0, y], [], 1),
    "columns and numbers": (lambda y, c, x: [ost.tanh(y) * c, y * x], ["column", "number"], 1),
    "halves": (lambda y, c: [(y + c).astype("float32").astype("float16")], ["whole"], 1),
    "three blocks": (lambda r, z, n, c: [r * n + c, z], ["whole"], 3),
    "two blocks": (lambda y, z: [ost.sin(y) * z, z > y], [], 2),
    "gates": (
        lambda a, b, c, d, x, r: [ost.tanh(a + x) * b - c * r, d + b], ["whole", "row"], 4,
    ),
}  # fmt: skip


def behind_of(name: str, dtype: Any, shape: tuple[int, ...]) -> tuple[Graph, list[tuple[int, ...]]]:
    """The graph of what is made of a product whose blocks have this shape, and the shapes of other arrays."""
    function, kinds, blocks = BEHIND[name]
    shapes = {"whole": shape, "row": shape[-1:], "column": (*shape[:-1], 1), "number": ()}
    others = [shapes[kind] for kind in kinds]
    given = [ost.spec(s, dtype) for s in (*[shape] * blocks, *others)]
    graph = ost.plan(lambda *x: function(*x), *given).key.graph
    return graph, others


@needs_compiler
@settings(deadline=None, max_examples=few(24))
@given(
    extents=st.tuples(EXTENTS, EXTENTS, EXTENTS), batches=BATCHES, dtype=st.sampled_from([F32, F64]),
    hows=st.tuples(*[st.sampled_from(LAYOUTS)] * 3), which=st.integers(0, 1 << 20),
    name=st.sampled_from([*BEHIND]), through=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_matrices_by_any_tile(
    extents: Any, batches: Any, dtype: Any, hows: Any, which: int, name: str, through: bool, seed: int
) -> None:  # fmt: skip
    (m, n, k), rng = extents, np.random.default_rng(seed)
    blocks = BEHIND[name][2]
    if blocks > 1 and hows[2] == "columns":
        hows = (*hows[:2], "rows")  # as results of a plan lie
    outer = np.broadcast_shapes(*batches)
    a = laid(rng.standard_normal((*batches[0], m, k)).astype(dtype), hows[0])
    b = laid(rng.standard_normal((*batches[1], k, blocks * n)).astype(dtype), hows[1])
    graph, shapes = behind_of(name, dtype, (*outer, m, n))
    outs = [laid(np.zeros((*outer, m, n), s.dtype), hows[2]) for s in graph.out_specs]
    out = outs[0]
    around = out.base.copy() if out.base is not None else None
    more = [rng.standard_normal(s).astype(dtype) for s in shapes]
    found = stacked(a, b, *outs, *(np.broadcast_to(x, out.shape) for x in more))
    assert found is not None
    last = 2 + len(outs)
    behind = tiles.Behind(graph, tuple(found[last:]), tuple(found[3:last]))
    choice = [*tiles.tilings(m, blocks * n, k, math.prod(outer), dtype, tiles.H100, blocks)]
    tiling = dataclasses.replace(choice[which % len(choice)], staged=through)
    kernel = tiles.kernel_of(*found[:3], behind if name != "nothing" else None, tiling)
    assert kernel is not None
    arguments = [a, b, *outs, *more, *map(np.int64, kernel.facts)]
    HostKernel(kernel.text, kernel.name, OPTIONS)(kernel.grid, (kernel.threads,), arguments)
    product = a.astype(F64) @ b.astype(F64)
    parts = [product[..., p * n : (p + 1) * n] for p in range(blocks)]
    wanted = BEHIND[name][0](*(ost.asarray(x.astype(F64)) for x in (*parts, *more)))
    tolerance = 8 * (2e-6 if dtype == F32 else 1e-14) * (k + 4)
    for got, value in zip(outs, map(np.asarray, wanted), strict=True):
        if got.dtype == bool:
            sure = np.abs(parts[-1] - (parts[0] if blocks > 1 else 0)) > tolerance
            np.testing.assert_array_equal(got[sure], value[sure])
        else:
            rough = 2e-3 if got.dtype == np.float16 else 2e-5
            np.testing.assert_allclose(
                got, value, rough, 4 * tolerance + (1e-2 if rough > 1e-3 else 0)
            )
    if around is not None and hows[2] in ("rows of more", "odd rows", "apart"):
        kept = out.base.copy()
        out[...] = 0
        np.testing.assert_array_equal(out.base, around)
        out.base[...] = kept


def lying(*shape: int) -> Stack:
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return Stack(shape, tuple(steps), F32)


# A gradient's and a Gram matrix's sums of long columns, tables times a few columns, small squares, and a step of a
# recurrence; and what is the library's.
OURS = {
    "gram": (transposed(lying(500, 2000, 16)), lying(500, 2000, 16)),
    "sums of classes": (transposed(lying(500, 4000, 8)), lying(500, 4000, 16)),
    "a table": (lying(200_000, 64), lying(64, 16)),
    "small squares": (lying(200_000, 8, 8), lying(200_000, 8, 8)),
    "a layer": (lying(128, 784), lying(784, 528)),
    "a recurrence": (lying(64, 256), lying(256, 1024)),
}
THEIRS = [
    (4096, 4096, 4096, 1), (100_000, 2000, 64, 1), (2048, 2048, 64, 16), (528, 528, 128, 1),
    (2, 2, 1_000_000, 1), (784, 10, 60_000, 1),  # whose sums it divides among multiprocessors
]  # fmt: skip


def product_of(name: str) -> Any:
    a, b = OURS[name]
    d = lying(*a.shape[:-1], b.shape[-1])
    return tiles.kernel_of(a, b, d)


@pytest.mark.parametrize("name", OURS)
def test_short_sides_are_ours(name: str) -> None:
    kernel = product_of(name)
    assert kernel is not None
    assert {*re.findall("(?:VA|VB) = [0-9]", kernel.text)} == {"VA = 4", "VB = 4"}, "vectors"


@pytest.mark.parametrize("extents", THEIRS)
def test_large_products_are_the_librarys(extents: Any) -> None:
    assert tiles.tiling_of(*extents, F32, tiles.H100) is None


def test_doubles_of_which_no_side_is_very_short_are_the_librarys() -> None:
    """It has tensor cores for them."""
    assert tiles.tiling_of(128, 528, 784, 1, F64, tiles.H100) is None


GPUS = [m for m in map(machine.resolve, machine.presets()) if m.models]


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_rates_of_a_card_are_those_of_its_machine(gpu: machine.Machine) -> None:
    rates, h100 = tiles.rates_of(gpu.about), machine.resolve("h100")
    assert rates == tiles.rates_of(f"NVIDIA {gpu.models[0]} of some kind")
    assert rates is tiles.CARDS[gpu.models[0]]
    assert rates.multiprocessors == gpu.units

    def alike(own: float, theirs: float, h100_own: float, h100_theirs: float) -> None:
        assert own / h100_own == pytest.approx(theirs / h100_theirs, rel=0.06)  # of rounded numbers

    alike(rates.memory, gpu.stream[-1][1], tiles.H100.memory, h100.stream[-1][1])
    alike(rates.cache, gpu.stream[0][1], tiles.H100.cache, h100.stream[0][1])
    alike(rates.padded, gpu.products[0].most, tiles.H100.padded, h100.products[0].most)
    alike(rates.step * rates.clock, 1, tiles.H100.step * tiles.H100.clock, 1)
    ours, theirs = (r.multiprocessors * r.lanes * r.clock for r in (rates, tiles.H100))
    alike(ours, gpu.elements[0][1], theirs, h100.elements[0][1])


def test_a_tile_is_that_of_the_card_it_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's product is the library's on an A100, which has half as many lanes."""
    layer = [lying(128, 784), lying(784, 528), lying(128, 528)]
    found = {}
    for card, rates in tiles.CARDS.items():
        monkeypatch.setattr(WITH_KERNELS, "tile_rates", rates)
        launching = WITH_KERNELS.own_products
        assert launching is not None
        assert launching.rates is rates
        found[card] = products.tiled_product(launching, layer, "") is not None
        specs = [Spec(s.shape, F32) for s in layer]
        assert (products.ways(specs, rates)[0] == products.TILES) == found[card]
    assert found == {"H100": True, "H200": True, "A100": False, "RTX 4090": False}


def test_a_device_has_the_rates_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"name": b"NVIDIA A100-SXM4-80GB"}
    monkeypatch.setattr(fake_cuda.Runtime, "getDeviceProperties", lambda device: known)
    assert Gpu("a card", WITH_KERNELS.xp).tile_rates is tiles.CARDS["A100"]
    assert WITH_KERNELS.tile_rates is tiles.H100


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12")
@pytest.mark.parametrize("name", OURS)
def test_nvrtc_compiles_them(name: str) -> None:
    made = nvrtc.compiled(product_of(name).text, OPTIONS)
    assert re.search(r"ld\.global\.(nc\.)?v4", made)
    assert ".local" not in made, "all that a thread has is in registers"
    assert "fma.rn.f32" in made


@needs_compiler
def test_plans_multiply_by_them() -> None:
    """Batches, a bias and a matrix to add, and with the bits of one run in the next one."""
    rng = np.random.default_rng(3)
    x, w, c = (rng.standard_normal(s).astype(F32) for s in ((700, 40), (40, 8), (700, 8)))
    bias = rng.standard_normal(8).astype(F32)
    with ost.connect(device=KERNELS):
        step = ost.compile(lambda x, w, c, bias: 0.5 * (x @ w) - c + bias)
        first, second = (np.asarray(step(x, w, c, bias)) for _ in range(2))
        squares = rng.standard_normal((300, 8, 8)).astype(F32)
        cubes = np.asarray(ost.compile(lambda s: s @ s @ ost.matrix_transpose(s))(squares))
    np.testing.assert_allclose(first, 0.5 * (x @ w) - c + bias, 1e-5, 1e-4)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(cubes, squares @ squares @ squares.swapaxes(1, 2), 1e-4, 1e-4)
    plan = ost.plan(lambda s: s @ s, ost.spec((300, 8, 8)), device=KERNELS)
    assert sum(runs(plan.program, k) for k in range(len(plan.program.graph.nodes))) == 1
