"""Kernels of functions of elements that have NumPy's values where an `xp`'s own have others: of complex
numbers, of infinities, of halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _divide_complex(xp: Any, out: Any, x: Any, y: Any) -> None:
    """Smith's way, as NumPy does it: CuPy's has other results where zeros or infinities are divided by."""
    x, y = (v.astype(out.dtype, copy=False) for v in (x, y))
    flat = xp.abs(y.real) >= xp.abs(y.imag)
    long, short = xp.where(flat, y.real, y.imag), xp.where(flat, y.imag, y.real)
    none = flat & (long == 0)
    ratio = xp.where(none, 0, short / xp.where(none, 1, long))
    scale = 1 / xp.where(none, xp.abs(long), long + short * ratio)
    turned = xp.where(flat, ratio, 1), xp.where(flat, 1, ratio)
    real = xp.where(none, x.real, x.real * turned[1] + x.imag * turned[0]) * scale
    imag = xp.where(none, x.imag, x.imag * turned[1] - x.real * turned[0]) * scale
    out.imag = imag
    out.real = real


def divide(xp: Any, out: Any, x: Any, y: Any) -> None:
    if out.dtype.kind == "c":
        _divide_complex(xp, out, x, y)
    else:
        xp.divide(x, y, out)


def reciprocal(xp: Any, out: Any, x: Any) -> None:
    """NumPy's own of complex numbers has zeros and infinities in other places."""
    if out.dtype.kind == "c":
        divide(xp, out, xp.ones((), x.dtype), x)
    else:
        xp.reciprocal(x, out)


def expm1(xp: Any, out: Any, x: Any) -> None:
    """NumPy's of complex numbers multiplies infinities by zeros."""
    if out.dtype.kind != "c":
        xp.expm1(x, out)
        return
    far = ~((xp.abs(x.real) < 40) & xp.isfinite(x.imag))
    large = xp.array(xp.exp(x))
    large.real -= 1
    xp.expm1(x, out)
    xp.copyto(out, large, where=far)


def log2(xp: Any, out: Any, x: Any) -> None:
    """CuPy's of complex numbers multiplies infinities by zeros."""
    if out.dtype.kind != "c":
        xp.log2(x, out)
        return
    xp.log(x, out)
    out.real *= math.log2(math.e)
    out.imag *= math.log2(math.e)


def nextafter(xp: Any, out: Any, x: Any, y: Any) -> None:
    """Halves by their bits: CuPy's own have none behind infinities."""
    if out.dtype.itemsize > 2:
        xp.nextafter(x, y, out)
        return
    x, y = (v.astype(out.dtype, copy=False) for v in (x, y))
    places, ends = x.view(np.int16), y.view(np.int16)
    steps = xp.where((y > x) == (x > 0), 1, -1)
    made = xp.where(x == 0, (ends & np.iinfo(np.int16).min) | 1, places + steps)
    made = xp.where(x == y, ends, made)
    nan = np.array(np.nan, out.dtype).view(np.int16)
    made = xp.where((x == x) & (y == y), made, int(nan))
    xp.copyto(out.view(np.int16), made, casting="unsafe")


def logical(ufunc: str) -> Callable[..., None]:
    def kernel(xp: Any, out: Any, *xs: Any) -> None:
        """CuPy's have no complex numbers."""
        getattr(xp, ufunc)(*(x != 0 if x.dtype.kind == "c" else x for x in xs), out)

    return kernel
