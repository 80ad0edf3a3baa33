"""Operations that only move elements: views where they can be, copies where they must.

A basic slice is a `Window` on each axis: for the outputs `[a, b)` it needs the inputs `[start +
step*a, ...)`. Concatenation, padding and updates are the same thing seen from the other side."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeGuard

import numpy as np

from ostinato.errors import ArgumentError, BoundsError, LayoutError, OstinatoError, ShapeError

from .casts import astype, number_of
from .comparisons import greater_equal
from .core.array import (
    Array,
    Operandish,
    Split,
    another,
    apply,
    as_array,
    export,
    functions,
    unify,
    unmasked,
)
from .core.index import LETTERS, Indices, Window, along, reshape_labels, taps
from .core.layout import Box
from .core.parameters import (
    AXES,
    AXIS,
    MESH,
    NEW_AXES,
    NUMBER,
    ORDER,
    SHAPE,
    SIZES,
    SPLIT,
    STARTS,
    STEPS,
    WIDTHS,
    check_value,
    one_of,
    unfit,
)
from .core.registry import ANY, Params, Piece, Place, Specs, op, stream_cost
from .core.spec import DType, DTypeLike, Shape, Spec, float32, int64, is_float, promote
from .core.user_line import misfit
from .elementwise import Out, broadcast, put_out, where

__all__ = [
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "concat",
    "copy",
    "expand_dims",
    "flip",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "reshape",
    "resplit",
    "roll",
    "squeeze",
    "stack",
    "stop_gradient",
    "swapaxes",
    "tile",
    "tril",
    "triu",
    "unstack",
]

Pairs = tuple[tuple[int, int], ...]
MOVE = stream_cost(0)


def zero_of(x: Array) -> Array:
    """Zeros like an array, whatever is in it: the cotangent of what contributes nothing."""
    return apply("full", shape=x.shape, value=0, dtype=x.dtype)


def extent(box: Box) -> Shape:
    return tuple(hi - lo for lo, hi in box)


def axis_of(axis: int, ndim: int, name: str) -> int:
    """An axis counted from the front."""
    found = whole_number(axis, name)
    if not -ndim <= found < ndim:
        raise misfit(
            BoundsError,
            name,
            got=f"axis {axis} of an array with {ndim} axes",
            needed=f"an axis from {-ndim} to {ndim - 1}" if ndim else "at least one axis",
        )
    return found % ndim


def whole_number(value: Any, name: str, least: int | None = None) -> int:
    """As Python's own int, or an error that says for whom it should have been one."""
    found = None
    try:
        found = int(operator.index(value))  # True is 1
    except OstinatoError:  # of an Array, which says more
        raise
    except TypeError:
        pass
    if found is None or (least is not None and found < least):
        limit = "" if least is None else f" of {least} or more"
        raise misfit(ArgumentError, name, got=f"{value!r:.60}", needed=f"a whole number{limit}")
    return found


