"""Under `any-workers`: reductions whose bits depend on the order of addition become fixed blocks in
a fixed tree (ops/reproducible.py).

before                                              after
(%0: float32[9,4])                                  (%0: float32[9,4])
%1 = mean(%0; axes=(0,), count=9) : float32[4]      %1 = fixed_sum(%0; axis=0, monoid='sum') : float32[4]
return %1                                           %2 = constant(; dtype=dtype float32, value=9.0) : float32[]
                                                    %3 = divide(%1, %2) : float32[4]
                                                    return %3

The other numerics need no pass: a plan runs its steps in one order, and communicators combine in
the order of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostinato.ops.contraction import _groups
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import subscripts
from ostinato.ops.core.spec import float32, is_float, is_inexact, real_of
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import Values, map_bodies, rebuild

Rule = Callable[[Builder, Node, Values], "Sequence[int] | None"]


def fix_order(graph: Graph, target: Target) -> Graph:
    """The pass; nothing unless the target asks for `any-workers`."""
    if target.numerics != "any-workers":
        return graph

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        special = _RULES.get(node.op)
        if special is not None and is_inexact(node.specs[-1].dtype):
            return special(builder, node, inputs)
        whole = map_bodies(node, lambda g: fix_order(g, target))
        return (
            builder.add(whole.op, inputs, whole.params, whole.specs, whole.line)
            if whole is not node
            else None
        )

    return rebuild(graph, rule)


def _cast(b: Builder, x: int, node: Node, dtype: object) -> int:
    return x if b.specs[x].dtype == dtype else b.call("astype", x, dtype=dtype, line=node.line)


def _wide(b: Builder, x: int, node: Node) -> int:
    """Half precision is accumulated in float32, as it is elsewhere."""
    dtype = b.specs[x].dtype
    return _cast(b, x, node, float32) if is_float(dtype) and dtype.itemsize == 2 else x


def _number(b: Builder, value: float, like: int, node: Node) -> int:
    return b.call("constant", value=value, dtype=real_of(b.specs[like].dtype), line=node.line)


def _total(b: Builder, x: int, axes: Sequence[int], node: Node, monoid: str = "sum") -> int:
    for axis in sorted(axes, reverse=True):
        x = b.call("fixed_sum", x, axis=axis, monoid=monoid, line=node.line)
    return x


def _sum(b: Builder, node: Node, inputs: Values) -> Sequence[int]:
    dtype = node.kw["dtype"]
    x = _wide(b, _cast(b, inputs[0], node, dtype), node)
    return (_cast(b, _total(b, x, node.kw["axes"], node, node.op), node, dtype),)


def _mean(b: Builder, node: Node, inputs: Values) -> Sequence[int]:
    x = _wide(b, inputs[0], node)
    total = _total(b, x, node.kw["axes"], node)
    mean = b.call("divide", total, _number(b, float(node.kw["count"]), total, node), line=node.line)
    return (_cast(b, mean, node, node.specs[0].dtype),)


def _moments(b: Builder, node: Node, inputs: Values) -> Sequence[int]:
    """Count, mean, and the squares of what is left without the mean: two sums, since a tree has no
    state of three.
    """
    (x,), axes = inputs, node.kw["axes"]
    shape = b.specs[x].shape
    count = 1
    for a in axes:
        count *= shape[a]
    total = _total(b, x, axes, node)
    mean = b.call("divide", total, _number(b, float(count), total, node), line=node.line)
    kept = b.call("expand_dims", mean, axes=tuple(axes), line=node.line) if axes else mean
    rest = b.call("subtract", x, b.call("broadcast_to", kept, shape=shape), line=node.line)
    if b.specs[rest].dtype.kind == "c":
        parts = [b.call(f"{part}_part", rest, line=node.line) for part in ("real", "imag")]
        squares = b.call(
            "add", *(b.call("square", p, line=node.line) for p in parts), line=node.line
        )
    else:
        squares = b.call("square", rest, line=node.line)
    (number,) = b.add(
        "constant",
        (),
        {"value": float(count), "dtype": node.specs[0].dtype},
        node.specs[:1],
        node.line,
    )
    return number, mean, _total(b, squares, axes, node)


def _product(b: Builder, node: Node, inputs: Values) -> int:
    """Of matrices, in fixed blocks."""
    wide = [_wide(b, v, node) for v in inputs]
    return _cast(b, b.call("fixed_matmul", *wide, line=node.line), node, node.specs[0].dtype)


def _matmul(b: Builder, node: Node, inputs: Values) -> Sequence[int]:
    """Vectors as a row and a column."""
    (left, right), out = inputs, node.specs[0]
    if b.specs[left].ndim == 1:
        left = b.call("reshape", left, shape=(1, *b.specs[left].shape), line=node.line)
    if b.specs[right].ndim == 1:
        right = b.call("reshape", right, shape=(*b.specs[right].shape, 1), line=node.line)
    made = _product(b, node, (left, right))
    if b.specs[made].ndim != out.ndim:
        made = b.call("reshape", made, shape=out.shape, line=node.line)
    return (made,)


def _einsum(b: Builder, node: Node, inputs: Values) -> Sequence[int]:
    """As a matmul of folded operands."""
    text = node.kw["text"]
    (left, right), out = subscripts(text)
    batch, rows, columns, summed = _groups(text)
    sizes = {
        c: n
        for labels, v in zip((left, right), inputs, strict=True)
        for c, n in zip(labels, b.specs[v].shape, strict=True)
    }

    def fold(v: int, labels: str, *groups: str) -> int:
        axes = tuple(labels.index(c) for c in batch + "".join(groups))
        shape = [sizes[c] for c in batch]
        for g in groups:
            n = 1
            for c in g:
                n *= sizes[c]
            shape.append(n)
        v = b.call("permute_dims", v, axes=axes, line=node.line)
        return b.call("reshape", v, shape=tuple(shape), line=node.line)

    made = _product(
        b, node, (fold(inputs[0], left, rows, summed), fold(inputs[1], right, summed, columns))
    )
    order = batch + rows + columns
    made = b.call("reshape", made, shape=tuple(sizes[c] for c in order), line=node.line)
    return (b.call("permute_dims", made, axes=tuple(order.index(c) for c in out), line=node.line),)


_RULES: dict[str, Rule] = {
    "sum": _sum,
    "prod": _sum,
    "mean": _mean,
    "moments": _moments,
    "matmul": _matmul,
    "einsum": _einsum,
}
