"""Windows by their definition: output `y` and element `r` read `(offset + stride*y + dilation*r) / every`."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from ostinato.ops.core.encode import decode_layout, encode_layout
from ostinato.ops.core.index import Indices, Window, windowed
from ostinato.ops.core.layout import Layout, Overlap
from ostinato.ops.core.show import parse_layout
from ostinato.ops.core.spec import Spec, float32

Range = tuple[int, int]


def some_window(draw: random.Random) -> Window:
    return Window(
        "y",
        draw.randint(-7, 7),
        draw.choice([-3, -2, -1, 1, 1, 2, 3]),
        draw.randint(1, 4),
        "r",
        draw.choice([-2, -1, 1, 1, 2, 3]),
        draw.choice([1, 1, 2, 3, 4]),
    )


def some_range(draw: random.Random, size: int) -> Range:
    lo, hi = sorted(draw.choices(range(size + 1), k=2))
    return lo, hi


def position(w: Window, y: int, r: int) -> int | None:
    at = w.offset + w.stride * y + w.dilation * r
    return at // w.every if at % w.every == 0 else None


def test_reads_and_overlaps_are_no_less_than_the_positions() -> None:
    draw = random.Random(0)
    for _ in range(500):
        w, size = some_window(draw), draw.randint(0, 20)
        ys, rs = some_range(draw, 8), some_range(draw, w.size)
        every = {position(w, y, r) for y in range(*ys) for r in range(w.size)} - {None}
        assert every <= {*range(*w.reads(*ys))}, w
        extents = {"y": 8, "r": w.size}
        held = range(*w.overlap("y", extents).image(*ys, size))
        assert {*held} >= every & {*range(size)}, w
        every = {position(w, y, r) for y in range(8) for r in range(*rs)} - {None}
        held = range(*w.overlap("r", extents).image(*rs, size))
        assert {*held} >= every & {*range(size)}, w
        if every and w.every == 1 == abs(w.stride):  # and no more
            assert len(held) == len({*range(min(every), max(every) + 1)} & {*range(size)}), w


def test_taps_are_the_pairs_of_outputs_and_positions() -> None:
    draw = random.Random(1)
    for _ in range(2000):
        w = some_window(draw)
        outs, ins, r = some_range(draw, 12), some_range(draw, 12), draw.randrange(w.size)
        wanted = {(y, p) for y in range(*outs) if (p := position(w, y, r)) in range(*ins)}
        ours, theirs = w.tap(r, outs, ins)
        found = [*zip(range(*outs)[ours], range(*ins)[theirs], strict=True)]
        assert {*found} == wanted, (w, outs, ins, r)
        assert len(found) == len(wanted)


def test_what_a_slice_reads_its_adjoint_places() -> None:
    draw = random.Random(2)
    for _ in range(200):
        start, step, k = draw.randint(-9, 9), draw.choice([-3, -2, -1, 1, 2, 3]), draw.randint(0, 9)
        at = position(Window("y", start, step), k, 0)
        assert at is not None
        assert position(Window.placing("y", start, step), at, 0) == k


@pytest.mark.parametrize("every", [1, 2])
def test_layouts_are_written_and_read_with_their_windows(every: int) -> None:
    layout = Layout((2, 3), (1, None), ((1, Overlap(7, -2, 3, 4, every)),))
    assert parse_layout(repr(layout)) is layout
    assert decode_layout(json.loads(json.dumps(encode_layout(layout)))) is layout


def test_rules_are_read_off_a_text() -> None:
    conv = windowed("... n c [y:r] [x:s], ... o c r s -> ... n o y x", sums="c r s")
    ins = (Spec((6, 2, 3, 9, 9), float32), Spec((1, 4, 3, 3, 1), float32))
    outs = (Spec((6, 2, 4, 5, 9), float32),)
    taken = {"strides": (2, 1), "dilation": (1, 1), "pads": ((1, 1), (0, 0))}
    rule = conv(ins, outs, taken)
    (front, *_), _ = rule.ins
    assert rule == Indices(
        (
            (front, "n", "c", Window("y", -1, 2, 3, "r"), "x"),
            (None, "o", "c", "r", "s"),
        ),
        ((front, "n", "o", "y", "x"),),
        (("c", "sum"), ("r", "sum"), ("s", "sum")),
    )
    pool = windowed("n [y:r] -> n y", max="r")
    rule = pool(
        (Spec((2, 8), float32),), (Spec((2, 4), float32),), {"strides": (2,), "sizes": (3,)}
    )
    assert rule.ins == (("n", Window("y", 0, 2, 3, "r")),)
    assert rule.reduce == (("r", "max"),)
    np.testing.assert_equal(rule.outs, (("n", "y"),))
