"""What a CPU does better than the ops' own kernels: the list, by operation, and what stands between an
operation's form and the kernels'."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from ostinato.ops.array.contraction import Folds
from ostinato.ops.core.device import Classes, Device, Prepackable, plain
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.monoid import identity
from ostinato.ops.core.registry import OPS, Params, Place, Scratch, Specs
from ostinato.ops.core.spec import DType, Shape, Spec, bfloat16, int64, strided_like
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.flow.control import ONE_KERNEL, WHOLE
from ostinato.ops.jit.epilogues import begin_of
from ostinato.ops.jit.library_steps import steps_behind
from ostinato.ops.jit.stage_values import windows_at
from ostinato.ops.linalg.factorizations import SINGULAR
from ostinato.ops.nn.spatial import begins_of

from .fused import (
    IN_STEPS,
    STEPS,
    WITH_PRODUCT,
    added,
    product_view,
    stages,
    stages_scratch,
    stages_ways,
    steps_apart,
)
from .jit.llvm import why_not
from .kernels import fft_libraries as fft
from .kernels.band_solve import banded_kernel
from .kernels.conv_ways import CONV_WAYS, conv_by, conv_scratch, conv_ways, rule_way
from .kernels.distance_pairs import pair_distances
from .kernels.gather_scatter import (
    adding_along,
    adding_rows,
    inside,
    putting,
    take_along_kernel,
    taking,
)
from .kernels.gemm import QUICK, any_product, product, ways
from .kernels.gemm_epilogue import epilogue_native, epilogue_scratch, epilogue_ways
from .kernels.pools import pool_begins, pool_kernel
from .kernels.ranks import order_statistics, order_workspace, select
from .kernels.scan import running_kernel
from .kernels.searchsorted import searching_kernel
from .kernels.sort.line_order import sort_function, sort_scratch
from .kernels.syrk import gram_native, gram_scratch, gram_ways
from .kernels.tally import counting_kernel, folding_kernel
from .kernels.triangular import triangular_kernel
from .kernels.true_places import true_places
from .libraries import lapack
from .libraries.onednn import Unable, library
from .libraries.onednn_conv import KINDS, conv_room, does_steps, onednn_conv
from .loops.loop_kernel import all_turns, turns_scratch
from .loops.tiled_kernel import tiled_scratch, tiled_steps

Made = Callable[..., None] | Prepackable | None
Arrays = Sequence[Any]
COMPILED = LIMITS.compiled
LEAST_BANDS = 256  # elements of banded systems
TABLE = (1 << 16) - 1  # whole numbers that a table of flags is made for


# -- products ------------------------------------------------------------------------------
def _product(arrays: Arrays, threads: int, *, way: str = "", stays: bool = False, **_: Any) -> Made:
    a, b, out = arrays
    return any_product(a, b, out, threads, way, stays)


def _product_ways(ins: Specs, outs: Specs, p: Params, threads: int) -> Classes:
    a, b, out = (strided_like(s.shape, s.dtype) for s in (*ins, *outs))
    return [(way,) for way in ways(a, b, out, threads, p.get("stays", False))]


def _einsum(arrays: Arrays, threads: int, *, text: str, way: str = "", **_: Any) -> Made:
    """A product of matrices, which are copies only where they must be."""
    folds = Folds(text, *arrays[:2])
    views, like = [], []
    for k, x in enumerate(arrays):
        try:
            like.append(np.reshape(folds.ordered(k, x), folds.shape(k), copy=False))
            views.append(True)
        except ValueError:
            like.append(strided_like(folds.shape(k), x.dtype))
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


def _einsum_ways(ins: Specs, outs: Specs, p: Params, threads: int) -> Classes:
    folds = Folds(p["text"], *(strided_like(s.shape, s.dtype) for s in ins))
    a, b, out = (strided_like(folds.shape(k), s.dtype) for k, s in enumerate((*ins, *outs)))
    return [(way,) for way in ways(a, b, out, threads)]


def _conv(
    arrays: Arrays, threads: int, *, scratch: Arrays, at: Place, dtype: Any = None, **p: Any
) -> Made:
    """By oneDNN; where it cannot, or is not as quick, by products of matrices, or in another way."""
    shapes, kind = [x.shape for x in arrays], arrays[0].dtype
    way = p.pop("way", "") or _conv_rule(shapes[:2], shapes[-1:], kind, p)
    if why_not() or (p.get("steps") and way in CONV_WAYS):
        return None
    if way in CONV_WAYS:
        return conv_by(way, arrays, at, threads, scratch, p)
    if way == "products" or not scratch:
        return None
    with contextlib.suppress(Unable):
        return onednn_conv(arrays, at, threads, scratch[0], **p)
    return None


def _conv_rule(ins: Sequence[Shape], outs: Sequence[Shape], dtype: DType, p: Params) -> str:
    return "" if "dtype" in p else rule_way(ins, outs, dtype, p, not isinstance(library(), str))


def _conv_ways(ins: Specs, outs: Specs, p: Params, threads: int) -> Classes:
    """The first of them is the rule's; results differ in their last bits."""
    shapes = [s.shape for s in ins[:2]], [outs[0].shape]
    others = conv_ways(*shapes, ins[0].dtype, p) if ins[0].dtype == outs[0].dtype else []
    libraries = ["onednn", "products"] if ins[0].dtype.name in KINDS else ["products"]
    first = _conv_rule(*shapes, ins[0].dtype, p)
    return [(way,) for way in dict.fromkeys((*([first] if first else []), *libraries, *others))]


