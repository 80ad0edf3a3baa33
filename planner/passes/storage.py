"""Under a policy that says how floating values are kept: all arithmetic in this dtype.

before                                    after, in float32
(%0: float64[4], %1: float64[9])          (%0: float64[4], %1: float64[9])
%2 = slice(%1; ...) : float64[4]          %2 = astype(%0; dtype=dtype float32) : float32[4]
%3 = add(%0, %2) : float64[4]             %3 = slice(%1; ...) : float64[4]
return %3                                 %4 = astype(%3; dtype=dtype float32) : float32[4]
                                          %5 = add(%2, %4) : float32[4]
                                          %6 = astype(%5; dtype=dtype float64) : float64[4]
                                          return %6

Parts of arguments are taken before they are cast, so that of a file only these are read. An operation
without such a dtype runs as it was written, between casts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.array.expressions import Expression
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Spec, complex64, complex128, is_inexact, promote
from ostinato.planner.rewrite import Values, map_bodies

from ostinato.errors import OstinatoError


def store_in(graph: Graph, dtype: DType, inside: bool = False) -> Graph:
    """The graph with its arithmetic in this dtype; arguments and results are as they were, or, inside
    of another graph, of this dtype, too."""
    keep = _Keeper(dtype)
    inputs = graph.inputs
    if inside:
        inputs = tuple(Spec(s.shape, keep.kind(s.dtype), s.layout) for s in inputs)
    builder = Builder(inputs)
    values = list(range(len(inputs)))
    for node in graph.nodes:
        operands = tuple([values[v] for v in node.inputs])
        made = keep.node(builder, node, operands, [graph.specs[v] for v in node.inputs])
        values.extend(made[: len(node.specs)])
    outputs = []
    for v in graph.outputs:
        wanted = graph.specs[v].dtype
        outputs.append(cast_once(builder, values[v], keep.kind(wanted) if inside else wanted))
    return builder.graph(outputs)


def cast_once(builder: Builder, v: int, dtype: DType, line: str = "") -> int:
    """A value in another dtype. What is seen turned or reshaped is cast as it was before, so that all
    who look at it need one cast."""
    if builder.specs[v].dtype == dtype:
        return v
    maker = builder.maker(v)
    if maker is not None and OPS[maker.op].moves.converts:
        source, wide = maker.inputs[0], builder.specs[v].dtype
        if builder.specs[source].dtype == dtype and promote(dtype, wide) == wide:
            return source  # which was only widened
    if maker is not None and OPS[maker.op].moves.same_elements:
        source = cast_once(builder, maker.inputs[0], dtype, line or maker.line)
        spec = Spec(maker.specs[0].shape, dtype)
        return builder.add(maker.op, (source,), maker.params, (spec,), maker.line)[0]
    line = line or (maker.line if maker is not None else "")
    return Expression(builder, v, line).astype(dtype).value


class _Keeper:
    """How nodes become those of one floating dtype."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def kind(self, dtype: DType) -> DType:
        """In which dtype values of this one are kept."""
        if not is_inexact(dtype):
            return dtype
        if dtype.kind == "c":
            return complex128 if self.dtype.itemsize == 8 else complex64
        return self.dtype

    def node(
        self, builder: Builder, node: Node, inputs: Values, written: Sequence[Spec]
    ) -> Sequence[int]:
        op = OPS[node.op]
        if op.element.random_in_kernel is not None:
            return builder.add(node.op, inputs, node.params, node.specs, node.line)
        if (op.moves.same_elements or op.moves.selects) and builder.specs[
            inputs[0]
        ].dtype == written[0].dtype:
            return builder.add(node.op, inputs, node.params, node.specs, node.line)
        kept = [self.cast(builder, v, node.line) for v in inputs]
        if op.moves.converts:
            return [cast_once(builder, kept[0], self.kind(node.specs[0].dtype), node.line)]
        made = self._computed(builder, node, kept)
        if made is None and op.scalar:  # beside integers it may be wider, of bools narrower
            kept = [
                v
                if is_inexact(builder.specs[v].dtype)
                else cast_once(builder, v, self.dtype, node.line)
                for v in kept
            ]
            made = self._computed(builder, node, kept)
        if made is not None:
            return made
        again = [
            cast_once(builder, v, s.dtype, node.line) for v, s in zip(kept, written, strict=True)
        ]
        return builder.add(node.op, again, node.params, node.specs, node.line)

    def cast(self, builder: Builder, v: int, line: str) -> int:
        return cast_once(builder, v, self.kind(builder.specs[v].dtype), line)

    def _computed(
        self, builder: Builder, node: Node, inputs: Sequence[int]
    ) -> Sequence[int] | None:
        """The node over these, if that gives what is kept."""
        inner = map_bodies(node, lambda g: store_in(g, self.dtype, inside=True))
        params: dict[str, Any] = {
            k: self.kind(v) if isinstance(v, np.dtype) else v for k, v in inner.params
        }
        try:
            made = OPS[node.op].infer(*(builder.specs[v].bare for v in inputs), **params)
        except OstinatoError:
            return None
        specs = made if isinstance(made, tuple) else (made,)
        for got, written in zip(specs, node.specs, strict=True):
            fits = got.dtype == self.kind(written.dtype) or (
                got.dtype == written.dtype and not OPS[node.op].scalar  # as counts are
            )
            if got.shape != written.shape or not fits:
                return None
        return builder.add(node.op, inputs, params, specs, node.line)
