"""Keys with one mask: what it picks while a function is traced (picked.py), and what an assignment to that
makes, which is a choice between old and new and needs no list of places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import export
from ..core.registry import lookup
from ..core.spec import int64
from .casts import astype
from .concatenation import concat
from .elementwise import where
from .picked import Picked, are_same, pick
from .shape import broadcast_to, copy, moveaxis, reshape
from .slicing import slice_axes
from .subscripts import combined, fits, getitem, is_mask, is_number, is_places, updated

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Opened:
    """A key whose one mask is taken out: the mask, where its axes are in what the key with slices in their
    place gives, and where NumPy puts them."""

    key: tuple[Any, ...]
    mask: Array
    axis: int
    place: int

    def expand(self, x: Array) -> Array:
        """All of which the mask picks."""
        return self._moved(getitem(x, self.key), self.axis, self.place)

    def back(self, x: Array, made: Array) -> Array:
        """The array with what this has become."""
        if all(isinstance(k, slice) and k == _ALL for k in self.key):
            return made
        return updated(x, self.key, self._moved(made, self.place, self.axis), "set")

    def _moved(self, y: Array, here: int, there: int) -> Array:
        own = range(self.mask.ndim)
        return (
            y if here == there else moveaxis(y, [here + d for d in own], [there + d for d in own])
        )


def _spelled(items: Sequence[Any], wanted: Sequence[int], ndim: int) -> list[Any] | None:
    """A key with a part for each axis, given how many axes each part speaks of."""
    dots = [n for n, k in enumerate(items) if k is Ellipsis]
    rest = ndim - sum(wanted)
    if len(dots) > 1 or rest < 0:
        return None  # which is refused elsewhere
    at = dots[0] if dots else len(items)
    return [*items[:at], *[_ALL] * rest, *items[at + 1 :]]


def opened(x: Array, items: Sequence[Any]) -> Opened | None:
    """A key with one mask, and no other places."""
    picks = [k for k in items if is_places(k)]
    if len(picks) != 1 or not is_mask(picks[0]):
        return None
    mask = as_array(picks[0])
    wanted = [
        mask.ndim if is_places(k) else int(k is not None and k is not Ellipsis) for k in items
    ]
    spelled = _spelled(items, wanted, x.ndim)
    if spelled is None:
        return None
    at = next(n for n, k in enumerate(spelled) if is_places(k))
    before = spelled[:at]
    first = sum(k is not None for k in before)
    if x.shape[first : first + mask.ndim] != mask.shape:
        return None
    axis = sum(not is_number(k) for k in before)
    fixed = [is_places(k) or is_number(k) for k in spelled]
    runs = sum(now and not last for last, now in zip([False, *fixed], fixed, strict=False))
    key = (*before, *[_ALL] * mask.ndim, *spelled[at + 1 :])
    return Opened(key, mask, axis, axis if runs == 1 else 0)


def parts_of(x: Array, key: Any) -> list[Any]:
    """The parts of a key; the places that `nonzero` gives of a mask are that mask again."""
    items = list(key) if isinstance(key, tuple) else [key]
    found = list[Any]()
    while items:
        k, count = items[0], 1
        if isinstance(k, Picked) and k.along == 0 and not isinstance(x, Picked):
            mask = k.mask
            run = [p for p in items[: mask.ndim] if isinstance(p, Picked) and p.mask is mask]
            ahead = sum(map(_axes_of, found))
            if any(p is Ellipsis for p in found):
                ahead = x.ndim - sum(map(_axes_of, items))
            fits = x.shape[ahead : ahead + mask.ndim] == mask.shape
            if fits and [p.along for p in run] == [*range(mask.ndim)]:
                k, count = mask, mask.ndim
        found.append(k)
        items = items[count:]
    return found


@export
def picked(x: Array, key: Any) -> Array | None:
    """`x[key]`, if x or the key's one mask is not known yet."""
    if _is_plain(x, key):
        return None
    items = parts_of(x, key)
    if isinstance(x, Picked):
        return _again(x, items)
    if any(isinstance(k, Picked) for k in items):
        return _gathered(x, items)
    if any(map(_is_open, items)):
        found = opened(x, items)
        if found is None:
            return None
        whole, mask = found.expand(x), copy(found.mask)  # either may be assigned to later
        return pick(copy(x) if whole is x else whole, mask, found.place)
    return None


def _is_plain(x: Array, key: Any) -> bool:
    """Whether nothing can be unknown, as of nearly all keys."""
    keys = key if key.__class__ is tuple else (key,)
    return x.__class__ is Array and not any(isinstance(k, Array) for k in keys)


def _is_open(k: Any) -> bool:
    """Whether it is a mask of which nobody knows how many it picks."""
    return isinstance(k, Array) and k.dtype.kind == "b" and k.ndim > 0 and k._is_traced


