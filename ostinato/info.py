"""What dtypes can do, and what this library can do: the inspection functions of the array API
standard, and its constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ostinato.errors import ArgumentError, DTypeError
from ostinato.ops.array.casts import as_dtype, check_device
from ostinato.ops.core import array
from ostinato.ops.core.apply import as_array, weak_dtype
from ostinato.ops.core.array import Array, weak_kind
from ostinato.ops.core.spec import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    complex128,
    float64,
    int64,
    is_float,
    is_inexact,
    is_integer,
    promote,
    real_of,
)
from ostinato.ops.core.user_line import misfit
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.libraries.onednn import describe_library
from ostinato.ops.cpu.threads import blas, cores, has_pool

from .sessions import current

__all__ = [
    "__array_api_version__",
    "__array_namespace_info__",
    "can_cast",
    "e",
    "finfo",
    "iinfo",
    "inf",
    "info",
    "isdtype",
    "issubdtype",
    "nan",
    "newaxis",
    "pi",
    "promote_types",
    "result_type",
]

__array_api_version__ = "2024.12"
e, inf, nan, pi = math.e, math.inf, math.nan, math.pi
newaxis = None

_KINDS: dict[str, Callable[[DType], bool]] = {
    "bool": lambda d: d.kind == "b",
    "signed integer": lambda d: d.kind == "i",
    "unsigned integer": lambda d: d.kind == "u",
    "integral": is_integer,
    "real floating": is_float,
    "complex floating": lambda d: d.kind == "c",
    "numeric": lambda d: d.kind != "b",
}
_STANDARD = {n: d for n, d in DTYPES.items() if n not in ("float16", "bfloat16")}
MOST_AXES = 32


def _dtype_of(x: Any) -> DType:
    return x.dtype if isinstance(x, (Array, np.ndarray, np.generic)) else as_dtype(x)


# -- dtypes --------------------------------------------------------------------------------
def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: another dtype, one of the standard's words, or a tuple.

    >>> ost.isdtype(ost.int8, "integral")
    True
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind not in DTYPES:
        if kind not in _KINDS:
            needed = "a dtype or " + ", ".join(_KINDS)
            raise misfit(ArgumentError, "isdtype", got=repr(kind), needed=needed)
        return _KINDS[kind](as_dtype(dtype))
    return as_dtype(dtype) == as_dtype(kind)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether a dtype is of a kind that NumPy has a class for, such as ost.floating.

    >>> ost.issubdtype(ost.float32, ost.floating)
    True
    """
    if not isinstance(arg1, type) and as_dtype(arg1) == bfloat16:  # void, to NumPy
        arg1 = np.floating if isinstance(arg2, type) and arg2.__module__ == "numpy" else arg1
    return bool(np.issubdtype(arg1, arg2))


def promote_types(type1: Any, type2: Any) -> DType:
    """The dtype that two of them promote to.

    >>> ost.promote_types("int8", ost.uint8)
    dtype('int16')
    """
    return promote(as_dtype(type1), as_dtype(type2))


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether every value of one dtype (or of an array's) is a value of another.

    >>> ost.can_cast(ost.int8, ost.int16)
    True
    """
    return bool(np.can_cast(_dtype_of(from_), as_dtype(to)))


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype that arrays, dtypes and Python numbers promote to.

    >>> ost.result_type(ost.int8, ost.float32)
    dtype('float32')
    """
    if not arrays_and_dtypes:
        raise misfit(ArgumentError, "result_type", got="nothing", needed="arrays or dtypes")
    kinds = [weak_kind(x) for x in arrays_and_dtypes]
    pairs = list(zip(arrays_and_dtypes, kinds, strict=True))
    strong = [_dtype_of(x) for x, kind in pairs if kind is None]
    if not strong:
        return promote(*(as_array(x).dtype for x in arrays_and_dtypes))
    beside = promote(*strong)
    return promote(beside, *(weak_dtype(kind, beside) for kind in kinds if kind is not None))


@dataclass(frozen=True, slots=True)
class finfo_object:
    """The limits of a floating dtype (of the real part of a complex one)."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class iinfo_object:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> finfo_object:
    """The limits of a floating dtype, or of an array's.

    >>> ost.finfo(ost.float32).eps
    1.1920928955078125e-07
    """
    dtype = _dtype_of(type)
    if not is_inexact(dtype):
        raise misfit(DTypeError, "finfo", got=dtype.name, needed="a floating or complex dtype")
    real = real_of(dtype)
    found = ml_dtypes.finfo(real)  # type: ignore[no-untyped-call]
    eps, most, least = float(found.eps), float(found.max), float(found.min)
    return finfo_object(found.bits, eps, most, least, float(found.smallest_normal), real)


def iinfo(type: Any, /) -> iinfo_object:
    """The limits of an integer dtype, or of an array's.

    >>> ost.iinfo(ost.int8).max
    127
    """
    dtype = _dtype_of(type)
    if not is_integer(dtype):
        raise misfit(DTypeError, "iinfo", got=dtype.name, needed="an integer dtype")
    found = np.iinfo(dtype)
    return iinfo_object(found.bits, int(found.max), int(found.min), dtype)


# -- the library ---------------------------------------------------------------------------
def info() -> dict[str, Any]:
    """Describe what this process computes with: workers, threads, and who does what.

    >>> "workers" in str(ost.info())
    True
    """
    session, found = current(), blas()
    numpys = f"OpenBLAS ({found.kernels})" if found is not None else "NumPy's library"
    return {
        "session": repr(session),
        "workers": session.workers,
        "threads per worker": session.engine.threads,
        "cores": cores(),
        "thread pool": "our own" if has_pool() else "none: it needs Linux",
        "kernels": why_not() or "machine code",
        "products": f"{describe_library()}, {numpys}",
    }


class Info:
    """What the standard asks a namespace about itself."""

    def capabilities(self) -> dict[str, bool | int]:
        """Masks and shapes that depend on data work outside of compiled functions."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": MOST_AXES,
        }

    def default_device(self) -> str:
        return array.reader.device

    def devices(self) -> list[str]:
        return [array.reader.device]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        check_device("default_dtypes", device)
        return {
            "real floating": float64,
            "complex floating": complex128,
            "integral": int64,
            "indexing": int64,
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes, of some kinds; float16 and bfloat16 are beyond it."""
        check_device("dtypes", device)
        kinds: Iterable[str] = kind if isinstance(kind, tuple) else (kind,) if kind else _KINDS
        found = {n: d for n, d in _STANDARD.items() if isdtype(d, tuple(kinds))}
        return {("bool" if d == bool_ else n): d for n, d in found.items()}


def __array_namespace_info__() -> Info:
    """Capabilities of this library, for code that is written for any."""
    return Info()
