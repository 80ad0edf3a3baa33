"""Machine code for the last step of an image: from uint8 with channels behind to float32 with channels in
front, in one pass over the image. A row may be read backwards, so that mirroring is free."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm

Image = np.ndarray[Any, Any]
_TYPES = (
    ctypes.c_void_p,
    ctypes.c_ssize_t,
    ctypes.c_ssize_t,
    ctypes.c_ssize_t,
    *[ctypes.c_void_p] * 2,
)


def planes(x: Image, line: int, out: Image) -> bool:
    """Fill `out`, channels x height x width of float32, with x * scale + bias, of which there is one per
    channel at this address; False if there is no machine code here, and nothing is done."""
    height, width, channels = x.shape
    step = x.strides[1]
    if x.strides[2] != 1 or abs(step) != channels:
        x = np.ascontiguousarray(x)
        step = channels
    function = _function(channels, step)
    if function is None:
        return False
    function(x.ctypes.data, x.strides[0], height, width, out.ctypes.data, line)
    return True


@lru_cache(32)
def _function(channels: int, step: int) -> Any:
    if llvm.why_not():
        return None
    return ctypes.CFUNCTYPE(None, *_TYPES)(llvm.linked(_text(channels, step)))


def _text(channels: int, step: int) -> str:
    """A loop over rows, and one over a row's pixels that LLVM turns into vectors."""
    each = range(channels)
    constants = "\n".join(
        f"  %s{c}p = getelementptr float, ptr %line, i64 {c}\n"
        f"  %b{c}p = getelementptr float, ptr %line, i64 {channels + c}\n"
        f"  %s{c} = load float, ptr %s{c}p\n"
        f"  %b{c} = load float, ptr %b{c}p"
        for c in each
    )
    rows = "\n".join(
        f"  %o{c}n = mul i64 %plane, {c}\n"
        f"  %o{c}k = add i64 %o{c}n, %begin\n"
        f"  %o{c} = getelementptr float, ptr %out, i64 %o{c}k"
        for c in each
    )
    pixel = "\n".join(
        f"  %x{c}p = getelementptr i8, ptr %pixel, i64 {c}\n"
        f"  %x{c} = load i8, ptr %x{c}p, !alias.scope !3, !noalias !4\n"
        f"  %f{c} = uitofp i8 %x{c} to float\n"
        f"  %m{c} = fmul float %f{c}, %s{c}\n"
        f"  %y{c} = fadd float %m{c}, %b{c}\n"
        f"  %t{c} = getelementptr float, ptr %o{c}, i64 %k\n"
        f"  store float %y{c}, ptr %t{c}, !alias.scope !4, !noalias !3"
        for c in each
    )
    return f"""
define void @run(ptr noalias %x, i64 %stride, i64 %height, i64 %width, ptr noalias %out, ptr noalias %line) {{
entry:
{constants}
  %plane = mul i64 %height, %width
  %some = icmp sgt i64 %plane, 0
  br i1 %some, label %rows, label %end
rows:
  %r = phi i64 [0, %entry], [%rn, %next]
  %start = mul i64 %r, %stride
  %row = getelementptr i8, ptr %x, i64 %start
  %begin = mul i64 %r, %width
{rows}
  br label %pixels
pixels:
  %k = phi i64 [0, %rows], [%kn, %pixels]
  %at = mul i64 %k, {step}
  %pixel = getelementptr i8, ptr %row, i64 %at
{pixel}
  %kn = add nuw nsw i64 %k, 1
  %more = icmp slt i64 %kn, %width
  br i1 %more, label %pixels, label %next
next:
  %rn = add nuw nsw i64 %r, 1
  %left = icmp slt i64 %rn, %height
  br i1 %left, label %rows, label %end
end:
  ret void
}}
!0 = !{{!0}}
!1 = !{{!1, !0}}
!2 = !{{!2, !0}}
!3 = !{{!1}}
!4 = !{{!2}}
"""
