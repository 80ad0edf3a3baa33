"""What stages do to images as machine code (feed/native.py): decoding, looking at a part, resizing, mirroring,
the last step. Each function gives the bits of its stage's methods."""

from __future__ import annotations

import ctypes

from ostinato.ops.core.spec import int64
from ostinato.ops.cpu.jit.code import CodeAddress, address_of, once, symbol
from ostinato.ops.cpu.jit.lines import LlvmLines
from ostinato.ops.jit.values import Value

from ..feed.draws_code import define as draws
from ..feed.native import NO_ROOM, NOT_MINE, ROOM, get, made, number, put
from . import kernels, resizing_code, windows


def _answers(body: str, more: str = "") -> str:
    """A function: `good` and `bad` are its ends."""
    return f"""
{more}
define i64 @run(ptr %s, ptr %numbers) nounwind {{
entry:
{body}
good:
  ret i64 0
bad:
  ret i64 {NOT_MINE}
}}
"""


# -- decoding ----------------------------------------------------------------------------------
@once
def opens() -> CodeAddress:
    """The extents of a JPEG file that is as most are; `headers.py` in machine code. numbers: the most
    pixels."""
    return made(
        f"""
define internal i64 @byte(ptr %data, i64 %k) nounwind {{
  %p = getelementptr i8, ptr %data, i64 %k
  %b = load i8, ptr %p
  %v = zext i8 %b to i64
  ret i64 %v
}}

define internal i64 @word(ptr %data, i64 %k, i64 %bytes, i1 %is_big) nounwind {{
entry:
  br label %loop
loop:
  %n = phi i64 [0, %entry], [%nn, %loop]
  %v = phi i64 [0, %entry], [%vn, %loop]
  %back = sub i64 %bytes, %n
  %last = sub i64 %back, 1
  %at = select i1 %is_big, i64 %n, i64 %last
  %kn = add i64 %k, %at
  %b = call i64 @byte(ptr %data, i64 %kn)
  %up = shl i64 %v, 8
  %vn = or i64 %up, %b
  %nn = add i64 %n, 1
  %more = icmp slt i64 %nn, %bytes
  br i1 %more, label %loop, label %end
end:
  ret i64 %vn
}}

define internal i1 @is_upright(ptr %exif, i64 %size) nounwind {{
entry:
  %long = icmp sge i64 %size, 14
  br i1 %long, label %look, label %yes
look:
  %order = call i64 @word(ptr %exif, i64 0, i64 2, i1 true)
  %is_big = icmp eq i64 %order, {int.from_bytes(b"MM", "big")}
  %is_little = icmp eq i64 %order, {int.from_bytes(b"II", "big")}
  %known = or i1 %is_big, %is_little
  br i1 %known, label %there, label %yes
there:
  %start = call i64 @word(ptr %exif, i64 4, i64 4, i1 %is_big)
  %after = add i64 %start, 2
  %inside = icmp sle i64 %after, %size
  br i1 %inside, label %count, label %yes
count:
  %said = call i64 @word(ptr %exif, i64 %start, i64 2, i1 %is_big)
  %bytes = sub i64 %size, %after
  %fit = udiv i64 %bytes, 12
  %less = icmp ult i64 %said, %fit
  %many = select i1 %less, i64 %said, i64 %fit
  br label %entries
entries:
  %k = phi i64 [0, %count], [%kn, %next]
  %more = icmp ult i64 %k, %many
  br i1 %more, label %tag, label %yes
tag:
  %ko = mul i64 %k, 12
  %e = add i64 %after, %ko
  %name = call i64 @word(ptr %exif, i64 %e, i64 2, i1 %is_big)
  %is = icmp eq i64 %name, {0x0112}
  br i1 %is, label %value, label %next
next:
  %kn = add i64 %k, 1
  br label %entries
value:
  %e2 = add i64 %e, 2
  %kind = call i64 @word(ptr %exif, i64 %e2, i64 2, i1 %is_big)
  %e8 = add i64 %e, 8
  %v = call i64 @word(ptr %exif, i64 %e8, i64 2, i1 %is_big)
  %is_number = icmp eq i64 %kind, 3
  %v2 = sub i64 %v, 2
  %turns = icmp ule i64 %v2, 6
  %turned = and i1 %is_number, %turns
  %upright = xor i1 %turned, true
  ret i1 %upright
yes:
  ret i1 true
}}
"""
        + _answers(
            f"""
{get("data", "size", "pixels", "channels")}
{number("most")}
  %is_there = icmp ne i64 %pixels, 0
  br i1 %is_there, label %good, label %coded
coded:
  %x = inttoptr i64 %data to ptr
  %end = sub i64 %size, 10
  %some = icmp sgt i64 %end, 2
  br i1 %some, label %begin, label %bad
begin:
  %magic = call i64 @word(ptr %x, i64 0, i64 3, i1 true)
  %is_jpeg = icmp eq i64 %magic, {0xFFD8FF}
  br i1 %is_jpeg, label %walk, label %bad
walk:
  %k = phi i64 [2, %begin], [%k1, %again], [%k2, %alone], [%kl, %skip]
  %inside = icmp slt i64 %k, %end
  br i1 %inside, label %marker, label %bad
marker:
  %ff = call i64 @byte(ptr %x, i64 %k)
  %is_marker = icmp eq i64 %ff, 255
  br i1 %is_marker, label %named, label %bad
named:
  %k1 = add i64 %k, 1
  %k2 = add i64 %k, 2
  %m = call i64 @byte(ptr %x, i64 %k1)
  %is_fill = icmp eq i64 %m, 255
  br i1 %is_fill, label %again, label %known
again:
  br label %walk
known:
  %from_d0 = sub i64 %m, {0xD0}
  %is_restart = icmp ult i64 %from_d0, 10
  %is_tem = icmp ule i64 %m, 1
  %has_no = or i1 %is_restart, %is_tem
  br i1 %has_no, label %alone, label %long
alone:
  br label %walk
long:
  %from_c0 = sub i64 %m, {0xC0}
  %is_c = icmp ult i64 %from_c0, 16
  %is_c4 = icmp eq i64 %m, {0xC4}
  %is_c8 = icmp eq i64 %m, {0xC8}
  %is_cc = icmp eq i64 %m, {0xCC}
  %not1 = or i1 %is_c4, %is_c8
  %not2 = or i1 %not1, %is_cc
  %frames = xor i1 %not2, true
  %is_frame = and i1 %is_c, %frames
  br i1 %is_frame, label %frame, label %segment
segment:
  %length = call i64 @word(ptr %x, i64 %k2, i64 2, i1 true)
  %short = icmp ult i64 %length, 2
  %at_least = select i1 %short, i64 2, i64 %length
  %kl = add i64 %k2, %at_least
  %is_app1 = icmp eq i64 %m, {0xE1}
  br i1 %is_app1, label %app1, label %skip
app1:
  %k4 = add i64 %k, 4
  %called = call i64 @word(ptr %x, i64 %k4, i64 6, i1 true)
  %is_exif = icmp eq i64 %called, {int.from_bytes(b"Exif" + bytes(2), "big")}
  br i1 %is_exif, label %exif, label %skip
exif:
  %k10 = add i64 %k, 10
  %ke = add i64 %k2, %length
  %cut = icmp slt i64 %ke, %size
  %kend = select i1 %cut, i64 %ke, i64 %size
  %exif_size = sub i64 %kend, %k10
  %exif_p = getelementptr i8, ptr %x, i64 %k10
  %upright = call i1 @is_upright(ptr %exif_p, i64 %exif_size)
  br i1 %upright, label %skip, label %bad
skip:
  br label %walk
frame:
  %f4 = add i64 %k, 4
  %f5 = add i64 %k, 5
  %f7 = add i64 %k, 7
  %f9 = add i64 %k, 9
  %bits = call i64 @byte(ptr %x, i64 %f4)
  %h = call i64 @word(ptr %x, i64 %f5, i64 2, i1 true)
  %w = call i64 @word(ptr %x, i64 %f7, i64 2, i1 true)
  %colours = call i64 @byte(ptr %x, i64 %f9)
  %is_8 = icmp eq i64 %bits, 8
  %is_grey = icmp eq i64 %colours, 1
  %is_rgb = icmp eq i64 %colours, 3
  %is_plain = or i1 %is_grey, %is_rgb
  %area = mul i64 %h, %w
  %largest = fptosi double %most to i64
  %less = icmp sle i64 %area, %largest
  %has = icmp sgt i64 %area, 0
  %g1 = and i1 %is_8, %is_plain
  %g2 = and i1 %less, %has
  %g = and i1 %g1, %g2
  br i1 %g, label %found, label %bad
found:
{put(height="%h", width="%w", all_height="%h", all_width="%w")}
  br label %good"""
        )
    )


