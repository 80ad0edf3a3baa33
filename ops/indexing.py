"""Reading and updating by index.

Basic keys (numbers, slices, None, ...) are slices. Arrays of integers are `take` along one axis;
several of them become one flat index first. A mask has as many results as it has True, so it is
read at once; while tracing that is an error which names the static alternative.

    take    v reduced with `sum`: each worker picks what it holds, the rest is 0
    put     v is parallel: each worker applies the updates that fall into its part
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import EllipsisType, NoneType
from typing import Any, NamedTuple

import numpy as np

from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError

from .arithmetic import clip, maximum, minimum, remainder
from .batching import Mapped, given_axis
from .casts import astype
from .comparisons import equal, less
from .core import array
from .core.array import Array, Operandish, apply, as_array, export, unify, unmasked
from .core.bounds import outside
from .core.device import device_of
from .core.index import LETTERS, Indices, along, pointwise
from .core.notes import noted
from .core.parameters import AXIS, FLAG, TEXT, one_of, unfit, whole
from .core.registry import Params, Piece, Place, Specs, op, stream_cost
from .core.spec import Shape, Spec, bool_, int64, is_inexact, is_integer
from .core.user_line import misfit
from .elementwise import Out, put_out, where
from .extents import distance
from .shape import axis_of, broadcast_to, expand_dims, moveaxis, reshape, squeeze, zero_of
from .slicing import COMBINES, MODES, slice_axes, sliced

__all__ = [
    "take",
    "take_along_axis",
]

MOVE = stream_cost(0)


def in_bounds(indices: Any, size: int) -> None:
    """NumPy's own check, for kernels that run NumPy without it. Devices note what they see."""
    if noted(indices, size):
        return
    if indices.ndim == 0:
        _check(int(indices), int(indices), size)
    elif indices.size:
        _check(int(indices.min()), int(indices.max()), size)


def _check(low: int, high: int, size: int) -> None:
    if low < -size or high >= size:
        bad = low if low < -size else high
        raise IndexError(outside(bad, size))


def _from_front(indices: Any, size: int) -> Any:
    """Places counted from the first, in a dtype that can hold any extent."""
    return indices.astype(np.int64, copy=False) % max(size, 1)


def _in_bounds_kernel(xp: Any, out: Any, i: Any, *, size: int, name: str) -> None:
    in_bounds(i, size)
    out[...] = True


op(  # before a kernel that gathers: whether all places are inside
    "in_bounds",
    infer=lambda i, *, size, name: Spec((), bool_),
    takes={"size": whole(0), "name": TEXT},
    made_by="machine",
    indices=lambda ins, outs, p: Indices(((None,) * ins[0].ndim,), ((),)),
    kernel=_in_bounds_kernel,
    bounds_checked=True,
)


def _take_places_rule(i: Spec, *, size: int, checks: bool) -> Spec:
    if not is_integer(i.dtype):
        raise unfit("take_places", (i,), "integers")
    return Spec(() if checks else i.shape, int64)


def _take_places_kernel(xp: Any, out: Any, i: Any, *, size: int, checks: bool) -> None:
    in_bounds(i, size)
    out[...] = 0 if checks else _from_front(i, size)


op(  # places counted from the first, each inside; or 0, if all are
    "take_places",
    infer=_take_places_rule,
    takes={"size": whole(0), "checks": FLAG},
    made_by="passes",
    indices=lambda ins, outs, p: (
        Indices(((None,) * ins[0].ndim,), ((),)) if p["checks"] else pointwise(ins, outs)
    ),
    kernel=_take_places_kernel,
    bounds_checked=True,
)


# -- take ----------------------------------------------------------------------------------
def _take_rule(x: Spec, i: Spec, *, axis: int) -> Spec:
    if not is_integer(i.dtype):
        raise misfit(
            DTypeError,
            "take",
            got=f"indices of dtype {i.dtype.name}",
            needed="integers or a mask of bools",
        )
    return Spec((*x.shape[:axis], *i.shape, *x.shape[axis + 1 :]), x.dtype)


def _take_labels(x: Spec, i: Spec, axis: int) -> tuple[Any, Any, Any, str]:
    """Labels of the array, the indices, the result, and of what is indexed."""
    lead = tuple(LETTERS[:axis])
    own = tuple(LETTERS[axis : axis + i.ndim])
    tail = tuple(LETTERS[axis + i.ndim : axis + i.ndim + x.ndim - axis - 1])
    return (*lead, "Z", *tail), own, (*lead, *own, *tail), "Z"


def _take_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    x, i, out, inner = _take_labels(ins[0], ins[1], p["axis"])
    return Indices((x, i), (out,), ((inner, "sum"),))


