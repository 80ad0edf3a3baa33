"""Windows that are cut in time: blocks of outputs overlap in what they read, and so do blocks of what lies
between; the values are NumPy's, memory stays in its limit, and a file is read once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.layout import Overlap
from ostinato.planner.file import _prove
from ostinato.planner.passes import in_turns
from ostinato.planner.passes.layouts import choose_layouts
from ostinato.planner.preparing import prepared

import ostinato as ost
from ostinato.errors import MemoryLimitError
from tests.helpers import ON_CPU
from tests.planner.test_blocking import MIB, flat, turns
from tests.planner.test_memory import check_memory
from tests.sessions import forget_plans, use
from tests.thorough import some

ROWS, COLUMNS = 1603, 32
Program = Callable[[Any, Any], Any]


def blurred(u: Any) -> Any:
    return 0.25 * (u[2:] + u[:-2]) + 0.5 * u[1:-1]


def twice(xp: Any, u: Any) -> Any:
    return blurred(blurred(xp.exp(u))).sum(1)


def kept_edges(xp: Any, u: Any) -> Any:
    for _ in range(3):
        u = xp.concat([u[:1], blurred(u), u[-1:]])
    return u.max(1)


def decimated(xp: Any, u: Any) -> Any:
    e = xp.exp(u)
    return (e[:-1:2] * 2 + e[1::2]).sum(1), e.mean()


def backwards(xp: Any, u: Any) -> Any:
    e = xp.exp(u)
    return (blurred(e[::-3]) ** 2).sum(1), e.max(0)


def two_extents(xp: Any, u: Any) -> Any:
    e = xp.exp(u)
    return e.sum(), (blurred(e) ** 2).sum(0), e[100:900].max(1)


def rolled(xp: Any, u: Any) -> Any:
    return (xp.roll(xp.exp(u), 1, axis=0) - xp.roll(u, -3, axis=0)).max(1)


def pooled(xp: Any, u: Any) -> Any:
    e = xp.exp(u)[:1600]
    return xp.concat([xp.reshape(e, (400, 4, COLUMNS)).max(1), e[3:5]]).sum(1)


def sobel(xp: Any, u: Any) -> Any:
    """Rows are blocks, of one image; its maximum and mean come behind."""
    image = xp.reshape(u, (1, 1, *u.shape))
    x = image[..., 1:-1, 2:] - image[..., 1:-1, :-2]
    y = image[..., 2:, 1:-1] - image[..., :-2, 1:-1]
    found = xp.sqrt(x * x + y * y)
    return found.max(), found.mean(), found.sum((0, 1, 3))


PROGRAMS: tuple[Program, ...] = (
    *(twice, kept_edges, decimated, backwards, two_extents, rolled, pooled, sobel),
)
LAYOUTS = [((1,), None), ((2,), 1), ((3,), 1), ((2, 2), 1)]


def array() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, COLUMNS))


def in_less_memory(
    program: Program, mesh: Any, split: Any, numerics: str = "same-plan", share: float = 0.6
) -> Any:
    """The plan of a program in less than the memory that it takes beside operands and results."""
    x = array()
    with use(mesh, numerics):
        u = ost.asarray(x, split=split)
        whole = ost.compile(lambda u: program(ost, u))
        expected = flat(whole(u))
        limit = whole.plan.peak_bytes - int(whole.plan.arena_bytes * share)
        f = ost.compile(lambda u: program(ost, u), memory_limit=limit)
        found = flat(f(u))
        assert turns(f.plan)
        assert f.plan.peak_bytes <= limit
        check_memory(f.plan.program)
        _prove(f.plan.key, f.plan.lowered, list(f.plan.results))
    numpys = program(np, x)
    for a, b, c in zip(
        found, expected, numpys if isinstance(numpys, tuple) else (numpys,), strict=True
    ):
        np.testing.assert_allclose(a, c, rtol=1e-9, atol=1e-9)
        if numerics == "any-workers":
            np.testing.assert_array_equal(a, b)
    return f.plan


@pytest.fixture
def no_stages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels in stages keep what lies between in cache, and those that read what is joined make it where
    it is read; without them there is more to split."""
    from ostinato.planner.cpu import fuse

    monkeypatch.setattr(fuse, "has_stages", lambda graph, turns: False)
    monkeypatch.setattr(fuse, "gather_joins", lambda graph, able: graph)
    forget_plans()
    yield
    forget_plans()


