"""Machine code for images that are seen through a matrix (sampling.py): a row of pixels after the other, with
the bits of NumPy's text."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once

BITS = 11  # of a place's fraction
LINEAR, NEAREST = "linear", "nearest"
MOST_CHANNELS = 8  # of which there is machine code, and
MIXED = {"uint8": "i8", "float32": "float"}  # that mixes these
SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4}
_TYPES = (
    ctypes.c_void_p,
    *[ctypes.c_ssize_t] * 3,
    ctypes.c_void_p,
    *[ctypes.c_ssize_t] * 2,
    *[ctypes.c_void_p] * 3,
)


@once
def function(way: str, kind: str, channels: int, is_affine: bool) -> Any:
    place = _place_text(way == LINEAR, is_affine, channels, SIZES[kind])
    pixels = (_linear_text if way == LINEAR else _nearest_text)(kind, channels)
    pick = _pick_text(kind) if way == LINEAR else ""
    return llvm.linked(_text(pick, place, pixels)).function(None, *_TYPES)


def _text(pick: str, place: str, pixels: str) -> str:
    """For each row: where its pixels look, which LLVM turns into vectors; then what they see."""
    loads = "\n".join(
        f"  %m{k}p = getelementptr double, ptr %m, i64 {k}\n  %m{k} = load double, ptr %m{k}p"
        for k in range(9)
    )
    rows = "\n".join(
        f"  %{v}b = fmul double %m{k + 1}, %rf\n  %{v}r = fadd double %{v}b, %m{k + 2}"
        for v, k in (("x", 0), ("y", 3), ("w", 6))
    )
    return f"""
