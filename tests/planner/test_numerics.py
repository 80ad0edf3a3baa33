"""What plans promise about bits: the same plan, the same bits; `any-workers`, the same bits for any number of them."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ostinato.ops.core.layout import grid_bounds, grid_size

import ostinato as ost
from tests.planner.test_any_layout import RELAXED, splits_for
from tests.planner.test_memory import mlp
from tests.programs import make_program
from tests.sessions import use
from tests.thorough import THOROUGH

TEAMS = ((1,), (3,), (8,), (2, 2), *(((2,), (4,)) if THOROUGH else ()))
FLOATS = [np.float32, np.float64]


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(x)).tobytes()


def by_team(function: Any, numerics: str = "any-workers") -> list[Any]:
    """The results of a function of a mesh in several teams."""
    found = []
    for mesh in TEAMS:
        with use(mesh, numerics):
            found.append([bits(y) for y in function(mesh)])
    return found


def test_the_grid_depends_on_the_size_alone() -> None:
    for n in (0, 1, 5, 23, 24, 25, 1000, 2_000_003):
        bounds = grid_bounds(n)
        assert bounds[0] == 0
        assert bounds[-1] == n
        assert len(bounds) == grid_size(n) + 1
        assert all(0 <= b - a <= n // 24 + 1 for a, b in pairwise(bounds))


@pytest.mark.parametrize(
    ("dtype", "split"),
    [(d, s) for n, d in enumerate(FLOATS) for s in ([0, 1, None] if THOROUGH or n else [0])],
)
def test_sums_means_products(dtype: Any, split: int | None) -> None:
    x = np.random.default_rng(1).normal(size=(1003, 37)).astype(dtype)

    def run(mesh: tuple[int, ...]) -> list[Any]:
        a = ost.asarray(x, split=split)
        return [
            a.sum(),
            a.sum(0),
            a.sum(1),
            a.mean(0),
            a.var(0),
            a.var(),
            a.T @ a,
            a @ a.T,
            (1 + a / 10).prod(0),
        ]

    first, *rest = by_team(run)
    for other in rest:
        assert other == first


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_along_a_split_axis(dtype: Any) -> None:
    x = np.random.default_rng(2).normal(size=(100, 203)).astype(dtype)

    def run(mesh: tuple[int, ...]) -> list[Any]:
        a = ost.asarray(x, split=1)
        return [
            ost.nn.softmax(a),
            ost.nn.log_softmax(a, axis=0),
            ost.logsumexp(a, axis=1),
            ost.nn.layer_norm(a),
        ]

    first, *rest = by_team(run)
    assert all(other == first for other in rest)


def test_steps_of_training() -> None:
    r = np.random.default_rng(3)
    x, y = r.normal(size=(256, 20)).astype("f4"), r.integers(0, 10, 256)
    w, v = r.normal(size=(20, 50)).astype("f4"), r.normal(size=(50, 10)).astype("f4")

    def run(mesh: tuple[int, ...]) -> list[Any]:
        step = ost.compile(mlp)
        p: Any = {"w": ost.asarray(w), "b": ost.zeros(50, dtype=ost.float32), "v": ost.asarray(v)}
        split = (0, *(None for _ in mesh[1:]))
        a, b = ost.asarray(x, split=split), ost.asarray(y, split=split)
        losses = []
        for k in range(20):
            p, loss = step(p, a, b, 0.5 / (1 + k / 10))
            losses.append(float(loss))
        assert losses[-1] < 0.8 * losses[0]
        return [*p.values(), np.array(losses)]

    first, *rest = by_team(run)
    assert all(other == first for other in rest)


@RELAXED
@given(st.randoms(use_true_random=False))
def test_random_programs_have_the_same_bits(r: random.Random) -> None:
    program = make_program(r, 6)
    seed = r.getrandbits(32)
    teams = r.sample(TEAMS, 3)
    found = []
    for mesh in teams:
        with use(mesh, "any-workers"):
            pick = random.Random(seed)
            splits = [pick.choice((None, *range(x.ndim))) for x in program.inputs]
            inputs = [ost.asarray(x, split=s) for x, s in zip(program.inputs, splits, strict=True)]
            found.append([bits(y) for y in program.by_ostinato(*inputs)])
    assert found[0] == found[1] == found[2]


@RELAXED
@given(st.randoms(use_true_random=False))
def test_the_same_plan_gives_the_same_bits(r: random.Random) -> None:
    program = make_program(r, 6)
    mesh = r.choice(TEAMS)
    with use(mesh):
        inputs = [ost.asarray(x, split=splits_for(r, x.ndim, mesh)) for x in program.inputs]
        f = ost.compile(program.by_ostinato)
        first = [bits(y) for y in f(*inputs)]
        assert [bits(y) for y in f(*inputs)] == first
        assert len(f.misses) == 1


def test_order_of_addition_matters_otherwise() -> None:
    """Were it not for the fixed blocks, these sums would differ: the test above can fail."""
    x = np.random.default_rng(1).normal(size=(1003, 37)).astype("f4")

    def run(mesh: tuple[int, ...]) -> list[Any]:
        a = ost.asarray(x, split=0)
        return [a.sum(), a.T @ a]

    first, *rest = by_team(run, "same-plan")
    assert any(other != first for other in rest)


@pytest.mark.parametrize("mesh", [(1,), (3,), (8,), (2, 2)])
def test_any_workers_is_accurate(mesh: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=(2000, 40)).astype("f4")
    exact = x.astype("f8")
    with use(mesh, "any-workers"):
        a = ost.asarray(x, split=0)
        np.testing.assert_allclose(np.asarray(a.sum(0)), exact.sum(0), atol=1e-4)
        np.testing.assert_allclose(np.asarray(a.T @ a), exact.T @ exact, rtol=1e-5, atol=1e-2)
        np.testing.assert_allclose(np.asarray(a.var(0)), exact.var(0), rtol=1e-5)


def test_random_numbers_depend_on_seed_and_place_alone() -> None:
    def run(mesh: tuple[int, ...]) -> list[Any]:
        found = []
        for split in (None, 0, 1):
            found.append(ost.random.normal((37, 41), seed=5, split=split))
            found.append(ost.random.uniform((37, 41), seed=5, dtype=ost.float64, split=split))
            found.append(ost.random.integers(0, 1000, (37, 41), seed=5, split=split))
        return found

    first, *rest = by_team(run, "same-plan")
    assert first[0:3] == first[3:6] == first[6:9]
    assert all(other == first for other in rest)
