"""Comparisons, logic and bits, element by element; none has a gradient."""

from __future__ import annotations

from . import like_numpy
from .elementwise import Binary, Unary, binary, unary

__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "equal",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "signbit",
]

equal: Binary = binary(
    "equal",
    doc="""x == y

    >>> ost.equal([1, 2], [1, 3])
    Array([ True, False], dtype=bool)
    """,
    scalar="{0} == {1}",
)

not_equal: Binary = binary(
    "not_equal",
    doc="""x != y

    >>> ost.not_equal([1, 2], [1, 3])
    Array([False,  True], dtype=bool)
    """,
    scalar="{0} != {1}",
)

less: Binary = binary(
    "less",
    doc="""x < y

    >>> ost.less([1, 2], 2)
    Array([ True, False], dtype=bool)
    """,
    scalar="{0} < {1}",
)

less_equal: Binary = binary(
    "less_equal",
    doc="""x <= y

    >>> ost.less_equal([1, 2], 2)
    Array([ True,  True], dtype=bool)
    """,
    scalar="{0} <= {1}",
)

greater: Binary = binary(
    "greater",
    doc="""x > y

    >>> ost.greater([1, 2], 1)
    Array([False,  True], dtype=bool)
    """,
    scalar="{0} > {1}",
)

greater_equal: Binary = binary(
    "greater_equal",
    doc="""x >= y

    >>> ost.greater_equal([1, 2], 2)
    Array([False,  True], dtype=bool)
    """,
    scalar="{0} >= {1}",
)

logical_and: Binary = binary(
    "logical_and",
    kernel=like_numpy.logical("logical_and"),
    doc="""x and y

    >>> ost.logical_and([True, True], [True, False])
    Array([ True, False], dtype=bool)
    """,
    scalar="bool({0}) and bool({1})",
)

logical_or: Binary = binary(
    "logical_or",
    kernel=like_numpy.logical("logical_or"),
    doc="""x or y

    >>> ost.logical_or([False, True], [False, False])
    Array([False,  True], dtype=bool)
    """,
    scalar="bool({0}) or bool({1})",
)

logical_xor: Binary = binary(
    "logical_xor",
    kernel=like_numpy.logical("logical_xor"),
    doc="""Just one of x and y.

    >>> ost.logical_xor([True, True], [True, False])
    Array([False,  True], dtype=bool)
    """,
    scalar="bool({0}) != bool({1})",
)

logical_not: Unary = unary(
    "logical_not",
    kernel=like_numpy.logical("logical_not"),
    doc="""not x

    >>> ost.logical_not([True, False])
    Array([False,  True], dtype=bool)
    """,
    scalar="not {0}",
)

isnan: Unary = unary(
    "isnan",
    doc="""Whether x is not a number.

    >>> ost.isnan([1.0, np.inf, np.nan])
    Array([False, False,  True], dtype=bool)
    """,
    scalar="{0} != {0}",
)

isinf: Unary = unary(
    "isinf",
    doc="""Whether x is infinite.

    >>> ost.isinf([1.0, np.inf, np.nan])
    Array([False,  True, False], dtype=bool)
    """,
)

isfinite: Unary = unary(
    "isfinite",
    doc="""Whether x is neither infinite nor NaN.

    >>> ost.isfinite([1.0, np.inf, np.nan])
    Array([ True, False, False], dtype=bool)
    """,
)

signbit: Unary = unary(
    "signbit",
    doc="""Whether the sign of x is set.

    >>> ost.signbit([-0.0, 0.0])
    Array([ True, False], dtype=bool)
    """,
)

bitwise_and: Binary = binary(
    "bitwise_and",
    doc="""x & y

    >>> ost.bitwise_and(6, 3)
    Array(2, dtype=int64)
    """,
    scalar="{0} & {1}",
)

bitwise_or: Binary = binary(
    "bitwise_or",
    doc="""x | y

    >>> ost.bitwise_or(6, 3)
    Array(7, dtype=int64)
    """,
    scalar="{0} | {1}",
)

bitwise_xor: Binary = binary(
    "bitwise_xor",
    doc="""x ^ y

    >>> ost.bitwise_xor(6, 3)
    Array(5, dtype=int64)
    """,
    scalar="{0} ^ {1}",
)

bitwise_invert: Unary = unary(
    "bitwise_invert",
    "invert",
    doc="""~x

    >>> ost.bitwise_invert([0, 1])
    Array([-1, -2], dtype=int64)
    """,
    scalar="~{0}",
)

bitwise_left_shift: Binary = binary(
    "bitwise_left_shift",
    "left_shift",
    doc="""x << y

    >>> ost.bitwise_left_shift([1, 2], 3)
    Array([ 8, 16], dtype=int64)
    """,
    scalar="{0} << {1}",
)

bitwise_right_shift: Binary = binary(
    "bitwise_right_shift",
    "right_shift",
    doc="""x >> y

    >>> ost.bitwise_right_shift([16, 8], 3)
    Array([2, 1], dtype=int64)
    """,
    scalar="{0} >> {1}",
)
