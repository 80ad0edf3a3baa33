"""Methods of an Array that are functions by another spelling, `x.sum()` for `sum(x)`, and `x.at`.

The families of operations register their functions here (`export`), so that no arrow points back."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    SupportsIndex,
    TypeGuard,
    TypeVar,
    cast,
    runtime_checkable,
)

import numpy as np

from .operand import Split
from .spec import DType, DTypeLike, Shape, Spec
from .tracebacks import shorten

F = TypeVar("F", bound=Callable[..., Any])
# filled by the op families; what operators and methods call
functions: dict[str, Callable[..., Any]] = {}
A = TypeVar("A", bound="ArrayMethods[Any]")


class ArrayMethods(Generic[A]):
    """The methods of an Array that call the function of the same name."""

    __slots__ = ()
    spec: Spec
    weak: type | None

    if TYPE_CHECKING:

        @property
        def shape(self) -> Shape: ...
        @property
        def ndim(self) -> int: ...
        @property
        def size(self) -> int: ...
        @property
        def dtype(self) -> DType: ...
        def __iter__(self) -> Iterator[A]: ...
        def __copy__(self) -> A: ...
        def __getitem__(self, key: Any) -> A: ...
        def __setitem__(self, key: Any, values: Operandish) -> None: ...
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...

    @property
    def at(self) -> At[A]:
        """`x.at[key].set(v)`, `.add(v)`, ...: the array with some elements changed."""
        return At(cast(A, self))

    @property
    def T(self) -> A:
        """The array with its axes reversed."""
        return call("permute_dims", self, _axes_range(self.ndim - 1, -1, -1))

    @property
    def mT(self) -> A:
        """The last two axes swapped."""
        return call("matrix_transpose", self)

    @property
    def real(self) -> A:
        return call("real", self)

    @property
    def imag(self) -> A:
        return call("imag", self)

    def conj(self) -> A:
        return call("conj", self)

    conjugate = conj

    def copy(self, order: str = "C") -> A:
        return call("copy", self, order)

    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> A:
        if not copy:
            return cast(A, functions["astype"](self, dtype, copy=False))
        return call("astype", self, dtype)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> A:
        given = shape[0] if len(shape) == 1 and not is_count(shape[0]) else shape
        return call("reshape", self, given, order, copy=copy)

    def transpose(self, *axes: Any) -> A:
        """Axes in the given order; reversed if none is given."""
        if not axes:
            return self.T
        return call("permute_dims", self, axes[0] if not is_count(axes[0]) else axes)

    def swapaxes(self, axis1: int, axis2: int) -> A:
        return call("swapaxes", self, axis1, axis2)

    def ravel(self, order: str = "C") -> A:
        return call("reshape", self, (-1,), order)

    @property
    def flat(self) -> Flat[A]:
        """The elements in one row: to be read, assigned to, gone through.

        >>> ost.eye(2).flat[1:3]
        Array([0., 0.], dtype=float64)
        """
        return Flat(cast(A, self))

    flatten = ravel

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> A:
        if axis is None:
            axis = tuple(d for d, n in enumerate(self.shape) if n == 1)
        return call("squeeze", self, axis)

    def resplit(self, split: Split = None, *, mesh: tuple[int, ...] | None = None) -> A:
        """Lay the values out in another way: split along a dimension (or one per mesh axis), None
        for replicas."""
        return call("resplit", self, split, mesh=mesh)

    def sum(
        self,
        axis: Axis = None,
        dtype: Any = None,
        out: A | None = None,
        keepdims: bool = False,
        initial: Operandish | None = None,
        where: Operandish | None = None,
    ) -> A:
        return call("sum", self, axis, dtype, out, keepdims, initial=initial, where=where)

    def prod(
        self,
        axis: Axis = None,
        dtype: Any = None,
        out: A | None = None,
        keepdims: bool = False,
        initial: Operandish | None = None,
        where: Operandish | None = None,
    ) -> A:
        return call("prod", self, axis, dtype, out, keepdims, initial=initial, where=where)

    def mean(
        self,
        axis: Axis = None,
        dtype: Any = None,
        out: A | None = None,
        keepdims: bool = False,
        where: Operandish | None = None,
    ) -> A:
        return call("mean", self, axis, dtype, out, keepdims, where=where)

    def var(
        self,
        axis: Axis = None,
        dtype: Any = None,
        out: A | None = None,
        ddof: float | None = None,
        keepdims: bool = False,
        *,
        correction: float = 0.0,
        where: Operandish | None = None,
    ) -> A:
        how = {"correction": correction, "where": where}
        return call("var", self, axis, dtype, out, ddof, keepdims, **how)

    def std(
        self,
        axis: Axis = None,
        dtype: Any = None,
        out: A | None = None,
        ddof: float | None = None,
        keepdims: bool = False,
        *,
        correction: float = 0.0,
        where: Operandish | None = None,
    ) -> A:
        how = {"correction": correction, "where": where}
        return call("std", self, axis, dtype, out, ddof, keepdims, **how)

    def min(
        self,
        axis: Axis = None,
        out: A | None = None,
        keepdims: bool = False,
        initial: Operandish | None = None,
        where: Operandish | None = None,
    ) -> A:
        return call("min", self, axis, out, keepdims, initial=initial, where=where)

    def max(
        self,
        axis: Axis = None,
        out: A | None = None,
        keepdims: bool = False,
        initial: Operandish | None = None,
        where: Operandish | None = None,
    ) -> A:
        return call("max", self, axis, out, keepdims, initial=initial, where=where)

    def argmin(self, axis: int | None = None, out: A | None = None, *, keepdims: bool = False) -> A:
        return call("argmin", self, axis, out, keepdims=keepdims)

    def argmax(self, axis: int | None = None, out: A | None = None, *, keepdims: bool = False) -> A:
        return call("argmax", self, axis, out, keepdims=keepdims)

    def any(
        self,
        axis: Axis = None,
        out: A | None = None,
        keepdims: bool = False,
        where: Operandish | None = None,
    ) -> A:
        return call("any", self, axis, out, keepdims, where=where)

    def all(
        self,
        axis: Axis = None,
        out: A | None = None,
        keepdims: bool = False,
        where: Operandish | None = None,
    ) -> A:
        return call("all", self, axis, out, keepdims, where=where)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike | None = None) -> A:
        return call("cumsum", self, axis, dtype=dtype)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike | None = None) -> A:
        return call("cumprod", self, axis, dtype=dtype)

    def repeat(self, repeats: Any, axis: int | None = None) -> A:
        return call("repeat", self, repeats, axis=axis)

    def clip(self, min: Operandish | None = None, max: Operandish | None = None) -> A:
        return call("clip", self, min, max)

    def round(self, decimals: int = 0) -> A:
        return call("round", self, decimals)

    def sort(
        self,
        axis: int | None = -1,
        kind: str | None = None,
        *,
        descending: bool = False,
        stable: bool | None = True,
    ) -> A:
        """The elements in order; as a statement, it sorts the array itself, as NumPy's does."""
        made = call("sort", self, axis, kind, descending=descending, stable=stable)
        return cast(A, functions["changed"](self, made, "x.sort()", sys._getframe(1)))

    def argsort(
        self,
        axis: int | None = -1,
        kind: str | None = None,
        *,
        descending: bool = False,
        stable: bool | None = True,
    ) -> A:
        return call("argsort", self, axis, kind, descending=descending, stable=stable)

    def take(self, indices: Operandish, axis: int | None = None, mode: str = "raise") -> A:
        return call("take", self, indices, axis=axis, mode=mode)

    def searchsorted(
        self, v: Operandish, side: Literal["left", "right"] = "left", sorter: Any = None
    ) -> A:
        return call("searchsorted", self, v, side, sorter)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> A:
        return call("diagonal", self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> A:
        return call("trace", self, offset, axis1, axis2)

    def nonzero(self) -> tuple[A, ...]:
        return cast("tuple[A, ...]", functions["nonzero"](self))


Axis = int | tuple[int, ...] | None


def _axes_range(*args: int) -> tuple[int, ...]:
    return tuple(builtins.range(*args))


def is_count(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number, and no array: also one among a compiled function's arguments."""
    return isinstance(value, SupportsIndex) and getattr(value, "ndim", 0) == 0


WEAK = {"b": bool, "i": int, "u": int, "f": float, "c": complex}


def call(name: str, x: ArrayMethods[A], *args: Any, **kwargs: Any) -> A:
    """The result of a function for an operator or method: of a Python number a number again."""
    try:
        made = cast(A, functions[name](x, *args, **kwargs))
    except Exception as error:
        shorten(error)
        raise
    if x.weak is not None:
        made.weak = WEAK.get(made.dtype.kind)
    return made.__copy__() if made is x else made


@runtime_checkable
class Readable(Protocol):
    """Anything that offers its values as an array."""

    def __array__(self) -> Any: ...


class Lent(Protocol):
    """Anything that lends its memory by the protocol DLPack."""

    def __dlpack__(self) -> Any: ...


# an Array, a number, or anything that NumPy can read
Operandish = (
    ArrayMethods[Any]
    | complex
    | np.ndarray[Any, Any]
    | np.generic
    | list[Any]
    | tuple[Any, ...]
    | range
    | Readable
    | Lent
)


class At(Generic[A]):
    """`x.at`: a place in an array, to make another array that differs there."""

    __slots__ = ("_x",)

    def __init__(self, x: A) -> None:
        self._x = x

    def __getitem__(self, key: Any) -> Spot[A]:
        return Spot(self._x, key)


class Flat(Generic[A]):
    """`x.flat`: the elements of x in one row."""

    __slots__ = ("_x",)

    def __init__(self, x: A) -> None:
        self._x = x

    def __len__(self) -> int:
        return self._x.size

    def __iter__(self) -> Iterator[A]:
        return iter(self._x.ravel())

    def __getitem__(self, key: Any) -> A:
        return self._x.ravel()[key]

    def __setitem__(self, key: Any, values: Operandish) -> None:
        row = self._x.ravel()
        self._x[...] = functions["assigned"](row, key, values).reshape(self._x.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self._x.ravel().__array__(dtype, copy)


class Spot(Generic[A]):
    """`x.at[key]`."""

    __slots__ = ("_key", "_x")

    def __init__(self, x: A, key: Any) -> None:
        self._x = x
        self._key = key

    def get(self) -> A:
        """x[key]"""
        return self._x[self._key]

    def set(self, values: Operandish) -> A:
        """The array with these values there; of several for one place, the last."""
        return cast(A, functions["updated"](self._x, self._key, values, "set"))

    def add(self, values: Operandish) -> A:
        """The array with these values added there, each as often as it comes."""
        return cast(A, functions["updated"](self._x, self._key, values, "add"))

    def multiply(self, values: Operandish) -> A:
        """The array multiplied there."""
        return cast(A, functions["updated"](self._x, self._key, values, "multiply"))

    def min(self, values: Operandish) -> A:
        """The array with the smaller of old and new there."""
        return cast(A, functions["updated"](self._x, self._key, values, "min"))

    def max(self, values: Operandish) -> A:
        """The array with the larger of old and new there."""
        return cast(A, functions["updated"](self._x, self._key, values, "max"))


def export(function: F) -> F:
    """Make a function available to Array's operators and methods under its own name."""
    functions[function.__name__] = function
    return function
