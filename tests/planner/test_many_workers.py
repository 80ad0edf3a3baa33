"""Plans for more workers than anybody wants to list."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from ostinato.ops.core import layout as layouts
from ostinato.ops.core.array import placeholder, term_of
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout, Mesh
from ostinato.ops.core.spec import Spec, float32
from ostinato.ops.core.trace import collect
from ostinato.planner.pipeline import make_plan
from ostinato.planner.plan import Key, Target

import ostinato as ost
from ostinato.reading import CompileTrace
from tests.thorough import THOROUGH, some

MESHES = [(2048,), (65536,), (256, 256), (32, 32, 64)]
FEW = 64  # workers that a plan may look at one by one
MEMORY = 64 << 20
# whose planning is four times as slow then
COUNTED = MESHES if THOROUGH else [(65536,), (256, 256)]


@contextmanager
def tracing_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def traced(function: Callable[..., Any], specs: Sequence[Spec]) -> Graph:
    trace = CompileTrace(function.__name__)
    made = function(*[placeholder(s, k, trace) for k, s in enumerate(specs)])
    results = made if isinstance(made, tuple) else (made,)
    return collect([term_of(x) for x in results], specs, trace).graph


def product(a: Any, b: Any) -> Any:
    return a @ b


def kmeans(x: Any, c: Any) -> Any:
    d = ((x[:, None, :] - c[None, :, :]) ** 2).sum(-1)
    near = ost.astype(d.argmin(1)[:, None] == ost.arange(c.shape[0]), x.dtype)
    return (near.T @ x) / ost.maximum(near.sum(0), 1)[:, None], d.min(1).mean()


def stencil(u: Any) -> Any:
    inner = u[1:-1] * 0.5 + (u[:-2] + u[2:]) * 0.25
    return ost.pad(inner, ((1, 1), (0, 0)))


def programs(mesh: Mesh) -> list[tuple[Callable[..., Any], list[Spec], str]]:
    """Programs with their operands, and a collective that they need."""
    n = math.prod(mesh)
    rows, whole = Layout(mesh, (0,) * len(mesh)), Layout.whole(mesh)
    both = Layout(mesh, (*(0,) * (len(mesh) - 1), 1)) if len(mesh) > 1 else rows
    return [
        (
            product,
            [Spec((n * 16 + 5, 64), float32, both), Spec((64, 8), float32, rows)],
            "all_gather",
        ),
        (
            kmeans,
            [Spec((n * 40 + 7, 16), float32, rows), Spec((8, 16), float32, whole)],
            "all_reduce",
        ),
        (stencil, [Spec((n * 40 + 5, 8), float32, rows)], "halo"),
    ]


@pytest.mark.parametrize(
    ("mesh", "numerics"),
    [(m, n) for k, m in enumerate(MESHES) for n in some(["same-plan", "any-workers"], 2, k)],
    ids=str,
)
def test_nobody_asks_worker_by_worker(
    mesh: Mesh, numerics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    rule = layouts._box

    def box(layout: Layout, shape: tuple[int, ...], rank: int) -> Any:
        asked.append(rank)
        return rule(layout, shape, rank)

    monkeypatch.setattr(layouts, "_box", box)
    for function, specs, collective in programs(mesh):
        if numerics == "any-workers":
            cut = [(s, s.layout) for s in specs]
            specs = [s.at(Layout(w.mesh, w.splits, (), blocks=True)) for s, w in cut if w]
        key = Key(traced(function, specs), Target(mesh, numerics=numerics))
        peak = 0
        with tracing_memory() if mesh in COUNTED else nullcontext():
            said = make_plan(key).explain()
            if mesh in COUNTED:
                _, peak = tracemalloc.get_traced_memory()
        if numerics == "any-workers" and collective == "all_reduce":
            collective = "all_gather"  # of what each makes of the fixed blocks
        assert collective in said, f"{function.__name__}: {said}"
        assert len(set(asked)) <= FEW, function.__name__
        assert peak < MEMORY, f"{function.__name__}: {peak:,} bytes"
        asked.clear()