def _take_kernel(xp: Any, out: Any, x: Any, i: Any, *, axis: int, at: Place) -> None:
    size = at.in_shapes[0][axis]
    in_bounds(i, size)
    lo, hi = at.ins[0][axis]
    if hi - lo == size:
        if x.size:
            x.take(i, axis, out)
        return
    place = _from_front(i, size) - lo
    inside = (place >= 0) & (place < hi - lo)
    out[...] = 0
    if hi > lo:
        picked = x.take(place * inside, axis)
        mask = inside.reshape((1,) * axis + i.shape + (1,) * (x.ndim - axis - 1))
        xp.copyto(out, picked, where=mask)


def _take_pieces(ins: Sequence[Shape], *, axis: int) -> list[Piece] | None:
    return None if ins[1] else [Piece(0, places=(1,), axes=(axis,), bounds=("index",), picks=True)]


def _take_grad(g: Array, y: Array, x: Array, i: Array, *, axis: int) -> Sequence[Array | None]:
    zeros = apply("full", shape=x.shape, value=0, dtype=g.dtype)
    return apply("put", zeros, i, g, axis=axis, mode="add"), None


def _take_batched(size: int, *xs: Mapped, axis: int) -> Sequence[Mapped]:
    """Places of each element's own are places among all elements' slices."""
    (x, has_x), (i, has_i) = xs
    if not has_i:
        made = apply("take", x, i, axis=axis + 1)
    elif not has_x:
        made = moveaxis(apply("take", x, i, axis=axis), axis, 0)
    else:
        slices = _slices(x, axis)
        made = apply("take", slices, _among_all(i, size, x.shape[axis + 1]), axis=0)
        own = range(1, i.ndim)
        made = moveaxis(made, tuple(own), tuple(d + axis for d in own))
    return [(made, True)]


def _slices(x: Array, axis: int) -> Array:
    """The slices of all elements along an axis of theirs, one behind the other."""
    x = moveaxis(x, axis + 1, 1)
    return reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _among_all(i: Array, size: int, count: int) -> Array:
    """Which slice of all elements each place of an element is."""
    numbers = apply("iota", shape=(size, *(1,) * (i.ndim - 1)), axis=0, dtype=int64)
    return flat_index([broadcast_to(numbers, i.shape), astype(i, int64)], (size, count))


op(
    "take",
    infer=_take_rule,
    batched=_take_batched,
    takes={"axis": AXIS},
    indices=_take_indices,
    kernel=_take_kernel,
    bounds_checked=True,
    pieces=_take_pieces,
    grad=_take_grad,
    cost=lambda ins, outs, p: (0.0, 2.0 * outs[0].nbytes + ins[1].nbytes),
    placed=True,
    selects="places",
    places="read",
)


def _indices(i: Any, size: int, name: str) -> Array:
    """Indices as an Array; those that are known already are checked at the user's own line."""
    if not isinstance(i, Array):
        unmasked(i, name)
        known = np.asarray(i)
        known = known.astype(np.int64) if known.size == 0 else known
        if (
            known.dtype.kind in "iu"
            and known.size
            and not -size <= known.min() <= known.max() < size
        ):
            bad = int(known.max()) if known.max() >= size else int(known.min())
            raise misfit(
                BoundsError,
                name,
                got=f"index {bad}",
                needed=f"{-size} to {size - 1}, as the axis has {size} elements",
            )
        i = as_array(known)
    return i


@export
def take(
    x: Operandish,
    indices: Operandish,
    /,
    axis: int | None = None,
    out: Out = None,
    mode: str = "raise",
) -> Array:
    """The elements at these places along an axis. Places outside are an error, or, with `mode`, count on
    from the other end ("wrap") or are the nearest there is ("clip").

    >>> ost.take([10, 20, 30], [2, 0])
    Array([30, 10], dtype=int64)
    """
    x = as_array(x)
    if axis is None:
        x, axis = (x if x.ndim == 1 else reshape(x, (-1,))), 0
    d = axis_of(axis, x.ndim, "take")
    n = x.shape[d]
    places = _indices(inside(indices, n, mode, "take"), n, "take")
    return put_out(apply("take", x, places, axis=d), out, "take")


def inside(places: Any, size: int, mode: str, name: str) -> Any:
    """Places as a mode of NumPy's means them."""
    if mode not in ("raise", "wrap", "clip"):
        needed = "'raise', 'wrap' or 'clip'"
        raise misfit(ArgumentError, name, got=f"mode={mode!r}", needed=needed)
    if mode == "raise" or not size:
        return places
    return remainder(places, size) if mode == "wrap" else clip(places, 0, size - 1)


# -- put -----------------------------------------------------------------------------------
def _put_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    x, i, v, _ = _take_labels(ins[0], ins[1], p["axis"])
    own = set(i)
    return Indices((x, (None,) * len(i), tuple(None if c in own else c for c in v)), (x,))


