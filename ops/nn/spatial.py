"""How users say windows and orders of axes, and what operations by windows make of it.

Inside, channels are last: `n, space..., channels`, so that what belongs to one place lies together and
other orders are transposes, which chains of operations leave out but at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.array.shape import listed, permute_dims
from ostinato.ops.core.array import Array
from ostinato.ops.core.index import Window
from ostinato.ops.core.registry import Params, Place
from ostinato.ops.core.spec import Shape
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, ShapeError

Pair = tuple[int, ...]
Pairs = Sequence[tuple[int, int]]
SPACE = "DHW"


@dataclass(frozen=True, slots=True)
class Order:
    """Where the samples, the places in space and the channels of an array are."""

    axes: Pair  # samples, space, channels
    channels_last: bool

    def inside(self, x: Array) -> Array:
        """With channels last."""
        return x if self.axes == tuple(range(x.ndim)) else permute_dims(x, self.axes)

    def outside(self, y: Array) -> Array:
        """As the user has it."""
        if self.axes == tuple(range(y.ndim)):
            return y
        return permute_dims(y, tuple([self.axes.index(d) for d in range(y.ndim)]))


def order_of(layout: str | None, x: Array, name: str) -> Order:
    """By letters such as "NCHW" or "NDHWC"; channels first where nothing is said."""
    space = x.ndim - 2
    if not 1 <= space <= 3:
        needed = "samples, channels and 1 to 3 axes of space"
        do = "put missing axes in, e.g. x[None]"
        raise misfit(ShapeError, name, got=f"an array of {x.ndim} axes", needed=needed, do=do)
    letters = "NC" + SPACE[-space:] if layout is None else layout
    if not isinstance(letters, str) or sorted(letters) != sorted("NC" + SPACE[-space:]):
        needed = f"the letters NC{SPACE[-space:]}, each once, as the axes are"
        raise misfit(ArgumentError, name, got=f"layout={layout!r:.40}", needed=needed)
    inner = [d for d, c in enumerate(letters) if c in SPACE]
    return Order((letters.index("N"), *inner, letters.index("C")), letters[-1] == "C")


def for_each(value: int | Sequence[int], count: int, name: str, what: str, least: int = 1) -> Pair:
    """A whole number for each axis of space, of which one stands for all."""
    found = listed(value, name)
    found = found * count if len(found) == 1 else found
    if len(found) != count or min(found) < least:
        needed = f"one whole number of {least} or more, or {count} of them"
        raise misfit(ArgumentError, name, got=f"{what}={value!r:.40}", needed=needed)
    return found


def padding_of(
    padding: Any, sizes: Pair, strides: Pair, reaches: Pair, name: str
) -> list[tuple[int, int]]:
    """How many zeros before and after, for each axis: given, none ("valid"), or as many as make one
    output of `stride` places ("same")."""
    count = len(sizes)
    if isinstance(padding, str) and padding.lower() in ("valid", "same"):
        if padding.lower() == "valid":
            return [(0, 0)] * count
        given = zip(sizes, strides, reaches, strict=True)
        totals = [max((-(-n // s) - 1) * s + reach - n, 0) for n, s, reach in given]
        return [(total // 2, total - total // 2) for total in totals]
    each = list[Pair]()
    if not isinstance(padding, str):
        plain = isinstance(padding, int) or not hasattr(padding, "__iter__")
        each = [listed(p, name) for p in ((padding,) if plain else padding)]
    pairs = [(p[0], p[-1]) for p in (each * count if len(each) == 1 else each) if 1 <= len(p) <= 2]
    if len(pairs) != count or min(map(min, pairs), default=0) < 0:
        needed = f"'same', 'valid', a whole number, or {count} numbers or pairs of them"
        raise misfit(ArgumentError, name, got=f"padding={padding!r:.40}", needed=needed)
    return pairs


def extent(n: int, pads: tuple[int, int], reach: int, stride: int, ceil: bool = False) -> int:
    """The number of windows along an axis; with `ceil` also of the one that leaves the padding, if it
    begins before."""
    rest = n + sum(pads) - reach
    if not ceil or rest < 0:
        return max(rest // stride + 1, 0)
    count = -(-rest // stride) + 1
    return count - ((count - 1) * stride >= n + pads[0])


def begins_of(at: Place, p: Params) -> tuple[int, ...]:
    """Where the first window of a part begins in its images, before `every` thins them: of its place, all that
    a convolution of parts of these extents depends on."""
    k = len(p["extents"])
    boxes = at.outs[0][1 : k + 1], at.ins[1][:k], at.ins[0][1 : k + 1]
    steps = p["offsets"], p["strides"], p["dilation"], p["every"]
    return tuple([
        o + s * y[0] + d * r[0] - e * i[0]
        for o, s, d, e, y, r, i in zip(*steps, *boxes, strict=True)
    ])  # fmt: skip


def windows_of(
    sizes: Shape, *, strides: Pair, dilation: Pair, offsets: Pair, every: Pair
) -> list[Window]:
    """As the planner's index rule has them."""
    given = zip(offsets, strides, sizes, dilation, every, strict=True)
    return [Window("", o, s, n, "", d, e) for o, s, n, d, e in given]


def backwards(p: dict[str, Any], extents: Pair) -> dict[str, Any]:
    """The windows of elements: `position = (offset + stride*y + dilation*r) / every`, solved for `y`."""
    return {
        **p,
        "strides": p["every"],
        "dilation": tuple([-d for d in p["dilation"]]),
        "offsets": tuple([-o for o in p["offsets"]]),
        "every": p["strides"],
        "extents": extents,
    }
