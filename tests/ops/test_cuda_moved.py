"""Kernels of joins, windows and broadcasts for GPUs: vectors of neighbours, on the host and by NVRTC."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.gpu.loops import flat, moved
from ostinato.ops.gpu.loops.schedule import THREADS
from ostinato.ops.gpu.loops.text import OPTIONS, Kernel
from ostinato.ops.jit.loops import loops_of, space, strides_over
from ostinato.ops.jit.moves import has_moves
from ostinato.planner.prediction import runs

import ostinato as ost
from tests import nvrtc
from tests.cuda_host import COMPILER, HostKernel
from tests.fake_device import KERNELS
from tests.planner.test_joins import Program, by_rolls, by_slices, by_update, life, same, unsharp
from tests.thorough import some

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
needs_nvrtc = pytest.mark.skipif(
    not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12"
)


def windows(xp: Any, x: Any) -> Any:
    """Sobel's filters, as windows of windows."""
    across, down = x[:, 2:] - x[:, :-2], x[2:] - x[:-2]
    a = across[:-2] + 2 * across[1:-1] + across[2:]
    b = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    return xp.sqrt(a * a + b * b)


def waves(xp: Any, u: Any) -> Any:
    before = u
    for _ in range(3):
        around = sum(xp.roll(u, s, k) for k in range(3) for s in (1, -1))
        u, before = 2 * u - before + 0.1 * (around - 6 * u), u
    return u


def halves(xp: Any, u: Any) -> Any:
    return xp.concatenate([u[:, 8:] * 2, u[:, 12:20], xp.roll(u, 5, 1)[:, :8] + 1], 1)


def inside(xp: Any, u: Any) -> Any:
    """Look only at what an update of an array by itself has written."""
    return u.at[:, 4:-4].set(u[:, 8:])[:, 4:-4] * 2 + u[:, :-8]


def bodies(program: Callable[..., Any], *given: Any) -> list[tuple[Graph, tuple[int, ...], int]]:
    """The kernels of a program on a GPU: bodies, the elements, and how many axes are reduced."""
    plan = ost.plan(lambda *x: program(ost, *x), *given, machine="h100", device=KERNELS)
    graph = plan.program.graph
    nodes = [node for k, node in enumerate(graph.nodes) if runs(plan.program, k)]
    assert all(node.op.startswith("fused") for node in nodes), [node.op for node in nodes]
    return [space(node, lambda spec: spec.shape) for node in nodes]


def made_of(body: Graph, whole: Sequence[int], axes: int, arrays: Sequence[Any]) -> Kernel:
    if has_moves(body):
        return moved.moved_kernel(body, tuple(whole), arrays, axes)
    loops = loops_of(tuple(whole), strides_over(body, tuple(whole), arrays, axes), axes)
    assert loops is not None
    return flat.kernel_of(body, loops)


