"""Whole kernels as text: what all of them begin with, and what they are given."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import real_of
from ostinato.ops.jit.scalar import Part

from ..jit.lines import c_type
from .schedule import THREADS

# IEEE's arithmetic, as on a CPU: no product becomes part of a sum, and denormal numbers are numbers
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's text, how it is launched, and what it is given behind the addresses of operands and
    results: extents, strides, numbers (all int64), room for partial results."""

    name: str
    text: str
    grid: tuple[int, int]
    facts: tuple[int, ...]
    room: int = 0  # bytes, which are zero when a first kernel begins and when it ends
    then: Kernel | None = None  # what is launched behind it, with the same room
    threads: int = THREADS  # of a block


def known_numbers(body: Graph, known: Mapping[Part, str]) -> list[str]:
    """The numbers that are data, by their bits: known0 has bits0, and so on."""
    found = []
    for (v, _), name in known.items():
        kind, bits = c_type(real_of(body.specs[v].dtype)), f"bits{name[5:]}"
        made = {
            "float": f"__uint_as_float((u32){bits})",
            "double": f"__longlong_as_double({bits})",
        }.get(kind, f"({kind}){bits}")
        found.append(f"const {kind} {name} = {made};")
    return found


def whole(
    prefix: str,
    given: Sequence[str],
    code: Sequence[str],
    declared: Collection[str],
    grid: tuple[int, int],
    facts: tuple[int, ...],
    room: int = 0,
    then: Kernel | None = None,
    threads: int = THREADS,
    blocks: int = 1,
) -> Kernel:
    """A kernel, whose name begins so and tells kernels apart. Each multiprocessor has registers for so many
    `blocks`."""
    parameters, inner = ", ".join(given), "\n".join(f"  {line}" for line in code)
    text, bounds = "\n".join(sorted(declared)), f"{threads}" + f", {blocks}" * (blocks > 1)
    digest = hashlib.blake2b(
        (text + parameters + inner + bounds).encode(), digest_size=8
    ).hexdigest()
    name = f"{prefix}_{digest}"
    head = f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({parameters})'
    full = f"{PREAMBLE}{text}\n{head} {{\n{inner}\n}}\n"
    return Kernel(name, full, grid, facts, room, then, threads)


PREAMBLE = """\
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
typedef unsigned long long u64; typedef signed char s8; typedef short s16; typedef int s32;
typedef long long s64;
template <typename T, int N> struct alignas(sizeof(T) * N) Beside { T at[N]; };
template <typename T, int N> __device__ inline Beside<T, N> taken(const u8* from, bool wide) {
  if (wide) return *(const Beside<T, N>*)from;
  Beside<T, N> found;
  for (int n = 0; n < N; ++n) found.at[n] = ((const T*)from)[n];
  return found;
}
template <typename T, int N> __device__ inline void put(u8* to, const Beside<T, N>& x, bool wide) {
  if (wide) *(Beside<T, N>*)to = x;
  else for (int n = 0; n < N; ++n) ((T*)to)[n] = x.at[n];
}
#ifdef __CUDACC__
__device__ inline float half_to_float(u16 x) {
  float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y;
}
__device__ inline u16 float_to_half(float x) {
  u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return x != x ? (u16)((__float_as_uint(x) >> 16 & 0x8000) | 0x7e00) : y;
}
template <typename T> __device__ inline T from_lane(T x, int far) {
  return __shfl_down_sync(0xffffffffu, x, far);
}
template <typename T> __device__ inline T from_lane_before(T x, int far) {
  return __shfl_up_sync(0xffffffffu, x, far);
}
template <typename T> __device__ inline T from_first_lane(T x) {
  return __shfl_sync(0xffffffffu, x, 0);
}
template <typename T> __device__ inline T from_last_lane(T x) {
  return __shfl_sync(0xffffffffu, x, 31);
}
#endif
"""
