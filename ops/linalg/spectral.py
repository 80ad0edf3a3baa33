"""Singular values and eigenvalues of matrices, and what rests on them: the pseudo-inverse, least
squares. Whole along the last two axes, like those of factorizations.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.array.arithmetic import conj, convert, imag, real
from ostinato.ops.array.creation import eye
from ostinato.ops.array.elementwise import where
from ostinato.ops.array.shape import expand_dims, matrix_transpose
from ostinato.ops.core.device import device_of
from ostinato.ops.core.index import LETTERS, Indices
from ostinato.ops.core.notes import noted
from ostinato.ops.core.parameters import FLAG, SHARE
from ostinato.ops.core.registry import Params, Scratch, Specs, op
from ostinato.ops.core.spec import Shape, Spec, complex64, complex128, float32, int64, real_of
from ostinato.ops.core.user_line import misfit

from ostinato.errors import GradientError, ShapeError

from ..core.apply import apply, apply_all
from ..core.array import Array
from . import blocked
from .factorizations import qr_of_one
from .matrices import (
    adjoint,
    as_diagonal,
    bar_of,
    cubic,
    diagonal_of,
    each,
    is_one_call,
    is_tall,
    matrix,
    put,
    turned,
    whole,
)
from .tall_qr import thin_qr, times


# -- singular values -------------------------------------------------------------------------
def _svd_rule(x: Spec, *, full: bool) -> Specs:
    *batch, m, n = matrix("svd", x).shape
    k = min(m, n)
    return (
        Spec((*batch, m, m if full else k), x.dtype),
        Spec((*batch, k), real_of(x.dtype)),
        Spec((*batch, n if full else k, n), x.dtype),
    )


def _svd_kernel(xp: Any, out: Any, x: Any, *, full: bool) -> None:
    if is_one_call(x) and x.size:
        for y, value in zip(out, _singular(xp, x, out[0] is out[2] is None, full), strict=True):
            put(xp, y, value)
        return
    for one, u, s, vh in each(x, *out):
        svd_of_one(xp, one, u, s, vh, full)


def svd_of_one(xp: Any, x: Any, u: Any, s: Any, vh: Any, full: bool = False) -> None:
    """One matrix; a tall one by way of its R, for which u may be worked in. Each result is the same
    whichever of the others are wanted: they may be asked for one by one."""
    m, n = x.shape
    only = u is None and vh is None
    if not x.size:
        for y in (u, vh):
            put(xp, y, 0 if y is None else xp.eye(*y.shape))
    elif is_tall(m, n):
        thin = u if u is None or not full else xp.empty(x.shape, x.dtype)
        last, upper = thin_qr(xp, x, thin)
        left, values, right = _singular(xp, upper, only)
        if thin is not None:
            times(thin, (left if last is None else last @ left).astype(x.dtype))
        if thin is not u:
            qr_of_one(xp, thin, u, None, xp.empty(x.shape, x.dtype))  # the rest are at right angles
            u[:, :n] = thin
        put(xp, s, values)
        put(xp, vh, right)
    else:
        for y, value in zip((u, s, vh), _singular(xp, x, only, full), strict=True):
            put(xp, y, value)


def _singular(xp: Any, x: Any, only: bool, full: bool = False) -> tuple[Any, Any, Any]:
    u, vh = None, None
    if only:
        s = xp.linalg.svd(x, compute_uv=False)
    else:
        u, s, vh = xp.linalg.svd(x, full_matrices=full)
    _check(s, "SVD did not converge")
    return u, s, vh


def _check(values: Any, otherwise: str) -> None:
    """Libraries of devices say nothing of matrices with NaN."""
    if not device_of(values).is_host:
        unknown = values != values
        if not noted(unknown, 1, otherwise) and unknown.any():
            raise np.linalg.LinAlgError(otherwise)


def _svd_grad(
    g: Sequence[Array | None], y: Sequence[Array], x: Array, *, full: bool
) -> Sequence[Array | None]:
    """Differentiate thin factors with distinct singular values; where they meet, only that of the
    values is defined."""
    u, s, vh = y
    gu, gs, gvh = (bar_of(part) for part in g)
    m, n = x.shape[-2:]
    if full and m != n and (gu is not None or gvh is not None):
        got, needed = "full_matrices=True", "factors that the matrix determines"
        do = "use full_matrices=False"
        raise misfit(GradientError, "gradient of svd", got=got, needed=needed, do=do)
    k = s.shape[-1]
    u, vh = u[..., :k], vh[..., :k, :]
    v = adjoint(vh)
    across = convert(expand_dims(s, axis=-2), x.dtype)
    inner = None if gs is None else as_diagonal(convert(gs, x.dtype))
    outer = None
    gap = expand_dims(s * s, axis=-2) - expand_dims(s * s, axis=-1)
    apart = convert(where(eye(k, dtype=bool), 0, 1 / where(gap == 0, math.inf, gap)), x.dtype)
    if gu is not None:
        turned = adjoint(u) @ gu
        part = (apart * (turned - adjoint(turned))) * across
        if x.dtype.kind == "c":
            phase = convert(imag(diagonal_of(turned)), x.dtype) * 1j
            part = part + as_diagonal(phase / convert(s, x.dtype))
        inner = part if inner is None else inner + part
        if m > k:
            outer = ((gu - u @ turned) / across) @ vh
    if gvh is not None:
        gv = adjoint(gvh)
        turned = adjoint(v) @ gv
        part = matrix_transpose(across) * (apart * (turned - adjoint(turned)))
        inner = part if inner is None else inner + part
        if n > k:
            more = (u / across) @ adjoint(gv - v @ turned)
            outer = more if outer is None else outer + more
    if inner is None:
        return (None,)
    made = u @ inner @ vh
    return (conj(made if outer is None else made + outer),)


op(
    "svd",
    infer=_svd_rule,
    takes={"full": FLAG},
    indices=whole,
    kernel=_svd_kernel,
    grad=_svd_grad,
    algorithms=blocked.svd,
    cost=cubic(20.0),
    dense=True,
    may_be_singular=True,
)


# -- eigenvalues -----------------------------------------------------------------------------
def _eigh_rule(x: Spec) -> Specs:
    shape = matrix("eigh", x, True).shape
    return Spec(shape[:-1], real_of(x.dtype)), Spec(shape, x.dtype)


def _eigh_kernel(xp: Any, out: Any, x: Any) -> None:
    values, vectors = out
    if vectors is None:
        w = xp.linalg.eigvalsh(x)
    else:
        w, v = xp.linalg.eigh(x)
        put(xp, vectors, v)
    _check(w, "Eigenvalues did not converge")
    put(xp, values, w)


def _eigh_grad(g: Sequence[Array | None], y: Sequence[Array], x: Array) -> Sequence[Array | None]:
    w, v = y
    gw, gv = (bar_of(part) for part in g)
    inner = None if gw is None else as_diagonal(convert(gw, x.dtype))
    if gv is not None:
        gap = expand_dims(w, axis=-2) - expand_dims(w, axis=-1)
        apart = convert(1 / where(gap == 0, math.inf, gap), x.dtype)
        turned = apart * (adjoint(v) @ gv)
        inner = turned if inner is None else inner + turned
    if inner is None:
        return (None,)
    made = v @ inner @ adjoint(v)
    return (conj((made + adjoint(made)) / 2),)


op(
    "eigh",
    infer=_eigh_rule,
    indices=whole,
    kernel=_eigh_kernel,
    grad=_eigh_grad,
    cost=cubic(9.0),
    dense=True,
    may_be_singular=True,
)


def _eig_rule(x: Spec) -> Specs:
    shape = matrix("eig", x, True).shape
    dtype = complex64 if x.dtype in (float32, complex64) else complex128
    return Spec(shape[:-1], dtype), Spec(shape, dtype)


def _eig_kernel(xp: Any, out: Any, x: Any) -> None:
    """By LAPACK on the host, as not every device's library has it."""
    values, vectors = out
    device = device_of(x)
    host = device.to_host(x)
    if vectors is None:
        put(xp, values, device.from_host(np.linalg.eigvals(host)))
        return
    w, v = np.linalg.eig(host)
    put(xp, values, device.from_host(w))
    put(xp, vectors, device.from_host(v))