@once
def decodes(channels: int) -> CodeAddress:
    """The part of an image that is looked at; all of it where that is most of it, as `windows.py` does.
    The second of its numbers is where libjpeg's functions are."""
    symbol("ostinato_decode_window", made(windows.TEXT))
    colours = windows.GREY if channels == 1 else windows.RGB
    body = f"""
{get("data", "size", "pixels", "height", "width", "top", "left", "all_height", "all_width")}
  %is_there = icmp ne i64 %pixels, 0
  br i1 %is_there, label %good, label %coded
coded:
  %x = inttoptr i64 %data to ptr
  br label %ends
ends:
  %e = phi i64 [2, %coded], [%en, %not_yet]
  %ep = sub i64 %size, %e
  %has = icmp sge i64 %ep, 0
  %near = icmp sle i64 %e, 64
  %looks = and i1 %has, %near
  br i1 %looks, label %mark, label %bad
mark:
  %mp = getelementptr i8, ptr %x, i64 %ep
  %m = load i16, ptr %mp, align 1
  %is_end = icmp eq i16 %m, {int.from_bytes(bytes((0xFF, 0xD9)), "little") - (1 << 16)}
  %en = add i64 %e, 1
  br i1 %is_end, label %extents, label %not_yet
not_yet:
  br label %ends
extents:
  %part = mul i64 %height, %width
  %all = mul i64 %all_height, %all_width
  %partf = sitofp i64 %part to double
  %allf = sitofp i64 %all to double
  %limit = fmul double %allf, {windows.SAVED}
  %is_most = fcmp ogt double %partf, %limit
  %b0 = sub i64 %left, {windows.SIDE}
  %is_edge = icmp slt i64 %b0, 0
  %b1 = select i1 %is_edge, i64 0, i64 %b0
  %lw = add i64 %left, %width
  %lws = add i64 %lw, {windows.SIDE}
  %is_over = icmp sgt i64 %lws, %all_width
  %stop = select i1 %is_over, i64 %all_width, i64 %lws
  %wide1 = sub i64 %stop, %b1
  %begin = select i1 %is_most, i64 0, i64 %b1
  %wide = select i1 %is_most, i64 %all_width, i64 %wide1
  %first = select i1 %is_most, i64 0, i64 %top
  %rows = select i1 %is_most, i64 %all_height, i64 %height
  %room_wide = add i64 %wide, {windows.ALIGNED}
  %most = mul i64 %room_wide, {channels}
  %bytes0 = mul i64 %rows, %most
  %bytes = add i64 %bytes0, 64
  %memory = call ptr @take(ptr %s, i64 %bytes)
  %lacks = icmp eq ptr %memory, null
  br i1 %lacks, label %full, label %work_room
work_room:
  %image = call ptr @take(ptr %s, i64 {windows.STATE})
  %lacks2 = icmp eq ptr %image, null
  br i1 %lacks2, label %full, label %decode
full:
  ret i64 {NO_ROOM}
decode:
  %calls_at = getelementptr ptr, ptr %numbers, i64 1
  %calls = load ptr, ptr %calls_at
  %begin32 = trunc i64 %begin to i32
  %wide32 = trunc i64 %wide to i32
  %first32 = trunc i64 %first to i32
  %rows32 = trunc i64 %rows to i32
  store i32 %begin32, ptr %columns
  %wp = getelementptr i32, ptr %columns, i64 1
  store i32 %wide32, ptr %wp
  %failed = call i32 @ostinato_decode_window(ptr %calls, ptr %image, ptr %x, i64 %size,
    i32 {colours}, i32 %first32, i32 %rows32, ptr %columns, i64 %most, ptr %memory)
  %is_bad = icmp ne i32 %failed, 0
  br i1 %is_bad, label %bad, label %check
check:
  %nb32 = load i32, ptr %columns
  %nw32 = load i32, ptr %wp
  %nb = zext i32 %nb32 to i64
  %nw = zext i32 %nw32 to i64
  %stride_new = mul i64 %nw, {channels}
  %after = add i64 %nb, %nw
  %is_in = icmp sle i64 %nb, %left
  %is_in2 = icmp sge i64 %after, %lw
  %covers = and i1 %is_in, %is_in2
  br i1 %covers, label %found, label %bad
found:
  %skip = sub i64 %left, %nb
  %skip_bytes = mul i64 %skip, {channels}
  %down = sub i64 %top, %first
  %down_bytes = mul i64 %down, %stride_new
  %o = add i64 %skip_bytes, %down_bytes
  %pp = getelementptr i8, ptr %memory, i64 %o
  %pi = ptrtoint ptr %pp to i64
{put(pixels="%pi", stride="%stride_new")}
  br label %good"""
    more = f"""{ROOM}
declare i32 @ostinato_decode_window(ptr, ptr, ptr, i64, i32, i32, i32, ptr, i64, ptr) nonlazybind
"""
    return made(_answers("  %columns = alloca [2 x i32]" + body, more))


