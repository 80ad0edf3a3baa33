"""Machine code for images in another size (resizing.py): each row that is needed goes to the new width, and two
of them that lie above each other are mixed to a row of the result."""

from __future__ import annotations

import ctypes
from typing import Any

from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once

BITS = 11  # of a weight
CHANNELS = (1, 3, 4)  # of which there is machine code
_TYPES = (
    ctypes.c_void_p,
    *[ctypes.c_ssize_t] * 3,
    ctypes.c_void_p,
    *[ctypes.c_ssize_t] * 2,
    ctypes.c_void_p,
)


def notes_bytes(size: tuple[int, int], channels: int) -> int:
    """Memory that the function notes places, weights and rows in."""
    return 8 * (size[0] + size[1]) + 2 * 2 * (size[1] * channels + 32)


@once
def function(channels: int) -> Any:
    return llvm.linked(text(channels)).function(None, *_TYPES)


def text(channels: int) -> str:
    """`run`: image, bytes of a row, height, width; result, its height and width; notes."""
    many = 8 if channels == 1 else 1  # columns that are made at once
    return f"""
define internal void @axis(i64 %old, i64 %new, i64 %clips, i64 %unit,
    ptr noalias %places, ptr noalias %weights) {{
entry:
  %oldf = sitofp i64 %old to double
  %newf = sitofp i64 %new to double
  %scale = fdiv double %oldf, %newf
  %final = sub i64 %old, 1
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%kn, %loop]
  %kf = sitofp i64 %k to double
  %middle = fadd double %kf, 0.5
  %there = fmul double %middle, %scale
  %exact = fsub double %there, 0.5
  %f = fptrunc double %exact to float
  %floor = call float @llvm.floor.f32(float %f)
  %s = fptosi float %floor to i64
  %part = fsub float %f, %floor
  %under = icmp slt i64 %s, 0
  %over = icmp sge i64 %s, %final
  %beside = or i1 %under, %over
  %clip = icmp ne i64 %clips, 0
  %edge = and i1 %beside, %clip
  %w = select i1 %edge, float 0.0, float %part
  %s0 = select i1 %under, i64 0, i64 %s
  %s1 = select i1 %over, i64 %final, i64 %s0
  %s2 = select i1 %edge, i64 %s1, i64 %s
  %rest = fsub float 1.0, %w
  %w1 = fmul float %w, {1 << BITS}.0
  %w0 = fmul float %rest, {1 << BITS}.0
  %r1 = call float @llvm.rint.f32(float %w1)
  %r0 = call float @llvm.rint.f32(float %w0)
  %i1 = fptosi float %r1 to i32
  %i0 = fptosi float %r0 to i32
  %up = shl i32 %i1, 16
  %both = or i32 %up, %i0
  %place = mul i64 %s2, %unit
  %place32 = trunc i64 %place to i32
  %pp = getelementptr i32, ptr %places, i64 %k
  store i32 %place32, ptr %pp
  %wp = getelementptr i32, ptr %weights, i64 %k
  store i32 %both, ptr %wp
  %kn = add nuw nsw i64 %k, 1
  %more = icmp slt i64 %kn, %new
  br i1 %more, label %loop, label %end
end:
  ret void
}}

define internal void @widths(ptr noalias %row, i64 %columns, i64 %safe, i64 %beyond,
    ptr noalias %places, ptr noalias %weights, ptr noalias %found) {{
entry:
  %fastest = and i64 %safe, {-many}
  %some = icmp sgt i64 %fastest, 0
  br i1 %some, label %fast, label %edges
{_fast(channels) if channels > 1 else _fast_grey(many)}
edges:
  %left = icmp slt i64 %fastest, %columns
  br i1 %left, label %slow, label %end
slow:
  %e = phi i64 [%fastest, %edges], [%en, %slow]
  %epp = getelementptr i32, ptr %places, i64 %e
  %eo32 = load i32, ptr %epp
  %eo = sext i32 %eo32 to i64
  %ewp = getelementptr i32, ptr %weights, i64 %e
  %ew = load i32, ptr %ewp
  %ew1 = ashr i32 %ew, 16
  %ew0 = and i32 %ew, 65535
  %from = getelementptr i8, ptr %row, i64 %eo
  %isend = icmp sge i64 %eo, %beyond
  %on = select i1 %isend, i64 0, i64 {channels}
  %next = getelementptr i8, ptr %from, i64 %on
  %eat = mul i64 %e, {channels}
{_slow(channels)}
  %en = add nuw nsw i64 %e, 1
  %egoes = icmp slt i64 %en, %columns
  br i1 %egoes, label %slow, label %end
end:
  ret void
}}

define internal void @heights(ptr noalias %low, ptr noalias %high, i32 %weights, i64 %count,
    ptr noalias %out) {{
entry:
  %b0 = and i32 %weights, 65535
  %b1 = ashr i32 %weights, 16
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%kn, %loop]
  %ap = getelementptr i16, ptr %low, i64 %k
  %a = load i16, ptr %ap
  %ax = sext i16 %a to i32
  %cp = getelementptr i16, ptr %high, i64 %k
  %c = load i16, ptr %cp
  %cx = sext i16 %c to i32
  %am = mul nsw i32 %ax, %b0
  %as = lshr i32 %am, 16
  %at = trunc i32 %as to i16
  %cm = mul nsw i32 %cx, %b1
  %cs = lshr i32 %cm, 16
  %ct = trunc i32 %cs to i16
  %sum = add i16 %at, %ct
  %half = add i16 %sum, 2
  %v = lshr i16 %half, 2
  %b = trunc i16 %v to i8
  %op = getelementptr i8, ptr %out, i64 %k
  store i8 %b, ptr %op
  %kn = add nuw nsw i64 %k, 1
  %more = icmp slt i64 %kn, %count
  br i1 %more, label %loop, label %end
end:
  ret void
}}

define internal void @halve(ptr noalias %x, i64 %stride, ptr noalias %out, i64 %rows, i64 %columns) {{
entry:
  br label %row
row:
  %r = phi i64 [0, %entry], [%rn, %nextrow]
  %r2 = mul i64 %r, 2
  %ro = mul i64 %r2, %stride
  %upper = getelementptr i8, ptr %x, i64 %ro
  %lower = getelementptr i8, ptr %upper, i64 %stride
  %wide = mul i64 %columns, {channels}
  %oo = mul i64 %r, %wide
  %o = getelementptr i8, ptr %out, i64 %oo
  br label %pixel
pixel:
  %k = phi i64 [0, %row], [%kn, %pixel]
  %ko = mul i64 %k, {2 * channels}
  %to = mul i64 %k, {channels}
{_quarter(channels)}
  %kn = add nuw nsw i64 %k, 1
  %kmore = icmp slt i64 %kn, %columns
  br i1 %kmore, label %pixel, label %nextrow
nextrow:
  %rn = add nuw nsw i64 %r, 1
  %rmore = icmp slt i64 %rn, %rows
  br i1 %rmore, label %row, label %end
end:
  ret void
}}

define void @run(ptr noalias %x, i64 %stride, i64 %height, i64 %width,
    ptr noalias %out, i64 %rows, i64 %columns, ptr noalias %notes) {{
entry:
  %rows2 = mul i64 %rows, 2
  %columns2 = mul i64 %columns, 2
  %ishigh = icmp eq i64 %rows2, %height
  %iswide = icmp eq i64 %columns2, %width
  %ishalf = and i1 %ishigh, %iswide
  br i1 %ishalf, label %half, label %mixed
half:
  call void @halve(ptr %x, i64 %stride, ptr %out, i64 %rows, i64 %columns)
  ret void
mixed:
  %xw = getelementptr i32, ptr %notes, i64 %columns
  %ys = getelementptr i32, ptr %xw, i64 %columns
  %yw = getelementptr i32, ptr %ys, i64 %rows
  %first = getelementptr i32, ptr %yw, i64 %rows
  %count = mul i64 %columns, {channels}
  %room = add i64 %count, 32
  %second = getelementptr i16, ptr %first, i64 %room
  call void @axis(i64 %width, i64 %columns, i64 1, i64 {channels}, ptr %notes, ptr %xw)
  call void @axis(i64 %height, i64 %rows, i64 0, i64 1, ptr %ys, ptr %yw)
  %final = sub i64 %width, 1
  %beyond = mul i64 %final, {channels}
  %spare = sub i64 %width, 3
  %until = mul i64 %spare, {channels}
  br label %count_safe
count_safe:
  %n = phi i64 [0, %mixed], [%nn, %is_safe]
  %np = getelementptr i32, ptr %notes, i64 %n
  %no32 = load i32, ptr %np
  %no = sext i32 %no32 to i64
  %near = icmp sle i64 %no, %until
  br i1 %near, label %is_safe, label %begin
is_safe:
  %nn = add nuw nsw i64 %n, 1
  %nmore = icmp slt i64 %nn, %columns
  br i1 %nmore, label %count_safe, label %begin
begin:
  %safe = phi i64 [%n, %count_safe], [%nn, %is_safe]
  %last = sub i64 %height, 1
  br label %row
row:
  %r = phi i64 [0, %begin], [%rn, %made]
  %low = phi ptr [%first, %begin], [%high3, %made]
  %high = phi ptr [%second, %begin], [%low3, %made]
  %islow = phi i64 [-1, %begin], [%y1, %made]
  %ishigh_at = phi i64 [-1, %begin], [%y0, %made]
  %yp = getelementptr i32, ptr %ys, i64 %r
  %y32 = load i32, ptr %yp
  %y = sext i32 %y32 to i64
  %ymore = add i64 %y, 1
  %ya = call i64 @llvm.smax.i64(i64 %y, i64 0)
  %y0 = call i64 @llvm.smin.i64(i64 %ya, i64 %last)
  %yb = call i64 @llvm.smax.i64(i64 %ymore, i64 0)
  %y1 = call i64 @llvm.smin.i64(i64 %yb, i64 %last)
  ; of what was made last, `low` has the lower row of the image: it may be the upper one now
  %same = icmp eq i64 %ishigh_at, %y0
  %low2 = select i1 %same, ptr %high, ptr %low
  %high2 = select i1 %same, ptr %low, ptr %high
  %at2 = select i1 %same, i64 %ishigh_at, i64 %islow
  %other2 = select i1 %same, i64 %islow, i64 %ishigh_at
  %has0 = icmp eq i64 %at2, %y0
  br i1 %has0, label %upper_is, label %upper_makes
upper_makes:
  %o0 = mul i64 %y0, %stride
  %row0 = getelementptr i8, ptr %x, i64 %o0
  call void @widths(ptr %row0, i64 %columns, i64 %safe, i64 %beyond,
    ptr %notes, ptr %xw, ptr %low2)
  br label %upper_is
upper_is:
  %has1 = icmp eq i64 %other2, %y1
  br i1 %has1, label %lower_is, label %lower_makes
lower_makes:
  %o1 = mul i64 %y1, %stride
  %row1 = getelementptr i8, ptr %x, i64 %o1
  call void @widths(ptr %row1, i64 %columns, i64 %safe, i64 %beyond,
    ptr %notes, ptr %xw, ptr %high2)
  br label %lower_is
lower_is:
  %wp = getelementptr i32, ptr %yw, i64 %r
  %w = load i32, ptr %wp
  %oo = mul i64 %r, %count
  %o = getelementptr i8, ptr %out, i64 %oo
  call void @heights(ptr %low2, ptr %high2, i32 %w, i64 %count, ptr %o)
  br label %made
made:
  %high3 = phi ptr [%high2, %lower_is]
  %low3 = phi ptr [%low2, %lower_is]
  %rn = add nuw nsw i64 %r, 1
  %more = icmp slt i64 %rn, %rows
  br i1 %more, label %row, label %end
end:
  ret void
}}

declare float @llvm.floor.f32(float)
declare float @llvm.rint.f32(float)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
"""


