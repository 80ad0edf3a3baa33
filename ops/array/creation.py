"""Arrays out of nothing, out of the caller's memory, and out of other libraries."""

from __future__ import annotations

import cmath
import math
import operator
from typing import Any, Literal, SupportsIndex, cast, overload

import numpy as np

from ostinato.errors import ArgumentError, DTypeError

from ..core import array
from ..core.apply import apply, as_array, constant, unify, unmasked
from ..core.array import DEFAULTS, Array, another, from_operand, weak_kind
from ..core.array_methods import Operandish, export
from ..core.dlpack import as_numpy, is_on_gpu
from ..core.index import LETTERS, Indices
from ..core.operand import FREE, Host, Split
from ..core.parameters import DTYPE, NUMBER, SHAPE, check_value, unfit
from ..core.parameters import whole as whole_from
from ..core.registry import Numbers, Params, Place, Specs, op, stream_cost
from ..core.spec import (
    DTYPES,
    DType,
    DTypeLike,
    Shape,
    ShapeLike,
    Spec,
    copied,
    float32,
    float64,
    int64,
    is_integer,
    owned,
    promote,
    uint64,
)
from ..core.user_line import misfit
from .arithmetic import floor
from .casts import as_dtype, astype, check_device, number_of
from .comparisons import equal
from .concatenation import stack
from .elementwise import floating, where
from .picked import Picked
from .shape import (
    axis_of,
    broadcast_to,
    counts_columns,
    diagonal_number,
    expand_dims,
    listed,
    moveaxis,
    reshape,
    resplit,
    split_of,
    whole_number,
)

__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "one_hot",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

FILL = stream_cost(0)
ANYWHERE = -99  # the split of an array whose maker did not ask for one


def _from_nothing(ins: Specs, outs: Specs, p: Params) -> Indices:
    return Indices((), (tuple(LETTERS[: outs[0].ndim]),))


def _full_kernel(xp: Any, out: Any, *, shape: Shape, value: Any, dtype: DType) -> None:
    out[...] = value


def _full_rule(*, shape: Shape, value: Any, dtype: DType) -> Spec:
    check_value("full", value, dtype)
    return Spec(shape, dtype)


op(
    "full",
    infer=_full_rule,
    takes={"shape": SHAPE, "value": NUMBER, "dtype": DTYPE},
    indices=_from_nothing,
    kernel=_full_kernel,
    cost=FILL,
    source="value",
    numbers=Numbers(
        "value",
        lambda builder, ins, by, *, shape, **params: builder.call(
            "broadcast_to", by[0], shape=shape
        ),
    ),
)


def _iota_kernel(xp: Any, out: Any, *, shape: Shape, axis: int, dtype: DType, at: Place) -> None:
    lo, hi = at.outs[0][axis]
    line = xp.arange(lo, hi).reshape((-1,) + (1,) * (out.ndim - axis - 1))
    xp.copyto(out, line, casting="unsafe")


def _iota_rule(*, shape: Shape, axis: int, dtype: DType) -> Spec:
    if axis >= len(shape):
        raise unfit("iota", (Spec(shape, dtype),), f"an axis {axis}")
    return Spec(shape, dtype)


op(
    "iota",
    infer=_iota_rule,
    takes={"shape": SHAPE, "axis": whole_from(0), "dtype": DTYPE},
    indices=_from_nothing,
    kernel=_iota_kernel,
    cost=FILL,
    placed=True,
    source="index",
)


def as_shape(shape: Any) -> Shape:
    given = listed(shape, "shape")
    if min(given, default=0) < 0:
        raise misfit(ArgumentError, "shape", got=str(given), needed="extents of 0 or more")
    return given


def placed(x: Array, split: Split) -> Array:
    """In the layout that was asked for, if one was."""
    if split == FREE:
        traced = x._term is not None and x._term.is_open
        return x if traced else from_operand(Host(copied(np.asarray(x)), FREE), x.weak)
    return x if split == ANYWHERE else resplit(x, split)


def iota(shape: Shape, axis: int, dtype: DType = int64) -> Array:
    """0, 1, 2, ... along an axis."""
    return apply("iota", shape=shape, axis=axis, dtype=dtype)


