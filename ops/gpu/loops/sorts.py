"""Lines in order, each by the threads of one block, which hold it in registers.

Numbers become unsigned keys as they are read: NaN is the largest of all, and of two zeros the negative
one comes first, unless places are asked for, to which zeros are equal. A key that stands for a place
has that place as its low bits, so no two are the same, and equal numbers stay in their order.

The keys of a line are put in order by Batcher's bitonic network, in the form in which all exchanges
go the same way: each merge begins with an exchange with the mirrored place. A thread holds neighbouring
places; exchanges are within a thread, within a warp by shuffles, and else through shared memory. What
is exchanged depends on nothing but extents. Lines that lie across are read and written some
neighbours at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DType, is_inexact

from .line_places import line_places
from .text import Kernel, whole

KEPT = 128  # bytes of keys in a thread's registers
MOST_THREADS = 512  # that share a line
CHUNK = 32  # bytes that a thread has in shared memory at a time
PLACE_BITS = 16
SOME_THREADS, MANY_THREADS = 256, 512


@dataclass(frozen=True, slots=True)
class LineKeys:
    """Unsigned numbers in the order of an array's."""

    dtype: DType
    places: bool  # whether they stand for places
    descending: bool
    place_bits: int = 0  # if not half of a key

    @property
    def width(self) -> int:
        return 8 * self.dtype.itemsize

    @property
    def bits(self) -> int:
        """Bits of a key, with its place."""
        if not self.places:
            return max(32, self.width)
        return 64 if self.place_bits or self.width > PLACE_BITS else 32

    @property
    def shift(self) -> int:
        return self.place_bits or self.bits // 2 if self.places else 0

    def text(self) -> str:
        """Functions from an element's bits to its key and back."""
        bits, real = f"u{self.width}", is_inexact(self.dtype)
        ends = np.array([np.inf, np.nan] if real else [0, 0], self.dtype)
        infinite, nan = ends.view(f"u{self.dtype.itemsize}").tolist()
        nan &= ~(1 << self.width - 1)
        signed, falls = self.dtype.kind == "i", self.descending
        return f"""\
typedef {bits} Bits; typedef u{self.bits} Key; typedef {"s64" if self.places else bits} Made;
enum {{ REAL = {int(real)}, SIGNED = {int(signed)}, FALLS = {int(falls)}, SHIFT = {self.shift} }};
__device__ inline Key key_of(Bits b, Key place) {{
  const Bits sign = (Bits)((Bits)1 << {self.width - 1});
  if (REAL && (Bits)(b & ~sign) > (Bits){infinite}ull) b = (Bits){nan}ull;
  if (REAL && SHIFT && b == sign) b = 0;
  if (REAL) b = (Bits)(b & sign ? ~b : b | sign);
  if (SIGNED) b ^= sign;
  if (FALLS) b = (Bits)~b;
  return SHIFT ? (Key)b << SHIFT | place : (Key)b;
}}
__device__ inline Made made_of(Key x) {{
  if (SHIFT) return (Made)(x & ((Key)1 << SHIFT) - 1);
  const Bits sign = (Bits)((Bits)1 << {self.width - 1});
  Bits b = (Bits)(FALLS ? ~x : x);
  if (REAL) b = (Bits)(b & sign ? b ^ sign : ~b);
  return (Made)(SIGNED ? b ^ sign : b);
}}"""


