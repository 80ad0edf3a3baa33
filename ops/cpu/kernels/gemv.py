"""A matrix times a vector, and a vector times a matrix, where memory limits them. Rows are read in four
streams that lie far from each other: each goes on from row to row without a step, as processors like
to read ahead. BLAS reads neighbouring rows side by side, and begins anew with each few of them.

What is summed in which order depends on extents only, so bits do not depend on threads."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.stacks import Stack

STREAMS = 4  # as `_COLUMNS` adds them up
UNROLLED = 2  # sums of a row side by side
PART = LIMITS.part_bytes
PARTS = 32  # ... in so many parts at the most
BLOCK = LIMITS.sums_bytes
WIDE = LIMITS.streamed_row
FEW, LONG = 64, 1 << 15  # so few rows of so many terms are better cut otherwise
FAR = LIMITS.streamed_matrix
TALL = 4  # ... and rows for each of these
_KINDS = {"float32": ("float", 32), "float64": ("double", 64)}


def streams_pay(a: Stack) -> bool:
    """Whether they are quicker than BLAS for this matrix and a column, as timed over a grid of shapes."""
    (rows, terms), item = a.shape[-2:], a.dtype.itemsize
    if a.strides[-1] == 1:
        return terms * item >= WIDE and (rows >= FEW or terms < LONG)
    return rows * item >= WIDE and terms >= TALL * rows and rows * terms * item >= FAR


def vector_product(a: Stack, b: Stack, out: Stack, turned: bool, threads: int) -> Any:
    """The function of three arrays for the product of a matrix with one column; `turned`: the matrix is
    the second array. None if neither rows nor columns of the matrix lie in one piece, or the vector has
    gaps."""
    (rows, terms), kind, item = a.shape[-2:], _KINDS.get(a.dtype.name), a.dtype.itemsize
    if len(a.shape) > 2 or kind is None or (terms > 1 and b.strides[-2] != 1) or b.shape[-1] != 1:
        return None
    lanes = vector_bits() // kind[1]
    down, along, step = (n * item for n in (*a.strides[-2:], out.strides[-2]))
    if along == item or terms == 1:
        apart = -(-rows // STREAMS)
        whole = terms // (UNROLLED * lanes) * UNROLLED * lanes
        facts = [apart, min(threads, apart), turned, rows - 1, terms, whole, down, step, apart]
        return function_of(_text(_ROWS, *kind, lanes), np.array(facts))
    if down != item:
        return None
    parts = max(1, min(PARTS, rows * terms * item // PART))
    facts = [parts, min(threads, parts), turned, terms, rows, along, step, parts, BLOCK // item]
    waiting = np.zeros(-(-parts * rows * item // 8), np.int64)
    return function_of(_text(_COLUMNS + _FINISH, *kind, lanes), np.concatenate([facts, waiting]))


@lru_cache(8)
def _text(turns: str, kind: str, bits: int, lanes: int) -> str:
    """Lines with $s are there for each stream, those with $u for each of the sums side by side."""
    lines = (_SHARED + turns).split("\n")
    for name, count in (("$s", STREAMS), ("$u", UNROLLED)):
        lines = [
            line.replace(name, str(k))
            for line in lines
            for k in range(count if name in line else 1)
        ]
    text = "\n".join(lines).replace("COUNT", ", ".join(f"i64 {k}" for k in range(lanes)))
    for name, value in {
        "VEC": f"<{lanes} x {kind}>",
        "OF": f"v{lanes}f{bits}",
        "REAL": kind,
    }.items():
        text = text.replace(name, value)
    for name, number in {
        "LANES": lanes,
        "BITS": bits,
        "STEP": UNROLLED * lanes,
        "ITEM": bits // 8,
    }.items():
        text = text.replace(name, str(number))
    return TABLES + text + around(3)


_SHARED = """
declare VEC @llvm.fmuladd.OF(VEC, VEC, VEC)
declare REAL @llvm.fmuladd.fBITS(REAL, REAL, REAL)
declare VEC @llvm.masked.load.OF.p0(ptr, i32, <LANES x i1>, VEC)
declare void @llvm.masked.store.OF.p0(VEC, ptr, i32, <LANES x i1>)
declare REAL @llvm.vector.reduce.fadd.OF(REAL, VEC)
declare i64 @llvm.umin.i64(i64, i64)