def _combine_at(xp: Any, combine: Any, out: Any, key: tuple[Any, ...], values: Any) -> None:
    """`combine.at`. CuPy has it for few functions and dtypes; for others what goes to one place is
    combined before: those in order, two and two, until each place stands once."""
    try:
        combine.at(out, key, values)
        return
    except (NotImplementedError, TypeError):
        pass
    axis = next(d for d, k in enumerate(key) if not isinstance(k, slice))
    before, sizes = key[:axis], out.shape[axis : len(key)]
    place = xp.ravel_multi_index(
        tuple(k.astype(np.int64, copy=False) for k in key[axis:]), sizes, mode="wrap"
    )
    values = values.reshape((*out.shape[:axis], place.size, *out.shape[len(key) :]))
    order = xp.argsort(place.reshape(-1), kind="stable")
    place, values = place.reshape(-1)[order], values.take(order, axis)
    while True:
        number = xp.arange(place.size) - xp.searchsorted(place, place)
        (second,) = xp.nonzero(number % 2)
        if not second.size:
            break
        into = (*before, second - 1)
        values[into] = combine(values[into], values.take(second, axis))
        (first,) = xp.nonzero(number % 2 == 0)
        place, values = place[first], values.take(first, axis)
    key = (*before, *xp.unravel_index(place, sizes))
    out[key] = combine(out[key], values)


def _put_kernel(
    xp: Any, out: Any, x: Any, i: Any, v: Any, *, axis: int, mode: str, at: Place
) -> None:
    if out is not x:
        xp.copyto(out, x)
    size = at.in_shapes[0][axis]
    in_bounds(i, size)
    lo, hi = at.outs[0][axis]
    place = _from_front(i.reshape(-1), size)
    values = v.reshape((*v.shape[:axis], place.size, *v.shape[axis + i.ndim :]))
    if hi - lo < size:
        keep = (place >= lo) & (place < hi)
        place, values = place[keep] - lo, xp.compress(keep, values, axis=axis)
    key = (slice(None),) * axis + (place,)
    values = values.astype(out.dtype, copy=False)
    if mode == "set":
        if not device_of(out).is_host:  # NumPy's last value stays; others' may be any
            last = xp.zeros(out.shape[axis], np.int32 if place.size < 1 << 31 else np.uint64)
            xp.maximum.at(last, place, xp.arange(place.size, dtype=last.dtype))
            values = values.take(last[place].astype(np.int64, copy=False), axis)
        out[key] = values
    else:
        _combine_at(xp, getattr(xp, COMBINES[mode]), out, key, values)


def _put_pieces(ins: Sequence[Shape], *, axis: int, mode: str) -> list[Piece] | None:
    if ins[1]:
        return None
    how = COMBINES.get(mode, "")
    return [Piece(0), Piece(2, places=(1,), axes=(axis,), bounds=("index",), combine=how)]


def _put_grad(
    g: Array, y: Array, x: Array, i: Array, v: Array, *, axis: int, mode: str
) -> Sequence[Array | None]:
    def put(values: Array, how: str = "set", to: Array = g) -> Array:
        return apply("put", to, i, values, axis=axis, mode=how)

    at_v = apply("take", g, i, axis=axis)
    match mode:
        case "add":
            return g, None, at_v
        case "set":
            by_v = where(_last_writer(x, i, v, axis), at_v, 0) if i.shape else at_v
            return put(zero_of(at_v)), None, by_v
        case "multiply":
            ones = apply("full", shape=x.shape, value=1, dtype=v.dtype)
            # without its zeros a product is others' product times what is not 0 itself
            is_zero = equal(v, 0)
            filled = where(is_zero, 1, v)
            zeros = astype(is_zero, g.dtype)
            count = apply("take", put(zeros, "add", zero_of(g)), i, axis=axis)
            others = apply("take", put(filled, "multiply", x), i, axis=axis) / filled
            by_v = at_v * where(count > zeros, 0, others)
            return g * put(v, "multiply", ones), None, by_v
    won = astype(apply("take", y, i, axis=axis) == v, g.dtype)
    kept = astype(x == y, g.dtype)
    share = g / put(won, "add", kept)
    return share * kept, None, apply("take", share, i, axis=axis) * won


def _last_writer(x: Array, i: Array, v: Array, axis: int) -> Array:
    """Which of the updates stayed, where several went to one place: the last."""
    order = apply("iota", shape=i.shape, axis=0, dtype=int64) if i.ndim == 1 else None
    if order is None:
        order = reshape(apply("iota", shape=(i.size,), axis=0, dtype=int64), i.shape)
    nobody = apply("full", shape=(x.shape[axis],), value=-1, dtype=int64)
    last = apply("put", nobody, i, order, axis=0, mode="max")
    mine = apply("take", last, i, axis=0) == order
    return reshape(mine, (1,) * axis + i.shape + (1,) * (x.ndim - axis - 1))


