"""QR of a tall matrix by way of its Gram matrix, which is all products.

XᴴX = RᴴR by Cholesky, and X R⁻¹ is nearly orthonormal, unless X is ill-conditioned; done again with
what came out, it is orthonormal to the last digit. How far it is from that is read off the next Gram
matrix, so that nothing is believed: while a Gram matrix is far from 1, there is another turn, with a
shift where Cholesky fails. What has not come near after a few (it lacks rank) is left to
Householder. Each turn solves with R, row by row, therefore Q R is X to the last digit in any case.

Rows are worked on in blocks, which stay in cache between the solve and the next Gram matrix. Where there is
no LAPACK, as on a GPU, the large products are float64's, so that two turns are enough for float32; the small
matrices are the host's."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.device import device_of

TURNS = 4
# how far a Gram matrix may be from 1 for the next turn to be the last; theory: 5/64
MAX_DEVIATION = 0.1
CACHE = 1 << 20  # bytes of a block
WIDE_BLOCK_BYTES = 1 << 28  # of one that is multiplied in float64
PARTS = 512  # of a block, whose Gram matrices are added: they occupy a GPU


def thin_qr(xp: Any, x: Any, q: Any) -> tuple[Any, Any]:
    """w and R of x = q w R: q is written, the small w (None for 1) is left to the caller to multiply
    with. Without q only R is made. The diagonal of R is not negative."""
    device = device_of(x)
    if device.lapack is not None:
        made = _by_gram(x, q)
    else:
        made = device.thin_qr(x, q, MAX_DEVIATION) or _by_wide_gram(xp, x, q)
    return (None, _by_householder(xp, x, q)) if made is None else made


def times(q: Any, w: Any) -> None:
    """q = q w in place."""
    if device_of(q).times(q, w):
        return
    for a, b in _blocks(q, CACHE if device_of(q).lapack is not None else WIDE_BLOCK_BYTES):
        q[a:b] = q[a:b] @ w


def _blocks(x: Any, most: int = CACHE) -> Iterator[tuple[int, int]]:
    """Bounds of blocks of rows of so many bytes, each of twice as many rows as columns."""
    m, n = x.shape
    step = max(256, 2 * n, most // max(1, n * x.itemsize))
    count = max(1, m // step)
    for k in range(count):
        yield m * k // count, m * (k + 1) // count


# -- by Gram matrices ------------------------------------------------------------------------
def _by_gram(x: Any, q: Any) -> tuple[Any, Any] | None:
    def gram_of(uppers: Sequence[Any]) -> Any:
        gram = np.zeros((x.shape[1],) * 2, _wide(x))
        if uppers:
            _turn(x, q, uppers, gram)
        else:
            for a, b in _blocks(x):
                gram += x[a:b].conj().T @ x[a:b]
        return gram

    made = _in_turns(gram_of, len(x), x.dtype)
    return None if made is None else (made[0].astype(x.dtype), made[1].astype(x.dtype))


def _wide(x: Any) -> Any:
    return np.dtype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _in_turns(
    gram_of: Callable[[Sequence[Any]], Any], m: int, dtype: Any
) -> tuple[Any, Any] | None:
    """Find what is left to multiply with, and R, once turns made what is nearly orthonormal; None if they do
    not. `gram_of`: the Gram matrix of what turns with these factors of this dtype make of m rows."""
    turns: list[Any] = []
    gram = gram_of(turns)
    while len(turns) < TURNS:
        upper = _cholesky(gram, m, dtype)
        if upper is None:
            return None
        if turns and np.abs(gram - np.eye(len(gram))).sum(0).max() < MAX_DEVIATION:
            return np.linalg.inv(upper), functools.reduce(lambda r, u: u @ r, [*turns, upper])
        turns.append(upper.astype(dtype))
        gram = gram_of(turns)
    return None


def _turn(x: Any, q: Any, turns: Sequence[Any], gram: Any) -> None:
    """q = q R⁻¹ for the last R, and the Gram matrix of that. Without q, begin with x each time."""
    lapack = device_of(x).lapack
    for a, b in _blocks(x):
        if q is None:
            part = np.array(x[a:b], order="C")
        else:
            part = q[a:b]
            if len(turns) == 1:
                np.copyto(part, x[a:b])
        for upper in turns if q is None else turns[-1:]:
            lapack.trsm(upper, part, upper=True, left=False)
        gram += part.conj().T @ part


def _by_wide_gram(xp: Any, x: Any, q: Any) -> tuple[Any, Any] | None:
    device, n, wide = device_of(x), x.shape[1], _wide(x)

    def gram_of(turns: Sequence[Any]) -> Any:
        """As `_turn`, by products with inverses."""
        first = q is None or len(turns) < 2
        given, total = x if first else q, np.zeros((n, n), wide)
        for a, b in _blocks(given, WIDE_BLOCK_BYTES):
            part = given[a:b].astype(wide)
            for upper in turns if first else turns[-1:]:
                over, by = (device.from_host(y) for y in (np.linalg.inv(upper), upper))
                made = part @ over
                part = made if x.dtype != wide else made + (part - made @ by) @ over
            if q is not None and turns:
                q[a:b] = part
                part = q[a:b].astype(wide)
            total += device.to_host(_gram_in_parts(xp, part))
        return total

    made = _in_turns(gram_of, len(x), wide)
    if made is None:
        return None
    last, whole = (device.from_host(y.astype(x.dtype)) for y in made)
    return last, whole


def _gram_in_parts(xp: Any, x: Any) -> Any:
    rows, n = x.shape
    parts = max(1, min(PARTS, rows // (4 * n)))
    end = rows - rows % parts
    stack = x[:end].reshape(parts, -1, n)
    found = (xp.swapaxes(stack, 1, 2).conj() @ stack).sum(0)
    return found + x[end:].conj().T @ x[end:] if end < rows else found


def _cholesky(gram: Any, m: int, dtype: Any) -> Any:
    """The upper factor; of a matrix that is not definite, that of one close by."""
    n = len(gram)
    if not np.isfinite(gram).all():
        return None
    eps = float(np.finfo(dtype).eps)
    diagonal = np.diagonal(gram).real
    noise = 11 * eps * (n + 1 + math.sqrt(m)) * float(diagonal.sum())
    for shift in (0.0, noise, 100 * noise):
        moved = gram + shift * np.eye(n)
        if _is_factored(moved):
            lower = np.tril(moved)
            if (np.diagonal(lower).real ** 2 > 10 * eps * diagonal).all():
                return np.ascontiguousarray(lower.conj().T)
    return None


def _is_factored(x: Any) -> bool:
    """By its lower factor, in place."""
    if (lapack := device_of(x).lapack) is not None:
        return bool(lapack.potrf(x) == 0)
    try:
        x[...] = np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        return False
    return True


# -- by Householder --------------------------------------------------------------------------
def _by_householder(xp: Any, x: Any, q: Any) -> Any:
    """Block after block, then their R's."""
    n = x.shape[1]
    blocks = list(_blocks(x))
    uppers = [_block(xp, x[a:b], None if q is None else q[a:b]) for a, b in blocks]
    if len(blocks) == 1:
        return uppers[0]
    stack = xp.concatenate(uppers)
    if q is None:
        return _block(xp, stack, None)
    turn = xp.empty_like(stack)
    upper = _block(xp, stack, turn)
    for k, (a, b) in enumerate(blocks):
        q[a:b] = q[a:b] @ turn[k * n : (k + 1) * n]
    return upper


def _block(xp: Any, x: Any, q: Any) -> Any:
    n = x.shape[1]
    if (lapack := device_of(x).lapack) is not None:
        part = np.empty(x.shape, x.dtype) if q is None else q
        np.copyto(part, x)
        tau = np.empty(n, x.dtype)
        lapack.gelqf(part, tau)
        upper = np.triu(part[:n])
        if q is not None:
            lapack.orglq(part, tau)
    elif q is None:
        upper = xp.linalg.qr(x, "r")
    else:
        q[...], upper = xp.linalg.qr(x)
    signs = phases(xp, upper)
    if q is not None:
        q *= signs
    return signs.conj()[:, None] * upper


def phases(xp: Any, upper: Any) -> Any:
    """Compute the phases by which Q is multiplied so that the diagonal of (each) R is positive."""
    d = xp.diagonal(upper, 0, -2, -1)
    zero = d == 0
    return ((d + zero) / (abs(d) + zero)).astype(upper.dtype)
