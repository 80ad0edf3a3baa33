"""Arrays by NumPy's other spellings: grids and joined ranges in brackets, and `ndarray(shape)`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import ArgumentError

from ..core.apply import unify
from ..core.array import Array
from ..core.spec import DTypeLike, ShapeLike, promote
from ..core.user_line import misfit
from .casts import as_dtype
from .concatenation import concat, stack
from .creation import arange, asarray, empty, linspace, meshgrid
from .shape import permute_dims, reshape

__all__ = ["c_", "frombuffer", "fromiter", "index_exp", "mgrid", "ndarray", "ogrid", "r_", "s_"]

s_, index_exp = np.s_, np.index_exp  # slices, written as in brackets


def _range(key: Any, name: str) -> Array:
    """The numbers of a slice; an imaginary step says how many there are, the last one included."""
    if not isinstance(key, slice):
        got, do = f"a {type(key).__name__}", f"write e.g. ost.{name}[0:3, 0:1:5j]"
        raise misfit(ArgumentError, f"ost.{name}[...]", got=got, needed="slices", do=do)
    start = 0 if key.start is None else key.start
    step = 1 if key.step is None else key.step
    if isinstance(step, complex):
        return linspace(start, key.stop, int(abs(step)))
    return arange(start, key.stop, step)


def frombuffer(buffer: Any, dtype: DTypeLike = float, count: int = -1, offset: int = 0) -> Array:
    """The numbers whose bytes lie in a buffer, which is copied.

    >>> ost.frombuffer(bytes([1, 2]), dtype=ost.uint8)
    Array([1, 2], dtype=uint8)
    """
    return asarray(np.frombuffer(buffer, as_dtype(dtype), count, offset))


def fromiter(iter: Iterable[Any], dtype: DTypeLike, count: int = -1) -> Array:
    """The numbers that come one after the other.

    >>> ost.fromiter((k * k for k in range(3)), int)
    Array([0, 1, 4], dtype=int64)
    """
    return asarray(np.fromiter(iter, as_dtype(dtype), count))


class Grid:
    """Coordinates of the points of a grid, as `numpy.mgrid` (all of them) and `numpy.ogrid` (those
    along each axis) have them. A slice with an imaginary step has so many points.

    >>> ost.mgrid[0:2, 0:3]
    Array([[[0, 0, 0],
            [1, 1, 1]],
    <BLANKLINE>
           [[0, 1, 2],
            [0, 1, 2]]], dtype=int64)
    >>> ost.ogrid[0:1:3j, 0:2][1]
    Array([[0., 1.]], dtype=float64)
    """

    def __init__(self, name: str, sparse: bool) -> None:
        self._name, self._sparse = name, sparse

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, tuple):
            return _range(key, self._name)
        rows = [_range(k, self._name) for k in key]
        kind = promote(*(x.dtype for x in rows))
        rows = meshgrid(*(asarray(x, dtype=kind) for x in rows), indexing="ij", sparse=self._sparse)
        return tuple(rows) if self._sparse else stack(rows)


mgrid, ogrid = Grid("mgrid", False), Grid("ogrid", True)


class Joined:
    """Arrays, numbers and ranges in brackets, joined as `numpy.r_` (along the first axis) and
    `numpy.c_` (as columns) do. A text in front says other axes: "axis", "axis,ndim" or
    "axis,ndim,where the axes of what has fewer begin".

    >>> ost.r_[0:3, 7, [8, 9]]
    Array([0, 1, 2, 7, 8, 9], dtype=int64)
    >>> ost.c_[[1, 2], [3, 4]]
    Array([[1, 3],
           [2, 4]], dtype=int64)
    """

    def __init__(self, name: str, axis: int, ndim: int, begin: int) -> None:
        self._name, self._how = name, (axis, ndim, begin)

    def __getitem__(self, key: Any) -> Array:
        items = list(key) if isinstance(key, tuple) else [key]
        axis, ndim, begin = self._how
        if items and isinstance(items[0], str):
            axis, ndim, begin = self._read(items.pop(0))
        given = [_range(x, self._name) if isinstance(x, slice) else x for x in items]
        given = [asarray(x) if isinstance(x, (list, tuple, range)) else x for x in given]
        return concat([_with_axes(x, ndim, begin) for x in unify(*given)], axis=axis)

    def _read(self, text: str) -> tuple[int, int, int]:
        try:
            numbers = [int(word) for word in text.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3:
            needed = "up to three whole numbers in a text, such as '0,2'"
            raise misfit(ArgumentError, f"ost.{self._name}[...]", got=repr(text), needed=needed)
        axis, ndim, begin = (*numbers, *(0, 1, -1)[len(numbers) :])
        return axis, ndim, begin


def _with_axes(x: Array, ndim: int, begin: int) -> Array:
    """With so many axes; those that it has begin there, or at the end."""
    more = ndim - x.ndim
    if more <= 0:
        return x
    wide = reshape(x, (1,) * more + x.shape)
    at = begin + more + 1 if begin < 0 else min(begin, more)
    order = list(range(ndim))
    return permute_dims(wide, [*order[:at], *order[more:], *order[at:more]])


r_, c_ = Joined("r_", 0, 1, -1), Joined("c_", -1, 2, 0)


class _OfArrays(type):
    """What says that arrays are its instances, though their class has another name."""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Array)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, Array)


if TYPE_CHECKING:
    ndarray = Array
else:

    class ndarray(Array, metaclass=_OfArrays):
        """The class of arrays by NumPy's name, and a maker of one whose values nobody has set.

        >>> ost.ndarray((2, 3), ost.float32).shape
        (2, 3)
        >>> isinstance(ost.ones(3), ost.ndarray)
        True
        """

        __slots__ = ()

        def __new__(
            cls,
            shape: ShapeLike,
            dtype: DTypeLike = float,
            buffer: Any = None,
            offset: int = 0,
            strides: Any = None,
            order: str | None = None,
        ) -> Array:
            if buffer is None:
                return empty(shape, dtype=dtype)
            return asarray(np.ndarray(shape, dtype, buffer, offset, strides, order))
