"""Eigenvalues of a Hermitian matrix that lies in parts, by Jacobi's rotations of blocks.

The matrix is 2 p blocks of rows and columns in p pairs. A round makes the blocks of each pair diagonal
among themselves, all pairs at once, with products where the matrix lies; then the blocks change
places as in a tournament: in 2 p - 1 rounds each meets each. Only what is turned moves, and one
block of each pair. Six to eight tournaments do; that is more work than to gather the matrix, so it
pays with ten workers or more."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ostinato.ops.contraction import einsum
from ostinato.ops.control import while_loop
from ostinato.ops.core.array import Array, apply, apply_all
from ostinato.ops.core.index import Indices
from ostinato.ops.core.parameters import unfit
from ostinato.ops.core.registry import op
from ostinato.ops.core.spec import Spec, real_of
from ostinato.ops.creation import arange, eye
from ostinato.ops.elementwise import abs as absolute
from ostinato.ops.elementwise import maximum, real, sqrt, square, where
from ostinato.ops.indexing import take_along_axis
from ostinato.ops.reduction import cumulative_sum, max, sum
from ostinato.ops.shape import add_zeros, concat, expand_dims, reshape, stack
from ostinato.ops.sorting import argsort

from .matrices import adjoint, as_diagonal

SLIGHT = 1e-6
TOURNAMENTS = 15  # at the most; it converges quadratically in the end
State = tuple[Array, Array, Array, Array]


def eigh_in_pairs(x: Array, pairs: int) -> tuple[Array, Array]:
    """Eigenvalues in ascending order, and eigenvectors."""
    given = x.shape[0]
    half = -(-given // (2 * pairs))
    n = 2 * pairs * half
    bound = max(sum(absolute(x), axis=1))
    if n > given:  # rows of their own, whose eigenvalues come last
        own = where(arange(n) < given, 0, 2 * bound + 1)
        x = add_zeros(x, ((0, n - given), (0, n - given))) + as_diagonal(own.astype(x.dtype))
    size = sqrt(sum(square(absolute(x))))
    least = 8 * _rounding(x) * size
    start = _rows(x), _rows(eye(n, dtype=x.dtype)), arange(2 * pairs), size + least
    most = TOURNAMENTS * (2 * pairs - 1)

    def turn(state: State) -> State:
        a, v, names, left = state
        return _round(a, v, names, left, size)

    a, v, _, left = while_loop(lambda s: s[3] > least, turn, start, most=most)
    w = apply("eigh_in_parts", real(apply("diagonal", a, offset=0)), left, 16 * least)
    order = argsort(w)[:given]
    return apply("take", w, order, axis=0), apply("take", v[:given], order, axis=1)


def _rounding(x: Array) -> float:
    """What is lost beside the matrix's size."""
    return math.sqrt(x.shape[0]) * float(np.finfo(real_of(x.dtype)).eps)


def _rows(x: Array) -> Array:
    return apply("resplit", x, split=0, mesh=None)


def _round(a: Array, v: Array, names: Array, left: Array, size: Array) -> State:
    """All pairs turned, and what is left beside the diagonal; the blocks in their next places."""
    n, pairs = a.shape[0], names.shape[0] // 2
    both = n // pairs
    cut = (pairs, both, pairs, both)
    own = reshape(eye(pairs, dtype=a.dtype), (pairs, 1, pairs, 1))
    near = maximum(16 * left * left / size, _rounding(a) * size)
    near = where(left < size / (32 * n), near, 0)
    u = _turns(sum(reshape(a, cut) * own, axis=2), reshape(names, (pairs, 2)), near)
    a = reshape(adjoint(u) @ reshape(a, (pairs, both, n)), cut)
    everybody = apply("resplit", u, split=None, mesh=None)
    a = reshape(einsum("iajb,jbc->iajc", a, everybody), (n, n))
    v = reshape(einsum("rjb,jbc->rjc", reshape(v, (n, pairs, both)), everybody), (n, n))
    left = sqrt(sum(where(eye(n, dtype="bool"), 0, square(absolute(a)))))
    a = _rows(_moved(_moved(a, 1, pairs), 0, pairs))
    return a, _rows(_moved(v, 1, pairs)), _moved(names, 0, pairs), left


def _turns(blocks: Array, names: Array, near: Array) -> Array:
    """Eigenvectors of each pair. The block with the lower name gets the lower eigenvalues, so that all
    of them are in order in the end. Those of eigenvalues that are `near` each other may be any
    basis of what they span; the one that turns least keeps what other pairs have done.
    """
    w, u = apply_all("eigh", blocks)
    both = u.shape[1]
    group = cumulative_sum(
        (w[:, 1:] - w[:, :-1] > near).astype("int64"), axis=1, include_initial=True
    )
    first = where(names[:, :1] < names[:, 1:], 0, both // 2)
    order = (arange(both) + first) % both
    u = take_along_axis(u, expand_dims(order, axis=1), axis=2)
    group = take_along_axis(group, order, axis=1)
    same = expand_dims(group, axis=1) == expand_dims(group, axis=2)
    least, _, turned = apply_all(
        "svd", where(same, adjoint(u), 0) + SLIGHT * eye(both, dtype=u.dtype), full=False
    )
    return u @ (least @ turned)


def _moved(x: Array, axis: int, pairs: int) -> Array:
    """The next round of a tournament: the first stays, the others go round."""
    if pairs == 1:
        return x
    shape, before = x.shape, (slice(None),) * axis
    y = reshape(x, (*shape[:axis], pairs, 2, -1, *shape[axis + 1 :]))
    one, other = y[(*before, slice(None), 0)], y[(*before, slice(None), 1)]

    def some(z: Array, start: int, stop: int) -> Array:
        return z[(*before, slice(start, stop))]

    down = [some(one, 0, 1), some(other, 0, 1), some(one, 1, pairs - 1)]
    up = [some(other, 1, pairs), some(one, pairs - 1, pairs)]
    made = [concat([z for z in way if z.size], axis=axis) for way in (down, up)]
    return reshape(stack(made, axis=axis + 1), shape)


def _converged_kernel(xp: Any, out: Any, w: Any, left: Any, most: Any) -> None:
    if left > most:
        raise np.linalg.LinAlgError("eigenvalues that did not converge")
    out[...] = w


def _converged_rule(w: Spec, left: Spec, most: Spec) -> Spec:
    if w.ndim != 1 or left.shape or most.shape or not w.dtype == left.dtype == most.dtype:
        raise unfit("eigh_in_parts", (w, left, most), "a vector and two numbers of one dtype")
    return w.bare


op(
    "eigh_in_parts",  # the end of it: the first operand, unless the second is larger than the third
    infer=_converged_rule,
    made_by="passes",
    indices=lambda ins, outs, p: Indices((("i",), (), ()), (("i",),)),
    kernel=_converged_kernel,
)
