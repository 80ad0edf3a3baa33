"""Several elementwise operations as one, and reductions of their results over the last axes: what
the planner makes of chains, so that what lies between never goes to memory. They run as
machine code (loops/flat.py); the kernel here goes node by node, where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.array.bits import local_shape
from ostinato.ops.core.device import Classes, plain
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.index import Dim, Indices
from ostinato.ops.core.layout import Box, whole_box
from ostinato.ops.core.parameters import GRAPH, unfit, whole
from ostinato.ops.core.registry import ANY, OPS, Params, Place, Scratch, Specs, op
from ostinato.ops.core.spec import Shape, Spec, int8
from ostinato.ops.cpu.loops.schedule import BLOCKS, UNITS, analyse, analyse_in_order, lanes_of
from ostinato.ops.jit.epilogues import begin_of
from ostinato.ops.jit.foreach_parts import FOREACH
from ostinato.ops.jit.labels import combines
from ostinato.ops.jit.library_steps import LibraryStep, done, steps_behind
from ostinato.ops.jit.moves import has_moves, shapes_of
from ostinato.ops.jit.stage_values import begins_at, label

from .jit.kept_text import kept_on_disk
from .kernels.gemm_epilogue import shape_of
from .loops.nest_kernels import crew_of, nest_kernel, nest_told
from .loops.stages import facts
from .threads import most_threads


def _infer(*ins: Spec, body: Graph, **_: Any) -> Specs:
    if len(ins) != len(body.inputs):
        raise unfit("a kernel", ins, f"{len(body.inputs)} operands")
    return body.out_specs


def _infer_steps(*ins: Spec, body: Graph, axis: int) -> Specs:
    return _infer(*ins, body=body)


IN_STEPS = "fused_steps"
_FACTS: dict[str, Any] = {"infer": _infer, "takes": {"body": GRAPH}, "made_by": "machine"}


def _cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    body: Graph = p["body"]
    flops = sum(
        OPS[n.op].cost(tuple(body.specs[v] for v in n.inputs), n.specs, n.kw)[0]
        for n in body.nodes
        if n.op != "constant"
    )
    read = sum(min(x.nbytes, _bytes_read(body, k)) for k, x in enumerate(ins))
    return flops, float(read + sum(s.nbytes for s in outs))


def _bytes_read(body: Graph, k: int) -> int:
    """Count the bytes read of an operand: no more than what is gathered from it, where that is all
    that is read of it."""
    whole = body.specs[k].nbytes
    readers = [body.nodes[n] for n in body.uses[k]]
    if k in body.outputs or not all(OPS[n.op].moves.places and n.inputs[0] == k for n in readers):
        return whole
    return sum(n.specs[0].nbytes for n in readers)


def stages_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], **labelled: Any
) -> Sequence[Scratch]:
    """Size the workspace of a kernel in stages: what it keeps in cache, and what waits for its end,
    for operands in order."""
    found = _in_order(tuple(map(tuple, (*ins, *outs))), most_threads(), **labelled)
    return [Scratch((found[0],), int8)] if found is not None else ()


def stages_ways(ins: Specs, outs: Specs, p: Params, threads: int) -> Classes:
    """Where lanes run along rows, how many of them make a unit, by which sums over rows are cut."""
    found = _in_order(tuple([s.shape for s in (*ins, *outs)]), most_threads(), **p)
    if found is None or not found[1]:
        return [("in stages",)]
    _, lanes, gathers_exactly = found
    names = [f"{n}{UNITS}" for n in sorted(BLOCKS, key=lambda n: n != str(lanes))]
    return [names] if gathers_exactly else [(name,) for name in names]


@kept_on_disk
def _in_order(
    shapes: Sequence[Shape], threads: int, **labelled: Any
) -> tuple[int, int, bool] | None:
    """The bytes that a kernel in stages needs for operands in order; how many rows make a unit where
    lanes run along rows, or 0; and whether its sums over rows have the same bits in any case. None if
    there is no such kernel."""
    nest = analyse_in_order(**labelled, shapes=shapes)
    if nest is None:
        return None
    room = crew_of(nest, facts(nest), threads).bytes
    return room, nest.lanes * nest.across, nest.gathers_exactly


def stages(
    arrays: Sequence[Any],
    threads: int,
    *,
    scratch: Sequence[Any],
    at: Place | None = None,
    way: str = "",
    **labelled: Any,
) -> Any:
    """The kernel in stages for operands and results that lie so."""
    shapes, strides = tuple([a.shape for a in arrays]), tuple([a.strides for a in arrays])
    begins = begins_at(at, labelled)
    told = _told(shapes, strides, begins, lanes_of(way), threads, **labelled)
    return nest_kernel(*told, len(arrays), scratch) if told is not None else None


@kept_on_disk
def _told(
    shapes: Sequence[Shape],
    strides: Sequence[Sequence[int]],
    begins: Sequence[Sequence[int]],
    lanes: Sequence[int],
    threads: int,
    **labelled: Any,
) -> tuple[str, list[int]] | None:
    """Say what a kernel in stages is made of; None if there is none."""
    nest = analyse(**labelled, shapes=shapes, strides=strides, lanes=lanes, begins=begins)
    return nest_told(nest, threads) if nest is not None else None


def _kernel(
    xp: Any, out: Any, *xs: Any, body: Graph, at: Place | None = None, **labelled: Any
) -> None:
    """Node by node."""
    outs: Sequence[Any] = out if isinstance(out, tuple) else (out,)
    values, given = list(xs), [x.shape for x in (*xs, *outs)]
    boxes = _boxes(body, given, labelled, begins_at(at, {"body": body}))
    for k, node in enumerate(body.nodes):
        ins, rule, params = [values[v] for v in node.inputs], OPS[node.op], plain(node.kw)
        made = [tuple([hi - lo for lo, hi in boxes[v]]) for v in body.outs(k)]
        at = Place(
            tuple([boxes[v] for v in node.inputs]),
            tuple([boxes[v] for v in body.outs(k)]),
            tuple(x.shape for x in ins),
            tuple(made),
        )
        if rule.view is not None:
            values.append(rule.view(xp, ins[0], at, **params))
            continue
        if rule.run.placed:
            params["at"] = at
        if rule.run.scratch is not None:
            specs = (*(body.specs[v] for v in node.inputs), *node.specs)
            needs = rule.run.scratch([x.shape for x in ins], made, specs, **params)
            params["scratch"] = tuple(xp.empty(s.shape, s.dtype) for s in needs)
        new = tuple(xp.empty(n, s.dtype) for n, s in zip(made, node.specs, strict=True))
        target: Any = new[0] if len(new) == 1 else new
        if node.op == "constant":
            target[...] = node.kw["value"]
        elif rule.kernel is None:
            getattr(xp, rule.run.ufunc)(*ins, out=target)
        else:
            rule.kernel(xp, target, *ins, **params)
        values.extend(new)
    for result, v in zip(outs, body.outputs, strict=True):
        xp.copyto(result, values[v])


def _steps_in_turn(xp: Any, out: Any, *xs: Any, body: Graph, axis: int) -> None:
    """Kernel by kernel."""
    values = list(xs)
    for node in body.nodes:
        inner, ins = node.kw["body"], [values[v] for v in node.inputs]
        shapes = shapes_of(inner, [x.shape for x in ins])
        made = [xp.empty(shapes[v], inner.specs[v].dtype) for v in inner.outputs]
        _kernel(xp, tuple(made), *ins, body=inner)
        values += made
    for result, v in zip(out if isinstance(out, tuple) else (out,), body.outputs, strict=True):
        xp.copyto(result, values[v])


def _foreach_kernel(xp: Any, out: Any, *xs: Any, body: Graph, **_: Any) -> None:
    _kernel(xp, out, *xs, body=body)


def _boxes(
    body: Graph, given: Sequence[Shape], labelled: Any, begins: Sequence[Sequence[int]]
) -> list[Box]:
    """The box of each value on this worker, which begins at 0 where nothing reads windows."""
    if not labelled:
        return list(map(whole_box, _shapes(body, given)))
    nest = label(body, labelled["dims"], labelled["rows"], given, given, begins)
    assert nest is not None

    def side(x: int | None) -> tuple[int, int]:
        low = 0 if x is None else nest.begins.get(x, 0)
        return low, low + (1 if x is None else nest.extents[x])

    return [tuple(map(side, own)) for own in nest.dims]


def _shapes(body: Graph, given: Sequence[Shape]) -> list[Shape]:
    """The shape of each value on this worker."""
    found = list(given[: len(body.inputs)])
    if has_moves(body):
        is_whole = any(OPS[node.op].product for node in body.nodes)  # with slices of a product
        return [s.shape for s in body.specs] if is_whole else shapes_of(body, found)
    for node in body.nodes:
        if OPS[node.op].product:
            found.append(shape_of(*(found[v] for v in node.inputs)))
            continue
        if (own := local_shape(node, [found[v] for v in node.inputs])) is not None:
            found.append(own)
            continue
        shape = np.broadcast_shapes(*(found[v] for v in node.inputs))
        if OPS[node.op].reduce:
            gone = combines(body, node)[1]
            shape = tuple(n for d, n in enumerate(shape) if d not in gone)
        found += [shape] * len(node.specs)
    return found


def added(p: Params) -> Sequence[int]:
    """List the operands that are added to a product."""
    body: Graph = p["body"]
    return [s.operand for s in steps_behind(body, begin_of(body)) if s.kind == "+"]


def _steps_kernel(xp: Any, out: Any, *xs: Any, body: Graph, at: Place) -> None:
    """The product by its own kernel, then step by step."""
    k = begin_of(body)
    node = body.nodes[k]
    kernel, product = OPS[node.op].kernel, node.specs[0]
    assert kernel is not None

    def multiply(made: Any) -> None:
        view, place = product_view(made, product.shape, at)
        kernel(xp, view, *xs[: len(node.inputs)], at=place, **plain(node.kw))

    steps_apart(xp, multiply, steps_behind(body, k), xs, out)


def steps_apart(
    xp: Any,
    multiply: Callable[[Any], None],
    steps: Sequence[LibraryStep],
    xs: Sequence[Any],
    out: Any,
) -> None:
    """The product, then step by step; in other memory than the result's while an operand lies there."""
    is_over = any(xp.may_share_memory(x, out) for x in xs)
    made = xp.empty(out.shape, out.dtype) if is_over else out
    multiply(made)
    done(xp, made, steps, xs)
    if is_over:
        xp.copyto(out, made)