NETWORK = """\
#ifdef __CUDACC__
template <typename T> __device__ inline T from_lane_across(T x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
#endif
__device__ inline void exchange(Key& a, Key& b) {
  const Key least = a < b ? a : b;
  b = a < b ? b : a;
  a = least;
}
__device__ inline Key kept(Key a, Key other, bool lower) { return (other < a) == lower ? other : a; }
__device__ inline void sort_inside(Key (&x)[EACH]) {
  #pragma unroll
  for (int k = 2; k <= EACH; k *= 2) {
    #pragma unroll
    for (int r = 0; r < EACH; ++r) if (!(r & k / 2)) exchange(x[r], x[r ^ (k - 1)]);
    #pragma unroll
    for (int far = k / 4; far > 0; far /= 2) {
      #pragma unroll
      for (int r = 0; r < EACH; ++r) if (!(r & far)) exchange(x[r], x[r | far]);
    }
  }
}
"""
TOGETHER = """\
// with the thread so far away; mirrored: with its registers in the other order
template <bool MIRRORED>
__device__ inline void exchange_threads(Key (&x)[EACH], int mask, bool lower, Key* held) {
  const int t = threadIdx.x;
  if (mask < 32) {
    #pragma unroll
    for (int r = 0; r < EACH / 2; ++r) {
      Key& a = x[r]; Key& b = x[EACH - 1 - r];
      const Key c = from_lane_across(MIRRORED ? b : a, mask), d = from_lane_across(MIRRORED ? a : b, mask);
      a = kept(a, c, lower); b = kept(b, d, lower);
    }
  } else {
    #pragma unroll
    for (int first = 0; first < EACH / 2; first += CHUNK / 2) {
      __syncthreads();
      #pragma unroll
      for (int k = 0; k < CHUNK / 2; ++k) {
        held[2 * k * THREADS + t] = x[first + k];
        held[(2 * k + 1) * THREADS + t] = x[EACH - 1 - first - k];
      }
      __syncthreads();
      #pragma unroll
      for (int k = 0; k < CHUNK / 2; ++k) {
        Key& a = x[first + k]; Key& b = x[EACH - 1 - first - k];
        a = kept(a, held[(2 * k + MIRRORED) * THREADS + (t ^ mask)], lower);
        b = kept(b, held[(2 * k + 1 - MIRRORED) * THREADS + (t ^ mask)], lower);
      }
    }
  }
}
__device__ inline void sort_together(Key (&x)[EACH], int m, Key* held) {
  #pragma unroll 1
  for (int k = 2; k <= SHARING; k *= 2) {
    exchange_threads<true>(x, k - 1, !(m & k / 2), held);
    #pragma unroll 1
    for (int far = k / 4; far > 0; far /= 2) exchange_threads<false>(x, far, !(m & far), held);
    #pragma unroll
    for (int far = EACH / 2; far > 0; far /= 2) {
      #pragma unroll
      for (int r = 0; r < EACH; ++r) if (!(r & far)) exchange(x[r], x[r | far]);
    }
  }
}
"""


@dataclass(frozen=True, slots=True)
class Way:
    """How a block's threads share lines: by powers of two."""

    each: int  # keys of a thread
    sharing: int  # threads of a line
    threads: int
    chunk: int  # keys of a thread in shared memory

    @property
    def abreast(self) -> int:
        return self.threads // self.sharing


