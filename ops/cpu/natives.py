"""What a CPU does better than the ops' own kernels: the list, by operation, and what stands between an
operation's form and the kernels'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from ostinato.ops.contraction import Folds
from ostinato.ops.core.device import Device, Keeping
from ostinato.ops.core.registry import Params, Scratch, Specs
from ostinato.ops.core.spec import Shape, Spec, lying
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.linalg.factorizations import SINGULAR

from .fused import stages, stages_room, stages_ways
from .jit.llvm import why_not
from .kernels.distances import pair_distances
from .kernels.gather_scatter import adding_along, inside, putting, taking, taking_along
from .kernels.gemm import QUICK, any_product, product, ways
from .kernels.gemm_epilogue import epilogue_native, epilogue_room, epilogue_ways
from .kernels.scan import running_kernel
from .kernels.search import searching_kernel
from .kernels.sort.order import sort_function, sort_room
from .kernels.syrk import gram_native, gram_room, gram_ways
from .libraries import lapack

Made = Callable[..., None] | Keeping | None
Arrays = Sequence[Any]
COMPILED = LIMITS.compiled


# -- products ------------------------------------------------------------------------------
def _product(arrays: Arrays, threads: int, *, way: str = "", stays: bool = False, **_: Any) -> Made:
    a, b, out = arrays
    return any_product(a, b, out, threads, way, stays)


def _product_ways(ins: Specs, outs: Specs, p: Params, threads: int) -> Sequence[str]:
    a, b, out = (lying(s.shape, s.dtype) for s in (*ins, *outs))
    return list(ways(a, b, out, threads, p.get("stays", False)))


def _einsum(arrays: Arrays, threads: int, *, text: str, way: str = "", **_: Any) -> Made:
    """A product of matrices, which are copies only where they must be."""
    folds = Folds(text, *arrays[:2])
    views, like = [], []
    for k, x in enumerate(arrays):
        try:
            like.append(np.reshape(folds.ordered(k, x), folds.shape(k), copy=False))
            views.append(True)
        except ValueError:
            like.append(lying(folds.shape(k), x.dtype))
            views.append(False)
    run = product(like[0], like[1], like[2], threads, way)
    if run is None:
        return None

    def einsum(a: Any, b: Any, out: Any) -> None:
        left, right = folds.matrices(0, a), folds.matrices(1, b)
        made = folds.matrices(2, out) if views[2] else np.empty(folds.shape(2), out.dtype)
        run(left, right, made)
        if not views[2]:
            np.copyto(out, folds.unfold(made))

    return einsum


def _einsum_ways(ins: Specs, outs: Specs, p: Params, threads: int) -> Sequence[str]:
    folds = Folds(p["text"], *(lying(s.shape, s.dtype) for s in ins))
    a, b, out = (lying(folds.shape(k), s.dtype) for k, s in enumerate((*ins, *outs)))
    return list(ways(a, b, out, threads))


def _solve(arrays: Arrays, threads: int, **_: Any) -> Made:
    """For one small matrix, by LAPACK without NumPy around it; other Python threads wait meanwhile."""
    a, b, _out = arrays
    plain = all(x.ndim == 2 and x.size and x.flags.c_contiguous for x in arrays)
    if not plain or a.dtype.kind != "f" or a.size * (a.shape[0] + b.shape[1]) > QUICK:
        return None
    if why_not() or not lapack.found():
        return None
    return lapack.solving(b.shape[0], b.shape[1], a.dtype, SINGULAR)


# -- along an axis -------------------------------------------------------------------------
def _running(
    multiplies: bool, arrays: Arrays, threads: int, *, axis: int, **_: Any
) -> Callable[..., None] | None:
    x, out = arrays
    made: Callable[..., None] | None = running_kernel(x, out, axis, multiplies, threads)
    return made


def _sort(
    places: bool,
    arrays: Arrays,
    threads: int,
    *,
    axis: int,
    descending: bool,
    scratch: Arrays,
    **_: Any,
) -> Made:
    x, out = arrays
    return sort_function(x, out, threads, axis, descending, places, scratch)


def _sort_room(
    places: bool,
    ins: Sequence[Shape],
    outs: Sequence[Shape],
    specs: Sequence[Spec],
    *,
    axis: int,
    **_: Any,
) -> Sequence[Scratch]:
    return sort_room(ins[0], specs[0].dtype, axis, outs[0][axis], places)


def _search(arrays: Arrays, threads: int, *, side: str, **_: Any) -> Made:
    x, v, out = arrays
    made: Made = searching_kernel(x, v, out, side == "right", threads)
    return made


# -- the list ------------------------------------------------------------------------------
def register(cpu: Device) -> None:
    for name in ("matmul", "wide_matmul"):
        cpu.runs(name, _product, ways=_product_ways)
    cpu.runs("einsum", _einsum, ways=_einsum_ways)
    cpu.runs("gram", gram_native, ways=gram_ways, scratch=gram_room)
    for name in ("fused_matmul", "fused_matmul_rows"):
        cpu.runs(name, epilogue_native, ways=epilogue_ways, scratch=epilogue_room)
    cpu.runs("fused_nest", stages, ways=stages_ways, scratch=stages_room)
    cpu.runs("solve", _solve)
    cpu.runs("pair_distances", pair_distances)
    cpu.runs("cumulative_sum", partial(_running, False), least=COMPILED)
    cpu.runs("cumulative_prod", partial(_running, True), least=COMPILED)
    for name, places in (("sort", False), ("argsort", True)):
        room = partial(_sort_room, places)
        cpu.runs(name, partial(_sort, places), scratch=room, least=COMPILED)
    cpu.runs("searchsorted", _search, least=COMPILED)
    cpu.runs("in_bounds", inside, least=COMPILED)
    cpu.runs("take", taking, least=COMPILED)
    cpu.runs("take_along_axis", taking_along, least=COMPILED)
    cpu.runs("put", putting, least=COMPILED)
    cpu.runs("put_along_axis", adding_along, least=COMPILED)
