"""What is known of an array before it exists: shape, dtype and, once planned, layout.

Specs are interned: two specs with the same content are the same object, so that comparing the
signatures of two calls costs a few pointer comparisons. The shape is always the global one,
whatever the layout."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol, SupportsIndex

import ml_dtypes
import numpy as np

from ostinato.errors import MemoryLimitError, OstinatoError, ShapeError

from .layout import Layout
from .user_line import misfit, short, user_line

DType = np.dtype[Any]


class HasDType(Protocol):
    """What NumPy takes for a dtype, such as ost.float32."""

    @property
    def dtype(self) -> DType: ...


DTypeLike = DType | HasDType | type[Any] | str  # what users may call a dtype: float, "int8", ...
ShapeLike = SupportsIndex | Sequence[SupportsIndex]
Shape = tuple[int, ...]

bool_ = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
complex64, complex128 = np.dtype(np.complex64), np.dtype(np.complex128)

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        *(bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
        *(float16, bfloat16, float32, float64, complex64, complex128),
    )
}


def is_float(dtype: DType) -> bool:
    """Real floating point, bfloat16 included (NumPy files it under 'void')."""
    return dtype.kind == "f" or dtype == bfloat16


def is_inexact(dtype: DType) -> bool:
    return dtype.kind in "fc" or dtype == bfloat16


def is_integer(dtype: DType) -> bool:
    return dtype.kind in "iu"


def widened(dtypes: Iterable[DType]) -> tuple[DType, ...]:
    """These dtypes, bfloat16 as float32 where it meets another that it cannot hold."""
    given = tuple(dtypes)
    if bfloat16 in given and not {d.name for d in given} <= {"bfloat16", "bool", "int8", "uint8"}:
        return tuple(float32 if d == bfloat16 else d for d in given)
    return given


@lru_cache(4096)
def promote(*dtypes: DType) -> DType:
    """The dtype that NumPy promotes these to."""
    return np.result_type(*widened(dtypes))


def real_of(dtype: DType) -> DType:
    if dtype == complex64:
        return float32
    return float64 if dtype == complex128 else dtype


def complex_of(dtype: DType) -> DType:
    """The complex dtype that can hold this."""
    return dtype if dtype.kind == "c" else promote(dtype, complex64)


_known: dict[Any, Any] = {}  # what somebody has, and what `_gone` lists
_gone: deque[Any] = deque()  # listed by the interpreter: in a line of Python Ctrl-C is lost


def _forget() -> None:
    """Drop specs that nobody has any more, before another is made."""
    while _gone:
        with contextlib.suppress(IndexError):  # another thread was faster
            lost = _gone.popleft()
            key = lost.key
            if _known.get(key) is lost:
                del _known[key]


@lru_cache(256)
def _hold(made: Spec) -> Spec:
    """Keep a spec that was made lately a while: iterations of a loop have the same ones."""
    return made


MOST_AXES = 50  # letters for indices, and room in NumPy
MOST_BYTES = 2**62  # of one array, counted without extents of 0


def misshapen(shape: Any, itemsize: int) -> bool:
    """Whether no array can have these extents: some are no numbers or below 0, or all are too much."""
    for n in shape:
        if type(n) is not int or n < 0:
            return True
    return len(shape) > MOST_AXES or math.prod(filter(None, shape)) * itemsize > MOST_BYTES


class Spec:
    """Shape, dtype, layout of one array. `pending`: it is the request of a started collective."""

    __slots__ = ("__weakref__", "dtype", "layout", "nbytes", "pending", "shape", "size")
    shape: Shape
    dtype: DType
    layout: Layout | None
    pending: bool
    size: int
    nbytes: int

    def __new__(
        cls, shape: Shape, dtype: DType, layout: Layout | None = None, pending: bool = False
    ) -> Spec:
        key = (shape, dtype, layout, pending)
        known = _known.get(key)
        found = known() if known is not None else None
        if found is None and misshapen(shape, dtype.itemsize):
            got = f"shape {shape!r:.120} of {dtype.name}"
            needed = f"up to {MOST_AXES} extents of 0 or more, and fewer than 2**62 bytes"
            raise misfit(ShapeError, "an array", got=got, needed=needed)
        while found is None:
            _forget()
            made = object.__new__(cls)
            size = math.prod(shape)
            for name, value in zip(
                ("shape", "dtype", "layout", "pending", "size", "nbytes"),
                (*key, size, size * dtype.itemsize),
                strict=True,
            ):
                object.__setattr__(made, name, value)
            there = _known.setdefault(key, weakref.KeyedRef(made, _gone.append, key))
            if (found := there()) is None:  # Ctrl-C came before that was forgotten
                _gone.append(there)
            _hold(found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Spec does not change; make another: Spec(..., {name}={value!r})")

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def bare(self) -> Spec:
        """Drop the layout."""
        return Spec(self.shape, self.dtype) if self.layout is not None else self

    def at(self, layout: Layout | None) -> Spec:
        return Spec(self.shape, self.dtype, layout, self.pending)

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.shape, self.dtype, self.layout, self.pending)

    def __repr__(self) -> str:
        text = f"{self.dtype.name}[{','.join(map(str, self.shape))}]"
        if self.pending:
            text = f"pending {text}"
        return f"{text} @ {self.layout}" if self.layout is not None else text


class Own(np.ndarray[Any, Any]):
    """Memory that only workers write to: what users are given of it is read-only."""


def no_memory(
    size: int, what: str, why: str = "an allocation", line: str = "", free: int | None = None
) -> OstinatoError:
    """There is less memory than is needed. What was there before is as it was."""
    do = "free other arrays, or let ost.connect(memory_limit=bytes) run it block after block"
    got = f"no {size / 2**20:,.0f} MiB of memory for {what}{left(free)}"
    line = line or short(user_line())
    return MemoryLimitError.because(why, got=got, do=do, line=line)


def left(free: int | None) -> str:
    """How many bytes there are, as far as that is known."""
    return f"; {free / 2**20:,.0f} MiB are free" if free is not None else ""


def empty_aligned(shape: Sequence[int], dtype: DType) -> Any:
    """Memory of our own for an array that begins on a line of the cache, which whole vectors then
    never cross; little ones lie where they come."""
    size = math.prod(shape) * dtype.itemsize
    if size < 4096:
        return np.ndarray(tuple(shape), dtype, Own(size, np.uint8))
    try:
        raw = Own(size + 64, np.uint8)
    except MemoryError:
        raise no_memory(size, "an array") from None
    return np.ndarray(tuple(shape), dtype, raw, -raw.ctypes.data % 64)


def is_own(array: Any) -> bool:
    """Whether it may be written to: nobody else's memory, and not what a user was given to look at."""
    return not isinstance(array, np.ndarray) or type(array.base) is Own


def owned(fresh: np.ndarray[Any, Any]) -> Any:
    """An array in order that nobody else has, as memory of our own."""
    return np.ndarray(fresh.shape, fresh.dtype, fresh.reshape(-1).view(np.uint8).view(Own))


def lent(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Make the read-only view of an array that users are given: the same memory, which NumPy lets
    nobody make writeable again, as what stands behind it is no array."""
    if array.dtype == bfloat16:  # of which Python's buffers know nothing
        return lent(array.view(np.uint16)).view(bfloat16)
    return np.asarray(memoryview(array).toreadonly())  # type: ignore[arg-type]


def copied(value: Any) -> Any:
    """A copy in memory of our own, in the machine's order of bytes."""
    made = empty_aligned(value.shape, value.dtype.newbyteorder("="))
    made[...] = value
    return made


def strided_like(shape: Sequence[int], dtype: Any, strides: Sequence[int] | None = None) -> Any:
    """An array of this form, in order if nothing else is said; its elements are not there."""
    steps = []
    size = dtype.itemsize
    for n in reversed(tuple(shape)):
        steps.append(size)
        size *= n
    given = tuple(reversed(steps)) if strides is None else tuple(strides)
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), tuple(shape), given)
