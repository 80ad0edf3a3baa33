"""Factorizations of matrices that lie in parts: graphs that do the same as one node, of which the
layout pass takes the cheapest.

    tall (m > P n)    each part's own QR; the small R's are gathered, their QR is computed by all;
                      a product per part. Also behind least squares, SVD and the pseudo-inverse.
    square            block after block: a panel is gathered and factorized by all, the rest is
                      updated where it lies. The rest shrinks, and is spread anew each time.

Under `any-workers` there are none: bits would depend on the parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.array.arithmetic import abs as absolute
from ostinato.ops.array.arithmetic import conj, sign
from ostinato.ops.array.concatenation import concat
from ostinato.ops.array.creation import eye, zeros
from ostinato.ops.array.elementwise import where
from ostinato.ops.array.reduction import prod, sum
from ostinato.ops.array.shape import expand_dims, reshape
from ostinato.ops.array.transcendental import log
from ostinato.ops.core.device import device_of
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.index import Indices
from ostinato.ops.core.layout import Layout, every_bounds
from ostinato.ops.core.parameters import BOUNDS, unfit
from ostinato.ops.core.registry import Params, Place, Scratch, Specs, op
from ostinato.ops.core.spec import Spec, int64
from ostinato.ops.core.trace import graph_of
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ShapeError

from ..core.apply import apply, apply_all
from ..core.array import Array
from .matrices import adjoint, matrix, one_matrix
from .tall_qr import thin_qr

MIN_ROWS = 1024  # rows of a matrix that is worth several steps; more than a panel has columns
Bounds = tuple[int, ...]


# -- which way to cut ------------------------------------------------------------------------
def _in_parts(x: Spec) -> bool:
    """Whether this is one matrix, cut along rows or columns."""
    layout = x.layout
    return (
        x.ndim == 2
        and layout is not None
        and not layout.blocks
        and not layout.windows
        and any(isinstance(s, int) for s in layout.splits)
    )


def parts_of(x: Spec) -> Bounds:
    """Where the parts begin if rows are cut along the mesh axes that cut the matrix now."""
    assert x.layout is not None
    used = [isinstance(s, int) for s in x.layout.splits]
    rows = Layout(x.layout.mesh, tuple(0 if u else None for u in used))
    starts, _ = every_bounds(rows, x.shape[0], 0)
    return (*starts.tolist(), x.shape[0])


def _tall(x: Spec, columns: int) -> bool:
    """Whether all R's together are smaller than the matrix."""
    return _in_parts(x) and x.shape[0] > (len(parts_of(x)) - 1) * columns > 0


