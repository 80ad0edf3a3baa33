"""Machine code for the last step of an image: from uint8 with channels behind to floats with channels in
front, in one pass over the image. A row may be read backwards, so that mirroring is free."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DTYPES, DType, float32
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once
from ostinato.ops.cpu.jit.lines import LlvmLines, llvm_type
from ostinato.ops.jit.values import Unsupported, Value, cast

Image = np.ndarray[Any, Any]
LANES = 16  # results of a cache line
MADE = ("float32", "float16", "bfloat16")
_TYPES = (
    ctypes.c_void_p,
    ctypes.c_ssize_t,
    ctypes.c_ssize_t,
    ctypes.c_ssize_t,
    *[ctypes.c_void_p] * 2,
)


def planes(x: Image, line: int, out: Image) -> bool:
    """Fill `out`, channels x height x width, with x * scale + bias, of which there is one per channel at
    this address; False if there is no machine code here, and nothing is done."""
    height, width, channels = x.shape
    step = x.strides[1]
    if x.strides[2] != 1 or abs(step) != channels:
        x = np.ascontiguousarray(x)
        step = channels
    at = out.ctypes.data
    lines = width % LANES == 0 and at % (4 * LANES) == 0
    function = _function(channels, step, lines and out.dtype == np.float32, out.dtype.name)
    if function is None:
        return False
    function(x.ctypes.data, x.strides[0], height, width, at, line)
    return True


@once
def _function(channels: int, step: int, is_aligned: bool, dtype: str) -> Any:
    if not can(dtype):
        return None
    return llvm.linked(text(channels, step, is_aligned, dtype)).function(None, *_TYPES)


@once
def can(dtype: str) -> bool:
    """Whether there is machine code that makes such numbers here."""
    try:
        return dtype in MADE and not llvm.why_not() and bool(text(1, 1, False, dtype))
    except Unsupported:
        return False


def text(channels: int, step: int, is_aligned: bool, dtype: str) -> str:
    """A loop over rows, and one over a row's pixels: one by one, which LLVM turns into vectors, or, where
    results lie at multiples of whole cache lines, so many that these go to memory without being read
    from there first."""
    each, kind, declared = range(channels), llvm_type(DTYPES[dtype]), set[str]()
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
        f"  %o{c} = getelementptr {kind}, ptr %out, i64 %o{c}k"
        for c in each
    )
    if is_aligned:
        many, pixel = LANES, _line_of_pixels(channels, step)
    else:
        many, (pixel, declared) = 1, _one_pixel(channels, DTYPES[dtype])
    return f"""
{chr(10).join(sorted(declared))}
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
  %kn = add nuw nsw i64 %k, {many}
  %more = icmp slt i64 %kn, %width
  br i1 %more, label %pixels, label %next
next:
  %rn = add nuw nsw i64 %r, 1
  %left = icmp slt i64 %rn, %height
  br i1 %left, label %rows, label %end
end:
  {"fence seq_cst" if is_aligned else ""}
  ret void
}}
{llvm.APART}
!5 = !{{i32 1}}
"""


def _one_pixel(channels: int, dtype: DType) -> tuple[str, set[str]]:
    lines, kind = LlvmLines(), llvm_type(dtype)
    for c in range(channels):
        lines.text.append(
            f"  %x{c}p = getelementptr i8, ptr %pixel, i64 {c}\n"
            f"  %x{c} = load i8, ptr %x{c}p, !alias.scope !3, !noalias !4\n"
            f"  %f{c} = uitofp i8 %x{c} to float\n"
            f"  %m{c} = fmul float %f{c}, %s{c}\n"
            f"  %y{c} = fadd float %m{c}, %b{c}"
        )
        made = cast(Value(lines, f"%y{c}", float32), dtype).name
        lines.text.append(
            f"  %o{c}t = getelementptr {kind}, ptr %o{c}, i64 %k\n"
            f"  store {kind} {made}, ptr %o{c}t, !alias.scope !4, !noalias !3"
        )
    return "\n".join(lines.text), lines.declared


def _line_of_pixels(channels: int, step: int) -> str:
    """As many pixels as a cache line has results."""
    size, vector = LANES * channels, f"<{LANES} x float>"
    first = 0 if step > 0 else step * (LANES - 1)  # read backwards, the last one lies first
    lines = [
        f"  %bytes_at = getelementptr i8, ptr %pixel, i64 {first}",
        f"  %bytes = load <{size} x i8>, ptr %bytes_at, align 1",
    ]
    for c in range(channels):
        places = ", ".join(f"i32 {k * step - first + c}" for k in range(LANES))
        for name in ("s", "b"):
            lines += [
                f"  %{name}{c}i = insertelement {vector} poison, float %{name}{c}, i32 0",
                f"  %{name}{c}v = shufflevector {vector} %{name}{c}i, {vector} poison, "
                f"<{LANES} x i32> zeroinitializer",
            ]
        lines += [
            f"  %x{c} = shufflevector <{size} x i8> %bytes, <{size} x i8> poison, "
            f"<{LANES} x i32> <{places}>",
            f"  %f{c} = uitofp <{LANES} x i8> %x{c} to {vector}",
            f"  %m{c} = fmul {vector} %f{c}, %s{c}v",
            f"  %y{c} = fadd {vector} %m{c}, %b{c}v",
            f"  %t{c} = getelementptr float, ptr %o{c}, i64 %k",
            f"  store {vector} %y{c}, ptr %t{c}, align {4 * LANES}, !nontemporal !5",
        ]
    return "\n".join(lines)
