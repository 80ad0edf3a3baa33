"""Saturation and hue, which mix the colours of a pixel, and mixtures of two images: written once, as formulas
of numbers in registers. On the host they are machine code for images of uint8 and others that are frequent;
elsewhere arrays take the registers' place, in float32, too, so a device gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DTYPES, float32, int32, int64, uint8
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once
from ostinato.ops.cpu.jit.routine import Routine, larger, smaller, whole_of
from ostinato.ops.jit.arrays import ArrayLines
from ostinato.ops.jit.values import Value, cast, where

from .pixel_values import contiguous_rows, full, narrowed, wide

Image = Any
Colours = list[Value]
LUMA = (0.299, 0.587, 0.114)


# -- formulas ----------------------------------------------------------------------------------
def _saturated(colours: Colours, factor: Value) -> Colours:
    """luma + (x - luma) * factor."""
    r, g, b = (x * weight for x, weight in zip(colours, LUMA, strict=True))
    luma = (r + g) + b
    return [luma + (x - luma) * factor for x in colours]


def _turned(colours: Colours, sixths: Value) -> Colours:
    """In the hexagon of hues, so many of its sides on."""
    r, g, b = colours
    high, low = larger(larger(r, g), b), smaller(smaller(r, g), b)
    chroma = high - low
    by = where(chroma == 0.0, 1.0, chroma)
    hue = where(high == g, (b - r) / by + 2.0, (r - g) / by + 4.0)
    hue = where(high == r, (g - b) / by, hue)
    hue = where(hue < 0.0, hue + 6.0, hue) + sixths
    hue = where(hue >= 6.0, hue - 6.0, hue)
    made = []
    for n in (5.0, 3.0, 1.0):
        k = hue + n
        k = where(k >= 6.0, k - 6.0, k)
        made.append(high - chroma * larger(smaller(smaller(k, 4.0 - k), 1.0), 0.0))
    return made


_FORMULAS: dict[str, Callable[[Colours, Value], Colours]] = {
    "saturation": _saturated,
    "hue": _turned,
}


# -- images ------------------------------------------------------------------------------------
def saturated(xp: Any, x: Image, factor: float) -> Image:
    """Colours so many times as far from their luma."""
    return _changed(xp, x, "saturation", factor)


def turned(xp: Any, x: Image, shift: float) -> Image:
    """The hue moved by this part of a whole turn; the largest and the smallest colour stay as they are."""
    return _changed(xp, x, "hue", 6 * (shift % 1.0))


def _changed(xp: Any, x: Image, what: str, given: float) -> Image:
    if x.shape[-1] == 1:
        return x
    if x.shape[-1] != 3:
        raise ValueError(f"an image of {x.shape[-1]} channels, where colours are needed")
    if xp is np and x.dtype == uint8 and not llvm.why_not():
        x = np.ascontiguousarray(contiguous_rows(x))
        out = np.empty(x.shape, np.uint8)
        _function(what)(x.ctypes.data, x.size // 3, given, out.ctypes.data)
        return out
    lines, y = ArrayLines(xp), wide(xp, x)
    colours = [Value(lines, y[..., c], y.dtype) for c in range(3)]
    found = _FORMULAS[what](colours, lines.constant(given, y.dtype))
    return narrowed(xp, xp.stack([v.name for v in found], axis=-1), x.dtype, full(x))


def mixed(xp: Any, a: Image, b: Image, share: float, out: Image) -> None:
    """Fill `out` with a * share + b * (1 - share)."""
    kind = xp.float32 if a.dtype.itemsize <= 2 or a.dtype == np.float32 else xp.float64
    s = kind(share)
    t = kind(1) - s
    lie = all(v.flags.c_contiguous for v in (a, b, out)) if xp is np else False
    if lie and a.dtype.name in ("uint8", "uint16", "float32") and not llvm.why_not():
        run = _mixing(a.dtype.name)
        run(a.ctypes.data, b.ctypes.data, a.size, float(s), float(t), out.ctypes.data)
        return
    y = a.astype(kind) * s + b.astype(kind) * t
    if a.dtype.kind != "f":
        ends = np.iinfo(a.dtype.name)
        y = xp.minimum(xp.maximum(xp.rint(y), float(ends.min)), float(ends.max))
    out[...] = y.astype(a.dtype)


# -- machine code ------------------------------------------------------------------------------
@once
def _function(what: str) -> Any:
    made = Routine(None, x=[uint8], count=int64, given=float32, out=[uint8])
    x, count, given, out = made.given
    with made.each(count) as k:
        colours = [cast(x[k * 3 + c], float32) for c in range(3)]
        for c, found in enumerate(_FORMULAS[what](colours, given)):
            out[k * 3 + c] = _rounded(smaller(larger(found, 0.0), 255.0), uint8)
    return made.made()


@once
def _mixing(dtype: str) -> Any:
    """Shares of whole numbers sum to 1 but for a rounding, so no sum goes over their end."""
    kind = DTYPES[dtype]
    made = Routine(None, a=[kind], b=[kind], count=int64, s=float32, t=float32, out=[kind])
    a, b, count, s, t, out = made.given
    with made.each(count) as k:
        found = cast(a[k], float32) * s + cast(b[k], float32) * t
        out[k] = found if kind == float32 else _rounded(found, kind)
    return made.made()


def _rounded(x: Value, dtype: Any) -> Value:
    return cast(whole_of(x.lines.call("rint", float32, x), int32), dtype)
