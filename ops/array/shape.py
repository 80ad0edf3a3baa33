"""Operations that only move elements: views where they can be, copies where they must.

Axes and whole numbers as users give them; copies, shapes, orders of axes, broadcasting, triangles."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, BoundsError, LayoutError, OstinatoError, ShapeError

from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.index import LETTERS, Indices, along, reshape_labels
from ..core.layout import Box
from ..core.operand import Split
from ..core.parameters import AXES, MESH, NEW_AXES, ORDER, SHAPE, SPLIT, unfit
from ..core.registry import ANY, Params, Piece, Place, Specs, op, stream_cost
from ..core.spec import DType, Shape, Spec, float32, int64, is_float
from ..core.user_line import misfit
from .casts import astype, number_of
from .comparisons import greater_equal
from .elementwise import broadcast, where

__all__ = [
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "copy",
    "expand_dims",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "reshape",
    "resplit",
    "squeeze",
    "stop_gradient",
    "swapaxes",
    "tril",
    "triu",
]

Pairs = tuple[tuple[int, int], ...]
MOVE = stream_cost(0)


def zero_of(x: Array) -> Array:
    """Zeros like an array, whatever is in it: the cotangent of what contributes nothing."""
    return apply("full", shape=x.shape, value=0, dtype=x.dtype)


def extent(box: Box) -> Shape:
    return tuple(hi - lo for lo, hi in box)


def axis_of(axis: int, ndim: int, name: str) -> int:
    """An axis counted from the front."""
    found = whole_number(axis, name)
    if not -ndim <= found < ndim:
        got = f"axis {axis} of an array with {ndim} axes"
        needed = f"an axis from {-ndim} to {ndim - 1}" if ndim else "at least one axis"
        raise misfit(BoundsError, name, got=got, needed=needed)
    return found % ndim


def whole_number(value: Any, name: str, least: int | None = None) -> int:
    """As Python's own int, or an error that says for whom it should have been one."""
    found = None
    try:
        found = int(operator.index(value))  # True is 1
    except OstinatoError:  # of an Array, which says more
        raise
    except TypeError:
        pass
    if found is None or (least is not None and found < least):
        limit = "" if least is None else f" of {least} or more"
        raise misfit(ArgumentError, name, got=f"{value!r:.60}", needed=f"a whole number{limit}")
    return found


def listed(value: Any, name: str) -> tuple[int, ...]:
    """One whole number, or several."""
    one = isinstance(value, str) or not hasattr(value, "__iter__") or not getattr(value, "ndim", 1)
    return tuple(whole_number(n, name) for n in ((value,) if one else value))


def diagonal_number(k: Any, shape: Shape, name: str) -> Any:
    """Which diagonal of the last two axes is meant: those beyond the matrix are as the nearest one there."""
    if isinstance(k, Array):  # a number that is not known yet
        return k
    return min(max(whole_number(k, name), -shape[-2]), shape[-1])


def axes_of(axis: int | Sequence[int] | None, ndim: int, name: str) -> tuple[int, ...]:
    """Axes counted from the front, in order; all of them for None."""
    if axis is None:
        return tuple(range(ndim))
    found = tuple(axis_of(a, ndim, name) for a in listed(axis, name))
    if len(set(found)) < len(found):
        raise misfit(ArgumentError, name, got=f"axis {axis}", needed="each axis once")
    return tuple(sorted(found))


def _copy_kernel(xp: Any, out: Any, x: Any, **_: Any) -> None:
    xp.copyto(out, x)


def _one_piece(ins: Sequence[Shape], **_: Any) -> list[Piece]:
    return [Piece(0)]


# -- identities ----------------------------------------------------------------------------
def _same(x: Spec) -> Spec:
    return Spec(x.shape, x.dtype)


op(
    "copy",
    infer=_same,
    kernel=_copy_kernel,
    pieces=_one_piece,
    grad=lambda g, y, x: (g,),
    cost=MOVE,
    overwrite=ANY,
)
op(
    "resplit",
    infer=lambda x, *, split, mesh: Spec(x.shape, x.dtype),
    takes={"split": SPLIT, "mesh": MESH},
    kernel=_copy_kernel,
    pieces=_one_piece,
    grad=lambda g, y, x, **_: (g,),
    cost=MOVE,
)
op(
    "stop_gradient",
    infer=_same,
    kernel=_copy_kernel,
    pieces=_one_piece,
    grad=lambda g, y, x: (None,),
    cost=MOVE,
)


