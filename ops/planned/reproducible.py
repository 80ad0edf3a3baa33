"""Reductions with the same bits for any number of workers: fixed blocks, combined in a fixed tree,
whoever computes them.

An index of n elements is cut into the blocks of a fixed grid (layout.grid_bounds) that depends on n
alone. `block_*` makes one partial result per block, `tree` combines them pairwise, and `fixed_*`
does both where all blocks are on one worker: bit for bit the same.

No step may depend on how many other elements are computed beside: sums are trees of whole-array
additions, and the matrix product adds the terms of each element one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ..array.contraction import _matmul_cost, _matmul_indices, _matmul_rule
from ..array.reduction import read_cost, shape_left
from ..core.build import Builder
from ..core.device import device_of
from ..core.graph import Graph
from ..core.index import LETTERS, Indices
from ..core.layout import grid_bounds, grid_size
from ..core.monoid import identity
from ..core.parameters import AXIS, one_of, unfit
from ..core.registry import Params, Place, Scratch, Specs, op
from ..core.spec import Shape, Spec

_UFUNC = {"sum": "add", "prod": "multiply"}
_MONOID = one_of(*_UFUNC)

# What is made of fixed blocks, and what does so in one go.
FIXED = {"block_sum": "fixed_sum", "block_matmul": "fixed_matmul"}


def _fold(xp: Any, combine: Any, rows: Any) -> None:
    """Combine along the first axis into its first element: halves, again and again, in place."""
    n = rows.shape[0]
    while n > 1:
        half = n // 2
        combine(rows[:half], rows[half : 2 * half], rows[:half])
        if n % 2:
            rows[half] = rows[n - 1]
        n = half + n % 2


def _pairs(xp: Any, combine: Any, rows: Any) -> None:
    """Combine neighbours along the first axis into its first element: the tree over blocks."""
    n = rows.shape[0]
    while n > 1:
        half = n // 2
        for k in range(half):
            combine(rows[2 * k : 2 * k + 1], rows[2 * k + 1 : 2 * k + 2], rows[k : k + 1])
        if n % 2:
            rows[half] = rows[n - 1]
        n = half + n % 2


def _blocks_here(at: Place, axis: int) -> list[tuple[int, int]]:
    """The grid's blocks in a worker's part, counted from its start."""
    lo, hi = at.ins[0][axis]
    bounds = grid_bounds(at.in_shapes[0][axis])
    return [(a - lo, b - lo) for a, b in itertools.pairwise(bounds) if a >= lo and b <= hi]


# -- sums and products ---------------------------------------------------------------------
def _block_sum_kernel(
    xp: Any, out: Any, x: Any, *, axis: int, monoid: str, at: Place, scratch: Sequence[Any]
) -> None:
    combine = getattr(xp, _UFUNC[monoid])
    rows = xp.moveaxis(x, axis, 0)
    for k, (a, b) in enumerate(_blocks_here(at, axis)[: out.shape[0]]):
        if a == b:
            out[k, ...] = identity(monoid, out.dtype)
            continue
        work = scratch[0][: b - a]
        xp.copyto(work, rows[a:b])
        _fold(xp, combine, work)
        out[k, ...] = work[0]


def _fixed_sum_kernel(
    xp: Any, out: Any, x: Any, *, axis: int, monoid: str, at: Place, scratch: Sequence[Any]
) -> None:
    blocks, work = scratch
    _block_sum_kernel(xp, blocks, x, axis=axis, monoid=monoid, at=at, scratch=(work,))
    _pairs(xp, getattr(xp, _UFUNC[monoid]), blocks)
    out[...] = blocks[0]


def _longest(n: int) -> int:
    bounds = grid_bounds(n)
    return max(b - a for a, b in itertools.pairwise(bounds))


def _work(ins: Sequence[Shape], specs: Sequence[Spec], axis: int) -> Scratch:
    x = ins[0]
    return Scratch((_longest(specs[0].shape[axis]), *x[:axis], *x[axis + 1 :]), specs[0].dtype)


def _block_sum_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = tuple(LETTERS[: ins[0].ndim])
    axis = p["axis"]
    return Indices((labels,), ((labels[axis], *labels[:axis], *labels[axis + 1 :]),))


op(
    "block_sum",
    infer=lambda x, *, axis, monoid: Spec(
        (grid_size(x.shape[axis]), *shape_left(x, (axis,))), x.dtype
    ),
    takes={"axis": AXIS, "monoid": _MONOID},
    made_by="passes",
    indices=_block_sum_indices,
    kernel=_block_sum_kernel,
    scratch=lambda ins, outs, specs, *, axis, monoid: (_work(ins, specs, axis),),
    cost=read_cost(1),
    placed=True,
)


def _tree_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = tuple(LETTERS[: outs[0].ndim])
    return Indices(((None, *labels),), (labels,))


def _tree_kernel(xp: Any, out: Any, x: Any, *, monoid: str, scratch: Sequence[Any]) -> None:
    xp.copyto(scratch[0], x)
    _pairs(xp, getattr(xp, _UFUNC[monoid]), scratch[0])
    out[...] = scratch[0][0]


def _tree_rule(x: Spec, *, monoid: str) -> Spec:
    if not x.ndim or not x.shape[0]:
        raise unfit("tree", (x,), "something along a first axis")
    return Spec(x.shape[1:], x.dtype)


op(
    "tree",
    infer=_tree_rule,
    takes={"monoid": _MONOID},
    made_by="passes",
    indices=_tree_indices,
    kernel=_tree_kernel,
    scratch=lambda ins, outs, specs, *, monoid: (Scratch(ins[0], specs[0].dtype),),
    cost=read_cost(1),
)


def _by_blocks(
    block_op: str, monoid: str | None = None
) -> Callable[[Specs, Specs, Params], Sequence[Graph]]:
    """The algorithm that splits the reduced index: blocks where they are, then the tree."""

    def algorithms(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
        builder = Builder([s.bare for s in ins])
        blocks = builder.call(block_op, *range(len(ins)), **p)
        return [builder.graph([builder.call("tree", blocks, monoid=monoid or p["monoid"])])]

    return algorithms


def _fixed_sum_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = tuple(None if d == p["axis"] else LETTERS[d] for d in range(ins[0].ndim))
    return Indices((labels,), (tuple(x for x in labels if x is not None),))


op(
    "fixed_sum",
    infer=lambda x, *, axis, monoid: Spec(shape_left(x, (axis,)), x.dtype),
    takes={"axis": AXIS, "monoid": _MONOID},
    made_by="passes",
    indices=_fixed_sum_indices,
    kernel=_fixed_sum_kernel,
    scratch=lambda ins, outs, specs, *, axis, monoid: (
        Scratch((grid_size(specs[0].shape[axis]), *outs[0]), specs[0].dtype),
        _work(ins, specs, axis),
    ),
    algorithms=_by_blocks("block_sum"),
    cost=read_cost(1),
    placed=True,
)


# -- matrix products -----------------------------------------------------------------------
def _block_product(xp: Any, out: Any, a: Any, b: Any) -> None:
    """out = a @ b for one block of the summed index, with the terms of each element added one by one, in
    order, each product rounded: an element's bits depend on its own row and column only."""
    if out.dtype.kind == "c":
        parts = [(x.real, x.imag) for x in (a.astype(out.dtype), b.astype(out.dtype))]
        (ar, ai), (br, bi) = parts
        out.real = _real_product(xp, ar, br, out) - _real_product(xp, ai, bi, out)
        out.imag = _real_product(xp, ar, bi, out) + _real_product(xp, ai, br, out)
        return
    run = device_of(out).ordered_product(a, b, out)
    if run is not None:
        run(a, b, out)
        return
    out[...] = 0
    for k in range(a.shape[-1]):
        out += a[..., :, k, None] * b[..., None, k, :]


