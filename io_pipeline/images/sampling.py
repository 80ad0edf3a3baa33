"""Images as seen through a matrix: each pixel of the result looks at a place of the image.

    place = N @ (column, row, 1), divided by its third number; places are counted in pixels, from the middle
    of the first one

Places are rounded to 1/2048 of a pixel, and what lies between four pixels is mixed in whole numbers; so
machine code, NumPy and devices give the same bits. Around the image everything is `fill`. "nearest" takes
the pixel in which the place lies."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm

from .values import in_order, moved_in

Image = Any
Matrix = tuple[float, ...]  # of 3 x 3 numbers, row by row
Size = tuple[int, int]
BITS = 11  # of a place's fraction
LINEAR, NEAREST = "linear", "nearest"
MOST_CHANNELS = 8  # of which there is machine code
_TYPES = (
    ctypes.c_void_p,
    *[ctypes.c_ssize_t] * 3,
    ctypes.c_void_p,
    *[ctypes.c_ssize_t] * 2,
    *[ctypes.c_void_p] * 3,
)


def seen(
    xp: Any, x: Image, matrix: Matrix, size: Size, way: str, fill: Any = 0, out: Image = None
) -> Image:
    """An image, or a mask without channels, as `size` pixels that look at it through a matrix."""
    channels = x.shape[2] if x.ndim == 3 else 1
    is_known = (way == NEAREST or x.dtype == np.uint8) and channels <= MOST_CHANNELS
    if xp is not np or not is_known or x.nbytes >= 1 << 31 or llvm.why_not():
        around = moved_in(xp, np.broadcast_to(np.asarray(fill, x.dtype.name), x.shape[2:]))
        return (_nearest if way == NEAREST else _linear)(xp, x, matrix, size, around)
    x = in_order(x)
    shape = (*size, *x.shape[2:])
    if out is None or out.shape != shape or out.dtype != x.dtype or not out.flags.c_contiguous:
        out = np.empty(shape, x.dtype)
    is_affine = matrix[6:] == (0.0, 0.0, 1.0)
    run = _function(way, x.dtype.itemsize, channels, is_affine)
    numbers, around = np.array(matrix), np.empty(channels, x.dtype)
    around[:] = fill
    places = np.empty((3, size[1]), np.int32)
    pointers = numbers.ctypes.data, around.ctypes.data, places.ctypes.data
    run(x.ctypes.data, x.strides[0], *x.shape[:2], out.ctypes.data, *size, *pointers)
    return out


def _places(xp: Any, matrix: Matrix, shape: Size, size: Size) -> list[Any]:
    """Where pixels look: columns and rows."""
    a, b, c, d, e, f, g, h, i = matrix
    k, r = xp.arange(size[1], dtype=xp.float64), xp.arange(size[0], dtype=xp.float64)[:, None]
    found = [a * k + (b * r + c), d * k + (e * r + f)]
    if (g, h, i) != (0.0, 0.0, 1.0):
        depth = g * k + (h * r + i)
        is_before = depth > 0
        by = xp.where(is_before, depth, 1.0)
        found = [xp.where(is_before, v / by, -2.0) for v in found]
    return [
        xp.minimum(xp.maximum(v, -2.0), n + 1.0) for v, n in zip(found, shape[::-1], strict=True)
    ]


def _nearest(xp: Any, x: Image, matrix: Matrix, size: Size, fill: Any) -> Image:
    columns, rows = _places(xp, matrix, x.shape[:2], size)
    return _pixels(xp, x, xp.floor(rows + 0.5), xp.floor(columns + 0.5), fill)


def _pixels(xp: Any, x: Image, rows: Any, columns: Any, fill: Any) -> Any:
    height, width = x.shape[:2]
    is_inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    rows = xp.minimum(xp.maximum(rows, 0), height - 1).astype(xp.int64)
    columns = xp.minimum(xp.maximum(columns, 0), width - 1).astype(xp.int64)
    if x.ndim == 3:
        is_inside = is_inside[..., None]
    return xp.where(is_inside, x[rows, columns], fill)


def _linear(xp: Any, x: Image, matrix: Matrix, size: Size, fill: Any) -> Image:
    one = 1 << BITS
    columns, rows = (
        xp.floor(v * one + 0.5).astype(xp.int64) for v in _places(xp, matrix, x.shape[:2], size)
    )
    is_whole = x.dtype.kind == "u"
    kind = xp.int64 if is_whole else xp.float64 if x.dtype == np.float64 else xp.float32
    right, low = ((v & (one - 1)).astype(kind) for v in (columns, rows))
    columns, rows = columns >> BITS, rows >> BITS
    total: Any = None
    for down, by_row in ((0, one - low), (1, low)):
        for on, by_column in ((0, one - right), (1, right)):
            weight = by_row * by_column
            weight = weight[..., None] if x.ndim == 3 else weight
            found = _pixels(xp, x, rows + down, columns + on, fill).astype(kind) * weight
            total = found if total is None else total + found
    if is_whole:
        return ((total + (1 << (2 * BITS - 1))) >> (2 * BITS)).astype(x.dtype)
    return (total * 2.0 ** (-2 * BITS)).astype(x.dtype)


# -- machine code ------------------------------------------------------------------------------
@lru_cache(32)
def _function(way: str, itemsize: int, channels: int, is_affine: bool) -> Any:
    place = _place_text(way == LINEAR, is_affine, channels)
    pixels = _linear_text(channels) if way == LINEAR else _nearest_text(itemsize, channels)
    return ctypes.CFUNCTYPE(None, *_TYPES)(llvm.linked(_text(place, pixels)))


def _text(place: str, pixels: str) -> str:
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
{_PICK}
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


_PICK = """
define internal i32 @pick(ptr %x, i64 %stride, i64 %height, i64 %width,
  i64 %r, i64 %k, i64 %channels, i64 %c, ptr %fill) {
  %above = icmp ult i64 %r, %height
  %beside = icmp ult i64 %k, %width
  %inside = and i1 %above, %beside
  %ro = mul i64 %r, %stride
  %ko = mul i64 %k, %channels
  %o = add i64 %ro, %ko
  %oc = add i64 %o, %c
  %there = getelementptr i8, ptr %x, i64 %oc
  %around = getelementptr i8, ptr %fill, i64 %c
  %p = select i1 %inside, ptr %there, ptr %around
  %v = load i8, ptr %p
  %w = zext i8 %v to i32
  ret i32 %w
}"""


def _place_text(is_linear: bool, is_affine: bool, channels: int) -> str:
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
        more = _SPAN.replace("LAST", last).replace("STEP", str(channels))
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


def _nearest_text(itemsize: int, channels: int) -> str:
    kind = f"i{8 * itemsize}"
    copies = "\n".join(
        f"  %f{c} = getelementptr {kind}, ptr %from, i64 {c}\n"
        f"  %v{c} = load {kind}, ptr %f{c}, align 1\n"
        f"  %g{c} = getelementptr {kind}, ptr %o, i64 {c}\n"
        f"  store {kind} %v{c}, ptr %g{c}, align 1"
        for c in range(channels)
    )
    step = itemsize * channels
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


def _linear_text(channels: int) -> str:
    """Pixels that have all four neighbours, with all channels at once; then those before and behind, one
    channel after another, as far as they see anything. Three channels are read and written as four."""
    lanes = 4 if channels == 3 else channels
    wide, thin = f"<{lanes} x i32>", f"<{lanes} x i8>"

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

    reads = "\n".join(
        f"  %v{name} = load {thin}, ptr %p{name}, align 1\n  %e{name} = zext {thin} %v{name} to {wide}"
        for name in ("00", "01", "10", "11")
    )
    edge, around = [], []
    for c in range(channels):
        for name, row, column in (("00", 0, 0), ("01", 0, 1), ("10", 1, 0), ("11", 1, 1)):
            edge.append(
                f"  %d{name}{c} = call i32 @pick(ptr %image, i64 %stride, i64 %height, i64 %width, "
                f"i64 %jy{row}, i64 %jx{column}, i64 {channels}, i64 {c}, ptr %fill)\n"
                f"  %t{name}{c} = mul i32 %d{name}{c}, %w{name}"
            )
        edge.append(
            f"  %n0{c} = add i32 %t00{c}, %t01{c}\n  %n1{c} = add i32 %t10{c}, %t11{c}\n"
            f"  %n2{c} = add i32 %n0{c}, %n1{c}\n"
            f"  %n3{c} = add i32 %n2{c}, {1 << (2 * BITS - 1)}\n"
            f"  %n4{c} = lshr i32 %n3{c}, {2 * BITS}\n  %n5{c} = trunc i32 %n4{c} to i8\n"
            f"  %z{c} = getelementptr i8, ptr %q, i64 {c}\n  store i8 %n5{c}, ptr %z{c}"
        )
        around.append(
            f"  %f{c} = getelementptr i8, ptr %fill, i64 {c}\n  %g{c} = load i8, ptr %f{c}\n"
            f"  %u{c} = getelementptr i8, ptr %q, i64 {c}\n  store i8 %g{c}, ptr %u{c}"
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
  %place = mul i64 %number, {channels}
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
  %p01 = getelementptr i8, ptr %p00, i64 {channels}
  %p10 = getelementptr i8, ptr %p00, i64 %stride
  %p11 = getelementptr i8, ptr %p10, i64 {channels}
{reads}
{mixed("up", "%e00", "%e01", "%xw")}
{mixed("low", "%e10", "%e11", "%xw")}
{mixed("both", "%up", "%low", "%yw")}
  %half = add {wide} %both, {all_of(1 << (2 * BITS - 1))}
  %down = lshr {wide} %half, {all_of(2 * BITS)}
  %found = trunc {wide} %down to {thin}
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
  %qp = mul i64 %qn, {channels}
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
