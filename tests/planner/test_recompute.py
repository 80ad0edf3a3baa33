"""What is made again instead of kept: only where memory is short, to the same bits, within the limit, and
for little time."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import Spec, float32
from ostinato.planner.file import _prove
from ostinato.planner.passes import fitting, recompute
from ostinato.planner.passes.recompute import followed, recomputed
from ostinato.planner.plan import Plan, Program, Target, peak_bytes
from ostinato.planner.seeing.explain import amount
from ostinato.planner.simulation import simulate

import ostinato as ost
from ostinato.errors import MemoryLimitError
from tests.planner.test_any_layout import RELAXED
from tests.planner.test_memory import check_memory
from tests.sessions import forget_plans, use
from tests.thorough import few, some, turns

MIB = 1 << 20


def again(plan: Plan) -> int:
    """How many values are read not before something else exists: what is made again is made of them."""
    return sum(n.op == "barrier" for n in plan.lowered.nodes)


@pytest.fixture
def no_turns(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nothing is cut in time: what is left is to make values again."""
    from ostinato.planner.passes import fitting

    monkeypatch.setattr(fitting, "cut_further", lambda *_: [])
    forget_plans()
    yield
    forget_plans()


MUCH = 1 << 40  # bytes


# -- programs ----------------------------------------------------------------------------------
def step_of(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(ws: Any, x: Any, y: Any) -> Any:
        value, slopes = ost.value_and_grad(loss)(ws, x, y)
        return [w - 0.1 * g for w, g in zip(ws, slopes, strict=True)], value

    return step


def deep(ws: Any, x: Any, y: Any) -> Any:
    for w in ws[:-1]:
        x = ost.nn.gelu(ost.nn.layer_norm(x @ w))
    return ost.nn.mse_loss(x @ ws[-1], y)


def attending(ws: Any, x: Any, y: Any) -> Any:
    for q, k, v, up in zip(*[iter(ws)] * 4, strict=True):
        z = ost.nn.layer_norm(x)
        scores = ost.nn.softmax((z @ q) @ ost.matrix_transpose(z @ k) / 8)
        x = x + scores @ (z @ v)
        x = x + ost.nn.relu(ost.nn.layer_norm(x) @ up)
    return ost.nn.mse_loss(x, y)


def arrays(depth: int, *rows: int, wide: int = 64) -> tuple[Any, ...]:
    r = np.random.default_rng(0)
    ws = [(r.normal(size=(wide, wide)) / wide**0.5).astype("f4") for _ in range(depth)]
    x, y = (r.normal(size=(*rows, wide)).astype("f4") for _ in range(2))
    return ws, x, y


def flat(made: Any) -> list[np.ndarray]:
    if isinstance(made, list | tuple):
        return [y for x in made for y in flat(x)]
    return [np.asarray(made)]


def network(r: random.Random) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A training step of random layers."""
    kinds = ("dense", "norm", "residual", "attend", "gate", "sums", "drop", "scale", "columns")
    layers = [(r.choice(kinds), r.choice((ost.tanh, ost.nn.gelu, ost.nn.relu, ost.nn.softplus)))]
    layers += [(r.choice(kinds), r.choice((ost.tanh, ost.nn.gelu))) for _ in range(r.randint(4, 9))]
    rows, wide = r.choice((100, 256)), r.choice((16, 64))

    def loss(ws: Any, x: Any, y: Any) -> Any:
        z, kept = x, [x]
        for n, (w, (kind, act)) in enumerate(zip(ws, layers, strict=True)):
            if kind == "dense":
                z = act(z @ w)
            elif kind == "norm":
                z = ost.nn.layer_norm(act(z @ w) + z)
            elif kind == "residual":
                z = kept[len(kept) // 2] + act(z @ w)
            elif kind == "attend":
                z = ost.nn.softmax(z @ w @ z.T / 8) @ z
            elif kind == "gate":
                z = act(z @ w) * ost.tanh(z)
            elif kind == "sums":
                z = z * (1 + ost.exp(-(z * z).sum(0) / rows)) @ w
            elif kind == "drop":
                z = z @ w * (ost.random.uniform(z.shape, seed=n) > 0.3)
            elif kind == "scale":
                z = (z - z.mean(0)) / ost.sqrt(z.var(0) + 1e-2) @ w
            else:
                z = ost.concat([z[:, : wide // 2] @ w[: wide // 2], act(z)[:, :3]], axis=1)[
                    :, :wide
                ]
            kept.append(z)
        return ost.nn.mse_loss(z, y)

    return step_of(loss), arrays(len(layers), rows, wide=wide)


# -- the pass ----------------------------------------------------------------------------------
def by_hand() -> tuple[Graph, Target]:
    target = Target(memory_limit=1)
    lies = Layout.whole(target.mesh)
    spec = Spec((256, 256), float32, lies)
    b = Builder([spec, spec])
    kept = b.add("tanh", (1,), (), (spec,))[0]
    v = kept
    for _ in range(3):
        (v,) = b.add(
            "sort",
            (b.add("matmul", (v, 0), (), (spec,))[0],),
            {"axis": 0, "descending": False},
            (spec,),
        )
    (last,) = b.add("multiply", (v, kept), (), (spec,))
    return b.graph([last]), target


def test_a_value_is_made_again_where_it_is_read_next() -> None:
    graph, target = by_hand()
    start = followed(graph, target, ())
    found, program = recomputed(graph, start, target, (), 0)
    assert [n.op for n in graph.nodes].count("tanh") == 1
    assert [n.op for n in found.nodes].count("tanh") == 2
    ops = [n.op for n in found.nodes]
    assert ops[-3:] == ["barrier", "tanh", "multiply"], found
    barrier = found.nodes[-3]
    assert barrier.inputs[0] == 1
    assert found.producers[barrier.inputs[1]] == len(found.nodes) - 4, "not before it is due"
    assert peak_bytes(program) < peak_bytes(start)
    assert recomputed(graph, start, target, (), 1 << 40)[0] is graph, "and not for nothing"


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    ("mesh", "name", "numerics"),
    some(turns([(1,), (2,)], ["deep", "attending"], ["any-workers", "same-plan"]), of=3),
)
@pytest.mark.usefixtures("no_turns")
def test_training_in_little_memory(name: str, mesh: tuple[int, ...], numerics: str) -> None:
    f, inputs = {
        "deep": (step_of(deep), arrays(10, 2048)),
        "attending": (step_of(attending), arrays(16, 4, 256)),
    }[name]
    with use(mesh, numerics):
        whole = ost.compile(f)
        expected = flat(whole(*inputs))
        assert not again(whole.plan)
        outside = whole.plan.peak_bytes - whole.plan.arena_bytes
        limit = outside + int(whole.plan.arena_bytes * 0.6)
        g = ost.compile(f, memory_limit=limit)
        found = flat(g(*inputs))
        assert again(g.plan)
        assert g.plan.peak_bytes <= limit
        check_memory(g.plan.program)
        _prove(g.plan.key, g.plan.lowered, list(g.plan.results))
        machine = g.plan.target.machine
        times = [simulate(p.plan.program, machine, mesh).seconds for p in (whole, g)]
        assert times[1] < 1.35 * times[0]
        for a, b in zip(found, expected, strict=True):
            if numerics == "any-workers":
                np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.cpu_only
@pytest.mark.parametrize("mesh", [(1,), (2,)], ids=str)
@pytest.mark.usefixtures("no_turns")
def test_training_in_a_loop(mesh: tuple[int, ...]) -> None:
    step = step_of(deep)

    def train(ws: Any, x: Any, y: Any) -> Any:
        return ost.repeat(3, lambda ws: step(ws, x, y)[0], ws)

    with use(mesh, "any-workers"):
        whole = ost.compile(train)
        inputs = arrays(8, 1024)
        expected = flat(whole(*inputs))
        limit = whole.plan.peak_bytes - int(whole.plan.arena_bytes * 0.4)
        f = ost.compile(train, memory_limit=limit)
        found = flat(f(*inputs))
        assert f.plan.peak_bytes <= limit
        assert not again(f.plan), "it is inside of the loop"
        assert re.search(r"^    erf \(.*\) x \d+$", f.plan.explain(), re.MULTILINE)
        check_memory(f.plan.program)
        _prove(f.plan.key, f.plan.lowered, list(f.plan.results))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@settings(RELAXED, max_examples=few(12))
@given(st.randoms(use_true_random=False), st.sampled_from([(1,), (2,), (2, 2)]))
@pytest.mark.usefixtures("no_turns")
def test_random_networks_under_random_limits(r: random.Random, mesh: tuple[int, ...]) -> None:
    """Sums of fixed blocks do not depend on what they are made with; so no bit may differ."""
    under_a_limit(r, mesh)


@pytest.mark.usefixtures("no_turns")
def test_values_of_many_random_networks_are_made_again() -> None:
    """The test above is worth something."""
    count = few(12)
    assert sum(under_a_limit(random.Random(k), (1,)) for k in range(count)) >= count // 3


@pytest.mark.parametrize("seed", range(3))
def test_random_networks_by_whatever_helps(seed: int) -> None:
    under_a_limit(random.Random(seed + 7), (1,))


def under_a_limit(r: random.Random, mesh: tuple[int, ...]) -> bool:
    """Whether values were made again, in a plan that keeps its limit; or it says what it needs."""
    f, inputs = network(r)
    with use(mesh, "any-workers"):
        whole = ost.compile(f)
        expected = flat(whole(*inputs))
        limit = whole.plan.peak_bytes - int(whole.plan.arena_bytes * r.uniform(0, 0.4))
        g = ost.compile(f, memory_limit=limit)
        try:
            found = flat(g(*inputs))
        except MemoryLimitError as error:
            text = str(error)
        else:
            assert g.plan.peak_bytes <= limit
            check_memory(g.plan.program)
            _prove(g.plan.key, g.plan.lowered, list(g.plan.results))
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b)
            return bool(again(g.plan))
    least = re.search(r"nor making values again: at least ([\d.]+) (MiB|bytes)", text)
    assert least is not None, text
    assert limit < float(least[1]) * (MIB if least[2] == "MiB" else 1)
    return False


@pytest.mark.usefixtures("no_turns")
def test_no_graph_is_planned_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning takes as long as the programs that it tries."""
    seen = []

    def noted(graph: Graph, *args: Any) -> Program:
        seen.append(graph)
        return followed(graph, *args)

    monkeypatch.setattr(recompute, "followed", noted)
    shapes = [ost.spec((64, 64))] * 8, ost.spec((4096, 64)), ost.spec((4096, 64))
    whole = ost.plan(step_of(deep), *shapes, mesh=1, machine="cpu-10gbe", memory_limit=MUCH)
    for share in (0.8, 0.6, 0.4):
        limit = whole.peak_bytes - int(whole.arena_bytes * (1 - share))
        with contextlib.suppress(MemoryLimitError):
            ost.plan(step_of(deep), *shapes, mesh=1, machine="cpu-10gbe", memory_limit=limit)
        assert seen
        assert len(set(seen)) == len(seen)
        seen.clear()


def test_with_room_for_twice_as_much_nobody_looks_at_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Graph] = []

    def asking(graph: Graph, *rest: Any) -> Program:
        asked.append(graph)
        return followed(graph, *rest)

    monkeypatch.setattr(fitting, "followed", asking)
    for times, looks in ((8, 0), (1, 1)):
        limit = times * 3 * 64 * 64 * 4
        x = ost.spec((64, 64))
        plan = ost.plan(lambda x: ost.exp(x @ x).sum(0), x, memory_limit=limit)
        assert len(asked) == looks
        assert plan.peak_bytes <= limit
        assert [r.seconds for r in plan.ladder] == [0] * len(plan.ladder)


