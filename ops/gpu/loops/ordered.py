"""Products of matrices whose sums are made term by term, in order: one thread makes one element, and
rounds each product before it is added, so that bits depend on an element's own row and column only."""

from __future__ import annotations

import math
from functools import lru_cache

from ostinato.ops.jit.stacks import Stack

from .schedule import THREADS
from .text import Kernel, whole

# Integers wrap around, which signed ones of C++ need not.
TYPES = {"float32": "float", "float64": "double", "int32": "u32", "int64": "u64"}


@lru_cache(256)
def ordered_kernel(a: Stack, b: Stack, out: Stack) -> Kernel:
    """The kernel of matrices that lie so, all of one of these types."""
    kind, (rows, columns) = TYPES[out.dtype.name], out.shape[-2:]
    extents, count = out.shape[:-2], math.prod(out.shape)
    code = [
        f"const s64 i = (s64)blockIdx.x * {THREADS} + threadIdx.x;",
        "if (i >= count) return;",
        "s64 rest = i / columns;",
        "const s64 row = rest % rows, column = i % columns;",
        "rest /= rows;",
        f"const {kind}* x = (const {kind}*)a + row * down_a;",
        f"const {kind}* y = (const {kind}*)b + column * along_b;",
        f"{kind}* z = ({kind}*)out + row * down_c + column * along_c;",
    ]
    given = ["u8* a", "u8* b", "u8* out"]
    names = ("count", "rows", "columns", "terms", "down_a", "along_a", "down_b", "along_b")
    given += [f"s64 {name}" for name in (*names, "down_c", "along_c")]
    facts = [count, rows, columns, a.shape[-1]]
    facts += [s for x in (a, b, out) for s in x.strides[-2:]]
    for d in reversed(range(len(extents))):
        code += [f"{p} += rest % e{d} * {p}{d};" for p in "xyz"] + [f"rest /= e{d};"]
        given += [f"s64 {name}{d}" for name in "exyz"]
        facts += [extents[d], *(x.strides[d] for x in (a, b, out))]
    code += [
        f"{kind} total = 0;",
        "#pragma unroll 16",
        "for (s64 k = 0; k < terms; ++k) total += x[k * along_a] * y[k * down_b];",
        "*z = total;",
    ]
    return whole("ordered", given, code, (), (-(-count // THREADS), 1), tuple(facts))