def _real_product(xp: Any, a: Any, b: Any, like: Any) -> Any:
    made = xp.empty(like.shape, a.dtype)
    _block_product(xp, made, a, b)
    return made


def _inner_blocks(at: Place) -> list[tuple[int, int]]:
    return _blocks_here(at, len(at.in_shapes[0]) - 1)


def _block_matmul_kernel(xp: Any, out: Any, a: Any, b: Any, *, at: Place) -> None:
    for k, (lo, hi) in enumerate(_inner_blocks(at)[: out.shape[0]]):
        _block_product(xp, out[k], a[..., lo:hi], b[..., lo:hi, :])


def _fixed_matmul_kernel(
    xp: Any, out: Any, a: Any, b: Any, *, at: Place, scratch: Sequence[Any]
) -> None:
    """The tree without keeping all blocks: a stack of partial results, of which equal ones merge at
    once."""
    stack: list[tuple[int, Any]] = []
    rows = scratch[0]
    for lo, hi in _inner_blocks(at):
        slot = rows[len(stack)]
        _block_product(xp, slot, a[..., lo:hi], b[..., lo:hi, :])
        stack.append((1, slot))
        while len(stack) > 1 and stack[-1][0] == stack[-2][0]:
            _merge(xp, stack)
    while len(stack) > 1:
        _merge(xp, stack)
    out[...] = stack[0][1]


def _merge(xp: Any, stack: list[tuple[int, Any]]) -> None:
    (m, right), (n, left) = stack.pop(), stack.pop()
    xp.add(left, right, left)
    stack.append((m + n, left))


def _matmul_facts(stacked: bool) -> dict[str, Any]:
    def infer(a: Spec, b: Spec) -> Spec:
        y = _matmul_rule(a, b)
        if min(a.ndim, b.ndim) < 2:
            raise unfit("matmul", (a, b), "two axes or more")
        return Spec((grid_size(a.shape[-1]), *y.shape), y.dtype) if stacked else y

    def indices(ins: Specs, outs: Specs, p: Params) -> Indices:
        y = Spec(outs[0].shape[1:], outs[0].dtype) if stacked else outs[0]
        plain = _matmul_indices(ins, (y,), p)
        inner = plain.reduce[0][0]
        if stacked:
            return Indices(plain.ins, ((inner, *plain.outs[0]),))
        a, b = (tuple(None if c == inner else c for c in labels) for labels in plain.ins)
        return Indices((a, b), plain.outs)

    return {
        "infer": infer,
        "made_by": "passes",
        "indices": indices,
        "cost": _matmul_cost if not stacked else _block_matmul_cost,
    }


def _block_matmul_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    return 2.0 * ins[0].shape[-1] * outs[0].size / max(1, outs[0].shape[0]), float(
        sum(s.nbytes for s in (*ins, *outs))
    )


op("block_matmul", **_matmul_facts(True), kernel=_block_matmul_kernel, placed=True, dense=True)
op(
    "fixed_matmul",
    **_matmul_facts(False),
    kernel=_fixed_matmul_kernel,
    scratch=lambda ins, outs, specs: (
        Scratch((grid_size(specs[0].shape[-1]).bit_length() + 1, *outs[0]), specs[2].dtype),
    ),
    algorithms=_by_blocks("block_matmul", "sum"),
    placed=True,
    dense=True,
)
