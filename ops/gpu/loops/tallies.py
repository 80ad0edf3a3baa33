"""How often whole numbers occur, and the least and the greatest of them: each in one reading of them."""

from __future__ import annotations

from typing import Any

from ostinato.ops.core.spec import int64
from ostinato.ops.jit.values import cast

from ..jit.lines import CudaLines, memory_type
from . import schedule
from .text import Kernel, whole
from .totals import Total, reduce_block, reduce_warp

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
    kind = memory_type(x.dtype)
    sign = "s" if x.dtype.kind == "i" else "u"
    held = count <= HELD
    text = f"typedef {sign}{kind[1:]} Given; enum {{ THREADS = {THREADS}, AHEAD = {AHEAD} }};"
    code = ["const u8* const p = q0 + blockIdx.y * n * step;"]
    code += ["u64* const counts = (u64*)q1 + blockIdx.y * count;"]
    one = "atomicAdd(&counts[at], 1ull)"
    if held:
        code += [f"__shared__ u32 held[{HELD}];"]
        code += ["for (int k = threadIdx.x; k < count; k += THREADS) held[k] = 0;"]
        code += ["__syncthreads();"]
        one = "atomicAdd(&held[at], 1u)"
    code += [
        "const s64 far = (s64)THREADS * gridDim.x;",
        "for (s64 i = (s64)blockIdx.x * THREADS + threadIdx.x; i < n; i += far * AHEAD) {",
        "  u64 found[AHEAD];",
        "  #pragma unroll",
        "  for (int k = 0; k < AHEAD; ++k)",
        "    found[k] = i + far * k < n ? (u64)*(const Given*)(p + step * (i + far * k)) : ~0ull;",
        "  #pragma unroll",
        "  for (int k = 0; k < AHEAD; ++k) {",
        "    const u64 at = found[k];",
        f"    if (at < (u64)count) {one};",
        "  }",
        "}",
    ]
    if held:
        code += ["__syncthreads();", "for (int k = threadIdx.x; k < count; k += THREADS)"]
        code += ["  if (held[k]) atomicAdd(&counts[k], (u64)held[k]);"]
    blocks = min(-(-n // (THREADS * EACH)), max(1, MOST_BLOCKS // lines))
    given = ["u8* q0", "u8* q1", "s64 n", "s64 step", "s64 count"]
    facts = (n, step, count)
    return whole("tally", given, code, {text}, (blocks, lines), facts, threads=THREADS)


def range_of(x: Any) -> Kernel | None:
    """A kernel that lets two whole numbers, the least and the greatest one seen, include those of `x`."""
    step = step_of(x)
    if step is None or not x.size:
        return None
    least, most = Total("min", int64, "0"), Total("max", int64, "1")
    lines, inner = CudaLines(), CudaLines()
    found = cast(inner.load("q0 + step * i", x.dtype), int64)
    least.add(inner, found)
    most.add(inner, found)
    code = [
        *least.declared(),
        *most.declared(),
        f"const s64 far = (s64){schedule.THREADS} * gridDim.x;",
        f"#pragma unroll {AHEAD}",
        f"for (s64 i = (s64)blockIdx.x * {schedule.THREADS} + threadIdx.x; i < n; i += far) {{",
        *inner.text,
        "}",
        *reduce_warp(lines, [least, most]),
        *reduce_block(lines, [least, most]),
    ]
    code += [
        "if (threadIdx.x == 0) {",
        "  volatile s64* const seen = (volatile s64*)q1;",
        "  if ((s64)tot0 < seen[0]) atomicMin((s64*)q1, (s64)tot0);",
        "  if ((s64)tot1 > seen[1]) atomicMax((s64*)q1 + 1, (s64)tot1);",
        "}",
    ]
    blocks = min(-(-x.size // (schedule.THREADS * AHEAD)), MOST_BLOCKS)
    given = ["u8* q0", "u8* q1", "s64 n", "s64 step"]
    return whole("range", given, code, lines.declared | inner.declared, (blocks, 1), (x.size, step))
