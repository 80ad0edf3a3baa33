"""Elements of lines by their ranks, digit by digit of their keys, the highest first, and nothing in order.

Each element whose higher digits are those of a wanted one is counted by its next digit; the counts say
in which digit a rank lies, and which it has among these. Counts of each rank of a block's lines are in
shared memory; ranks of the same digits so far share them. A block has a line, or neighbours that lie
across; few lines are shared by blocks, by a launch a digit. Short ones are put in order (sorts.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .line_places import line_places
from .scans import AHEAD
from .schedule import BLOCKS, THREADS, WARP
from .sorts import LineKeys, sorted_lines, way
from .text import Kernel, whole

COUNTERS = 1 << 13  # of a block
DIGITS = (8, 11)  # bits of a digit: the fewest, and the most
SECTOR = 1 << 5  # bytes of memory that are read at once
MAX_RANKS = COUNTERS >> DIGITS[0]


def selected(x: Any, out: Any, ranks: Any) -> Kernel | None:
    """A kernel, or one a digit, of lines along the last axis, the elements of some ranks, and these.
    None: lines are long, and ranks too many for counts of each."""
    keys, count = LineKeys(x.dtype, False, False), out.shape[-1]
    how = way(keys, x.shape[-1])
    if count > MAX_RANKS or x.shape[-1] >> 32 or (how is not None and how.sharing <= WARP):
        return sorted_lines(x, out, x.ndim - 1, False, False, ranks)
    over = line_places((x, out, ranks), x.ndim - 1)
    room = COUNTERS // count
    beside = min(SECTOR // keys.dtype.itemsize, room >> DIGITS[0], 8) if over.is_across(0) else 1
    beside = 1 << beside.bit_length() - 1
    groups = -(-over.lines // beside)
    parts = max(1, min(over.count // (THREADS // beside * AHEAD), BLOCKS // groups))
    bits = min(DIGITS[1], (room // beside).bit_length() - 1) if parts > 1 else DIGITS[0]
    turns = -(-keys.width // bits)
    bits, slots = -(-keys.width // turns), beside * count
    state, more = 16 * (1 + slots), int(parts > 1)
    text = f"""enum {{ THREADS = {THREADS}, AHEAD = {AHEAD}, LINES = {beside}, RANKS = {count} }};
enum {{ SLOTS = {slots}, BITS = {bits}, COUNTS = {1 << bits}, WIDTH = {keys.width}, TURNS = {turns} }};
enum {{ SEVERAL = {more}, STATE = {state} }};"""
    given = [*over.parameters(), "s64 parts", "s64 size", "s64 now", *["u8* room"] * more]
    begins = [*over.begin(0, "q < lines ? q : 0"), *over.begin(1, "own"), *over.begin(2, "own")]
    code = ["u8* const room = 0;"] * (parts == 1)
    for line in _TEXT.splitlines():
        code += begins if line == "// where lines begin" else [line]
    size = groups * (state + (4 * slots << bits)) * more
    made = whole("select", given, code, {f"{text}\n{keys.text()}"}, (groups * parts, 1), (), size)
    facts, found = (*over.facts(), parts, -(-over.count // parts)), None
    for turn in reversed(range(turns if parts > 1 else 1)):
        found = replace(made, facts=(*facts, turn), then=found)
    return found


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
      const Key key = key_of(x[k], 0) >> low;
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
    if (wanted < lines) *(Bits*)(p1 + step1 * (t % RANKS)) = made_of(prefix[t]);
  } else if (t < SLOTS && SEVERAL) {
    state[2 * t] = prefix[t], state[2 * t + 1] = (u64)left[t];
  }
}
"""