@export
def resplit(x: Operandish, /, split: Split = None, *, mesh: tuple[int, ...] | None = None) -> Array:
    """Give the values another layout: split along a dimension (or one per mesh axis); None for
    replicas.

    >>> ost.resplit(ost.arange(4), 0)
    Array([0, 1, 2, 3], dtype=int64)
    """
    x = as_array(x)
    return apply("resplit", x, split=split_of(split, x.ndim), mesh=mesh)


def split_of(split: Any, ndim: int) -> int | tuple[int | None, ...] | None:
    """A user's `split=` with axes counted from the first."""
    given = split if isinstance(split, (tuple, list)) else (split,)
    found = list[int | None]()
    for s in given:
        whole = isinstance(s, (int, np.integer)) and not isinstance(s, bool)
        if s is not None and not (whole and -ndim <= s < ndim):
            got = f"an array with {ndim} axes"
            needed = f"None, an axis below {ndim}, or a tuple of them, one per mesh axis"
            raise misfit(LayoutError, f"split={split!r}", got=got, needed=needed)
        found.append(s if s is None else int(s) % ndim)
    return tuple(found) if isinstance(split, (tuple, list)) else found[0]


def counts_columns(order: str | None, name: str) -> bool:
    """Whether elements are counted with the first index running fastest, as Fortran does. "A" and "K"
    are as they lie, which nobody sees of our arrays: as C counts."""
    if order not in ("C", "F", "A", "K", None):
        needed = "'C', 'F', 'A' or 'K'"
        raise misfit(ArgumentError, name, got=f"order={order!r}", needed=needed)
    return order == "F"


@export
def copy(x: Operandish, /, order: str = "K") -> Array:
    """Copy the values to memory of their own, which lies as the planner likes, whatever the order.

    >>> ost.copy(ost.arange(3))
    Array([0, 1, 2], dtype=int64)
    """
    counts_columns(order, "copy")
    return apply("copy", as_array(x))


@export
def stop_gradient(x: Operandish, /) -> Array:
    """Make the values a constant for gradients.

    >>> ost.grad(lambda x: x * ost.stop_gradient(x))(3.0)
    Array(3., dtype=float64)
    """
    return apply("stop_gradient", as_array(x))


# -- reshape -------------------------------------------------------------------------------
def _reshape_view(xp: Any, x: Any, at: Place, **_: Any) -> Any:
    return x.reshape(extent(at.outs[0]))


def _reshape_rule(x: Spec, *, shape: Shape) -> Spec:
    y = Spec(shape, x.dtype)
    if y.size != x.size:
        raise unfit("reshape", (x, y), f"a shape of {x.size} elements")
    return y


op(
    "reshape",
    infer=_reshape_rule,
    takes={"shape": SHAPE},
    indices=lambda ins, outs, p: reshape_labels(ins[0].shape, outs[0].shape),
    view=_reshape_view,
    kernel=lambda xp, out, x, *, shape: xp.copyto(out, x.reshape(out.shape)),
    pieces=_one_piece,
    grad=lambda g, y, x, *, shape: (reshape(g, x.shape),),
    cost=MOVE,
    keeps_order=True,
    same_elements=True,
)