def way(keys: LineKeys, count: int) -> Way | None:
    """Choose for lines of so many elements; None: they are too long."""
    size, padded = keys.bits // 8, max(2, 1 << (count - 1).bit_length())
    each = min(KEPT // size, padded)
    sharing = padded // each
    if sharing > MOST_THREADS:
        return None
    threads = MANY_THREADS if sharing > 32 else SOME_THREADS
    return Way(each, sharing, threads, min(CHUNK // size, each))


def sorted_lines(
    x: Any, out: Any, axis: int, descending: bool = False, places: bool = False, *ranks: Any
) -> Kernel | None:
    """A kernel of an array and its elements in order, or the first places of these, as many as the
    result has room for, or the elements of some ranks, which are an array of the result's shape.
    None: lines are too long, or none of what there are keys of."""
    keys = LineKeys(x.dtype, places, descending)
    how = way(keys, x.shape[axis]) if x.size and out.size else None
    if how is None or x.dtype.kind == "c" or (places and keys.width > 32):
        return None
    over = line_places((x, out, *ranks), axis)
    across = [over.is_across(k) and how.abreast > 1 and how.sharing > 1 for k in (0, 1)]
    code = list[str]()
    for line in (_READS + (_PICKS if ranks else _WRITES)).splitlines():
        begins = "// line of array" in line
        code += over.begin(int(line[-1]), "q < lines ? q : 0") if begins else [line]
    words = {"EACH": how.each, "SHARING": how.sharing, "THREADS": how.threads, "CHUNK": how.chunk}
    words |= {"LINES": how.abreast, "ROW": how.threads + how.abreast}
    words |= {"READS_ACROSS": int(across[0]), "WRITES_ACROSS": int(across[1] and not ranks)}
    text = "\n".join(f"enum {{ {name} = {n} }};" for name, n in words.items())
    text += f"\n{keys.text()}\n{NETWORK}{TOGETHER}"
    grid = (-(-over.lines // how.abreast), 1)
    given, facts = [*over.parameters(), "s64 count"], (*over.facts(), out.shape[axis])
    return whole("sort", given, code, {text}, grid, facts, threads=how.threads)


# of ROW keys in shared memory, one register of all threads, a line's are apart from those of the next
_READS = """\
const int t = threadIdx.x;
const s64 before = (s64)blockIdx.x * LINES;
__shared__ Key held[CHUNK * ROW];
Key x[EACH];
{
  const int line = READS_ACROSS ? t % LINES : t / SHARING;
  const int m = READS_ACROSS ? t / LINES : t % SHARING;
  const s64 q = before + line;
  // line of array 0
  #pragma unroll
  for (int first = 0; first < EACH; first += CHUNK) {
    #pragma unroll
    for (int r = first; r < first + CHUNK; ++r) {
      const s64 i = r * SHARING + m;
      x[r] = q < lines && i < n ? key_of(*(const Bits*)(p0 + step0 * i), i) : ~(Key)0;
    }
    if (!READS_ACROSS) continue;
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < CHUNK; ++r) held[r * ROW + line * (SHARING + 1) + m] = x[first + r];
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < CHUNK; ++r) x[first + r] = held[r * ROW + t + t / SHARING];
  }
}
sort_inside(x);
if (SHARING > 1) sort_together(x, t % SHARING, held);
const int line = WRITES_ACROSS ? t % LINES : t / SHARING;
const int m = WRITES_ACROSS ? t / LINES : t % SHARING;
const s64 q = before + line;
// line of array 1
"""
# neighbouring threads write neighbours: of a line, or of neighbouring lines
_WRITES = """\
#pragma unroll
for (int first = 0; first < EACH; first += CHUNK) {
  if (SHARING > 1) __syncthreads();
  #pragma unroll
  for (int r = 0; r < CHUNK && SHARING > 1; ++r) held[r * ROW + t + t / SHARING] = x[first + r];
  if (SHARING > 1) __syncthreads();
  #pragma unroll
  for (int k = 0; k < CHUNK; ++k) {
    const int r = WRITES_ACROSS ? k : (k * SHARING + m) % CHUNK;
    const int of = WRITES_ACROSS ? m : (k * SHARING + m) / CHUNK;
    const s64 i = of * EACH + first + r;
    const Key key = SHARING > 1 ? held[r * ROW + line * (SHARING + 1) + of] : x[first + k];
    if (q < lines && i < count) *(Made*)(p1 + step1 * i) = made_of(key);
  }
}
"""
_PICKS = """\
// line of array 2
for (s64 k = 0; k < count; ++k) {
  const s64 own = *(const s64*)(p2 + step2 * k) - m * EACH;
  #pragma unroll
  for (int r = 0; r < EACH; ++r)
    if (q < lines && r == own) *(Made*)(p1 + step1 * k) = made_of(x[r]);
}
"""


def keys_of_lines(
    x: Any, out: Any, axis: int, descending: bool
) -> tuple[Kernel, Kernel, np.dtype[Any]]:
    """Kernels from an array to the keys of its lines, line after line, and back to where these go;
    and the keys' dtype. For lines that are too long for a block."""
    keys = LineKeys(x.dtype, False, descending)

    def kernel(array: Any, is_back: bool) -> Kernel:
        over = line_places((array,), axis)
        pointer, *numbers = over.parameters()
        given = ["u8* keys", pointer] if is_back else [pointer, "u8* keys"]
        code = [f"const s64 g = (s64)blockIdx.x * {SOME_THREADS} + threadIdx.x;"]
        code += ["if (g >= n * lines) return;", *over.begin(0, "g / n")]
        place, key = "*(Bits*)(p0 + step0 * (g % n))", "((Key*)keys)[g]"
        code.append(f"{place} = made_of({key});" if is_back else f"{key} = key_of({place}, 0);")
        grid = (-(-array.size // SOME_THREADS), 1)
        return whole("keys", [*given, *numbers], code, {keys.text()}, grid, over.facts())

    return kernel(x, False), kernel(out, True), np.dtype(f"u{keys.bits // 8}")
