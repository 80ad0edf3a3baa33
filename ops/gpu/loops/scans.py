"""Running sums, products and extremes of lines: what is before a part of a line is combined first.

    totals    of each part of each line, by the same steps as below, if lines have several parts
    scan      a part begins with the totals of those before it, in order

Where elements of a line are neighbours, or lines are few, a block or a warp has a part: each thread has
some neighbours, a warp puts together what its lanes have, the block its warps. Where neighbours
belong to different lines, and these are many, a thread has a part. How many parts there are, and so
which rounding there is, depends on extents only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ostinato.ops.core.spec import DType, float32
from ostinato.ops.jit.combining import carried, start_of
from ostinato.ops.jit.values import HALVES, Unsupported, Value, cast

from ..jit.lines import CudaLines, c_type, literal, memory_type
from .line_places import LinePlaces, line_places
from .schedule import THREADS, WARP
from .text import Kernel, whole

ROWS = 4  # vectors that a thread has at once
WIDE = 16  # bytes of a vector
PARTS = 2048  # that keep a GPU busy, each a block
WALKS = 1 << 17  # threads that do so
MOST_PARTS = 512  # of a line whose parts are threads'
LEAST_WALK = 16  # elements of such a part
AHEAD = 8  # of these that are read at once
LINES_ABREAST = 32  # lines that are neighbours, from which a thread has a part


@dataclass(frozen=True, slots=True)
class _Parts:
    """How lines are divided."""

    walks: bool  # whether a thread has a part
    warps: int  # that have a part otherwise
    each: int  # neighbours of a thread
    parts: int
    size: int  # elements of a part

    @property
    def tile(self) -> int:
        return WARP * self.warps * self.each * ROWS


def _divided(over: LinePlaces, given: DType, made: DType) -> _Parts:
    n, lines = over.count, over.lines
    each = WIDE // max(4, given.itemsize, made.itemsize)
    if over.is_across(0) and over.is_across(1) and over.extents[-1] >= LINES_ABREAST:
        parts = min(-(-n // LEAST_WALK), max(1, WALKS // lines), MOST_PARTS)
        size = -(-n // parts)
        return _Parts(True, 0, each, -(-n // size), size)
    warps = 1 if n <= WARP * each * ROWS else THREADS // WARP
    tile = WARP * warps * each * ROWS
    tiles = -(-n // tile)
    parts = min(tiles, max(1, PARTS // lines))
    size = tile * -(-tiles // parts)
    return _Parts(False, warps, each, -(-n // size), size)


def running(x: Any, out: Any, axis: int, kind: str) -> Kernel | None:
    """A kernel, or two, of an array and what a monoid makes of all elements up to each."""
    if not x.size or "c" in (x.dtype.kind, out.dtype.kind):
        return None
    over = line_places((x, out), axis)
    parts = _divided(over, x.dtype, out.dtype)
    try:
        text = _functions(x.dtype, out.dtype, kind)
    except Unsupported:
        return None
    words = {"EACH": parts.each, "ROWS": ROWS, "WARPS": parts.warps, "TILE": parts.tile}
    words |= {"AHEAD": AHEAD}
    text = "\n".join(f"enum {{ {word} = {n} }};" for word, n in words.items()) + f"\n{text}"
    code = (_OF_THREADS if parts.walks else _OF_BLOCKS).splitlines()
    code = ["u8* const room = 0;"] * (parts.parts == 1) + code
    given = [*over.parameters(), "s64 size", "s64 parts", *["u8* room"] * (parts.parts > 1)]
    begins = [*over.begin(0, "q"), *over.begin(1, "q")]
    units = over.lines * parts.parts
    shared = THREADS if parts.walks else THREADS // WARP // parts.warps
    grid = (-(-units // shared), 1)
    facts = (*over.facts(), parts.size, parts.parts)
    room = units * 8 if parts.parts > 1 else 0

    def kernel(prefix: str, is_total: bool) -> Kernel:
        flags = f"enum {{ TOTALS = {int(is_total)}, SEVERAL = {int(parts.parts > 1)} }};"
        all_of_it = [x for line in code for x in (begins if line == _BEGIN else [line])]
        return whole(prefix, given, all_of_it, {f"{flags}\n{text}"}, grid, facts, room)

    scan = kernel("scan", False)
    return scan if parts.parts == 1 else replace(kernel("totals", True), then=scan)


def _functions(given: DType, made: DType, kind: str) -> str:
    """How an element is read and stored, and two are combined; what changes nothing."""
    lines, m, stored = CudaLines(), memory_type(given), made
    made = float32 if made in HALVES else made  # of which extremes are the same
    element = Value(lines, "(v != 0)" if given.kind == "b" else "v", given)
    read = cast(element, made)
    code = [
        f"typedef {m} Given; typedef {c_type(made)} Made; typedef {memory_type(stored)} Stored;"
    ]
    code += ["__device__ inline Made read_of(const Given v) {", *lines.text]
    code += [f"return {read.name};", "}"]
    both = CudaLines()
    found = carried(kind, Value(both, "a", made), Value(both, "b", made))
    code += ["__device__ inline Made combined(const Made a, const Made b) {", *both.text]
    code += [f"return {found.name};", "}"]
    back = CudaLines()
    kept = cast(Value(back, "x", made), stored)
    code += ["__device__ inline Stored stored_of(const Made x) {", *back.text]
    code += [f"return (Stored){kept.name};", "}"]
    start = start_of(kind, made)
    if kind == "sum" and made.kind == "f":
        start = -0.0  # which leaves the sign of zeros as it is
    code.append(f"#define START (({c_type(made)}){literal(start, made)})")
    return "\n".join([*sorted(lines.declared | both.declared | back.declared), *code])


_BEGIN = "// where the line begins"
_OF_THREADS = f"""\
const s64 unit = (s64)blockIdx.x * blockDim.x + threadIdx.x, q = unit % lines, part = unit / lines;
if (part >= parts) return;
{_BEGIN}
const s64 begin = part * size, end = begin + size < n ? begin + size : n;
Made so_far = START;
const Made* const totals = (const Made*)room + q;
if (SEVERAL && !TOTALS) for (s64 k = 0; k < part; ++k) so_far = combined(so_far, totals[k * lines]);
s64 i = begin;
for (; i + AHEAD <= end; i += AHEAD) {{
  Made x[AHEAD];
  #pragma unroll
  for (int k = 0; k < AHEAD; ++k) x[k] = read_of(*(const Given*)(p0 + step0 * (i + k)));
  #pragma unroll
  for (int k = 0; k < AHEAD; ++k) {{
    so_far = combined(so_far, x[k]);
    if (!TOTALS) *(Stored*)(p1 + step1 * (i + k)) = stored_of(so_far);
  }}
}}
for (; i < end; ++i) {{
  so_far = combined(so_far, read_of(*(const Given*)(p0 + step0 * i)));
  if (!TOTALS) *(Stored*)(p1 + step1 * i) = stored_of(so_far);
}}
if (TOTALS) ((Made*)room)[part * lines + q] = so_far;
"""

# neighbouring parts are of neighbouring lines, which may have elements beside each other
_OF_BLOCKS = f"""\
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS;
const s64 unit = WARPS == 1 ? (s64)blockIdx.x * 8 + threadIdx.x / 32 : (s64)blockIdx.x;
const s64 q = unit % lines, part = unit / lines;
if (part >= parts) return;
{_BEGIN}
__shared__ Made ends[WARPS];
const s64 begin = part * size, end = begin + size < n ? begin + size : n;
const bool reads = step0 == sizeof(Given) && (u64)p0 % sizeof(Beside<Given, EACH>) == 0;
const bool writes = step1 == sizeof(Stored) && (u64)p1 % sizeof(Beside<Stored, EACH>) == 0;
Made so_far = START;
if (SEVERAL && !TOTALS) {{
  const s64 share = (part + blockDim.x - 1) / blockDim.x, first = share * threadIdx.x;
  Made sum = START;
  const Made* const totals = (const Made*)room + q;
  for (s64 k = first; k < first + share && k < part; ++k) sum = combined(sum, totals[k * lines]);
  #pragma unroll
  for (int far = 1; far < 32; far *= 2) {{
    const Made other = from_lane_before(sum, far);
    if (lane >= far) sum = combined(other, sum);
  }}
  if (lane == 31) ends[warp] = sum;
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) so_far = combined(so_far, ends[w]);
  __syncthreads();
}}
for (s64 tile = begin; tile < end; tile += TILE) {{
  const s64 at = tile + warp * (32 * EACH * ROWS) + lane * EACH;
  Made x[ROWS][EACH];
  const bool is_whole = tile + TILE <= end;
  if (reads && is_whole) {{
    Beside<Given, EACH> v[ROWS];
    #pragma unroll
    for (int k = 0; k < ROWS; ++k)
      v[k] = *(const Beside<Given, EACH>*)(p0 + (at + k * 32 * EACH) * sizeof(Given));
    #pragma unroll
    for (int k = 0; k < ROWS; ++k) {{
      #pragma unroll
      for (int j = 0; j < EACH; ++j) x[k][j] = read_of(v[k].at[j]);
    }}
  }} else {{
    #pragma unroll
    for (int k = 0; k < ROWS; ++k) {{
      #pragma unroll
      for (int j = 0; j < EACH; ++j) {{
        const s64 i = at + k * 32 * EACH + j;
        x[k][j] = i < end ? read_of(*(const Given*)(p0 + step0 * i)) : START;
      }}
    }}
  }}
  Made row = START;
  #pragma unroll
  for (int k = 0; k < ROWS; ++k) {{
    #pragma unroll
    for (int j = 1; j < EACH; ++j) x[k][j] = combined(x[k][j - 1], x[k][j]);
    Made sum = x[k][EACH - 1];
    #pragma unroll
    for (int far = 1; far < 32; far *= 2) {{
      const Made other = from_lane_before(sum, far);
      if (lane >= far) sum = combined(other, sum);
    }}
    const Made left = from_lane_before(sum, 1), before = lane ? combined(row, left) : row;
    #pragma unroll
    for (int j = 0; j < EACH; ++j) x[k][j] = combined(before, x[k][j]);
    row = combined(row, from_last_lane(sum));
  }}
  Made before = so_far;
  if (WARPS > 1) {{
    if (lane == 0) ends[warp] = row;
    __syncthreads();
    #pragma unroll
    for (int w = 0; w < WARPS; ++w) {{
      if (w == warp) before = so_far;
      so_far = combined(so_far, ends[w]);
    }}
    __syncthreads();
  }} else so_far = combined(so_far, row);
  if (!TOTALS) {{
    #pragma unroll
    for (int k = 0; k < ROWS; ++k) {{
      const s64 i = at + k * 32 * EACH;
      Beside<Stored, EACH> v;
      #pragma unroll
      for (int j = 0; j < EACH; ++j) v.at[j] = stored_of(combined(before, x[k][j]));
      if (writes && is_whole) {{
        *(Beside<Stored, EACH>*)(p1 + i * sizeof(Stored)) = v;
      }} else {{
        #pragma unroll
        for (int j = 0; j < EACH; ++j) if (i + j < end) *(Stored*)(p1 + step1 * (i + j)) = v.at[j];
      }}
    }}
  }}
}}
if (TOTALS && threadIdx.x == 0) ((Made*)room)[part * lines + q] = so_far;
"""
