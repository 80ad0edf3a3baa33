"""Fronts of seconds and bytes: against the table of a published program, brute force, and integer programs."""

from __future__ import annotations

import random

import numpy as np
import pytest
from ostinato.planner.tuning.fronts import Line, Point, divisions, front, share_memory, sizes

MIB = 1 << 20
Instance = tuple[list[list[Point]], list[tuple[int, int]], list[float]]


def test_the_front_of_a_published_program() -> None:
    """256 elements in powers of two, a fast kernel of a MiB each and a slow one of a byte each, below 64 MiB."""
    kernels = {
        n: [Point(0.1 * n + 0.01, n * MIB, ((n, "fast"),)), Point(10 * n + 0.1, n, ((n, "slow"),))]
        for n in (2**k for k in range(9))
    }
    found = divisions(256, kernels, 64 * MIB - 1)
    assert len(found) == 15
    assert all(sum(n for n, _ in p.runs) == 256 for p in found)
    last, first = found[-1], found[0]
    assert (round(last.seconds, 2), last.bytes, len(last.runs)) == (25.68, 32 * MIB, 8)
    assert (round(first.seconds, 2), first.bytes, len(first.runs)) == (2585.6, 1, 256)
    by_kind = [{way for _, way in p.runs} for p in found]
    assert by_kind == [{"slow"}] * 9 + [{"fast"}] * 6  # 1 to 256 bytes, 1 to 32 MiB


@pytest.mark.parametrize("seed", range(5))
def test_divisions_are_those_of_all_partitions(seed: int) -> None:
    rng = random.Random(seed)
    kernels = {
        n: [Point(rng.randint(1, 40), rng.randint(1, 9)) for _ in range(rng.randint(0, 3))]
        for n in rng.sample(range(1, 9), 4)
    }
    count, limit = rng.randint(3, 9), rng.randint(3, 10)

    def all_of(left: int, most: int) -> list[Point]:
        if not left:
            return [Point(0, 0)]
        return [
            Point(p.seconds + rest.seconds, max(p.bytes, rest.bytes))
            for n in range(1, min(left, most) + 1)
            for p in kernels.get(n, ())
            if p.bytes <= limit
            for rest in all_of(left - n, n)
        ]

    expected = [p[:2] for p in front(all_of(count, count))]
    assert [p[:2] for p in divisions(count, kernels, limit)] == expected


def test_sizes_and_lines() -> None:
    assert sizes(0) == []
    assert sizes(1) == [1]
    assert {1, 2, 64, 100, 50, 34, 25} <= {*sizes(100)}
    assert Line.through({8: 8.5, 16: 16.5, 64: 64.5})(32) == pytest.approx(32.5)
    assert Line.through({4: 2.0})(8) == 4.0
    line = Line.through({8: 4.0, 64: 64.0})  # as if the start took less than nothing
    assert line.start == 0.0
    assert 0.5 < line.each <= 1.0
    flat = Line.through({8: 5.0, 64: 4.0})
    assert flat.each == 0.0
    assert 4.0 <= flat(8) <= 5.0


def instance(rng: random.Random, together: bool) -> Instance:
    count, moments = rng.randint(1, 7), rng.randint(1, 6)
    fronts = []
    for _ in range(count):
        points = [Point(rng.randint(1, 50), rng.randint(0, 30)) for _ in range(rng.randint(1, 5))]
        fronts.append(front(points))
    alive = []
    for _ in range(count):
        begin = 0 if together else rng.randrange(moments)
        alive.append((begin, moments - 1 if together else rng.randrange(begin, moments)))
    room: list[float] = [float(rng.randint(5, 25 * count)) for _ in range(moments)]
    return fronts, alive, room


@pytest.mark.parametrize("together", [True, False], ids=["a sum", "over time"])
def test_memory_is_shared_as_an_integer_program_says(together: bool) -> None:
    """100 instances each; `together`: all are alive at once, so that their bytes are a sum."""
    optimize = pytest.importorskip("scipy.optimize")
    rng, feasible = random.Random(11), 0
    for _ in range(100):
        fronts, alive, room = instance(rng, together)
        owner = [k for k, points in enumerate(fronts) for _ in points]
        points = [p for points in fronts for p in points]
        one = np.array([[float(o == k) for o in owner] for k in range(len(fronts))])
        held = np.array([
            [p.bytes * (alive[o][0] <= m <= alive[o][1]) for p, o in zip(points, owner, strict=True)]
            for m in range(len(room))
        ])  # fmt: skip
        expected = optimize.milp(
            [p.seconds for p in points],
            constraints=[
                optimize.LinearConstraint(one, 1, 1),
                optimize.LinearConstraint(held, -np.inf, room),
            ],
            integrality=np.ones(len(points)),
            bounds=optimize.Bounds(0, 1),
        )
        chosen = share_memory(fronts, alive, room)
        assert (chosen is not None) == bool(expected.success)
        if chosen is None:
            continue
        feasible += 1
        taken = [fronts[k][c] for k, c in enumerate(chosen)]
        assert sum(p.seconds for p in taken) == pytest.approx(expected.fun)
        for m, most in enumerate(room):
            here = [p.bytes for p, (a, b) in zip(taken, alive, strict=True) if a <= m <= b]
            assert sum(here) <= most
    assert feasible > 30


def test_what_is_not_alive_at_once_shares() -> None:
    points = [Point(9.0, 0), Point(1.0, 10)]
    apart, beside = [(0, 0), (1, 1), (2, 2)], [(0, 2)] * 3
    assert share_memory([points] * 3, apart, [10.0] * 3) == [1, 1, 1]
    found = share_memory([points] * 3, beside, [10.0] * 3)
    assert found is not None
    assert sum(found) == 1
    assert share_memory([points[1:]] * 3, beside, [10.0] * 3) is None


def test_many_kernels_in_one_memory() -> None:
    """40 kernels with ten points each: what is left of the room would take no kernel to its next point."""
    rng = random.Random(3)
    fronts = [
        front(Point(2.0 ** (10 - k) + rng.random(), (2**k) * 64) for k in range(10))
        for _ in range(40)
    ]
    room = 40 * 4096
    found = share_memory(fronts, [(0, 0)] * 40, [float(room)])
    assert found is not None
    left = room - sum(fronts[k][c].bytes for k, c in enumerate(found))
    more = [fronts[k][c + 1].bytes - fronts[k][c].bytes for k, c in enumerate(found) if c < 9]
    assert 0 <= left < min(more)