@export
def reshape(
    x: Operandish, /, shape: int | Sequence[int], order: str = "C", *, copy: bool | None = None
) -> Array:
    """Give the elements another shape; one -1 stands for what is left. `order="F"` counts them with
    the first index running fastest.

    >>> ost.reshape(ost.arange(4), (2, 2))
    Array([[0, 1],
           [2, 3]], dtype=int64)
    """
    x, new = as_array(x), listed(shape, "reshape")
    known = math.prod(n for n in new if n != -1)
    if new.count(-1) == 1 and known and x.size % known == 0:
        new = tuple(x.size // known if n == -1 else n for n in new)
    if min(new, default=0) < 0 or math.prod(new) != x.size:
        needed, do = f"a shape of {x.size} elements", "use -1 for one axis to have it computed"
        raise misfit(ShapeError, "reshape", got=f"{x.shape} to {new}", needed=needed, do=do)
    if new == x.shape:
        found = x
    elif counts_columns(order, "reshape"):
        found = permute_dims(apply("reshape", permute_dims(x), shape=new[::-1]))
    else:
        found = apply("reshape", x, shape=new)
    return apply("copy", found) if copy else found


def _expand_rule(x: Spec, *, axes: tuple[int, ...]) -> Spec:
    shape = list(x.shape)
    for a in axes:
        shape.insert(a, 1)
    return Spec(tuple(shape), x.dtype)


def _kept(outs: Specs, axes: tuple[int, ...]) -> tuple[str | None, ...]:
    return tuple(None if d in axes else LETTERS[d] for d in range(outs[0].ndim))


def _expand_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = _kept(outs, p["axes"])
    return Indices((tuple(x for x in labels if x is not None),), (labels,))


op(
    "expand_dims",
    infer=_expand_rule,
    takes={"axes": NEW_AXES},
    indices=_expand_indices,
    view=_reshape_view,
    grad=lambda g, y, x, *, axes: (squeeze(g, axes),),
    cost=MOVE,
    keeps_order=True,
    same_elements=True,
)


@export
def expand_dims(x: Operandish, /, axis: int | Sequence[int] = 0) -> Array:
    """New axes of size 1 at these places of the result.

    >>> ost.expand_dims(ost.arange(2), axis=0)
    Array([[0, 1]], dtype=int64)
    """
    x = as_array(x)
    axes = axes_of(axis, x.ndim + len(listed(axis, "expand_dims")), "expand_dims")
    return apply("expand_dims", x, axes=axes) if axes else x


def _squeeze_rule(x: Spec, *, axes: tuple[int, ...]) -> Spec:
    if any(x.shape[a] != 1 for a in axes):
        got = f"axis {', '.join(map(str, axes))} of shape {x.shape}"
        raise misfit(ShapeError, "squeeze", got=got, needed="axes of size 1")
    return Spec(tuple(n for d, n in enumerate(x.shape) if d not in axes), x.dtype)


def _squeeze_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = along(p["axes"], ins[0])
    return Indices((labels,), (tuple(x for x in labels if x is not None),))


op(
    "squeeze",
    infer=_squeeze_rule,
    takes={"axes": AXES},
    indices=_squeeze_indices,
    view=_reshape_view,
    grad=lambda g, y, x, *, axes: (expand_dims(g, axis=axes),),
    cost=MOVE,
    keeps_order=True,
    same_elements=True,
)


@export
def squeeze(x: Operandish, /, axis: int | Sequence[int] | None = None) -> Array:
    """Without these axes, each of size 1: all of them, if none is said.

    >>> ost.squeeze([[1, 2]], axis=0)
    Array([1, 2], dtype=int64)
    """
    x = as_array(x)
    ones = tuple(d for d, n in enumerate(x.shape) if n == 1)
    axes = ones if axis is None else axes_of(axis, x.ndim, "squeeze")
    return apply("squeeze", x, axes=axes) if axes else x


op(
    "permute_dims",
    infer=lambda x, *, axes: Spec(tuple(x.shape[a] for a in axes), x.dtype),
    takes={"axes": ORDER},
    indices=lambda ins, outs, p: Indices(
        (tuple(LETTERS[: ins[0].ndim]),), (tuple(LETTERS[a] for a in p["axes"]),)
    ),
    view=lambda xp, x, at, *, axes: x.transpose(axes),
    grad=lambda g, y, x, *, axes: (permute_dims(g, tuple(np.argsort(axes).tolist())),),
    cost=MOVE,
    same_elements=True,
)


@export
def permute_dims(x: Operandish, /, axes: Sequence[int] | None = None) -> Array:
    """The axes in this order: turned round, if none is said.

    >>> ost.permute_dims(ost.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = as_array(x)
    axes = range(x.ndim)[::-1] if axes is None else axes
    order = tuple(axis_of(a, x.ndim, "permute_dims") for a in axes)
    if sorted(order) != list(range(x.ndim)):
        needed = f"each of 0 to {x.ndim - 1} once"
        raise misfit(ArgumentError, "permute_dims", got=f"axes {tuple(axes)}", needed=needed)
    return x if order == tuple(range(x.ndim)) else apply("permute_dims", x, axes=order)


@export
def matrix_transpose(x: Operandish, /) -> Array:
    """The last two axes swapped.

    >>> ost.matrix_transpose([[1, 2], [3, 4]])
    Array([[1, 3],
           [2, 4]], dtype=int64)
    """
    x = as_array(x)
    if x.ndim < 2:
        got = f"shape {x.shape}"
        raise misfit(ShapeError, "matrix_transpose", got=got, needed="two axes or more")
    return swapaxes(x, -1, -2)


@export
def moveaxis(
    x: Operandish, source: int | Sequence[int], destination: int | Sequence[int], /
) -> Array:
    """Axes at new places, the others in order.

    >>> ost.moveaxis(ost.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_array(x)
    sources = [axis_of(a, x.ndim, "moveaxis") for a in listed(source, "moveaxis")]
    targets = [axis_of(a, x.ndim, "moveaxis") for a in listed(destination, "moveaxis")]
    if (
        len(sources) != len(targets)
        or len(set(sources)) < len(sources)
        or len(set(targets)) < len(targets)
    ):
        got = f"{source} to {destination}"
        raise misfit(ArgumentError, "moveaxis", got=got, needed="as many places as axes, each once")
    rest = iter(d for d in range(x.ndim) if d not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return permute_dims(x, [placed[d] if d in placed else next(rest) for d in range(x.ndim)])


@export
def swapaxes(x: Operandish, /, axis1: int, axis2: int) -> Array:
    """Two axes swapped.

    >>> ost.swapaxes(ost.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = as_array(x)
    order = list(range(x.ndim))
    a, b = (axis_of(d, x.ndim, "swapaxes") for d in (axis1, axis2))
    order[a], order[b] = order[b], order[a]
    return permute_dims(x, order)


# -- broadcasting --------------------------------------------------------------------------


def _broadcast_rule(x: Spec, *, shape: Shape) -> Spec:
    if broadcast("broadcast_to", x.shape, shape) != shape:
        got = f"{x.shape} to {shape}"
        raise misfit(ShapeError, "broadcast_to", got=got, needed="a shape that it broadcasts to")
    return Spec(shape, x.dtype)


op(
    "broadcast_to",
    infer=_broadcast_rule,
    takes={"shape": SHAPE},
    view=lambda xp, x, at, *, shape: xp.broadcast_to(x, extent(at.outs[0])),
    grad=lambda g, y, x, *, shape: (sum_to(g, x.shape),),
    cost=MOVE,
    repeats=True,
)


@export
def broadcast_to(x: Operandish, /, shape: Sequence[int]) -> Array:
    """Repeated along axes of size 1, without a copy.

    >>> ost.broadcast_to([1, 2], (2, 2))
    Array([[1, 2],
           [1, 2]], dtype=int64)
    """
    x = as_array(x)
    if shape.__class__ is tuple and x.shape == shape:
        return x
    new = listed(shape, "broadcast_to")
    return x if x.shape == new else apply("broadcast_to", x, shape=new)


@export
def broadcast_arrays(*arrays: Operandish) -> list[Array]:
    """All in their common shape.

    >>> ost.broadcast_arrays([1, 2], [[1], [2]])[1]
    Array([[1, 1],
           [2, 2]], dtype=int64)
    """
    xs = [as_array(x) for x in arrays]
    shape = broadcast("broadcast_arrays", *(x.shape for x in xs))
    return [broadcast_to(x, shape) for x in xs]


@export
def broadcast_shapes(*shapes: int | Shape) -> Shape:
    """The common shape.

    >>> ost.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    return broadcast(
        "broadcast_shapes", *((s,) if isinstance(s, int) else tuple(s) for s in shapes)
    )


def accumulator(dtype: DType) -> DType:
    """Choose what sums and products of a dtype are accumulated in: halves in float32."""
    return float32 if dtype.itemsize == 2 and is_float(dtype) else dtype


def widened(x: Array) -> Array:
    """The operand in what its sums and products are accumulated in."""
    return astype(x, accumulator(x.dtype))


def add_up(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum over axes, in the dtype that the elements have."""
    return astype(apply("sum", x, axes=axes, dtype=accumulator(x.dtype)), x.dtype)


def sum_to(x: Array, shape: Shape) -> Array:
    """The sum over the axes along which `shape` was repeated."""
    if x.shape == shape:
        return x
    skip = x.ndim - len(shape)
    axes = tuple(d for d in range(x.ndim) if d < skip or (shape[d - skip] == 1 and x.shape[d] != 1))
    return reshape(add_up(x, axes) if axes else x, shape)


# -- triangles and diagonals ---------------------------------------------------------------
def _triangle(x: Array, k: int, lower: bool) -> Array:
    if x.ndim < 2:
        got = f"shape {x.shape}"
        raise misfit(ShapeError, "tril" if lower else "triu", got=got, needed="two axes or more")
    k = diagonal_number(k, x.shape, "tril" if lower else "triu")
    rows = apply("iota", shape=(x.shape[-2], 1), axis=0, dtype=int64)
    columns = apply("iota", shape=(1, x.shape[-1]), axis=1, dtype=int64)
    keep = greater_equal(rows + k, columns) if lower else greater_equal(columns, rows + k)
    return where(keep, x, number_of("tril", 0, x.dtype))


@export
def tril(x: Operandish, /, k: int = 0) -> Array:
    """Zeros above the k-th diagonal.

    >>> ost.tril(ost.ones((3, 3)))
    Array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]], dtype=float64)
    """
    return _triangle(as_array(x), k, lower=True)


@export
def triu(x: Operandish, /, k: int = 0) -> Array:
    """Zeros below the k-th diagonal.

    >>> ost.triu(ost.ones((3, 3)))
    Array([[1., 1., 1.],
           [0., 1., 1.],
           [0., 0., 1.]], dtype=float64)
    """
    return _triangle(as_array(x), k, lower=False)
