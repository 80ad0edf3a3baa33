"""What a loop carries stays where it is: handed on as it came it is a constant, updated it is written in place. The
bytes that an iteration copies are counted: what has a second buffer, copies, and updates of what stays."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.tree import flatten
from ostinato.planner.passes import memory
from ostinato.planner.passes.loop_casts import LOOPS as KINDS
from ostinato.planner.passes.memory import carried_in_place, is_update, replaced
from ostinato.planner.plan import Plan, Program

import ostinato as ost
from tests.helpers import ON_CPU, on
from tests.sessions import forget_plans, use
from tests.thorough import some

N, TURNS = 64, 6
simplify_pass = importlib.import_module("ostinato.planner.passes.simplify")
UPDATES = [name for name, op in OPS.items() if op.run.overwrite == (0,)]
Turn = Callable[[Any, Any], Any]  # of an iteration's number and the state


def _row(i: Any, s: Any) -> Any:
    return s.at[i].set(s[i] * 2 + 1)


def _added(i: Any, s: Any) -> Any:
    return s.at[i].add(1.5)


def _static(i: Any, s: Any) -> Any:
    return s.at[1].set(s[2] + 1).at[3].multiply(2.0)


def _several(i: Any, s: Any) -> Any:
    return s.at[i].set(1.0).at[i + 1].add(2.0).at[0].set(3.0)


def _assigned(i: Any, s: Any) -> Any:
    s = s * 1.0 if isinstance(s, np.ndarray) else s.copy()
    s[i] = 7.0
    return s


def _carried(i: Any, s: Any) -> Any:
    return [s[0], s[1] + s[0][i]]


def _deep(i: Any, s: Any) -> Any:
    return {"w": s["w"], "n": [s["n"][0] + s["w"][i, :4], s["n"][1]]}


def _nested(i: Any, s: Any) -> Any:
    return ost.repeat(2, lambda t: [t[0].at[i].add(t[1][0]), t[1]], s)


def _elementwise(i: Any, s: Any) -> Any:
    return s * 0.5 + i


def _element(i: Any, s: Any) -> Any:
    return s.at[i, i + 1].set(s[i + 1, i] * 2).at[i, 0].add(1.0)


def _box(i: Any, s: Any) -> Any:
    return s.at[i : i + 2, 3:7].add(s[i + 2, 3:7]).at[:, i : i + 1].multiply(0.5)


def _change_places(i: Any, s: Any) -> Any:
    one, other = s[i], s[i + 1]
    return s.at[i].set(other).at[i + 1].set(one)


def _read_later(i: Any, s: Any) -> Any:
    """Rows at fixed places are looks at the array, of which copies are made."""
    one, other = s[2], s[7]
    return s.at[2].set(other * 1.0).at[7].set(one).at[i, 1:3].set(one[:2])


def _eliminate(i: Any, s: Any) -> Any:
    return s - 0.1 * s[:, i][:, None] * s[i][None, :]


def _feeding(i: Any, s: Any) -> Any:
    u, v = s
    v = v.at[i].add(u[i + 1])
    return [u.at[i + 1].add(v[i] * 0.5), v]


def _inner(i: Any, s: Any) -> Any:
    return ost.repeat(3, lambda c: (c[0] + 1, c[1].at[i, c[0]].add(c[1][c[0], i])), (0, s))[1]


def _sides(i: Any, s: Any) -> Any:
    def small(s: Any) -> Any:
        return ost.cond(i > 2, lambda s: s.at[i].set(1.0), lambda s: s.at[i, i].add(1.0), s)

    return ost.cond(i % 2 == 0, small, lambda s: s.at[i + 1].multiply(2.0), s)


def _one_of_several(i: Any, s: Any) -> Any:
    return ost.switch(i - 1, [lambda s: s, lambda s: s.at[i].set(1.0), lambda s: s * 0.5], s)


def _loop_on_one_side(i: Any, s: Any) -> Any:
    def often(s: Any) -> Any:
        return ost.while_loop(lambda t: t[i, i] < 4, lambda t: t.at[i].add(1.0), s)

    return ost.cond(i % 2 == 0, often, lambda s: s, s)


CASES: dict[str, tuple[Turn, Any]] = {
    "elements": (_element, (N, N)),
    "boxes": (_box, (N, N)),
    "rows that change places": (_change_places, (N, N)),
    "rows that are read later": (_read_later, (N, N)),
    "a row and a column": (_eliminate, (N, N)),
    "fields that feed each other": (_feeding, [(N, N), (N, N)]),
    "elements in loops in loops": (_inner, (N, N)),
    "branches in branches": (_sides, (N, N)),
    "one of several branches": (_one_of_several, (N, N)),
    "a loop on one side": (_loop_on_one_side, (N, N)),
    "a row that is set": (_row, (N, N)),
    "a row that is added to": (_added, (N, N)),
    "rows at fixed places": (_static, (N, N)),
    "several updates": (_several, (N, N)),
    "an array that is handed on": (_carried, [(N, N), (N,)]),
    "one deep in a tree": (_deep, {"w": (N, N), "n": [(4,), (N, N)]}),
    "loops in loops": (_nested, [(N, N), (N,)]),
    "all elements": (_elementwise, (N, N)),
}
LOOPS: dict[str, Callable[[Turn, Any], Any]] = {
    "repeat": lambda turn, s: ost.repeat(TURNS, lambda c: (c[0] + 1, turn(c[0], c[1])), (0, s))[1],
    "scan": lambda turn, s: ost.scan(lambda c, i: (turn(i, c), None), s, ost.arange(TURNS))[0],
    "while_loop": lambda turn, s: ost.while_loop(
        lambda c: c[0] < TURNS, lambda c: (c[0] + 1, turn(c[0], c[1])), (0, s)
    )[1],
}


@pytest.fixture(autouse=True, params=[1, 2])
def _workers(request: pytest.FixtureRequest) -> Iterator[None]:
    with use((request.param,)):
        yield


def numbers(shapes: Any) -> Any:
    rng = np.random.default_rng(7)
    if isinstance(shapes, dict):
        return {k: numbers(v) for k, v in shapes.items()}
    if isinstance(shapes, list):
        return [numbers(v) for v in shapes]
    return rng.standard_normal(shapes)


def copied_bytes(plan: Plan) -> int:
    """What the turns of the plan's loops copy, each loop's in one turn; of branches on all sides."""
    return sum(
        _copied(plan.program, k, turning=False) for k in range(len(plan.program.graph.nodes))
    )


def _copied(program: Program, k: int, turning: bool) -> int:
    node, inner, slots = program.graph.nodes[k], program.bodies.get(k, ()), program.slots
    total, goes = 0, node.op in KINDS
    if goes:
        stays = carried_in_place(node, inner)
        sizes = [s.nbytes for s in node.specs[: node.kw["counts"][1]]]
        total += sum(n for j, n in enumerate(sizes) if j not in stays and n > 8)
    elif turning and node.inputs and node.op in ("copy", *UPDATES):
        before, after = slots[node.inputs[0]], slots[program.graph.starts[k]]
        stays = before == after or (after.at, before.at) in program.reuse
        is_there = stays if node.op == "copy" else is_update(program, k)
        total += 0 if is_there or replaced(program.graph, k) else node.specs[0].nbytes
    for body in inner:
        total += sum(_copied(body, j, turning or goes) for j in range(len(body.graph.nodes)))
    return total


@pytest.mark.cpu_only
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_copied(case: str, loop: str) -> None:
    turn, shapes = CASES[case]
    value = numbers(shapes)
    given = ost.tree_map(ost.asarray, value)
    f = ost.compile(lambda s: LOOPS[loop](turn, s))
    made = f(given)
    wanted: Any = given
    for i in range(TURNS):  # one plan for each
        wanted = turn(i, ost.tree_map(lambda x: x + 0, wanted))
    for a, b in zip(flatten(made)[0], flatten(wanted)[0], strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-12)
    most = 8 * N * 4 if case == "rows that are read later" else 0
    assert copied_bytes(f.plan) <= most, "what could stay is copied"
    for a, b in zip(flatten(given)[0], flatten(value)[0], strict=True):
        np.testing.assert_array_equal(np.asarray(a), b, err_msg="an operand was written over")


@pytest.mark.cpu_only
def test_only_one_side_of_a_branch_runs_and_both_write_in_place() -> None:
    """Also where the sides take what is around them, and not arguments."""
    ran: list[str] = []

    def tell(x: Any) -> Any:
        ran.append("then")
        return x

    @ost.compile
    def f(s: Any) -> Any:
        def turn(s: Any, i: Any) -> Any:
            put = lambda: s.at[i].set(ost.callback(tell, ost.spec(N, "float64"), s[i]) + 1)  # noqa: E731
            return ost.cond(i % 3 == 1, put, lambda: s), None

        return ost.scan(turn, s, ost.arange(TURNS))[0]

    x = numbers((N, N))
    wanted = x.copy()
    wanted[[1, 4]] += 1
    np.testing.assert_array_equal(np.asarray(f(ost.asarray(x))), wanted)
    assert len(ran) == 2 * ost.session().workers
    assert copied_bytes(f.plan) == 0


def test_sides_that_hand_on_the_same_are_no_results() -> None:
    @ost.compile
    def f(x: Any, y: Any) -> Any:
        return ost.cond(x.sum() > 0, lambda: (x, y * 2), lambda: (x, y - 1))

    x, y = numbers((N, N)), numbers((N,))
    for sign in (1.0, -1.0):
        given = np.abs(x) * sign
        a, b = f(ost.asarray(given), ost.asarray(y))
        np.testing.assert_array_equal(np.asarray(a), given)
        np.testing.assert_array_equal(np.asarray(b), y * 2 if sign > 0 else y - 1)
    (branch,) = [n for n in f.plan.program.graph.nodes if n.op == "branch"]
    assert [s.shape for s in branch.specs] == [(N,)]


def test_two_results_that_begin_as_one_operand() -> None:
    """Only one of them may be written over it."""

    def twice(x: Any, i: int) -> Any:
        first = x.at[i].set(5.0)
        return first, first.at[i + 1].set(7.0)

    @ost.compile
    def f(x: Any, s: Any) -> Any:
        return ost.cond(s > 0, lambda: twice(x * 1.0, 0), lambda: twice(x * 1.0, 3))

    x = numbers((N, N))
    for s, i in ((1.0, 0), (-1.0, 3)):
        a, b = (np.asarray(y) for y in f(ost.asarray(x), s))
        first = x.copy()
        first[i] = 5.0
        np.testing.assert_array_equal(a, first)
        first[i + 1] = 7.0
        np.testing.assert_array_equal(b, first)


@pytest.mark.cpu_only
def test_what_is_yielded_is_copied_and_nothing_else() -> None:
    """The state of each turn, before the turn writes over it."""

    @ost.compile
    def f(s: Any) -> Any:
        return ost.scan(lambda s, i: (_row(i, s), (s, s[3])), s, ost.arange(TURNS))

    x = numbers((N, N))
    last, (states, rows) = f(ost.asarray(x))
    for i in range(TURNS):
        np.testing.assert_array_equal(np.asarray(states[i]), x)
        np.testing.assert_array_equal(np.asarray(rows[i]), x[3])
        x[i] = x[i] * 2 + 1
    np.testing.assert_array_equal(np.asarray(last), x)
    assert copied_bytes(f.plan) <= 8 * N * (N + 1)


def _product(s: Any, i: Any) -> Any:
    """A recurrence of rows, which reads two of them."""
    return s.at[i + 1].set(ost.sin(s[i]) * s[i + 1] + s[2]), None


def _rows_read(c: Any, s: Any, i: Any) -> Any:
    return ost.sin(s[i]) * c + s[i + 1] * s[i, i], None


GRADIENTS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "of a state, which is kept of each turn": (
        lambda s: (ost.scan(_product, s, ost.arange(TURNS))[0] ** 2).sum(),
        8 * N * (N + 2),
    ),
    "of what a loop reads": (
        lambda s: ost.scan(lambda c, i: _rows_read(c, s, i), s[0], ost.arange(TURNS))[0].sum(),
        8 * N * 4,
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_add_where_a_turn_read(name: str) -> None:
    f, most = GRADIENTS[name]
    slope = ost.compile(ost.grad(f))
    x, direction = numbers((N, N)), np.random.default_rng(1).standard_normal((N, N))
    found = float((np.asarray(slope(ost.asarray(x))) * direction).sum())
    h = 1e-6
    ends = [float(f(ost.asarray(x + side * h * direction))) for side in (1, -1)]
    np.testing.assert_allclose(found, (ends[0] - ends[1]) / (2 * h), rtol=1e-5)
    assert copied_bytes(slope.plan) <= most or not ON_CPU


@pytest.mark.cpu_only
def test_a_state_that_is_given_away_is_never_copied() -> None:
    f = ost.compile(lambda s: LOOPS["scan"](_element, s), donate="s")
    x = numbers((N, N))
    wanted: Any = x.copy()
    for i in range(TURNS):
        wanted = np.asarray(_element(i, ost.asarray(wanted)))
    np.testing.assert_allclose(np.asarray(f(ost.asarray(x))), wanted, rtol=1e-12)
    assert copied_bytes(f.plan) == 0
    program = f.plan.program
    (k,) = [k for k, n in enumerate(program.graph.nodes) if n.op == "loop"]
    before, after = program.graph.nodes[k].inputs[-2:][0], program.graph.starts[k]
    if ost.session().workers == 1:
        assert program.slots[before].kind == "input"
        assert (program.slots[after].at, program.slots[before].at) in program.reuse


@pytest.mark.cpu_only
def test_explain_says_what_is_in_place() -> None:
    if ost.session().workers > 1:
        return
    f = ost.compile(lambda s: LOOPS["scan"](_box, s))
    f(ost.asarray(numbers((N, N))))
    text = f.plan.explain()
    assert f"loop x {TURNS} (in place)" in text
    assert "dynamic_update_slice (in place)" in text
    g = ost.compile(lambda s: ost.repeat(TURNS, lambda s: s.at[1:-1].set(s[2:] + s[:-2]), s))
    g(ost.asarray(numbers((N, N))))
    text = g.plan.explain()
    assert f"loop x {TURNS} (32 KiB in two buffers)" in text
    assert "fused(add, update_slice)" in text


def random_turn(seed: int) -> Turn:
    """Reads of two arrays and updates of them, in any order, whatever is read later."""
    r = random.Random(seed)
    steps = []

    def places(at: Any, i: Any) -> Any:
        if not isinstance(at, str):
            return at
        return {"i": i, "i, :3": (i, slice(3)), "i, i": (i, i)}[at]

    for _ in range(r.randint(3, 9)):
        at = r.choice(["i", r.randrange(8), slice(2, 5), "i, :3", "i, i"])
        steps.append((r.choice(["read", "set", "add"]), r.randrange(2), at, r.randrange(1 << 30)))

    def turn(i: Any, s: Any) -> Any:
        ours = not isinstance(s[0], np.ndarray)
        arrays = [x if ours else x.copy() for x in s]
        values: list[Any] = [1.5]
        for kind, which, at, draw in steps:
            key = places(at, i)
            x, v = arrays[which], values[draw % len(values)]
            if kind == "read":
                values.append(x[key] if ours else x[key].copy())
                continue
            shape = np.zeros(x.shape)[places(at, 0)].shape
            v = v if np.shape(v) == shape else v if np.ndim(v) == 0 else v.sum() * 0.01
            if ours:
                arrays[which] = getattr(x.at[key], kind)(v)
            elif kind == "set":
                x[key] = v
            else:
                x[key] += v
        return [arrays[draw % 2], arrays[1]] if seed % 5 == 0 else arrays

    return turn


@pytest.mark.parametrize("seed", some(range(96), 4))
def test_whatever_is_read_when(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, value = random_turn(seed), numbers([(8, 8), (8, 8)])

    def run(s: Any) -> Any:
        return ost.scan(lambda s, i: (turn(i, s), (s[1], s[0][3])), s, ost.arange(TURNS))

    forget_plans()
    f = ost.compile(run)
    last, yielded = f(ost.tree_map(ost.asarray, value))
    wanted = value
    for i in range(TURNS):
        for y, w in zip(yielded, (wanted[1], wanted[0][3]), strict=True):
            np.testing.assert_allclose(np.asarray(y[i]), w, rtol=1e-10)
        wanted = turn(i, wanted)
    for y, w in zip(last, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(y), w, rtol=1e-10)
    monkeypatch.setattr(memory, "read_first", lambda graph, *_: graph)
    forget_plans()
    g = ost.compile(lambda s: run(s))
    g(ost.tree_map(ost.asarray, value))
    assert copied_bytes(f.plan) <= copied_bytes(g.plan) + 8 * 64
    forget_plans()


@pytest.mark.parametrize("trips", [1, 2, 5, 8])
@pytest.mark.parametrize("comes", [(1, None), (1, 2, None), (None, 0), (1, 0, None), (2, None, 0)])
def test_states_that_become_others(comes: tuple[int | None, ...], trips: int) -> None:
    """As the one before the last: several turns are one, of which each state begins as itself."""

    def turn(s: Any, given: Any) -> Any:
        i, row = given
        made = s[-1].at[i].set(s[0][i + 1] * 0.5 + row)
        return [made.at[0].add(s[j][3]) if k is None else s[k] for j, k in enumerate(comes)], None

    def run(s: Any, rows: Any) -> Any:
        return ost.scan(turn, s, (ost.arange(trips), rows))[0]

    shape = (24, N)
    value, rows = numbers([shape] * len(comes)), np.arange(trips * N * 1.0).reshape(trips, N)
    f = ost.compile(run)
    made = f(ost.tree_map(ost.asarray, value), ost.asarray(rows))
    wanted = ost.tree_map(ost.asarray, value)
    for i in range(trips):
        wanted, _ = turn(wanted, (i, rows[i]))
    for y, w in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(y), np.asarray(w))
    if comes == (None, 0):  # else what is updated is handed on as it was, too
        assert trips == 1 or copied_bytes(f.plan) == 0 or not ON_CPU


def test_turns_that_are_one_draw_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its own number."""

    def run(x: Any) -> Any:
        return ost.repeat(5, lambda s: (s[1], 0.5 * s[0] + ost.random.uniform(x.shape)), (x, 2 * x))

    made = []
    for at_once in (True, False):
        if not at_once:
            monkeypatch.setattr(simplify_pass, "several_at_once", lambda *_: None)
        forget_plans()
        ost.random.seed(5)
        f = ost.compile(lambda x: run(x))
        made.append(np.stack([np.asarray(y) for y in f(ost.asarray(numbers((24, N))))]))
        assert f.plan.explain().count("loop x 2") == at_once
    forget_plans()
    np.testing.assert_array_equal(*made)


def test_messages_read_what_stays_until_they_end() -> None:
    """A copy of what is read later is made before the message that reads it, too, and both read it."""
    x, y = (np.random.default_rng(k).integers(-3, 4, (2400, 40)).astype("f4") for k in (1, 2))
    with on(2):
        f = ost.compile(
            lambda x, y: ost.repeat(
                3, lambda w: w / 2 + (x.T @ (y + w[:1, :1])).resplit(None), y[:40]
            )
        )
        found = np.asarray(f(*(ost.asarray(v, split=0) for v in (x, y))))
        bodies = [p.graph for every in f.plan.program.bodies.values() for p in every]
    w = y[:40].astype("f8")
    for _ in range(3):
        w = w / 2 + x.T.astype("f8") @ (y + w[:1, :1])
    np.testing.assert_allclose(found, w, 1e-5)
    starts = 0
    for body in bodies:
        for node in body.nodes:
            if node.op == "wait":
                begun = body.nodes[body.producers[node.inputs[0]]]
                assert begun.inputs == node.inputs[len(node.specs) :]
                starts += begun.kw["collective"] == "broadcast"
    assert starts == 1
