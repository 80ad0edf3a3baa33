"""What a loop carries stays where it is: handed on as it came it is a constant, updated it is written in place. The
bytes that have a second buffer, which an iteration would copy, are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.tree import flatten
from ostinato.planner.passes.memory import LOOPS as KINDS
from ostinato.planner.passes.memory import in_place
from ostinato.planner.plan import Plan

import ostinato as ost
from tests.sessions import use

N, TURNS = 64, 6
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


CASES: dict[str, tuple[Turn, Any]] = {
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


def carried_bytes(plan: Plan) -> tuple[int, int]:
    """Of all that the plan's loops carry, and of what of that has a second buffer."""

    def count(program: Any) -> tuple[int, int]:
        total = twice = 0
        for k, inner in program.bodies.items():
            node = program.graph.nodes[k]
            if node.op in KINDS:
                stays = in_place(node, inner)
                sizes = [s.nbytes for s in node.specs[: node.kw["counts"][1]]]
                total += sum(sizes)
                twice += sum(n for j, n in enumerate(sizes) if j not in stays)
            for each in inner:
                a, b = count(each)
                total, twice = total + a, twice + b
        return total, twice

    return count(plan.program)


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
    _, twice = carried_bytes(f.plan)
    assert twice < 8 * N * N, "a second buffer for what could stay"
    for a, b in zip(flatten(given)[0], flatten(value)[0], strict=True):
        np.testing.assert_array_equal(np.asarray(a), b, err_msg="an operand was written over")


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
    assert carried_bytes(f.plan)[1] == 0


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