def _fast(channels: int) -> str:
    """Columns behind whose two pixels there is a third: all channels at once."""
    lanes = 4 if channels == 3 else channels
    pairs = [
        k for c in range(lanes) for k in (min(c, channels - 1), min(c, channels - 1) + channels)
    ]
    order = ", ".join(f"i32 {k}" for k in pairs)
    n = 2 * lanes
    even = ", ".join(f"i32 {2 * k}" for k in range(lanes))
    odd = ", ".join(f"i32 {2 * k + 1}" for k in range(lanes))
    splat = ", ".join(["i32 0"] * lanes)
    fours = ", ".join(["i32 4"] * lanes)
    size = 8 if channels > 1 else 2
    return f"""fast:
  %k = phi i64 [0, %entry], [%kn, %fast]
  %pp = getelementptr i32, ptr %places, i64 %k
  %o32 = load i32, ptr %pp
  %o = sext i32 %o32 to i64
  %wp = getelementptr i32, ptr %weights, i64 %k
  %w = load i32, ptr %wp
  %p = getelementptr i8, ptr %row, i64 %o
  %bytes = load <{size} x i8>, ptr %p, align 1
  %pairs = shufflevector <{size} x i8> %bytes, <{size} x i8> poison, <{n} x i32> <{order}>
  %values = zext <{n} x i8> %pairs to <{n} x i32>
  %wi = insertelement <{lanes} x i32> poison, i32 %w, i32 0
  %ws = shufflevector <{lanes} x i32> %wi, <{lanes} x i32> poison, <{lanes} x i32> <{splat}>
  %wh = bitcast <{lanes} x i32> %ws to <{n} x i16>
  %wx = sext <{n} x i16> %wh to <{n} x i32>
  %products = mul nsw <{n} x i32> %values, %wx
  %evens = shufflevector <{n} x i32> %products, <{n} x i32> poison, <{lanes} x i32> <{even}>
  %odds = shufflevector <{n} x i32> %products, <{n} x i32> poison, <{lanes} x i32> <{odd}>
  %sums = add nsw <{lanes} x i32> %evens, %odds
  %down = lshr <{lanes} x i32> %sums, <{fours}>
  %half = trunc <{lanes} x i32> %down to <{lanes} x i16>
  %at = mul i64 %k, {channels}
  %to = getelementptr i16, ptr %found, i64 %at
  store <{lanes} x i16> %half, ptr %to, align 2
  %kn = add nuw nsw i64 %k, 1
  %more = icmp slt i64 %kn, %fastest
  br i1 %more, label %fast, label %edges"""