define internal <LANES x i1> @mask(i64 %room) alwaysinline {
  %one = insertelement <LANES x i64> poison, i64 %room, i64 0
  %all = shufflevector <LANES x i64> %one, <LANES x i64> poison, <LANES x i32> zeroinitializer
  %mask = icmp sgt <LANES x i64> %all, <COUNT>
  ret <LANES x i1> %mask
}

define internal VEC @splat(ptr %from) alwaysinline {
  %value = load REAL, ptr %from
  %one = insertelement VEC poison, REAL %value, i64 0
  %all = shufflevector VEC %one, VEC poison, <LANES x i32> zeroinitializer
  ret VEC %all
}
"""

# Where there are too few rows, the last streams read the last one again.
_ROWS = """
define internal void @finish(ptr %data, ptr %meta) {
  ret void
}

define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %first = call i64 @fact(ptr %meta, i64 2)
  %last = call i64 @fact(ptr %meta, i64 3)
  %terms = call i64 @fact(ptr %meta, i64 4)
  %whole = call i64 @fact(ptr %meta, i64 5)
  %row = call i64 @fact(ptr %meta, i64 6)
  %step = call i64 @fact(ptr %meta, i64 7)
  %apart = call i64 @fact(ptr %meta, i64 8)
  %second = sub i64 1, %first
  %matrix = call ptr @array(ptr %data, i64 %first)
  %vector = call ptr @array(ptr %data, i64 %second)
  %result = call ptr @array(ptr %data, i64 2)
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %turn, label %end
turn:
  %o = phi i64 [%lo, %entry], [%o1, %done]
  %far$s = mul i64 %apart, $s
  %beyond$s = add i64 %o, %far$s
  %i$s = call i64 @llvm.umin.i64(i64 %beyond$s, i64 %last)
  %down$s = mul i64 %i$s, %row
  %a$s = getelementptr i8, ptr %matrix, i64 %down$s
  %long = icmp sgt i64 %whole, 0
  br i1 %long, label %full, label %rest
full:
  %j = phi i64 [0, %turn], [%j1, %full]
  %sum$s_$u = phi VEC [zeroinitializer, %turn], [%next$s_$u, %full]
  %on$u = mul i64 LANES, $u
  %k$u = add i64 %j, %on$u
  %x$u_at = getelementptr REAL, ptr %vector, i64 %k$u
  %x$u = load VEC, ptr %x$u_at, align ITEM
  %v$s_$u_at = getelementptr REAL, ptr %a$s, i64 %k$u
  %v$s_$u = load VEC, ptr %v$s_$u_at, align ITEM
  %next$s_$u = call VEC @llvm.fmuladd.OF(VEC %v$s_$u, VEC %x$u, VEC %sum$s_$u)
  %j1 = add i64 %j, STEP
  %more = icmp slt i64 %j1, %whole
  br i1 %more, label %full, label %rest
rest:
  %had$s_$u = phi VEC [zeroinitializer, %turn], [%next$s_$u, %full]
  %all$s = fadd VEC %had$s_0, %had$s_1
  %left = icmp slt i64 %whole, %terms
  br i1 %left, label %tail, label %done
tail:
  %t = phi i64 [%whole, %rest], [%t1, %tail]
  %part$s = phi VEC [%all$s, %rest], [%ended$s, %tail]
  %room = sub i64 %terms, %t
  %mask = call <LANES x i1> @mask(i64 %room)
  %y_at = getelementptr REAL, ptr %vector, i64 %t
  %y = call VEC @llvm.masked.load.OF.p0(ptr %y_at, i32 ITEM, <LANES x i1> %mask, VEC zeroinitializer)
  %w$s_at = getelementptr REAL, ptr %a$s, i64 %t
  %w$s = call VEC @llvm.masked.load.OF.p0(ptr %w$s_at, i32 ITEM, <LANES x i1> %mask, VEC zeroinitializer)
  %ended$s = call VEC @llvm.fmuladd.OF(VEC %w$s, VEC %y, VEC %part$s)
  %t1 = add i64 %t, LANES
  %again = icmp slt i64 %t1, %terms
  br i1 %again, label %tail, label %done
