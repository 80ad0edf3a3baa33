"""Copies of large arrays, which threads share: what joins and reshapes arrays does little else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .graph import Builder
from .native import native_kernel, why_not
from .spec import DType, Shape, Spec

LEAST = 1 << 20  # bytes that are worth threads
_WORDS: dict[int, DType] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}

Copy = Callable[..., None]


def copying(
    shape: Shape, item: int, source: Sequence[int], target: Sequence[int], threads: int
) -> Copy | None:
    """The function of two arrays that lie so, which copies the first one's elements, of so many bytes;
    None for those that no register holds."""
    if item not in _WORDS or why_not():
        return None
    builder = Builder([Spec(shape, _WORDS[item])])
    body = builder.graph([builder.call("astype", 0, dtype=_WORDS[item])])
    return native_kernel(body, shape, [source, target], threads)


class Piece(NamedTuple):
    """A part of a result, and the operand that is there; or the value that is everywhere in it."""

    operand: int  # -1 for none
    at: tuple[slice, ...] = ()
    value: Any = 0

    def of(self, operands: Sequence[Any]) -> list[Any]:
        """What of these it is made of."""
        return [operands[self.operand]] if self.operand >= 0 else []


class Pieces:
    """A function that puts a result together; it knows the kernel of each piece."""

    def __init__(self, parts: Sequence[tuple[Copy, Piece]]) -> None:
        self.parts = parts

    def __call__(self, *arrays: Any) -> None:
        *xs, out = arrays
        for kernel, piece in self.parts:
            kernel(*piece.of(xs), out[piece.at])


def in_pieces(
    pieces: Sequence[Piece], arrays: Sequence[Any], threads: int, often: bool = False
) -> Copy | None:
    """The function of operands that lie so and the result, if there is much to copy, or it is done
    `often`, and all of the result is here."""
    *xs, out = arrays
    if (out.nbytes < LEAST and not often) or any(x.dtype != out.dtype for x in xs):
        return None
    parts = []
    for piece in pieces:
        to = out[piece.at]
        if piece.operand < 0:
            kernel = _filling(to, piece.value, threads)
        else:
            x = xs[piece.operand]
            if x.size != to.size or (x.shape != to.shape and not to.flags.c_contiguous):
                return None
            kernel = copying(x.shape, x.itemsize, x.strides, to.reshape(x.shape).strides, threads)
        if kernel is None:
            return None
        if to.size:
            parts.append((kernel, piece))
    whole = len(parts) == 1 and not parts[0][1].at
    return parts[0][0] if whole else Pieces(parts)


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