def _eig_grad(g: Sequence[Array | None], y: Sequence[Array], x: Array) -> Sequence[Array | None]:
    """Differentiate distinct eigenvalues, and vectors of length 1, whatever the phase that each
    has."""
    w, v = y
    gw, gv = (bar_of(part) for part in g)
    inner = None if gw is None else as_diagonal(gw)
    left = adjoint(v)
    if gv is not None:
        gap = conj(expand_dims(w, axis=-2) - expand_dims(w, axis=-1))
        apart = convert(1 / where(gap == 0, math.inf, gap), v.dtype)
        moved = left @ gv
        along = convert(real(diagonal_of(moved)), v.dtype)
        turned = apart * (moved - left @ (v * expand_dims(along, axis=-2)))
        inner = turned if inner is None else inner + turned
    if inner is None:
        return (None,)
    return (conj(apply("solve", left, inner @ left)),)


op(
    "eig",
    infer=_eig_rule,
    indices=whole,
    kernel=_eig_kernel,
    grad=_eig_grad,
    cost=cubic(25.0),
    dense=True,
)


# -- pseudo-inverse and least squares ----------------------------------------------------------
def _pinv_kernel(xp: Any, out: Any, x: Any, *, rtol: float, scratch: Sequence[Any]) -> None:
    if is_one_call(x) and x.size:
        u, values, vh = _singular(xp, x, only=False)
        weights = _weights(xp, values, rtol).astype(x.dtype)
        put(xp, out, (turned(vh) * weights[..., None, :]) @ turned(u))
        return
    u, values, vh = scratch
    for one, made in each(x, out):
        if one.size:
            svd_of_one(xp, one, u, values, vh)
            weights = _weights(xp, values, rtol).astype(x.dtype)
            put(xp, made, (vh.conj().T * weights) @ u.conj().T)