def _panels(n: int, workers: int) -> list[tuple[int, int]]:
    """Start and width of the steps."""
    width = max(64, min(512, n // (4 * workers)), n // 32)
    return [(a, min(width, n - a)) for a in range(0, n, width)]


# -- tall matrices ---------------------------------------------------------------------------
def _parts_rule(x: Spec, *, bounds: Bounds) -> Specs:
    m, n = one_matrix("qr_of_parts", x).shape
    if bounds[-1] != m or any(b - a < n for a, b in itertools.pairwise(bounds)):
        needed = "parts of at least as many rows as columns"
        raise misfit(ShapeError, "qr_of_parts", got=f"{x.bare} in parts {bounds}", needed=needed)
    small = Spec((len(bounds) - 1, n, n), x.dtype)
    return Spec(x.shape, x.dtype), small, small


def _parts_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    cut = ("p", None, None)
    return Indices((("p", None),), (("p", None), cut, cut), parts=(("p", p["bounds"]),))


def _parts_kernel(xp: Any, out: Any, x: Any, *, bounds: Bounds, at: Place) -> None:
    q, w, r = out
    start = at.ins[0][0][0]
    for k, part in enumerate(range(*at.outs[1][0])):
        rows = slice(bounds[part] - start, bounds[part + 1] - start)
        last, upper = thin_qr(xp, x[rows], None if q is None else q[rows])
        if w is not None:
            w[k] = xp.eye(x.shape[1]) if last is None else last
        if r is not None:
            r[k] = upper


op(
    "qr_of_parts",  # x = (each part's q w) r: w is for the caller to multiply q with
    infer=_parts_rule,
    takes={"bounds": BOUNDS},
    made_by="passes",
    indices=_parts_indices,
    kernel=_parts_kernel,
    placed=True,
    dense=True,
    cost=lambda ins, outs, p: (
        6.0 * ins[0].size * ins[0].shape[-1],
        float(3 * ins[0].nbytes + outs[0].nbytes),
    ),
)


def _by_parts_rule(x: Spec, w: Spec, *, bounds: Bounds) -> Spec:
    one_matrix("matmul_of_parts", x)
    fits = matrix("matmul_of_parts", w).ndim == 3 and w.dtype == x.dtype
    if not fits or w.shape[:2] != (len(bounds) - 1, x.shape[1]) or bounds[-1] != x.shape[0]:
        got = f"{x.bare} in parts {bounds} @ {w.bare}"
        raise misfit(ShapeError, "matmul_of_parts", got=got, needed="a matrix for each part")
    return Spec((x.shape[0], w.shape[2]), x.dtype)


def _by_parts_kernel(xp: Any, out: Any, x: Any, w: Any, *, bounds: Bounds, at: Place) -> None:
    start = at.ins[0][0][0]
    for k, part in enumerate(range(*at.ins[1][0])):
        rows = slice(bounds[part] - start, bounds[part + 1] - start)
        xp.matmul(x[rows], w[k], out=out[rows])


op(
    "matmul_of_parts",
    infer=_by_parts_rule,
    takes={"bounds": BOUNDS},
    made_by="passes",
    indices=lambda ins, outs, p: Indices(
        (("p", None), ("p", None, None)), (("p", None),), parts=(("p", p["bounds"]),)
    ),
    kernel=_by_parts_kernel,
    placed=True,
    dense=True,
    cost=lambda ins, outs, p: (
        2.0 * outs[0].size * ins[0].shape[-1],
        float(ins[0].nbytes + ins[1].nbytes + outs[0].nbytes),
    ),
)


def _tall_qr(x: Array, bounds: Bounds) -> tuple[Array, Array]:
    n, count = x.shape[1], len(bounds) - 1
    q, w, r = apply_all("qr_of_parts", x, bounds=bounds)
    again, r = apply_all("qr", reshape(r, (count * n, n)), mode="reduced")
    turn = w @ reshape(again, (count, n, n))
    return apply("matmul_of_parts", q, turn, bounds=bounds), r


def qr(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    (x,) = ins
    if p["mode"] == "complete" and x.shape[0] > x.shape[-1]:
        return ()
    if _tall(x, x.shape[-1]):
        bounds = parts_of(x)
        return [graph_of(lambda x: _tall_qr(x, bounds), ins)]
    if _square(x):
        return [graph_of(lambda a: _householder(a, _steps(x)), ins)]
    return ()


def svd(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    """Decompose a tall matrix by way of its R; a wide one is transposed."""
    (x,) = ins
    if p["full"] or not _in_parts(x):
        return ()
    if _tall(x, x.shape[1]):
        bounds = parts_of(x)

        def tall(x: Array) -> Sequence[Array]:
            q, r = _tall_qr(x, bounds)
            u, s, vh = apply_all("svd", r, full=False)
            return q @ u, s, vh

        return [graph_of(tall, ins)]
    return ()


def pinv(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    (x,) = ins
    if not _tall(x, x.shape[-1]):
        return ()
    bounds = parts_of(x)

    def run(x: Array) -> Sequence[Array]:
        q, r = _tall_qr(x, bounds)
        return (apply("pinv", r, rtol=p["rtol"]) @ adjoint(q),)

    return [graph_of(run, ins)]


def lstsq(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    """R of the matrix with the right-hand sides beside it is all that is needed: no Q is made."""
    a, b = ins
    if b.ndim != 2 or not _tall(a, a.shape[1] + b.shape[1]):
        return ()
    bounds, n = parts_of(a), a.shape[1]

    def run(a: Array, b: Array) -> Sequence[Array]:
        count, width = len(bounds) - 1, n + b.shape[1]
        _, _, r = apply_all("qr_of_parts", concat([a, b], axis=1), bounds=bounds)
        _, r = apply_all("qr", reshape(r, (count * width, width)), mode="reduced")
        return apply_all("lstsq", r[:n, :n], r[:n, n:], rtol=p["rtol"])

    return [graph_of(run, ins)]


# -- square matrices ---------------------------------------------------------------------------
def _square(x: Spec) -> bool:
    return _in_parts(x) and min(x.shape) >= MIN_ROWS and max(x.shape) <= 4 * min(x.shape)


def _steps(x: Spec) -> list[tuple[int, int]]:
    assert x.layout is not None
    return _panels(min(x.shape), x.layout.workers)


def cholesky(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    (x,) = ins
    if not _square(x):
        return ()

    def run(rest: Array) -> Sequence[Array]:
        columns = []
        for start, k in _steps(x):
            panel = rest[:, :k]  # before rows are cut, so that only these columns' move
            top = apply("cholesky", panel[:k], upper=False)
            column = [zeros((start, k), dtype=x.dtype), top]
            if start + k < x.shape[0]:
                below = adjoint(solved(top, adjoint(panel[k:]), upper=False))
                rest = rest[:, k:][k:] - below @ adjoint(below)
                column.append(below)
            columns.append(concat(column, axis=0))
        lower = concat(columns, axis=1)
        return (adjoint(lower) if p["upper"] else lower,)

    return [graph_of(run, ins)]


def solved(a: Array, b: Array, *, upper: bool, unit: bool = False) -> Array:
    return apply("solve_triangular", a, b, upper=upper, unit=unit)


def _cut(x: Array, split: int | None) -> Array:
    return apply("resplit", x, split=split, mesh=None)


class _Elimination:
    """LU with partial pivoting, block after block; the matrix is cut along columns, so that rows
    change places without a message."""

    def __init__(self, x: Array, steps: Sequence[tuple[int, int]]) -> None:
        self.orders: list[Array] = []  # of the rows that each step has left
        self.lowers: list[Array] = []  # panels of L, rows in the order of their own step
        self.uppers: list[Array] = []  # diagonal blocks of U
        self.rights: list[Array | None] = []  # what stands right of them
        rest = _cut(x, 1)
        for start, k in steps:
            order, lower, upper = apply_all("lu", rest[:, :k])
            self.orders.append(order)
            self.lowers.append(lower)
            self.uppers.append(upper)
            right = None
            if start + k < x.shape[1]:
                moved = apply("take", rest[:, k:], order, axis=0)
                right = solved(lower[:k], moved[:k], upper=False, unit=True)
                if start + k < x.shape[0]:
                    rest = moved[k:] - lower[k:] @ right
            self.rights.append(right)


def lu(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    (x,) = ins
    if not _square(x):
        return ()
    steps = _steps(x)

    def run(x: Array) -> Sequence[Array]:
        done = _Elimination(x, steps)
        columns, rows = [], []
        later: Array | None = None  # where the rows go that are below the step, from all later ones
        for (start, k), order, lower in reversed(
            list(zip(steps, done.orders, done.lowers, strict=True))
        ):
            below = lower[k:]
            if later is not None:
                below = apply("take", below, later, axis=0)
            columns.append(concat([zeros((start, k), dtype=x.dtype), lower[:k], below], axis=0))
            if later is None:
                later = order
            else:
                later = concat([order[:k], apply("take", order[k:], later, axis=0)])
        for (start, k), upper, right in zip(steps, done.uppers, done.rights, strict=True):
            row = [zeros((k, start), dtype=x.dtype), upper]
            rows.append(concat([*row, right] if right is not None else row, axis=1))
        assert later is not None
        return later, concat(columns[::-1], axis=1), concat(rows, axis=0)

    return [graph_of(run, ins)]


def solve(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    a, b = ins
    if not _square(a) or b.ndim != 2:
        return ()
    steps = _steps(a)
    many = b.shape[1] >= a.shape[0] // 4

    def run(a: Array, b: Array) -> Sequence[Array]:
        done = _Elimination(a, steps)
        rest, tops = _cut(b, 1 if many else None), []
        for (_, k), order, lower in zip(steps, done.orders, done.lowers, strict=True):
            moved = apply("take", rest, order, axis=0)
            tops.append(solved(lower[:k], moved[:k], upper=False, unit=True))
            rest = moved[k:] - lower[k:] @ tops[-1]
        return (_back(done.uppers, done.rights, tops),)

    return [graph_of(run, ins)]


def _back(uppers: Sequence[Array], rights: Sequence[Array | None], tops: Sequence[Array]) -> Array:
    """U x = y from below."""
    found: list[Array] = []
    for upper, right, top in zip(uppers[::-1], rights[::-1], tops[::-1], strict=True):
        if found:
            assert right is not None
            top = top - right @ (concat(found, axis=0) if len(found) > 1 else found[0])
        found.insert(0, solved(upper, top, upper=True))
    return concat(found, axis=0) if len(found) > 1 else found[0]


def solve_triangular(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    """Where right-hand sides are few: block after block, each a product with what is known."""
    a, b = ins
    if not _square(a) or b.ndim != 2 or p["unit"]:
        return ()
    steps = _steps(a)
    n = a.shape[0]

    def run(a: Array, b: Array) -> Sequence[Array]:
        found: list[Array] = []
        for start, k in reversed(steps) if p["upper"] else steps:
            own = slice(start, start + k)
            top = b[own]
            if found:
                known = slice(start + k, n) if p["upper"] else slice(0, start)
                top = top - a[own, known] @ concat(found, axis=0)
            made = solved(a[own, own], top, upper=p["upper"])
            found = [made, *found] if p["upper"] else [*found, made]
        return (concat(found, axis=0),)

    return [graph_of(run, ins)]


# -- orthogonal factors of square matrices -----------------------------------------------------
def _reflectors_rule(x: Spec) -> Specs:
    m, n = one_matrix("reflectors", x).shape
    if m < n:
        raise misfit(ShapeError, "reflectors", got=str(x.bare), needed="rows for all columns")
    small = Spec((n, n), x.dtype)
    return Spec(x.shape, x.dtype), small, small


def _reflectors_kernel(xp: Any, out: Any, x: Any, *, scratch: Sequence[Any]) -> None:
    """x = (1 - v t vᴴ) r: Householder's vectors, and what makes one product of them."""
    v, t, r = out
    v = scratch[0] if v is None else v
    n = x.shape[1]
    if (lapack := device_of(x).lapack) is not None:
        np.copyto(v, x)
        tau = np.empty(n, x.dtype)
        lapack.gelqf(v, tau)
        tau = tau.conj()
    else:
        turned, tau = xp.linalg.qr(x, "raw")
        v[...] = turned.T
    if r is not None:
        r[...] = xp.triu(v[:n])
    v[:n] = xp.tril(v[:n], -1) + xp.eye(n)
    if t is None:
        return
    t[...] = 0
    across = v.conj().T @ v
    for k in range(n):
        t[:k, k] = -tau[k] * (t[:k, :k] @ across[:k, k])
        t[k, k] = tau[k]


op(
    "reflectors",
    infer=_reflectors_rule,
    made_by="passes",
    indices=lambda ins, outs, p: Indices(((None, None),), ((None, None),) * 3),
    kernel=_reflectors_kernel,
    scratch=lambda ins, outs, specs: (Scratch(ins[0], specs[0].dtype),),
    dense=True,
    cost=lambda ins, outs, p: (
        4.0 * ins[0].size * ins[0].shape[-1],
        float(ins[0].nbytes + outs[0].nbytes),
    ),
)


def _householder(x: Array, steps: Sequence[tuple[int, int]]) -> tuple[Array, Array]:
    """Columns are cut: each panel's reflections are gathered, and turn everybody's columns."""
    rest, turns, rows = _cut(x, 1), [], []
    for start, k in steps:
        v, t, r = apply_all("reflectors", rest[:, :k])
        turns.append((start, v, t))
        row = [zeros((k, start), dtype=x.dtype), r]
        if start + k < x.shape[1]:
            right = rest[:, k:]
            right = right - v @ (adjoint(t) @ (adjoint(v) @ right))
            row.append(right[:k])
            rest = right[k:]
        rows.append(concat(row, axis=1))
    upper = concat(rows, axis=0)
    q = _cut(eye(x.shape[0], upper.shape[0], dtype=x.dtype), 1)
    for start, v, t in reversed(turns):
        below = q[start:]
        below = below - v @ (t @ (adjoint(v) @ below))
        q = concat([q[:start], below], axis=0) if start else below
    d = apply("diagonal", upper, offset=0)
    turn = where(d == 0, 1, sign(d))
    return q * turn, expand_dims(conj(turn), axis=-1) * upper


# -- determinants ------------------------------------------------------------------------------
def _parity_kernel(xp: Any, out: Any, order: Any) -> None:
    """Each cycle counts one less than its places. They learn of the least place in their cycle, looking
    twice as far each time."""
    places = xp.arange(order.size)
    if (xp.sort(order) != places).any():
        raise IndexError("an order in which a place stands twice")
    least, far = places, order
    for _ in range(order.size.bit_length()):
        least, far = xp.minimum(least, least[far]), far[far]
    out[...] = 1 - 2 * ((least != places).sum() % 2)


def _parity_rule(order: Spec) -> Spec:
    if order.ndim != 1 or order.dtype != int64:
        raise unfit("parity", (order,), "int64 along one axis")
    return Spec((), int64)


op(
    "parity",  # of a permutation: 1 if it takes an even number of swaps, else -1
    infer=_parity_rule,
    made_by="passes",
    indices=lambda ins, outs, p: Indices(((None,),), ((),)),
    kernel=_parity_kernel,
    cost=lambda ins, outs, p: (10.0 * ins[0].size, float(ins[0].nbytes)),
)


def _pivots(x: Array, steps: Sequence[tuple[int, int]]) -> tuple[Array, Array]:
    """The diagonal of U, and the sign of the permutation."""
    done = _Elimination(x, steps)
    diagonal = concat([apply("diagonal", u, offset=0) for u in done.uppers], axis=0)
    signs = [apply("parity", order) for order in done.orders]
    whole = signs[0]
    for one in signs[1:]:
        whole = whole * one
    return diagonal, whole.astype(x.dtype)


def det(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    (x,) = ins
    if not _square(x):
        return ()

    def run(a: Array) -> Sequence[Array]:
        diagonal, parity = _pivots(a, _steps(x))
        return (prod(diagonal) * parity,)

    return [graph_of(run, ins)]


def slogdet(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    (x,) = ins
    if not _square(x):
        return ()

    def run(a: Array) -> Sequence[Array]:
        diagonal, parity = _pivots(a, _steps(x))
        return prod(sign(diagonal)) * parity, sum(log(absolute(diagonal)))

    return [graph_of(run, ins)]