def _put_rule(x: Spec, i: Spec, v: Spec, *, axis: int, mode: str) -> Spec:
    taken = (*x.shape[:axis], *i.shape, *x.shape[axis + 1 :])
    if not is_integer(i.dtype) or v.shape != taken or v.dtype != x.dtype:
        needed = f"places that are integers, and values {Spec(taken, x.dtype)}"
        raise unfit("put", (x, i, v), needed)
    return x.bare


def _put_batched(size: int, *xs: Mapped, axis: int, mode: str) -> Sequence[Mapped]:
    i, has_i = xs[1]
    x, v = given_axis(xs[0], size), given_axis(xs[2], size)
    if not has_i:
        return [(apply("put", x, i, v, axis=axis + 1, mode=mode), True)]
    own = range(1, i.ndim)
    v = moveaxis(v, tuple(d + axis for d in own), tuple(own))
    places = _among_all(i, size, x.shape[axis + 1])
    made = apply("put", _slices(x, axis), places, v, axis=0, mode=mode)
    moved = moveaxis(x, axis + 1, 1)
    return [(moveaxis(reshape(made, moved.shape), 1, axis + 1), True)]


op(
    "put",
    infer=_put_rule,
    batched=_put_batched,
    takes={"axis": AXIS, "mode": one_of(*MODES)},
    indices=_put_indices,
    kernel=_put_kernel,
    bounds_checked=True,
    pieces=_put_pieces,
    grad=_put_grad,
    cost=MOVE,
    placed=True,
    overwrite=(0,),
)


# -- along an axis -------------------------------------------------------------------------
def _along_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    """All but one axis in step; a 1 in one operand beside more in another is repeated."""
    shape = outs[0].shape
    labels = along((p["axis"],), outs[0])
    dims = tuple(
        tuple(
            c if n == shape[d] else None
            for d, (c, n) in enumerate(zip(labels, s.shape, strict=True))
        )
        for s in ins
    )
    return Indices(dims, (labels,))


def _along_rule(x: Spec, i: Spec, *, axis: int) -> Spec:
    if not is_integer(i.dtype):
        raise misfit(
            DTypeError, "take_along_axis", got=f"indices of {i.dtype.name}", needed="integers"
        )
    if x.ndim != i.ndim:
        raise misfit(
            ShapeError,
            "take_along_axis",
            got=f"{x.shape} and indices {i.shape}",
            needed="as many axes in both",
        )
    shape = tuple(
        m if d == axis else max(n, m) if 0 not in (n, m) else 0
        for d, (n, m) in enumerate(zip(x.shape, i.shape, strict=True))
    )
    if any(
        d != axis and {n, m} - {1, shape[d]}
        for d, (n, m) in enumerate(zip(x.shape, i.shape, strict=True))
    ):
        raise misfit(
            ShapeError,
            "take_along_axis",
            got=f"{x.shape} and indices {i.shape}",
            needed=f"shapes alike but for axis {axis}",
        )
    return Spec(shape, x.dtype)


def _take_along_kernel(xp: Any, out: Any, x: Any, i: Any, *, axis: int) -> None:
    in_bounds(i, x.shape[axis])
    xp.copyto(out, xp.take_along_axis(x, i, axis=axis))


def _take_along_grad(
    g: Array, y: Array, x: Array, i: Array, *, axis: int
) -> Sequence[Array | None]:
    shape = (*y.shape[:axis], x.shape[axis], *y.shape[axis + 1 :])
    zeros = apply("full", shape=shape, value=0, dtype=g.dtype)
    return apply("put_along_axis", zeros, broadcast_to(i, y.shape), g, axis=axis), None


op(
    "take_along_axis",
    infer=_along_rule,
    takes={"axis": AXIS},
    indices=_along_indices,
    kernel=_take_along_kernel,
    bounds_checked=True,
    places="read",
    grad=_take_along_grad,
    cost=lambda ins, outs, p: (0.0, 2.0 * outs[0].nbytes + ins[1].nbytes),
)


@export
def take_along_axis(x: Operandish, indices: Operandish, /, axis: int = -1) -> Array:
    """For each line along an axis, the elements at that line's own places.

    >>> ost.take_along_axis(ost.asarray([[3, 1], [2, 4]]), ost.asarray([[1], [0]]), axis=1)
    Array([[1],
           [2]], dtype=int64)
    """
    x, i = as_array(x), as_array(indices)
    return apply("take_along_axis", x, i, axis=axis_of(axis, x.ndim, "take_along_axis"))


def _put_along_kernel(xp: Any, out: Any, x: Any, i: Any, v: Any, *, axis: int) -> None:
    if out is not x:
        xp.copyto(out, x)
    grid = [
        i if d == axis else xp.arange(n).reshape((1,) * d + (-1,) + (1,) * (i.ndim - d - 1))
        for d, n in enumerate(i.shape)
    ]
    _combine_at(xp, xp.add, out, tuple(grid), v)


