"""An operation in parts of one of its indices, one after the other, which share its scratch memory.

    way = "3 x 32 by onednn + 1 x 4 by own kernel along n"

Where the index is parallel the parts are written side by side, where it is reduced they are combined with its
monoid. The last run goes on until all is done, so that any text of this form does the whole operation, whatever
extent a worker has. Parts are what a cut in time makes, but in one node: no part is copied, and they need not
be equal."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .device import Device, Function, InTurns, Prepackable, plain
from .graph import Node
from .index import Window
from .monoid import MONOIDS
from .registry import OPS, Place, Scratch, Specs
from .spec import Shape, Spec, float32, float64, uint8

OWN_KERNEL = "own kernel"  # the operation's, whatever the device has
ALIGN = 1 << 6
_TEXT = re.compile(r"([1-9]\d{0,8}) x ([1-9]\d{0,8})(?: by ([^+]+?))?")


class Stretch(NamedTuple):
    """So many parts of so many elements, each done in a way; "" is what the rules say."""

    times: int
    size: int
    way: str = ""


class Division(NamedTuple):
    """The runs along an index."""

    label: str
    runs: tuple[Stretch, ...]

    def __str__(self) -> str:
        runs = [f"{n} x {size}" + f" by {way}" * bool(way) for n, size, way in self.runs]
        return f"{' + '.join(runs)} along {self.label}"

    def stretches(self, extent: int) -> Iterator[Stretch]:
        """The runs of so many elements, which the last one goes on to; parts of them are alone."""
        left = extent
        for times, size, way in (*self.runs[:-1], self.runs[-1]._replace(times=max(extent, 1))):
            if whole := min(times, left // size):
                yield Stretch(whole, size, way)
            left -= whole * size
            if whole < times and (left or not extent):
                yield Stretch(1, left, way)
                return

    def parts(self, extent: int) -> Iterator[tuple[int, int, str]]:
        """Where each part begins, how many elements it has, and its way."""
        begin = 0
        for times, size, way in self.stretches(extent):
            yield from ((begin + k * size, size, way) for k in range(times))
            begin += times * size

    @staticmethod
    def from_parts(label: str, parts: Sequence[tuple[int, str]]) -> Division:
        """Parts in the order of their sizes, the largest first."""
        order = sorted(Counter(parts).items(), key=lambda p: (-p[0][0], p[0][1]))
        return Division(label, tuple([Stretch(times, *part) for part, times in order]))


@functools.lru_cache(1024)
def parse(way: str) -> Division | None:
    """The division that a text says, if it says one."""
    text, along, label = way.rpartition(" along ")
    runs = [_TEXT.fullmatch(run) for run in text.split(" + ")]
    if not along or len(label) != 1 or len(runs) > ALIGN:
        return None
    found = [Stretch(int(m[1]), int(m[2]), m[3] or "") for m in runs if m is not None]
    whole = len(found) == len(runs) and all(parse(run.way) is None for run in found)
    return Division(label, tuple(found)) if whole else None


def undivided(way: str) -> str:
    """The way of the largest parts, or what the rules say where a device has no part in that."""
    found = parse(way)
    largest = way if found is None else max(found.runs, key=lambda run: run.size).way
    return "" if largest == OWN_KERNEL else largest


class Axes(NamedTuple):
    """Where an index stands: dimensions of each operand and each result, -1 where it does not; and what
    combines the parts of results that have none."""

    ins: tuple[int, ...]
    outs: tuple[int, ...]
    monoid: str = ""

    def extent(self, ins: Sequence[Shape]) -> int:
        return next(shape[d] for shape, d in zip(ins, self.ins, strict=True) if d >= 0)

    def cut(self, shapes: Sequence[Shape], size: int) -> list[Shape]:
        """Shapes of operands and results for so many elements."""
        dims = (*self.ins, *self.outs)
        return [
            (*s[:d], size, *s[d + 1 :]) if d >= 0 else s for s, d in zip(shapes, dims, strict=True)
        ]


def axes_of(node: Node, ins: Specs) -> dict[str, Axes]:
    """The indices along which an operation can be done in parts."""
    op = OPS[node.op]
    if op.kernel is None or op.run.carries_state or op.view is not None:
        return {}
    if any(True for _ in node.subgraphs()) and (not op.run.placed or op.aligns):
        return {}  # of what is inside nothing is known
    rule = op.indices(ins, node.specs, node.kw)
    taken = {c for dims in rule.ins for d in dims if isinstance(d, Window) for c in d.labels}
    taken |= {*rule.chunked, *(label for label, _ in rule.parts)}
    found = {}
    for label in dict.fromkeys(d for dims in rule.ins for d in dims if isinstance(d, str)):
        if label in taken or any([*dims].count(label) > 1 for dims in (*rule.ins, *rule.outs)):
            continue
        of_ins, of_outs = (
            tuple([[*dims].index(label) if label in dims else -1 for dims in side])
            for side in (rule.ins, rule.outs)
        )
        monoid = rule.monoid(label) or ""
        if -1 not in of_outs:
            found[label] = Axes(of_ins, of_outs)
        elif {*of_outs} == {-1} and _adds_up(monoid, node.specs):
            found[label] = Axes(of_ins, of_outs, monoid)
    return found


def _adds_up(monoid: str, made: Specs) -> bool:
    """Whether parts of results combine, and lose nothing by it that one kernel would keep."""
    how = MONOIDS.get(monoid)
    if how is None or not how.ufunc or len(made) != 1:
        return False
    return how.exact or made[0].dtype in (float32, float64)


def division_of(node: Node, ins: Specs) -> tuple[Division, Axes] | None:
    found = parse(node.kw.get("way", ""))
    if found is None or (axes := axes_of(node, ins).get(found.label)) is None:
        return None
    return found, axes


def done_in(node: Node, way: str) -> Node:
    """The node done in another way; "" is what the rules say."""
    params = {**node.kw, "way": way} if way else {k: v for k, v in node.params if k != "way"}
    return Node(node.op, node.inputs, tuple(sorted(params.items())), node.specs, node.line)


# -- memory --------------------------------------------------------------------------------------
def scratch_of(
    device: Device, node: Node, ins: Sequence[Shape], outs: Sequence[Shape], specs: Specs
) -> tuple[tuple[Scratch, ...], tuple[Scratch, ...]]:
    """As `Device.scratch`, of nodes that are divided, too."""
    found = division_of(node, specs[: len(ins)])
    if found is None:
        return device.scratch(node, ins, outs, specs) if device.has_scratch(node) else ((), ())
    (division, axes), shapes = found, [*ins, *outs]
    runs, most = [*division.stretches(axes.extent(ins))], 0
    for _, size, way in runs:
        own, more = _needs(device, done_in(node, way), axes.cut(shapes, size), specs)
        most = max(most, sum(map(_aligned, (*own, *more))))
    if axes.monoid and sum(run.times for run in runs) > 1:
        most += _aligned(Scratch(outs[0], node.specs[0].dtype))
    return (), (Scratch((most,), uint8),)


def _needs(
    device: Device, node: Node, shapes: Sequence[Shape], specs: Specs
) -> tuple[tuple[Scratch, ...], tuple[Scratch, ...]]:
    """List the needs of the operation's own kernel, and of the device's, if that is asked."""
    count = len(node.inputs)
    if not device.has_scratch(node):
        return (), ()
    own, more = device.scratch(node, shapes[:count], shapes[count:], specs)
    return own, () if node.kw.get("way") == OWN_KERNEL else more


def _aligned(s: Scratch) -> int:
    return -(-math.prod(s.shape) * s.dtype.itemsize // ALIGN) * ALIGN


def _placed(room: Any, needs: Sequence[Scratch], begin: int = 0) -> tuple[list[Any], int]:
    """Arrays in scratch memory, and where they end."""
    made = []
    for s in needs:
        size = math.prod(s.shape) * s.dtype.itemsize
        made.append(room[begin : begin + size].view(s.dtype).reshape(s.shape))
        begin += _aligned(s)
    return made, begin


# -- functions -----------------------------------------------------------------------------------
def divided_kernel(
    device: Device,
    node: Node,
    specs: Specs,
    shape: Callable[[Spec], Shape],
    arrays: Sequence[Any],
    threads: int,
    scratch: Sequence[Any],
    place: Place,
    found: tuple[Division, Axes],
) -> Function:
    """A function of arrays that lie as these do, or in any way where one of them is None, which does all
    parts in turn."""
    division, axes = found
    count, (room,) = len(node.inputs), scratch
    shapes = [shape(s) for s in specs]
    dims = (*axes.ins, *axes.outs)
    alike = OPS[node.op].run.dense  # whose parts are the same wherever they are
    seen = [x for x in arrays if x is not None]
    lie = len(seen) == len(arrays)  # as they do in every run
    known = dict[Any, Function]()
    steps, ends = list[tuple[list[Any], Function]](), 0
    for begin, size, way in division.parts(axes.extent(shapes[:count])):
        cuts = [(*[slice(None)] * d, slice(begin, begin + size)) if d >= 0 else () for d in dims]
        at = moved_place(place, dims, begin, size)
        key = (size, way) if alike else (size, way, begin)
        here, each = done_in(node, way), axes.cut(shapes, size)
        needs = _needs(device, here, each, specs)
        mine, end = _placed(room, (*needs[0], *needs[1]))
        ends = max(ends, end)
        own, more = mine[: len(needs[0])], mine[len(needs[0]) :]
        made: Any = known.get(key)
        if made is None and way != OWN_KERNEL and lie:
            lying = [x[cut] for x, cut in zip(seen, cuts, strict=True)]
            native = device.natives.get(node.op)
            whole = native is not None and native.placed
            theirs = specs if whole else _specs_of(specs, shapes, each)
            made = device.kernel(
                here, theirs, shape, lying, threads, more, False, at if whole else None
            )
            made = made.function if isinstance(made, Prepackable) else made
            assert not isinstance(made, InTurns)
        if made is None:
            made = _own_kernel(device, here, own, at, count)
        known[key] = made
        steps.append((cuts, made))
    if not axes.monoid or len(steps) == 1:

        def run(*arrays: Any) -> None:
            for cuts, made in steps:
                made(*[x[cut] for x, cut in zip(arrays, cuts, strict=True)])

        return run
    (part,), _ = _placed(room, [Scratch(shapes[-1], node.specs[0].dtype)], ends)
    combine = getattr(device.xp, MONOIDS[axes.monoid].ufunc)

    def run_and_combine(*arrays: Any) -> None:
        *ins, out = arrays
        for k, (cuts, made) in enumerate(steps):
            into = part if k else out
            made(*[x[cut] for x, cut in zip(ins, cuts[:-1], strict=True)], into)
            if k:
                combine(out, part, out=out)

    return run_and_combine


def _specs_of(specs: Specs, shapes: Sequence[Shape], each: Sequence[Shape]) -> Specs:
    """Specs of parts, of which as much is missing here as of the whole."""
    return tuple([
        Spec(tuple([
            own if n == here else n for n, here, own in zip(s.shape, shape, part, strict=True)
        ]), s.dtype, s.layout)
        for s, shape, part in zip(specs, shapes, each, strict=True)
    ])  # fmt: skip


def _own_kernel(device: Device, node: Node, own: Sequence[Any], at: Place, count: int) -> Function:
    op, params = OPS[node.op], plain(node.kw)
    kernel = op.kernel
    assert kernel is not None
    if op.run.placed:
        params["at"] = at
    if op.run.scratch is not None:
        params["scratch"] = own

    def run(*arrays: Any) -> None:
        outs = arrays[count:]
        kernel(device.xp, outs[0] if len(outs) == 1 else outs, *arrays[:count], **params)

    return run


def moved_place(at: Place, dims: Sequence[int], begin: int, size: int) -> Place:
    boxes = []
    for box, d in zip((*at.ins, *at.outs), dims, strict=True):
        if d >= 0:
            low = box[d][0] + begin
            box = (*box[:d], (low, low + size), *box[d + 1 :])
        boxes.append(box)
    count = len(at.ins)
    return Place(tuple(boxes[:count]), tuple(boxes[count:]), at.in_shapes, at.out_shapes, at.first)
