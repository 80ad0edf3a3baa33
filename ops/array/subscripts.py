"""Subscripts: what `x[key]` and `x.at[key]` mean, made of slices, takes and puts.

Numbers, slices, None and ... are slices. Arrays of integers are `take` along one axis; several of them
become one flat index first. A mask has as many results as it has True, so it is read at once; while
tracing that is an error which names the static alternative."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import EllipsisType, NoneType
from typing import Any, NamedTuple

import numpy as np

from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError

from ..core import array
from ..core.apply import apply, as_array, unify, unmasked
from ..core.array import Array
from ..core.array_methods import Operandish, export, functions
from ..core.operand import Host
from ..core.spec import Shape, int64, is_inexact
from ..core.user_line import misfit
from .arithmetic import maximum, minimum
from .casts import astype
from .elementwise import where
from .extents import distance
from .indexing import checked_indices, flat_index, take_along_axis
from .shape import broadcast_to, expand_dims, moveaxis, reshape, squeeze
from .slicing import MODES, slice_axes, sliced

_WHOLE = frozenset((int, NoneType))


class _Plain(NamedTuple):
    """A key of numbers, slices and new axes alone, as most are."""

    parts: list[tuple[int, int, int]]  # of each axis: start, size, step
    drop: tuple[int, ...]  # axes of which it takes one element
    new: tuple[int, ...]  # axes of the result that are new

    @property
    def shape(self) -> Shape:
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
    """The part of a key for one axis: a slice, a number, or an array of places."""

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
        got = f"{wanted} indices for shape {x.shape}"
        raise misfit(BoundsError, "index", got=got, needed=f"at most {x.ndim}")
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
                needed = (
                    f"{-size} to {size - 1}, as the axis has {size} elements"
                    if size
                    else "nothing, as it is empty"
                )
                raise misfit(BoundsError, "index", got=f"{n} on axis {axis}", needed=needed)
            found.append(_Axis((n % size, 1, 1), drop=True))
        else:
            needed = "numbers, slices, None, ..., arrays of integers, or masks of bools"
            raise misfit(ArgumentError, "index", got=f"{type(k).__name__} {k!r:.40}", needed=needed)
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
        return [checked_indices(np.asarray(operator.index(k)), shape[0], "index")]
    if not is_mask(k):
        if not isinstance(k, Array) and np.asarray(k).dtype.kind not in "iu":
            got = f"an array of {np.asarray(k).dtype}"
            raise misfit(DTypeError, "index", got=got, needed="integers or bools")
        return [checked_indices(k, shape[0], "index")]
    if not all(m in (n, 0) for m, n in zip(np.shape(k), shape, strict=True)):
        got = f"a mask of shape {np.shape(k)}"
        raise misfit(BoundsError, "index", got=got, needed=f"the shape {shape} of what it masks")
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
    found: Array | None = functions["picked"](x, key)
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
    """List what begins along some axes where is known only as it runs."""
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
    if isinstance(i._operand, Host):
        return bool((i._operand.value == np.arange(size)).all())
    op = i._term.op if i._term is not None else None
    return op is not None and op.name == "iota"


# -- updates -------------------------------------------------------------------------------
@export
def updated(x: Array, key: Any, values: Operandish, mode: str) -> Array:
    assert mode in MODES
    v = updated_values(x, values)
    made: Array | None = functions["picked_updated"](x, key, v, mode)
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
        got = f"values of dtype {v.dtype.name} for an array of {x.dtype.name}"
        needed = "values that the array's dtype can hold"
        do = f"convert one of them, e.g. x.astype(ost.{v.dtype.name})"
        raise misfit(DTypeError, what, got=got, needed=needed, do=do)
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
        got = f"values of shape {v.shape}"
        raise misfit(ShapeError, what, got=got, needed=f"a shape that broadcasts to {target}")
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