def _put_along_rule(x: Spec, i: Spec, v: Spec, *, axis: int) -> Spec:
    lines = x.ndim == i.ndim and all(
        n == m for d, (n, m) in enumerate(zip(x.shape, i.shape, strict=True)) if d != axis
    )
    if not lines or v.shape != i.shape or v.dtype != x.dtype or not is_integer(i.dtype):
        needed = f"integers and values of one shape, that of the first but for axis {axis}"
        raise unfit("put_along_axis", (x, i, v), needed)
    return x.bare


op(
    "put_along_axis",  # adds: the gradient of take_along_axis
    infer=_put_along_rule,
    takes={"axis": AXIS},
    indices=lambda ins, outs, p: Indices(
        (along((p["axis"],), outs[0]),) * 3, (along((p["axis"],), outs[0]),)
    ),
    kernel=_put_along_kernel,
    grad=lambda g, y, x, i, v, *, axis: (g, None, take_along_axis(g, i, axis=axis)),
    cost=MOVE,
    overwrite=(0,),
    places="added",
)


# -- keys ----------------------------------------------------------------------------------
_WHOLE = frozenset((int, NoneType))


class _Plain(NamedTuple):
    """A key of numbers, slices and new axes alone, as most are."""

    parts: list[tuple[int, int, int]]  # of each axis: start, size, step
    drop: tuple[int, ...]  # axes of which it takes one element
    new: tuple[int, ...]  # axes of the result that are new

    @property
    def shape(self) -> Shape:
        """Of what it picks."""
        sizes = [n for d, (_, n, _) in enumerate(self.parts) if d not in self.drop]
        for d in self.new:
            sizes.insert(d, 1)
        return tuple(sizes)


def _plain(shape: Shape, key: Any) -> _Plain | None:
    """The key, if it is of this kind and inside of the shape. None of the user's code runs for it."""
    items = list(key) if key.__class__ is tuple else [key]
    dots = [n for n, k in enumerate(items) if k is Ellipsis]
    rest = len(shape) - sum([k is not None for k in items]) + len(dots)
    if len(dots) > 1 or rest < 0:
        return None
    at = dots[0] if dots else len(items)
    items[at : at + len(dots)] = [slice(None)] * rest
    parts, drop, new = list[tuple[int, int, int]](), list[int](), list[int]()
    for k in items:
        if k is None:
            new.append(len(parts) - len(drop) + len(new))
            continue
        size, kind = shape[len(parts)], k.__class__
        if kind is slice and {k.start.__class__, k.stop.__class__, k.step.__class__} <= _WHOLE:
            start, stop, step = k.indices(size)
            count = len(range(start, stop, step))
            parts.append((start, count, step if count > 1 else 1))
        elif kind is int and -size <= k < size:
            drop.append(len(parts))
            parts.append((k % size, 1, 1))
        else:
            return None
    return _Plain(parts, tuple(drop), tuple(new))


@dataclass(slots=True)
class _Axis:
    """What a key does to one axis: a slice, a number, or an array of places."""

    part: tuple[int, int, int] | None = None
    drop: bool = False
    places: Array | None = None
    begin: Array | None = None  # of a number or a slice that is known only as it runs
    extent: int = 1  # of all from its beginning to its end


def _parse(x: Array, key: Any) -> tuple[list[_Axis | None], bool]:
    """The key, one entry per axis and per None, and whether its arrays stand side by side."""
    items = list(key) if isinstance(key, tuple) else [key]
    wanted = sum(_consumes(k) for k in items)
    dots = [n for n, k in enumerate(items) if k is Ellipsis]
    if len(dots) > 1:
        raise misfit(ArgumentError, "index", got="two ellipses", needed="one at most")
    if wanted > x.ndim:
        raise misfit(
            BoundsError,
            "index",
            got=f"{wanted} indices for shape {x.shape}",
            needed=f"at most {x.ndim}",
        )
    fill = [slice(None)] * (x.ndim - wanted)
    items = items[: dots[0]] + fill + items[dots[0] + 1 :] if dots else items + fill
    arrays = [k for k in items if is_places(k)]
    numbers = all(np.ndim(k) == 0 and not is_mask(k) for k in arrays)
    advanced = not numbers
    found: list[_Axis | None] = []
    axis = 0
    runs, inside = 0, False
    for k in items:
        if k is None:
            found.append(None)
            inside = False
            continue
        size = x.shape[axis] if axis < x.ndim else 0
        if isinstance(k, slice) and _is_unknown(k):
            found.append(_moving(k, size))
            inside = False
        elif isinstance(k, slice):
            start, stop, step = k.indices(size)
            count = len(range(start, stop, step))
            found.append(_Axis((start, count, step if count > 1 else 1)))
            inside = False
        elif advanced and (is_places(k) or is_number(k)):
            runs, inside = runs + (not inside), True
            here = x.shape[axis : axis + _consumes(k)]
            found.extend(_Axis(places=places) for places in _places(k, here))
        elif numbers and is_places(k):
            (begin,) = _places(k, x.shape[axis : axis + 1])
            found.append(_Axis((0, 1, 1), drop=True, begin=begin))
        elif is_number(k):
            n = operator.index(k)
            if not -size <= n < size:
                raise misfit(
                    BoundsError,
                    "index",
                    got=f"{n} on axis {axis}",
                    needed=f"{-size} to {size - 1}, as the axis has {size} elements"
                    if size
                    else "nothing, as it is empty",
                )
            found.append(_Axis((n % size, 1, 1), drop=True))
        else:
            raise misfit(
                ArgumentError,
                "index",
                got=f"{type(k).__name__} {k!r:.40}",
                needed="numbers, slices, None, ..., arrays of integers, or masks of bools",
            )
        axis += _consumes(k)
    return found, runs <= 1


