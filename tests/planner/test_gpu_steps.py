"""Time steps as one kernel on a GPU, tile by tile in shared memory: random programs on the host, what is decided,
and what NVIDIA's compiler makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import strided_like
from ostinato.ops.gpu.loops import block_tiles
from ostinato.ops.gpu.loops.text import OPTIONS
from ostinato.planner.fusion import joins, sinking
from ostinato.planner.fusion.step_chains import TILED
from ostinato.planner.gpu import tiling

import ostinato as ost
from tests import nvrtc
from tests.cuda_host import COMPILER, HostKernel
from tests.fake_device import KERNELS
from tests.ops.test_cuda_moved import placed
from tests.planner.test_step_tiles import Steps, eight, wide
from tests.sessions import JOB, forget_plans
from tests.thorough import few

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
SMALL = {1: ((64,), (48,)), 2: ((8, 16), (4, 12), (4, 8)), 3: ((2, 4, 8), (2, 2, 8), (1, 2, 4))}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each step is a kernel of its own, and tiles are taken wherever they can be."""
    block_tiles.tile_of.cache_clear()
    monkeypatch.setattr(block_tiles, "SIZES", SMALL)
    monkeypatch.setattr(block_tiles, "BLOCKS", 4)
    for module, name in ((joins, "AGAIN"), (joins, "AGAIN_MIXED"), (sinking, "AGAIN")):
        monkeypatch.setattr(module, name, 0)
    room = replace(tiling.ROOM, bytes=0, worth=float("inf"), less=0.0)
    monkeypatch.setattr(tiling, "ROOM", room)
    monkeypatch.setattr(tiling, "LEAST_BYTES", 0)
    forget_plans()
    yield
    block_tiles.tile_of.cache_clear()
    forget_plans()


def tiled(plan: Any) -> list[Any]:
    return [n for n in plan.program.graph.nodes if n.op == TILED]


def planned(program: Any, *shape: int) -> Any:
    given = ost.spec(shape, "float32")
    return ost.plan(lambda u: program(ost, u), given, machine="h100", device=KERNELS)


def like(node: Any) -> list[Any]:
    body = node.kw["body"]
    return [strided_like(s.shape, s.dtype) for s in (*body.inputs, *body.out_specs)]


