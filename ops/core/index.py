"""The indices of an operation: the one fact from which every way to cut it follows.

    matmul            ... m k, ... k n -> ... m n     k reduced with `sum`
    x[3:9:2]          [3 + 2i] -> i                   a `Window`: shifted, strided, wide
    correlate         [i + r], r -> i                 r reduced with `sum`: the window's own label
    sort along 0      . j -> . j                      `.` (None): whole, cannot be cut

A label that stands in the outputs is parallel: its parts are written side by side. A label that
stands in operands only is reduced: its parts are combined with its monoid. A label in `chunked` may
be cut only where the cut falls on the same element in all dimensions that carry it (reshape). A
label in `parts` stands for rows in one array and for parts of these rows in another; it may be cut
only where its parts begin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .layout import Overlap
from .spec import Shape, Spec

Range = tuple[int, int]
Specs = tuple[Spec, ...]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Window:
    """A dimension of an operand that is affine in two labels: an output's, and `over`, that of the
    window itself, which has `size` elements and is reduced or written beside it. Output `y` and
    element `r` of its window read position `(offset + stride*y + dilation*r) / every`, and nothing
    where that is no whole number."""

    label: str
    offset: int = 0
    stride: int = 1
    size: int = 1
    over: str | None = None
    dilation: int = 1
    every: int = 1

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if self.over is None else (self.label, self.over)

    @property
    def reach(self) -> int:
        """From the first element of a window to behind its last one, before `every` thins them."""
        return abs(self.dilation) * max(self.size - 1, 0) + 1

    @property
    def apart(self) -> int:
        """From one element of a window that lies at a whole position to the next one."""
        return self.every // math.gcd(self.dilation, self.every)

    @property
    def turns(self) -> int:
        """How many elements of a window lie at whole positions, at the most."""
        return -(-self.size // self.apart)

    def reads(self, begin: int, end: int) -> tuple[int, int]:
        """The range of positions that the outputs `[begin, end)` read, wherever the array ends."""
        if begin >= end:
            return 0, 0
        ends = self.stride * begin, self.stride * (end - 1)
        first = self.offset + min(ends) + min(0, self.dilation * (self.size - 1))
        last = first + abs(ends[1] - ends[0]) + self.reach - 1
        return -(-first // self.every), last // self.every + 1

    @staticmethod
    def placing(label: str, start: int, step: int) -> Window:
        """The dimension of an array whose element `k` goes to place `start + step*k`: a slice's adjoint."""
        if step > 0:
            return Window(label, -start, every=step)
        return Window(label, start, -1, every=-step)

    def overlap(self, label: str, extents: Mapping[str, int]) -> Overlap:
        """The parts that workers need which have a part of one of the two labels, and all of the other."""
        step, other, count = self.stride, self.dilation, self.size
        if label != self.label:
            step, other, count = other, step, extents[self.label]
        far = other * max(count - 1, 0)
        return Overlap(extents[label], self.offset + min(0, far), step, abs(far) + 1, self.every)

    def tap(self, r: int, outs: Range, ins: Range) -> tuple[slice, slice]:
        """Outputs among `outs` whose window's element `r` is among the positions `ins`, and
        these positions; both are counted from where the ranges begin, so that a kernel on parts may
        write `out[ours] += x[theirs]`."""
        start, common = self.offset + self.dilation * r, math.gcd(self.stride, self.every)
        if start % common:
            return slice(0, 0), slice(0, 0)
        start, step, every = start // common, self.stride // common, self.every // common
        ends = every * ins[0] - start, every * (ins[1] - 1) - start
        low, high = ends if step > 0 else (-ends[1], -ends[0])
        first = max(outs[0], -(-low // abs(step)))
        first += (-start * pow(step, -1, every) - first) % every  # where it is a whole position
        count = max(0, (min(outs[1] - 1, high // abs(step)) - first) // every + 1)
        theirs = (start + step * first) // every - ins[0]
        return run_of(first - outs[0], count, every), run_of(theirs, count, step)


def taps(
    windows: Sequence[Window], outs: Sequence[Range], ins: Sequence[Range], rs: Sequence[int] = ()
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """`tap` of each dimension, of the first elements or these."""
    found = [
        w.tap(r, out, own)
        for w, r, out, own in zip(windows, rs or (0,) * len(windows), outs, ins, strict=True)
    ]
    return tuple([ours for ours, _ in found]), tuple([theirs for _, theirs in found])


def run_of(first: int, count: int, step: int) -> slice:
    """The slice of so many elements, which a negative step may end at the first one."""
    if not count:
        return slice(0, 0)
    end = first + step * (count - 1) + (1 if step > 0 else -1)
    return slice(first, None if end < 0 else end, step)


Dim = str | Window | None


@dataclass(frozen=True, slots=True)
class Indices:
    """The labels of the dimensions of an operation's operands and results, what combines what is
    reduced, and where labels may be cut."""

    ins: tuple[tuple[Dim, ...], ...]
    outs: tuple[tuple[str | None, ...], ...]
    reduce: tuple[tuple[str, str], ...] = ()
    chunked: frozenset[str] = frozenset()
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def monoid(self, label: str) -> str | None:
        return dict(self.reduce).get(label)


Rule = Callable[[Specs, Specs, Mapping[str, Any]], Indices]


def opaque(ins: Specs, outs: Specs, p: Mapping[str, Any]) -> Indices:
    """From outside nothing can be cut."""
    return Indices(tuple((None,) * s.ndim for s in ins), tuple((None,) * s.ndim for s in outs))


def aligned(ins: Specs, outs: Specs, p: Mapping[str, Any]) -> Indices:
    """Each output lies as its own operand does; they share no index."""
    labels = [tuple(f"{k}.{d}" for d in range(s.ndim)) for k, s in enumerate(ins)]
    return Indices(tuple(labels), tuple(labels[: len(outs)]))


def pointwise(ins: Sequence[Spec], outs: Sequence[Spec]) -> Indices:
    """`... -> ...` with broadcasting: an operand that is repeated along an index does not carry
    it."""
    shape = outs[0].shape
    labels = tuple(LETTERS[: len(shape)])
    operands = []
    for spec in ins:
        skip = len(shape) - spec.ndim
        operands.append(
            tuple(
                labels[skip + d] if size == shape[skip + d] else None
                for d, size in enumerate(spec.shape)
            )
        )
    return Indices(tuple(operands), (labels,) * len(outs))


def subscripts(text: str) -> tuple[tuple[str, ...], str]:
    """`"ij,jk->ik"` as its operands' labels and the output's."""
    ins, _, out = text.partition("->")
    return tuple(ins.split(",")), out


def product_labels(text: str) -> tuple[str, str, str, str]:
    """Split the labels of an einsum of two operands into batches, rows, columns and the sum."""
    (a, b), out = subscripts(text)
    return (
        "".join(c for c in out if c in a and c in b),
        "".join(c for c in out if c in a and c not in b),
        "".join(c for c in out if c in b and c not in a),
        "".join(c for c in a if c in b and c not in out),
    )


def einsum_indices(text: str, ins: Sequence[Spec]) -> Indices:
    """Read off an einsum text; a dimension of size 1 that stands beside a larger one is
    repeated."""
    operands, out = subscripts(text)
    extents: dict[str, int] = {}
    for labels, spec in zip(operands, ins, strict=True):
        for label, size in zip(labels, spec.shape, strict=True):
            extents[label] = max(size, extents.get(label, size)) if size != 0 else 0
    dims = tuple(
        tuple(
            label if spec.shape[d] == extents[label] and labels.count(label) == 1 else None
            for d, label in enumerate(labels)
        )
        for labels, spec in zip(operands, ins, strict=True)
    )
    twice = {label for labels in operands for label in labels if labels.count(label) > 1}
    carried = {label for ds in dims for label in ds if isinstance(label, str)} - twice
    dims = tuple(tuple(d if d in carried else None for d in ds) for ds in dims)
    outs = tuple(label if label in carried else None for label in out)
    reduced = tuple((label, "sum") for label in sorted(carried - set(out)))
    return Indices(dims, (outs,), reduced)


def windowed(text: str, *, sums: str = "", **monoids: str) -> Rule:
    """The rule of an operation by windows, such as a convolution, a pool or a correlation.

        windowed("... n c [y:r] [x:s], ... o c r s -> ... n o y x", sums="c r s")
        windowed("n c [y:r] [x:s] -> n c y x", max="r s")

    In `[y:r]` output `y` reads the elements `r` of a window; `...` are axes in front that broadcast.
    What the operation takes says the rest, an entry for each window: `strides`, `dilation`, `every`,
    `pads` (how many before and after) or `offsets`, and `sizes` of windows that no operand has."""
    left, _, right = text.partition("->")
    reads, writes = [t.split() for t in left.split(",")], [t.split() for t in right.split(",")]
    free = [c for c in reversed(LETTERS) if c not in text]
    given = {"sum": sums, **monoids}
    reduced = tuple([(c, name) for name, labels in given.items() for c in labels.split()])

    def spread(dims: Sequence[str], spec: Spec) -> list[str]:
        """The text's dimensions with labels for the axes in front."""
        count = spec.ndim - len(dims) + 1
        return [*free[:count][::-1], *dims[1:]] if dims[0] == "..." else [*dims]

    def rule(ins: Specs, outs: Specs, p: Mapping[str, Any]) -> Indices:
        gives = [spread(dims, spec) for dims, spec in zip(writes, outs, strict=True)]
        needs = [spread(dims, spec) for dims, spec in zip(reads, ins, strict=True)]
        extents: dict[str, int] = {}
        for labels, spec in zip((*gives, *needs), (*outs, *ins), strict=True):
            for c, n in zip(labels, spec.shape, strict=True):
                extents.setdefault(c, n)
        made = list[tuple[Dim, ...]]()
        k = 0
        for labels, spec in zip(needs, ins, strict=True):
            dims = list[Dim]()
            for c, n in zip(labels, spec.shape, strict=True):
                if c[0] != "[":
                    dims.append(c if n == extents[c] else None)
                    continue
                label, over = c[1:-1].split(":")
                offset = (
                    p["offsets"][k] if "offsets" in p else -p["pads"][k][0] if "pads" in p else 0
                )
                size = extents[over] if over in extents else p["sizes"][k]
                stride, dilation, every = (
                    p[name][k] if name in p else 1 for name in ("strides", "dilation", "every")
                )
                k += 1
                plain = (offset, size, stride, every) == (0, 1, 1, 1) and n == extents[label]
                window = Window(label, offset, stride, size, over, dilation, every)
                dims.append(label if plain else window)
            made.append(tuple(dims))
        return Indices(tuple(made), tuple(map(tuple, gives)), reduced)

    return rule


def along(axes: Sequence[int], spec: Spec) -> tuple[str | None, ...]:
    """Labels of an operand whose given axes are whole."""
    return tuple(None if d in axes else LETTERS[d] for d in range(spec.ndim))


def reshape_labels(old: Shape, new: Shape) -> Indices:
    """Dimensions that a reshape keeps are plain labels; of a group that it folds, the leading ones
    are chunked."""
    ins: list[str | None] = [None] * len(old)
    outs: list[str | None] = [None] * len(new)
    chunked = set()
    i = j = 0
    while i < len(old) and j < len(new) and 0 not in old:
        i0, j0 = i, j
        left, right = old[i], new[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                if i == len(old):
                    break
                left, i = left * old[i], i + 1
            else:
                if j == len(new):
                    break
                right, j = right * new[j], j + 1
        # leading ones carry nothing
        while i0 < i - 1 and old[i0] == 1:
            i0 += 1
        while j0 < j - 1 and new[j0] == 1:
            j0 += 1
        label = LETTERS[i0]
        ins[i0] = outs[j0] = label
        if old[i0] != new[j0]:
            chunked.add(label)
    return Indices((tuple(ins),), (tuple(outs),), (), frozenset(chunked))