done:
  %sum$s = phi VEC [%all$s, %rest], [%ended$s, %tail]
  %total$s = call reassoc REAL @llvm.vector.reduce.fadd.OF(REAL 0.0, VEC %sum$s)
  %place$s = mul i64 %i$s, %step
  %to$s = getelementptr i8, ptr %result, i64 %place$s
  store REAL %total$s, ptr %to$s
  %o1 = add i64 %o, 1
  %unfinished = icmp slt i64 %o1, %hi
  br i1 %unfinished, label %turn, label %end
end:
  ret void
}
"""


# Parts of a sum, which wait behind the facts, become elements of a result of rows and columns.
ADD_UP = """
define internal void @finish(ptr %data, ptr %meta) {
entry:
FACTS
  %data_c = getelementptr ptr, ptr %data, i64 2
  %result = load ptr, ptr %data_c
  %waiting = getelementptr i64, ptr %meta, i64 %room
  %all = mul i64 %rows, %columns
  %apart = icmp sgt i64 %parts, 0
  br i1 %apart, label %element, label %end
element:
  %e = phi i64 [0, %entry], [%e1, %summed]
  br label %part
part:
  %p = phi i64 [0, %element], [%p1, %part]
  %sum = phi REAL [0.0, %element], [%sum1, %part]
  %skip = mul i64 %p, %all
  %here = add i64 %skip, %e
  %from = getelementptr REAL, ptr %waiting, i64 %here
  %value = load REAL, ptr %from
  %sum1 = fadd REAL %sum, %value
  %p1 = add i64 %p, 1
  %again = icmp slt i64 %p1, %parts
  br i1 %again, label %part, label %summed
summed:
  %i = udiv i64 %e, %columns
  %j = urem i64 %e, %columns
  %down = mul i64 %i, %row
  %along = mul i64 %j, %column
  %place = add i64 %down, %along
  %to = getelementptr i8, ptr %result, i64 %place
  store REAL %sum1, ptr %to
  %e1 = add i64 %e, 1
  %more = icmp slt i64 %e1, %all
  br i1 %more, label %element, label %end
end:
  ret void
}
"""

# A part's rows are added up block after block of the columns, four of them at a time, then the rest; the
# sums of parts wait behind the facts.
_COLUMNS = """
define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %first = call i64 @fact(ptr %meta, i64 2)
  %rows = call i64 @fact(ptr %meta, i64 3)
  %columns = call i64 @fact(ptr %meta, i64 4)
  %row = call i64 @fact(ptr %meta, i64 5)
  %parts = call i64 @fact(ptr %meta, i64 7)
  %block = call i64 @fact(ptr %meta, i64 8)
  %waiting = getelementptr i64, ptr %meta, i64 9
  %second = sub i64 1, %first
  %matrix = call ptr @array(ptr %data, i64 %first)
  %vector = call ptr @array(ptr %data, i64 %second)
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %part, label %end
part:
  %o = phi i64 [%lo, %entry], [%o1, %part_done]
  %o1 = add i64 %o, 1
  %from = mul i64 %o, %rows
  %to = mul i64 %o1, %rows
  %begin = sdiv i64 %from, %parts
  %stop = sdiv i64 %to, %parts
  %count = sub i64 %stop, %begin
  %apart = udiv i64 %count, 4
  %paired = mul i64 %apart, 4
  %single = add i64 %begin, %paired
  %before = mul i64 %o, %columns
  %sums = getelementptr REAL, ptr %waiting, i64 %before
  br label %columns_
columns_:
  %c = phi i64 [0, %part], [%c1, %columns_done]
  %next_block = add i64 %c, %block
  %c1 = call i64 @llvm.umin.i64(i64 %next_block, i64 %columns)
  br label %clear
clear:
  %z = phi i64 [%c, %columns_], [%z1, %clear]
  %z_at = getelementptr REAL, ptr %sums, i64 %z
  store REAL 0.0, ptr %z_at
  %z1 = add i64 %z, 1
  %zs = icmp slt i64 %z1, %c1
  br i1 %zs, label %clear, label %cleared
cleared:
  %fours = icmp sgt i64 %apart, 0
  br i1 %fours, label %four, label %ones
four:
  %i = phi i64 [0, %cleared], [%i1, %four_done]
  %far$s = mul i64 %apart, $s
  %on$s = add i64 %i, %far$s
  %r$s = add i64 %begin, %on$s
  %x$s_at = getelementptr REAL, ptr %vector, i64 %r$s
  %x$s = call VEC @splat(ptr %x$s_at)
  %down$s = mul i64 %r$s, %row
  %a$s = getelementptr i8, ptr %matrix, i64 %down$s
  br label %along
