"""Assignment: after `x[key] = values` or `x += values` the Array x stands for another value, as NumPy
would have it.

Values themselves do not change, so whoever has the old one keeps it: other Arrays, views that were taken
before (none aliases), pending operations. Where nobody has it, plans write the new one over it.

    x[key] = v      update_slice, put     the elements at a key
    x[mask] = v     where                 if v is the same for all that a mask picks, or picked by it
    x += v          astype(x + v)

What NumPy makes copies of are Arrays of their own here; `astype` and `conj` of casts.py and
arithmetic.py, which all operations use, give what they are given where nothing changes."""

from __future__ import annotations

import math
from types import FrameType
from typing import Any

import numpy as np

from ostinato.errors import AssignmentError, DTypeError, ShapeError

from ..core import array
from ..core.apply import as_array, as_array_of
from ..core.array import Array, another, weak_kind
from ..core.array_methods import Operandish, export
from ..core.spec import DType, DTypeLike, Shape, is_inexact
from ..core.user_line import misfit
from ..core.views import is_dropped, is_shown
from . import arithmetic, casts
from .picked import Picked
from .picking import assign_masked, parts_of
from .shape import broadcast_to, reshape
from .subscripts import fits, shape_of, updated

__all__ = ["astype", "conj"]

WHAT = "x[...] = values"


@export
def astype(
    x: Operandish, dtype: DTypeLike, /, *, copy: bool = True, device: str | None = None
) -> Array:
    """The values in another dtype; with copy=False the array itself, if it has that dtype.

    >>> ost.astype([1.7, 2.2], ost.int32)
    Array([1, 2], dtype=int32)
    """
    made = casts.astype(x, dtype, device=device)
    return another(made) if copy and made is x else made


@export
def conj(x: Operandish, /) -> Array:
    """The complex conjugate.

    >>> ost.conj([1 + 2j])
    Array([1.-2.j], dtype=complex128)
    """
    made = arithmetic.conj(x)
    return another(made) if made is x else made


@export
def assigned(x: Array, key: Any, values: Operandish) -> Array:
    """Return what x stands for after `x[key] = values`."""
    v = _in_dtype(values, x.dtype)
    items = [_listed(k) for k in parts_of(x, key)]
    made = assign_masked(x, items, v, "set", WHAT)
    if made is not None:
        return made
    for k in items:
        if isinstance(k, Array) and k.dtype.kind == "b":  # whose picks are to be known
            array.reader.known(k, "x[mask] = values", shape=True)
    places = tuple(items)
    made = updated(x, places, _stretched(v, shape_of(x, places)), "set")
    return another(made) if made is values or made is x else made


@export
def assigned_in_place(x: Array, made: Array, what: str) -> Array:
    """Return what x stands for after this is assigned to it: in its own shape and dtype."""
    picks = isinstance(x, Picked) and isinstance(made, Picked) and x.goes_with(made)
    if not picks and made.shape != x.shape:
        got = f"a result of shape {made.shape} for an array of shape {x.shape}"
        do = "make another array of it, e.g. x = x + y"
        raise misfit(ShapeError, what, got=got, needed="the array's own shape", do=do)
    return cast_in_place(made, x.dtype, what)


@export
def cast_in_place(made: Array, dtype: DType, what: str) -> Array:
    """A result in the dtype of the array that it is assigned to, if NumPy would cast it so."""
    if _rank(made.dtype) > _rank(dtype):
        got = f"a result of dtype {made.dtype.name} for an array of {dtype.name}"
        do = f"convert the array first, x.astype(ost.{made.dtype.name}), or make another one"
        raise misfit(DTypeError, what, got=got, needed="a dtype of the same kind", do=do)
    return astype(made, dtype, copy=False)


@export
def changed(x: Any, made: Array, what: str, frame: FrameType) -> Array:
    """Let x stand for the result of what NumPy does in place: in a statement, x itself is that from
    now on."""
    if not (is_dropped(frame) or (isinstance(x, Array) and is_shown(frame))):
        return made
    if not isinstance(x, Array):
        got, do = f"a {type(x).__name__}, and nobody who takes the result", "assign the result"
        raise misfit(AssignmentError, what, got=got, needed="an array of ost's", do=do)
    x._tell_view(what, frame, False)
    return written(x, made, what)


@export
def written(x: Array, made: Array, what: str) -> Array:
    """The Array x, to which a function of NumPy's assigned this."""
    x._check_own(what)
    x._become(assigned_in_place(x, made, what))
    return x


def _rank(dtype: DType) -> int:
    """In NumPy's order of kinds, in which casts may go up, and stay where they are."""
    return 3 if is_inexact(dtype) and dtype.kind != "c" else "bui_c".index(dtype.kind)


def _in_dtype(values: Operandish, dtype: DType) -> Array:
    """Values in the array's dtype, by NumPy's rules: real numbers become any other real ones."""
    kind = weak_kind(values)
    v = None if kind is not None else as_array(values)
    if dtype.kind != "c" and (kind is complex or (v is not None and v.dtype.kind == "c")):
        got, needed = f"complex values for an array of {dtype.name}", "real values"
        raise misfit(DTypeError, WHAT, got=got, needed=needed, do="take their real part first")
    if v is not None:
        return astype(v, dtype, copy=False)
    if type(values) is float and dtype.kind in "iu":
        if not math.isfinite(values):
            raise misfit(DTypeError, WHAT, got=str(values), needed=f"what {dtype.name} can hold")
        values = int(values)
    return as_array_of(values, dtype)


def _listed(k: Any) -> Any:
    """A list of bools is a mask."""
    mask = isinstance(k, list) and np.asarray(k).dtype == bool
    return np.asarray(k) if mask else k


def _stretched(v: Array, target: Shape) -> Array:
    """Values as NumPy fits them to places: axes of 1 in front are no axes."""
    extra = max(v.ndim - len(target), 0)
    if extra and all(n == 1 for n in v.shape[:extra]):
        v = reshape(v, v.shape[extra:])
    return broadcast_to(v, fits(v, target, WHAT))