def assign_masked(x: Array, items: Sequence[Any], v: Array, mode: str, what: str) -> Array | None:
    """The array after `x[items] = v`, or what else a mode does, if the key has one mask, and values are the
    same for all that it picks, or are picked by it."""
    if isinstance(x, Picked):
        return _changed(x, items, v, mode)
    if any(isinstance(k, Picked) for k in items):
        return _scattered(x, items, v, mode, what)
    found = opened(x, items)
    if found is None:
        return None
    old = found.expand(x)
    width, behind = found.mask.ndim, old.ndim - found.place - found.mask.ndim
    places = reshape(found.mask, found.mask.shape + (1,) * behind)
    if isinstance(v, Picked):
        v = pick(old, found.mask, found.place).aligned(v, what)
    elif v.size == 1:
        v = reshape(v, ())
    else:
        while v.ndim > behind + 1 and v.shape[0] == 1:
            v = reshape(v, v.shape[1:])
        if v.ndim > behind:
            at = v.ndim - behind - 1
            if v.shape[at] != 1:
                return None
            v = reshape(v, (*v.shape[:at], *(1,) * width, *v.shape[at + 1 :]))
    fits(v, old.shape, what)
    if mode == "set":
        return found.back(x, where(places, v, old))
    calm = lookup(mode).element.calm
    new = combined(where(places, old, calm), where(places, v, calm), mode)
    return found.back(x, where(places, new, old))


@export
def picked_updated(x: Array, key: Any, v: Array, mode: str) -> Array | None:
    """`x.at[key].set(v)` and the like, if x or the key's one mask is not known yet."""
    if _is_plain(x, key):
        return None
    items = parts_of(x, key)
    if isinstance(x, Picked) or any(isinstance(k, Picked) or _is_open(k) for k in items):
        return assign_masked(x, items, v, mode, "x.at[...]")
    return None


# -- places that a mask picks ------------------------------------------------------------------
def _everywhere(items: Sequence[Any], what: str) -> tuple[tuple[Any, ...], Picked]:
    """A key with places for all, 0 where they are not picked; and what picks among these."""
    first = next(k for k in items if isinstance(k, Picked))
    for k in items:
        if isinstance(k, Picked):
            first.aligned(k, what)
            if k.trailing or k.axis or k.dtype.kind not in "iu":
                k.refuse()
        elif is_places(k):
            first.refuse()
    return tuple([k.filled(0, 0) if isinstance(k, Picked) else k for k in items]), first


def _group(items: Sequence[Any], ndim: int) -> int | None:
    """Before which axis of the result NumPy puts those of the places."""
    spelled = _spelled(items, [int(k is not None and k is not Ellipsis) for k in items], ndim)
    if spelled is None:
        return None
    fixed = [is_places(k) or is_number(k) for k in spelled]
    runs = sum(now and not last for last, now in zip([False, *fixed], fixed, strict=False))
    return fixed.index(True) if runs == 1 else 0


def _gathered(x: Array, items: Sequence[Any]) -> Picked | None:
    key, first = _everywhere(items, "index")
    axis = _group(items, x.ndim)
    return None if axis is None else first.like(getitem(x, key), axis)


def _scattered(x: Array, items: Sequence[Any], v: Array, mode: str, what: str) -> Array | None:
    """Each element put at its place, what is not picked behind the last."""
    numbers = reshape(apply("iota", shape=(x.size,), axis=0, dtype=int64), x.shape)
    picked = _gathered(numbers, items)
    if picked is None:
        return None
    values = broadcast_to(picked.aligned(v, what), picked.whole.shape)
    places = where(picked.places, picked.whole, x.size)
    room = concat([reshape(x, (-1,)), broadcast_to(astype(0, x.dtype), (1,))])
    flat = [reshape(y, (-1,)) for y in (places, values)]
    made = apply("put", room, *flat, axis=0, mode=mode)
    return reshape(slice_axes(made, {0: (0, x.size, 1)}), x.shape)


# -- keys of what is picked ----------------------------------------------------------------
def _again(x: Picked, items: Sequence[Any]) -> Picked:
    """Take by a key of all that a mask picks: of other axes, or what another mask picks of that."""
    whole, mask, axis = _within(x, items)
    return pick(getitem(x.whole, whole), mask, axis)


def _changed(x: Picked, items: Sequence[Any], v: Array, mode: str) -> Picked:
    key, mask, axis = _within(x, items)
    if mask is x.mask:
        taken = pick(getitem(x.whole, key), mask, axis)
        v = taken.aligned(v, "x[mask][...]")
    else:
        key = (*[_ALL] * axis, mask)
    return pick(updated(x.whole, key, v, mode), x.mask, x.axis, x.line)


def _within(x: Picked, items: Sequence[Any]) -> tuple[tuple[Any, ...], Array, int]:
    """A key of what is picked as a key of all; the mask that then picks, and where its axes begin."""
    spelled = _spelled(items, [_axes_of(k) for k in items], x.ndim)
    if spelled is None:
        x.refuse()
    whole, mask, axis, here = list[Any](), x.mask, 0, 0
    for k in spelled:
        out = sum(not is_number(k) for k in whole)
        if isinstance(k, Picked) and _masks(k, x, here):
            mask, axis = k.places & k.whole, out
            whole += [_ALL] * mask.ndim
        elif here == x.axis and isinstance(k, slice) and k == _ALL:
            axis = out
            whole += [_ALL] * mask.ndim
        elif is_places(k) or (here == x.axis and k is not None):
            x.refuse()
        else:
            whole.append(k)
        here += _axes_of(k)
    return tuple(whole), mask, axis


def _axes_of(k: Any) -> int:
    """How many axes of what is picked a part of a key speaks of."""
    if k is None or k is Ellipsis:
        return 0
    return as_array(k).ndim if is_places(k) and is_mask(k) else 1


def _masks(k: Picked, x: Picked, here: int) -> bool:
    """Whether it is a mask of what is picked, from this axis on."""
    shape = k.whole.shape
    fits = here + k.axis == x.axis and x.whole.shape[here : here + len(shape)] == shape
    return k.dtype.kind == "b" and fits and are_same(k.mask, x.mask)
