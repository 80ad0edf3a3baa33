"""Copies of large arrays, which threads share: what joins and reshapes arrays does little else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import Piece
from ostinato.ops.core.spec import DType, Shape, Spec
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.jit.sequence import Where, offset_kernel
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.flat import SHARE, native_kernel
from ostinato.ops.jit.loops import loops_over, strides_over
from ostinato.ops.jit.random_bits import numbers_in

MIN_THREADED_BYTES = LIMITS.copy_wake
_WORDS: dict[int, DType] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}

Copy = Callable[..., None]


def copying(
    shape: Shape,
    item: int,
    source: Sequence[int],
    target: Sequence[int],
    threads: int,
    share: int = SHARE,
) -> Copy | None:
    """The function of two arrays that lie so, which copies the first one's elements, of so many bytes;
    None for those that no register holds. They stay in the last cache if they are no larger than such a
    part of it."""
    if item == 16:  # complex numbers of doubles
        return copying((*shape, 2), 8, (*source, 8), (*target, 8), threads, share)
    if item not in _WORDS or why_not():
        return None
    return native_kernel(_copied(shape, item), shape, [source, target], threads, share=share)


@lru_cache(256)
def _copied(shape: Shape, item: int) -> Graph:
    builder = Builder([Spec(shape, _WORDS[item])])
    return builder.graph([builder.call("astype", 0, dtype=_WORDS[item])])


def copy_by_rows(
    body: Graph, shape: Shape, arrays: Sequence[Any], threads: int, axes: int
) -> Copy | None:
    """The kernel of a body that reduces the last axes, over which some operand has steps, as slices of pictures
    have: these operands are copied in order first."""
    if not axes or numbers_in(body):  # which say by where they lie which element is which
        return None
    count = len(body.inputs)
    copies, looks = list[tuple[int, Copy, Any]](), list(arrays)
    for k, x in enumerate(arrays[:count]):
        rows = np.broadcast_to(x, (*x.shape[:-axes], *shape[-axes:]))
        if len(loops_over(rows.shape[-axes:], [rows.strides[-axes:]]).extents) == 1:
            continue
        looks[k] = np.empty(rows.shape, rows.dtype)
        copy = copying(rows.shape, rows.itemsize, rows.strides, looks[k].strides, threads)
        if copy is None:
            return None
        copies.append((k, copy, looks[k]))
    kernel = native_kernel(body, shape, strides_over(body, shape, looks, axes), threads, axes)
    if kernel is None:  # a result has steps, too
        return None

    def copy_all(*given: Any) -> None:
        operands = list(given)
        for k, copy, room in copies:
            copy(given[k], room)
            operands[k] = room
        kernel(*operands)

    return copy_all


class Pieces:
    """A function that puts a result together; it knows the kernel of each piece."""

    def __init__(self, parts: Sequence[tuple[Copy, Piece]]) -> None:
        self.parts = parts

    def __call__(self, *arrays: Any) -> None:
        *xs, out = arrays
        for kernel, piece in self.parts:
            if not (piece.is_whole and xs[piece.operand] is out):  # else it is there
                kernel(*piece.given(xs, out[piece.at]))


def copy_of_pieces(
    pieces: Sequence[Piece], arrays: Sequence[Any], threads: int, often: bool = False
) -> Copy | None:
    """The function of operands that lie so and the result, if there is much to copy, or it is done
    `often`, and all of the result is here."""
    *xs, out = arrays
    if out.nbytes < MIN_THREADED_BYTES and not often:
        return None
    if any(xs[p.operand].dtype != out.dtype for p in pieces if p.operand >= 0):
        return None
    parts = []
    for piece in pieces:
        to = out[piece.at]
        if piece.operand < 0:
            kernel = _filling(to, piece.value, threads)
        elif piece.places:
            kernel = _at_places(piece, xs, to, threads)
        else:
            x = xs[piece.operand]
            if x.size != to.size or (x.shape != to.shape and not to.flags.c_contiguous):
                return None
            kernel = _onto(piece, x, to.reshape(x.shape), threads)
        if kernel is None:
            return None
        if to.size:
            parts.append((kernel, piece))
    if len(parts) == 1:
        ((kernel, piece),) = parts
        known = [*range(len(xs)), -1]
        if not piece.at and piece.given(known, -1) == known:  # of all operands, and as they come
            return kernel
    return Pieces(parts)


def _at_places(piece: Piece, xs: Sequence[Any], out: Any, threads: int) -> Copy | None:
    """The function of an array, places along axes, and the result, that lie so."""
    x = xs[piece.operand]
    whole, part = (x, out) if piece.picks else (out, x)
    indices = [xs[k] for k in piece.places]
    if any(i.ndim or i.dtype != np.int64 for i in indices) or not whole.size:
        return None
    keeps = part.ndim == whole.ndim  # else what numbers say has no axis
    extents = [part.shape[a] if keeps else 1 for a in piece.axes]
    cut: list[Any] = [slice(None)] * whole.ndim
    for a, n in zip(piece.axes, extents, strict=True):
        cut[a] = slice(0, n) if keeps else 0
    first = whole[tuple(cut)]
    if first.shape != part.shape:
        return None
    kernel = _onto(piece, *((first, out) if piece.picks else (x, first)), threads)
    where = [
        Where.make(whole.shape[a], n, whole.strides[a], how)
        for a, n, how in zip(piece.axes, extents, piece.bounds, strict=True)
    ]
    return (
        None if kernel is None else offset_kernel(kernel, where, piece.picks, bool(piece.combine))
    )


def _onto(piece: Piece, x: Any, out: Any, threads: int) -> Copy | None:
    """The function of arrays that lie so, which brings one to where it goes in the other."""
    if not piece.combine:
        return copying(x.shape, x.itemsize, x.strides, out.strides, threads)
    if x.dtype.kind not in "iuf":
        return None
    builder = Builder([Spec(x.shape, x.dtype)] * 2)
    body = builder.graph([builder.call(piece.combine, 1, 0)])
    return native_kernel(body, x.shape, [x.strides, out.strides, out.strides], threads)


def _filling(out: Any, value: Any, threads: int) -> Copy | None:
    """The function of an array that lies so, which has this value everywhere from then on."""
    if out.itemsize not in _WORDS or why_not():
        return None
    word = _WORDS[out.itemsize]
    bits = int(np.asarray(value).astype(out.dtype).view(word))
    builder = Builder([])
    number = builder.call("constant", value=bits, dtype=word)
    body = builder.graph(
        [builder.add("astype", [number], {"dtype": word}, [Spec(out.shape, word)])[0]]
    )
    return native_kernel(body, out.shape, [out.strides], threads)
