"""Elements of lines by their ranks, digit by digit of their keys, the highest first, and nothing in order.

Each element whose higher digits are those of a wanted one is counted by its next digit; the counts say
in which digit a rank lies, and which it has among these. Counts of each rank of a block's lines are in
shared memory; ranks of the same digits so far share them. A block has a line, or neighbours that lie
across; few lines are shared by blocks, by a launch a digit. Short ones are put in order (sorts.py).

The first ones of a line in order, and their places: keys have these as their low bits, so no two are the
same. The last wanted one is found as above; all that are not behind it are collected, in whatever order,
and these few are put in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from ostinato.ops.core.spec import int64, strided_like

from .line_places import line_places
from .scans import AHEAD
from .schedule import BLOCKS, THREADS, WARP
from .sorts import LineKeys, sorted_lines, way
from .text import Kernel, whole

COUNTERS = 1 << 13  # of a block
DIGITS = (8, 11)  # bits of a digit: the fewest, and the most
SECTOR = 1 << 5  # bytes of memory that are read at once
MAX_RANKS = COUNTERS >> DIGITS[0]


def selected(x: Any, out: Any, ranks: Any, keys: LineKeys | None = None) -> Kernel | None:
    """A kernel, or one a digit, of lines along the last axis, the elements of some ranks, and these; or
    their `keys`. None: lines are long, and ranks too many for counts of each."""
    found_of = "return made_of(x)" if keys is None else "return x"
    named = "Bits" if keys is None else "Key"
    how = way(LineKeys(x.dtype, False, False), x.shape[-1]) if keys is None else None
    keys, count = keys or LineKeys(x.dtype, False, False), out.shape[-1]
    if count > MAX_RANKS or x.shape[-1] >> 32 or (how is not None and how.sharing <= WARP):
        return sorted_lines(x, out, x.ndim - 1, False, False, ranks)
    over = line_places((x, out, ranks), x.ndim - 1)
    room = COUNTERS // count
    beside = min(SECTOR // keys.dtype.itemsize, room >> DIGITS[0], 8) if over.is_across(0) else 1
    beside = 1 << beside.bit_length() - 1
    groups = -(-over.lines // beside)
    parts = max(1, min(over.count // (THREADS // beside * AHEAD), BLOCKS // groups))
    bits = min(DIGITS[1], (room // beside).bit_length() - 1) if parts > 1 else DIGITS[0]
    width = keys.width + keys.shift
    turns = -(-width // bits)
    bits, slots = -(-width // turns), beside * count
    state, more = 16 * (1 + slots), int(parts > 1)
    text = f"""enum {{ THREADS = {THREADS}, AHEAD = {AHEAD}, LINES = {beside}, RANKS = {count} }};