def _is_unknown(k: slice) -> bool:
    """Whether a slice begins or ends where is known only as it runs."""
    traced = [b for b in (k.start, k.stop, k.step) if isinstance(b, Array) and b._is_traced]
    return any(not array.reader.is_given(b) for b in traced)


def _moving(k: slice, size: int) -> _Axis:
    """Such a slice, if its ends are so far from each other as can be seen."""
    ends = (k.start, k.stop)
    step = 1 if k.step is None else k.step
    known = all(b is None or is_number(b) or isinstance(b, Array) for b in ends)
    far = distance(*ends) if known and None not in ends and is_number(step) and step > 0 else None
    if far is None:
        wanted = next(b for b in (*ends, step) if isinstance(b, Array) and b._is_traced)
        array.reader.known(wanted, "x[start:stop]")
    assert far is not None
    count = len(range(0, far, step))
    begin = k.start if isinstance(k.start, Array) else k.stop - far
    return _Axis((0, count, step), begin=begin, extent=max(far, 0))


def is_number(k: Any) -> bool:
    if isinstance(k, (bool, np.bool_)):
        return False
    return isinstance(k, (int, np.integer)) or (
        not isinstance(k, (Array, np.ndarray)) and hasattr(k, "__index__")
    )


def is_places(k: Any) -> bool:
    return isinstance(k, (Array, np.ndarray, list, bool, np.bool_)) or (
        hasattr(k, "__array__") and not is_number(k)
    )


def is_mask(k: Any) -> bool:
    return isinstance(k, (bool, np.bool_)) or (
        k.dtype.kind == "b" if hasattr(k, "dtype") else False
    )


def _consumes(k: Any) -> int:
    """How many axes a part of a key speaks of."""
    unmasked(k, "index")
    if k is None or isinstance(k, EllipsisType):
        return 0
    if isinstance(k, list):
        k = np.asarray(k)
    if is_places(k) and is_mask(k):
        return int(np.ndim(k)) if not isinstance(k, Array) else k.ndim
    return 1


def _places(k: Any, shape: Shape) -> list[Array]:
    """An index as arrays of places, one per axis that it speaks of."""
    if isinstance(k, list):
        k = np.asarray(k)
        k = k.astype(np.int64) if k.size == 0 else k
    if is_number(k):
        return [_indices(np.asarray(operator.index(k)), shape[0], "index")]
    if not is_mask(k):
        if not isinstance(k, Array) and np.asarray(k).dtype.kind not in "iu":
            raise misfit(
                DTypeError,
                "index",
                got=f"an array of {np.asarray(k).dtype}",
                needed="integers or bools",
            )
        return [_indices(k, shape[0], "index")]
    if not all(m in (n, 0) for m, n in zip(np.shape(k), shape, strict=True)):
        raise misfit(
            BoundsError,
            "index",
            got=f"a mask of shape {np.shape(k)}",
            needed=f"the shape {shape} of what it masks",
        )
    mask = array.reader.known(k, "x[mask]", shape=True) if isinstance(k, Array) else np.asarray(k)
    return [as_array(i) for i in np.nonzero(mask)]


def _with_axes(x: Array, key: Any) -> tuple[Array, Any]:
    """With an axis of one element for each mask that has none, and its place along that, if any."""
    items = list(key) if isinstance(key, tuple) else [key]
    masks = [n for n, k in enumerate(items) if is_places(k) and is_mask(k) and np.ndim(k) == 0]
    if not masks:
        return x, key
    axes, at, rest = [], 0, x.ndim - sum(map(_consumes, items))
    for n, k in enumerate(items):
        if n in masks:
            axes.append(at)
            flag = array.reader.known(k, "x[mask]", shape=True) if isinstance(k, Array) else k
            items[n] = np.arange(int(flag))
        at += rest if k is Ellipsis else 1 if n in masks else _consumes(k)
    return (x, key) if rest < 0 else (expand_dims(x, axis=tuple(axes)), tuple(items))