def _fast_grey(many: int) -> str:
    """So many columns at once, of images with one channel."""
    pairs, each = f"<{many} x i16>", f"<{many} x i32>"
    both, sums = f"<{2 * many} x i16>", f"<{2 * many} x i32>"
    lines, found = [], "poison"
    for n in range(many):
        lines.append(
            f"  %pp{n} = getelementptr i32, ptr %pp, i64 {n}\n  %o32_{n} = load i32, ptr %pp{n}\n"
            f"  %o{n} = sext i32 %o32_{n} to i64\n  %p{n} = getelementptr i8, ptr %row, i64 %o{n}\n"
            f"  %v{n} = load i16, ptr %p{n}, align 1\n"
            f"  %q{n} = insertelement {pairs} {found}, i16 %v{n}, i32 {n}"
        )
        found = f"%q{n}"
    loads = "\n".join(lines)
    even, odd = (", ".join(f"i32 {2 * k + b}" for k in range(many)) for b in (0, 1))
    fours = ", ".join(["i32 4"] * many)
    return f"""fast:
  %k = phi i64 [0, %entry], [%kn, %fast]
  %pp = getelementptr i32, ptr %places, i64 %k
{loads}
  %bytes = bitcast {pairs} {found} to <{2 * many} x i8>
  %values = zext <{2 * many} x i8> %bytes to {sums}
  %wp = getelementptr i32, ptr %weights, i64 %k
  %ws = load {each}, ptr %wp, align 4
  %wh = bitcast {each} %ws to {both}
  %wx = sext {both} %wh to {sums}
  %products = mul nsw {sums} %values, %wx
  %evens = shufflevector {sums} %products, {sums} poison, <{many} x i32> <{even}>
  %odds = shufflevector {sums} %products, {sums} poison, <{many} x i32> <{odd}>
  %sums = add nsw {each} %evens, %odds
  %down = lshr {each} %sums, <{fours}>
  %half = trunc {each} %down to {pairs}
  %to = getelementptr i16, ptr %found, i64 %k
  store {pairs} %half, ptr %to, align 2
  %kn = add nuw nsw i64 %k, {many}
  %more = icmp slt i64 %kn, %fastest
  br i1 %more, label %fast, label %edges"""