declare double @llvm.floor.f64(double)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
{pick}
define void @run(ptr noalias %image, i64 %stride, i64 %height, i64 %width,
  ptr noalias %out, i64 %rows, i64 %columns, ptr noalias %m, ptr noalias %fill, ptr noalias %xs) {{
entry:
{loads}
  %wide = sitofp i64 %width to double
  %high = sitofp i64 %height to double
  %xmost = fadd double %wide, 1.0
  %ymost = fadd double %high, 1.0
  %ys = getelementptr i32, ptr %xs, i64 %columns
  %offsets = getelementptr i32, ptr %ys, i64 %columns
  %stride32 = trunc i64 %stride to i32
  %width32 = trunc i64 %width to i32
  %height32 = trunc i64 %height to i32
  %final = sub i64 %columns, 1
  %all = mul i64 %rows, %columns
  %some = icmp sgt i64 %all, 0
  br i1 %some, label %row, label %end
row:
  %r = phi i64 [0, %entry], [%rn, %next]
  %rf = sitofp i64 %r to double
{rows}
  %begin = mul i64 %r, %columns
  br label %look
{place}
{pixels}
next:
  %rn = add nuw nsw i64 %r, 1
  %left = icmp slt i64 %rn, %rows
  br i1 %left, label %row, label %end
end:
  ret void
}}
"""


def _pick_text(kind: str) -> str:
    """A channel of a pixel, or of what is around the image."""
    found = f"  %v = load {kind}, ptr %p, align 1\n"
    found += "  ret float %v" if kind == "float" else "  %w = zext i8 %v to i32\n  ret i32 %w"
    return f"""define internal {"float" if kind == "float" else "i32"} @pick(ptr %x, i64 %stride,
  i64 %height, i64 %width, i64 %r, i64 %k, i64 %channels, i64 %c, ptr %fill) {{
  %above = icmp ult i64 %r, %height
  %beside = icmp ult i64 %k, %width
  %inside = and i1 %above, %beside
  %ro = mul i64 %r, %stride
  %row = getelementptr i8, ptr %x, i64 %ro
  %ko = mul i64 %k, %channels
  %o = add i64 %ko, %c
  %there = getelementptr {kind}, ptr %row, i64 %o
  %around = getelementptr {kind}, ptr %fill, i64 %c
  %p = select i1 %inside, ptr %there, ptr %around
{found}
}}"""


def _place_text(is_linear: bool, is_affine: bool, channels: int, itemsize: int) -> str:
    """A loop over a row: places as whole numbers, of 1/2048 of a pixel if it is mixed."""
    lines = []
    for v, k in (("x", 0), ("y", 3), ("w", 6)):
        lines.append(f"  %{v}a = fmul double %m{k}, %kf\n  %{v}t = fadd double %{v}a, %{v}r")
    if not is_affine:
        lines.append("  %before = fcmp ogt double %wt, 0.0")
    for v in "xy":
        at = f"%{v}t"
        if not is_affine:
            lines.append(
                f"  %{v}q = fdiv double %{v}t, %wt\n"
                f"  %{v}d = select i1 %before, double %{v}q, double -2.0"
            )
            at = f"%{v}d"
        lines.append(
            f"  %{v}under = fcmp ogt double {at}, -2.0\n"
            f"  %{v}l = select i1 %{v}under, double {at}, double -2.0\n"
            f"  %{v}over = fcmp olt double %{v}l, %{v}most\n"
            f"  %{v}h = select i1 %{v}over, double %{v}l, double %{v}most\n"
            f"  %{v}m = fmul double %{v}h, {1 << BITS if is_linear else 1}.0\n"
            f"  %{v}half = fadd double %{v}m, 0.5\n"
            f"  %{v}floor = call double @llvm.floor.f64(double %{v}half)\n"
            f"  %{v}f = fptosi double %{v}floor to i32\n"
            f"  %{v}p = getelementptr i32, ptr %{v}s, i64 %k\n"
            f"  store i32 %{v}f, ptr %{v}p"
        )
    more, start, after = "", "", "label %pixel"
    if is_linear:
        start = (
            "  %first = phi i64 [%columns, %row], [%firstn, %look]\n"
            "  %last = phi i64 [0, %row], [%lastn, %look]\n"
            "  %count = phi i64 [0, %row], [%countn, %look]"
        )
        last = "2" if channels == 3 else "1"  # which is read as four
        more = _SPAN.replace("LAST", last).replace("STEP", str(channels * itemsize))
        after = "label %middles"
    return f"""look:
  %k = phi i64 [0, %row], [%kn, %look]
{start}
  %k32 = trunc i64 %k to i32
  %kf = sitofp i32 %k32 to double
{chr(10).join(lines)}
{more}
  %kn = add nuw nsw i64 %k, 1
  %more = icmp slt i64 %kn, %columns
  br i1 %more, label %look, {after}"""


# Which pixels of a row have all four neighbours: from the first to the last of them, if there is no other
# between, and the last pixel of the row is left out, as more is written than it takes.
_SPAN = f"""  %lastx = sub i32 %width32, LAST
  %lasty = sub i32 %height32, 1
  %isx = icmp sgt i32 %lastx, 0
  %lastx0 = select i1 %isx, i32 %lastx, i32 0
  %xi = ashr i32 %xf, {BITS}
  %yi = ashr i32 %yf, {BITS}
  %xn = icmp ult i32 %xi, %lastx0
  %yn = icmp ult i32 %yi, %lasty
  %in = and i1 %xn, %yn
  %yo = mul i32 %yi, %stride32
  %xo = mul i32 %xi, STEP
  %xyo = add i32 %yo, %xo
  %op = getelementptr i32, ptr %offsets, i64 %k
  store i32 %xyo, ptr %op
  %fk = select i1 %in, i64 %k, i64 %columns
  %firstn = call i64 @llvm.smin.i64(i64 %first, i64 %fk)
  %k1 = add i64 %k, 1
  %lk = select i1 %in, i64 %k1, i64 0
  %lastn = call i64 @llvm.smax.i64(i64 %last, i64 %lk)
  %one = zext i1 %in to i64
  %countn = add i64 %count, %one"""


def _nearest_text(kind: str, channels: int) -> str:
    copies = "\n".join(
        f"  %f{c} = getelementptr {kind}, ptr %from, i64 {c}\n"
        f"  %v{c} = load {kind}, ptr %f{c}, align 1\n"
        f"  %g{c} = getelementptr {kind}, ptr %o, i64 {c}\n"
        f"  store {kind} %v{c}, ptr %g{c}, align 1"
        for c in range(channels)
    )
    step = SIZES[kind] * channels
    return f"""pixel:
  %n = phi i64 [0, %look], [%nn, %pixel]
  %number = add i64 %begin, %n
  %place = mul i64 %number, {step}
  %o = getelementptr i8, ptr %out, i64 %place
  %xpl = getelementptr i32, ptr %xs, i64 %n
  %x32 = load i32, ptr %xpl
  %ypl = getelementptr i32, ptr %ys, i64 %n
  %y32 = load i32, ptr %ypl
  %above = icmp ult i32 %y32, %height32
  %beside = icmp ult i32 %x32, %width32
  %inside = and i1 %above, %beside
  %x = sext i32 %x32 to i64
  %y = sext i32 %y32 to i64
  %yo = mul i64 %y, %stride
  %xo = mul i64 %x, {step}
  %xyo = add i64 %yo, %xo
  %there = getelementptr i8, ptr %image, i64 %xyo
  %from = select i1 %inside, ptr %there, ptr %fill
{copies}
  %nn = add nuw nsw i64 %n, 1
  %go = icmp slt i64 %nn, %columns
  br i1 %go, label %pixel, label %next"""


def _linear_text(kind: str, channels: int) -> str:
    """Pixels that have all four neighbours, with all channels at once; then those before and behind, one
    channel after another, as far as they see anything. Three channels are read and written as four."""
    is_float = kind == "float"
    lanes, step = 4 if channels == 3 else channels, SIZES[kind] * channels
    wide, thin = f"<{lanes} x i32>", f"<{lanes} x {kind}>"

    def all_of(number: int) -> str:
        return "<" + ", ".join([f"i32 {number}"] * lanes) + ">"

    def spread(name: str, of: str) -> str:
        return (
            f"  %{name}0 = insertelement {wide} poison, i32 {of}, i64 0\n"
            f"  %{name} = shufflevector {wide} %{name}0, {wide} poison, <{lanes} x i32> zeroinitializer"
        )

    def mixed(name: str, a: str, b: str, by: str) -> str:
        return (
            f"  %{name}d = sub {wide} {b}, {a}\n  %{name}m = mul {wide} %{name}d, {by}\n"
            f"  %{name}s = shl {wide} {a}, {all_of(BITS)}\n  %{name} = add {wide} %{name}s, %{name}m"
        )

    corners = (("00", 0, 0), ("01", 0, 1), ("10", 1, 0), ("11", 1, 1))
    reads = "\n".join(f"  %v{name} = load {thin}, ptr %p{name}, align 1" for name, *_ in corners)
    if is_float:
        mix = _float_mix(lanes)
    else:
        widened = (f"  %e{name} = zext {thin} %v{name} to {wide}" for name, *_ in corners)
        mix = "\n".join(
            (
                *widened,
                mixed("up", "%e00", "%e01", "%xw"),
                mixed("low", "%e10", "%e11", "%xw"),
                mixed("both", "%up", "%low", "%yw"),
                f"  %half = add {wide} %both, {all_of(1 << (2 * BITS - 1))}",
                f"  %down = lshr {wide} %half, {all_of(2 * BITS)}",
                f"  %found = trunc {wide} %down to {thin}",
            )
        )
    edge, around = [], []
    for c in range(channels):
        for name, row, column in corners:
            edge.append(
                f"  %d{name}{c} = call {'float' if is_float else 'i32'} @pick("
                "ptr %image, i64 %stride, i64 %height, i64 %width, "
                f"i64 %jy{row}, i64 %jx{column}, i64 {channels}, i64 {c}, ptr %fill)\n"
                + (
                    f"  %t{name}{c} = fmul float %d{name}{c}, %wf{name}"
                    if is_float
                    else f"  %t{name}{c} = mul i32 %d{name}{c}, %w{name}"
                )
            )
        edge.append(
            f"  %n0{c} = fadd float %t00{c}, %t01{c}\n  %n1{c} = fadd float %n0{c}, %t10{c}\n"
            f"  %n2{c} = fadd float %n1{c}, %t11{c}\n  %n5{c} = fmul float %n2{c}, {_SMALL}\n"
            if is_float
            else f"  %n0{c} = add i32 %t00{c}, %t01{c}\n  %n1{c} = add i32 %t10{c}, %t11{c}\n"
            f"  %n2{c} = add i32 %n0{c}, %n1{c}\n"
            f"  %n3{c} = add i32 %n2{c}, {1 << (2 * BITS - 1)}\n"
            f"  %n4{c} = lshr i32 %n3{c}, {2 * BITS}\n  %n5{c} = trunc i32 %n4{c} to i8\n"
        )
        edge.append(
            f"  %z{c} = getelementptr {kind}, ptr %q, i64 {c}\n"
            f"  store {kind} %n5{c}, ptr %z{c}, align 1"
        )
        around.append(
            f"  %f{c} = getelementptr {kind}, ptr %fill, i64 {c}\n"
            f"  %g{c} = load {kind}, ptr %f{c}, align 1\n"
            f"  %u{c} = getelementptr {kind}, ptr %q, i64 {c}\n"
            f"  store {kind} %g{c}, ptr %u{c}, align 1"
        )
    line = "\n".join
    return f"""middles:
  %span = sub i64 %lastn, %firstn
  %whole = icmp eq i64 %span, %countn
  %stop0 = call i64 @llvm.smin.i64(i64 %lastn, i64 %final)
  %stop1 = select i1 %whole, i64 %stop0, i64 0
  %from0 = select i1 %whole, i64 %firstn, i64 0
  %from = call i64 @llvm.smin.i64(i64 %from0, i64 %stop1)
  %any = icmp slt i64 %from, %stop1
  br i1 %any, label %middle, label %edges