# -- parts -------------------------------------------------------------------------------------
_NARROW = f"""
define internal void @narrow(ptr %s, i64 %y, i64 %x, i64 %h, i64 %w) nounwind {{
entry:
{get("pixels", "stride", "step", "top", "left")}
  %is_coded = icmp eq i64 %pixels, 0
  %down = mul i64 %y, %stride
  %on = mul i64 %x, %step
  %o = add i64 %down, %on
  %there = add i64 %pixels, %o
  %p = select i1 %is_coded, i64 0, i64 %there
  %t = add i64 %top, %y
  %l = add i64 %left, %x
{put(pixels="%p", top="%t", left="%l", height="%h", width="%w")}
  ret void
}}
"""


# rows and columns, %y2 and %x2, that are beside a crop of a size
_SPARE = f"""{get("height", "width")}
{number("hf", "wf")}
  %h = fptosi double %hf to i64
  %w = fptosi double %wf to i64
  %y2 = sub i64 %height, %h
  %x2 = sub i64 %width, %w
  %ybad = icmp slt i64 %y2, 0
  %xbad = icmp slt i64 %x2, 0
  %small = or i1 %ybad, %xbad
  br i1 %small, label %bad, label %fits
fits:
"""


@once
def looks_at_middle() -> CodeAddress:
    """numbers: height, width."""
    return made(
        _answers(
            f"""
{_SPARE}  %y = lshr i64 %y2, 1
  %x = lshr i64 %x2, 1
  call void @narrow(ptr %s, i64 %y, i64 %x, i64 %h, i64 %w)
  br label %good""",
            _NARROW,
        )
    )


