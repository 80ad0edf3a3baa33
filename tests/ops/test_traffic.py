"""Messages and volumes by rule are those that a look at every worker finds."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from ostinato.ops.core.exchange import held_pieces, largest_piece, pieces_from, pieces_to
from ostinato.ops.core.layout import Layout, Overlap, different_shapes, extents, intersect, volume
from ostinato.ops.core.traffic import held, moved, scatters, there_already

from tests import ranks
from tests.ranks import Shape, boxes

CASES = [*ranks.cases(2000)]
LARGE = [(65536,), (256, 256), (32, 32, 64), (2,) * 16]


def test_each_worker_knows_its_own_messages() -> None:
    """In the order of all messages, each of which one worker gives and one gets."""
    for has, needs, shape in CASES:
        pieces = ranks.exchange_lists(has, needs, shape)
        for rank in range(has.workers):
            said = f"{has} -> {needs}, {shape}, rank {rank}"
            gets = [p for p in pieces if p.target == rank]
            gives = [p for p in pieces if p.source == rank]
            assert [*pieces_to(has, needs, shape, rank)] == gets, said
            assert [*pieces_from(has, needs, shape, rank)] == gives, said
        if has.workers <= 8 or not needs.windows:
            crossing = [volume(p.box) for p in pieces if p.source != p.target]
            assert largest_piece(has, needs, shape) >= max(crossing, default=0), said


def test_volumes_are_those_of_the_messages() -> None:
    for has, needs, shape in CASES:
        crossing = [p for p in ranks.exchange_lists(has, needs, shape) if p.source != p.target]
        found, said = moved(has, needs, shape), f"{has} -> {needs}, {shape}"
        assert found == sum(volume(p.box) for p in crossing) == ranks.crossing(has, needs, shape), (
            said
        )


def test_parts_are_as_large_as_they_are_found() -> None:
    for layout, shape in [(c[k], c[2]) for c in CASES for k in (0, 1)]:
        every = boxes(layout, shape)
        for d, size in enumerate(shape):
            found = [box[d][1] - box[d][0] for box in every]
            assert extents(layout, size, d) == (min(found), max(found)), f"{layout}, {shape}"
        assert held(layout, shape) == sum(map(volume, every)), f"{layout}, {shape}"
        if not layout.windows:
            assert layout.parts(shape) == len({b for b in every if volume(b)})


def test_shapes_of_several_arrays() -> None:
    for has, needs, shape in CASES:
        arrays = (has, shape), (needs, shape), (has, (5,) * len(shape))
        every = {
            tuple(layout.local_shape(n, rank) for layout, n in arrays)
            for rank in range(has.workers)
        }
        found = different_shapes(arrays)
        assert len(found) == len(every)
        assert {*found} == every


def test_what_is_there_is_known() -> None:
    draw = random.Random(3)
    found = []
    for has, needs, shape in CASES:
        if draw.random() < 0.3:  # a halo, of which less is wanted, or as much
            has = (
                needs if draw.random() < 0.3 else Layout(needs.mesh, needs.splits, (), needs.blocks)
            )
        found.append(ranks.has_copy(has, needs, shape))
        assert has.has_copy(needs, shape) == found[-1], f"{has} -> {needs}, {shape}"
    assert 400 < sum(found) < 1600, "of both kinds"


def test_addends_are_counted() -> None:
    """Along some axes they go to their owners, then along all others together to everybody; then what is
    left crosses."""
    draw = random.Random(5)
    for has, needs, shape in ranks.cases(500):
        here, needs = ranks.with_addends(draw, has), ranks.with_addends(draw, needs)
        if needs.partial_axes or here is needs:
            continue
        total, end = 0, here
        for axis in here.partial_axes:
            n = here.mesh[axis]
            if scatters(end, needs, axis):
                splits = end.with_split(axis, needs.splits[axis]).splits
                end = Layout(end.mesh, splits, (), needs.blocks)
                total += sum(map(volume, boxes(end, shape))) * (n - 1)
        n = math.prod([end.mesh[axis] for axis in end.partial_axes])
        end = end.without(end.partial_axes)
        total += sum(map(volume, boxes(end, shape))) // n * (n - 1) * 2
        total += ranks.crossing(end, needs, shape)
        assert moved(here, needs, shape) == total, f"{here} -> {needs}, {shape}"


def test_holders_of_a_box() -> None:
    draw = random.Random(7)
    for layout, _, shape in CASES[:500]:
        box = []
        for n in shape:
            ends = sorted((draw.randint(0, n), draw.randint(0, n)))
            box.append((ends[0], ends[1]))
        if not volume(tuple(box)):
            continue
        first: dict[ranks.Box, int] = {}
        for rank, part in enumerate(boxes(layout, shape)):
            first.setdefault(part, rank)
        wanted = [(rank, intersect(part, tuple(box))) for part, rank in first.items()]
        assert [*held_pieces(layout, shape, tuple(box))] == [w for w in wanted if volume(w[1])]


@pytest.mark.parametrize("mesh", LARGE, ids=lambda m: "x".join(map(str, m)))
def test_many_workers_are_not_asked_one_by_one(
    mesh: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Volumes of parts of parts are known without an array over the workers."""
    from ostinato.ops.core import layout
    from ostinato.ops.core import traffic as module

    def listed(*given: object) -> None:
        raise AssertionError("workers one by one")

    monkeypatch.setattr(module, "_overlaps", listed)
    monkeypatch.setattr(module, "_on_two_meshes", listed)
    monkeypatch.setattr(layout, "_box", listed)
    shape: Shape = (70_001, 1000, 129)
    n = len(mesh)
    ends = [
        Layout(mesh, (0,) * n),
        Layout(mesh, (1,) * n),
        Layout.whole(mesh),
        Layout(mesh, (0,) + (None,) * (n - 1)),
        Layout(mesh, (0,) + (2,) * (n - 1)),
    ]
    for has, needs in itertools.product(ends, repeat=2):
        there = there_already(has, needs, shape)
        assert 0 <= there <= held(needs, shape)
        assert (there == held(needs, shape)) == has.has_copy(needs, shape)
        assert moved(has, needs, shape) == held(needs, shape) - there


def test_a_halo_of_many_workers() -> None:
    """A worker and its neighbours tell what all do."""
    mesh, shape = (65536,), (10_000_019,)
    has = Layout(mesh, (0,))
    halo = Layout(mesh, (0,), ((0, Overlap(shape[0] - 2, 0, 1, 3)),))
    assert held(halo, shape) == shape[0] - 2 + 2 * 65536
    looked_at = (0, 1, 2, 38_564, 40_000, 65_534, 65_535)
    gets = [[p for p in pieces_to(has, halo, shape, r) if p.source != r] for r in looked_at]
    assert max(sum(volume(p.box) for p in pieces) for pieces in gets) == 2
    assert max(map(len, gets)) == 1
    assert moved(has, halo, shape) == 2 * 65535


def test_replicas_share_the_work() -> None:
    """Each serves those who lie as it does along the axes of the replicas."""
    has, needs = Layout((2, 2), (None, 0)), Layout.whole((2, 2))
    gives = [
        [p.target for p in pieces_from(has, needs, (4,), r) if p.target != r] for r in range(4)
    ]
    assert gives == [[1], [0], [3], [2]]