middle:
  %n = phi i64 [%from, %middles], [%nn, %middle]
  %number = add i64 %begin, %n
  %place = mul i64 %number, {step}
  %o = getelementptr i8, ptr %out, i64 %place
  %opl = getelementptr i32, ptr %offsets, i64 %n
  %offset32 = load i32, ptr %opl
  %offset = zext i32 %offset32 to i64
  %xpl = getelementptr i32, ptr %xs, i64 %n
  %x32 = load i32, ptr %xpl
  %ypl = getelementptr i32, ptr %ys, i64 %n
  %y32 = load i32, ptr %ypl
{spread("xall", "%x32")}
{spread("yall", "%y32")}
  %xw = and {wide} %xall, {all_of((1 << BITS) - 1)}
  %yw = and {wide} %yall, {all_of((1 << BITS) - 1)}
  %p00 = getelementptr i8, ptr %image, i64 %offset
  %p01 = getelementptr i8, ptr %p00, i64 {step}
  %p10 = getelementptr i8, ptr %p00, i64 %stride
  %p11 = getelementptr i8, ptr %p10, i64 {step}
{reads}
{mix}
  store {thin} %found, ptr %o, align 1
  %nn = add nuw nsw i64 %n, 1
  %go = icmp slt i64 %nn, %stop1
  br i1 %go, label %middle, label %edges
