"""Which layouts and collectives the classic cases come to."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ostinato.ops.core.array import from_operand
from ostinato.ops.core.exchange import pieces_to, written
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Partial, intersect, volume
from ostinato.ops.core.spec import Spec, float32
from ostinato.ops.planned.collective import collective_of
from ostinato.planner.check import check_layouts
from ostinato.planner.layouts.shardings import SUM
from ostinato.planner.machine import Machine, resolve
from ostinato.planner.passes.communicate import communicate
from ostinato.planner.plan import Target
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from ostinato import settings
from ostinato.errors import LayoutError
from ostinato.sessions import current
from tests import ranks
from tests.sessions import MESHES, forget_plans, use

P = 4


def plan_of(function: Any, *inputs: Any, mesh: tuple[int, ...] = (P,)) -> Any:
    """The facts and layouts of a compiled function of arrays with splits."""
    with use(mesh):
        f = ost.compile(function)
        f(*(ost.asarray(x, split=s) for x, s in inputs))
        found = facts(f.plan)
        return found["collectives"], found["sent"], [str(s.layout) for s in f.plan.out_specs]


X = np.ones((64, 48))
V = np.ones(48)


def test_elementwise_needs_no_communication() -> None:
    assert plan_of(lambda x, y: ost.tanh(x * y + 1), (X, 0), (X, 0)) == ({}, 0, ["split 0 of 4"])
    assert plan_of(lambda x, v: x * v + 1, (X, 0), (V, None)) == ({}, 0, ["split 0 of 4"])


def stencil(x: Any) -> Any:
    return x[3:] + x[:-3] - 2 * x[1:-2]


@pytest.mark.parametrize("halo", [0, 1, 3, 6])
def test_a_stencil_of_parts_with_halos_needs_no_message(halo: int) -> None:
    r = np.random.default_rng(0)
    x, w = r.normal(size=(64, 48)), r.normal(size=(48, 5))
    with use((P,)):
        given = from_operand(current().put(x, 0, {0: halo}))
        one, two = ost.compile(stencil), ost.compile(lambda x, w: (stencil(x * 2) @ w, x.sum(0)))
        np.testing.assert_array_equal(np.asarray(one(given)), stencil(x))
        np.testing.assert_allclose(np.asarray(two(given, w)[0]), stencil(x * 2) @ w)
        np.testing.assert_array_equal(np.asarray(given), x)
        assert facts(one.plan)["collectives"] == ({} if halo >= 3 else {"halo": 1})
        assert {"halo": 1}.items() <= facts(two.plan)["collectives"].items()  # of what it makes
        check_layouts(one.plan.program.graph, one.plan.target)


def test_results_are_not_brought_to_where_halos_are() -> None:
    x = np.random.default_rng(0).normal(size=(64, 48))
    with use((P,)):
        given = from_operand(current().put(x, 0, {0: 3}))
        step = ost.compile(lambda x: (x * 2, ost.repeat(3, lambda y: y + x, x)))
        double, four = step(given)
        assert facts(step.plan)["collectives"] == {}
        assert double.layout is four.layout is Layout((P,), (0,))
        np.testing.assert_array_equal(np.asarray(double), x * 2)
        np.testing.assert_allclose(np.asarray(four), x * 4)


def test_files_of_parts_with_halos_have_each_element_once(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(64, 48))
    with use((P,)):
        given = from_operand(current().put(x, 0, {0: 3}))
        for name in ("x.npy", "x.zarr"):
            ost.save(tmp_path / name, given)
            np.testing.assert_array_equal(np.asarray(ost.load(tmp_path / name)), x)
        shares = written(given.layout, x.shape)
        assert [b for share in shares for b in share] == [
            ((k, k + 16), (0, 48)) for k in (0, 16, 32, 48)
        ]


def test_rows_by_weights_needs_none() -> None:
    w = np.ones((48, 16))
    assert plan_of(lambda x, w: x @ w, (X, 0), (w, None)) == ({}, 0, ["split 0 of 4"])
    assert plan_of(lambda x, w: x @ w, (X, None), (w, 1)) == ({}, 0, ["split 1 of 4"])


def test_a_split_inner_index_is_one_all_reduce() -> None:
    a, b = np.ones((16, 4000)), np.ones((4000, 8))
    kinds, sent, layouts = plan_of(lambda a, b: a @ b, (a, 1), (b, 0))
    assert kinds == {"all_reduce": 1}
    assert sent == 2 * (P - 1) * 16 * 8 * 8  # each addend there and back: 2 (P-1)/P of it, P times
    assert layouts == ["whole of 4"]


def test_sums_are_added_before_they_are_summed_up() -> None:
    a, b = np.ones((16, 4000)), np.ones((4000, 8))
    total = (lambda a, b, c, d: ost.tanh(a @ b - (c @ d) / 2), (a, 1), (b, 0), (a, 1), (b, 0))
    kinds, sent, _ = plan_of(*total)
    assert sum(kinds.values()) == 1, kinds
    assert sent <= 2 * (P - 1) * 16 * 8 * 8
    kinds, _, _ = plan_of(lambda a, b: ost.concat([a @ b, -(a @ b)[:, ::-1]]), (a, 1), (b, 0))
    assert sum(kinds.values()) == 1, "joined, then summed up"


def test_slopes_of_batches_that_come_one_after_another_are_summed_up_once() -> None:
    """Gradients are accumulated as addends; the loop talks to nobody."""

    def train(w: Any, batches: Any) -> Any:
        def one(state: Any, x: Any) -> Any:
            slopes, loss = state
            value, slope = ost.value_and_grad(lambda w: ((x @ w) ** 2).sum())(w)
            return (slopes + slope, loss + value), None

        (slopes, loss), _ = ost.scan(one, (ost.zeros_like(w), 0.0), batches)
        return w - 0.01 * slopes, loss

    batches = np.random.default_rng(0).normal(size=(6, 40, 16))
    w = np.random.default_rng(1).normal(size=(16, 5))
    with use((P,)):
        f = ost.compile(train)
        new, loss = f(ost.asarray(w), ost.asarray(batches, split=1))
        (loop,) = [n for n in f.plan.lowered.nodes if n.op == "loop"]
        assert not [n for n in loop.kw["body"].nodes if collective_of(n.op, n.kw)]
        assert facts(f.plan)["collectives"] == {"all_reduce": 1}, "the loss in the slopes' message"
    products = [x @ w for x in batches]
    np.testing.assert_allclose(loss, sum((y**2).sum() for y in products))
    slope = sum(2 * x.T @ y for x, y in zip(batches, products, strict=True))
    np.testing.assert_allclose(np.asarray(new), w - 0.01 * slope)


def test_what_everybody_has_is_added_once() -> None:
    """A replica becomes addends where that saves a sum: one worker's, and zeros."""
    parts = np.random.default_rng(0).normal(size=(6, 400, 5))
    start = np.arange(5.0)

    def running(start: Any, parts: Any) -> Any:
        return ost.scan(lambda s, x: (s + x.sum(0), None), start, parts)[0]

    with use((P,)):
        f = ost.compile(running)
        found = f(ost.asarray(start), ost.asarray(parts, split=1))
        assert facts(f.plan)["collectives"] == {"all_reduce": 1}
        assert [n.op for n in f.plan.lowered.nodes].count("addend") == 1
    np.testing.assert_allclose(np.asarray(found), start + parts.sum((0, 1)))