def _weights(xp: Any, values: Any, rtol: float) -> Any:
    """Reciprocals of the singular values that count, 0 for the others."""
    counts = values > values[..., :1] * rtol
    return xp.where(counts, 1 / xp.where(counts, values, 1), 0)


def _svd_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], **_: Any
) -> Sequence[Scratch]:
    m, n = ins[0][-2:]
    k, dtype = min(m, n), specs[0].dtype
    return Scratch((m, k), dtype), Scratch((k,), real_of(dtype)), Scratch((k, n), dtype)


def _pinv_grad(g: Array, y: Array, x: Array, *, rtol: float) -> Sequence[Array | None]:
    """Golub and Pereyra, for matrices whose rank does not change nearby."""
    bar, p = conj(g), y
    made = -adjoint(p) @ bar @ adjoint(p)
    m, n = x.shape[-2:]
    if m > n:
        tall = adjoint(bar) @ p @ adjoint(p)
        made = made + tall - x @ (p @ tall)
    wide = adjoint(p) @ p @ adjoint(bar)
    if m <= n:
        tall = adjoint(bar) @ (p @ adjoint(p))
        made = made + tall - x @ (p @ tall)
    made = made + wide - (wide @ p) @ x
    return (conj(made),)


op(
    "pinv",
    infer=lambda x, *, rtol: Spec(
        (*matrix("pinv", x).shape[:-2], x.shape[-1], x.shape[-2]), x.dtype
    ),
    takes={"rtol": SHARE},
    indices=whole,
    kernel=_pinv_kernel,
    scratch=_svd_scratch,
    grad=_pinv_grad,
    algorithms=blocked.pinv,
    cost=cubic(22.0),
    dense=True,
)


def _lstsq_rule(a: Spec, b: Spec, *, rtol: float) -> Specs:
    *batch, m, n = matrix("lstsq", a).shape
    matrix("lstsq", b)
    if b.shape[:-1] != (*batch, m) or a.dtype != b.dtype:
        got = f"{a.bare} and right-hand sides {b.bare}"
        needed = "as many rows, leading axes and the same dtype on both sides"
        raise misfit(ShapeError, "lstsq", got=got, needed=needed)
    return (
        Spec((*batch, n, b.shape[-1]), a.dtype),
        Spec(tuple(batch), int64),
        Spec((*batch, min(m, n)), real_of(a.dtype)),
    )


def _lstsq_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    lead = tuple(LETTERS[: ins[0].ndim - 2])
    two = (*lead, None, None)
    return Indices((two, two), (two, lead, (*lead, None)))


def _lstsq_kernel(
    xp: Any, out: Any, a: Any, b: Any, *, rtol: float, scratch: Sequence[Any]
) -> None:
    if is_one_call(a) and a.size:
        x, rank, s = out
        u, values, vh = _singular(xp, a, only=False)
        weights = _weights(xp, values, rtol)
        put(xp, s, values)
        put(xp, rank, xp.count_nonzero(weights, axis=-1))
        if x is not None:
            xp.matmul(turned(vh), (turned(u) @ b) * weights.astype(a.dtype)[..., None], out=x)
        return
    u, values, vh = scratch
    for one, side, x, rank, s in each(a, b, *out):
        if not one.size:
            for y in (x, rank, s):
                put(xp, y, 0)
            continue
        svd_of_one(xp, one, u, values, vh)
        put(xp, s, values)
        weights = _weights(xp, values, rtol)
        if rank is not None:
            rank[...] = xp.count_nonzero(weights)
        if x is not None:
            inside = (turned(u) @ side) * weights.astype(a.dtype)[:, None]
            xp.matmul(turned(vh), inside, out=x)


def _lstsq_grad(
    g: Sequence[Array | None], y: Sequence[Array], a: Array, b: Array, *, rtol: float
) -> Sequence[Array | None]:
    """x = A⁺ b, and the pseudo-inverse's gradient without the pseudo-inverse's size."""
    if g[0] is None:
        u_s_vh = apply_all("svd", a, full=False)
        return _svd_grad([None, g[2], None], u_s_vh, a, full=False)[0], None
    x, bar = y[0], conj(g[0])
    p = apply("pinv", a, rtol=rtol)
    back = adjoint(p) @ bar
    made = -back @ adjoint(x)
    made = made + (b - a @ x) @ adjoint(p @ back)
    made = made + (adjoint(p) @ x) @ adjoint(bar - p @ (a @ bar))
    if g[2] is not None:
        values = _svd_grad([None, g[2], None], apply_all("svd", a, full=False), a, full=False)[0]
        assert values is not None
        made = made + conj(values)
    return conj(made), conj(back)


op(
    "lstsq",
    infer=_lstsq_rule,
    takes={"rtol": SHARE},
    indices=_lstsq_indices,
    kernel=_lstsq_kernel,
    scratch=_svd_scratch,
    grad=_lstsq_grad,
    algorithms=blocked.lstsq,
    cost=cubic(22.0),
    dense=True,
)
