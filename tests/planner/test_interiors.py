"""Halos travel while workers compute what needs none of them: what stands between, and what is copied."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout, Overlap, Region, intersect, volume
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.show import parse_layout
from ostinato.planner.machine import NOMINAL
from ostinato.planner.passes.memory import is_joined
from ostinato.planner.plan import Program, local_bytes

import ostinato as ost
from tests.forced import halos_widened, interiors_cut
from tests.sessions import JOB, MESHES, use
from tests.thorough import few

W, SIDE, CHANNELS = (16, 16, 3, 3, 3), 64, 16
SEVERAL = [m for m in MESHES if np.prod(m) > 1 and JOB in (1, np.prod(m))]


def spec(*shape: int, split: Any = None) -> Any:
    return ost.spec(shape, "float32", split=split)


def relu_conv(x: Any, w: Any, **p: Any) -> Any:
    return ost.nn.relu(ost.nn.conv(x, w, w[:, 0, 0, 0, 0], **{"padding": 1, **p}))


def stencil(x: Any) -> Any:
    a, b = x[:, :, 2:, 1:-1] - x[:, :, :-2, 1:-1], x[:, :, 1:-1, 2:] - x[:, :, 1:-1, :-2]
    return ost.sqrt(a * a + b * b)


LAYERS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "conv": (relu_conv, [spec(*W)]),
    "strides": (lambda x, w: relu_conv(x, w, stride=2), [spec(*W)]),
    "dilation": (lambda x, w: relu_conv(x, w, padding=2, dilation=2), [spec(*W)]),
    "transpose": (
        lambda x, w: ost.nn.conv_transpose(x, w, stride=2, padding=1),
        [spec(*W)],
    ),
    "max pool": (lambda x: ost.nn.max_pool(x, 3, stride=2, padding=1), []),
    "mean": (lambda x: ost.nn.avg_pool(x, 3, stride=2, padding=1), []),
    "linear": (lambda x: ost.nn.upsample(x, (2, 1, 1), mode="linear"), []),
    "stencil": (stencil, []),
}


def planned(function: Any, *given: Any, mesh: Any, machine: Any = "nominal") -> Any:
    return ost.plan(function, *given, mesh=mesh, machine=machine)


def halos(graph: Graph) -> list[tuple[Any, list[Any], list[Any]]]:
    """Of each halo the node that starts it, what its worker computes until it comes, and what behind that."""
    found, nodes = [], graph.nodes
    starts = [k for k, n in enumerate(nodes) if n.kw.get("collective") == "halo"]
    for k, end in zip(starts, [*starts[1:], len(nodes)], strict=True):
        wait = graph.uses[graph.starts[k]][0]
        before, behind = nodes[k:wait], nodes[wait:end]
        inner, edges = [n for n in before if _pieces(n)], [n for n in behind if _pieces(n)]
        assert not any(_pieces(n) == {Region.INNER} for n in behind), (
            "what needs no halo waits for it"
        )
        assert all(_pieces(n) == {Region.INNER} for n in before if _pieces(n))
        found.append((nodes[k], inner, edges))
    return found


def _pieces(node: Any) -> set[int]:
    computed = OPS[node.op].view is None and node.op not in ("join_pieces", "wait", "start")
    return {w.piece for _, w in node.specs[0].layout.windows if w.piece} if computed else set()


def copied(program: Program) -> int:
    """Bytes of pieces that are copied to where they belong, and of what stays on the last worker of halos."""
    size, graph = 0, program.graph
    for k, node in enumerate(graph.nodes):
        if node.op == "join_pieces" and not is_joined(program, k):
            size += node.specs[0].nbytes
        if node.kw.get("collective") == "halo":
            x = graph.specs[node.inputs[0]]
            rank = x.layout.workers - 1
            own = x.layout.box(x.shape, rank)
            read = [e.box(x.shape, rank) for e in node.kw.get("edges", (x.layout,))]
            size += sum(volume(intersect(own, e)) for e in read) * x.dtype.itemsize
    return size


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("mesh", "split"), [((4,), 2), ((2, 2), (2, 3))], ids=["slabs", "blocks"])
def test_interiors_are_computed_while_halos_travel(name: str, mesh: Any, split: Any) -> None:
    """Between start and wait, of one exchange as before; joined without a copy, and of what a worker has itself
    only some planes are copied beside what comes."""
    layer, weights = LAYERS[name]
    space = (4 * SIDE, 4 * SIDE) if name == "stencil" else (SIDE, SIDE, SIDE)
    x = spec(1, CHANNELS, *space, split=split)
    plan = planned(layer, x, *weights, mesh=mesh)
    ((start, inner, edges),) = halos(plan.program.graph)
    assert inner
    assert edges
    plane = 4 * CHANNELS * math.prod(space[1:])
    assert copied(plan.program) <= 12 * len(mesh) * plane
    assert start.kw["edges"]


def test_pieces_are_explained_in_words() -> None:
    x = spec(1, CHANNELS, SIDE, SIDE, SIDE, split=2)
    text = str(planned(relu_conv, x, spec(*W), mesh=(2,)).explain())
    assert all(words in text for words in ("interior", "low edge", "high edge", "halo 1+1"))
    assert "window" not in text


def plate(turns: int) -> Callable[[Any], Any]:
    def run(u: Any) -> Any:
        for _ in range(turns):
            around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
            u = ost.tanh(ost.pad(around, 1))
        return u

    return run


@pytest.mark.parametrize(
    ("mesh", "split", "seconds", "bandwidth", "steps"),
    [
        ((4,), 0, 1e-3, 1e9, [4]),
        ((3,), 0, 1e-4, 1e9, [1, 1]),
        ((2, 2), (0, 1), 1e-4, 1e8, [1, 1]),
        ((2, 2), (0, 1), 1e-3, 2e7, [4]),
    ],
    ids=["one for four", "one for two", "blocks for two", "blocks for four"],
)
def test_steps_behind_a_wider_halo_begin_while_it_travels(
    mesh: Any, split: Any, seconds: float, bandwidth: float, steps: list[int]
) -> None:
    """As many as take the time of its message. Of their results 19 in 20 need none of it, or more."""
    ((workers, link),) = NOMINAL.levels
    link = replace(link, seconds=seconds, bandwidth=bandwidth)
    slow = replace(NOMINAL, elements=(("float32", 1e10),), levels=((workers, link),))
    x = ost.spec((1021, 1021), "float32", split=split)
    found = halos(planned(plate(4), x, mesh=mesh, machine=slow).program.graph)
    assert [sum(n.op == "pad" for n in inner) for _, inner, _ in found] == steps
    for _, inner, edges in found:
        few, many = (
            sum(map(local_bytes, itertools.chain(*[n.specs for n in ns]))) for ns in (edges, inner)
        )
        assert 19 * few <= many


def test_slopes_of_images_are_cut_where_nothing_else_is_to_be_done() -> None:
    def loss(x: Any, w: Any) -> Any:
        return (ost.nn.conv(x, w, padding=1) ** 2).sum()

    x = spec(1, CHANNELS, SIDE, SIDE, SIDE, split=2)
    _, back = halos(planned(ost.grad(loss), x, spec(*W), mesh=(2,)).program.graph)
    assert back[1]
    _, back = halos(planned(ost.grad(loss, (0, 1)), x, spec(*W), mesh=(2,)).program.graph)
    assert not back[1], "slopes of weights are made meanwhile"


def test_what_is_small_is_left_as_it_is() -> None:
    x = spec(1, CHANNELS, 8, 8, 8, split=2)
    graph = planned(relu_conv, x, spec(*W), mesh=(2,)).program.graph
    assert not any(n.op == "join_pieces" for n in graph.nodes)


def test_pieces_are_all_of_a_part() -> None:
    draw = random.Random(0)
    for _ in range(few(200)):
        n, mesh = draw.randint(1, 30), (draw.randint(2, 6),)
        ends, blocks = (draw.randint(0, 4), draw.randint(0, 4)), draw.random() < 0.3
        part = Layout(mesh, (0,), (), blocks)
        pieces = [
            Layout(mesh, (0,), ((0, Overlap(n, 0, 1, 1, 1, *ends, p)),), blocks)
            for p in (Region.LOW, Region.INNER, Region.HIGH)
        ]
        for rank in range(mesh[0]):
            boxes = [p.box((n,), rank)[0] for p in (part, *pieces)]
            made = [k for lo, hi in boxes[1:] for k in range(lo, hi)]
            assert made == list(range(*boxes[0]))
        assert all(parse_layout(str(p)) is p for p in pieces)
        sizes = [
            [hi - lo for ((lo, hi),) in (p.box((n,), r) for r in range(*mesh))] for p in pieces
        ]
        assert [p.largest((n,)) for p in pieces] == [(max(s),) for s in sizes]


@pytest.mark.parametrize("seed", range(few(24)))
def test_steps_of_stencils_in_any_layout(seed: int) -> None:
    """Sums of products of what lies around, along one or both axes, again and again, in a loop or not, have the
    bits of one worker; parts may have fewer places than windows reach."""
    draw = random.Random(seed)
    n, m = draw.randint(7, 20), draw.randint(7, 12)
    low, high = [draw.randint(0, 2) for _ in "ab"], [draw.randint(0, 2) for _ in "ab"]
    places = [(draw.randint(0, sum(e)), draw.randint(0, sum(f))) for e, f in [(low, high)] * 3]

    def step(x: Any, where: Any, xp: Any) -> Any:
        shape = n - sum(low), m - sum(high)
        looks = [x[a : a + shape[0], b : b + shape[1]] for a, b in places]
        inner = looks[0] + 0.25 * xp.sin(looks[1]) * looks[2]
        return where(x, inner)

    def put(x: Any, inner: Any) -> Any:
        return x.at[low[0] : n - low[1], high[0] : m - high[1]].set(inner)

    def put_in(x: Any, inner: Any) -> Any:
        x = x.copy()
        x[low[0] : n - low[1], high[0] : m - high[1]] = inner
        return x

    x = np.random.default_rng(seed).normal(size=(n, m))
    wanted = x
    for _ in range(3):
        wanted = step(wanted, put_in, np)

    def steps(x: Any) -> Any:
        if seed % 4 < 2:
            return ost.repeat(3, lambda x: step(x, put, ost), x)
        return reduce(lambda x, _: step(x, put, ost), range(3), x)

    with use((JOB,)):
        alone = np.asarray(ost.compile(steps)(x))
    mesh = draw.choice(SEVERAL)
    split = tuple(draw.choice([0, 1]) for _ in mesh)
    wide = halos_widened() if seed % 2 else nullcontext()
    with use(mesh, draw.choice(["same-plan", "any-workers"])), interiors_cut(), wide:
        found = np.asarray(ost.compile(steps)(ost.asarray(x, split=split)))
    np.testing.assert_allclose(found, wanted, 1e-12, 1e-12)
    np.testing.assert_array_equal(found, alone)
