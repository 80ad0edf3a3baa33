"""Machine code for what mixes the colours of a pixel, saturation and hue, and for what mixes two images; in
float32, each step rounded as NumPy rounds it, so that a device gives the same bits. The text for NumPy
stands beside it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once

from .values import full, in_order, narrowed, wide

Image = Any
LUMA = (0.299, 0.587, 0.114)
_TYPES = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_float, ctypes.c_void_p)


def luma(xp: Any, x: Image) -> Any:
    """How bright pixels are: height x width of floats."""
    y = wide(xp, x)
    kind = y.dtype.type
    r, g, b = (kind(weight) for weight in LUMA)
    return (y[..., 0] * r + y[..., 1] * g) + y[..., 2] * b


def saturated(xp: Any, x: Image, factor: float) -> Image:
    """luma + (x - luma) * factor."""
    if x.shape[-1] == 1:
        return x
    _check_colours(x)
    found = _by_machine_code(xp, x, "saturation", factor)
    if found is None:
        y, middle = wide(xp, x), luma(xp, x)[..., None]
        found = narrowed(xp, middle + (y - middle) * y.dtype.type(factor), x.dtype, full(x))
    return found


def turned(xp: Any, x: Image, shift: float) -> Image:
    """The hue moved by this part of a whole turn; the largest and the smallest colour stay as they are."""
    if x.shape[-1] == 1:
        return x
    _check_colours(x)
    found = _by_machine_code(xp, x, "hue", 6 * (shift % 1.0))
    return _turned(xp, x, 6 * (shift % 1.0)) if found is None else found


def _turned(xp: Any, x: Image, sixths: float) -> Image:
    y = wide(xp, x)
    r, g, b = y[..., 0], y[..., 1], y[..., 2]
    high, low = xp.maximum(xp.maximum(r, g), b), xp.minimum(xp.minimum(r, g), b)
    chroma = high - low
    by = xp.where(chroma == 0, 1, chroma).astype(y.dtype)
    hue = xp.where(high == g, (b - r) / by + 2, (r - g) / by + 4)
    hue = xp.where(high == r, (g - b) / by, hue)
    hue = xp.where(hue < 0, hue + 6, hue) + y.dtype.type(sixths)
    hue = xp.where(hue >= 6, hue - 6, hue)
    planes = []
    for n in (5, 3, 1):
        k = hue + n
        k = xp.where(k >= 6, k - 6, k)
        planes.append(high - chroma * xp.maximum(xp.minimum(xp.minimum(k, 4 - k), 1), 0))
    return narrowed(xp, xp.stack(planes, axis=-1), x.dtype, full(x))


def _check_colours(x: Image) -> None:
    if x.shape[-1] != 3:
        raise ValueError(f"an image of {x.shape[-1]} channels, where colours are needed")


def mixed(xp: Any, a: Image, b: Image, share: float, out: Image) -> None:
    """Fill `out` with a * share + b * (1 - share)."""
    kind = xp.float32 if a.dtype.itemsize <= 2 or a.dtype == np.float32 else xp.float64
    s = kind(share)
    t = kind(1) - s
    lie = all(v.flags.c_contiguous for v in (a, b, out)) if xp is np else False
    if lie and a.dtype.name in _MIXED and not llvm.why_not():
        run = _mixing(a.dtype.name)
        run(a.ctypes.data, b.ctypes.data, a.size, float(s), float(t), out.ctypes.data)
        return
    y = a.astype(kind) * s + b.astype(kind) * t
    if a.dtype.kind != "f":
        ends = np.iinfo(a.dtype.name)
        y = xp.minimum(xp.maximum(xp.rint(y), float(ends.min)), float(ends.max))
    out[...] = y.astype(a.dtype)


# -- machine code ------------------------------------------------------------------------------
def _by_machine_code(xp: Any, x: Image, what: str, given: float) -> Image | None:
    if xp is not np or x.dtype != np.uint8 or llvm.why_not():
        return None
    x = in_order(x)
    if not x.flags.c_contiguous:
        x = np.ascontiguousarray(x)
    out = np.empty(x.shape, np.uint8)
    _function(what)(x.ctypes.data, x.size // 3, given, out.ctypes.data)
    return out


@once
def _function(what: str) -> Any:
    text = _text({"saturation": _SATURATION, "hue": _HUE}[what])
    return llvm.linked(text).function(None, *_TYPES)


_SATURATION = """
  %l0 = fmul float %x0, {luma0}
  %l1 = fmul float %x1, {luma1}
  %l2 = fmul float %x2, {luma2}
  %l01 = fadd float %l0, %l1
  %l = fadd float %l01, %l2
""" + "\n".join(
    f"  %d{c} = fsub float %x{c}, %l\n"
    f"  %e{c} = fmul float %d{c}, %given\n"
    f"  %y{c} = fadd float %l, %e{c}"
    for c in range(3)
)

_HUE = """
  %h01 = call float @llvm.maxnum.f32(float %x0, float %x1)
  %high = call float @llvm.maxnum.f32(float %h01, float %x2)
  %l01 = call float @llvm.minnum.f32(float %x0, float %x1)
  %low = call float @llvm.minnum.f32(float %l01, float %x2)
  %chroma = fsub float %high, %low
  %grey = fcmp oeq float %chroma, 0.0
  %by = select i1 %grey, float 1.0, float %chroma
  %is0 = fcmp oeq float %high, %x0
  %is1 = fcmp oeq float %high, %x1
  %d12 = fsub float %x1, %x2
  %d20 = fsub float %x2, %x0
  %d01 = fsub float %x0, %x1
  %dg = select i1 %is1, float %d20, float %d01
  %d = select i1 %is0, float %d12, float %dg
  %sg = select i1 %is1, float 2.0, float 4.0
  %s = select i1 %is0, float 0.0, float %sg
  %q = fdiv float %d, %by
  %hq = fadd float %q, %s
  %hneg = fcmp olt float %hq, 0.0
  %hup = fadd float %hq, 6.0
  %h0 = select i1 %hneg, float %hup, float %hq
  %h1 = fadd float %h0, %given
  %hbig = fcmp oge float %h1, 6.0
  %hdown = fsub float %h1, 6.0
  %h = select i1 %hbig, float %hdown, float %h1
