"""The dtypes as users hold them: NumPy's scalar types, which are compared as dtypes and called as
makers: `ost.float32(3)` is a number of that dtype, `ost.float32(x)` the array in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.spec import DTYPES, DType
from .creation import asarray


class ScalarType:
    """A dtype that makes numbers and arrays of it. Equal to NumPy's dtype, in keys of dicts, too.

    >>> ost.float32(3) / 2
    np.float32(1.5)
    >>> ost.int8([1, 2])
    Array([1, 2], dtype=int8)
    """

    __slots__ = ("dtype",)
    dtype: DType  # which is what NumPy asks for, wherever it takes a dtype

    def __init__(self, name: str) -> None:
        self.dtype = DTYPES[name]

    def __call__(self, value: Any = 0, /) -> Any:
        """Numbers of Python are numbers of NumPy; anything else is an array."""
        plain = isinstance(value, (int, float, complex, str, np.generic))
        return self.dtype.type(value) if plain else asarray(value, dtype=self.dtype)

    def __instancecheck__(self, x: Any) -> bool:
        return isinstance(x, self.dtype.type)

    def __eq__(self, other: object) -> bool:
        return bool(self.dtype == other) if other is not None else False

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"ostinato.{self}"

    def __str__(self) -> str:
        return self.dtype.name

    def __reduce__(self) -> Any:
        return ScalarType, (self.dtype.name,)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # what NumPy would look for in an array
                raise AttributeError(name)
            return getattr(self.dtype, name)  # of the dtype: itemsize, kind, ...

    else:
        name: str
        kind: str
        itemsize: int
        type: type[Any]


int8, int16, int32, int64 = (ScalarType(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (ScalarType(f"uint{n}") for n in (8, 16, 32, 64))
float16, bfloat16 = ScalarType("float16"), ScalarType("bfloat16")
float32, float64 = ScalarType("float32"), ScalarType("float64")
complex64, complex128 = ScalarType("complex64"), ScalarType("complex128")
bool_ = ScalarType("bool")

# as NumPy calls them, too: by C's words, and what a number of Python becomes
int_, single, double = int64, float32, float64

__all__ = [
    "bfloat16",
    "bool_",
    "complex128",
    "complex64",
    "double",
    "float16",
    "float32",
    "float64",
    "int16",
    "int32",
    "int64",
    "int8",
    "int_",
    "single",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
]