enum {{ SLOTS = {slots}, BITS = {bits}, COUNTS = {1 << bits}, WIDTH = {width}, TURNS = {turns} }};
enum {{ SEVERAL = {more}, STATE = {state} }};
{keys.text()}
__device__ inline {named} found_of(Key x) {{ {found_of}; }}"""
    given = [*over.parameters(), "s64 parts", "s64 size", "s64 now", *["u8* room"] * more]
    begins = [*over.begin(0, "q < lines ? q : 0"), *over.begin(1, "own"), *over.begin(2, "own")]
    code = ["u8* const room = 0;"] * (parts == 1)
    for line in _TEXT.splitlines():
        code += begins if line == "// where lines begin" else [line]
    size = groups * (state + (4 * slots << bits)) * more
    made = whole("select", given, code, {text}, (groups * parts, 1), (), size)
    facts, found = (*over.facts(), parts, -(-over.count // parts)), None
    for turn in reversed(range(turns if parts > 1 else 1)):
        found = replace(made, facts=(*facts, turn), then=found)
    return found


def first_places(x: Any, count: int, descending: bool) -> tuple[Kernel, Kernel, Kernel, int] | None:
    """Kernels of lines along the last axis, of which so many come first: (lines, the last one's key, its
    rank), (lines, that key, numbers that are 0, keys), and (keys, in order); and how many of their bits are
    places. None where more is to be put in order than is worth it, or lines lie across."""
    n, lines = x.shape[-1], x.size // max(1, x.shape[-1])
    bits, over = max(1, (n - 1).bit_length()), line_places((x,), x.ndim - 1)
    keys = LineKeys(x.dtype, True, descending, bits)
    few = strided_like((lines, count), np.dtype("u8"))
    ordered = sorted_lines(few, few, 1, False)
    if not 0 < 8 * count <= n or keys.width + bits > 64 or over.is_across(0) or ordered is None:
        return None
    one = strided_like((*x.shape[:-1], 1), np.dtype("u8"))
    last = selected(x, one, strided_like(one.shape, int64, [0] * x.ndim), keys)
    parts = max(1, min(n // (THREADS * AHEAD), BLOCKS // lines))
    pointer, *numbers = over.parameters()
    given = [pointer, "u8* last", "u8* seen", "u8* kept", *numbers, "s64 parts", "s64 size"]
    code = ["const s64 q = blockIdx.x / parts, part = blockIdx.x % parts;", *over.begin(0, "q")]
    code += _COLLECTS.splitlines()
    facts = (*over.facts(), parts, -(-n // parts), count)
    declared = {f"enum {{ THREADS = {THREADS}, AHEAD = {AHEAD} }};\n{keys.text()}"}
    collect = whole("first", [*given, "s64 count"], code, declared, (lines * parts, 1), facts)
    return (last, collect, ordered, bits) if last is not None else None


_COLLECTS = """\
const Key end = ((const Key*)last)[q];
const s64 stop = (part + 1) * size < n ? (part + 1) * size : n;
for (s64 i = part * size + threadIdx.x; i < stop; i += THREADS * AHEAD) {
  Bits x[AHEAD];
  #pragma unroll
  for (int k = 0; k < AHEAD; ++k)
    x[k] = i + k * THREADS < stop ? *(const Bits*)(p0 + step0 * (i + k * THREADS)) : 0;
  #pragma unroll
  for (int k = 0; k < AHEAD; ++k) {
    const Key key = key_of(x[k], i + k * THREADS);
    if (i + k * THREADS < stop && key <= end)
      ((Key*)kept)[q * count + atomicAdd((u32*)seen + q, 1u)] = key;
  }
}
"""
_TEXT = """\
const int t = threadIdx.x, line = t % LINES, row = t / LINES, ROWS = THREADS / LINES;
const s64 group = blockIdx.x / parts, part = blockIdx.x % parts, q = group * LINES + line;
__shared__ u32 held[SLOTS * COUNTS]; __shared__ Key prefix[SLOTS]; __shared__ s64 left[SLOTS];
__shared__ int first[SLOTS]; __shared__ bool is_last;
u8* const mine = room + group * (STATE + 4 * SLOTS * COUNTS);
u64* const state = (u64*)mine + 2; u32* const counts = (u32*)(mine + STATE);
const s64 wanted = group * LINES + t / RANKS, own = wanted < lines ? wanted : 0;
// where lines begin
const s64 start = part * size, stop = q >= lines ? 0 : start + size < n ? start + size : n;
for (int turn = (int)now; turn < (SEVERAL ? (int)now + 1 : TURNS); ++turn) {
  const int above = WIDTH - BITS * turn, bits = above < BITS ? above : BITS, low = above - bits;
  for (int k = t; k < SLOTS * COUNTS; k += THREADS) held[k] = 0;
  if (t < SLOTS && (SEVERAL || turn == 0)) {
    prefix[t] = turn ? (Key)state[2 * t] : 0;
    left[t] = turn ? (s64)state[2 * t + 1] : *(const s64*)(p2 + step2 * (t % RANKS));
  }
  __syncthreads();
  if (t < SLOTS) for (first[t] = t / RANKS * RANKS; prefix[first[t]] != prefix[t];) ++first[t];
  __syncthreads();
  Key known[RANKS];
  bool counts_own[RANKS];
  #pragma unroll
  for (int r = 0, slot = line * RANKS; r < RANKS; ++r, ++slot)
    known[r] = prefix[slot], counts_own[r] = first[slot] == slot;
  for (s64 i = start + row; i < stop; i += ROWS * AHEAD) {
    Bits x[AHEAD];
    #pragma unroll
    for (int k = 0; k < AHEAD; ++k)
      x[k] = i + k * ROWS < stop ? *(const Bits*)(p0 + step0 * (i + k * ROWS)) : 0;
    #pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const Key key = key_of(x[k], i + k * ROWS) >> low;
      #pragma unroll
      for (int r = 0; r < RANKS; ++r)
        if (i + k * ROWS < stop && counts_own[r] && key >> bits == known[r])
          atomicAdd(&held[(line * RANKS + r) * COUNTS + (int)(key & ((1u << bits) - 1))], 1u);
    }
  }
  __syncthreads();
  if (SEVERAL) {
    for (int k = t; k < SLOTS * COUNTS; k += THREADS) if (held[k]) atomicAdd(&counts[k], held[k]);
    __threadfence();
    __syncthreads();
    if (t == 0) is_last = atomicAdd((u32*)mine, 1u) + 1 == parts;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int k = t; k < SLOTS * COUNTS; k += THREADS)
      held[k] = *(volatile u32*)&counts[k], counts[k] = 0;
    if (t == 0) *(u32*)mine = 0;
    __syncthreads();
  }
  for (int slot = t / 32; slot < SLOTS; slot += THREADS / 32) {
    const int lane = t % 32, EACH = COUNTS / 32;
    const u32* const of = held + first[slot] * COUNTS;
    const s64 rank = left[slot];
    u32 sum = 0;
    for (int k = 0; k < EACH; ++k) sum += of[lane * EACH + (k + lane) % EACH];
    u32 before = from_lane_before(sum, 1) * (lane > 0);
    for (int far = 1; far < 32; far *= 2) before += from_lane_before(before, far) * (lane >= far);
    s64 rest = rank - before;
    if (rest < 0 || rest >= sum) continue;
    int digit = lane * EACH;
    for (; rest >= of[digit]; ++digit) rest -= of[digit];
    prefix[slot] = prefix[slot] << bits | (Key)digit, left[slot] = rest;
  }
  __syncthreads();
  if (t < SLOTS && turn == TURNS - 1) {
    if (wanted < lines) *(decltype(found_of(0))*)(p1 + step1 * (t % RANKS)) = found_of(prefix[t]);
  } else if (t < SLOTS && SEVERAL) {
    state[2 * t] = prefix[t], state[2 * t + 1] = (u64)left[t];
  }
}
"""