@pytest.mark.parametrize("mesh", [(2, 2), (3, 2), (2, 3)])
def test_large_sums_cross_slow_links_in_parts(
    mesh: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summed within the inner axis first, of which each worker then has a part to send."""

    def slopes(x: Any, y: Any) -> Any:
        return x.T @ y

    machine = resolve("cpu-10gbe")
    assert machine.levels[0][1].bandwidth > machine.levels[1][1].bandwidth
    inner = machine.levels[0][0]
    rows = ost.spec((1 << 20, 1000), split=(0, 0))
    plan = ost.plan(slopes, rows, rows, mesh=(4, inner), machine=machine)
    assert [kind for n in plan.lowered.nodes if (kind := collective_of(n.op, n.kw))] == [
        "reduce_scatter",
        "all_reduce",
        "all_gather",
    ]
    outer, near = sorted(plan.simulate().links, key=lambda link: link.name)
    assert {outer.bytes, near.bytes} == {
        2 * 3 * 4_000_000,  # between nodes, once
        2 * (inner - 1) * 4_000_000 * 4,
    }
    monkeypatch.setattr(Machine, "all_reduce", lambda *given: (1e-3, True))
    x, y = np.random.default_rng(0).normal(size=(2, 120, 6))
    with use(mesh):
        forget_plans()
        f = ost.compile(slopes)
        found = f(ost.asarray(x, split=(0, 0)), ost.asarray(y, split=(0, 0))).resplit(None)
        np.testing.assert_allclose(np.asarray(found), x.T @ y)
    forget_plans()


def test_or_one_reduce_scatter_where_it_is_asked_for_or_a_replica_would_outgrow_its_parts() -> None:
    a, b = np.ones((16, 4000)), np.ones((4000, 8))
    kinds, sent, layouts = plan_of(lambda a, b: (a @ b).resplit(0), (a, 1), (b, 0))
    assert kinds == {"reduce_scatter": 1}
    assert sent == (P - 1) * 16 * 8 * 8
    assert layouts == ["split 0 of 4"]
    for inner, end in ((440, "split 0 of 4"), (400, "split 1 of 4")):  # as one more operand lies
        a, b = np.ones((400, inner)), np.ones((inner, 400))
        kinds, _, layouts = plan_of(lambda a, b: a @ b, (a, 1), (b, 0))
        assert kinds == {"reduce_scatter": 1}
        assert layouts == [end]


def test_mean_and_variance_together_are_one_collective() -> None:
    x = np.ones((4000, 16))
    kinds, sent, _ = plan_of(lambda x: (x.mean(0), x.var(0)), (x, 0))
    assert kinds == {"all_reduce": 1}
    assert sent == 2 * (P - 1) * (8 + 2 * 16 * 8)  # count, means, squares
    kinds, _, _ = plan_of(lambda x: (x - x.mean(0)) / x.std(0), (x, 0))
    assert kinds == {"all_reduce": 1}
    kinds, _, _ = plan_of(lambda x: ost.nn.layer_norm(x, axis=0), (x, 0))
    assert kinds == {"all_reduce": 1}


def test_argmin_is_one_collective_of_value_and_place() -> None:
    x = np.ones((4000, 16))
    kinds, sent, _ = plan_of(lambda x: x.argmin(0), (x, 0))
    assert kinds == {"all_reduce": 1}
    assert sent == 2 * (P - 1) * 16 * (8 + 8)


def test_k_means_step_is_two_all_reduces() -> None:
    def lloyd(x: Any, c: Any) -> Any:
        d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
        near = ost.nn.one_hot(d.argmin(1), c.shape[0], dtype=x.dtype)
        return (near.T @ x) / near.sum(0)[:, None]

    kinds, sent, layouts = plan_of(
        lloyd, (np.random.rand(4000, 16), 0), (np.random.rand(8, 16), None)
    )
    assert kinds == {"all_reduce": 2}
    assert sent == 2 * (P - 1) * (8 * 16 + 8) * 8
    assert layouts == ["whole of 4"]


def test_a_training_step_reduces_each_gradient_once() -> None:
    from tests.planner.test_memory import mlp, mlp_inputs

    with use((P,)):
        step = ost.compile(mlp)
        p, x, y = mlp_inputs(4096)
        p, _ = step(p, x.resplit(0), y.resplit(0), 0.1)
        p, _ = step(p, x.resplit(0), y.resplit(0), 0.2)
        found = facts(step.plan)["collectives"]
        # Three gradients and the loss; where the update takes long, each worker makes a part of it.
        assert found["all_reduce"] + found.get("reduce_scatter", 0) == 4
        assert found.get("all_gather", 0) == found.get("reduce_scatter", 0)
        assert [str(v.layout) for v in p.values()] == ["whole of 4"] * 3
        assert len(step.misses) == 1, "the state comes back as it went in"


def test_a_stencil_is_one_halo() -> None:
    def heat(u: Any) -> Any:
        return u[2:] + u[:-2] - 2 * u[1:-1]

    kinds, sent, _ = plan_of(heat, (np.ones((400, 10)), 0))
    assert kinds == {"halo": 1}
    assert sent <= 3 * (P - 1) * 10 * 8


def test_one_row_is_a_broadcast_of_it() -> None:
    kinds, sent, _ = plan_of(lambda x: x[63] + ost.zeros(48), (X, 0))
    assert sent <= P * 48 * 8
    assert sum(kinds.values()) <= 2


def test_transposes_swap_what_is_split() -> None:
    assert plan_of(lambda x: x.T, (X, 0)) == ({}, 0, ["split 1 of 4"])


def test_reshape_keeps_the_split_where_pieces_agree() -> None:
    assert plan_of(lambda x: x.reshape(-1), (X, 0)) == ({}, 0, ["split 0 of 4"])
    assert plan_of(lambda x: x.reshape(64, 6, 8), (X, 0)) == ({}, 0, ["split 0 of 4"])
    kinds, _, _ = plan_of(lambda x: x.reshape(-1, 7), (np.ones((7, 6)), 0))
    assert kinds


def test_sorting_along_the_split_axis_moves_the_split() -> None:
    kinds, _, layouts = plan_of(lambda x: ost.sort(x, axis=0), (X, 0))
    assert kinds == {"all_to_all": 1}
    assert layouts == ["split 1 of 4"]


def test_what_is_whole_is_computed_in_parts_where_that_is_faster() -> None:
    def gram(x: Any) -> Any:
        return (x @ x.T).sum()

    kinds, _, layouts = plan_of(gram, (X, None))
    assert (kinds, layouts) == ({"all_reduce": 1}, ["whole of 4"])
    forget_plans()
    with mock.patch.object(
        settings, "machine", "nominal"
    ):  # where a message is dearer than all this
        assert plan_of(gram, (X, None)) == ({}, 0, ["whole of 4"])
    forget_plans()


def test_creation_lies_where_it_is_asked_for() -> None:
    kinds, sent, layouts = plan_of(lambda: (ost.zeros((8, 8), split=0), ost.arange(12, split=0)))
    assert (kinds, sent) == ({}, 0)
    assert layouts == ["split 0 of 4"] * 2
    with use((P,)):
        x = ost.random.normal((1000, 10), split=0)
        assert x.split == 0
        assert x._operand.parts[0].shape == (250, 10)


def test_two_mesh_axes() -> None:
    a = np.ones((64, 64))
    kinds, _, layouts = plan_of(lambda a: ost.exp(a) * 2, (a, (0, 1)), mesh=(2, 2))
    assert (kinds, layouts) == ({}, ["split 0 on axis 0, split 1 on axis 1 of 2x2"])
    kinds, sent, layouts = plan_of(lambda a: a.sum(1), (a, (0, 1)), mesh=(2, 2))
    assert kinds == {"all_reduce": 1}
    assert layouts == ["split 0 on axis 0 of 2x2"]
    assert sent == 2 * 1 * 4 * 32 * 8 // 2
    kinds, _, layouts = plan_of(lambda a: a.sum(), (a, (0, 1)), mesh=(2, 2))
    assert kinds == {"all_reduce": 1}, "over both axes at once"


def test_loops_keep_their_state_where_it_is() -> None:
    def power(a: Any, v: Any) -> Any:
        def turn(v: Any) -> Any:
            w = a @ v
            return w / ost.sqrt((w * w).sum())

        return ost.repeat(10, turn, v)

    kinds, _, layouts = plan_of(power, (np.ones((400, 400)), 0), (np.ones(400), None))
    assert layouts in (["split 0 of 4"], ["whole of 4"])
    assert sum(kinds.values()) <= 3


def test_collectives_start_before_other_work_and_are_awaited_after_it() -> None:
    def two(x: Any, y: Any) -> Any:
        return x.T @ x + 1, ost.tanh(y).T @ y + 2

    with use((P,)):
        f = ost.compile(two)
        f(ost.asarray(np.ones((4000, 8)), split=0), ost.asarray(np.ones((4000, 8)), split=0))
        names = [n.op for n in f.plan.program.graph.nodes]
    assert names.count("start") == 2
    assert names.count("wait") == 2
    first = names.index("start")
    assert "matmul" in names[first : names.index("wait")], (
        "the second product runs while the first sum travels"
    )


# -- layouts themselves -------------------------------------------------------------------------
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("shape", [(7, 5), (1, 9), (0, 4), (24, 24)])
@pytest.mark.parametrize("blocks", [False, True])
def test_parts_cover_an_array_once(
    mesh: tuple[int, ...], shape: tuple[int, ...], blocks: bool
) -> None:
    import itertools

    for splits in itertools.product((None, 0, 1), repeat=len(mesh)):
        layout = Layout(mesh, splits, (), blocks)
        count = np.zeros(shape, int)
        for rank in range(layout.workers):
            box = layout.box(shape, rank)
            count[tuple(slice(*b) for b in box)] += 1
            assert all(lo <= hi for lo, hi in box)
            assert all(
                a <= b
                for a, b in zip(layout.local_shape(shape, rank), layout.largest(shape), strict=True)
            )
        copies = np.prod([n for n, s in zip(mesh, splits, strict=True) if s is None])
        if 0 not in shape:
            assert (count == copies).all()


def test_parts_are_balanced() -> None:
    layout = Layout((4,), (0,))
    assert [layout.local_shape((10,), r) for r in range(4)] == [(3,), (3,), (2,), (2,)]
    nested = Layout((2, 2), (0, 0))
    assert [nested.box((10,), r) for r in range(4)] == [((0, 3),), ((3, 5),), ((5, 8),), ((8, 10),)]


@pytest.mark.parametrize("shape", [(7, 5), (12,), (0, 3), (2, 2)])
def test_messages_bring_each_element_once(shape: tuple[int, ...]) -> None:
    import itertools

    layouts = [
        Layout(mesh, splits)
        for mesh in ((4,), (2, 2), (1, 4))
        for splits in itertools.product((None, *range(len(shape))), repeat=len(mesh))
    ]
    for has, needs in itertools.product(layouts, repeat=2):
        for rank in range(4):
            wanted = needs.box(shape, rank)
            pieces = pieces_to(has, needs, shape, rank)
            assert sum(volume(p.box) for p in pieces) == volume(wanted)
            for p in pieces:
                assert intersect(has.box(shape, p.source), p.box) == p.box, (
                    "a source sends what it has"
                )
                if p.source != rank:
                    assert volume(intersect(has.box(shape, rank), p.box)) == 0, (
                        "nobody fetches what is there"
                    )


def test_layouts_are_what_they_say() -> None:
    layout = Layout((3, 2), (0, Partial("sum")))
    assert repr(layout) == "split 0 on axis 0, partial sum on axis 1 of 3x2"
    assert Layout((1, 2), (0, 1)) is Layout((1, 2), (None, 1)), "one worker splits nothing"
    with pytest.raises(AttributeError):
        layout.mesh = (6,)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ost.zeros((2, 3)).resplit(2), r"split=2 \(.*: got an array with 2 axes"),
        (lambda: ost.zeros((2, 3)).resplit("rows"), r"split='rows' \(.*: got an array with 2 axes"),
        (
            lambda: ost.evaluate(ost.zeros((2, 3)).resplit((0, 1))),
            r"got 2 entries for a mesh of 1 axes",
        ),
        (
            lambda: ost.evaluate(ost.zeros((2, 3)).resplit(0, mesh=(3,))),
            r"got 4 workers; needed a mesh of 4",
        ),
        (lambda: ost.connect(workers=4, mesh=(3, 2)), r"needed a mesh of 4 workers"),
        (lambda: ost.connect(mesh=(0,)), r"needed one to four axes of 1 worker or more"),
    ],
)
def test_layout_errors(make: Any, message: str) -> None:
    with use((P,)), pytest.raises(LayoutError, match=message):
        make()


MADE_IN_PARTS = {
    "numbers": lambda x: x + ost.reshape(ost.arange(64, split=0), (64, 1)),
    "a triangle": lambda x: ost.tril(x),
    "random numbers": lambda x: ost.random.normal((64, 48), split=0, seed=3) * 2 + 1,
    "a chain": lambda x: (ost.exp(ost.ones((64, 48)) * 2) @ ost.ones((48, 4))).resplit(0),
    "in a loop": lambda x: ost.repeat(3, lambda s: ost.triu(s) + ost.random.uniform((64, 48)), x),
}


@pytest.mark.parametrize("name", MADE_IN_PARTS)
def test_what_is_read_in_parts_is_made_in_parts(name: str) -> None:
    with use((P,)):
        f = ost.compile(MADE_IN_PARTS[name])
        f(ost.asarray(X, split=0))
        graphs = [f.plan.program.graph]
        graphs += [g for n in graphs[0].nodes for _, g in n.subgraphs()]
        for graph in graphs:
            assert "narrow" not in [n.op for n in graph.nodes]
            for node in graph.nodes:
                for s in node.specs:
                    rows = [n for n in s.shape if n == 64]
                    assert not rows or "split 0" in str(s.layout), f"{node.op} {s}"
        assert facts(f.plan)["sent"] == 0


def test_what_is_read_whole_too_is_made_whole() -> None:
    with use((P,)):
        f = ost.compile(lambda x: (x + (y := ost.ones((64, 48)) * 2), y))
        a, b = f(ost.asarray(X, split=0))
        assert (a.split, b.split) == (0, None)
        made = [str(n.specs[0].layout) for n in f.plan.program.graph.nodes if n.op == "full"]
        assert made == ["whole of 4"]


@pytest.mark.parametrize("nested", [False, True])
def test_addends_may_go_anywhere(nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are summed, along several axes or within the last one first; others stay or begin."""
    several = lambda self, mesh, axes, size: (1e-3, nested and len(axes) > 1)  # noqa: E731
    monkeypatch.setattr(Machine, "all_reduce", several)
    draw, kinds = random.Random(3), set[str]()
    some = Layout((2, 2, 2), (SUM, None, None))
    cases = [*ranks.cases(600), (Layout.whole((2, 2, 2)), some, (8, 6))]
    for has, needs, shape in cases:
        if has.mesh != needs.mesh or has.workers == 1 or has.windows or has.blocks or needs.blocks:
            continue
        spec, target = Spec(shape, float32), Target(has.mesh)
        here, end = ranks.with_addends(draw, has), ranks.with_addends(draw, needs)
        if needs is some:
            here, end = Layout((2, 2, 2), (SUM,) * 3), some
        asked = Node("relayout", (0,), (), (spec.at(end),))
        made = communicate(Graph((spec.at(here),), (asked,), (1,)), target)
        check_layouts(made, target)
        assert made.out_specs[0].layout is end
        kinds |= {n.op for n in made.nodes}
    assert kinds >= {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "narrow", "addend"}
