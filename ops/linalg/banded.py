"""Equations whose matrices have a few diagonals: `. j, ..., . j -> . j`, the systems along one axis, any
number of them side by side, each with diagonals of its own or views of the same.

Rows are eliminated from the first to the last, by the one whose element in the column is largest, as
LAPACK does it. What is left of a row needs only the next few, so many systems go side by side: on a
CPU in vectors (ops/cpu/kernels/band_solve.py). Of more diagonals LAPACK solves one after the other there.

Diagonals lie by rows: element i of the one `o` above the main one is a[i, i + o]; what lies outside of
the matrix is not read. `transposed`: the matrix is the transpose of the one whose diagonals these are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from ostinato.ops.array.arithmetic import convert
from ostinato.ops.array.concatenation import concat, roll
from ostinato.ops.array.creation import iota
from ostinato.ops.array.cumulative import running
from ostinato.ops.array.elementwise import broadcast, floating, where
from ostinato.ops.array.shape import axis_of, broadcast_to, expand_dims, reshape, squeeze, zero_of
from ostinato.ops.core.device import device_of
from ostinato.ops.core.parameters import AXIS, FLAG, whole
from ostinato.ops.core.registry import Params, Specs, op
from ostinato.ops.core.spec import Spec, promote
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..core.apply import apply, as_array, unify
from ..core.array import Array
from ..core.array_methods import Operandish
from .matrices import WHOLE, sum_bytes

__all__ = ["solve_banded", "solve_tridiagonal"]

NARROW = 2  # diagonals below, and above, of matrices that go side by side


# -- the operation ---------------------------------------------------------------------------
def _rule(*xs: Spec, lower: int, axis: int, transposed: bool) -> Spec:
    b = xs[-1]
    if b.dtype.name not in WHOLE or any(x.shape != b.shape or x.dtype != b.dtype for x in xs):
        got, needed = (
            ", ".join(str(x.bare) for x in xs),
            "diagonals and right-hand sides of one shape and dtype: float32, float64, "
            "complex64 or complex128",
        )
        raise misfit(DTypeError, "solve_banded", got=got, needed=needed)
    return Spec(b.shape, b.dtype)


def _kernel(xp: Any, out: Any, *xs: Any, lower: int, axis: int, transposed: bool) -> None:
    if not out.size:
        return
    xs = tuple(xp.moveaxis(x, axis, 0) for x in xs)
    out = xp.moveaxis(out, axis, 0)
    below, above = lower, len(xs) - 2 - lower
    n = out.shape[0]
    if transposed:  # diagonals by rows of the transpose; what comes round is not read
        turned = [xp.roll(xs[below - o], -o, 0) for o in range(-above, below + 1)]
        xs, below, above = (*turned, xs[-1]), above, below
    lapack = device_of(out).lapack
    if lapack is None or max(below, above) <= NARROW:
        _side_by_side(xp, out, xs, n, below, above)
        return
    *diagonals, b = xs
    lanes = [[s for s, m in zip(x.strides, x.shape, strict=True) if m > 1] for x in diagonals]
    if not any(s for steps in lanes for s in steps[n > 1 :]):  # one matrix for all
        one = [x.reshape(n, -1)[:, 0] for x in diagonals]
        out[...] = lapack.gbsv(one, below, b.reshape(n, -1)).reshape(b.shape)
        return
    for place in np.ndindex(b.shape[1:]):
        at = (slice(None), *place)
        out[at] = lapack.gbsv([x[at] for x in diagonals], below, b[at][:, None])[:, 0]


def _side_by_side(xp: Any, out: Any, xs: Sequence[Any], n: int, below: int, above: int) -> None:
    """All systems at once, to the bits of kernels. `rows` are those that reach into the column, which they
    begin in; the last column is of the right-hand sides."""
    wide = below + above + 1
    numbers = xp.arange(below + 1).reshape(-1, 1, *(1,) * (out.ndim - 1))

    def row(i: int, first: int) -> Any:
        """Build a row of the matrix, from a column on."""
        made = xp.zeros((wide + 1, *out.shape[1:]), out.dtype)
        for j in range(wide):
            o = first + j - i
            if i < n and -below <= o <= above and 0 <= i + o < n:
                made[j] = xs[below + o][i]
        if i < n:
            made[-1] = xs[-1][i]
        return made

    rows = xp.stack([row(i, 0) for i in range(below + 1)])
    kept = []
    with np.errstate(all="ignore"):  # a singular system has infinities and NaN
        for k in range(n):
            best = xp.argmax(xp.abs(rows[:, :1].real) + xp.abs(rows[:, :1].imag), 0)[None]
            pivot = xp.take_along_axis(rows, xp.broadcast_to(best, rows[:1].shape), 0)[0]
            others = xp.where(numbers == best, rows[:1], rows)[1:]
            inverse = 1 / pivot[0]
            others = others - others[:, :1] * inverse * pivot
            pivot[0] = inverse
            kept.append(pivot)
            others[:, : wide - 1] = others[:, 1:wide]
            others[:, wide - 1] = 0
            rows = xp.concatenate([others, row(k + 1 + below, k + 1)[None]])
        for k in reversed(range(n)):
            x = kept[k][-1]
            for j in range(1, min(wide, n - k)):
                x = x - kept[k][j] * out[k + j]
            out[k] = x * kept[k][0]


def _grad(
    g: Array, y: Array, *xs: Array, lower: int, axis: int, transposed: bool
) -> Sequence[Array | None]:
    back = apply("solve_banded", *xs[:-1], g, lower=lower, axis=axis, transposed=not transposed)
    left, right = (y, back) if transposed else (back, y)  # a[i, j] has -left[i] right[j]
    n, found = y.shape[axis], []
    for o in range(-lower, len(xs) - 1 - lower):
        column = iota(y.shape, axis) + o
        inside = (column >= 0) & (column < n)
        found.append(where(inside, -left * roll(right, -o, axis=axis), zero_of(y)))
    return (*found, back)


def _cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    each = 2 * (p["lower"] + 1) * (len(ins) - 1) + 8
    return float(each * outs[0].size), float(2 * sum_bytes(ins, outs))


op(
    "solve_banded",
    infer=_rule,
    takes={"lower": whole(0), "axis": AXIS, "transposed": FLAG},
    indices=running,
    kernel=_kernel,
    grad=_grad,
    cost=_cost,
    dense=True,
)


# -- what users call -------------------------------------------------------------------------
def solve_tridiagonal(
    dl: Operandish, d: Operandish, du: Operandish, b: Operandish, /, *, axis: int | None = None
) -> Array:
    """x of a x = b, for a of three diagonals: a[i, i - 1] = dl[i], a[i, i] = d[i], a[i, i + 1] = du[i]. The
    first element of dl and the last of du are not read, and may be missing.

    With `axis`, systems lie along that axis of b, side by side. Diagonals are vectors for all of them,
    or arrays that broadcast with b. Without it, as in JAX: along the last axis of diagonals and b, or
    the last but one of b where that has one axis more, for columns.

    Rows change places where that is needed to lose no digits (partial pivoting, as in LAPACK's gtsv).
    A system that is singular has infinities or NaN; those beside it have not.

    >>> ost.linalg.solve_tridiagonal(-1.0, 2.0, -1.0, [1.0, 0.0, 1.0])
    Array([1., 1., 1.], dtype=float64)
    """
    name = "solve_tridiagonal"
    *diagonals, right = map(floating, unify(dl, d, du, b))
    if right.ndim == 0:
        raise misfit(ShapeError, name, got=f"right-hand sides {right.spec.bare}", needed="an axis")
    if axis is None:
        deep = max(x.ndim for x in diagonals)
        columns = right.ndim == deep + 1 > 1
        at = right.ndim - 1 - columns
        if columns:
            diagonals = [expand_dims(x, axis=-1) if x.ndim else x for x in diagonals]
    else:
        at = axis_of(axis, right.ndim, name)
        after = (1,) * (right.ndim - 1 - at)
        diagonals = [reshape(x, (*x.shape, *after)) if x.ndim == 1 else x for x in diagonals]
    n, back = right.shape[at], at - right.ndim
    diagonals = [_whole_diagonal(x, o, n, back) for x, o in zip(diagonals, (-1, 0, 1), strict=True)]
    return _solved(name, diagonals, right, 1, back)


def _whole_diagonal(x: Array, o: int, n: int, axis: int) -> Array:
    """With the element outside of the matrix, which nobody reads."""
    if not o or x.ndim < -axis or x.shape[axis] != n - 1:
        return x
    end = list(x.shape)
    end[axis] = 1
    nothing = broadcast_to(convert(as_array(0), x.dtype), tuple(end))
    return concat((nothing, x) if o < 0 else (x, nothing), axis=axis)


def _solved(name: str, diagonals: Sequence[Array], b: Array, lower: int, axis: int) -> Array:
    """Solve for diagonals that broadcast with b, along an axis that is counted from the end."""
    dtype = promote(*(x.dtype for x in (*diagonals, b)))
    n = b.shape[axis]
    for x in diagonals:
        if x.ndim >= -axis and x.shape[axis] not in (1, n):
            got = f"a diagonal {x.spec.bare} and right-hand sides {b.spec.bare}"
            needed = f"{n} elements along the systems, as many as the right-hand sides have"
            raise misfit(ShapeError, name, got=got, needed=needed)
    shape = broadcast(name, *(x.shape for x in (*diagonals, b)))
    given = [broadcast_to(convert(x, dtype), shape) for x in (*diagonals, b)]
    at = len(shape) + axis
    return apply("solve_banded", *given, lower=lower, axis=at, transposed=False)


def solve_banded(
    l_and_u: tuple[SupportsIndex, SupportsIndex], ab: Operandish, b: Operandish, /
) -> Array:
    """x of a x = b, for a with l diagonals below the main one and u above, by SciPy's arguments: a[i, j] is
    in row u + i - j and column j of `ab`. Leading axes are of many matrices; b has columns, or is one
    vector. Rows change places where that is needed to lose no digits (partial pivoting, as in
    LAPACK's gbsv). A system that is singular has infinities or NaN.

    >>> ost.linalg.solve_banded((1, 0), [[2.0, 2.0], [1.0, 0.0]], [2.0, 3.0])
    Array([1., 1.], dtype=float64)
    """
    name = "solve_banded"
    try:
        lower, upper = (n.__index__() for n in l_and_u)
    except (TypeError, ValueError, AttributeError):
        lower = upper = -1
    if min(lower, upper) < 0:
        got = f"{l_and_u!r}"
        raise misfit(ArgumentError, name, got=got, needed="numbers of diagonals, (lower, upper)")
    bands, right = map(floating, unify(ab, b))
    vector = right.ndim == 1
    right = expand_dims(right, axis=-1) if vector else right
    n = right.shape[-2] if right.ndim else 0
    if right.ndim < 2 or bands.ndim < 2 or bands.shape[-2:] != (lower + upper + 1, n):
        got = f"{bands.spec.bare} and right-hand sides {right.spec.bare}"
        needed = f"{lower + upper + 1} diagonals, each of as many elements as there are equations"
        raise misfit(ShapeError, name, got=got, needed=needed)
    columns = [bands[..., upper - o, :, None] for o in range(-lower, upper + 1)]
    diagonals = [
        roll(x, -o, axis=-2) for x, o in zip(columns, range(-lower, upper + 1), strict=True)
    ]
    made = _solved(name, diagonals, right, lower, -2)
    return squeeze(made, -1) if vector else made