@pytest.mark.parametrize("share", [0.35, 0.25])
@pytest.mark.usefixtures("no_turns")
def test_a_deep_network_is_made_again_once_at_most(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With checkpoints, one more forward pass; and few programs are tried for that."""
    depth, seen = 24, []

    def noted(graph: Graph, *args: Any) -> Program:
        seen.append(graph)
        return followed(graph, *args)

    monkeypatch.setattr(recompute, "followed", noted)
    spec = ost.spec((1024, 64))
    shapes = [ost.spec((64, 64))] * depth, spec, spec
    whole = ost.plan(
        step_of(deep), *shapes, mesh=1, machine="cpu-10gbe", memory_limit=MUCH
    )  # without a limit less is kept
    limit = whole.peak_bytes - int(whole.arena_bytes * (1 - share))
    short = ost.plan(step_of(deep), *shapes, mesh=1, machine="cpu-10gbe", memory_limit=limit)
    assert short.peak_bytes <= limit
    assert [r.how for r in short.ladder] == ["places used again", "made again"]

    def products(plan: Plan) -> int:
        return sum(n.op == "matmul" for n in plan.lowered.nodes)

    assert products(whole) < products(short) <= products(whole) + 1.1 * depth
    assert len(seen) <= 6


# -- saying so -----------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_turns")
def test_explain_tells_the_ladder(tmp_path: Path) -> None:
    inputs = arrays(10, 2048)
    with use():
        whole = ost.compile(step_of(deep))
        whole(*inputs)
        assert "memory limit" not in whole.plan.explain()
        whole = ost.compile(step_of(deep), memory_limit=MUCH)  # without a limit less is kept
        whole(*inputs)
        limit = whole.plan.peak_bytes - whole.plan.arena_bytes // 2
        f = ost.compile(step_of(deep), donate="ws", memory_limit=limit)
        f(*[ost.tree_map(ost.asarray, x) for x in inputs])
        text, ladder = f.plan.explain(), f.plan.ladder
    hows = [r.how for r in ladder]
    assert hows == ["places used again", "operands written over", "made again"]
    assert ladder[1].freed in range(5 * 64 * 64 * 4, 11 * 64 * 64 * 4, 64 * 64 * 4), "weights"
    assert [r.seconds for r in ladder[:2]] == [0, 0]
    lines = text.splitlines()
    (head,) = [k for k, line in enumerate(lines) if line.startswith("memory limit ")]
    needs = f.plan.peak_bytes + sum(r.freed for r in ladder)
    assert lines[head].endswith(f"would need {amount(needs)}")
    for rung, line in zip(ladder, lines[head + 1 :], strict=False):
        needs -= rung.freed
        assert line.startswith(f"  {rung.how}: {amount(rung.freed)} less, {amount(needs)}")
    assert re.search(r"^    erf \(.*test_recompute.py:\d+\) x \d+$", text, re.MULTILINE)
    f.plan.to_file(tmp_path / "p")
    assert Plan.from_file(tmp_path / "p").ladder == ladder


def test_numbers_that_stand_behind_what_is_made_again() -> None:
    """A slope reads a number that the forward pass does not have; what is made again may read it, too."""
    x = np.random.default_rng(0).standard_normal((64, 300))

    def loss(x: Any) -> Any:
        y = ost.tanh(ost.var(x, axis=0)[:298])
        return (ost.cumulative_sum(y, axis=0) / 298).sum() + y.sum()

    def step(x: Any) -> Any:
        return ost.value_and_grad(loss)(x)

    with use():
        whole = ost.compile(step)
        value, slope = whole(x)
        for share in (0.9, 0.8, 0.7, 0.6):
            f = ost.compile(step, memory_limit=int(whole.plan.peak_bytes * share))
            with contextlib.suppress(MemoryLimitError):
                found = f(x)
                np.testing.assert_allclose(found[0], value, 1e-12)
                np.testing.assert_allclose(found[1], slope, 1e-9, 1e-12)
