"""Sums of many slices, each times a number: which become sums over windows, and that these are the same."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.show import parse
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.passes import slice_sums
from ostinato.planner.passes.slice_sums import MIN_TAPS, slide_filters
from ostinato.planner.plan import Target

import ostinato as ost
from tests.helpers import on

N, FEWEST = 40_000, MIN_TAPS[False]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape)


def all_ops(graph: Any) -> list[str]:
    return [
        op
        for n in graph.nodes
        for op in (n.op, *(inner for _, g in n.subgraphs() for inner in all_ops(g)))
    ]


def slices(x: Any, w: Any, taps: int = FEWEST) -> Any:
    return sum(w[k] * x[k : k + N] for k in range(taps))


def test_the_pass() -> None:
    taps = [f"""
        %{a} = slice(%1; sizes=(1,), starts=({k},), steps=(1,)) : float32[1]
        %{a + 1} = squeeze(%{a}; axes=(0,)) : float32[]
        %{a + 2} = slice(%0; sizes=({N},), starts=({k},), steps=(1,)) : float32[{N}]
        %{a + 3} = multiply(%{a + 1}, %{a + 2}) : float32[{N}]
        """ + (f"%{a + 4} = add(%{a - 1 if k > 1 else 5}, %{a + 3}) : float32[{N}]" if k else "")
        for k in range(FEWEST) for a in [5 * k + 1 if k else 2]]  # fmt: skip
    text = f"(%0: float32[{N + 8}], %1: float32[9])" + "".join(taps)
    before = parse(text + f"\nreturn %{5 * FEWEST}")
    after = parse(f"""
        (%0: float32[{N + 8}], %1: float32[9])
        %2 = slide(%0; axes=(0,), beside=(-1,), dilations=(1,), sizes=(9,), steps=(1,)) : float32[{N},9]
        %3 = einsum(%2, %1; text='ab,b->a') : float32[{N}]
        return %3
    """)
    assert slide_filters(before, Target((1,))) == after
    assert slide_filters(after, Target((1,))) is after
    assert slide_filters(before, Target((1,), numerics="any-workers")) is before


def random_filter(draw: random.Random) -> tuple[Any, list[np.ndarray], bool]:
    """A sum of many terms, by windows of one, two or three axes, with others among them; and whether its
    weights are a part of one array."""
    counts = draw.choice([(9,), (17,), (3, 4), (5, 5), (1, 11), (2, 3, 3)])
    ndim = draw.randint(len(counts), 3)
    axes = sorted(draw.sample(range(ndim), len(counts)))
    shape, steps, starts = ([draw.choice(c) for _ in range(ndim)] for c in ((5, 8), (1, 2), (0, 3)))
    dilations = [draw.choice((1, 1, 2, 3)) for _ in counts]
    extents = [1 + s + step * n for s, step, n in zip(starts, steps, shape, strict=True)]
    for d, count, dilation in zip(axes, counts, dilations, strict=True):
        extents[d] += dilation * count
    order = draw.sample(range(len(counts)), len(counts))
    form = draw.choice(["elements", "backwards", "computed", "numbers", "one"])
    if form == "numbers":
        counts = (
            max(counts[0], -(-MIN_TAPS[True] * counts[0] // int(np.prod(counts)))),
            *counts[1:],
        )
        extents[axes[0]] += dilations[0] * counts[0]
    taps = [*itertools.product(*map(range, counts))]
    known = {t: float(v) for t, v in zip(taps, numbers(len(taps), seed=3), strict=True)}
    draw.shuffle(taps)
    minus = [draw.random() < 0.2 for _ in taps] if form in ("computed", "numbers") else []
    more = draw.sample(["bias", "again", "other"], draw.randint(0, 2))

    def part(x: Any, tap: tuple[int, ...]) -> Any:
        first = [*starts]
        for n, d in enumerate(axes):
            first[d] += dilations[n] * tap[n]
        key = [slice(a, a + s * (n - 1) + 1, s)
               for a, s, n in zip(first, steps, shape, strict=True)]  # fmt: skip
        return x[tuple(key)]

    def weight(w: Any, tap: tuple[int, ...]) -> Any:
        if form == "numbers":
            return known[tap]
        if form == "backwards":
            tap = tuple([n - 1 - t for n, t in zip(counts, tap, strict=True)])
        element = w[(0, *[tap[n] for n in order])]
        return element * element + 1 if form == "computed" else element

    def made(x: Any, w: Any, y: Any) -> Any:
        total = y if "bias" in more else 0
        for k, tap in enumerate(taps):
            one = part(x, tap)
            term = one if form == "one" and k == 3 else weight(w, tap) * one
            if minus and not k and "bias" not in more:
                total = -term
            else:
                total = total - term if minus and minus[k] else total + term
        if "again" in more:
            total = total - part(x, taps[0])
        return total + y * 2 if "other" in more else total

    arrays = [numbers(*extents), numbers(2, *[counts[n] for n in order], seed=1), numbers(*shape)]
    return made, arrays, form in ("elements", "backwards")


@pytest.mark.parametrize("seed", range(12))
def test_any_filter_is_what_numpy_makes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_sums, "MIN_WORK", 1)
    draw = random.Random(seed)
    f, (x, *rest), in_array = random_filter(draw)
    workers = draw.choice((1, 2, 3))
    with on(workers):
        g = ost.compile(f)
        found = g(ost.asarray(x, split=draw.randrange(x.ndim) if workers > 1 else None), *rest)
        np.testing.assert_allclose(np.asarray(found), f(x, *rest), 1e-11, 1e-11)
    ops = all_ops(g.plan.lowered)
    assert ops.count("slide") == ops.count("einsum") == 1
    assert ops.count("multiply") <= 2
    assert in_array is ("concat" not in ops)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_send_edges_alone(workers: int) -> None:
    x, w = numbers(N + 8), numbers(9)
    with on(workers):
        f = ost.compile(slices)
        f(ost.asarray(x, split=0), w)
    assert f.plan.peak_bytes < 3.5 * x.nbytes / workers
    assert decode_plan(encode_plan(f.plan)).lowered == f.plan.lowered


def few(x: Any, w: Any) -> Any:
    return slices(x, w, FEWEST - 1)


def equal(x: Any, w: Any) -> Any:
    return sum(w[0] * x[k : k + N] for k in range(FEWEST))


def holes(x: Any, w: Any) -> Any:
    return sum(w[k] * x[k : k + N] for k in range(12) if k not in (3, 7))


def short(x: Any, w: Any) -> Any:
    return sum(w[k] * x[k : k + 99] for k in range(FEWEST))


def known(x: Any, w: Any) -> Any:
    return sum((k + 0.5) * x[k : k + N] for k in range(FEWEST))


def shared(x: Any, w: Any) -> Any:
    parts = [w[k] * x[k : k + N] for k in range(FEWEST)]
    return sum(parts), [part.max() for part in parts]


@pytest.mark.parametrize("f", [few, equal, holes, short, known, shared])
def test_others_are_left_alone(f: Any) -> None:
    g = ost.compile(f)
    g(numbers(N + 12), numbers(12))
    assert "slide" not in all_ops(g.plan.lowered)


def test_whole_numbers_are_left_alone() -> None:
    g = ost.compile(slices)
    x, w = np.arange(N + 8), np.arange(9)
    np.testing.assert_array_equal(np.asarray(g(x, w)), slices(x, w))
    assert "slide" not in all_ops(g.plan.lowered)


def test_gradients_and_bodies_of_loops() -> None:
    x, w = numbers(N + 8), numbers(9)

    def loss(x: Any, w: Any) -> Any:
        return (slices(x, w) ** 2).sum()

    slope = np.asarray(ost.compile(ost.grad(loss, argnums=1))(x, w))
    wanted = [2 * (slices(x, w) * x[k : k + N]).sum() for k in range(9)]
    np.testing.assert_allclose(slope, wanted, 1e-9)

    def smoothed(x: Any, w: Any) -> Any:
        return ost.repeat(3, lambda u: ost.concat([slices(u, w), u[:8]]), x)

    f, by = ost.compile(smoothed), x
    found = np.asarray(f(x, w))
    for _ in range(3):
        by = np.concatenate([slices(by, w), by[:8]])
    np.testing.assert_allclose(found, by, 1e-10, 1e-10)
    assert "einsum" in all_ops(f.plan.lowered)