def product_view(out: Any, shape: Shape, at: Place) -> tuple[Any, Place]:
    """A result as the product is whose last two axes it joins, and where that is."""
    box = at.outs[0]
    if len(shape) > out.ndim:
        out = out.reshape(*out.shape[:-1], shape[-2], out.shape[-1] // shape[-2])
        box = (*box[:-1], *whole_box(out.shape[-2:]))
    return out, Place(at.ins[:2], (box,), at.in_shapes[:2], (shape,), at.first)


def _steps_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    """Only the first axis of results, of samples, is known to be cut: as the product's is."""
    body: Graph = p["body"]
    node, (out,) = body.nodes[begin_of(body)], outs
    of_product = tuple([body.specs[v] for v in node.inputs])
    rule = OPS[node.op].indices(of_product, node.specs, node.kw)
    first = rule.outs[0][0]

    def dims_of(k: int, spec: Spec) -> tuple[Dim, ...]:
        if k in node.inputs:
            dims = rule.ins[node.inputs.index(k)]
            return tuple([c if c == first else None for c in dims])
        cut = spec.ndim == out.ndim and spec.shape[:1] == out.shape[:1]
        return (first if cut else None, *[None] * (spec.ndim - 1))[: spec.ndim]

    dims = [dims_of(k, s) for k, s in enumerate(ins)]
    plain = out.shape[:1] == node.specs[0].shape[:1] and out.shape[0] > 1
    return Indices(tuple(dims), ((first if plain else None, *[None] * (out.ndim - 1)),))


op(  # a product and steps behind it, which one library does
    "fused_product",
    **_FACTS,
    kernel=_steps_kernel,
    cost=_cost,
    dense=True,
    placed=True,
    indices=_steps_indices,
)
op("fused", **_FACTS, kernel=_kernel, cost=_cost, overwrite=ANY, writes_parts=True)
op("fused_joins", **_FACTS, kernel=_kernel, cost=_cost, writes_parts=True)  # reads elsewhere, too
# which kernels take in (planner/fusion/joins.py)
op("joined", **_FACTS, kernel=_kernel, cost=_cost)
op(  # kernels that read each other's neighbours, in tiles along an axis of their results
    IN_STEPS,
    **(_FACTS | {"infer": _infer_steps, "takes": {"axis": whole(0), "body": GRAPH}}),
    kernel=_steps_in_turn,
    cost=_cost,
)
op("fused_rows", **_FACTS, kernel=_kernel, cost=_cost)  # with reductions over the last axes
for _name, _overwrite in (
    ("fused_matmul", tuple(range(2, 64))),  # a product, and what is behind: all but its matrices
    ("fused_matmul_rows", ()),  # with reductions of its rows
    ("fused_tiles", ()),  # a product, and what is made as it is read and written
):
    op(_name, **_FACTS, kernel=_kernel, overwrite=_overwrite, cost=_cost, dense=True)
# in stages
op("fused_nest", **_FACTS, kernel=_kernel, cost=_cost, placed=True)
op(FOREACH, **_FACTS, kernel=_foreach_kernel, cost=_cost, writes_parts=True)

STEPS = "fused_product"
JOINED = "joined"  # what kernels take in, and no kernel itself
FUSED = (*[n for n, made in OPS.items() if made.kernel is _kernel and n != JOINED], FOREACH)
WITH_PRODUCT = tuple([name for name in FUSED if OPS[name].run.dense])