def placed(x: Any, off: int) -> Any:
    """A copy that begins so far from where vectors do, between numbers that are not its own."""
    room = np.full(x.nbytes + 192, 255, np.uint8)
    first = 64 + (-room.ctypes.data - 64) % 64 + off
    made = room[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def check(body: Graph, whole: Sequence[int], axes: int, r: random.Random) -> Kernel:
    """A kernel gives what operations give one by one, wherever arrays begin."""
    rng = np.random.default_rng(r.randrange(99))
    ins = [rng.integers(-4, 5, s.shape).astype(s.dtype) for s in body.inputs]
    wanted = tuple(np.ones(s.shape, s.dtype) for s in body.out_specs)
    OPS["fused"].kernel(np, wanted, *ins, body=body)
    arrays = [placed(x, x.itemsize * r.choice((0, 0, 0, 0, 1, 2))) for x in (*ins, *wanted)]
    outs = arrays[len(ins) :]
    for x in outs:
        x[...] = 1
    kernel = made_of(body, whole, axes, arrays)
    room = [np.zeros(kernel.room, np.uint8)] if kernel.room else []
    run = HostKernel(kernel.text, kernel.name, OPTIONS)
    run(kernel.grid, (THREADS,), (*arrays, *map(np.int64, kernel.facts), *room))
    for one, other in zip(outs, wanted, strict=True):
        same(one, other)
    return kernel


@pytest.fixture
def vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours for however few elements."""
    monkeypatch.setattr(moved, "BLOCKS", 0)
    monkeypatch.setattr(flat, "BLOCKS", 0)


# program, shape, dtype, kernels, and vectors that a thread reads and writes
NAMED: list[tuple[Any, tuple[int, ...], str, int, int]] = [
    (by_slices, (21, 40), "float32", 1, 4),
    (by_rolls, (9, 24), "float64", 1, 4),
    (by_update, (21, 40), "float32", 1, 4),
    (unsharp, (20, 32), "float32", 1, 4),
    (life, (17, 20), "int32", 1, 4),
    (windows, (20, 38), "float32", 1, 7),
    (waves, (5, 6, 8), "float32", 3, 5),
    (halves, (6, 32), "float16", 1, 3),
    (inside, (6, 40), "float32", 1, 3),
]


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("case", NAMED, ids=lambda case: case[0].__name__)
def test_neighbours_are_vectors(case: tuple[Any, tuple[int, ...], str, int, int]) -> None:
    program, shape, dtype, kernels, count = case
    found = bodies(program, ost.spec(shape, dtype))
    assert len(found) == kernels
    kernel = check(*found[-1], random.Random(0))
    text = kernel.text.split("} else {")[0]
    assert text.count("*(const Beside<") + text.count("*(Beside<") >= count


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("seed", some(range(200), 10))
def test_any_program(seed: int) -> None:
    """Joins, rolls, pads, updates, flips and windows of shapes that are and are not whole vectors."""
    r = random.Random(seed)
    program = Program(seed)
    while program.dtype == "c8" or 0 in program.shape:
        program = Program(r.randrange(10**6))
    if r.random() < 0.7:
        program.shape = (*program.shape[:-1], -(-program.shape[-1] // 8) * 8)
    x = program.array()
    plan = ost.plan(lambda x: program(ost, x), ost.spec(x.shape, x.dtype), device=KERNELS)
    for node in plan.program.graph.nodes:
        if node.op.startswith("fused") and has_moves(node.kw["body"]):
            check(*space(node, lambda spec: spec.shape), r)


SHORT = [((50, 16), 4), ((50, 12), 4), ((33, 10), 2), ((31, 3), 1), ((9, 7, 8), 4), ((5, 3, 6), 2)]


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize(("shape", "each"), SHORT, ids=str)
def test_short_rows_with_what_they_share(shape: tuple[int, ...], each: int) -> None:
    """A row for all rows, a column, a matrix for all: what lies in order is vectors."""

    def program(xp: Any, x: Any, row: Any, column: Any, first: Any) -> Any:
        return (x - row) * column + first

    shapes = shape, shape[-1:], (*shape[:-1], 1), (1, *shape[1:])
    ((body, whole, axes),) = bodies(program, *(ost.spec(n, "float32") for n in shapes))
    kernel = check(body, whole, axes, random.Random(1))
    assert (f"Beside<float, {each}>" in kernel.text) == (each > 1)
    assert kernel.grid[0] <= -(-np.prod(shape) // (each * THREADS)) + 1, (
        "threads with nothing to do"
    )


def test_quotients_by_products_are_right() -> None:
    r = random.Random(0)
    for n in (*range(1, 70), *(r.randrange(1, 1 << 31) for _ in range(200))):
        times, right = flat._multiplier(n)
        assert times < 1 << 32
        for x in (0, n - 1, n, (1 << 31) - 1, *(r.randrange(1 << 31) for _ in range(20))):
            assert x * times >> right == x // n


@needs_nvrtc
@pytest.mark.parametrize("shape", [(4096, 4096), (40_000, 40_000)], ids=str)
def test_all_that_a_step_reads_is_on_its_way_at_once(shape: tuple[int, ...]) -> None:
    """There is no branch between what is read; of two gigabytes, indices have 64 bits."""
    ((body, whole, axes),) = bodies(by_slices, ost.spec(shape, "float32"))
    arrays = [np.broadcast_to(np.float32(0), s.shape) for s in (*body.inputs, *body.out_specs)]
    strides = (4 * shape[1], 4)
    arrays = [np.lib.stride_tricks.as_strided(x, x.shape, strides) for x in arrays]
    kernel = made_of(body, whole, axes, arrays)
    assert ("s32 x0" in kernel.text) == (shape[0] < 10_000)
    made = nvrtc.compiled(kernel.text, OPTIONS).replace(".nc", "")
    lines = [line.strip() for line in made.splitlines()]
    reads = [n for n, line in enumerate(lines) if line.startswith("ld.global.v4.f32")]
    assert len(reads) == 3
    (written,) = [n for n, line in enumerate(lines) if line.startswith("st.global.v4.f32")]
    between = lines[reads[0] : written]
    assert not any("bra" in line or line.endswith(":") for line in between)
    assert sum("ld.global.f32" in line for line in between) <= 2
