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

from collections.abc import Sequence
from dataclasses import dataclass

from .spec import Shape, Spec

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
    def reach(self) -> int:
        """From the first element of a window to behind its last one, before `every` thins them."""
        return self.dilation * (self.size - 1) + 1

    def reads(self, begin: int, end: int) -> tuple[int, int]:
        """The range of positions that the outputs `[begin, end)` read, wherever the array ends."""
        if begin >= end:
            return 0, 0
        ends = self.stride * begin, self.stride * (end - 1)
        first, last = self.offset + min(ends), self.offset + max(ends) + self.reach - 1
        return -(-first // self.every), last // self.every + 1


Dim = str | Window | None


@dataclass(frozen=True, slots=True)
class Indices:
    ins: tuple[tuple[Dim, ...], ...]
    outs: tuple[tuple[str | None, ...], ...]
    reduce: tuple[tuple[str, str], ...] = ()
    chunked: frozenset[str] = frozenset()
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def monoid(self, label: str) -> str | None:
        return dict(self.reduce).get(label)


def pointwise(ins: Sequence[Spec], outs: Sequence[Spec]) -> Indices:
    """`... -> ...` with broadcasting: an operand that is repeated along an index does not carry
    it.
    """
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
    """Of an einsum of two operands the labels of batches, rows, columns, and the sum."""
    (a, b), out = subscripts(text)
    return (
        "".join(c for c in out if c in a and c in b),
        "".join(c for c in out if c in a and c not in b),
        "".join(c for c in out if c in b and c not in a),
        "".join(c for c in a if c in b and c not in out),
    )


def einsum_indices(text: str, ins: Sequence[Spec]) -> Indices:
    """Read off an einsum text; a dimension of size 1 that stands beside a larger one is
    repeated.
    """
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


def along(axes: Sequence[int], spec: Spec) -> tuple[str | None, ...]:
    """Labels of an operand whose given axes are whole."""
    return tuple(None if d in axes else LETTERS[d] for d in range(spec.ndim))


def reshape_labels(old: Shape, new: Shape) -> Indices:
    """Dimensions that a reshape keeps are plain labels; of a group that it folds, the leading ones
    are chunked.
    """
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
