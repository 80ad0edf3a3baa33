"""Splits in time: what is larger than it may be runs block after block, with the same values, and stays in its limit."""

from __future__ import annotations

import gc
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Partial
from ostinato.planner.cpu import fuse
from ostinato.planner.file import _prove
from ostinato.planner.fusion import groups
from ostinato.planner.plan import Plan
from ostinato.runtime import bind, control_flow

import ostinato as ost
from ostinato.errors import MemoryLimitError
from tests.planner.test_any_layout import RELAXED, splits_for
from tests.planner.test_memory import check_memory
from tests.programs import make_program
from tests.sessions import forget_plans, use
from tests.thorough import some

MIB = 1 << 20
LAYOUTS: tuple[tuple[int, ...], ...] = ((1,), (2,), (3,), (2, 2))


def turns(plan: Plan) -> list[int]:
    """The numbers of turns of all parts that were split, in bodies too."""

    def inside(graph: Graph) -> list[int]:
        found = [n.kw["turns"] for n in graph.nodes if n.op == "blocks"]
        return found + [t for n in graph.nodes for _, g in n.subgraphs() for t in inside(g)]

    return inside(plan.program.graph)


@pytest.fixture
def no_stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels in stages keep what lies between in cache; without them there is more to split."""
    monkeypatch.setattr(fuse, "has_stages", lambda graph, turns: False)
    forget_plans()
    yield
    forget_plans()


# -- what people write -----------------------------------------------------------------------
def kmeans(x: Any, c: Any) -> Any:
    d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
    near = ost.nn.one_hot(d.argmin(1), c.shape[0], dtype=x.dtype)
    return (near.T @ x) / near.sum(0)[:, None]


def logistic(x: Any, c: Any) -> Any:
    def loss(w: Any) -> Any:
        return ost.nn.cross_entropy(ost.tanh(x @ w.T), ost.argmax(x[:, :9], axis=1))

    return ost.value_and_grad(loss)(c)


def attention(x: Any, c: Any) -> Any:
    q, k, v = x, x[:2000] * 0.5, x[:2000]
    return ost.nn.softmax(q @ k.T / 4) @ v


def nearest(x: Any, c: Any) -> Any:
    d = ((x[:, None, :] - x[None, :300]) ** 2).sum(-1)
    return d.min(1), d.argmax(1), d.max(), d.sum(0)


def normalised(x: Any, c: Any) -> Any:
    y = ost.exp(x @ c.T)
    return (((y - y.mean(0)) / ost.sqrt(y.var(0) + 1e-3)) ** 3).max(1)


def drawn(x: Any, c: Any) -> Any:
    n = ost.random.normal((x.shape[0], 200), seed=3)
    return (n[:, :1] * n).sum(1), ost.exp(n).max(0), (n[:, 3] > 1).any()


def inside_a_loop(x: Any, c: Any) -> Any:
    return ost.repeat(3, lambda c: kmeans(x, c) * 0.5 + c * 0.5, c)


def behind(x: Any, c: Any) -> Any:
    """The axis that is cut is no leading one, neither in operands nor in results."""
    y = ost.permute_dims(x, (1, 0))[:, :, None]
    return ost.exp(ost.tanh(y * c[:, 0]) @ c).max(-1)


WRITTEN: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (kmeans, logistic, attention, nearest, normalised, drawn, inside_a_loop, behind)
}


def operands(split: Any = None) -> tuple[Any, Any]:
    r = np.random.default_rng(0)
    x, c = r.normal(size=(4001, 12)), r.normal(size=(40, 12))
    return ost.asarray(x, split=split), ost.asarray(c)


def flat(made: Any) -> list[np.ndarray]:
    return [np.asarray(y) for y in (made if isinstance(made, tuple) else (made,))]


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    ("name", "mesh"),
    [(name, mesh) for n, name in enumerate(WRITTEN) for mesh in some(LAYOUTS, 2, n)],
    ids=str,
)
@pytest.mark.usefixtures("no_stages")
def test_the_same_values_in_a_tenth_of_the_memory(name: str, mesh: tuple[int, ...]) -> None:
    with use(mesh):
        inputs = operands(split=0)
        f = ost.compile(WRITTEN[name])
        expected = flat(f(*inputs))
        held = f.plan.peak_bytes - f.plan.arena_bytes
        limit = held + f.plan.arena_bytes // 10 + 20_000
        g = ost.compile(WRITTEN[name], memory_limit=limit)
        for _ in range(2):
            found = flat(g(*inputs))
        assert turns(g.plan), "it was not split"
        assert g.plan.peak_bytes <= limit
        check_memory(g.plan.program)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["kmeans", "logistic", "nearest", "normalised", "drawn"])
@pytest.mark.usefixtures("no_stages")
def test_no_more_than_the_limit_is_really_allocated(name: str) -> None:
    limit = 3 * MIB // 2
    f = ost.compile(WRITTEN[name], memory_limit=limit)
    x, c = (np.asarray(v) for v in operands())
    with use():
        f(x, c)  # kernels are made now
    with ost.connect():
        gc.collect()
        tracemalloc.start()
        try:
            made = f(x.copy(), c.copy())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert turns(f.plan)
        assert peak <= limit + 900_000, "beside arrays: the plan, its function, kernels' texts"
        assert peak >= f.plan.peak_bytes * 0.9
        del made


STEPS = (
    *("tanh", "halve", "add", "multiply", "subtract", "maximum", "where", "sum", "mean", "var"),
    *("max", "min", "any", "argmin", "argmax", "softmax", "layer_norm", "one_hot", "matmul"),
    *("einsum", "reshape", "permute", "number", "expand", "squeeze", "broadcast", "slice"),
    *("take", "sort", "concat", "loop", "while", "cond", "diff"),
)
EXTENTS = (1, 8, 30, 64, 90)


@RELAXED
@given(st.randoms(use_true_random=False), st.sampled_from(LAYOUTS))
def test_random_programs_under_random_limits(r: random.Random, mesh: tuple[int, ...]) -> None:
    under_a_limit(r, mesh, "same-plan")


@RELAXED
@given(st.randoms(use_true_random=False), st.sampled_from(LAYOUTS))
def test_any_workers_under_random_limits(r: random.Random, mesh: tuple[int, ...]) -> None:
    """Its blocks are fixed, so a split in time changes no bit."""
    under_a_limit(r, mesh, "any-workers")


def under_a_limit(r: random.Random, mesh: tuple[int, ...], numerics: str) -> None:
    program = make_program(r, 10, EXTENTS, 60_000, STEPS)
    with use(mesh, numerics):
        inputs = [ost.asarray(x, split=splits_for(r, x.ndim, mesh)) for x in program.inputs]
        whole = ost.compile(program.by_ostinato)
        expected = [np.asarray(y) for y in whole(*inputs)]
        limit = whole.plan.peak_bytes - int(whole.plan.arena_bytes * r.uniform(0, 0.95))
        split = ost.compile(program.by_ostinato, memory_limit=limit)
        try:
            found = split(*inputs)
        except MemoryLimitError:
            return
        assert split.plan.peak_bytes <= limit
        check_memory(split.plan.program)
        _prove(split.plan.key, split.plan.lowered, list(split.plan.results))
        for a, b in zip(found, expected, strict=True):
            if numerics == "any-workers":
                np.testing.assert_array_equal(np.asarray(a), b)
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-9, atol=1e-9)


def test_most_random_programs_that_can_be_split_are() -> None:
    """The tests above are worth something. A limit is relative to the whole, which may be in place where
    blocks are not: of sixty programs some more or less say nothing, but fewer than a quarter do."""
    split = 0
    with use():
        for seed in range(60):
            program = make_program(random.Random(seed), 10, EXTENTS, 60_000, STEPS)
            f = ost.compile(program.by_ostinato)
            f(*program.inputs)
            limit = f.plan.peak_bytes - f.plan.arena_bytes // 2
            g = ost.compile(program.by_ostinato, memory_limit=limit)
            try:
                g(*program.inputs)
            except MemoryLimitError:
                continue
            split += bool(turns(g.plan))
    assert split >= 15, split


# -- places, states, blocks ------------------------------------------------------------------
def test_random_numbers_are_those_of_the_whole() -> None:
    def f(n: Any) -> Any:
        u = ost.random.uniform((1000, 64), seed=11)
        return ost.round(u * 1000).sum(1) + n, u.argmax(1)

    with ost.connect():
        whole = ost.compile(f)
        expected = flat(whole(0.0))
        limit = whole.plan.peak_bytes - whole.plan.arena_bytes * 3 // 4
        split = ost.compile(f, memory_limit=limit)
        found = flat(split(0.0))
        assert turns(split.plan)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rows", [1000, 1001, 1023, 997])
def test_uneven_blocks(rows: int) -> None:
    x = np.random.default_rng(1).normal(size=(rows, 3))
    with use():
        f = ost.compile(
            lambda x: ost.exp(x[:, :, None] * x[:, None]).sum((1, 2)), memory_limit=70_000
        )
        np.testing.assert_allclose(
            np.asarray(f(x)), np.exp(x[:, :, None] * x[:, None]).sum((1, 2)), rtol=1e-12
        )


@pytest.mark.parametrize(
    "monoid", ["sum", "prod", "max", "min", "any", "all", "argmin", "argmax", "var"]
)
@pytest.mark.usefixtures("no_stages")
def test_each_monoid_over_turns(monoid: str) -> None:
    x = np.random.default_rng(2).normal(size=(3000, 4))
    x[1500] = -7, 7, np.nan, 0  # decides in the middle
    x[2999] = -7, 7, 1, 9

    def f(x: Any, xp: Any) -> Any:
        y = xp.cos(x)[:, :, None] * x[:, None, :2] * 0.01 + (1 if monoid == "prod" else 0)
        y = y > 0.069 if monoid in ("any", "all") else y
        return getattr(xp, monoid)(y, axis=0)

    with ost.connect():
        whole = ost.compile(lambda x: f(x, ost))
        whole(x)
        limit = whole.plan.peak_bytes - whole.plan.arena_bytes * 7 // 8
        g = ost.compile(lambda x: f(x, ost), memory_limit=limit)
        found = np.asarray(g(x))
        assert max(turns(g.plan)) > 4, "the rows are what is cut"
        np.testing.assert_allclose(found, f(x, np), rtol=1e-10)


def test_a_repeated_plan_in_turns_allocates_no_array() -> None:
    with use() as session:
        f = ost.compile(kmeans, memory_limit=2 * MIB)
        x, c = operands()
        for _ in range(6):
            c = f(x, c)
        worker = session.engine.workers[0]
        before = worker.allocations
        tracemalloc.start()
        try:
            for _ in range(5):
                c = f(x, c)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert worker.allocations == before
        assert peak < 200_000


def test_a_training_step_with_norms_takes_its_batch_in_turns() -> None:
    """How many elements a norm counts is nobody's row, and stops nothing."""

    def step(ws: Any, x: Any, y: Any) -> Any:
        def loss(ws: Any) -> Any:
            z = x
            for w in ws:
                z = ost.nn.layer_norm(ost.tanh(z @ w))
            return ost.nn.mse_loss(z, y)

        value, slopes = ost.value_and_grad(loss)(ws)
        return ost.tree_map(lambda w, g: w - 0.1 * g, ws, slopes), value

    r = np.random.default_rng(0)
    ws = [r.normal(size=(16, 16)) for _ in range(4)]
    x, y = r.normal(size=(3000, 16)), r.normal(size=(3000, 16))
    with use():
        whole = ost.compile(step)
        expected, value = whole(ws, x, y)
        limit = whole.plan.peak_bytes - whole.plan.arena_bytes // 2
        f = ost.compile(step, memory_limit=limit)
        found, again = f(ws, x, y)
        assert len(turns(f.plan)) == 1, "one part, forward and backward"
        assert not any(n.op == "tanh" for n in f.plan.lowered.nodes), "in which all is made, once"
        for a, b in zip((*found, again), (*expected, value), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-10, atol=1e-12)


