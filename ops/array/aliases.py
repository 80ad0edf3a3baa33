"""Names that NumPy has for functions of the array API standard, which has others: the same functions."""

from __future__ import annotations

from typing import Any

from ..core.apply import as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.operand import Split
from ..core.spec import DTypeLike, Shape
from .arithmetic import abs as absolute
from .arithmetic import atan2 as arctan2
from .arithmetic import conj as conjugate
from .arithmetic import divide as true_divide
from .arithmetic import remainder as mod
from .arithmetic import round as around
from .arithmetic import trunc as fix
from .comparisons import bitwise_invert as bitwise_not
from .comparisons import bitwise_invert as invert
from .comparisons import bitwise_left_shift as left_shift
from .comparisons import bitwise_right_shift as right_shift
from .creation import ANYWHERE, asarray, placed
from .creation import asarray as asanyarray
from .creation import asarray as ascontiguousarray
from .creation import asarray as asfortranarray
from .reduction import max as amax
from .reduction import min as amin
from .shape import axis_of, reshape
from .transcendental import acos as arccos
from .transcendental import acosh as arccosh
from .transcendental import asin as arcsin
from .transcendental import asinh as arcsinh
from .transcendental import atan as arctan
from .transcendental import atanh as arctanh
from .transcendental import pow as power

__all__ = [
    "absolute",
    "amax",
    "amin",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "around",
    "array",
    "asanyarray",
    "ascontiguousarray",
    "asfortranarray",
    "bitwise_not",
    "conjugate",
    "fix",
    "invert",
    "left_shift",
    "mod",
    "ndim",
    "power",
    "right_shift",
    "shape",
    "size",
    "true_divide",
]


def array(
    object: Any,
    dtype: DTypeLike | None = None,
    *,
    copy: bool | None = True,
    order: str | None = None,
    ndmin: int = 0,
    split: Split = ANYWHERE,
) -> Array:
    """`asarray` by NumPy's name, which copies, and puts axes in front until there are `ndmin`.

    >>> ost.array([1, 2, 3], float)
    Array([1., 2., 3.], dtype=float64)
    """
    x = asarray(object, dtype, order, copy=copy, split=split if not ndmin else ANYWHERE)
    if x.ndim >= ndmin:
        return placed(x, split) if ndmin else x
    return placed(reshape(x, (1,) * (ndmin - x.ndim) + x.shape), split)


def shape(a: Operandish) -> Shape:
    """The extents along the axes.

    >>> ost.shape([[1, 2, 3], [4, 5, 6]])
    (2, 3)
    """
    return as_array(a).shape


def ndim(a: Operandish) -> int:
    """How many axes there are.

    >>> ost.ndim([[1, 2, 3], [4, 5, 6]])
    2
    """
    return as_array(a).ndim


def size(a: Operandish, axis: int | None = None) -> int:
    """How many elements there are, in all or along an axis.

    >>> ost.size([[1, 2, 3], [4, 5, 6]], 1)
    3
    """
    x = as_array(a)
    return x.size if axis is None else x.shape[axis_of(axis, x.ndim, "size")]