_DRAW = f"""
define internal void @draw(ptr %s, i64 %k, ptr %found) nounwind {{
entry:
{get("place", "number", "key0", "key1")}
  call void @ostinato_draw(i64 %place, i64 %number, i64 %key0, i64 %key1, i64 %k, ptr %found)
  ret void
}}
"""


def _draws() -> str:
    return draws() + _DRAW


@once
def looks_anywhere() -> CodeAddress:
    """A crop of a size. numbers: height, width."""
    return made(
        _answers(
            f"""
  %u = alloca [4 x double]
{_SPARE}  call void @draw(ptr %s, i64 0, ptr %u)
  %a = load double, ptr %u
  %bp = getelementptr double, ptr %u, i64 1
  %b = load double, ptr %bp
  %y3 = add i64 %y2, 1
  %x3 = add i64 %x2, 1
  %ym = sitofp i64 %y3 to double
  %xm = sitofp i64 %x3 to double
  %yf = fmul double %ym, %a
  %xf = fmul double %xm, %b
  %y = fptosi double %yf to i64
  %x = fptosi double %xf to i64
  call void @narrow(ptr %s, i64 %y, i64 %x, i64 %h, i64 %w)
  br label %good""",
            _draws() + _NARROW,
        )
    )


@once
def looks_at_some(tries: int) -> CodeAddress:
    """A crop of random area and proportions. numbers: the size that it is to have, the least area, how much
    more it may be, and the same of the logarithm of its proportions."""
    symbol("ostinato_exp", address_of(ctypes.CDLL(None), "exp"))  # the one that Python calls
    uniform = "\n".join(
        f"  %u{k}p = getelementptr double, ptr %u, i64 {k}\n  %u{k} = load double, ptr %u{k}p"
        for k in range(4)
    )
    sides = "\n".join(
        f"  %{n}s = call double @llvm.sqrt.f64(double %{n}a)\n"
        f"  %{n}f = call double @llvm.rint.f64(double %{n}s)\n  %{n} = fptosi double %{n}f to i64\n"
        f"  %{n}some = icmp sgt i64 %{n}, 0\n  %{n}fits = icmp sle i64 %{n}, %{of}\n"
        f"  %{n}good = and i1 %{n}some, %{n}fits"
        for n, of in (("w", "width"), ("h", "height"))
    )
    return made(
        _answers(
            f"""
  %u = alloca [4 x double]
{get("height", "width")}
{number("", "", "least", "more", "low", "wide")}
  %area = mul i64 %height, %width
  %areaf = sitofp i64 %area to double
  br label %try
try:
  %k = phi i64 [0, %entry], [%kn, %again]
  call void @draw(ptr %s, i64 %k, ptr %u)
{uniform}
  %a1 = fmul double %more, %u0
  %a2 = fadd double %least, %a1
  %a = fmul double %areaf, %a2
  %r1 = fmul double %wide, %u1
  %r2 = fadd double %low, %r1
  %ratio = call double @ostinato_exp(double %r2)
  %wa = fmul double %a, %ratio
  %ha = fdiv double %a, %ratio
{sides}
  %found = and i1 %wgood, %hgood
  br i1 %found, label %there, label %again
again:
  %kn = add i64 %k, 1
  %go = icmp slt i64 %kn, {tries}
  br i1 %go, label %try, label %bad
there:
  %y2 = sub i64 %height, %h
  %y3 = add i64 %y2, 1
  %ym = sitofp i64 %y3 to double
  %yf = fmul double %u2, %ym
  %y = fptosi double %yf to i64
  %x2 = sub i64 %width, %w
  %x3 = add i64 %x2, 1
  %xm = sitofp i64 %x3 to double
  %xf = fmul double %u3, %xm
  %x = fptosi double %xf to i64
  call void @narrow(ptr %s, i64 %y, i64 %x, i64 %h, i64 %w)
  br label %good""",
            _draws()
            + _NARROW
            + "declare double @ostinato_exp(double) nonlazybind\ndeclare double @llvm.sqrt.f64(double)\n"
            "declare double @llvm.rint.f64(double)\n",
        )
    )


