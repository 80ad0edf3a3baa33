"""Joins, rolls, pads and updates inside kernels, against NumPy: random programs, and kernels counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import canonical
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.show import parse
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.gpu.loops.moved import moved_kernel
from ostinato.ops.gpu.loops.schedule import THREADS
from ostinato.ops.gpu.loops.text import OPTIONS
from ostinato.ops.jit.loops import space
from ostinato.ops.jit.moves import has_moves
from ostinato.planner.cpu import fuse
from ostinato.planner.fusion.joins import JOINED, gather_joins, spread_joins

import ostinato as ost
from tests import sessions
from tests.cuda_host import COMPILER, HostKernel
from tests.helpers import on
from tests.thorough import some

needs_kernels = pytest.mark.skipif(bool(why_not()), reason="needs LLVM")

BEFORE = """
    (%0: float32[900] @ whole of 1)
    %1 = slice(%0; sizes=(1,), starts=(899,), steps=(1,)) : float32[1] @ whole of 1
    %2 = slice(%0; sizes=(899,), starts=(0,), steps=(1,)) : float32[899] @ whole of 1
    %3 = concat(%1, %2; axis=0) : float32[900] @ whole of 1
    %4 = multiply(%3, %0) : float32[900] @ whole of 1
    return %4
"""


def _able(k: int) -> bool:
    return k == 3


def test_before_and_after() -> None:
    before = parse(BEFORE)
    after = gather_joins(before, _able)
    assert [(n.op, n.inputs) for n in after.nodes] == [(JOINED, (0,)), ("multiply", (1, 0))]
    assert [n.op for n in after.nodes[0].kw["body"].nodes] == ["slice", "slice", "concat"]
    assert canonical(spread_joins(after)) == canonical(before)
    assert gather_joins(before, lambda k: False) is before
    split = parse(BEFORE.replace("whole of 1", "split 0 of 2"))
    assert gather_joins(split, _able) == split, "a worker has not what lies at the other end"


# -- programs with names -----------------------------------------------------------------------
def by_slices(xp: Any, u: Any) -> Any:
    inside = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
    rows = xp.concatenate([u[1:-1, :1], inside, u[1:-1, -1:]], 1)
    return xp.concatenate([u[:1], rows, u[-1:]], 0)


def by_rolls(xp: Any, u: Any) -> Any:
    return 0.25 * (xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1))


def by_update(xp: Any, u: Any) -> Any:
    value = 0.5 * (u[2:, 1:-1] + u[:-2, 1:-1])
    if xp is np:
        u = u.copy()
        u[1:-1, 1:-1] = value
        return u
    return u.at[1:-1, 1:-1].set(value)


def eight(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def steps(xp: Any, u: Any) -> Any:
        for _ in range(8):
            u = step(xp, u)
        return u

    return steps


def cube(xp: Any, v: Any) -> Any:
    for _ in range(2):
        p, (n, m, k) = xp.pad(v, 1), v.shape
        near = [p[a : a + n, b : b + m, c : c + k]
                for a in range(3) for b in range(3) for c in range(3)]  # fmt: skip
        v = sum(near[1:], near[0]) / 27
    return v


def sobel(xp: Any, u: Any) -> Any:
    p = xp.pad(u, 1, mode="edge")
    down = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    across = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:]
    across = across - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    size = xp.sqrt(down * down + across * across)
    return size, size.max(), size.mean()


def unsharp(xp: Any, u: Any) -> Any:
    p, (n, m), w = xp.pad(u, 1, mode="reflect"), u.shape, (1, 2, 1)
    along = sum(w[i] * p[:, i : i + m] for i in range(3)) / 4
    blurred = sum(w[i] * along[i : i + n] for i in range(3)) / 4
    return xp.clip(u + 0.7 * (u - blurred), 0, 1)


def life(xp: Any, u: Any) -> Any:
    near = [xp.roll(u, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    count = sum(near[1:], near[0])
    return ((count == 3) | ((u == 1) & (count == 2))).astype(np.int32)


GRID = np.random.default_rng(0).random((200, 150)).astype(np.float32)
NAMED: dict[str, tuple[Callable[[Any, Any], Any], Any, int]] = {
    "slices": (eight(by_slices), GRID, 8),
    "rolls": (eight(by_rolls), GRID, 4),  # two steps each
    "updates": (eight(by_update), GRID, 8),
    "27 points": (cube, np.random.default_rng(0).random((40, 30, 20)), 2),
    "Sobel": (sobel, GRID, 1),
    "unsharp mask": (unsharp, GRID, 1),
    "game of life": (life, (GRID * 3).astype(np.int32) % 2, 1),
}


@needs_kernels
@pytest.mark.parametrize("name", NAMED)
def test_kernels_are_counted(name: str) -> None:
    program, x, kernels = NAMED[name]
    with on(1):
        f = ost.compile(lambda x: program(ost, x))
        same(f(x), program(np, x))
        names = [n.op for n in f.plan.program.graph.nodes if n.op not in ("slice", "constant")]
        assert len(names) <= kernels
        assert set(names) <= {"fused_joins", "fused_rows"}


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
        return
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    wide = wanted.dtype.itemsize > 4 or wanted.dtype.kind in "iub"
    if wanted.dtype == ost.bfloat16:
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_allclose(found, wanted, rtol=5e-2, atol=5e-2)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-9 if wide else 2e-4, atol=1e-5)


# -- random programs -----------------------------------------------------------------------------
class Program:
    """Operations on arrays of one shape, by one library or another."""

    def __init__(self, seed: int) -> None:
        r = self.r = random.Random(seed)
        self.ndim = r.randint(1, 3)
        self.shape = tuple(r.choice((1, 2, 3, 7, 16, 33, 40)) for _ in range(self.ndim))
        if r.random() < 0.05:
            self.shape = (0, *self.shape[1:])
        self.dtype = r.choice(("f4", "f4", "f8", "i4", "c8", "bool", "bf"))
        self.steps = [(r.randrange(10), r.random(), r.random(), r.random()) for _ in range(6)]
        self.ends = r.randrange(4)

    def array(self) -> Any:
        x = np.random.default_rng(len(self.steps)).integers(-4, 5, (*self.shape, 2)) / 4
        match self.dtype:
            case "c8":
                return (x[..., 0] + 1j * x[..., 1]).astype(np.complex64)
            case "bool":
                return x[..., 0] > 0
            case "i4":
                return (4 * x[..., 0]).astype(np.int32)
            case "bf":
                return x[..., 0].astype(ost.bfloat16)
        return x[..., 0].astype(self.dtype)

    def __call__(self, xp: Any, x: Any) -> Any:
        made = [x]
        for kind, a, b, c in self.steps:
            u = made[-1 - int(a * min(len(made), 3))]
            v = made[int(b * len(made))]
            made.append(self.step(xp, kind, u, v, int(c * 100)))
        y = made[-1]
        match self.ends:
            case 0:
                return y
            case 1 if self.dtype != "c8" and 0 not in self.shape:
                return y.max(), y
            case 2 if self.dtype not in ("bf", "bool"):
                return y.sum(-1)
        return y, made[-2]

    def step(self, xp: Any, kind: int, u: Any, v: Any, c: int) -> Any:
        axis, n = c % self.ndim, self.shape[c % self.ndim]
        k = 1 + c % 3

        def cut(x: Any, *part: int | None) -> Any:
            return x[(*(slice(None),) * axis, slice(*part))]

        match kind:
            case 0:
                return xp.roll(u, c % 5 - 2, axis)
            case 1 if n > k:
                return xp.concatenate([cut(u, k, None), cut(v, 0, k)], axis)
            case 2:
                wide = xp.pad(u, [(k, k) if d == axis else (0, 0) for d in range(self.ndim)])
                return cut(wide, 0, n)
            case 3 if n > k:
                mode = ("edge", "reflect", "symmetric", "wrap")[c % 4]
                widths = [(k, k) if d == axis else (0, 0) for d in range(self.ndim)]
                return cut(xp.pad(u, widths, mode=mode), 2 * k - 1, 2 * k - 1 + n)
            case 4 if n > 2 * k:
                return self.updated(xp, u, v, axis, k)
            case 5 if n > 1:
                return xp.concatenate([cut(u, None, None, -1), cut(v, 1, None)], axis)[
                    (*(slice(None),) * axis, slice(0, n))
                ]
            case 6 if self.dtype not in ("bool",):
                return u + v if c % 2 else u - v
            case 7:
                return xp.where(u == v, v, u)
            case 8 if n > 1:
                return xp.concatenate([cut(u, 0, 1) | cut(v, 0, 1) if self.dtype == "bool"
                                       else cut(u, 0, 1) * 2, cut(v, 1, None)], axis)  # fmt: skip
        return u | v if self.dtype == "bool" else -u

    def updated(self, xp: Any, u: Any, v: Any, axis: int, k: int) -> Any:
        inside = (*(slice(None),) * axis, slice(k, -k))
        value = v[inside]
        if xp is np:
            made = u.copy()
            made[inside] = value
            return made
        return u.at[inside].set(value)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for however few elements."""
    monkeypatch.setattr(fuse, "WORTH", 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", some(range(400), 30))
def test_any_program(seed: int) -> None:
    program = Program(seed)
    x = program.array()
    with np.errstate(all="ignore"):
        wanted = program(np, x)
    r = random.Random(seed)
    workers = r.choice((1, 1, 1, 2, 3))
    with on(workers):
        split = r.randrange(program.ndim) if workers > 1 and r.random() < 0.7 else None
        if workers == 1 and r.random() < 0.3 and program.ndim > 1:  # lies otherwise
            given = ost.asarray(x.swapaxes(0, 1))
            f = ost.compile(lambda x: program(ost, ost.swapaxes(x, 0, 1)))
        else:
            given = ost.asarray(x, split=split)
            f = ost.compile(lambda x: program(ost, x))
        same(f(given), wanted)


@pytest.mark.usefixtures("small")
def test_zeros_of_a_worker_without_rows() -> None:
    """No operand says how many rows are here; what is put into them does."""
    x = np.arange(1.0, 11).reshape(2, 5)

    def rolled(x: Any) -> Any:
        shifted = ost.zeros((2, 5)).at[:, 1:].set(x[:, :-1]).at[:, :1].add(x[:, -1:])
        return shifted * x + 1

    with on(3):
        same(ost.compile(rolled)(ost.asarray(x, split=0)), np.roll(x, 1, 1) * x + 1)


@needs_kernels
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", some(range(40), 4))
def test_in_loops(seed: int) -> None:
    """Whose turns need no Python."""
    program = Program(seed)
    program.shape, program.ndim, program.dtype, program.ends = (40, 33), 2, "f8", 0
    x = program.array()
    wanted = program(np, program(np, x) / 2) / 2
    with on(1):
        f = ost.compile(lambda x: ost.repeat(2, lambda x: program(ost, x) / 2, x))
        same(f(ost.asarray(x)), wanted)


@needs_kernels
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", some(range(100), 6))
def test_as_cuda(seed: int) -> None:
    """Kernels for GPUs, run on the host, give what the operations give one by one."""
    program = Program(seed)
    if program.dtype == "c8" or 0 in program.shape:
        return
    x = program.array()
    with on(1):
        f = ost.compile(lambda x: program(ost, x))
        f(ost.asarray(x))
        nodes = [n for n in f.plan.program.graph.nodes if n.op in ("fused_joins", "fused_rows")]
    for node in nodes:
        body, whole, axes = space(node, lambda spec: spec.shape)
        if not has_moves(body):
            continue
        ins = [
            np.random.default_rng(0).integers(-4, 5, s.shape).astype(s.dtype) for s in body.inputs
        ]
        outs, wanted = ([np.ones(s.shape, s.dtype) for s in body.out_specs] for _ in range(2))
        kernel = moved_kernel(body, whole, [*ins, *outs], axes)
        room = [np.zeros(kernel.room, np.uint8)] if kernel.room else []
        run = HostKernel(kernel.text, kernel.name, OPTIONS)
        run(kernel.grid, (THREADS,), (*ins, *outs, *map(np.int64, kernel.facts), *room))
        OPS[node.op].kernel(np, tuple(wanted), *ins, body=body)
        for one, other in zip(outs, wanted, strict=True):
            same(one, other)


@pytest.mark.parametrize("step", [by_rolls, by_slices, by_update, unsharp])
def test_gradients(step: Callable[[Any, Any], Any]) -> None:
    """The slope of a sum in a direction is that of finite differences."""
    rng = np.random.default_rng(0)
    x, way = rng.random((2, 30, 25))
    with on(1):
        f = ost.compile(ost.grad(lambda x: (step(ost, x) ** 2).sum()))
        found = (np.asarray(f(x)) * way).sum()
    h = 1e-6
    a, b = ((step(np, x + s * way) ** 2).sum() for s in (h, -h))
    np.testing.assert_allclose(found, (a - b) / (2 * h), rtol=1e-6)


def test_numbers_as_arrays_among_parts() -> None:
    """What an update goes into may be numbers: no operand then says how many rows a worker has of it."""
    x = np.random.default_rng(2).standard_normal((8, 30, 30))

    def step(x: Any) -> Any:
        y = ost.exp(-abs(x))
        return (ost.roll(y, 3, axis=1).max(2) * x.sum(2)).sum()

    with sessions.use():
        wanted = np.asarray(ost.compile(ost.grad(step))(x))
    for workers in (3, 5):
        with sessions.use((workers,)):
            made = ost.compile(ost.grad(step))(ost.asarray(x, split=0))
            np.testing.assert_allclose(made, wanted, 1e-12, 1e-12)


def test_single_elements_of_joins_inside_loops() -> None:
    """Kernels inside loops make numbers, too, and these have no axis that boxes would lie along."""

    def joined(xp: Any, y: Any) -> Any:
        y = xp.concatenate([y, y[:2]])
        return xp.tanh(y[150]) * xp.concatenate([y[1:], y[:1]])[151]

    def padded(xp: Any, y: Any) -> Any:
        y = xp.pad(y, [(0, 2)], constant_values=1.0)
        return xp.exp(y)[150] + xp.tanh(y[::-1])[103]

    x = np.random.default_rng(3).standard_normal((300, 17))
    for number in (joined, padded):

        def turn(xp: Any, x: Any, number: Callable[..., Any] = number) -> Any:
            return xp.sort(xp.tanh(x), axis=1) * number(xp, xp.sort(x, axis=0)[:, 0])

        wanted = turn(np, turn(np, x))
        with sessions.use():
            made = ost.compile(lambda x, turn=turn: ost.repeat(2, lambda x: turn(ost, x), x))(x)
        np.testing.assert_allclose(made, wanted, 1e-12)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_numbers_as_arrays_on_parts(rows: int) -> None:
    """Of them a worker has as many rows as of what is made of them, if that is none, too."""
    body = parse("""
        (%0: float64[3,1] @ whole of 1)
        %1 = full(; dtype=dtype float64, shape=(3,4), value=0) : float64[3,4] @ whole of 1
        %2 = exp(%1) : float64[3,4] @ whole of 1
        %3 = update_slice(%2, %0; mode='set', starts=(0,1), steps=(1,1)) : float64[3,4] @ whole of 1
        return %3
    """)
    given, made = np.full((rows, 1), 2.0), np.zeros((rows, 4))
    OPS[JOINED].kernel(np, (made,), given, body=body)
    np.testing.assert_array_equal(made, [[1.0, 2.0, 1.0, 1.0]] * rows if rows else made)


def test_complex_numbers_move_under_libm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves have no expression, and no bits of their own."""
    monkeypatch.setenv("OSTINATO_MATH", "libm")
    x = np.random.default_rng(5).standard_normal((70, 90)) * (1 + 2j)

    def moved(xp: Any, x: Any) -> Any:
        return xp.concatenate([x + 1, x[:3]]) - xp.roll(x[:1], 2, axis=1)

    with ost.session():
        np.testing.assert_array_equal(ost.compile(lambda x: moved(ost, x))(x), moved(np, x))