@needs_compiler
@pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
@pytest.mark.parametrize("seed", range(few(84)))
@pytest.mark.usefixtures("small_tiles")
def test_random_steps(seed: int) -> None:
    """As NumPy does them, at edges and between, also of rows that do not begin at vectors, and by two workers."""
    program = Steps(seed)
    x, wanted = program.operand(), program(np, program.operand())
    with ost.connect(1 + seed % 3 // 2, device=KERNELS):
        f = ost.compile(lambda x: program(ost, x[..., 1:] if seed % 4 == 3 else x))
        given = np.concatenate([x[..., :1], x], -1) if seed % 4 == 3 else x
        found = f(ost.asarray(given, split=0 if seed % 3 == 2 else None))
        pairs = zip(found, wanted, strict=True) if program.pairs else [(found, wanted)]
        for one, other in pairs:
            np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.usefixtures("small_tiles")
def test_most_of_these_programs_are_tiled() -> None:
    count = 0
    for seed in range(12):
        program = Steps(seed)
        given = ost.spec(program.shape, program.dtype)
        count += bool(tiled(ost.plan(lambda x, p=program: p(ost, x), given, device=KERNELS)))
    assert count >= 9


@needs_compiler
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("off", [(0, 0), (4, 0), (0, 8)])
def test_wherever_arrays_begin(off: tuple[int, int]) -> None:
    """Of tiles in the middle and at all ends, of which the last ones are not whole."""
    (node,) = tiled(planned(eight, 45, 92))
    u = np.random.default_rng(3).random((45, 92)).astype("f4")
    arrays = [placed(x, n) for x, n in zip((u, np.zeros_like(u)), off, strict=True)]
    kernel = block_tiles.steps_kernel(node.kw["body"], arrays)
    assert kernel is not None
    given = (*arrays, *map(np.int64, kernel.facts))
    HostKernel(kernel.text, kernel.name, OPTIONS)(kernel.grid, (kernel.threads,), given)
    made = u
    for _ in node.kw["body"].nodes:
        made = eight(np, made, 1)
    np.testing.assert_array_equal(arrays[1], made)


@needs_compiler
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("trips", [1, 2, 7, 9])
def test_turns_of_loops(trips: int) -> None:
    """As many as become one, and those that are left; over a constant, too."""
    u, k = (np.random.default_rng(n).random((45, 92)).astype("f4") for n in (1, 2))

    def step(xp: Any, u: Any, k: Any) -> Any:
        return eight(xp, u, 1) * k + xp.roll(u, 1, 1)

    with ost.connect(device=KERNELS):
        f = ost.compile(lambda u, k: ost.repeat(trips, lambda u: step(ost, u, k), u))
        for _ in range(3):
            found = f(ost.asarray(u), ost.asarray(k))
        made = u
        for _ in range(trips):
            made = step(np, made, k)
        np.testing.assert_array_equal(np.asarray(found), made)


# -- what is decided -------------------------------------------------------------------------
def life(xp: Any, u: Any) -> Any:
    for _ in range(8):
        rows = u + xp.roll(u, 1, 0) + xp.roll(u, -1, 0)
        near = rows + xp.roll(rows, 1, 1) + xp.roll(rows, -1, 1) - u
        u = xp.where((near == 3) | ((u == 1) & (near == 2)), u * 0 + 1, u * 0)
    return u


@pytest.mark.parametrize("program", [eight, life])
def test_time_steps_are_few_kernels(program: Any) -> None:
    """Whose tiles need little of what lies around them, and fit into shared memory."""
    nodes = tiled(planned(program, 4096, 4096))
    assert sum(len(n.kw["body"].nodes) for n in nodes) == 8
    assert len(nodes) == 2
    body = nodes[0].kw["body"]
    each = block_tiles.neighbours_of(body, like(nodes[0]))
    tile = block_tiles.tile_of(body, tuple(s.shape for s in body.inputs), each)
    assert tile is not None
    assert each == 4
    assert max(map(tile.again, range(4))) < 1.3
    assert tile.places()[1] <= block_tiles.ROOM


def test_what_stays_apart() -> None:
    """Small grids, what others read, too, and steps that compute more than they move."""

    def halfway(xp: Any, u: Any) -> Any:
        return (v := xp.roll(u, 1, 0) * u - xp.roll(u, -1, 1)), xp.roll(v, 1, 0) * v

    for program, shape in ((eight, (200, 150)), (halfway, (4096, 4096)), (wide, (4096, 4096))):
        assert not tiled(planned(program, *shape))


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC's wheel")
@pytest.mark.parametrize("program", [eight, life])
def test_nvidias_compiler_reads_vectors(program: Any) -> None:
    node, _ = tiled(planned(program, 4096, 4096))
    kernel = block_tiles.steps_kernel(node.kw["body"], like(node))
    assert kernel is not None
    made = nvrtc.compiled(kernel.text, OPTIONS)
    assert (
        made.count("ld.shared.v4") >= 2 * 3 * 3
    )  # three rows or more in three steps, in two texts
    assert made.count("st.shared.v4") == 3 * (block_tiles.BlockTile.rows + 1)
    assert made.count("st.global.v4") == block_tiles.BlockTile.rows + 1


def test_turns_become_one_where_kernels_become_fewer() -> None:
    """Not where a turn ends with a sum that the next one needs, or asks for its number."""

    def normed(u: Any) -> Any:
        v = eight(ost, u, 1)
        return v / ost.sqrt((v * v).sum())

    def numbered(u: Any) -> Any:
        return ost.scan(
            lambda u, i: (eight(ost, u, 1) * i, None), u, ost.arange(10, dtype="float32")
        )[0]

    plan = planned(lambda _, u: ost.repeat(10, lambda u: eight(ost, u, 1), u), 4096, 4096)
    loop, step = plan.program.graph.nodes
    assert (loop.kw["trips"], [n.op for n in loop.kw["body"].nodes]) == (2, [TILED])
    assert step.op == TILED
    for program in (lambda u: ost.repeat(10, normed, u), numbered):
        plan = planned(lambda _, u, p=program: p(u), 4096, 4096)
        (loop,) = [n for n in plan.program.graph.nodes if n.op == "loop"]
        assert loop.kw["trips"] == 10