along:
  %j = phi i64 [%c, %four], [%j1, %added]
  %s_at = getelementptr REAL, ptr %sums, i64 %j
  %v$s_at = getelementptr REAL, ptr %a$s, i64 %j
  %j1 = add i64 %j, LANES
  %fits = icmp sle i64 %j1, %c1
  br i1 %fits, label %full, label %cut
full:
  %s = load VEC, ptr %s_at, align ITEM
  %v$s = load VEC, ptr %v$s_at, align ITEM
  %t0 = call VEC @llvm.fmuladd.OF(VEC %v0, VEC %x0, VEC %s)
  %t1 = call VEC @llvm.fmuladd.OF(VEC %v1, VEC %x1, VEC %t0)
  %t2 = call VEC @llvm.fmuladd.OF(VEC %v2, VEC %x2, VEC %t1)
  %t3 = call VEC @llvm.fmuladd.OF(VEC %v3, VEC %x3, VEC %t2)
  store VEC %t3, ptr %s_at, align ITEM
  br label %added
cut:
  %room = sub i64 %c1, %j
  %mask = call <LANES x i1> @mask(i64 %room)
  %ms = call VEC @llvm.masked.load.OF.p0(ptr %s_at, i32 ITEM, <LANES x i1> %mask, VEC zeroinitializer)
  %m$s = call VEC @llvm.masked.load.OF.p0(ptr %v$s_at, i32 ITEM, <LANES x i1> %mask, VEC zeroinitializer)
  %n0 = call VEC @llvm.fmuladd.OF(VEC %m0, VEC %x0, VEC %ms)
  %n1 = call VEC @llvm.fmuladd.OF(VEC %m1, VEC %x1, VEC %n0)
  %n2 = call VEC @llvm.fmuladd.OF(VEC %m2, VEC %x2, VEC %n1)
  %n3 = call VEC @llvm.fmuladd.OF(VEC %m3, VEC %x3, VEC %n2)
  call void @llvm.masked.store.OF.p0(VEC %n3, ptr %s_at, i32 ITEM, <LANES x i1> %mask)
  br label %added
added:
  %along_more = icmp slt i64 %j1, %c1
  br i1 %along_more, label %along, label %four_done
four_done:
  %i1 = add i64 %i, 1
  %more_fours = icmp slt i64 %i1, %apart
  br i1 %more_fours, label %four, label %ones
ones:
  %left = icmp slt i64 %single, %stop
  br i1 %left, label %one, label %columns_done
one:
  %r = phi i64 [%single, %ones], [%next_r, %one_done]
  %x_at = getelementptr REAL, ptr %vector, i64 %r
  %x = load REAL, ptr %x_at
  %down = mul i64 %r, %row
  %a = getelementptr i8, ptr %matrix, i64 %down
  br label %term
term:
  %k = phi i64 [%c, %one], [%k1, %term]
  %y_at = getelementptr REAL, ptr %sums, i64 %k
  %w_at = getelementptr REAL, ptr %a, i64 %k
  %y = load REAL, ptr %y_at
  %w = load REAL, ptr %w_at
  %y1 = call REAL @llvm.fmuladd.fBITS(REAL %w, REAL %x, REAL %y)
  store REAL %y1, ptr %y_at
  %k1 = add i64 %k, 1
  %terms_more = icmp slt i64 %k1, %c1
  br i1 %terms_more, label %term, label %one_done
one_done:
  %next_r = add i64 %r, 1
  %more_ones = icmp slt i64 %next_r, %stop
  br i1 %more_ones, label %one, label %columns_done
columns_done:
  %more_columns = icmp slt i64 %c1, %columns
  br i1 %more_columns, label %columns_, label %part_done
part_done:
  %more_parts = icmp slt i64 %o1, %hi
  br i1 %more_parts, label %part, label %end
end:
  ret void
}
"""

_FINISH = ADD_UP.replace(
    "FACTS",
    """  %rows = call i64 @fact(ptr %meta, i64 4)
  %columns = add i64 0, 1
  %row = call i64 @fact(ptr %meta, i64 6)
  %column = add i64 0, 0
  %parts = call i64 @fact(ptr %meta, i64 7)
  %room = add i64 0, 9""",
)