""" + "\n".join(
    f"  %k{c}a = fadd float %h, {n}.0\n"
    f"  %k{c}b = fcmp oge float %k{c}a, 6.0\n"
    f"  %k{c}c = fsub float %k{c}a, 6.0\n"
    f"  %k{c} = select i1 %k{c}b, float %k{c}c, float %k{c}a\n"
    f"  %r{c} = fsub float 4.0, %k{c}\n"
    f"  %m{c}a = call float @llvm.minnum.f32(float %k{c}, float %r{c})\n"
    f"  %m{c}b = call float @llvm.minnum.f32(float %m{c}a, float 1.0)\n"
    f"  %m{c} = call float @llvm.maxnum.f32(float %m{c}b, float 0.0)\n"
    f"  %p{c} = fmul float %chroma, %m{c}\n"
    f"  %y{c} = fsub float %high, %p{c}"
    for c, n in enumerate((5, 3, 1))
)


def _text(change: str) -> str:
    """A loop over pixels, which LLVM turns into vectors."""
    for c, weight in enumerate(LUMA):
        bits = np.float64(np.float32(weight)).view(np.uint64)  # how LLVM writes a float
        change = change.replace(f"{{luma{c}}}", f"0x{int(bits):016X}")
    reads = "\n".join(
        f"  %p{c}x = getelementptr i8, ptr %pixel, i64 {c}\n"
        f"  %b{c} = load i8, ptr %p{c}x, !alias.scope !3, !noalias !4\n"
        f"  %x{c} = uitofp i8 %b{c} to float"
        for c in range(3)
    )
    writes = "\n".join(
        f"  %c{c}l = call float @llvm.maxnum.f32(float %y{c}, float 0.0)\n"
        f"  %c{c}h = call float @llvm.minnum.f32(float %c{c}l, float 255.0)\n"
        f"  %c{c}r = call float @llvm.rint.f32(float %c{c}h)\n"
        f"  %c{c}i = fptosi float %c{c}r to i32\n"
        f"  %c{c} = trunc i32 %c{c}i to i8\n"
        f"  %q{c}x = getelementptr i8, ptr %place, i64 {c}\n"
        f"  store i8 %c{c}, ptr %q{c}x, !alias.scope !4, !noalias !3"
        for c in range(3)
    )
    return f"""
declare float @llvm.rint.f32(float)
declare float @llvm.maxnum.f32(float, float)
declare float @llvm.minnum.f32(float, float)
define void @run(ptr noalias %x, i64 %count, float %given, ptr noalias %out) {{
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %pixels, label %end
pixels:
  %k = phi i64 [0, %entry], [%kn, %pixels]
  %at = mul nuw nsw i64 %k, 3
  %pixel = getelementptr i8, ptr %x, i64 %at
  %place = getelementptr i8, ptr %out, i64 %at
{reads}
{change}
{writes}
  %kn = add nuw nsw i64 %k, 1
  %more = icmp slt i64 %kn, %count
  br i1 %more, label %pixels, label %end
end:
  ret void
}}
{llvm.APART}
"""


_MIXED = {"uint8": "i8", "uint16": "i16", "float32": "float"}


@once
def _mixing(dtype: str) -> Any:
    types = (*[ctypes.c_void_p] * 2, ctypes.c_ssize_t, *[ctypes.c_float] * 2, ctypes.c_void_p)
    return llvm.linked(_mixing_text(_MIXED[dtype])).function(None, *types)


def _mixing_text(kind: str) -> str:
    """Shares of whole numbers sum to 1 but for a rounding, so no sum goes over their end."""
    if kind == "float":
        reads = "  %x = load float, ptr %pa, !alias.scope !3, !noalias !4\n"
        reads += "  %y = load float, ptr %pb, !alias.scope !3, !noalias !4"
        write = "  store float %z, ptr %po, !alias.scope !4, !noalias !3"
    else:
        reads = "\n".join(
            f"  %{v}i = load {kind}, ptr %p{p}, !alias.scope !3, !noalias !4\n"
            f"  %{v} = uitofp {kind} %{v}i to float"
            for v, p in (("x", "a"), ("y", "b"))
        )
        write = (
            "  %zr = call float @llvm.rint.f32(float %z)\n  %zi = fptosi float %zr to i32\n"
            f"  %zt = trunc i32 %zi to {kind}\n"
            f"  store {kind} %zt, ptr %po, !alias.scope !4, !noalias !3"
        )
    return f"""
declare float @llvm.rint.f32(float)
define void @run(ptr noalias %a, ptr noalias %b, i64 %count, float %s, float %t, ptr noalias %out) {{
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %each, label %end
each:
  %k = phi i64 [0, %entry], [%kn, %each]
  %pa = getelementptr {kind}, ptr %a, i64 %k
  %pb = getelementptr {kind}, ptr %b, i64 %k
  %po = getelementptr {kind}, ptr %out, i64 %k
{reads}
  %xs = fmul float %x, %s
  %yt = fmul float %y, %t
  %z = fadd float %xs, %yt
{write}
  %kn = add nuw nsw i64 %k, 1
  %more = icmp slt i64 %kn, %count
  br i1 %more, label %each, label %end
end:
  ret void
}}
{llvm.APART}
"""
