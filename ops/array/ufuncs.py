"""What functions of two operands have as methods, as NumPy's do: `ost.add.reduce(x, axis=1)`.

reduce       sums, products, extremes and truth are those of reduction.py; other functions in which order
             is no matter halve the array again and again, the rest are folded from first to last
accumulate   running sums, products and extremes; the rest by `scan`
reduceat     each group taken out, all reduced by their numbers; the rest one by one
at           `x.at[key].add(b)` and its kin; the rest at once, or in turn where places may come again
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError

from ..core import array
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Axis, Operandish, functions
from ..core.spec import bool_, int64
from ..core.user_line import misfit
from ..flow.repeat_scan import repeat, scan
from . import arithmetic, comparisons, segments, transcendental
from . import elementwise as e
from .casts import astype
from .concatenation import concat, stack
from .cumulative import cumulative_max, cumulative_min, cumulative_prod, cumulative_sum
from .elementary import logaddexp2
from .elementwise import Binary, Out, binaries, where
from .numerical import fmax, fmin
from .reduction import all as all_of
from .reduction import any as any_of
from .reduction import max as largest
from .reduction import min as smallest
from .reduction import prod
from .reduction import sum as sum_of
from .shape import axes_of, axis_of, broadcast_to, expand_dims, moveaxis, reshape
from .subscripts import is_places
from .whole_numbers import gcd, lcm

Method = Callable[..., Array]
_SUMS: dict[Any, Method] = {arithmetic.add: sum_of, arithmetic.multiply: prod}
_EXTREMES: dict[Any, Method] = {arithmetic.maximum: largest, arithmetic.minimum: smallest}
_TRUTH: dict[Any, Method] = {comparisons.logical_and: all_of, comparisons.logical_or: any_of}
_RUNNING: dict[Any, Method] = {
    arithmetic.add: cumulative_sum,
    arithmetic.multiply: cumulative_prod,
    arithmetic.maximum: cumulative_max,
    arithmetic.minimum: cumulative_min,
}
_GROUPS: dict[Any, Method] = {
    arithmetic.add: segments.segment_sum,
    arithmetic.multiply: segments.segment_prod,
    arithmetic.maximum: segments.segment_max,
    arithmetic.minimum: segments.segment_min,
}
_MODES: dict[Any, str] = {
    arithmetic.add: "add",
    arithmetic.multiply: "multiply",
    arithmetic.maximum: "max",
    arithmetic.minimum: "min",
}
_ANY_ORDER: dict[Any, Any] = {  # functions in which order is no matter, and what changes nothing
    comparisons.bitwise_and: -1,
    comparisons.bitwise_or: 0,
    comparisons.bitwise_xor: 0,
    comparisons.logical_xor: False,
    transcendental.hypot: 0,
    transcendental.logaddexp: -math.inf,
    logaddexp2: -math.inf,
    gcd: 0,
    lcm: None,
    fmax: None,
    fmin: None,
}
_LOGICAL = (comparisons.logical_and, comparisons.logical_or, comparisons.logical_xor)


def outer(function: Binary, a: Operandish, b: Operandish, /, **how: Any) -> Array:
    """The function of each element of one with each of the other.

    >>> ost.multiply.outer([1, 2], [1, 10])
    Array([[ 1, 10],
           [ 2, 20]], dtype=int64)
    """
    x, y = as_array(a), as_array(b)
    return function(reshape(x, x.shape + (1,) * y.ndim), y, **how)


def reduce(
    function: Binary,
    a: Operandish,
    /,
    axis: Axis = 0,
    dtype: Any = None,
    out: Out = None,
    keepdims: bool = False,
    initial: Operandish | None = None,
    where: Operandish | None = None,
) -> Array:
    """The function of all elements along an axis, from first to last: `add.reduce` is a sum.

    >>> ost.subtract.reduce([10, 1, 2])
    Array(7, dtype=int64)
    """
    x = as_array(a)
    how: dict[str, Any] = {"keepdims": keepdims, "where": where}
    if function in _SUMS:
        return _put(_SUMS[function](x, axis, dtype=dtype, initial=initial, **how), out, function)
    if function in _EXTREMES:
        return _put(
            _EXTREMES[function](_cast(x, dtype), axis, initial=initial, **how), out, function
        )
    if function in _TRUTH:
        made = _TRUTH[function](x, axis, **how)
        return _put(made if initial is None else function(made, initial), out, function)
    x = _closed(function, x, dtype)
    axes = axes_of(axis, x.ndim, _name(function, "reduce"))
    mask = None if where is None else broadcast_to(where, x.shape)
    made = _folded(function, x, axes, initial, mask)
    if keepdims:
        made = expand_dims(made, axis=axes)
    return _put(made, out, function)


def accumulate(
    function: Binary, a: Operandish, /, axis: int = 0, dtype: Any = None, out: Out = None
) -> Array:
    """The function of all elements so far along an axis: `add.accumulate` is a running sum.

    >>> ost.divide.accumulate([8.0, 2.0, 2.0])
    Array([8., 4., 2.], dtype=float64)
    """
    x = as_array(a)
    if function in _SUMS:
        return _put(_RUNNING[function](x, axis, dtype=dtype), out, function)
    if function in _RUNNING:
        return _put(_RUNNING[function](_cast(x, dtype), axis), out, function)
    x = _closed(function, x, dtype)
    d = axis_of(axis, x.ndim, _name(function, "accumulate"))
    rows = moveaxis(x, d, 0)
    if len(rows) > 1:

        def step(state: Array, row: Array) -> tuple[Array, Array]:
            made = astype(function(state, row), x.dtype)
            return made, made

        _, later = scan(step, rows[0], rows[1:])
        rows = concat([rows[:1], later], axis=0)
    return _put(moveaxis(rows, 0, d), out, function)


def reduceat(
    function: Binary,
    a: Operandish,
    indices: Operandish,
    /,
    axis: int = 0,
    dtype: Any = None,
    out: Out = None,
) -> Array:
    """The function of each group of elements along an axis. A group goes from its own index to before the
    next one; where that is not higher, it has one element. Inside compiled functions indices are known.

    >>> ost.add.reduceat([1, 2, 3, 4], [0, 2])
    Array([3, 7], dtype=int64)
    """
    x, name = as_array(a), _name(function, "reduceat")
    d = axis_of(axis, x.ndim, name)
    n = x.shape[d]
    begins = _known(indices, name)
    if begins.ndim != 1 or begins.dtype.kind not in "iu":
        got = f"indices of shape {begins.shape}"
        raise misfit(ShapeError, name, got=got, needed="a row of integers")
    bad = [int(k) for k in begins if not 0 <= k < n]
    if bad:
        raise misfit(BoundsError, name, got=f"index {bad[0]}", needed=f"0 to {n - 1}")
    ends = np.append(begins[1:], n)
    ends = np.where(ends > begins, ends, begins + 1)
    rows = moveaxis(x, d, 0)
    if function in _GROUPS:
        kind = (
            sum_of(rows[:0], 0, dtype=dtype).dtype if function in _SUMS else _cast(x, dtype).dtype
        )
        wide = astype(rows, kind)
        places = np.concatenate([np.zeros(0, np.int64), *map(np.arange, begins, ends)])
        numbers = np.repeat(np.arange(len(begins)), ends - begins)
        made = _GROUPS[function](wide[places.astype(np.int64)], numbers, len(begins))
    else:
        each = [
            reduce(function, rows[b:e], 0, dtype)
            for b, e in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        made = stack(each, axis=0) if each else rows[:0]
    return _put(moveaxis(made, 0, d), out, function)


def at(function: Binary, a: Array, indices: Any, b: Operandish, /) -> None:
    """Assigns the function of elements of an array and others to these places, each as often as it comes.

    >>> x = ost.arange(3)
    >>> ost.add.at(x, [0, 0, 2], 10)
    >>> x
    Array([20,  1, 12], dtype=int64)
    """
    name = _name(function, "at")
    if not isinstance(a, Array):
        raise misfit(
            ArgumentError, name, got=f"a {type(a).__name__}", needed="an array of ostinato's"
        )
    if function in _MODES:
        made = functions["updated"](a, indices, b, _MODES[function])
    elif function is arithmetic.subtract:
        made = functions["updated"](a, indices, arithmetic.negative(b), "add")
    elif _once(indices, a.shape):
        cast = functions["cast_in_place"]
        made = a.copy()
        made[indices] = cast(function(a[indices], b), a.dtype, name)
    else:
        made = _in_turn(function, a, indices, b, name)
    functions["written"](a, made, name)


# -- what they are made of -----------------------------------------------------------------
def _name(function: Binary, method: str) -> str:
    return f"{function.__name__}.{method}"


def _put(made: Array, out: Out, function: Binary) -> Array:
    return made if out is None else e.into(lambda: made, function.__name__, (), out, None)


def _cast(x: Array, dtype: Any) -> Array:
    return x if dtype is None else astype(x, dtype)


def _closed(function: Binary, x: Array, dtype: Any) -> Array:
    """Elements in a dtype that the function of two of them has, too."""
    x = _cast(x, dtype)
    kind = x.dtype
    for _ in range(2):
        one = astype(as_array(1), kind)
        made = function(one, one).dtype
        if made == kind:
            return astype(x, kind)
        if made == bool_ and function not in _LOGICAL:
            break  # of comparisons, which are no numbers again
        kind = made
    needed = "a dtype that its results have as well"
    do = "pass dtype=, or convert with x.astype(...)"
    raise misfit(DTypeError, function.__name__, got=x.dtype.name, needed=needed, do=do)


def _folded(
    function: Binary,
    x: Array,
    axes: tuple[int, ...],
    initial: Operandish | None,
    mask: Array | None,
) -> Array:
    """The function along axes that are none of the known reductions'."""
    name = _name(function, "reduce")
    free = function in _ANY_ORDER
    nothing = _ANY_ORDER.get(function)
    if len(axes) > 1 and not free:
        got = f"axes {axes}"
        raise misfit(ArgumentError, name, got=got, needed="one axis, as its order matters")
    left = [d for d in range(x.ndim) if d not in axes]
    shape = (-1, *[x.shape[d] for d in left])
    count = math.prod(x.shape[d] for d in axes)

    def fold_rows(y: Array) -> Array:
        return reshape(y.transpose([*axes, *left]), (count, *shape[1:]))

    rows = fold_rows(x)
    first = None if initial is None else broadcast_to(astype(initial, x.dtype), rows.shape[1:])
    neutral = first if nothing is None else astype(nothing, x.dtype)
    if mask is not None and free and neutral is not None:
        rows, mask = where(fold_rows(mask), rows, neutral), None
    if not count and neutral is not None and free:
        return broadcast_to(neutral if first is None else first, rows.shape[1:])
    if first is None and (mask is not None or not count):
        got, do = "where= and no initial=" if mask is not None else "no elements", "pass initial="
        raise misfit(ArgumentError, name, got=got, needed="what it is of no elements", do=do)
    if mask is None and not free and first is None:
        first, rows = rows[0], rows[1:]
    if free:
        return _halved(lambda a, b: astype(function(a, b), x.dtype), rows, first)
    assert first is not None
    if not len(rows):
        return first
    inside = None if mask is None else fold_rows(mask)

    def step(state: Array, given: tuple[Array, ...]) -> tuple[Array, tuple[()]]:
        made = astype(function(state, given[0]), x.dtype)
        return (made if inside is None else where(given[1], made, state)), ()

    return scan(step, first, (rows,) if inside is None else (rows, inside))[0]


