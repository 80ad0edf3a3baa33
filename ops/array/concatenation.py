"""Arrays joined, rolled, padded and repeated: results that are made in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, ShapeError

from ..core.apply import apply, as_array, unify, unmasked
from ..core.array import Array, another
from ..core.array_methods import Operandish, export, functions
from ..core.index import LETTERS, Indices, Window, taps
from ..core.parameters import AXIS, NUMBER, WIDTHS, check_value, unfit
from ..core.registry import Params, Piece, Place, Specs, op
from ..core.spec import DTypeLike, Shape, Spec, promote
from ..core.user_line import misfit
from .casts import astype
from .elementwise import Out, put_out
from .shape import MOVE, Pairs, axis_of, broadcast_to, expand_dims, listed, reshape, squeeze
from .slicing import slice_axes

__all__ = ["concat", "roll", "stack", "tile", "unstack"]


def _shifts(shift: Any) -> tuple[Any, ...]:
    """Numbers, or arrays of one number where a function is traced."""
    if isinstance(shift, (list, tuple)):
        return tuple([k for s in shift for k in _shifts(s)])
    if isinstance(shift, Array) and shift._is_traced and not shift.shape:
        return (shift,)
    return listed(shift, "roll")


@export
def roll(
    x: Operandish,
    /,
    shift: int | Array | Sequence[int | Array],
    axis: int | Sequence[int] | None = None,
) -> Array:
    """Shifted along axes; what leaves at one end enters at the other. By how much may be found out as
    it runs.

    >>> ost.roll([1, 2, 3], 1)
    Array([3, 1, 2], dtype=int64)
    """
    given = x = as_array(x)
    shifts = _shifts(shift)
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), sum(shifts), axis=0), x.shape)
    axes = listed(axis, "roll")
    if len(shifts) == 1 or len(axes) == 1:
        shifts, axes = shifts * len(axes), axes * len(shifts)
    if len(shifts) != len(axes):
        got = f"shift {shift}, axis {axis}"
        raise misfit(ArgumentError, "roll", got=got, needed="one shift per axis")
    for a, s in zip(axes, shifts, strict=True):
        d = axis_of(a, x.ndim, "roll")
        n = x.shape[d]
        by = s % n if n else 0
        if isinstance(by, Array):
            key = (*(slice(None),) * d, slice(n - by, n - by + n))
            x = concat([x, x], axis=d)[key]
        elif by:
            x = concat(
                [slice_axes(x, {d: (n - by, by, 1)}), slice_axes(x, {d: (0, n - by, 1)})], axis=d
            )
    return another(x) if x is given else x


# -- joining -------------------------------------------------------------------------------
def _concat_rule(*xs: Spec, axis: int) -> Spec:
    first = xs[0]
    for x in xs[1:]:
        if x.ndim != first.ndim or any(
            m != n for d, (m, n) in enumerate(zip(x.shape, first.shape, strict=True)) if d != axis
        ):
            raise unfit("concat", (first, x), f"shapes that differ in axis {axis} only")
    shape = list(first.shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    return Spec(tuple(shape), promote(*(x.dtype for x in xs)))


def _offsets(shapes: Sequence[Shape], axis: int) -> list[int]:
    found = [0]
    for shape in shapes:
        found.append(found[-1] + shape[axis])
    return found


def _concat_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    axis = p["axis"]
    offsets = _offsets([s.shape for s in ins], axis)
    return Indices(
        tuple(
            tuple(
                Window(LETTERS[d], offset=-offset) if d == axis else LETTERS[d]
                for d in range(outs[0].ndim)
            )
            for offset in offsets[:-1]
        ),
        (tuple(LETTERS[: outs[0].ndim]),),
    )


def _paste(out: Any, x: Any, at: Place, operand: int, axis: int, offset: int) -> None:
    """Copy an operand to where it lies in the output, as far as both are here."""
    (olo, ohi), (ilo, ihi) = at.outs[0][axis], at.ins[operand][axis]
    lo, hi = max(olo, ilo + offset), min(ohi, ihi + offset)
    if lo < hi:
        before = (slice(None),) * axis
        out[(*before, slice(lo - olo, hi - olo))] = x[
            (*before, slice(lo - offset - ilo, hi - offset - ilo))
        ]


def _concat_kernel(xp: Any, out: Any, *xs: Any, axis: int, at: Place) -> None:
    for k, (x, offset) in enumerate(zip(xs, _offsets(at.in_shapes, axis), strict=False)):
        _paste(out, x, at, k, axis, offset)


def _concat_pieces(ins: Sequence[Shape], *, axis: int) -> list[Piece]:
    begins = _offsets(ins, axis)
    ends = [begin + shape[axis] for begin, shape in zip(begins, ins, strict=False)]
    before = (slice(None),) * axis
    return [
        Piece(k, (*before, slice(begin, end)))
        for k, (begin, end) in enumerate(zip(begins, ends, strict=False))
    ]


def _concat_grad(g: Array, y: Array, *xs: Array, axis: int) -> Sequence[Array | None]:
    offsets = _offsets([x.shape for x in xs], axis)
    return [
        slice_axes(g, {axis: (offset, x.shape[axis], 1)})
        for x, offset in zip(xs, offsets, strict=False)
    ]


op(
    "concat",
    infer=_concat_rule,
    takes={"axis": AXIS},
    indices=_concat_indices,
    kernel=_concat_kernel,
    pieces=_concat_pieces,
    grad=_concat_grad,
    cost=MOVE,
    placed=True,
    concatenates=True,
)


@export
def concat(
    arrays: Sequence[Operandish],
    /,
    axis: int | None = 0,
    out: Out = None,
    *,
    dtype: DTypeLike | None = None,
    casting: str = "same_kind",
) -> Array:
    """One after the other along an axis; flattened first for None. `casting` is there since NumPy has it.

    >>> ost.concat([[1, 2], [3]])
    Array([1, 2, 3], dtype=int64)
    """
    if not len(arrays):
        raise misfit(ArgumentError, "concat", got="no arrays", needed="at least one")
    xs = unify(*arrays)
    if axis is None:
        xs, axis = [reshape(x, (-1,)) for x in xs], 0
    found = apply("concat", *xs, axis=axis_of(axis, xs[0].ndim, "concat"))
    return put_out(found if dtype is None else astype(found, dtype), out, "concat")


@export
def stack(
    arrays: Sequence[Operandish],
    /,
    axis: int = 0,
    out: Out = None,
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    """Side by side along a new axis.

    >>> ost.stack([[1, 2], [3, 4]], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int64)
    """
    xs = unify(*arrays) if len(arrays) else []
    if len({x.shape for x in xs}) != 1:
        got = " and ".join(str(x.shape) for x in xs) or "no arrays"
        raise misfit(ShapeError, "stack", got=got, needed="arrays of one shape")
    at = axis_of(axis, xs[0].ndim + 1, "stack")
    return concat([expand_dims(x, axis=at) for x in xs], at, out, dtype=dtype)


@export
def unstack(x: Operandish, /, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis, without it.

    >>> [row.tolist() for row in ost.unstack(ost.asarray([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    x = as_array(x)
    d = axis_of(axis, x.ndim, "unstack")
    return tuple(squeeze(slice_axes(x, {d: (k, 1, 1)}), d) for k in range(x.shape[d]))


# -- padding and repetition ----------------------------------------------------------------
def _pad_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    dims = tuple(
        Window(LETTERS[d], offset=-before) if before or after else LETTERS[d]
        for d, (before, after) in enumerate(p["widths"])
    )
    return Indices((dims,), (tuple(LETTERS[: outs[0].ndim]),))


def _pad_kernel(xp: Any, out: Any, x: Any, *, widths: Pairs, value: Any, at: Place) -> None:
    out[...] = value
    target, source = taps([Window("", -before) for before, _ in widths], at.outs[0], at.ins[0])
    out[target] = x[source]


def _pad_pieces(ins: Sequence[Shape], *, widths: Pairs, value: Any) -> list[Piece]:
    (shape,) = ins
    inside = tuple(slice(b, b + n) for n, (b, _) in zip(shape, widths, strict=True))
    return [Piece(-1, value=value), Piece(0, inside)]


def _pad_rule(x: Spec, *, widths: Pairs, value: Any) -> Spec:
    check_value("pad", value, x.dtype)
    return Spec(tuple(n + b + a for n, (b, a) in zip(x.shape, widths, strict=True)), x.dtype)


op(
    "pad",
    infer=_pad_rule,
    takes={"widths": WIDTHS, "value": NUMBER},
    indices=_pad_indices,
    kernel=_pad_kernel,
    pieces=_pad_pieces,
    grad=lambda g, y, x, *, widths, value: (
        slice_axes(g, {d: (before, x.shape[d], 1) for d, (before, _) in enumerate(widths)}),
    ),
    cost=MOVE,
    placed=True,
)


def add_zeros(x: Array, width: Any) -> Array:
    """Zeros around: so many before and behind, along each axis or along all."""
    pairs = np.broadcast_to(np.asarray(width), (x.ndim, 2)).tolist()
    return apply("pad", x, widths=tuple((int(b), int(a)) for b, a in pairs), value=0)


@export
def tile(x: Operandish, /, reps: int | Sequence[int]) -> Array:
    """The whole array again and again along its axes.

    >>> ost.tile([1, 2], 2)
    Array([1, 2, 1, 2], dtype=int64)
    """
    x, given = as_array(x), listed(reps, "tile")
    counts = (1,) * (x.ndim - len(given)) + given
    if min(counts, default=0) < 0:
        raise misfit(ArgumentError, "tile", got=f"{given}", needed="numbers of 0 or more")
    x = reshape(x, (1,) * (len(counts) - x.ndim) + x.shape)
    spread = expand_dims(x, axis=tuple(range(0, 2 * x.ndim, 2)))
    wide = tuple(k for pair in zip(counts, x.shape, strict=True) for k in pair)
    return reshape(
        broadcast_to(spread, wide), [c * n for c, n in zip(counts, x.shape, strict=True)]
    )


def repeat_elements(x: Operandish, repeats: Any, axis: int | None) -> Array:
    """Each element again and again; as many times as `repeats` says, for all or one by one."""
    x = as_array(x)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    d = axis_of(axis, x.ndim, "repeat")
    unmasked(repeats, "repeat")
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.shape not in ((), (1,), (x.shape[d],)):
        got = f"repeats of shape {counts.shape} and dtype {counts.dtype}"
        needed = f"one whole number, or {x.shape[d]} of them"
        raise misfit(ShapeError, "repeat", got=got, needed=needed)
    if counts.size and counts.min() < 0:
        raise misfit(ArgumentError, "repeat", got=f"{counts.min()} times", needed="0 or more")
    if counts.size != 1:
        return functions["take"](x, np.repeat(np.arange(x.shape[d]), counts), axis=d)
    repeats = int(counts.reshape(())[()])
    spread = expand_dims(x, axis=d + 1)
    wide = broadcast_to(spread, (*x.shape[: d + 1], repeats, *x.shape[d + 1 :]))
    return reshape(wide, (*x.shape[:d], x.shape[d] * repeats, *x.shape[d + 1 :]))