@pytest.mark.parametrize(
    ("program", "layout"),
    [(p, layout) for n, p in enumerate(PROGRAMS) for layout in some(LAYOUTS, 2, n)],
    ids=lambda c: c.__name__ if callable(c) else str(c),
)
@pytest.mark.usefixtures("no_stages")
def test_windows_in_less_memory(program: Program, layout: Any) -> None:
    halo = program is sobel and layout[1] is not None  # of columns, which is there as a whole
    if halo and not ON_CPU:
        pytest.skip("a GPU's kernels make so little that no split saves as much")
    in_less_memory(program, *layout, share=0.3 if halo else 0.6)


@pytest.mark.cpu_only
@pytest.mark.parametrize("mesh", [(2,), (3,)])
@pytest.mark.usefixtures("no_stages")
def test_rows_of_workers_in_turns(mesh: Any) -> None:
    """One index is cut in space and in time: turns read windows on the part with its halo."""

    def program(xp: Any, u: Any) -> Any:
        v = blurred(u)
        e = xp.exp(v)
        e = e / e.sum(1, keepdims=True)
        return (e * v).sum(0), (e - v).max(1)

    plan = in_less_memory(program, mesh, 0, share=0.4)
    (node,) = [n for n in plan.lowered.nodes if n.op == "blocks"]
    windows = [s.layout for s in node.kw["body"].inputs if s.layout.windows]
    assert any(w.axes(0) == (0, 1) for w in windows)


@pytest.mark.usefixtures("no_stages")
def test_fixed_blocks_overlap_to_the_same_bits() -> None:
    in_less_memory(twice, (1,), None, "any-workers")


