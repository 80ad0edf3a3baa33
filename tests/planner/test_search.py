"""The search for layouts: the solver against every choice, what it finds, and that it is cheap."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from ostinato.planner.layouts import search
from ostinato.planner.layouts.search import Answer, Problem, solve
from ostinato.planner.passes import layouts

import ostinato as ost
from tests.planner.test_any_layout import splits_for
from tests.programs import make_program
from tests.sessions import use


# -- the solver ------------------------------------------------------------------------------------
def random_problem(r: np.random.Generator, variables: int, values: int, share: float) -> Problem:
    """Every other one has costs of which many are equal."""
    equal = r.random() < 0.5

    def costs(*shape: int) -> Any:
        return r.integers(0, 4, shape).astype(float) if equal else r.random(shape)

    made = Problem()
    sizes = r.integers(1, values + 1, variables)
    for n in sizes:
        made.variable(costs(n))
    for i, j in itertools.permutations(range(variables), 2):
        if r.random() < share:
            made.pair(i, j, costs(sizes[i], sizes[j]))
    return made


def test_the_best_of_all_choices() -> None:
    r = np.random.default_rng(1)
    for _ in range(600):
        problem = random_problem(r, int(r.integers(1, 8)), 4, 0.5)
        sizes = [len(c) for c in problem.costs]
        best = min(problem.cost(v) for v in itertools.product(*map(range, sizes)))
        answer = solve(problem)
        assert answer.cost == pytest.approx(best, abs=1e-9)
        assert answer.gap < 1e-9
        assert problem.cost(answer.values) == answer.cost


def test_where_tables_must_be_cut_the_answer_comes_with_a_bound() -> None:
    r = np.random.default_rng(2)
    gaps = []
    for _ in range(40):
        problem = random_problem(r, 14, 3, 0.6)
        exact, near = solve(problem), solve(problem, limit=30)
        assert near.bound <= exact.cost + 1e-9
        assert near.cost >= exact.cost - 1e-9
        gaps.append(near.cost / exact.cost - 1)
    assert np.mean(gaps) < 0.01, "it is near"


def test_forests_make_an_answer_cheaper_where_tables_must_be_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As layouts do, each value fits one value of a neighbour, and all others cost the same."""

    def problem(r: np.random.Generator, variables: int, values: int, share: float) -> Problem:
        made = Problem()
        for _ in range(variables):
            made.variable(r.random(values) / 4)
        for i, j in itertools.combinations(range(variables), 2):
            if r.random() < share:
                fits = r.permutation(values)[:, None] == r.permutation(values)
                made.pair(i, j, r.random() * ~fits)
        return made

    def costs() -> list[float]:
        r = np.random.default_rng(3)
        return [solve(problem(r, 80, 4, 0.05), limit=100).cost for _ in range(3)]

    found = costs()
    monkeypatch.setattr(search._Core, "_try_forests", lambda *_: None)
    without = costs()
    assert all(a < b for a, b in zip(found, without, strict=True))


def test_a_forest_has_no_cycle_and_no_more_fits_into_it() -> None:
    r = random.Random(1)
    for _ in range(50):
        n = r.randint(1, 30)
        near = [set[int]() for _ in range(n)]
        for i, j in itertools.combinations(range(n), 2):
            if r.random() < 0.15:
                near[i].add(j)
                near[j].add(i)

        def is_forest(some: set[int], near: list[set[int]] = near) -> bool:
            left = set(some)
            while ends := {i for i in left if len(near[i] & left) < 2}:
                left -= ends
            return not left

        order = r.sample(range(n), n)
        found = search._forest(order, list(map(sorted, near)))
        assert is_forest(found)
        assert not any(is_forest(found | {i}) for i in set(order) - found)


def layers_problem(r: np.random.Generator, layers: int, width: int, values: int) -> Problem:
    """Equal layers of variables that are tied to each other and to those of the next one; the first
    and the last one have costs of their own."""
    made = Problem()
    costs = [r.random(values) for _ in range(width)]
    within = {ij: r.random((values, values)) / 3 for ij in itertools.combinations(range(width), 2)}
    onwards = {(i, j): r.random((values, values)) / 3 for i in range(width) for j in (0, i)}
    for layer in range(layers):
        first, end = layer * width, layer in (0, layers - 1)
        for cost in costs:
            made.variable(cost + r.random(values) if end else cost)
        for (i, j), table in within.items():
            made.pair(first + i, first + j, table)
        for (i, j), table in onwards.items() if layer else ():
            made.pair(first - width + i, first + j, table)
    return made


def core_of(problem: Problem) -> search._Core:
    near: list[dict[int, Any]] = [{} for _ in problem.costs]
    for (i, j), (table,) in problem.pairs.items():
        near[i][j], near[j][i] = table, table.T
    made = search._Core.from_costs(range(len(near)), problem.costs, near)
    made._own()
    return made


