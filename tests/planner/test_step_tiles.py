"""Time steps of stencils as one kernel that goes tile by tile: what tiles need, random programs, what is decided."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.registry import OPS
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops import tiled_kernel
from ostinato.planner.cpu import fuse, tiling
from ostinato.planner.fusion import joins
from ostinato.planner.fusion.step_chains import TILED, Room

import ostinato as ost
from ostinato import settings
from tests.helpers import ON_CPU, on
from tests.thorough import few

pytestmark = pytest.mark.skipif(bool(why_not()), reason="needs LLVM")


@pytest.fixture
def tiles_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is a kernel of its own, and tiles are taken wherever they can be."""
    small = replace(LIMITS, tile_bytes=1500)
    for module in (tiled_kernel, tiling):
        monkeypatch.setattr(module, "LIMITS", small)
    for name in ("AGAIN", "AGAIN_MIXED"):
        monkeypatch.setattr(joins, name, 0)
    for name in ("WORTH", "BESIDE"):
        monkeypatch.setattr(fuse, name, 1)
    monkeypatch.setattr(fuse, "MIN_FUSED_ELEMENTS", 1)
    monkeypatch.setattr(tiling, "Room", partial(Room, worth=float("inf"), less=0.0))


# -- random programs -----------------------------------------------------------------------
class Steps:
    """Steps of one kind after the other, of arrays that keep their shape or lose their edges."""

    def __init__(self, seed: int) -> None:
        r = random.Random(seed)
        ndim = r.choice((1, 2, 2, 2, 3))
        sizes = {1: (400, 900), 2: (40, 70), 3: (14, 20)}[ndim]
        self.shape = tuple(r.randint(*sizes) for _ in range(ndim))
        self.dtype = r.choice(("f4", "f4", "f8", "i4"))
        self.steps = [
            (r.choice((0, 1, 2, 3, 4, 5, 5, 6)), r.randrange(ndim), r.randint(1, 2))
            for _ in range(r.randint(2, 6))
        ]
        self.pairs = r.random() < 0.3

    def operand(self) -> Any:
        return np.random.default_rng(1).integers(-9, 10, self.shape).astype(self.dtype)

    def __call__(self, xp: Any, u: Any) -> Any:
        before, v = u, u + 1
        for kind, axis, k in self.steps:
            made = self.step(xp, kind, u, axis, k)
            if kind == 5 and before.shape == made.shape:  # as a wave's, which is of two times
                made = made - xp.roll(before, k, axis)
            if self.pairs and made.shape == v.shape:
                made, v = made - v, v + self.step(xp, kind, u, axis, k) * 2
            before, u = u, made
        return (u, v) if self.pairs else u

    def step(self, xp: Any, kind: int, u: Any, axis: int, k: int) -> Any:
        def cut(lo: int, hi: int | None, of: Any = u) -> Any:
            return of[(*(slice(None),) * axis, slice(lo, hi))]

        n = u.shape[axis]
        match kind:
            case 0:  # a ring
                return xp.roll(u, k, axis) + 2 * xp.roll(u, -1, axis) - u
            case 1:  # edges that stay
                inside = cut(k, n - k) * 2 + cut(0, n - 2 * k) - cut(2 * k, None)
                return xp.concatenate([cut(0, k), inside, cut(n - k, None)], axis)
            case 2:  # numbers around
                p = xp.pad(u, k)
                at = tuple(slice(k, k + m) for m in u.shape)
                return p[tuple(slice(0, m) for m in u.shape)] + p[at] * 3
            case 3:  # edges that are lost
                return cut(k, None) - cut(0, n - k) if n > 8 else u * 2
            case 4:  # from both ends, all axes
                return sum(xp.roll(u, s, d) for d in range(u.ndim) for s in (-k, 1)) - u
        if k == 2 and kind == 6:  # a row that all read
            return u + xp.roll(u, 1, axis) * cut(n // 2, n // 2 + 1)
        return u * 2 - k + xp.roll(u, k, axis)


@pytest.mark.parametrize("seed", range(few(120)))
@pytest.mark.usefixtures("tiles_of_few_rows")
def test_random_steps(seed: int) -> None:
    program = Steps(seed)
    x, wanted = program.operand(), program(np, program.operand())
    with on(1, threads=1 + seed % 2):
        f = ost.compile(lambda x: program(ost, x))
        found = f(x)
        again = f(x)
    for each in (found, again):
        pairs = zip(each, wanted, strict=True) if program.pairs else [(each, wanted)]
        for one, other in pairs:
            np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.cpu_only
@pytest.mark.usefixtures("tiles_of_few_rows")
def test_most_of_these_programs_are_tiled() -> None:
    count = 0
    for seed in range(12):
        program = Steps(seed)
        with on(1):
            f = ost.compile(lambda x, p=program: p(ost, x))
            f(program.operand())
            count += any(n.op == TILED for n in f.plan.program.graph.nodes)
    assert count >= 8


# -- what is decided -------------------------------------------------------------------------
def eight(xp: Any, u: Any, times: int = 8) -> Any:
    for _ in range(times):
        inside = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
        u = xp.concatenate(
            [u[:1], xp.concatenate([u[1:-1, :1], inside, u[1:-1, -1:]], 1), u[-1:]], 0
        )
    return u


def kinds(f: Any) -> dict[str, int]:
    return dict(Counter(n.op for n in f.plan.program.graph.nodes if n.op.startswith("fused")))


@pytest.mark.cpu_only
def test_time_steps_of_a_large_grid_are_one_kernel_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bits of one kernel each, by threads of which each has its own memory; explained as what it is."""
    monkeypatch.setattr(tiling, "most_threads", lambda: 2)
    u = np.random.default_rng(0).random((1200, 1100)).astype(np.float32)
    with on(1, threads=2):
        f = ost.compile(lambda u: eight(ost, u))
        found = [np.asarray(f(u)) for _ in range(3)]
        assert set(kinds(f)) == {TILED}
        assert kinds(f)[TILED] <= 2
        shown = f.plan.explain()
        assert "concat, add" in shown or "add, multiply" in shown
        assert " steps" in shown
        assert f.plan.source().count("# kernel ") == 8
        made = u
        for (
            node
        ) in f.plan.program.graph.nodes:  # kernel by kernel, as where there is no machine code
            made, before = np.empty_like(u), made
            OPS[TILED].kernel(np, made, before, **node.kw)
    monkeypatch.setattr(tiling, "Room", partial(Room, worth=0.0))
    with on(1, threads=1):
        f = ost.compile(lambda u: eight(ost, u))
        wanted = np.asarray(f(u))
        assert TILED not in kinds(f)
    for one in (*found, made):
        np.testing.assert_array_equal(one, wanted)
    np.testing.assert_allclose(wanted, eight(np, u), rtol=1e-5)


def wide(xp: Any, u: Any) -> Any:
    """Where much is computed with what is read, which the edges of tiles would do twice."""
    for _ in range(2):
        p = xp.pad(u, 4)
        u = sum(p[i : i + u.shape[0], j : j + u.shape[1]] for i in range(9) for j in range(0, 9, 3))
    return u


def test_what_stays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small grids, what others read, too, and steps that compute more than they move."""
    monkeypatch.setattr(tiling, "most_threads", lambda: 2)
    large = np.ones((1200, 1100), np.float32)

    def halfway(xp: Any, u: Any) -> Any:
        return (v := xp.roll(u, 1, 0) * u - xp.roll(u, -1, 1)), xp.roll(v, 1, 0) * v

    for program, u in ((eight, large[:200, :150]), (halfway, large), (wide, large)):
        with on(1, threads=2):
            f = ost.compile(lambda u, p=program: p(ost, u))
            f(u)
            assert TILED not in kinds(f)


def unsharp(xp: Any, u: Any) -> Any:
    p, (n, m), w = xp.pad(u, 2, mode="edge"), u.shape, (1, 4, 6, 4, 1)
    along = sum(w[i] * p[:, i : i + m] for i in range(5)) / 16
    blurred = sum(w[i] * along[i : i + n] for i in range(5)) / 16
    return xp.clip(u + 0.7 * (u - blurred), 0, 1)


def test_filters_in_tiles_where_nobody_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed twice at edges costs less than what moves, by a usual core's rates."""
    monkeypatch.setattr(tiling, "most_threads", lambda: 2)
    monkeypatch.setattr(settings, "machine", "nominal")
    u = np.random.default_rng(3).random((1600, 1600)).astype(np.float32)
    with on(1, threads=2):
        f = ost.compile(lambda u: unsharp(ost, u))
        np.testing.assert_allclose(np.asarray(f(u)), unsharp(np, u), atol=1e-5)
        assert kinds(f) == {TILED: 1}


@pytest.mark.usefixtures("tiles_of_few_rows")
@pytest.mark.parametrize("numerics", ["same-plan", "any-workers"])
def test_workers_with_parts(numerics: str) -> None:
    """Each worker's rows, or a whole grid on each."""
    x = np.random.default_rng(2).integers(-9, 10, (37, 41)).astype(np.float32)

    def steps(xp: Any, u: Any) -> Any:
        for k in (1, 2, 1):
            u = xp.roll(u, k, 1) + 2 * xp.roll(u, -1, 1) - u
        return u

    for split in (0, 1, None):
        with on(3, numerics=numerics):
            f = ost.compile(lambda u: steps(ost, u))
            np.testing.assert_array_equal(np.asarray(f(ost.asarray(x, split=split))), steps(np, x))
            assert numerics == "any-workers" or TILED in kinds(f) or not ON_CPU
