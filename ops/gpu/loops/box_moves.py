"""Boxes that begin where whole numbers on the GPU say: one kernel reads or writes all of one. It leaves where
they begin, so that somebody can look whether that was inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from ostinato.ops.array.indexing import check_bounds
from ostinato.ops.array.slicing import COMBINES
from ostinato.ops.core.bounds import inside
from ostinato.ops.core.device import Function
from ostinato.ops.core.layout import whole_box
from ostinato.ops.core.registry import Place
from ostinato.ops.core.spec import Shape
from ostinato.ops.jit.scalar import lower
from ostinato.ops.jit.values import Unsupported

from ..jit.lines import CudaLines
from .schedule import BLOCKS, THREADS
from .text import Kernel, whole

Begin = tuple[
    int, int, int, int
]  # an axis, its extent, from where numbers count from behind, the last


def register(gpu: Any) -> None:
    """Let a GPU read and write boxes so."""
    gpu.runs("dynamic_slice", partial(_slice, gpu), placed=lambda at, _: at)
    gpu.runs("dynamic_update_slice", partial(_update, gpu), placed=lambda at, _: at)


def _slice(
    gpu: Any,
    arrays: Sequence[Any],
    threads: int,
    *,
    scratch: Sequence[Any],
    axes: Shape,
    sizes: Shape,
    bounds: Sequence[str],
    at: Place,
) -> Function | None:
    x, *_, out = arrays
    if not gpu.has_own_kernels or not out.size or at.ins[0] != whole_box(at.in_shapes[0]):
        return None
    begins = _begins(x.shape, sizes, axes, bounds)
    launch, seen = gpu.launching(_kernel(x, out, 0, begins, "")), _seen(gpu, axes)

    def run(x: Any, *given: Any) -> None:
        *starts, out = given
        launch(x, out, *starts, seen)
        _look(seen, begins, bounds)

    return run


def _update(
    gpu: Any,
    arrays: Sequence[Any],
    threads: int,
    *,
    scratch: Sequence[Any],
    axes: Shape,
    starts: Shape,
    mode: str,
    bounds: Sequence[str],
    at: Place,
) -> Function | None:
    x, v, *_, out = arrays
    parts = at.ins[0] != whole_box(at.in_shapes[0]) or at.ins[1] != whole_box(at.in_shapes[1])
    if not gpu.has_own_kernels or not v.size or parts:
        return None
    begins = _begins(x.shape, [v.shape[a] for a in axes], axes, bounds)
    first = sum(n * step for n, step in zip(starts, out.strides, strict=True))
    try:
        launch = gpu.launching(_kernel(out, v, first, begins, mode))
    except Unsupported:
        return None
    seen, xp = _seen(gpu, axes), gpu.xp

    def run(x: Any, v: Any, *given: Any) -> None:
        *places, out = given
        if out is not x:
            xp.copyto(out, x)
        launch(out, v, *places, seen)
        _look(seen, begins, bounds)

    return run


def _begins(
    shape: Shape, extents: Sequence[int], axes: Shape, bounds: Sequence[str]
) -> list[Begin]:
    every = zip(axes, extents, bounds, strict=True)
    return [(a, shape[a], *inside(shape[a], n, how)) for a, n, how in every]


def _seen(gpu: Any, axes: Shape) -> Any:
    return gpu.xp.zeros(len(axes), np.int64)


def _look(seen: Any, begins: Sequence[Begin], bounds: Sequence[str]) -> None:
    for k, ((_, extent, _, last), how) in enumerate(zip(begins, bounds, strict=True)):
        if how != "clip":
            check_bounds(seen[k : k + 1], last + 1, extent - last if how == "slice" else 0)


def _kernel(x: Any, box: Any, first: int, begins: Sequence[Begin], mode: str) -> Kernel:
    """From a box to one that begins `first` bytes behind the beginnings; back where there is no mode."""
    ndim, count = len(box.shape), math.prod(box.shape)
    kind = "u32" if count < 1 << 31 else "s64"
    code, facts = ["s64 from = first;"], [first, count]
    given = ["u8* x", "u8* box", *(f"u8* b{k}" for k in range(len(begins))), "u8* seen"]
    given += ["s64 first", "s64 count"]
    for k, (a, n, back, last) in enumerate(begins):
        code.append(f"s64 p{k} = *(const s64*)b{k};")
        code.append(f"p{k} += p{k} < back{k} ? n{k} : 0;")
        code.append("if (blockIdx.x == 0 && threadIdx.x == 0)")
        code.append(f"  ((s64*)seen)[{k}] = p{k} < 0 ? p{k} - last{k} - 1 : p{k};")
        code.append(f"from += s{a} * (p{k} < 0 ? 0 : p{k} > last{k} ? last{k} : p{k});")
        given += [f"s64 n{k}", f"s64 back{k}", f"s64 last{k}"]
        facts += [n, back, last]
    for d in range(ndim):
        given += [f"s64 m{d}", f"s64 s{d}", f"s64 t{d}"]
        facts += [box.shape[d], x.strides[d], box.strides[d]]
    code.append(f"const {kind} far = ({kind}){THREADS} * gridDim.x;")
    head = f"{kind} e = ({kind})blockIdx.x * {THREADS} + threadIdx.x; e < ({kind})count; e += far"
    code += [f"for ({head}) {{", f"{kind} left = e;", "s64 there = from, here = 0;"]
    for d in reversed(range(ndim)):
        code.append(f"const {kind} j{d} = {f'left % ({kind})m{d}' if d else 'left'};")
        code += [f"left /= ({kind})m{d};"] if d else []
        code.append(f"there += s{d} * (s64)j{d}; here += t{d} * (s64)j{d};")
    lines = CudaLines()
    one = lines.load("box + here" if mode else "x + there", box.dtype)
    if mode and mode != "set":
        one = lower(COMBINES[mode], [lines.load("x + there", box.dtype), one], box.dtype)
    lines.store("x + there" if mode else "box + here", one)
    blocks = min(-(-count // THREADS), 8 * BLOCKS)
    return whole("box", given, [*code, *lines.text, "}"], lines.declared, (blocks, 1), tuple(facts))
