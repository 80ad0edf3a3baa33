"""Boxes of an array that begin where numbers say which are known only as it runs: x[i, j], x[i:i + 3, :],
and updates there. Extents are fixed, so nothing but the beginning depends on values.

    dynamic_slice          these axes are reduced with `sum`: each worker picks what it holds, the rest is 0
    dynamic_update_slice   each worker writes what falls into its part, and where it may, no more than that

Where a box may begin is said for each of these axes (`bounds`, see core/bounds.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, ShapeError

from ..autodiff.batching import Mapped, given_axis
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.bounds import BOUNDS, first_of, inside
from ..core.device import device_of
from ..core.index import LETTERS, Dim, Indices, Window
from ..core.parameters import AXES, PLACES, STARTS, Kind, one_of, unfit
from ..core.registry import Params, Piece, Place, Specs, op, stream_cost
from ..core.spec import Shape, Spec, int64, is_integer
from ..core.user_line import misfit
from .casts import astype
from .creation import iota
from .elementwise import where
from .indexing import check_bounds
from .shape import listed, moveaxis, reshape
from .slicing import COMBINES, MODES, grad_of_update, slice_axes, update_box
from .subscripts import updated as updated_at
from .subscripts import updated_values

__all__ = ["dynamic_slice", "dynamic_update_slice"]

HOW = Kind(
    "index, slice or clip for each axis with a beginning",
    lambda v, _: type(v) is tuple and all(how in BOUNDS for how in v),
)
Words = tuple[str, ...]


def _rule(name: str, x: Spec, begins: Specs, extents: Shape, axes: Shape, bounds: Words) -> None:
    if any(b.shape or b.dtype != int64 for b in begins):
        raise unfit(name, begins, "where boxes begin as numbers of int64")
    if not len(begins) == len(axes) == len(extents) == len(bounds):
        raise unfit(name, begins, f"one number for each of the axes {axes}")
    if any(n > x.shape[a] for a, n in zip(axes, extents, strict=True)):
        got = f"{extents} elements along axes {axes} of shape {x.shape}"
        raise misfit(ShapeError, name, got=got, needed="boxes that are no larger than the array")


def _places(
    xp: Any, begins: Sequence[Any], shape: Shape, extents: Shape, axes: Shape, bounds: Words
) -> list[Any]:
    """Where a box begins along its axes. A device keeps that to itself, and notes what is outside."""
    found = []
    for i, a, n, how in zip(begins, axes, extents, bounds, strict=True):
        if device_of(i).is_host:
            found.append(first_of(int(i), shape[a], n, how))
            continue
        back, last = inside(shape[a], n, how)
        place = xp.where(i < back, i + shape[a], i)
        if how != "clip":
            begins_at = xp.where(place < 0, place - last - 1, place)
            check_bounds(begins_at, last + 1, n if how == "slice" else 0)
        found.append(xp.clip(place, 0, last))
    return found


# -- dynamic_slice -------------------------------------------------------------------------
def _slice_rule(x: Spec, *begins: Spec, axes: Shape, sizes: Shape, bounds: Words) -> Spec:
    _rule("dynamic_slice", x, begins, sizes, axes, bounds)
    shape = list(x.shape)
    for a, n in zip(axes, sizes, strict=True):
        shape[a] = n
    return Spec(tuple(shape), x.dtype)


def _slice_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels, axes = LETTERS[: ins[0].ndim], p["axes"]
    out = tuple(None if d in axes else c for d, c in enumerate(labels))
    reduced = tuple((labels[a], "sum") for a in axes)
    return Indices((tuple(labels), *((),) * len(axes)), (out,), reduced)


def _slice_kernel(
    xp: Any, out: Any, x: Any, *begins: Any, axes: Shape, sizes: Shape, bounds: Words, at: Place
) -> None:
    places = _places(xp, begins, at.in_shapes[0], sizes, axes, bounds)
    if device_of(out).is_host:
        source, target = [slice(None)] * x.ndim, [slice(None)] * x.ndim
        for a, p, n in zip(axes, places, sizes, strict=True):
            lo, hi = at.ins[0][a]
            first, last = max(p, lo), min(p + n, hi)
            last = max(first, last)
            source[a], target[a] = slice(first - lo, last - lo), slice(first - p, last - p)
        if any(hi - lo < at.in_shapes[0][a] for a in axes for lo, hi in (at.ins[0][a],)):
            out[...] = 0
        out[tuple(target)] = x[tuple(source)]
        return
    for a, p, n in zip(axes, places, sizes, strict=True):
        lo, hi = at.ins[0][a]
        x = _picked(xp, x, p - lo + xp.arange(n), a, hi - lo < at.in_shapes[0][a])
    out[...] = x


def _picked(xp: Any, x: Any, places: Any, axis: int, in_part: bool) -> Any:
    """Take what a part has at these places along an axis, and 0 for others."""
    count = x.shape[axis]
    if not in_part:
        return x.take(places, axis)
    if not count:
        return xp.zeros((*x.shape[:axis], places.size, *x.shape[axis + 1 :]), x.dtype)
    here = ((places >= 0) & (places < count)).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return xp.where(here, x.take(xp.clip(places, 0, count - 1), axis), xp.zeros((), x.dtype))


def _slice_grad(
    g: Array, y: Array, x: Array, *begins: Array, axes: Shape, sizes: Shape, bounds: Words
) -> Sequence[Array | None]:
    facts = {"axes": axes, "starts": (0,) * x.ndim, "mode": "set", "bounds": bounds}
    zeros = apply("full", shape=x.shape, value=0, dtype=g.dtype)
    return apply("dynamic_update_slice", zeros, g, *begins, **facts), *(None for _ in begins)


def _slice_batched(
    size: int, x: Mapped, *begins: Mapped, axes: Shape, sizes: Shape, bounds: Words
) -> Sequence[Mapped]:
    """Boxes that begin elsewhere in each element are what is at these places."""
    if not any(own for _, own in begins):
        later = tuple(a + 1 for a in axes)
        facts = {"axes": later, "sizes": sizes, "bounds": bounds}
        return [(apply("dynamic_slice", x[0], *[i for i, _ in begins], **facts), True)]
    whole, key = _in_front(size, x, begins, axes, sizes, bounds)
    front = range(1, 1 + len(axes))
    return [(moveaxis(whole[key], tuple(front), tuple(a + 1 for a in axes)), True)]


def _in_front(
    size: int, x: Mapped, begins: Sequence[Mapped], axes: Shape, sizes: Shape, bounds: Words
) -> tuple[Array, tuple[Array, ...]]:
    """All elements with these axes before the others, and a key of their boxes."""
    whole, has = x
    shape = whole.shape[has:]
    count = len(axes)
    whole = moveaxis(whole, [a + has for a in axes], range(has, has + count))
    each = reshape(iota((size,), 0), (size, *(1,) * count))
    key = [each] if has else []
    for k, ((i, own), a, n, how) in enumerate(zip(begins, axes, sizes, bounds, strict=True)):
        back, last = inside(shape[a], n, how)
        place = where(i < back, i + shape[a], i)
        if how == "clip":
            place = where(place < 0, 0, where(place > last, last, place))
        else:
            place = where((place < 0) | (place > last), shape[a], place)
        place = reshape(place, (-1, *(1,) * count)) if own else place
        key.append(place + reshape(iota((n,), 0), (n, *(1,) * (count - k - 1))))
    return whole, tuple(key)


op(
    "dynamic_slice",
    infer=_slice_rule,
    takes={"axes": AXES, "sizes": PLACES, "bounds": HOW},
    batched=_slice_batched,
    indices=_slice_indices,
    kernel=_slice_kernel,
    bounds_checked=True,
    pieces=lambda ins, *, axes, sizes, bounds: [
        Piece(0, places=(*range(1, len(ins)),), axes=axes, bounds=bounds, picks=True)
    ],
    grad=_slice_grad,
    cost=lambda ins, outs, p: (0.0, 2.0 * outs[0].nbytes),
    placed=True,
)


# -- dynamic_update_slice ------------------------------------------------------------------
def _extents(v: Shape, axes: Shape) -> Shape:
    return tuple(v[a] for a in axes)


def _update_rule(
    x: Spec, v: Spec, *begins: Spec, axes: Shape, starts: Shape, mode: str, bounds: Words
) -> Spec:
    name = "dynamic_update_slice"
    if v.ndim != x.ndim or v.dtype != x.dtype:
        raise unfit(name, (x, v), "as many axes in both, and one dtype")
    _rule(name, x, begins, _extents(v.shape, axes), axes, bounds)
    outside = any(a + n > m for a, n, m in zip(starts, v.shape, x.shape, strict=True))
    if outside or min(starts, default=0) < 0 or any(starts[a] for a in axes):
        raise unfit(name, (x, v), f"a box that begins inside, got {starts}")
    return x.bare


def _update_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    x, v = ins[:2]
    labels = tuple(LETTERS[: x.ndim])
    dims: list[Dim] = []
    for d, (c, start) in enumerate(zip(labels, p["starts"], strict=True)):
        moves, whole = d in p["axes"], v.shape[d] == x.shape[d]
        dims.append(None if moves else c if whole else Window(c, offset=-start))
    return Indices((labels, tuple(dims), *((),) * len(p["axes"])), (labels,))


def _update_kernel(
    xp: Any,
    out: Any,
    x: Any,
    v: Any,
    *begins: Any,
    axes: Shape,
    starts: Shape,
    mode: str,
    bounds: Words,
    at: Place,
) -> None:
    extents = _extents(at.in_shapes[1], axes)
    places = _places(xp, begins, at.in_shapes[0], extents, axes, bounds)
    if device_of(out).is_host:
        begin = list(starts)
        for a, p in zip(axes, places, strict=True):
            begin[a] = p
        update_box(xp, out, x, v, starts=tuple(begin), steps=(1,) * x.ndim, mode=mode, at=at)
        return
    if out is not x:
        xp.copyto(out, x)
    cut = [slice(None)] * x.ndim  # of the part what the others axes say
    for d, (start, (lo, hi), (first, last)) in enumerate(
        zip(starts, at.outs[0], at.ins[1], strict=True)
    ):
        if d not in axes:
            first, last = max(first, lo - start), min(last, hi - start)
            last = max(first, last)
            cut[d] = slice(start + first - lo, start + last - lo)
            v = v[(*(slice(None),) * d, slice(first - at.ins[1][d][0], last - at.ins[1][d][0]))]
    part = out[tuple(cut)]
    if any(hi - lo < at.in_shapes[0][a] for a in axes for lo, hi in (at.outs[0][a],)):
        here = xp.ones((1,) * x.ndim, bool)
        for a, p in zip(axes, places, strict=True):
            lo, hi = at.outs[0][a]
            far, line = xp.arange(lo, hi) - p, (-1,) + (1,) * (x.ndim - a - 1)
            here = here & ((far >= 0) & (far < v.shape[a])).reshape(line)
            v = _picked(xp, v, far, a, True)
        xp.copyto(part, _joined(xp, part, v, mode), where=here)
        return
    grid = [xp.arange(n) for n in part.shape]
    for a, p, n in zip(axes, places, extents, strict=True):
        grid[a] = p + xp.arange(n)
    key = tuple(line.reshape((-1,) + (1,) * (x.ndim - d - 1)) for d, line in enumerate(grid))
    part[key] = _joined(xp, part[key], v, mode)


def _joined(xp: Any, x: Any, v: Any, mode: str) -> Any:
    return (v if mode == "set" else getattr(xp, COMBINES[mode])(x, v)).astype(x.dtype, copy=False)


def _update_pieces(
    ins: Sequence[Shape], *, axes: Shape, starts: Shape, mode: str, bounds: Words
) -> list[Piece]:
    at = tuple(
        slice(None) if d in axes else slice(a, a + n)
        for d, (a, n) in enumerate(zip(starts, ins[1], strict=True))
    )
    places = (*range(2, len(ins)),)
    how = COMBINES.get(mode, "")
    return [Piece(0), Piece(1, at, places=places, axes=axes, bounds=bounds, combine=how)]


def _update_grad(
    g: Array,
    y: Array,
    x: Array,
    v: Array,
    *begins: Array,
    axes: Shape,
    starts: Shape,
    mode: str,
    bounds: Words,
) -> Sequence[Array | None]:
    facts = {"axes": axes, "bounds": bounds}

    def part(of: Array) -> Array:
        rest = {d: (starts[d], v.shape[d], 1) for d in range(x.ndim) if d not in axes}
        sizes = _extents(v.shape, axes)
        return apply("dynamic_slice", slice_axes(of, rest), *begins, sizes=sizes, **facts)

    def put(values: Array) -> Array:
        return apply("dynamic_update_slice", g, values, *begins, starts=starts, mode="set", **facts)

    return *grad_of_update(mode, g, y, x, v, part, put), *(None for _ in begins)


def _update_batched(
    size: int,
    x: Mapped,
    v: Mapped,
    *begins: Mapped,
    axes: Shape,
    starts: Shape,
    mode: str,
    bounds: Words,
) -> Sequence[Mapped]:
    whole, values = given_axis(x, size), given_axis(v, size)
    if not any(own for _, own in begins):
        facts = {"axes": tuple(a + 1 for a in axes), "starts": (0, *starts), "bounds": bounds}
        given = [i for i, _ in begins]
        return [(apply("dynamic_update_slice", whole, values, *given, mode=mode, **facts), True)]
    sizes = _extents(values.shape[1:], axes)
    moved, key = _in_front(size, (whole, True), begins, axes, sizes, bounds)
    back, front = [a + 1 for a in axes], range(1, 1 + len(axes))
    cuts = [slice(a, a + n) for a, n in zip(starts, values.shape[1:], strict=True)]
    rest = [cut for d, cut in enumerate(cuts) if d not in axes]
    made = updated_at(moved, (*key, *rest), moveaxis(values, back, front), mode)
    return [(moveaxis(made, front, back), True)]


op(
    "dynamic_update_slice",
    infer=_update_rule,
    takes={"axes": AXES, "starts": STARTS, "mode": one_of(*MODES), "bounds": HOW},
    batched=_update_batched,
    indices=_update_indices,
    kernel=_update_kernel,
    bounds_checked=True,
    pieces=_update_pieces,
    grad=_update_grad,
    cost=stream_cost(0),
    placed=True,
    overwrite=(0,),
)


# -- for users -----------------------------------------------------------------------------
def _begins(x: Array, starts: Any, sizes: Sequence[int], name: str) -> list[int | Array]:
    """Where a box begins, along each axis; numbers that are known are brought inside at once."""
    if isinstance(starts, (Array, np.ndarray)) and starts.ndim == 1:
        starts = [starts[k] for k in range(starts.shape[0])]
    starts = list(starts) if isinstance(starts, (list, tuple)) else [starts]
    if len(starts) != x.ndim or len(sizes) != x.ndim:
        got = f"{len(starts)} starts and {len(sizes)} extents for shape {x.shape}"
        raise misfit(ArgumentError, name, got=got, needed="one of each for every axis")
    if any(not 0 <= n <= m for n, m in zip(sizes, x.shape, strict=True)):
        got = f"extents {tuple(sizes)} for shape {x.shape}"
        needed = "extents of 0 or more that are no larger than the array's"
        raise misfit(ShapeError, name, got=got, needed=needed)
    found: list[int | Array] = []
    for i, n, m in zip(starts, sizes, x.shape, strict=True):
        given, i = i, as_array(i)
        if i.shape or not is_integer(i.dtype):
            got = f"a start {i.spec.bare}"
            raise misfit(ArgumentError, name, got=got, needed="whole numbers, one for every axis")
        if n == m:
            found.append(0)
        else:
            known = not isinstance(given, Array)
            found.append(first_of(int(given), m, n, "clip") if known else astype(i, int64))
    return found


@export
def dynamic_slice(
    x: Operandish, starts: Sequence[Operandish] | Operandish, sizes: Sequence[int]
) -> Array:
    """So many elements along each axis, from numbers on that may be known only as it runs. As in JAX,
    negative starts are counted from the end, and a box that would end outside begins earlier. (A
    slice `x[i:i + n]` is an error there.)

    >>> ost.dynamic_slice(ost.arange(5), [ost.asarray(3)], [4])
    Array([1, 2, 3, 4], dtype=int64)
    """
    x, sizes = as_array(x), listed(sizes, "dynamic_slice")
    begins = _begins(x, starts, sizes, "dynamic_slice")
    x = slice_axes(
        x, {d: (i, sizes[d], 1) for d, i in enumerate(begins) if not isinstance(i, Array)}
    )
    axes = tuple(d for d, i in enumerate(begins) if isinstance(i, Array))
    if not axes:
        return x
    given = [i for i in begins if isinstance(i, Array)]
    facts = {"axes": axes, "sizes": _extents(sizes, axes), "bounds": ("clip",) * len(axes)}
    return apply("dynamic_slice", x, *given, **facts)


@export
def dynamic_update_slice(
    x: Operandish, update: Operandish, starts: Sequence[Operandish] | Operandish
) -> Array:
    """The array with others in place of a box of its elements, which begins at numbers that may be known
    only as it runs. As in JAX, negative starts are counted from the end, and a box that would end
    outside begins earlier.

    >>> ost.dynamic_update_slice(ost.zeros(4), ost.ones(2), [ost.asarray(3)])
    Array([0., 0., 1., 1.], dtype=float64)
    """
    x = as_array(x)
    v = updated_values(x, update, "dynamic_update_slice")
    begins = _begins(x, starts, v.shape, "dynamic_update_slice")
    axes = tuple(d for d, i in enumerate(begins) if isinstance(i, Array))
    fixed = tuple(0 if isinstance(i, Array) else i for i in begins)
    if not axes:
        return apply("update_slice", x, v, starts=fixed, steps=(1,) * x.ndim, mode="set")
    given = [i for i in begins if isinstance(i, Array)]
    facts = {"axes": axes, "starts": fixed, "mode": "set", "bounds": ("clip",) * len(axes)}
    return apply("dynamic_update_slice", x, v, *given, **facts)