def is_count(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number, and no array: also one among a compiled function's arguments."""
    return isinstance(value, SupportsIndex) and getattr(value, "ndim", 0) == 0


def listed(value: Any, name: str) -> tuple[int, ...]:
    """One whole number, or several."""
    one = isinstance(value, str) or not hasattr(value, "__iter__") or not getattr(value, "ndim", 1)
    return tuple(whole_number(n, name) for n in ((value,) if one else value))


def diagonal_number(k: Any, shape: Shape, name: str) -> Any:
    """Which diagonal of the last two axes is meant: those beyond the matrix are as the nearest one there."""
    if isinstance(k, Array):  # a number that is not known yet
        return k
    return min(max(whole_number(k, name), -shape[-2]), shape[-1])


def axes_of(axis: int | Sequence[int] | None, ndim: int, name: str) -> tuple[int, ...]:
    """Axes counted from the front, in order; all of them for None."""
    if axis is None:
        return tuple(range(ndim))
    found = tuple(axis_of(a, ndim, name) for a in listed(axis, name))
    if len(set(found)) < len(found):
        raise misfit(ArgumentError, name, got=f"axis {axis}", needed="each axis once")
    return tuple(sorted(found))


def _copy_kernel(xp: Any, out: Any, x: Any, **_: Any) -> None:
    xp.copyto(out, x)


def _one_piece(ins: Sequence[Shape], **_: Any) -> list[Piece]:
    return [Piece(0)]


# -- identities ----------------------------------------------------------------------------
def _same(x: Spec) -> Spec:
    return Spec(x.shape, x.dtype)


def _resplit_rule(x: Spec, *, split: Split, mesh: tuple[int, ...] | None) -> Spec:
    return Spec(x.shape, x.dtype)


op(
    "copy",
    infer=_same,
    kernel=_copy_kernel,
    pieces=_one_piece,
    grad=lambda g, y, x: (g,),
    cost=MOVE,
    overwrite=ANY,
)
op(
    "resplit",
    infer=_resplit_rule,
    takes={"split": SPLIT, "mesh": MESH},
    kernel=_copy_kernel,
    pieces=_one_piece,
    grad=lambda g, y, x, **_: (g,),
    cost=MOVE,
)
op(
    "stop_gradient",
    infer=_same,
    kernel=_copy_kernel,
    pieces=_one_piece,
    grad=lambda g, y, x: (None,),
    cost=MOVE,
)


@export
def resplit(x: Operandish, /, split: Split = None, *, mesh: tuple[int, ...] | None = None) -> Array:
    """The same values in another layout: split along a dimension (or one per mesh axis); None for
    replicas.

    >>> ost.resplit(ost.arange(4), 0)
    Array([0, 1, 2, 3], dtype=int64)
    """
    x = as_array(x)
    return apply("resplit", x, split=split_of(split, x.ndim), mesh=mesh)


def split_of(split: Any, ndim: int) -> int | tuple[int | None, ...] | None:
    """A user's `split=` with axes counted from the first."""
    given = split if isinstance(split, (tuple, list)) else (split,)
    found = list[int | None]()
    for s in given:
        whole = isinstance(s, (int, np.integer)) and not isinstance(s, bool)
        if s is not None and not (whole and -ndim <= s < ndim):
            raise misfit(
                LayoutError,
                f"split={split!r}",
                got=f"an array with {ndim} axes",
                needed=f"None, an axis below {ndim}, or a tuple of them, one per mesh axis",
            )
        found.append(s if s is None else int(s) % ndim)
    return tuple(found) if isinstance(split, (tuple, list)) else found[0]


def counts_columns(order: str | None, name: str) -> bool:
    """Whether elements are counted with the first index running fastest, as Fortran does. "A" and "K"
    are as they lie, which nobody sees of our arrays: as C counts."""
    if order not in ("C", "F", "A", "K", None):
        needed = "'C', 'F', 'A' or 'K'"
        raise misfit(ArgumentError, name, got=f"order={order!r}", needed=needed)
    return order == "F"


@export
def copy(x: Operandish, /, order: str = "K") -> Array:
    """The same values in memory of their own, which lies as the planner likes, whatever the order.

    >>> ost.copy(ost.arange(3))
    Array([0, 1, 2], dtype=int64)
    """
    counts_columns(order, "copy")
    return apply("copy", as_array(x))


@export
def stop_gradient(x: Operandish, /) -> Array:
    """The same values, as a constant for gradients.

    >>> ost.grad(lambda x: x * ost.stop_gradient(x))(3.0)
    Array(3., dtype=float64)
    """
    return apply("stop_gradient", as_array(x))


# -- reshape -------------------------------------------------------------------------------
def _reshape_view(xp: Any, x: Any, at: Place, **_: Any) -> Any:
    return x.reshape(extent(at.outs[0]))


def _reshape_rule(x: Spec, *, shape: Shape) -> Spec:
    y = Spec(shape, x.dtype)
    if y.size != x.size:
        raise unfit("reshape", (x, y), f"a shape of {x.size} elements")
    return y


op(
    "reshape",
    infer=_reshape_rule,
    takes={"shape": SHAPE},
    indices=lambda ins, outs, p: reshape_labels(ins[0].shape, outs[0].shape),
    view=_reshape_view,
    kernel=lambda xp, out, x, *, shape: xp.copyto(out, x.reshape(out.shape)),
    pieces=_one_piece,
    grad=lambda g, y, x, *, shape: (reshape(g, x.shape),),
    cost=MOVE,
    keeps_order=True,
    same_elements=True,
)


@export
def reshape(
    x: Operandish, /, shape: int | Sequence[int], order: str = "C", *, copy: bool | None = None
) -> Array:
    """The same elements in another shape; one -1 stands for what is left. `order="F"` counts them with
    the first index running fastest.

    >>> ost.reshape(ost.arange(4), (2, 2))
    Array([[0, 1],
           [2, 3]], dtype=int64)
    """
    x, new = as_array(x), listed(shape, "reshape")
    known = math.prod(n for n in new if n != -1)
    if new.count(-1) == 1 and known and x.size % known == 0:
        new = tuple(x.size // known if n == -1 else n for n in new)
    if min(new, default=0) < 0 or math.prod(new) != x.size:
        raise misfit(
            ShapeError,
            "reshape",
            got=f"{x.shape} to {new}",
            needed=f"a shape of {x.size} elements",
            do="use -1 for one axis to have it computed",
        )
    if new == x.shape:
        found = x
    elif counts_columns(order, "reshape"):
        found = permute_dims(apply("reshape", permute_dims(x), shape=new[::-1]))
    else:
        found = apply("reshape", x, shape=new)
    return apply("copy", found) if copy else found


def _expand_rule(x: Spec, *, axes: tuple[int, ...]) -> Spec:
    shape = list(x.shape)
    for a in axes:
        shape.insert(a, 1)
    return Spec(tuple(shape), x.dtype)


def _kept(outs: Specs, axes: tuple[int, ...]) -> tuple[str | None, ...]:
    return tuple(None if d in axes else LETTERS[d] for d in range(outs[0].ndim))


def _expand_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = _kept(outs, p["axes"])
    return Indices((tuple(x for x in labels if x is not None),), (labels,))


op(
    "expand_dims",
    infer=_expand_rule,
    takes={"axes": NEW_AXES},
    indices=_expand_indices,
    view=_reshape_view,
    grad=lambda g, y, x, *, axes: (squeeze(g, axes),),
    cost=MOVE,
    keeps_order=True,
    same_elements=True,
)


@export
def expand_dims(x: Operandish, /, axis: int | Sequence[int] = 0) -> Array:
    """New axes of size 1 at these places of the result.

    >>> ost.expand_dims(ost.arange(2), axis=0)
    Array([[0, 1]], dtype=int64)
    """
    x = as_array(x)
    axes = axes_of(axis, x.ndim + len(listed(axis, "expand_dims")), "expand_dims")
    return apply("expand_dims", x, axes=axes) if axes else x


def _squeeze_rule(x: Spec, *, axes: tuple[int, ...]) -> Spec:
    if any(x.shape[a] != 1 for a in axes):
        raise misfit(
            ShapeError,
            "squeeze",
            got=f"axis {', '.join(map(str, axes))} of shape {x.shape}",
            needed="axes of size 1",
        )
    return Spec(tuple(n for d, n in enumerate(x.shape) if d not in axes), x.dtype)


def _squeeze_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = along(p["axes"], ins[0])
    return Indices((labels,), (tuple(x for x in labels if x is not None),))


op(
    "squeeze",
    infer=_squeeze_rule,
    takes={"axes": AXES},
    indices=_squeeze_indices,
    view=_reshape_view,
    grad=lambda g, y, x, *, axes: (expand_dims(g, axis=axes),),
    cost=MOVE,
    keeps_order=True,
    same_elements=True,
)


@export
def squeeze(x: Operandish, /, axis: int | Sequence[int] | None = None) -> Array:
    """Without these axes, each of size 1: all of them, if none is said.

    >>> ost.squeeze([[1, 2]], axis=0)
    Array([1, 2], dtype=int64)
    """
    x = as_array(x)
    ones = tuple(d for d, n in enumerate(x.shape) if n == 1)
    axes = ones if axis is None else axes_of(axis, x.ndim, "squeeze")
    return apply("squeeze", x, axes=axes) if axes else x


def _permute_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    return Indices((tuple(LETTERS[: ins[0].ndim]),), (tuple(LETTERS[a] for a in p["axes"]),))


op(
    "permute_dims",
    infer=lambda x, *, axes: Spec(tuple(x.shape[a] for a in axes), x.dtype),
    takes={"axes": ORDER},
    indices=_permute_indices,
    view=lambda xp, x, at, *, axes: x.transpose(axes),
    grad=lambda g, y, x, *, axes: (permute_dims(g, tuple(np.argsort(axes).tolist())),),
    cost=MOVE,
    same_elements=True,
)


@export
def permute_dims(x: Operandish, /, axes: Sequence[int] | None = None) -> Array:
    """The axes in this order: turned round, if none is said.

    >>> ost.permute_dims(ost.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = as_array(x)
    axes = range(x.ndim)[::-1] if axes is None else axes
    order = tuple(axis_of(a, x.ndim, "permute_dims") for a in axes)
    if sorted(order) != list(range(x.ndim)):
        raise misfit(
            ArgumentError,
            "permute_dims",
            got=f"axes {tuple(axes)}",
            needed=f"each of 0 to {x.ndim - 1} once",
        )
    return x if order == tuple(range(x.ndim)) else apply("permute_dims", x, axes=order)


@export
def matrix_transpose(x: Operandish, /) -> Array:
    """The last two axes swapped.

    >>> ost.matrix_transpose([[1, 2], [3, 4]])
    Array([[1, 3],
           [2, 4]], dtype=int64)
    """
    x = as_array(x)
    if x.ndim < 2:
        raise misfit(
            ShapeError, "matrix_transpose", got=f"shape {x.shape}", needed="two axes or more"
        )
    return swapaxes(x, -1, -2)


@export
def moveaxis(
    x: Operandish, source: int | Sequence[int], destination: int | Sequence[int], /
) -> Array:
    """Axes at new places, the others in order.

    >>> ost.moveaxis(ost.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_array(x)
    sources = [axis_of(a, x.ndim, "moveaxis") for a in listed(source, "moveaxis")]
    targets = [axis_of(a, x.ndim, "moveaxis") for a in listed(destination, "moveaxis")]
    if (
        len(sources) != len(targets)
        or len(set(sources)) < len(sources)
        or len(set(targets)) < len(targets)
    ):
        raise misfit(
            ArgumentError,
            "moveaxis",
            got=f"{source} to {destination}",
            needed="as many places as axes, each once",
        )
    rest = iter(d for d in range(x.ndim) if d not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return permute_dims(x, [placed[d] if d in placed else next(rest) for d in range(x.ndim)])


@export
def swapaxes(x: Operandish, /, axis1: int, axis2: int) -> Array:
    """Two axes swapped.

    >>> ost.swapaxes(ost.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = as_array(x)
    order = list(range(x.ndim))
    a, b = (axis_of(d, x.ndim, "swapaxes") for d in (axis1, axis2))
    order[a], order[b] = order[b], order[a]
    return permute_dims(x, order)


# -- broadcasting --------------------------------------------------------------------------
def _broadcast_grad(g: Array, y: Array, x: Array, *, shape: Shape) -> Sequence[Array | None]:
    return (sum_to(g, x.shape),)


def _broadcast_rule(x: Spec, *, shape: Shape) -> Spec:
    if broadcast("broadcast_to", x.shape, shape) != shape:
        raise misfit(
            ShapeError,
            "broadcast_to",
            got=f"{x.shape} to {shape}",
            needed="a shape that it broadcasts to",
        )
    return Spec(shape, x.dtype)


op(
    "broadcast_to",
    infer=_broadcast_rule,
    takes={"shape": SHAPE},
    view=lambda xp, x, at, *, shape: xp.broadcast_to(x, extent(at.outs[0])),
    grad=_broadcast_grad,
    cost=MOVE,
    repeats=True,
)


@export
def broadcast_to(x: Operandish, /, shape: Sequence[int]) -> Array:
    """Repeated along axes of size 1, without a copy.

    >>> ost.broadcast_to([1, 2], (2, 2))
    Array([[1, 2],
           [1, 2]], dtype=int64)
    """
    x = as_array(x)
    if shape.__class__ is tuple and x.shape == shape:
        return x
    new = listed(shape, "broadcast_to")
    return x if x.shape == new else apply("broadcast_to", x, shape=new)


@export
def broadcast_arrays(*arrays: Operandish) -> list[Array]:
    """All in their common shape.

    >>> ost.broadcast_arrays([1, 2], [[1], [2]])[1]
    Array([[1, 1],
           [2, 2]], dtype=int64)
    """
    xs = [as_array(x) for x in arrays]
    shape = broadcast("broadcast_arrays", *(x.shape for x in xs))
    return [broadcast_to(x, shape) for x in xs]


@export
def broadcast_shapes(*shapes: int | Shape) -> Shape:
    """The common shape.

    >>> ost.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    return broadcast(
        "broadcast_shapes", *((s,) if isinstance(s, int) else tuple(s) for s in shapes)
    )


def accumulator(dtype: DType) -> DType:
    """What sums and products of a dtype are accumulated in: halves in float32."""
    return float32 if dtype.itemsize == 2 and is_float(dtype) else dtype


def add_up(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum over axes, in the dtype that the elements have."""
    return astype(apply("sum", x, axes=axes, dtype=accumulator(x.dtype)), x.dtype)


def sum_to(x: Array, shape: Shape) -> Array:
    """The sum over the axes along which `shape` was repeated."""
    if x.shape == shape:
        return x
    skip = x.ndim - len(shape)
    axes = tuple(d for d in range(x.ndim) if d < skip or (shape[d - skip] == 1 and x.shape[d] != 1))
    return reshape(add_up(x, axes) if axes else x, shape)


# -- slices --------------------------------------------------------------------------------
def _slice_rule(x: Spec, *, starts: Shape, sizes: Shape, steps: Shape) -> Spec:
    _inside("slice", x, starts, sizes, steps)
    return Spec(sizes, x.dtype)


def _inside(name: str, x: Spec, starts: Shape, sizes: Shape, steps: Shape) -> None:
    for start, size, step, n in zip(starts, sizes, steps, x.shape, strict=True):
        last = start + step * (size - 1)
        if step == 0 or size < 0 or (size > 0 and not (0 <= start < n and 0 <= last < n)):
            raise misfit(
                BoundsError,
                name,
                got=f"{size} elements from {start} on in steps of {step}",
                needed=f"elements of an axis with {n}",
            )


def _slice_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    dims = tuple(
        LETTERS[d]
        if (start, size, step) == (0, n, 1)
        else Window(LETTERS[d], offset=start, stride=step)
        for d, (start, size, step, n) in enumerate(
            zip(p["starts"], p["sizes"], p["steps"], ins[0].shape, strict=True)
        )
    )
    return Indices((dims,), (tuple(LETTERS[: outs[0].ndim]),))


def _slice_view(xp: Any, x: Any, at: Place, *, starts: Shape, sizes: Shape, steps: Shape) -> Any:
    windows = [Window("", start, step) for start, step in zip(starts, steps, strict=True)]
    return x[taps(windows, at.outs[0], at.ins[0])[1]]


def _slice_grad(
    g: Array, y: Array, x: Array, *, starts: Shape, sizes: Shape, steps: Shape
) -> Sequence[Array | None]:
    zeros = apply("full", shape=x.shape, value=0, dtype=g.dtype)
    return (apply("update_slice", zeros, g, starts=starts, steps=steps, mode="set"),)


op(
    "slice",
    infer=_slice_rule,
    takes={"starts": STARTS, "sizes": SIZES, "steps": STEPS},
    indices=_slice_indices,
    view=_slice_view,
    grad=_slice_grad,
    cost=MOVE,
    selects="slices",
)


def slice_axes(x: Array, parts: dict[int, tuple[int, int, int]]) -> Array:
    """Slices `axis: (start, size, step)`, each inside its axis."""
    full = [(0, n, 1) for n in x.shape]
    for axis, part in parts.items():
        full[axis] = part
    return sliced(x, full)


def sliced(x: Array, parts: Sequence[tuple[int, int, int]]) -> Array:
    """These parts (start, size, step) of its axes, each inside its axis."""
    if all(p == (0, n, 1) for p, n in zip(parts, x.shape, strict=True)):
        return x
    starts, sizes, steps = zip(*parts, strict=True)
    return apply("slice", x, starts=starts, sizes=sizes, steps=steps)


@export
def flip(x: Operandish, /, axis: int | Sequence[int] | None = None) -> Array:
    """Backwards along axes; all of them for None.

    >>> ost.flip([1, 2, 3])
    Array([3, 2, 1], dtype=int64)
    """
    x = as_array(x)
    axes = axes_of(axis, x.ndim, "flip")
    return slice_axes(x, {a: (x.shape[a] - 1, x.shape[a], -1) for a in axes if x.shape[a] > 1})


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
        raise misfit(
            ArgumentError, "roll", got=f"shift {shift}, axis {axis}", needed="one shift per axis"
        )
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
        raise misfit(
            ShapeError,
            "stack",
            got=" and ".join(str(x.shape) for x in xs) or "no arrays",
            needed="arrays of one shape",
        )
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


def _pad_grad(g: Array, y: Array, x: Array, *, widths: Pairs, value: Any) -> Sequence[Array | None]:
    return (slice_axes(g, {d: (before, x.shape[d], 1) for d, (before, _) in enumerate(widths)}),)


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
    grad=_pad_grad,
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
        raise misfit(
            ShapeError,
            "repeat",
            got=f"repeats of shape {counts.shape} and dtype {counts.dtype}",
            needed=f"one whole number, or {x.shape[d]} of them",
        )
    if counts.size and counts.min() < 0:
        raise misfit(ArgumentError, "repeat", got=f"{counts.min()} times", needed="0 or more")
    if counts.size != 1:
        return take(x, np.repeat(np.arange(x.shape[d]), counts), axis=d)
    repeats = int(counts.reshape(())[()])
    spread = expand_dims(x, axis=d + 1)
    wide = broadcast_to(spread, (*x.shape[: d + 1], repeats, *x.shape[d + 1 :]))
    return reshape(wide, (*x.shape[:d], x.shape[d] * repeats, *x.shape[d + 1 :]))


def take(x: Array, indices: Any, *, axis: int) -> Array:
    """By name, since the module of indexing builds on this one."""
    return functions["take"](x, indices, axis=axis)


# -- updates -------------------------------------------------------------------------------
MODES = ("set", "add", "multiply", "min", "max")
COMBINES = {"add": "add", "multiply": "multiply", "min": "minimum", "max": "maximum"}


def _update_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    dims: list[str | Window] = []
    for d, (start, step, n, size) in enumerate(
        zip(p["starts"], p["steps"], ins[0].shape, ins[1].shape, strict=True)
    ):
        plain = (start, size, step) == (0, n, 1)
        dims.append(LETTERS[d] if plain else Window.placing(LETTERS[d], start, step))
    labels = tuple(LETTERS[: ins[0].ndim])
    return Indices((labels, tuple(dims)), (labels,))


def update_box(
    xp: Any, out: Any, x: Any, v: Any, *, starts: Shape, steps: Shape, mode: str, at: Place
) -> None:
    if out is not x:
        xp.copyto(out, x)
    windows = [Window.placing("", *places) for places in zip(starts, steps, strict=True)]
    target, source = taps(windows, at.outs[0], at.ins[1])
    place, values = out[target], v[source]
    if mode == "set":
        xp.copyto(place, values, casting="unsafe")
    else:
        getattr(xp, COMBINES[mode])(place, values, out=place, casting="unsafe")


def _update_pieces(ins: Sequence[Shape], *, starts: Shape, steps: Shape, mode: str) -> list[Piece]:
    ends = [a + step * n for a, step, n in zip(starts, steps, ins[1], strict=True)]
    at = [slice(a, z if z >= 0 else None, s) for a, z, s in zip(starts, ends, steps, strict=True)]
    return [Piece(0), Piece(1, tuple(at), combine=COMBINES.get(mode, ""))]


def _update_grad(
    g: Array, y: Array, x: Array, v: Array, *, starts: Shape, steps: Shape, mode: str
) -> Sequence[Array | None]:
    parts = {d: (starts[d], v.shape[d], steps[d]) for d in range(v.ndim)}

    def put(values: Array) -> Array:
        return apply("update_slice", g, values, starts=starts, steps=steps, mode="set")

    return grad_of_update(mode, g, y, x, v, lambda of: slice_axes(of, parts), put)


def grad_of_update(
    mode: str,
    g: Array,
    y: Array,
    x: Array,
    v: Array,
    part: Callable[[Array], Array],
    put: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """To an array and values, of which each element went to a place of its own: `part` is what lies there,
    `put` the gradient of the result with something there."""
    at_v = part(g)
    match mode:
        case "set":
            return put(zero_of(at_v)), at_v
        case "add":
            return g, at_v
        case "multiply":
            return put(at_v * v), at_v * part(x)
    won = part(y)
    by_x, by_v = astype(part(x) == won, g.dtype), astype(v == won, g.dtype)
    share = at_v / (by_x + by_v)
    return put(share * by_x), share * by_v


def _update_rule(x: Spec, v: Spec, *, starts: Shape, steps: Shape, mode: str) -> Spec:
    if v.ndim != x.ndim or v.dtype != x.dtype:
        raise unfit("update_slice", (x, v), "as many axes in both, and one dtype")
    _inside("update_slice", x, starts, v.shape, steps)
    return Spec(x.shape, x.dtype)


op(
    "update_slice",
    infer=_update_rule,
    takes={"starts": STARTS, "steps": STEPS, "mode": one_of(*MODES)},
    indices=_update_indices,
    kernel=update_box,
    pieces=_update_pieces,
    grad=_update_grad,
    cost=MOVE,
    placed=True,
    overwrite=(0,),
)


# -- triangles and diagonals ---------------------------------------------------------------
def _triangle(x: Array, k: int, lower: bool) -> Array:
    if x.ndim < 2:
        raise misfit(
            ShapeError,
            "tril" if lower else "triu",
            got=f"shape {x.shape}",
            needed="two axes or more",
        )
    k = diagonal_number(k, x.shape, "tril" if lower else "triu")
    rows = apply("iota", shape=(x.shape[-2], 1), axis=0, dtype=int64)
    columns = apply("iota", shape=(1, x.shape[-1]), axis=1, dtype=int64)
    keep = greater_equal(rows + k, columns) if lower else greater_equal(columns, rows + k)
    return where(keep, x, number_of("tril", 0, x.dtype))


@export
def tril(x: Operandish, /, k: int = 0) -> Array:
    """Zeros above the k-th diagonal.

    >>> ost.tril(ost.ones((3, 3)))
    Array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]], dtype=float64)
    """
    return _triangle(as_array(x), k, lower=True)


@export
def triu(x: Operandish, /, k: int = 0) -> Array:
    """Zeros below the k-th diagonal.

    >>> ost.triu(ost.ones((3, 3)))
    Array([[1., 1., 1.],
           [0., 1., 1.],
           [0., 0., 1.]], dtype=float64)
    """
    return _triangle(as_array(x), k, lower=False)
