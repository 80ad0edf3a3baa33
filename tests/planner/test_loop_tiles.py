"""All turns of some rows before those of the next: which loops are cut so, and that nobody sees it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.cpu.loops import loop_kernel, loop_tiles
from ostinato.planner.cpu import loop_kernels

import ostinato as ost
from tests import sessions

from .test_loop_kernels import Ours, Plain

N, M, TURNS = 6, 7, 9
RULES: dict[str, Callable[..., Any]] = {
    "waves": lambda xp, s, i, t, u, w: (s, i, xp.tanh(t + u), t - 0.5 * u, w),
    "numbers": lambda xp, s, i, t, u, w: (xp.tanh(s + i), (2 * i + 1) % M, t * s, u + i, w),
    "column": lambda xp, s, i, t, u, w: (s, i, xp.put(t, (slice(None), i), w, "set"), u, t[:, i]),
    "add": lambda xp, s, i, t, u, w: (
        s, (i + 1) % M, xp.put(t, (slice(None), i), 0.1 * u[:, i] + s, "add"), u, w),
    "sums": lambda xp, s, i, t, u, w: (s, i, t / 2, u, xp.tanh((t * u).sum(1) / M)),
    "most": lambda xp, s, i, t, u, w: (s, i, xp.where(t > u.max(1)[:, None], u, t), t, w),
    "repeated": lambda xp, s, i, t, u, w: (s, i, w[:, None] * xp.ones(M) - t / 2, u, w),
    "inside": lambda xp, s, i, t, u, w: (
        s, i, xp.put(t, (slice(None), slice(1, -1)), (u[:, 2:] + u[:, :-2]) / 2, "set"), u, w),
    "joined": lambda xp, s, i, t, u, w: (s, i, t, xp.concatenate([u[:, 3:], -t[:, :3]], 1), w),
    "swapped": lambda xp, s, i, t, u, w: (s, i, 0.9 * u, t, w),
}  # fmt: skip
OTHERS: dict[str, Callable[..., Any]] = {  # rows read others, or depend on where they are
    "flipped": lambda xp, s, i, t, u, w: (s, i, t, u[::-1], w),
    "all": lambda xp, s, i, t, u, w: (xp.tanh(t.sum() / N / M), i, t, u, w),
    "row": lambda xp, s, i, t, u, w: (s, i, t, 0.5 * u + t[i % N], w),
    "counted": lambda xp, s, i, t, u, w: (s, i, t, u, xp.tanh(w + xp.arange(N))),
    "shifted": lambda xp, s, i, t, u, w: (s, i, xp.put(t, slice(1, None), u[:-1], "set"), u, w),
}


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """How loops are cut while no array is too small for it."""
    found: list[Any] = []

    def tiles(*about: Any) -> Any:
        found.append(loop_tiles.tiles(*about))
        return found[-1]

    for name, size in (("CACHED_BYTES", 0), ("TILE_BYTES", 1), ("MIN_TILE_ELEMENTS", 1)):
        monkeypatch.setattr(loop_tiles, name, size)
    monkeypatch.setattr(loop_kernel, "tiles", tiles)
    monkeypatch.setattr(loop_kernels, "WORTH", 0)
    monkeypatch.setattr(loop_kernels, "_whole", lambda graph: None)
    for made in (loop_kernel.written, loop_tiles.tiles):
        made.cache_clear()
    yield found
    for made in (loop_kernel.written, loop_tiles.tiles):
        made.cache_clear()


def run(xp: Any, names: list[str], *state: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        for name in names:
            state = {**RULES, **OTHERS}[name](xp, *state)
        return (*state[:2], state[2] + 0.1 * x[:, None], *state[3:]), state[2] - state[3]

    made, ys = xp.scan(step, state, np.linspace(0, 1, TURNS * N).reshape(TURNS, N), False)
    return (*made, ys)


def compared(names: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = [np.float64(0.3), np.int64(2), *(rng.standard_normal(s) for s in ((N, M), (N, M), N))]
    want = run(Plain(), names, *state)
    with sessions.use():
        f = ost.compile(lambda *x: run(Ours(), names, *x))
        for _ in range(2):
            for x, y in zip(f(*state), want, strict=True):
                np.testing.assert_allclose(np.asarray(x), y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_their_own_go_through_all_turns_one_after_the_other(
    cuts: list[Any], seed: int
) -> None:
    rng = random.Random(seed)
    compared([rng.choice(list(RULES)) for _ in range(rng.randint(1, 6))], seed)
    assert cuts[0].many > 1
    assert cuts[0].many * cuts[0].rows == N


@pytest.mark.parametrize("name", OTHERS)
def test_rows_that_others_read_wait_for_them(cuts: list[Any], name: str) -> None:
    compared(["waves", name, "column"], 1)
    assert not any(cuts)


@pytest.mark.parametrize(("rows", "count"), [(60, 0), (600, 10)])
def test_what_the_cache_holds_stays_whole(rows: int, count: int) -> None:
    with sessions.use():
        f = ost.compile(lambda x: ost.repeat(300, lambda x: x * 0.5 + 1, x))
        f(np.ones((rows, 60)))
        (node,) = (n for n in f.plan.program.graph.nodes if n.op == "fused_loop")
    cut = loop_tiles.tiles(node, (node.specs[0].bare,) * 2, ((480, 8),) * 2)
    assert (cut.many if cut else 0) == count


def test_another_runs_between_tiles(cuts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """So there are no calls for some of the turns, in which a tile had few."""
    monkeypatch.setattr(loop_kernel, "SLICE_SECONDS", 1e-9)
    compared(["waves", "sums"], 1)
    assert cuts[0].many > 1