edges:
  %skip = icmp eq i64 %from, 0
  %e0 = select i1 %skip, i64 %stop1, i64 0
  br label %edge
edge:
  %e = phi i64 [%e0, %edges], [%en, %done]
  %xpe = getelementptr i32, ptr %xs, i64 %e
  %xe = load i32, ptr %xpe
  %ype = getelementptr i32, ptr %ys, i64 %e
  %ye = load i32, ptr %ype
  %jx = ashr i32 %xe, {BITS}
  %jy = ashr i32 %ye, {BITS}
  %jx0 = sext i32 %jx to i64
  %jy0 = sext i32 %jy to i64
  %jx1 = add i64 %jx0, 1
  %jy1 = add i64 %jy0, 1
  %qn = add i64 %begin, %e
  %qp = mul i64 %qn, {step}
  %q = getelementptr i8, ptr %out, i64 %qp
  %near = icmp ule i64 %jx1, %width
  %near2 = icmp ule i64 %jy1, %height
  %sees = and i1 %near, %near2
  br i1 %sees, label %mix, label %around
mix:
  %xon = and i32 %xe, {(1 << BITS) - 1}
  %ydown = and i32 %ye, {(1 << BITS) - 1}
  %xv = sub i32 {1 << BITS}, %xon
  %yv = sub i32 {1 << BITS}, %ydown
  %w00 = mul i32 %yv, %xv
  %w01 = mul i32 %yv, %xon
  %w10 = mul i32 %ydown, %xv
  %w11 = mul i32 %ydown, %xon
  %wf00 = sitofp i32 %w00 to float
  %wf01 = sitofp i32 %w01 to float
  %wf10 = sitofp i32 %w10 to float
  %wf11 = sitofp i32 %w11 to float
{line(edge)}
  br label %done
around:
{line(around)}
  br label %done
done:
  %e1 = add i64 %e, 1
  %at = icmp eq i64 %e1, %from
  %en = select i1 %at, i64 %stop1, i64 %e1
  %on = icmp slt i64 %en, %columns
  br i1 %on, label %edge, label %next"""


_SMALL = f"0x{int(np.float64(2.0 ** (-2 * BITS)).view(np.uint64)):016X}"  # as LLVM writes it


def _float_mix(lanes: int) -> str:
    """The sum of four pixels times their weights, in the order in which NumPy's text adds them."""
    kind = f"<{lanes} x float>"
    lines = [
        f"  %xf1 = and i32 %x32, {(1 << BITS) - 1}\n  %xf0 = sub i32 {1 << BITS}, %xf1\n"
        f"  %yf1 = and i32 %y32, {(1 << BITS) - 1}\n  %yf0 = sub i32 {1 << BITS}, %yf1"
    ]
    for d in "01":
        for h in "01":
            name = f"{d}{h}"
            lines.append(
                f"  %wi{name} = mul i32 %yf{d}, %xf{h}\n  %wv{name} = sitofp i32 %wi{name} to float\n"
                f"  %wa{name} = insertelement {kind} poison, float %wv{name}, i64 0\n"
                f"  %wb{name} = shufflevector {kind} %wa{name}, {kind} poison, "
                f"<{lanes} x i32> zeroinitializer\n"
                f"  %t{name} = fmul {kind} %v{name}, %wb{name}"
            )
    small = "<" + ", ".join([f"float {_SMALL}"] * lanes) + ">"
    lines.append(
        f"  %sum1 = fadd {kind} %t00, %t01\n  %sum2 = fadd {kind} %sum1, %t10\n"
        f"  %sum3 = fadd {kind} %sum2, %t11\n  %found = fmul {kind} %sum3, {small}"
    )
    return "\n".join(lines)