@export
def full(
    shape: ShapeLike,
    fill_value: Operandish,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """A value everywhere.

    >>> ost.full((2, 2), 7)
    Array([[7, 7],
           [7, 7]], dtype=int64)
    """
    check_device("full", device)
    counts_columns(order, "full")  # how it lies in memory is the planner's to say
    kind = as_dtype(dtype) if dtype is not None else None
    if isinstance(fill_value, Array):
        x = fill_value if kind is None else astype(fill_value, kind)
        return placed(broadcast_to(x, as_shape(shape)), split)
    if kind is None:
        kind = as_array(fill_value).dtype
    number = number_of("full", fill_value, kind)
    return placed(apply("full", shape=as_shape(shape), value=number, dtype=kind), split)


@export
def zeros(
    shape: ShapeLike,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """Zeros, float64 unless said otherwise.

    >>> ost.zeros((2, 3))
    Array([[0., 0., 0.],
           [0., 0., 0.]], dtype=float64)
    """
    kind = float64 if dtype is None else dtype
    return full(shape, 0, kind, order, device=device, split=split)


@export
def ones(
    shape: ShapeLike,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """Ones, float64 unless said otherwise.

    >>> ost.ones(3, dtype=ost.int32)
    Array([1, 1, 1], dtype=int32)
    """
    kind = float64 if dtype is None else dtype
    return full(shape, 1, kind, order, device=device, split=split)


@export
def empty(
    shape: ShapeLike,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """An array whose values do not matter (they are zeros).

    >>> ost.empty((2, 3)).shape
    (2, 3)
    """
    return zeros(shape, dtype, order, device=device, split=split)


@export
def full_like(
    x: Operandish,
    /,
    fill_value: Operandish,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    shape: ShapeLike | None = None,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """A value everywhere, in the shape and dtype of another array.

    >>> ost.full_like(ost.arange(3), 9)
    Array([9, 9, 9], dtype=int64)
    """
    x = as_array(x)
    kind = x.dtype if dtype is None else dtype
    if isinstance(x, Picked) and shape is None:
        made = full(x.whole.shape, fill_value, kind, device=device, split=split)
        return x.like(made, x.axis)
    size = x.shape if shape is None else shape
    return full(size, fill_value, kind, order, device=device, split=split)


@export
def zeros_like(
    x: Operandish,
    /,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    shape: ShapeLike | None = None,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """Zeros, in the shape and dtype of another array.

    >>> ost.zeros_like(ost.arange(3))
    Array([0, 0, 0], dtype=int64)
    """
    return full_like(x, 0, dtype, order, shape=shape, device=device, split=split)


@export
def ones_like(
    x: Operandish,
    /,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    shape: ShapeLike | None = None,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """Ones, in the shape and dtype of another array.

    >>> ost.ones_like(ost.arange(3.0))
    Array([1., 1., 1.], dtype=float64)
    """
    return full_like(x, 1, dtype, order, shape=shape, device=device, split=split)


@export
def empty_like(
    x: Operandish,
    /,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    shape: ShapeLike | None = None,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """An array in the shape and dtype of another, whose values do not matter (they are zeros).

    >>> ost.empty_like(ost.arange(3)).dtype
    dtype('int64')
    """
    return full_like(x, 0, dtype, order, shape=shape, device=device, split=split)


@export
def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers from start, step by step, up to but without stop.

    >>> ost.arange(2, 10, 3)
    Array([2, 5, 8], dtype=int64)
    """
    check_device("arange", device)
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise misfit(ArgumentError, "arange", got="step 0", needed="a step that leads somewhere")
    if all(isinstance(v, SupportsIndex) for v in (start, stop, step)):
        start, stop, step = (operator.index(cast(SupportsIndex, v)) for v in (start, stop, step))
        places = range(start, stop, step)
        kind = as_dtype(dtype) if dtype is not None else int64
        for end in (start, places[-1]) if places else ():
            number_of("arange", end, kind if is_integer(kind) else int64)
        x = iota((len(places),), 0, uint64 if kind == uint64 else int64)
    else:
        kind = as_dtype(dtype) if dtype is not None else float64
        x = iota((max(0, math.ceil((stop - start) / step)),), 0, float64)
    if step != 1:
        x = x * _modulo(step, x.dtype)
    if start != 0:
        x = x + _modulo(start, x.dtype)
    return placed(astype(x, kind), split)


def _modulo(number: float, dtype: DType) -> float:
    """A number as uint64 wraps it, so that steps may lead downwards."""
    return int(number) % 2**64 if dtype == uint64 else number


def _step(start: Any, stop: Any, count: int) -> Any:
    whole = stop - start
    if isinstance(whole, Array) or cmath.isfinite(whole):
        return whole / count
    return stop / count - start / count


@overload
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array: ...
@overload
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    *,
    retstep: Literal[True],
    dtype: DTypeLike | None = None,
    axis: int = 0,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> tuple[Array, Array]: ...
@export
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Any:
    """So many numbers at equal distances, which `retstep` gives, too. Between arrays, they lie along a
    new axis.

    >>> ost.linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float64)
    """
    check_device("linspace", device)
    num = whole_number(num, "linspace", 0)
    start, stop = (v if weak_kind(v) is not None else floating(v) for v in (start, stop))
    ends = unify(start, stop, 0.0)
    kind = as_dtype(dtype) if dtype is not None else promote(*(v.dtype for v in ends))
    count = num - 1 if endpoint else num
    k = iota((num,), 0, float64)
    if ndim := max(v.ndim for v in ends):
        k = expand_dims(k, axis=tuple(range(1, ndim + 1)))
    x = k * _step(start, stop, count) + start if count else (k + start)
    if not all(isinstance(v, Array) or cmath.isfinite(v) for v in (start, stop)):
        x = where(equal(k, 0), start, x)
    if endpoint and num > 1:
        x = where(equal(k, num - 1), stop, x)  # exactly, as rounding may miss it
    x = floor(x) if is_integer(kind) else x
    found = placed(moveaxis(astype(x, kind), 0, axis), split)
    return (found, as_array(_step(start, stop, count) if count else math.nan)) if retstep else found


@export
def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: str | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """Ones on the k-th diagonal, zeros elsewhere.

    >>> ost.eye(2, 3)
    Array([[1., 0., 0.],
           [0., 1., 0.]], dtype=float64)
    """
    check_device("eye", device)
    counts_columns(order, "eye")
    height, width = as_shape((N, N if M is None else M))
    kind = as_dtype(dtype) if dtype is not None else float64
    k = diagonal_number(k, (height, width), "eye")
    on = equal(iota((height, 1), 0) + k, iota((1, width), 1))
    return placed(astype(on, kind), split)


@export
def meshgrid(
    *arrays: Operandish,
    indexing: Literal["xy", "ij"] = "xy",
    sparse: bool = False,
    copy: bool = True,
) -> list[Array]:
    """Coordinate arrays of a grid whose axes are these vectors; of one line each, if `sparse`. Arrays
    are values, so `copy`, which NumPy has, is all the same.

    >>> x, y = ost.meshgrid(ost.arange(3), ost.arange(2))
    >>> y
    Array([[0, 0, 0],
           [1, 1, 1]], dtype=int64)
    """
    xs = [x if x.ndim < 2 else reshape(x, (-1,)) for x in map(as_array, arrays)]
    if indexing not in ("xy", "ij"):
        raise misfit(ArgumentError, "meshgrid", got=repr(indexing), needed="'xy' or 'ij'")
    order = list(range(len(xs)))
    if indexing == "xy" and len(xs) > 1:
        order[0], order[1] = 1, 0
    shape = [0] * len(xs)
    for x, d in zip(xs, order, strict=True):
        shape[d] = x.size
    found = []
    for x, d in zip(xs, order, strict=True):
        line = [1] * len(xs)
        line[d] = x.size
        whole = reshape(x, line) if sparse else broadcast_to(reshape(x, line), shape)
        found.append(another(x) if whole is x else whole)
    return found


# -- from elsewhere ------------------------------------------------------------------------
@export
def asarray(
    values: Any,
    /,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: str | None = None,
    copy: bool | None = None,
    split: Split = ANYWHERE,
) -> Array:
    """An Array of numbers, nested lists, a NumPy array, or anything with `__array__` or DLPack.

    Foreign memory is copied, so that later changes to it have no effect; `copy=False` borrows it
    instead. split: the axis that is cut over the workers, or one for each axis of the mesh; None: each
    worker has all of it; "auto": as the first compiled function that takes it works fastest.

    >>> ost.asarray([[1, 2], [3, 4]], split=0)
    Array([[1, 2],
           [3, 4]], dtype=int64)
    """
    check_device("asarray", device)
    counts_columns(order, "asarray")
    kind = as_dtype(dtype) if dtype is not None else None
    if isinstance(values, Array):
        if copy is False and kind is not None and kind != values.dtype:
            raise _no_loan(f"an array of dtype {values.dtype} as {kind}")
        x = as_array(values) if kind is None else astype(values, kind)
        if copy and x is values:
            x = apply("copy", x)
        return placed(x, split)
    if copy is False and not _has_memory(values):
        raise _no_loan(f"a {type(values).__name__}")
    if type(values) in (bool, int, float, complex):
        kind = DEFAULTS[type(values)] if kind is None else kind
        return placed(constant(number_of("asarray", values, kind), kind), split)
    if isinstance(values, (list, tuple)):
        inner = _leaves(values)
        if any(isinstance(v, Array) for v in inner):
            return placed(_of_arrays(values, kind), split)
        unmasked(inner, "asarray")
    unmasked(values, "asarray")
    if is_on_gpu(values):
        found = None if split == FREE else _of_gpu(values, kind, copy, split)
        if found is not None:
            return found
        get = getattr(values, "get", None)  # as arrays of CuPy have it
        values = get() if callable(get) else values
    host = _host_values(values, kind, copy)
    if split != FREE:
        split = None if split == ANYWHERE else split_of(split, host.ndim)
    return from_operand(Host(host, split))


def _host_values(values: Any, kind: DType | None, copy: bool | None) -> np.ndarray[Any, Any]:
    """NumPy's array of values in this process, in order: a copy, unless they may be borrowed."""
    if kind is not None and kind.kind not in "cb" and np.iscomplexobj(values):
        got, needed = f"complex values for {kind.name}", "a complex dtype"
        raise misfit(DTypeError, "asarray", got=got, needed=needed, do="take their real part first")
    try:
        host = as_numpy(values, kind)
    except (ValueError, TypeError, OverflowError) as error:
        got, needed = type(values).__name__, "numbers in a regular shape"
        raise misfit(ArgumentError, "asarray", got=got, needed=needed, do=str(error)) from error
    if host.dtype.name not in DTYPES:
        got = f"dtype {host.dtype}"
        raise misfit(DTypeError, "asarray", got=got, needed="one of " + ", ".join(DTYPES))
    fresh = type(values) in (list, tuple, range) or (
        isinstance(values, np.ndarray) and not np.may_share_memory(host, values)
    )
    if copy is False:
        given = values if isinstance(values, np.ndarray) else host
        host = np.require(host, host.dtype.newbyteorder("="), ["C", "A"])
        if host.ctypes.data != given.ctypes.data:
            lies = "" if given.flags.c_contiguous else " that does not lie in order"
            raise _no_loan(f"an array of dtype {given.dtype}{lies} as {host.dtype}")
    elif fresh:
        host = owned(np.require(host, host.dtype.newbyteorder("="), ["C", "A"]))
    else:
        host = copied(host)
    return host


def _of_gpu(values: Any, kind: DType | None, copy: bool | None, split: Split) -> Array | None:
    """An array of another library on the GPU of the session's workers."""
    operand = array.reader.adopt(
        values, None if split == ANYWHERE else split_of(split, values.ndim), copy is not False
    )
    if operand is None:
        return None
    x = from_operand(operand)
    if kind is None or kind == x.dtype:
        return x
    if copy is False:
        raise _no_loan(f"an array of dtype {x.dtype} as {kind}")
    return astype(x, kind)


def _has_memory(values: Any) -> bool:
    """Whether it is an array, or offers a buffer."""
    if hasattr(values, "__array__") or hasattr(values, "__dlpack__") or is_on_gpu(values):
        return not isinstance(values, np.generic)
    try:
        memoryview(values).release()
    except TypeError:
        return False
    return True


def _no_loan(got: str) -> Exception:
    needed, do = "an array, whose memory can be borrowed", "leave out copy=False"
    return misfit(ArgumentError, "asarray(copy=False)", got=got, needed=needed, do=do)


def _leaves(values: Any) -> list[Any]:
    if isinstance(values, (list, tuple)):
        return [leaf for v in values for leaf in _leaves(v)]
    return [values]


def _of_arrays(values: Any, kind: DType | None) -> Array:
    parts = [_of_arrays(v, kind) if isinstance(v, (list, tuple)) else as_array(v) for v in values]
    x = stack(parts)
    return x if kind is None else astype(x, kind)


@export
def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Array:
    """An Array of another library's array, through DLPack.

    >>> ost.from_dlpack(np.arange(3))
    Array([0, 1, 2], dtype=int64)
    """
    check_device("from_dlpack", device)
    if not hasattr(x, "__dlpack__"):
        got, needed = f"a {type(x).__name__}", "an array of a library that knows DLPack"
        do = "use ost.asarray(values)"
        raise misfit(ArgumentError, "from_dlpack", got=got, needed=needed, do=do)
    return asarray(x, copy=copy)


@export
def one_hot(
    indices: Operandish, /, classes: int, *, axis: int = -1, dtype: DTypeLike | None = None
) -> Array:
    """1 where the class is the index, else 0, along a new axis; rows of zeros for indices outside.

    >>> ost.one_hot([0, 2], 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    x = as_array(indices)
    if not is_integer(x.dtype):
        do = "convert with .astype"
        raise misfit(DTypeError, "one_hot", got=x.dtype.name, needed="integer indices", do=do)
    d = axis_of(axis, x.ndim + 1, "one_hot")
    line = [1] * (x.ndim + 1)
    line[d] = whole_number(classes, "one_hot", 0)
    on = equal(expand_dims(x, axis=d), iota(tuple(line), d))
    return astype(on, float32 if dtype is None else dtype)