@export
def getitem(x: Operandish, key: Any) -> Array:
    """x[key]"""
    x = as_array(x)
    found: Array | None = array.functions["picked"](x, key)
    if found is not None:
        return found
    plain = _plain(x.shape, key)
    if plain is not None:
        x = sliced(x, plain.parts)
        x = apply("squeeze", x, axes=plain.drop) if plain.drop else x
        return apply("expand_dims", x, axes=plain.new) if plain.new else x
    x, key = _with_axes(x, key)
    entries, together = _parse(x, key)
    axes = [e for e in entries if e is not None]
    known = {d: e.part for d, e in enumerate(axes) if e.part is not None and e.begin is None}
    x = slice_axes(x, known)
    drop = tuple(d for d, e in enumerate(axes) if e.drop and e.begin is None)
    x = _box(squeeze(x, drop) if drop else x, [e for d, e in enumerate(axes) if d not in drop])
    kept = [e for e in entries if e is None or not e.drop]
    x_axes = [e for e in kept if e is not None]
    advanced = [d for d, e in enumerate(x_axes) if e.places is not None]
    new = tuple(d for d, e in enumerate(kept) if e is None)
    if not advanced:
        return expand_dims(x, axis=new) if new else x
    places = [e.places for e in x_axes if e.places is not None]
    first = advanced[0] if together else 0
    y, count = _gather(x, places, advanced, first)
    # axes from None stand among the others as in the key; the gathered ones count as one group
    if new:
        target = []
        position, passed = 0, False
        for e in kept:
            if e is None:
                target.append(position)
                position += 1
            elif e.places is None:
                position += 1
            elif not passed:
                passed = True
                position += count if together else 0
        if not together:
            target = [t + count for t in target]
        y = expand_dims(y, axis=tuple(target))
    return y


def _box(x: Array, axes: Sequence[_Axis]) -> Array:
    """What begins along some axes where is known only as it runs."""
    moving = {d: e for d, e in enumerate(axes) if e.begin is not None}
    if not moving:
        return x
    if len(moving) == 1:
        ((d, e),) = moving.items()
        if e.drop and e.begin is not None:
            return apply("take", x, e.begin, axis=d)
    x = apply(
        "dynamic_slice",
        x,
        *_begins(moving.values()),
        axes=tuple(moving),
        sizes=tuple(e.extent for e in moving.values()),
        bounds=_bounds(moving.values()),
    )
    x = slice_axes(x, {d: e.part for d, e in moving.items() if e.part is not None})
    drop = tuple(d for d, e in moving.items() if e.drop)
    return squeeze(x, drop) if drop else x


def _begins(moving: Iterable[_Axis]) -> list[Array]:
    return [astype(e.begin, int64) for e in moving if e.begin is not None]


def _bounds(moving: Iterable[_Axis]) -> tuple[str, ...]:
    return tuple("index" if e.drop else "slice" for e in moving)


def _gather(x: Array, places: list[Array], axes: list[int], first: int) -> tuple[Array, int]:
    """The elements at some places along several axes; the new axes stand at `first`."""
    if len(places) == 1:
        y = apply("take", x, places[0], axis=axes[0])
        return y, places[0].ndim
    x = moveaxis(x, axes, range(first, first + len(axes)))
    if len(places) == 2 and _is_count(places[0], x.shape[first]) and places[1].ndim == 1:
        i = reshape(places[1], (*(1,) * first, -1, *(1,) * (x.ndim - first - 1)))
        return squeeze(take_along_axis(x, i, axis=first + 1), first + 1), 1
    sizes = x.shape[first : first + len(axes)]
    flat = flat_index(places, sizes)
    x = reshape(x, (*x.shape[:first], int(np.prod(sizes)), *x.shape[first + len(axes) :]))
    return apply("take", x, flat, axis=first), flat.ndim


def _is_count(i: Array, size: int) -> bool:
    """Whether places are all that there are, one after the other: `x[arange(n), places]`."""
    if i.shape != (size,) or size == 1:
        return False
    if isinstance(i._operand, array.Host):
        return bool((i._operand.value == np.arange(size)).all())
    op = i._term.op if i._term is not None else None
    return op is not None and op.name == "iota"


def flat_index(places: Sequence[Array], sizes: Shape) -> Array:
    """One index for several axes laid end to end; one that is outside its own axis is outside of
    all.
    """
    total: Array | None = None
    outside: Array | None = None
    for i, size in zip(unify(*places), sizes, strict=True):
        i = astype(i, int64)
        wrong = (i < -size) | (i >= size)
        outside = wrong if outside is None else outside | wrong
        i = where(less(i, 0), i + size, i)
        total = i if total is None else total * size + i
    assert total is not None
    assert outside is not None
    return where(outside, int(np.prod(sizes)), total)