def _slow(channels: int) -> str:
    return "\n".join(
        f"  %a{c}p = getelementptr i8, ptr %from, i64 {c}\n  %a{c} = load i8, ptr %a{c}p\n"
        f"  %b{c}p = getelementptr i8, ptr %next, i64 {c}\n  %b{c} = load i8, ptr %b{c}p\n"
        f"  %ax{c} = zext i8 %a{c} to i32\n  %bx{c} = zext i8 %b{c} to i32\n"
        f"  %am{c} = mul i32 %ax{c}, %ew0\n  %bm{c} = mul i32 %bx{c}, %ew1\n"
        f"  %s{c} = add i32 %am{c}, %bm{c}\n  %d{c} = lshr i32 %s{c}, 4\n"
        f"  %h{c} = trunc i32 %d{c} to i16\n  %t{c} = add i64 %eat, {c}\n"
        f"  %tp{c} = getelementptr i16, ptr %found, i64 %t{c}\n  store i16 %h{c}, ptr %tp{c}"
        for c in range(channels)
    )


def _quarter(channels: int) -> str:
    """The middle of four pixels."""
    lines = []
    for c in range(channels):
        rows = (("a", "upper", 0), ("b", "upper", 1), ("c", "lower", 0), ("d", "lower", 1))
        corners = [(name, row, c + channels * k) for name, row, k in rows]
        for name, row, by in corners:
            v = f"{name}{c}"
            lines.append(
                f"  %o_{v} = add i64 %ko, {by}\n  %p_{v} = getelementptr i8, ptr %{row}, i64 %o_{v}\n"
                f"  %v_{v} = load i8, ptr %p_{v}\n  %x_{v} = zext i8 %v_{v} to i16"
            )
        lines.append(
            f"  %ab{c} = add i16 %x_a{c}, %x_b{c}\n  %cd{c} = add i16 %x_c{c}, %x_d{c}\n"
            f"  %all{c} = add i16 %ab{c}, %cd{c}\n  %half{c} = add i16 %all{c}, 2\n"
            f"  %v{c} = lshr i16 %half{c}, 2\n  %w{c} = trunc i16 %v{c} to i8\n"
            f"  %to{c} = add i64 %to, {c}\n  %top{c} = getelementptr i8, ptr %o, i64 %to{c}\n"
            f"  store i8 %w{c}, ptr %top{c}"
        )
    return "\n".join(lines)