def _conv_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Specs, way: str = "", **p: Any
) -> Sequence[Scratch]:
    way = way or _conv_rule(ins, outs, specs[0].dtype, p)
    if way in CONV_WAYS:
        return conv_scratch(way, ins, outs, specs[0].dtype, p)
    return [] if way == "products" else conv_room(ins, outs, specs, **p)


def _writes_slopes(graph: Graph, k: int) -> bool:
    """Whether oneDNN makes slopes of weights, which it has in a form of its own first."""
    node = graph.nodes[k]
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    shapes, axes = [s.shape for s in specs], len(node.kw["extents"])
    known = not isinstance(library(), str) and all(s.dtype.name in KINDS for s in specs)
    slopes = math.prod(shapes[1][:axes]) > math.prod(shapes[2][1 : axes + 1])
    return known and slopes and not _conv_rule(shapes[:2], shapes[2:], specs[0].dtype, node.kw)


def _steps_ways(ins: Specs, outs: Specs, p: Params, threads: int) -> Classes:
    body: Graph = p["body"]
    node = body.nodes[begin_of(body)]
    made = Spec((*outs[0].shape[:-1], *_split_last(outs[0].shape, node.specs[0])), outs[0].dtype)
    return _conv_ways(ins[:2], (made,), node.kw, threads)


