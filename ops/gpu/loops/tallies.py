"""How often whole numbers occur, and the least and the greatest of them: each in one reading of them."""

from __future__ import annotations

from typing import Any

from ..jit.lines import memory_type
from . import schedule
from .text import Kernel, whole

HELD = 8192  # counts that a block has in shared memory
THREADS = 512  # of a block that counts
MOST_BLOCKS = 512
EACH = 16  # numbers of a thread, at the least
AHEAD = 4  # that are read at once
MOST_LINES = 65535  # a grid's second index


def step_of(x: Any) -> int | None:
    """The bytes from one element to the next, in the order of C; None if there is no such number."""
    expected = x.strides[-1] if x.ndim else 0
    step = expected
    for n, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if n != 1 and stride != expected:
            return None
        expected = stride * n if n != 1 else expected
    return int(step)


def tally(x: Any, lines: int, count: int) -> Kernel | None:
    """A kernel that adds to `lines` rows of `count` counts, which begin as zeros, how often each number
    stands in that line of `x`, whose elements follow each other. Others are not counted."""
    step = step_of(x)
    if step is None or not x.size or not count or lines > MOST_LINES:
        return None
    n = x.size // lines
    sign = "s" if x.dtype.kind == "i" else "u"
    text = f"typedef {sign}{memory_type(x.dtype)[1:]} Given; enum {{ HELD = {HELD}, AHEAD = {AHEAD} }};"
    text += f" enum {{ THREADS = {THREADS}, IN_BLOCK = {int(count <= HELD)} }};"
    grid = (min(-(-n // (THREADS * EACH)), max(1, MOST_BLOCKS // lines)), lines)
    given = ["u8* q0", "u8* q1", "s64 n", "s64 step", "s64 count"]
    code, facts = _TALLY.splitlines(), (n, step, count)
    return whole("tally", given, code, {text}, grid, facts, threads=THREADS)


_TALLY = """\
const u8* const p = q0 + blockIdx.y * n * step;
u64* const counts = (u64*)q1 + blockIdx.y * count;
__shared__ u32 held[HELD];
if (IN_BLOCK) for (int k = threadIdx.x; k < count; k += THREADS) held[k] = 0;
__syncthreads();
const s64 far = (s64)THREADS * gridDim.x;
for (s64 i = (s64)blockIdx.x * THREADS + threadIdx.x; i < n; i += far * AHEAD) {
  u64 found[AHEAD];
  #pragma unroll
  for (int k = 0; k < AHEAD; ++k)
    found[k] = i + far * k < n ? (u64)*(const Given*)(p + step * (i + far * k)) : ~0ull;
  #pragma unroll
  for (int k = 0; k < AHEAD; ++k) {
    if (found[k] < (u64)count && IN_BLOCK) atomicAdd(&held[found[k]], 1u);
    else if (found[k] < (u64)count) atomicAdd(&counts[found[k]], 1ull);
  }
}
__syncthreads();
if (IN_BLOCK) for (int k = threadIdx.x; k < count; k += THREADS)
  if (held[k]) atomicAdd(&counts[k], (u64)held[k]);
"""


def range_of(x: Any) -> Kernel | None:
    """A kernel that lets two whole numbers, the least and the greatest one seen, include those of `x`."""
    step = step_of(x)
    if step is None or not x.size:
        return None
    sign = "s" if x.dtype.kind == "i" else "u"
    text = f"typedef {sign}{memory_type(x.dtype)[1:]} Given; enum {{ AHEAD = {AHEAD} }};"
    grid = (min(-(-x.size // (schedule.THREADS * AHEAD)), MOST_BLOCKS), 1)
    given = ["u8* q0", "u8* q1", "s64 n", "s64 step"]
    return whole("range", given, _RANGE.splitlines(), {text}, grid, (x.size, step))


_RANGE = """\
s64 low = *(const Given*)q0, high = low;
const s64 all = (s64)blockDim.x * gridDim.x;
#pragma unroll AHEAD
for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += all) {
  const s64 x = *(const Given*)(q0 + step * i);
  low = x < low ? x : low, high = x > high ? x : high;
}
for (int far = 16; far > 0; far /= 2) {
  const s64 a = from_lane(low, far), b = from_lane(high, far);
  low = a < low ? a : low, high = b > high ? b : high;
}
volatile s64* const seen = (volatile s64*)q1;
if (threadIdx.x % 32 == 0 && low < seen[0]) atomicMin((s64*)q1, low);
if (threadIdx.x % 32 == 0 && high > seen[1]) atomicMax((s64*)q1 + 1, high);
"""