# -- what changes pixels -----------------------------------------------------------------------
@once
def resizes(channels: int, smooth: bool) -> CodeAddress:
    """numbers: height and width; or the shorter side, and 0."""
    resize = f"ostinato_resize_{channels}{int(smooth)}"
    symbol(resize, made(resizing_code.text(channels, smooth)))
    lines = LlvmLines()
    extents = [Value(lines, f"%{n}", int64) for n in ("height", "width", "h", "w")]
    noted = resizing_code.notes_bytes(channels, *extents)
    return made(
        _answers(
            f"""
{get("pixels", "stride", "step", "height", "width", "out", "out0", "out1", "out2")}
{number("hf", "wf")}
  %n = fptosi double %hf to i64
  %wn = fptosi double %wf to i64
  %is_pair = icmp ne i64 %wn, 0
  %is_flat = icmp sle i64 %height, %width
  %shorter = select i1 %is_flat, i64 %height, i64 %width
  %longer = select i1 %is_flat, i64 %width, i64 %height
  %much = mul i64 %n, %longer
  %inproportion = sdiv i64 %much, %shorter
  %islittle = icmp slt i64 %inproportion, 1
  %other = select i1 %islittle, i64 1, i64 %inproportion
  %h1 = select i1 %is_flat, i64 %n, i64 %other
  %w1 = select i1 %is_flat, i64 %other, i64 %n
  %h = select i1 %is_pair, i64 %n, i64 %h1
  %w = select i1 %is_pair, i64 %wn, i64 %w1
  %same0 = icmp eq i64 %h, %height
  %same1 = icmp eq i64 %w, %width
  %same = and i1 %same0, %same1
  br i1 %same, label %good, label %changes
changes:
  %straight = icmp eq i64 %step, {channels}
  br i1 %straight, label %place, label %bad
place:
  %f0 = icmp eq i64 %out0, %h
  %f1 = icmp eq i64 %out1, %w
  %f2 = icmp eq i64 %out2, {channels}
  %fa = and i1 %f0, %f1
  %fb = and i1 %fa, %f2
  %is_last = icmp ne i64 %out, 0
  %fills = and i1 %fb, %is_last
  %area = mul i64 %h, %w
  %bytes = mul i64 %area, {channels}
  br i1 %fills, label %straight_to, label %between
straight_to:
  %out_p = inttoptr i64 %out to ptr
  br label %notes
between:
  %more = add i64 %bytes, 64
  %taken = call ptr @take(ptr %s, i64 %more)
  %lacks = icmp eq ptr %taken, null
  br i1 %lacks, label %full, label %notes
full:
  ret i64 {NO_ROOM}
notes:
  %to = phi ptr [%out_p, %straight_to], [%taken, %between]
{chr(10).join(lines.text)}
  %notes_p = call ptr @take(ptr %s, i64 {noted.name})
  %lacks2 = icmp eq ptr %notes_p, null
  br i1 %lacks2, label %full, label %work
work:
  %x = inttoptr i64 %pixels to ptr
  call void @{resize}(ptr %x, i64 %stride, i64 %height, i64 %width,
    ptr %to, i64 %h, i64 %w, ptr %notes_p)
  %to_i = ptrtoint ptr %to to i64
  %wide = mul i64 %w, {channels}
  %is_filled = zext i1 %fills to i64
{put(pixels="%to_i", stride="%wide", height="%h", width="%w", filled="%is_filled")}
  br label %good""",
            f"{ROOM}declare void @{resize}(ptr, i64, i64, i64, ptr, i64, i64, ptr) nonlazybind\n",
        )
    )