# -- saying so -------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_stages")
def test_explain_says_what_was_split() -> None:
    with use():
        f = ost.compile(kmeans, memory_limit=3 * MIB // 2)
        f(*operands())
        text = f.plan.explain()
        count = turns(f.plan)[0]
        assert f"split in time: axis 0 (4001) of x in {count} turns, which moves " in text
        assert f"blocks x {count}" in text


def test_what_needs_the_whole_is_refused() -> None:
    with use():
        f = ost.compile(lambda x: ost.sort(x * 2, axis=0) * 3 + x, memory_limit=MIB)
        x = np.ones((40_000, 2))
        with pytest.raises(
            MemoryLimitError,
            match=r"needed at most memory_limit=1.0 MiB, which no split in time reaches",
        ):
            f(x)


def test_any_workers_splits_along_its_fixed_blocks_only() -> None:
    """Sums too, and no bit differs; but into no more turns than there are blocks."""

    def f(x: Any) -> Any:
        return ost.exp(x).sum(), ost.tanh(x).var(), (x * x).max()

    x = np.random.default_rng(5).normal(size=100_000).astype("f4")
    with use(numerics="any-workers"):
        whole = ost.compile(f)
        expected = flat(whole(x))
        g = ost.compile(f, memory_limit=whole.plan.operand_bytes + 120_000)
        found = flat(g(x))
        assert turns(g.plan)
        assert max(turns(g.plan)) <= 24
        for a, b in zip(found, expected, strict=True):
            assert a.tobytes() == b.tobytes()
        h = ost.compile(f, memory_limit=whole.plan.operand_bytes + 1000)
        with pytest.raises(MemoryLimitError, match='allow numerics="same-plan", where turns'):
            h(x)


# -- plan files ------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_stages")
def test_a_plan_in_turns_is_a_file_too(tmp_path: Path) -> None:
    with use((2,)):
        f = ost.compile(kmeans, memory_limit=3 * MIB // 4)
        inputs = operands(split=0)
        expected = np.asarray(f(*inputs))
        assert turns(f.plan)
        f.plan.to_file(tmp_path / "p")
        again = Plan.from_file(tmp_path / "p")
        assert again.lowered == f.plan.lowered
        np.testing.assert_array_equal(np.asarray(ost.run(again, *inputs)), expected)


@pytest.mark.usefixtures("no_stages")
def test_turns_that_do_not_add_up_are_refused() -> None:
    """A body whose blocks lie elsewhere, whose addends are incomplete, or that computes something else."""
    with use():
        f = ost.compile(nearest, memory_limit=2 * MIB)
        f(*operands())
        plan = f.plan
    _prove(plan.key, plan.lowered, list(plan.results))

    def changed(change: Callable[[dict[str, Any]], None]) -> Graph:
        from ostinato.ops.core.encode import decode_graph, encode_graph

        data = json.loads(json.dumps(encode_graph(plan.lowered)))
        node = next(n for n in data["nodes"] if n[0] == "blocks")
        change(node[2])
        return decode_graph(data)

    def other_turns(p: dict[str, Any]) -> None:
        p["turns"] += 1

    def other_output(p: dict[str, Any]) -> None:
        outputs = p["body"]["g"]["outputs"]
        outputs[0], outputs[1] = outputs[1], outputs[0]

    def not_combined(p: dict[str, Any]) -> None:
        for spec in p["body"]["g"]["specs"]:
            spec[2][1] = [None if isinstance(s, str) else s for s in spec[2][1]]

    def replicas(p: dict[str, Any]) -> None:
        for spec in p["body"]["g"]["specs"]:
            spec[2][1][-1] = None

    for change in (other_turns, other_output, not_combined, replicas):
        with pytest.raises(Exception, match=r".") as error:
            _prove(plan.key, changed(change), list(plan.results))
        assert type(error.value).__name__ == "Malformed", change


# -- seen to fail ----------------------------------------------------------------------------
@pytest.mark.usefixtures("no_stages")
def test_blocks_in_a_wrong_place_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above find kernels that work at another block's place, and addends that get lost."""
    place = bind._Binder.place_of

    def first(self: Any, graph: Any, node: Any, rank: Any = None) -> Any:
        return place(self, graph, node, None)

    with monkeypatch.context() as patch:
        patch.setattr(bind._Binder, "place_of", first)
        with pytest.raises(AssertionError):
            test_random_numbers_are_those_of_the_whole()
    monkeypatch.setitem(control_flow.MONOIDS, "max", control_flow.MONOIDS["min"])
    with pytest.raises(AssertionError):
        test_each_monoid_over_turns("max")
    assert Partial("max") != Partial("min")


def test_what_would_stay_in_cache_is_kept_whole_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What turns make is not written over operands that were given away."""
    monkeypatch.setattr(groups, "_absorbs", lambda *given: False)  # else one kernel needs no turns

    def step(w: Any, m: Any, x: Any, g: Any) -> Any:
        m = 0.9 * m + g.T @ x
        return w - 0.01 * m, m, ost.tanh(x @ w.T)

    wide = ost.spec((2048, 4608))
    shapes = wide, wide, ost.spec((32, 4608)), ost.spec((32, 2048))
    free = ost.plan(step, *shapes, donate=("w", "m"))
    limit = free.peak_bytes - (1 << 20)
    short = ost.plan(step, *shapes, donate=("w", "m"), memory_limit=limit)
    assert [sum(n.op == "blocks" for n in p.lowered.nodes) for p in (free, short)] == [1, 0]
    assert short.peak_bytes <= limit
