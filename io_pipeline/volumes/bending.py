"""Machine code for volumes that are bent (elastic.py): a row of voxels after the other, with the bits of
NumPy's text."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once

Volume = Any
MIXED = {
    "uint8": ("i8", "ui"),
    "int16": ("i16", "si"),
    "uint16": ("i16", "ui"),
    "float32": ("float", ""),
}
MOST_CHANNELS = 8
_TYPES = (
    ctypes.c_void_p,
    *[ctypes.c_ssize_t] * 5,
    *[ctypes.c_void_p] * 2,
    ctypes.c_ssize_t,
    *[ctypes.c_void_p] * 3,
)


def bent(x: Volume, rows: Any, near: Any, weights: Any, is_mixed: bool) -> Volume | None:
    """What voxels look at, mixed or the nearest one. rows: 3 x depth x height x points, how far points
    move in each row of voxels; near and weights: of four points for each voxel of a row. None where
    there is no machine code."""
    channels = x.shape[3] if x.ndim == 4 else 1
    is_known = (not is_mixed or x.dtype.name in MIXED) and channels <= MOST_CHANNELS
    if not is_known or not x.size or llvm.why_not():
        return None
    step = x.itemsize * channels
    if x.strides[2] != step or (x.ndim == 4 and x.strides[3] != x.itemsize):
        x = np.ascontiguousarray(x)
    out = np.empty(x.shape, x.dtype)
    rows = np.ascontiguousarray(rows, np.float32)
    near, places = near.astype(np.int32), np.empty((3, x.shape[2]), np.float32)
    weights = np.ascontiguousarray(weights)
    run = _function(x.dtype.name if is_mixed else f"i{8 * x.itemsize}", channels, is_mixed)
    given = (v.ctypes.data for v in (near, weights, places))
    run(
        x.ctypes.data, *x.strides[:2], *x.shape[:3], out.ctypes.data, rows.ctypes.data,
        rows.shape[3], *given,
    )  # fmt: skip
    return out


@once
def _function(kind: str, channels: int, is_mixed: bool) -> Any:
    voxel = _mixed_text(kind, channels) if is_mixed else _nearest_text(kind, channels)
    return llvm.linked(_text(voxel)).function(None, *_TYPES)


def _text(voxel: str) -> str:
    """Over depth and height; in a row first the places, then what lies there."""
    look = []
    for axis, name in enumerate("dhw"):
        look += [
            f"  %{name}g{k}p = getelementptr float, ptr %{name}row, i64 %n{k}\n"
            f"  %{name}g{k} = load float, ptr %{name}g{k}p, !alias.scope !3, !noalias !4\n"
            f"  %{name}m{k} = fmul float %{name}g{k}, %f{k}"
            for k in range(4)
        ]
        look.append(
            f"  %{name}s1 = fadd float %{name}m0, %{name}m1\n"
            f"  %{name}s2 = fadd float %{name}s1, %{name}m2\n"
            f"  %{name}s3 = fadd float %{name}s2, %{name}m3\n"
            f"  %{name}at = fadd float %{name}own, %{name}s3\n"
            f"  %{name}up = fcmp ogt float %{name}at, 0.0\n"
            f"  %{name}lo = select i1 %{name}up, float %{name}at, float 0.0\n"
            f"  %{name}dn = fcmp olt float %{name}lo, %{name}most\n"
            f"  %{name}hi = select i1 %{name}dn, float %{name}lo, float %{name}most\n"
            f"  %{name}i = mul i64 %width, {axis}\n"
            f"  %{name}j = add i64 %{name}i, %k\n"
            f"  %{name}p = getelementptr float, ptr %places, i64 %{name}j\n"
            f"  store float %{name}hi, ptr %{name}p, !alias.scope !4, !noalias !3"
        )
    points = "\n".join(
        f"  %i{k} = mul i64 %width, {k}\n  %j{k} = add i64 %i{k}, %k\n"
        f"  %np{k} = getelementptr i32, ptr %near, i64 %j{k}\n"
        f"  %n{k}i = load i32, ptr %np{k}, !alias.scope !3, !noalias !4\n"
        f"  %n{k} = sext i32 %n{k}i to i64\n"
        f"  %fp{k} = getelementptr float, ptr %weights, i64 %j{k}\n"
        f"  %f{k} = load float, ptr %fp{k}, !alias.scope !3, !noalias !4"
        for k in range(4)
    )
    ends = "\n".join(
        f"  %{name}last = sub i64 %{count}, 1\n  %{name}most = sitofp i64 %{name}last to float\n"
        f"  %{name}room = sub i64 %{count}, 2\n  %{name}any = icmp sgt i64 %{name}room, 0\n"
        f"  %{name}top = select i1 %{name}any, i64 %{name}room, i64 0"
        for name, count in (("d", "depth"), ("h", "height"), ("w", "width"))
    )
    return f"""
