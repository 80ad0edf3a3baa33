"""Reading and updating at places, as operations; subscripts.py makes `x[key]` of them.

take    v reduced with `sum`: each worker picks what it holds, the rest is 0
put     v is parallel: each worker applies the updates that fall into its part
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError

from ..autodiff.batching import Mapped, given_axis
from ..core.apply import apply, as_array, unify, unmasked
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.bounds import outside
from ..core.device import device_of
from ..core.index import LETTERS, Indices, Window, along, pointwise
from ..core.notes import noted
from ..core.parameters import AXIS, FLAG, STRIDES, TEXT, one_of, unfit, whole
from ..core.registry import Params, Piece, Place, Specs, op
from ..core.spec import Shape, Spec, bool_, int64, is_integer
from ..core.user_line import misfit
from .arithmetic import clip, remainder
from .casts import astype
from .comparisons import equal, less
from .elementwise import Out, put_out, where
from .shape import MOVE, axis_of, broadcast_to, moveaxis, reshape, zero_of
from .slicing import COMBINES, MODES

__all__ = ["take", "take_along_axis"]


def check_bounds(indices: Any, size: int, extent: int = 0) -> None:
    """NumPy's own check, for kernels that run NumPy without it. Devices note what they see; `extent`: of
    slices that begin there."""
    if noted(indices, size, extent=extent):
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
    check_bounds(i, size)
    out[...] = True


op(  # before a kernel that gathers: whether all places are inside
    "check_bounds",
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
    check_bounds(i, size)
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
        got = f"indices of dtype {i.dtype.name}"
        raise misfit(DTypeError, "take", got=got, needed="integers or a mask of bools")
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
    check_bounds(i, at.in_shapes[0][axis])
    _picked(xp, out, x, i, axis, at)


def _picked(xp: Any, out: Any, x: Any, i: Any, axis: int, at: Place) -> None:
    size, (lo, hi) = at.in_shapes[0][axis], at.ins[0][axis]
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


def checked_indices(i: Any, size: int, name: str) -> Array:
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
            needed = f"{-size} to {size - 1}, as the axis has {size} elements"
            raise misfit(BoundsError, name, got=f"index {bad}", needed=needed)
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
    places = checked_indices(inside(indices, n, mode, "take"), n, "take")
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
    if out.dtype.kind == "f" and combine in (xp.maximum, xp.minimum):
        _greatest_at(xp, combine is xp.minimum, out, key, values)
        return
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


def _greatest_at(xp: Any, least: bool, out: Any, key: tuple[Any, ...], values: Any) -> None:
    """By integers in the same order: CuPy rounds float64 to float32 here, and loses NaN, which is above all."""
    kind = f"u{max(out.dtype.itemsize, 4)}"
    sign = np.array(1 << 8 * int(kind[1:]) - 1, kind)[()]

    def ordered(x: Any) -> Any:
        wide = (-x if least else x).astype(f"f{kind[1:]}", order="C")
        bits = xp.where(xp.isnan(wide), xp.abs(wide), wide).view(kind)
        return xp.where(bits >= sign, ~bits, bits | sign)

    bits = ordered(out)
    xp.maximum.at(bits, key, ordered(values))
    found = xp.where(bits >= sign, bits ^ sign, ~bits).view(f"f{kind[1:]}")
    xp.copyto(out, -found if least else found, casting="unsafe")


def _put_kernel(
    xp: Any, out: Any, x: Any, i: Any, v: Any, *, axis: int, mode: str, at: Place
) -> None:
    check_bounds(i, at.in_shapes[0][axis])
    _updated(xp, out, x, i, v, axis, mode, at)


def _updated(xp: Any, out: Any, x: Any, i: Any, v: Any, axis: int, mode: str, at: Place) -> None:
    if out is not x:
        xp.copyto(out, x)
    size, (lo, hi) = at.in_shapes[0][axis], at.outs[0][axis]
    place = _from_front(i.reshape(-1), size)
    values = v.reshape((*v.shape[:axis], place.size, *v.shape[axis + i.ndim :]))
    if hi - lo < size:
        keep = (place >= lo) & (place < hi)
        place, values = place[keep] - lo, xp.compress(keep, values, axis=axis)
    key = (slice(None),) * axis + (place,)
    values = values.astype(out.dtype, copy=False)
    if mode == "set":
        several = place.size > 1
        if several and not device_of(out).is_host:  # NumPy's last value stays; others' may be any
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
            by_v = where(_last_writer(x, i, axis), at_v, 0) if i.shape else at_v
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


def _last_writer(x: Array, i: Array, axis: int) -> Array:
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


# -- near places ---------------------------------------------------------------------------
# `take`, and its adjoint `put`, of places that are known to be near: `every * place - step * i` is at least
# `first`, and less than `first + reach`. So workers need their neighbours' edges, and not the axis whole.
Near = tuple[int, ...]  # step, every, first, reach


def near_places(places: Any, size: int) -> Near:
    """Say how near so many places are, among so many elements."""
    common = math.gcd(len(places), size) or 1
    step, every = size // common, len(places) // common
    apart = every * places - step * np.arange(len(places))
    return step, every, int(apart.min()), int(apart.max() - apart.min()) + 1


def _take_near_rule(x: Spec, i: Spec, *, axis: int, near: Near) -> Spec:
    if i.ndim != 1 or len(near) != 4 or min(near[0], near[1], near[3]) < 1:
        raise unfit(
            "take_near", (x, i), "a row of places, and four numbers that say where they are"
        )
    return _take_rule(x, i, axis=axis)


def _put_near_rule(x: Spec, i: Spec, v: Spec, *, axis: int, near: Near) -> Spec:
    _take_near_rule(x, i, axis=axis, near=near)
    return _put_rule(x, i, v, axis=axis, mode="add")


def _take_near_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    step, every, first, reach = p["near"]
    x, (label,), out, inner = _take_labels(ins[0], ins[1], p["axis"])
    read = Window(label, first, step, reach, every=every)
    return Indices((tuple([read if c == inner else c for c in x]), (label,)), (out,))


def _put_near_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    step, every, first, reach = p["near"]
    x, (label,), v, inner = _take_labels(ins[0], ins[1], p["axis"])
    read = Window(inner, 1 - first - reach, every, reach, every=step)
    return Indices((x, (read,), tuple([read if c == label else c for c in v])), (x,))


def _near_batched(name: str, size: int, *xs: Mapped, axis: int, near: Near) -> Sequence[Mapped]:
    i, has_i = xs[1]
    if has_i:  # as any places
        if name == "take_near":
            return _take_batched(size, *xs, axis=axis)
        return _put_batched(size, *xs, axis=axis, mode="add")
    x, *v = [given_axis(y, size) for y in (xs[0], *xs[2:])]
    return [(apply(name, x, i, *v, axis=axis + 1, near=near), True)]


def _take_near_grad(g: Array, y: Array, x: Array, i: Array, **p: Any) -> Sequence[Array | None]:
    zeros = apply("full", shape=x.shape, value=0, dtype=g.dtype)
    return apply("put_near", zeros, i, g, **p), None


op(
    "take_near",
    infer=_take_near_rule,
    batched=partial(_near_batched, "take_near"),
    takes={"axis": AXIS, "near": STRIDES},
    indices=_take_near_indices,
    kernel=lambda xp, out, x, i, *, axis, near, at: _picked(xp, out, x, i, axis, at),
    here=lambda p: ("take", {"axis": p["axis"]}),
    pieces=lambda ins, *, axis, near: _take_pieces(ins, axis=axis),
    grad=_take_near_grad,
    cost=lambda ins, outs, p: (0.0, 2.0 * outs[0].nbytes + ins[1].nbytes),
    placed=True,
)
op(
    "put_near",
    infer=_put_near_rule,
    batched=partial(_near_batched, "put_near"),
    takes={"axis": AXIS, "near": STRIDES},
    indices=_put_near_indices,
    kernel=lambda xp, out, x, i, v, *, axis, near, at: _updated(xp, out, x, i, v, axis, "add", at),
    here=lambda p: ("put", {"axis": p["axis"], "mode": "add"}),
    pieces=lambda ins, *, axis, near: _put_pieces(ins, axis=axis, mode="add"),
    grad=lambda g, y, x, i, v, **p: (g, None, apply("take_near", g, i, **p)),
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
        got = f"indices of {i.dtype.name}"
        raise misfit(DTypeError, "take_along_axis", got=got, needed="integers")
    if x.ndim != i.ndim:
        got = f"{x.shape} and indices {i.shape}"
        raise misfit(ShapeError, "take_along_axis", got=got, needed="as many axes in both")
    shape = tuple(
        m if d == axis else max(n, m) if 0 not in (n, m) else 0
        for d, (n, m) in enumerate(zip(x.shape, i.shape, strict=True))
    )
    if any(
        d != axis and {n, m} - {1, shape[d]}
        for d, (n, m) in enumerate(zip(x.shape, i.shape, strict=True))
    ):
        got, needed = f"{x.shape} and indices {i.shape}", f"shapes alike but for axis {axis}"
        raise misfit(ShapeError, "take_along_axis", got=got, needed=needed)
    return Spec(shape, x.dtype)


def _take_along_kernel(xp: Any, out: Any, x: Any, i: Any, *, axis: int) -> None:
    check_bounds(i, x.shape[axis])
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


def flat_index(places: Sequence[Array], sizes: Shape) -> Array:
    """One index for several axes laid end to end; one that is outside its own axis is outside of
    all."""
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