@once
def mirrors(vertical: bool) -> CodeAddress:
    """With a chance, which is its number."""
    if vertical:
        turns = f"""
  %last = sub i64 %height, 1
  %o = mul i64 %last, %stride
  %p = add i64 %pixels, %o
  %back = sub i64 0, %stride
{put(pixels="%p", stride="%back")}"""
    else:
        turns = f"""
  %last = sub i64 %width, 1
  %o = mul i64 %last, %step
  %p = add i64 %pixels, %o
  %back = sub i64 0, %step
{put(pixels="%p", step="%back")}"""
    return made(
        _answers(
            f"""
  %u = alloca [4 x double]
{get("pixels", "stride", "step", "height", "width")}
{number("p_of")}
  call void @draw(ptr %s, i64 0, ptr %u)
  %v = load double, ptr %u
  %does = fcmp olt double %v, %p_of
  br i1 %does, label %turn, label %good
turn:{turns}
  br label %good""",
            _draws(),
        )
    )


@once
def finishes(channels: int, dtype: str) -> CodeAddress:
    """The last step, channels in front. numbers: factors and addends, float32."""
    names = {}
    for step in (channels, -channels):
        for is_aligned in (False, True):
            name = f"ostinato_{dtype}_planes_{channels}{'b' if step < 0 else 'f'}{int(is_aligned)}"
            lines = is_aligned and dtype == "float32"
            symbol(name, made(kernels.text(channels, step, lines, dtype)))
            names[step, is_aligned] = name
    declared = "\n".join(
        f"declare void @{n}(ptr, i64, i64, i64, ptr, ptr) nonlazybind" for n in names.values()
    )
    calls = []
    for k, ((step, is_aligned), name) in enumerate(names.items()):
        calls.append(
            f"""try{k}:
  %s{k} = icmp eq i64 %step, {step}
  %a{k} = icmp eq i1 %aligned, {"true" if is_aligned else "false"}
  %is{k} = and i1 %s{k}, %a{k}
  br i1 %is{k}, label %do{k}, label %try{k + 1}
do{k}:
  call void @{name}(ptr %x, i64 %stride, i64 %height, i64 %width, ptr %to, ptr %numbers)
  br label %done"""
        )
    body = "\n".join(calls)
    return made(
        _answers(
            f"""
{get("pixels", "stride", "step", "height", "width", "out", "out0", "out1", "out2")}
  %is_last = icmp ne i64 %out, 0
  %f0 = icmp eq i64 %out0, {channels}
  %f1 = icmp eq i64 %out1, %height
  %f2 = icmp eq i64 %out2, %width
  %fa = and i1 %f0, %f1
  %fb = and i1 %f2, %is_last
  %fits = and i1 %fa, %fb
  br i1 %fits, label %look, label %bad
look:
  %x = inttoptr i64 %pixels to ptr
  %to = inttoptr i64 %out to ptr
  %odd_out = and i64 %out, {4 * kernels.LANES - 1}
  %odd_width = and i64 %width, {kernels.LANES - 1}
  %odd = or i64 %odd_out, %odd_width
  %aligned = icmp eq i64 %odd, 0
  br label %try0
{body}
try{len(names)}:
  br label %bad
done:
{put(filled=1)}
  br label %good""",
            declared,
        )
    )