declare float @llvm.floor.f32(float)
declare float @llvm.rint.f32(float)
define void @run(ptr noalias %x, i64 %dstride, i64 %hstride, i64 %depth, i64 %height, i64 %width,
  ptr noalias %out, ptr noalias %rows, i64 %points, ptr noalias %near, ptr noalias %weights,
  ptr noalias %places) {{
entry:
{ends}
  %all = mul i64 %depth, %height
  %plane = mul i64 %all, %points
  br label %row
row:
  %r = phi i64 [0, %entry], [%rn, %next]
  %d = sdiv i64 %r, %height
  %h = srem i64 %r, %height
  %down = sitofp i64 %d to float
  %hown = sitofp i64 %h to float
  %begin = mul i64 %r, %points
  %drow = getelementptr float, ptr %rows, i64 %begin
  %hrow = getelementptr float, ptr %drow, i64 %plane
  %wrow = getelementptr float, ptr %hrow, i64 %plane
  %first = mul i64 %r, %width
  %hplaces = getelementptr float, ptr %places, i64 %width
  %wplaces = getelementptr float, ptr %hplaces, i64 %width
  br label %look
look:
  %k = phi i64 [0, %row], [%kn, %look]
  %k32 = trunc i64 %k to i32
  %wown = sitofp i32 %k32 to float
{points}
{chr(10).join(look)}
  %kn = add nuw nsw i64 %k, 1
  %more = icmp slt i64 %kn, %width
  br i1 %more, label %look, label %voxel
voxel:
  %v = phi i64 [0, %look], [%vn, %voxel]
  %dap = getelementptr float, ptr %places, i64 %v
  %da = load float, ptr %dap
  %hap = getelementptr float, ptr %hplaces, i64 %v
  %ha = load float, ptr %hap
  %wap = getelementptr float, ptr %wplaces, i64 %v
  %wa = load float, ptr %wap
  %number = add i64 %first, %v
{voxel}
  %vn = add nuw nsw i64 %v, 1
  %go = icmp slt i64 %vn, %width
  br i1 %go, label %voxel, label %next
next:
  %rn = add nuw nsw i64 %r, 1
  %left = icmp slt i64 %rn, %all
  br i1 %left, label %row, label %end
end:
  ret void
}}
{llvm.APART}
"""


def _nearest_text(kind: str, channels: int) -> str:
    size = int(kind[1:]) // 8 * channels
    lines = [
        f"  %{n}x = fadd float %{n}a, 0.5\n  %{n}y = call float @llvm.floor.f32(float %{n}x)\n"
        f"  %{n}z = fptosi float %{n}y to i32\n  %{n}q = sext i32 %{n}z to i64"
        for n in "dhw"
    ]
    lines.append(
        f"  %qa = mul i64 %dq, %dstride\n  %qb = mul i64 %hq, %hstride\n  %qc = mul i64 %wq, {size}\n"
        "  %qd = add i64 %qa, %qb\n  %qe = add i64 %qd, %qc\n"
        "  %from = getelementptr i8, ptr %x, i64 %qe\n"
        f"  %oa = mul i64 %number, {size}\n  %to = getelementptr i8, ptr %out, i64 %oa"
    )
    lines += [
        f"  %c{c}p = getelementptr {kind}, ptr %from, i64 {c}\n"
        f"  %c{c} = load {kind}, ptr %c{c}p, align 1\n"
        f"  %c{c}q = getelementptr {kind}, ptr %to, i64 {c}\n"
        f"  store {kind} %c{c}, ptr %c{c}q, align 1"
        for c in range(channels)
    ]
    return "\n".join(lines)


def _mixed_text(dtype: str, channels: int) -> str:
    kind, sign = MIXED[dtype]
    itemsize = np.dtype(dtype).itemsize
    size = itemsize * channels
    lines = []
    for n, stride in (("d", "%dstride"), ("h", "%hstride"), ("w", str(size))):
        lines.append(
            f"  %{n}y = call float @llvm.floor.f32(float %{n}a)\n"
            f"  %{n}z = fptosi float %{n}y to i32\n  %{n}q0 = sext i32 %{n}z to i64\n"
            f"  %{n}less = icmp slt i64 %{n}q0, %{n}top\n"
            f"  %{n}q = select i1 %{n}less, i64 %{n}q0, i64 %{n}top\n"
            f"  %{n}qf = sitofp i64 %{n}q to float\n  %{n}t = fsub float %{n}a, %{n}qf\n"
            f"  %{n}q1 = add i64 %{n}q, 1\n  %{n}can = icmp slt i64 %{n}q1, %{n}last\n"
            f"  %{n}r = select i1 %{n}can, i64 %{n}q1, i64 %{n}last\n"
            f"  %{n}b0 = mul i64 %{n}q, {stride}\n  %{n}b1 = mul i64 %{n}r, {stride}"
        )
    for d in "01":
        for h in "01":
            lines.append(f"  %o{d}{h} = add i64 %db{d}, %hb{h}")
            lines += [
                f"  %o{d}{h}{w} = add i64 %o{d}{h}, %wb{w}\n"
                f"  %p{d}{h}{w} = getelementptr i8, ptr %x, i64 %o{d}{h}{w}"
                for w in "01"
            ]
    lines.append(f"  %oa = mul i64 %number, {size}\n  %to = getelementptr i8, ptr %out, i64 %oa")

    def mixed(name: str, a: str, b: str, by: str) -> str:
        return (
            f"  %{name}d = fsub float %{b}, %{a}\n  %{name}m = fmul float %{name}d, %{by}\n"
            f"  %{name} = fadd float %{a}, %{name}m"
        )

    for c in range(channels):
        for corner in ("000", "001", "010", "011", "100", "101", "110", "111"):
            raw = f"l{corner}_{c}" if sign else f"e{corner}_{c}"
            lines.append(
                f"  %a{corner}_{c} = getelementptr i8, ptr %p{corner}, i64 {c * itemsize}\n"
                f"  %{raw} = load {kind}, ptr %a{corner}_{c}, align 1"
            )
            if sign:
                lines.append(f"  %e{corner}_{c} = {sign}tofp {kind} %{raw} to float")
        for d in "01":
            lines += [mixed(f"w{d}{h}_{c}", f"e{d}{h}0_{c}", f"e{d}{h}1_{c}", "wt") for h in "01"]
            lines.append(mixed(f"h{d}_{c}", f"w{d}0_{c}", f"w{d}1_{c}", "ht"))
        lines.append(mixed(f"d_{c}", f"h0_{c}", f"h1_{c}", "dt"))
        found = f"%d_{c}"
        if sign:
            lines.append(
                f"  %y{c} = call float @llvm.rint.f32(float {found})\n"
                f"  %z{c} = fptosi float %y{c} to i32\n  %u{c} = trunc i32 %z{c} to {kind}"
            )
            found = f"%u{c}"
        lines.append(
            f"  %s{c} = getelementptr i8, ptr %to, i64 {c * itemsize}\n"
            f"  store {kind} {found}, ptr %s{c}, align 1"
        )
    return "\n".join(lines)