def _split_last(shape: Shape, product: Spec) -> Shape:
    """Groups and their channels, of an axis that joins them."""
    groups = product.shape[-2] if product.ndim > len(shape) else 0
    return (groups, shape[-1] // groups) if groups else shape[-1:]


def _conv_steps(graph: Graph, k: int) -> Sequence[int]:
    """The nodes behind a convolution that oneDNN does with it."""
    node = graph.nodes[k]
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    if isinstance(library(), str) or not does_steps(specs, node.kw):
        return ()
    shapes = [s.shape for s in specs]
    if _conv_rule(shapes[:2], shapes[2:], specs[0].dtype, node.kw):
        return ()
    return [u for step in steps_behind(graph, k) for u in step.nodes]


def _with_steps(arrays: Arrays, threads: int, *, at: Place, body: Graph, **p: Any) -> Made:
    """A product and what a library does as it writes it, or else NumPy does then."""
    k = begin_of(body)
    node = body.nodes[k]
    steps = [s for s in steps_behind(body, k) if s.kind]
    out, place = product_view(arrays[-1], node.specs[0].shape, at)
    others = [arrays[s.operand] for s in steps if s.operand >= 0]
    known = {"threads": threads, "at": place, **node.kw, **p}
    found = _conv([*arrays[:2], *others, out], steps=steps, **known)
    if found is not None or (plainly := _conv([*arrays[:2], out], **known)) is None:
        return found
    first = plainly.function if isinstance(plainly, Prepackable) else plainly

    def run(x: Any, w: Any, *rest: Any) -> None:
        def multiply(made: Any) -> None:
            first(x, w, product_view(made, node.specs[0].shape, at)[0])

        steps_apart(np, multiply, steps, (x, w, *rest[:-1]), rest[-1])

    return run


def _steps_begin(at: Place, p: Params) -> tuple[int, ...]:
    return begins_of(at, p["body"].nodes[begin_of(p["body"])].kw)


def _steps_room(
    ins: Sequence[Shape],
    outs: Sequence[Shape],
    specs: Specs,
    *,
    body: Graph,
    way: str = "",
    **_: Any,
) -> Sequence[Scratch]:
    node = body.nodes[begin_of(body)]
    made = (*outs[0][:-1], *_split_last(outs[0], node.specs[0]))
    return _conv_scratch(ins[:2], [made], specs, way, has_steps=True, **plain(node.kw))


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


def _sort_scratch(
    places: bool,
    ins: Sequence[Shape],
    outs: Sequence[Shape],
    specs: Sequence[Spec],
    *,
    axis: int,
    **_: Any,
) -> Sequence[Scratch]:
    return sort_scratch(ins[0], specs[0].dtype, axis, outs[0][axis], places)


def _search(arrays: Arrays, threads: int, *, side: str, **_: Any) -> Made:
    x, v, out = arrays
    made: Made = searching_kernel(x, v, out, side == "right", threads)
    return made


def _fft(arrays: Arrays, threads: int, *, axis: int, inverse: bool, norm: str, **_: Any) -> Made:
    return fft.transforming(arrays, axis, threads, "ifft" if inverse else "fft", norm)


def _rfft(arrays: Arrays, threads: int, *, axis: int, norm: str, **_: Any) -> Made:
    return fft.transforming(arrays, axis, threads, "rfft", norm)


def _irfft(arrays: Arrays, threads: int, *, axis: int, n: int, norm: str, **_: Any) -> Made:
    return fft.transforming(arrays, axis, threads, "irfft", norm, n)


# -- selection, counts, groups -------------------------------------------------------------
def _partition(
    name: str, arrays: Arrays, threads: int, *, axis: int, places: tuple[int, ...], **_: Any
) -> Made:
    if not places or arrays[0].dtype == bfloat16:
        return None

    def partition(x: Any, out: Any) -> None:
        np.copyto(out, x)
        select(np.moveaxis(out, axis, -1), places)

    def argpartition(x: Any, out: Any) -> None:
        np.copyto(out, np.argpartition(x, places, axis))

    return partition if name == "partition" else argpartition


def _tally(arrays: Arrays, threads: int, *, axes: tuple[int, ...], **_: Any) -> Made:
    x, out = arrays
    made: Made = counting_kernel(x, out, axes, threads)
    return made


def _segments(monoid: str, arrays: Arrays, threads: int, *, count: int, **_: Any) -> Made:
    """Numbers by tables; rows as updates in order, unless some row belongs to no group."""
    x, ids, out = arrays
    made: Made = folding_kernel(monoid, x, ids, out, threads)
    if made is not None:
        return made
    mode = {"sum": "add", "prod": "multiply"}.get(monoid, monoid)
    nest = adding_rows(mode, x, ids, out, threads)
    plain = OPS[f"segment_{monoid}"].kernel
    if nest is None or plain is None:
        return None
    first = identity(monoid, x.dtype)

    def run(x: Any, ids: Any, out: Any) -> None:
        if ids.min() < 0 or ids.max() >= count:
            plain(np, out, x, ids, count=count)
            return
        out.fill(first)
        nest(out, ids, x)

    return run


def _member(arrays: Arrays, threads: int, **_: Any) -> Made:
    """Test membership: of whole numbers that are near each other by a table, else by a search."""
    x, table, _out = arrays
    if x.dtype == bfloat16:
        return None
    search: Any = searching_kernel(
        strided_like(table.shape, table.dtype), x, strided_like(x.shape, int64), False, threads
    )
    whole = x.dtype.kind in "iu" and x.itemsize > 1 and x.size >= table.size
    places = np.dtype(f"u{x.itemsize}")

    def run(x: Any, table: Any, out: Any) -> None:
        table = np.sort(table)
        low, high = table[0], table[-1]
        wide = int(high) - int(low) if whole else TABLE
        if wide < TABLE:
            there = np.zeros(wide + 2, np.bool_)  # the last one for all that is outside
            there[(table - low).view(places)] = True
            np.take(there, np.minimum((x - low).view(places), places.type(wide + 1)), out=out)
            return
        found = np.empty(x.shape, np.int64)
        if search is None:
            found[...] = np.searchsorted(table, x)
        else:
            search(table, x, found)
        np.minimum(found, len(table) - 1, out=found)
        np.equal(np.take(table, found), x, out=out)

    return run


def _distinct(arrays: Arrays, threads: int, *, size: int, **_: Any) -> Made:
    """Find distinct whole numbers by a table, where they are near each other."""
    x, _out = arrays
    plain = OPS["distinct"].kernel
    if x.dtype.kind not in "iu" or x.itemsize == 1 or plain is None:
        return None
    places = np.dtype(f"u{x.itemsize}")

    def run(x: Any, out: Any) -> None:
        low, high = x.min(), x.max()
        if int(high) - int(low) >= TABLE:
            plain(np, out, x, size=size)
            return
        there = np.zeros(int(high) - int(low) + 1, np.bool_)
        there[(x - low).view(places)] = True
        found = np.flatnonzero(there)[:size].astype(places).view(x.dtype) + low
        out[: len(found)] = found
        out[len(found) :] = low

    return run


# -- the list ------------------------------------------------------------------------------
def register(cpu: Device) -> None:
    for name in ("matmul", "wide_matmul"):
        cpu.runs(name, _product, ways=_product_ways, by_threads=True)
    cpu.runs("einsum", _einsum, ways=_einsum_ways, by_threads=True)
    cpu.runs("gram", gram_native, ways=gram_ways, scratch=gram_scratch, by_threads=True)
    for name in WITH_PRODUCT:
        facts = {"ways": epilogue_ways, "scratch": epilogue_scratch, "by_threads": True}
        cpu.runs(name, epilogue_native, **facts)
    cpu.runs(IN_STEPS, tiled_steps, scratch=tiled_scratch)
    cpu.runs("fused_nest", stages, ways=stages_ways, scratch=stages_scratch, placed=windows_at)
    for name in (*ONE_KERNEL.values(), WHOLE):
        made, room = partial(all_turns, name), partial(turns_scratch, name)
        cpu.runs(name, made, scratch=room)
    conv = partial(cpu.runs, make=_conv, ways=_conv_ways, scratch=_conv_scratch, by_threads=True)
    conv("conv", placed=begins_of, behind=_conv_steps, turns=_writes_slopes)
    conv("wide_conv", placed=begins_of, behind=_conv_steps, turns=_writes_slopes)
    facts = {"ways": _steps_ways, "scratch": _steps_room, "placed": _steps_begin}
    cpu.runs(STEPS, _with_steps, **facts, adds_to=added)
    facts = {"placed": pool_begins, "least": COMPILED}
    cpu.runs("max_pool", partial(pool_kernel, "max_pool"), **facts)
    cpu.runs("sum_pool", partial(pool_kernel, "sum_pool"), **facts)
    cpu.runs("matching_pool", partial(pool_kernel, "matching_pool"), **facts)
    cpu.runs("solve", _solve)
    cpu.runs("solve_triangular", triangular_kernel)
    cpu.runs("solve_banded", banded_kernel, least=LEAST_BANDS)
    cpu.runs("pair_distances", pair_distances)
    cpu.runs("cumulative_sum", partial(_running, False), least=COMPILED)
    cpu.runs("cumulative_prod", partial(_running, True), least=COMPILED)
    for name, places in (("sort", False), ("argsort", True)):
        room = partial(_sort_scratch, places)
        cpu.runs(name, partial(_sort, places), scratch=room, least=COMPILED)
    cpu.runs("fft", _fft)
    cpu.runs("rfft", _rfft)
    cpu.runs("irfft", _irfft)
    cpu.runs("searchsorted", _search, least=COMPILED)
    cpu.runs("check_bounds", inside, least=COMPILED)
    cpu.runs("take", taking, least=COMPILED)
    cpu.runs("take_along_axis", take_along_kernel, least=COMPILED)
    cpu.runs("put", putting, least=COMPILED)
    cpu.runs("put_along_axis", adding_along, least=COMPILED)
    cpu.runs("order_statistics", order_statistics, scratch=order_workspace)
    for name in ("partition", "argpartition"):
        cpu.runs(name, partial(_partition, name))
    cpu.runs("tally", _tally, least=COMPILED)
    cpu.runs("distinct", _distinct, least=COMPILED)
    cpu.runs("is_member", _member, least=COMPILED)
    cpu.runs("true_places", true_places)
    for monoid in ("sum", "prod", "min", "max"):
        cpu.runs(f"segment_{monoid}", partial(_segments, monoid), least=COMPILED)
