"""Keys with one mask: what it picks while a function is traced (picked.py), and what an assignment to that
makes, which is a choice between old and new and needs no list of places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .core.array import Array, as_array, export
from .core.registry import lookup
from .elementwise import where
from .indexing import combined, fits, getitem, is_mask, is_number, is_places, updated
from .picked import Picked, are_same, pick
from .shape import moveaxis, reshape

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Opened:
    """A key whose one mask is taken out: the mask, where its axes are in what the key with slices in their
    place gives, and where NumPy puts them."""

    key: tuple[Any, ...]
    mask: Array
    axis: int
    place: int

    def of(self, x: Array) -> Array:
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


def _items(key: Any) -> list[Any]:
    return list(key) if isinstance(key, tuple) else [key]


@export
def picked(x: Array, key: Any) -> Array | None:
    """`x[key]`, if x or the key's one mask is not known yet."""
    if isinstance(x, Picked):
        return _again(x, key)
    for k in _items(key):
        if isinstance(k, Array) and k.dtype.kind == "b" and k.ndim and k._is_traced:
            found = opened(x, _items(key))
            return pick(found.of(x), found.mask, found.place) if found is not None else None
    return None


def under_mask(x: Array, items: Sequence[Any], v: Array, mode: str, what: str) -> Array | None:
    """The array after `x[items] = v`, or what else a mode does, if the key has one mask, and values are the
    same for all that it picks, or are picked by it."""
    if isinstance(x, Picked):
        return _changed(x, items, v, mode)
    found = opened(x, items)
    if found is None:
        return None
    old = found.of(x)
    width, behind = found.mask.ndim, old.ndim - found.place - found.mask.ndim
    places = reshape(found.mask, found.mask.shape + (1,) * behind)
    if isinstance(v, Picked):
        v = pick(old, found.mask, found.place).beside(v, what)
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
    calm = lookup(mode).calm
    new = combined(where(places, old, calm), where(places, v, calm), mode)
    return found.back(x, where(places, new, old))


@export
def picked_updated(x: Array, key: Any, v: Array, mode: str) -> Array | None:
    """`x.at[key].set(v)` and the like, if x or the key's one mask is not known yet."""
    items = _items(key)
    masks = [k for k in items if isinstance(k, Array) and k.dtype.kind == "b" and k.ndim]
    if isinstance(x, Picked) or any(k._is_traced for k in masks):
        return under_mask(x, items, v, mode, "x.at[...]")
    return None


# -- keys of what is picked ----------------------------------------------------------------
def _again(x: Picked, key: Any) -> Picked:
    """What a key takes of all that a mask picks: of other axes, or what another mask picks of that."""
    whole, mask, axis = _within(x, key)
    return pick(getitem(x.whole, whole), mask, axis)


def _changed(x: Picked, items: Sequence[Any], v: Array, mode: str) -> Picked:
    key, mask, axis = _within(x, tuple(items))
    if mask is x.mask:
        taken = pick(getitem(x.whole, key), mask, axis)
        v = taken.beside(v, "x[mask][...]")
    else:
        key = (*[_ALL] * axis, mask)
    return pick(updated(x.whole, key, v, mode), x.mask, x.axis, x.line)


def _within(x: Picked, key: Any) -> tuple[tuple[Any, ...], Array, int]:
    """A key of what is picked as a key of all; the mask that then picks, and where its axes begin."""
    items = _items(key)
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
    return k.ndim if isinstance(k, Array) and k.dtype.kind == "b" else 1


def _masks(k: Picked, x: Picked, here: int) -> bool:
    """Whether it is a mask of what is picked, from this axis on."""
    shape = k.whole.shape
    fits = here + k.axis == x.axis and x.whole.shape[here : here + len(shape)] == shape
    return k.dtype.kind == "b" and fits and are_same(k.mask, x.mask)