def test_equal_layers_are_worked_on_once() -> None:
    """That brings the bound nearly to where sweeps over all layers do; no choice costs more or less."""
    r = np.random.default_rng(4)
    for _ in range(6):
        problem = layers_problem(r, 40, 4, 3)
        start, alike, apart = (core_of(problem) for _ in range(3))
        assert alike._spread_alike(search.LIMIT)
        for turn in range(search.SWEEPS):
            apart._sweep(back=turn % 2 == 1)
        gained = alike._minima() - start._minima()
        assert gained > 0.9 * (apart._minima() - start._minima())
        for _ in range(20):
            values = r.integers(0, 3, len(start.costs))
            cost = sum(float(c[v]) for c, v in zip(alike.costs, values, strict=True))
            cost += sum(float(t[values[i], values[j]]) for (i, j), t in alike.pairs.items())
            assert cost + alike.base == pytest.approx(problem.cost([int(v) for v in values]))


def test_where_layers_repeat_the_answer_is_as_good_and_has_a_bound() -> None:
    r = np.random.default_rng(5)
    for values, limit in ((3, 30), (4, 60), (2, 8)):
        problem = layers_problem(r, 25, 4, values)
        exact, near = solve(problem), solve(problem, limit=limit)
        assert near.bound <= exact.cost + 1e-9
        assert exact.cost - 1e-9 <= near.cost <= exact.cost * 1.002
        assert problem.cost(near.values) == near.cost


def test_equal_layers_are_eliminated_once() -> None:
    """What is between two variables of a layer makes the same table in all layers."""

    def eliminated(layers: int) -> int:
        r = np.random.default_rng(6)
        problem = layers_problem(r, layers, 4, 3)
        costs, tables = r.random(3), list(r.random((2, 3, 3)))
        for layer in range(layers):
            k = problem.variable(costs)
            for i in range(2):
                problem.pair(4 * layer + i, k, tables[i])
        solver = search._Solver(problem, search.LIMIT)
        solver.answer()
        return len(solver.once.found)

    assert eliminated(30) == eliminated(20)


def test_a_choice_that_is_the_same_in_all_layers_is_tried() -> None:
    r = np.random.default_rng(7)
    for _ in range(5):
        problem = layers_problem(r, 40, 4, 3)
        core = core_of(problem)
        assert core._spread_alike(search.LIMIT)
        assert core.least == pytest.approx(problem.cost(core.best))
        assert core.least <= 1.05 * solve(problem).cost


def test_a_ladder_of_any_length_is_exact() -> None:
    r = np.random.default_rng(3)
    problem, n = Problem(), 400
    for _ in range(n):
        problem.variable(r.random(6))
    for i in range(n - 1):
        problem.pair(i, i + 1, r.random((6, 6)))
    for i in range(n // 2 - 1):
        problem.pair(i, n - 1 - i, r.random((6, 6)))
    answer = solve(problem)
    assert answer.gap < 1e-9
    assert problem.cost(answer.values) == answer.cost


def test_what_has_one_value_left_is_no_axis_of_a_table() -> None:
    """Of which NumPy's arrays have 64 at the most."""
    many = 80
    costs = [np.zeros(1)] * many + [np.array([0.0, 1.0])]
    sizes = [len(c) for c in costs]
    pairs = {ij: np.zeros([sizes[k] for k in ij]) for ij in itertools.combinations(range(81), 2)}
    pairs[0, many] = np.array([[2.0, 0.0]])
    values, bound = search._eliminate(costs, pairs, search.LIMIT)
    assert values == [0] * many + [1]
    assert bound is None


# -- layouts ---------------------------------------------------------------------------------------
def cheapest(problem: Problem) -> float:
    """By a table of all choices."""
    sizes = [len(c) for c in problem.costs]
    total = np.zeros(sizes)
    for i, cost in enumerate(problem.costs):
        total += cost.reshape([-1 if k == i else 1 for k in range(len(sizes))])
    for (i, j), tables in problem.pairs.items():
        shape = [n if k in (i, j) else 1 for k, n in enumerate(sizes)]
        for table in tables:
            total += table.reshape(shape)
    return float(total.min())


def test_random_programs_get_the_best_of_all_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def both(problem: Problem) -> Answer:
        answer = solve(problem)
        sizes = [len(c) for c in problem.costs]
        if 1 < len(sizes) < 30 and math.prod(sizes) <= 1 << 18:
            assert answer.cost == pytest.approx(cheapest(problem), rel=1e-9)
            compared.append(math.prod(sizes))
        return answer

    monkeypatch.setattr(layouts, "solve", both)
    r = random.Random(5)
    for _ in range(400):
        program, mesh = make_program(r, length=r.randint(2, 6)), r.choice([(2,), (3,), (2, 2)])
        with use(mesh):
            inputs = [ost.asarray(x, split=splits_for(r, x.ndim, mesh)) for x in program.inputs]
            ost.compile(program.by_ostinato).plan_for(*inputs)
        if len(compared) >= 200:
            break
    assert len(compared) >= 200
    assert max(compared) > 1000