def _halved(function: Callable[[Array, Array], Array], rows: Array, rest: Array | None) -> Array:
    """All rows, and the rest, where order is no matter: the two halves, and a row that is left over."""
    while count := len(rows):
        half = count // 2
        if count % 2:
            rest = rows[-1] if rest is None else function(rows[-1], rest)
        if not half:
            break
        rows = function(rows[:half], rows[half : 2 * half])
    assert rest is not None
    return rest


def _known(indices: Operandish, name: str) -> np.ndarray[Any, Any]:
    return array.reader.known(indices, name) if isinstance(indices, Array) else np.asarray(indices)


def _once(indices: Any, shape: Sequence[int]) -> bool:
    """Whether it is known that a key has no place twice."""
    items = indices if isinstance(indices, tuple) else (indices,)
    places = [k for k in items if is_places(k)]
    if all(isinstance(k, Array) and k.dtype == bool_ for k in places):
        return True
    if any(isinstance(k, Array) for k in places):
        return False
    numbers = np.arange(math.prod(shape)).reshape(shape)[indices]
    return len(np.unique(numbers)) == np.size(numbers)


def _in_turn(function: Binary, a: Array, indices: Any, b: Operandish, name: str) -> Array:
    """One place after the other, since a place may come again."""
    numbers = reshape(apply("iota", shape=(a.size,), axis=0, dtype=int64), a.shape)[indices]
    values = broadcast_to(b, numbers.shape).ravel()
    numbers = numbers.ravel()

    def step(k: Array, x: Array) -> Array:
        here = numbers[k]
        made = functions["cast_in_place"](function(x[here], values[k]), x.dtype, name)
        return x.at[here].set(made)

    counted = (as_array(0), a.ravel())
    made = repeat(numbers.size, lambda s: (s[0] + 1, step(*s)), counted)[1]
    return reshape(made, a.shape)


for _function in binaries:
    for _method in (outer, reduce, accumulate, reduceat, at):
        _bound = functools.partial(_method, _function)
        setattr(_function, _method.__name__, functools.update_wrapper(_bound, _method))