# -- updates -------------------------------------------------------------------------------
@export
def updated(x: Array, key: Any, values: Operandish, mode: str) -> Array:
    assert mode in MODES
    v = updated_values(x, values)
    made: Array | None = array.functions["picked_updated"](x, key, v, mode)
    if made is not None:
        return made
    masks = is_places(key) and is_mask(key)
    if masks and np.shape(key) in ((), x.shape) and v.shape in ((), x.shape):
        return where(key, combined(x, v, mode), x)  # needs no list of places
    plain = _plain(x.shape, key)
    if plain is not None:
        return _with_parts(x, plain.parts, broadcast_to(v, fits(v, plain.shape)), mode)
    shape, (x, key) = x.shape, _with_axes(x, key)
    if x.shape != shape:
        return reshape(updated(x, key, v, mode), shape)
    entries, _ = _parse(x, key)
    axes = [e for e in entries if e is not None]
    v = broadcast_to(v, fits(v, shape_of(x, key)))
    parts = [e.part for e in axes if e.part is not None]
    moving = {d: e for d, e in enumerate(axes) if e.begin is not None}
    places = [d for d, e in enumerate(axes) if e.places is not None or (e.drop and d in moving)]
    full = all(
        d in places or e.part == (0, n, 1)
        for d, (e, n) in enumerate(zip(axes, x.shape, strict=True))
    )
    if len(places) == 1 and full and None not in entries and len(moving) < 2:
        i = axes[places[0]].places
        i = axes[places[0]].begin if i is None else i
        assert i is not None
        return apply("put", x, i, v, axis=places[0], mode=mode)
    if len(parts) == len(axes) and not (moving and any(step != 1 for _, _, step in parts)):
        if not moving:
            return _with_parts(x, parts, v, mode)
        v = reshape(v, [count for _, count, _ in parts])
        starts = tuple(start for start, _, _ in parts)
        facts = {"axes": tuple(moving), "starts": starts, "bounds": _bounds(moving.values())}
        given = _begins(moving.values())
        return apply("dynamic_update_slice", x, v, *given, mode=mode, **facts)
    # any other key: the same key applied to the numbers of the elements says which they are
    numbers = reshape(apply("iota", shape=(x.size,), axis=0, dtype=int64), x.shape)
    flat = apply(
        "put", reshape(x, (-1,)), numbers[key].ravel(), reshape(v, (-1,)), axis=0, mode=mode
    )
    return reshape(flat, x.shape)


def _with_parts(x: Array, parts: Sequence[tuple[int, int, int]], v: Array, mode: str) -> Array:
    """The array where these parts of its axes are set to values, or combined with them."""
    if not parts:
        return combined(x, v, mode)
    starts, sizes, steps = zip(*parts, strict=True)
    v = v if v.shape == sizes else reshape(v, sizes)
    return apply("update_slice", x, v, starts=starts, steps=steps, mode=mode)


def shape_of(x: Array, key: Any) -> Shape:
    """The shape of what a key picks."""
    plain = _plain(x.shape, key)
    return plain.shape if plain is not None else _shape_of(x, key)


def _shape_of(x: Array, key: Any) -> Shape:
    return getitem(apply("full", shape=x.shape, value=0, dtype=x.dtype), key).shape


def updated_values(x: Array, values: Operandish, what: str = "x.at[...]") -> Array:
    """Values in an array's dtype, if it can hold them."""
    v = unify(x, values)[1]
    if (v.dtype.kind == "c" and x.dtype.kind != "c") or (
        is_inexact(v.dtype) and not is_inexact(x.dtype)
    ):
        raise misfit(
            DTypeError,
            what,
            got=f"values of dtype {v.dtype.name} for an array of {x.dtype.name}",
            needed="values that the array's dtype can hold",
            do=f"convert one of them, e.g. x.astype(ost.{v.dtype.name})",
        )
    return astype(v, x.dtype)


def fits(v: Array, target: Shape, what: str = "x.at[...]") -> Shape:
    """The shape that values are to have, if they can."""
    if v.shape == target:
        return target
    try:
        good = np.broadcast_shapes(v.shape, target) == target
    except ValueError:
        good = False
    if not good:
        raise misfit(
            ShapeError,
            what,
            got=f"values of shape {v.shape}",
            needed=f"a shape that broadcasts to {target}",
        )
    return target


def combined(x: Array, v: Array, mode: str) -> Array:
    match mode:
        case "set":
            return broadcast_to(v, x.shape)
        case "add":
            return x + v
        case "multiply":
            return x * v
    return (minimum if mode == "min" else maximum)(x, v)