# -- by chance ---------------------------------------------------------------------------------
def chain(r: random.Random) -> Program:
    """A chain of windows, joins, functions of elements and reductions, along the rows."""
    steps: list[Program] = [lambda xp, u: xp.exp(u)]
    for _ in range(r.randint(1, 4)):
        a, b, s = r.randint(0, 4), r.randint(1, 5), r.choice([1, 2, 3, -1, -2])
        before, after = r.randint(0, 3), r.randint(0, 3)
        steps.append(
            r.choice(
                [
                    lambda xp, u, a=a, b=b: u[a : -b or None] + 2 * u[b : len(u) - a],
                    lambda xp, u, a=a, b=b: u[a:-b:1] - u[a:-b].max(1, keepdims=True),
                    lambda xp, u, a=a, s=s: u[a:][::s],
                    lambda xp, u, a=a, b=b: xp.concat([u[:a], u[b:] * 2, u[:b], u[-b:]]),
                    lambda xp, u, a=a, b=b: xp.roll(u, a - b, axis=0) + u,
                    lambda xp, u, w=(before, after): padded(xp, u, w),
                    lambda xp, u, b=b: xp.reshape(u[: len(u) // b * b], (-1, b, u.shape[1])).sum(1),
                    lambda xp, u: xp.tanh(u * 0.5),
                ]
            )
        )
    reduce: Program = r.choice(
        [
            lambda xp, u: u.sum(0),
            lambda xp, u: u.max(1),
            lambda xp, u: (u.mean(), u.sum(1)),
            lambda xp, u: (u.var(0), u[3:9].sum(), u[::2].sum(1)),
        ]
    )

    def program(xp: Any, u: Any) -> Any:
        for step in steps:
            u = step(xp, u)
        return reduce(xp, u)

    return program


def padded(xp: Any, u: Any, widths: tuple[int, int]) -> Any:
    return xp.pad(u, (widths, (0, 0)))


@pytest.mark.parametrize("first", range(0, 40, 10))
@pytest.mark.usefixtures("no_stages")
def test_chains_by_chance(first: int) -> None:
    x, split = array()[:601, :8], 0
    for seed in range(first, first + 10):
        r = random.Random(seed)
        program, mesh = chain(r), r.choice([(1,), (1,), (2,), (3,)])
        numpys = program(np, x)
        with use(mesh, r.choice(["same-plan", "any-workers"])):
            u = ost.asarray(x, split=r.choice([None, 1]))
            whole = ost.compile(lambda u, p=program: p(ost, u))
            whole(u)
            limit = whole.plan.peak_bytes - int(whole.plan.arena_bytes * r.uniform(0.3, 0.8))
            f = ost.compile(lambda u, p=program: p(ost, u), memory_limit=limit)
            try:
                found = flat(f(u))
            except MemoryLimitError:
                continue
            split += bool(turns(f.plan))
            assert f.plan.peak_bytes <= limit
            check_memory(f.plan.program)
            _prove(f.plan.key, f.plan.lowered, list(f.plan.results))
        for a, b in zip(found, numpys if isinstance(numpys, tuple) else (numpys,), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=str(seed))
    assert split >= 3, "most chains can be cut"


# -- files -------------------------------------------------------------------------------------
def heat(xp: Any, u: Any) -> Any:
    for _ in range(4):
        u = xp.concat([u[:1], blurred(u), u[-1:]])
    return u.sum(0)


FILES: dict[str, Program] = {
    "a stencil": lambda xp, u: blurred(xp.exp(u)).sum(0),
    "a stencil of a stencil": lambda xp, u: blurred(
        blurred(xp.exp(u) + u.mean(1, keepdims=True))
    ).sum(0),
    "steps with edges": heat,
    "sobel": sobel,
    "padded": lambda xp, u: padded(xp, xp.exp(u), (3, 2)).max(1).mean(),
    "put into others": lambda xp, u: rolled(xp, u).sum(),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever overlaps: what a block has in common with the one before is copied from there."""
    x = np.random.default_rng(0).standard_normal((30_000, 16))
    np.save(tmp_path / "x.npy", x)
    read, preadv = [0], os.preadv

    def counting(handle: int, buffers: Any, at: int) -> int:
        read[0] += (size := preadv(handle, buffers, at))
        return size

    monkeypatch.setattr(os, "preadv", counting)
    with use(memory_limit=MIB):
        f = ost.compile(lambda u: FILES[name](ost, u))
        u = ost.load(tmp_path / "x.npy", resident=False)
        read[0] = 0
        found = flat(f(u))
        assert read[0] <= x.nbytes + 5_000
        assert turns(f.plan)
        assert f.plan.peak_bytes <= MIB
    numpys = FILES[name](np, x)
    for a, b in zip(found, numpys if isinstance(numpys, tuple) else (numpys,), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


# -- what is made twice --------------------------------------------------------------------------
def rows_in_turns(program: Program, count: int) -> in_turns.Part:
    """The part of a program that goes through its rows in so many turns."""
    with use() as session:
        f = ost.compile(lambda u: program(ost, u))
        f(array())
        graph = choose_layouts(prepared(f.plan.key.graph, session.target), session.target)
        part = in_turns.grow(graph, session.target, 0, 0, count)
        assert part is not None
        return part


def test_what_overlaps_is_made_once_in_each_turn() -> None:
    """Three windows on one value are one block of it with a row more on both sides."""
    part = rows_in_turns(twice, 8)
    found = in_turns._body(part, part.results(0))
    assert found is not None
    body = found[1]
    assert sum(n.op == "exp" for n in body.nodes) == 1
    (exp,) = [n for n in body.nodes if n.op == "exp"]
    window = exp.specs[0].layout.window(0)
    assert window == Overlap(ROWS - 4, 0, 1, 5), "two rows on each side for a window of a window"


def test_blocks_that_overlap_are_counted() -> None:
    """More turns move more, as each makes the rows of its edges again."""
    few, many = (rows_in_turns(kept_edges, count).overlap(0) for count in (4, 16))
    assert 0 < 3 * few < many


# -- seen to fail ----------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_stages")
def test_blocks_without_their_edges_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = in_turns._merged

    def narrower(layouts: Any, spec: Any, dim: int) -> Any:
        return [
            in_turns._windowed(w, dim, Overlap(v.count, v.offset, v.stride, 1), spec)
            if (v := w.window(dim)) is not None
            else w
            for w in merged(layouts, spec, dim)
        ]

    monkeypatch.setattr(in_turns, "_merged", narrower)
    with pytest.raises((AssertionError, ValueError, TypeError)):
        in_less_memory(twice, (1,), None)
