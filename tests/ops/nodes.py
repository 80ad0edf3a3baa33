"""Nodes on their own: the graph of a sample, and what a kernel makes of parts of its operands."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops import OPS, Graph, Node
from ostinato.ops.core.array import Trace, term_of
from ostinato.ops.core.device import plain
from ostinato.ops.core.registry import Op, Place
from ostinato.ops.core.trace import collect
from ostinato.ops.core.tree import flatten

import ostinato as ost

from .samples import NOT_SAMPLED, SAMPLES, Sample

SAMPLED = sorted(set(OPS) - set(NOT_SAMPLED))
Box = tuple[tuple[int, int], ...]


def of(name: str) -> list[Sample]:
    """The samples of an operation, which every operation has."""
    if name not in SAMPLES:
        pytest.fail(f"add SAMPLES[{name!r}] in tests/ops/samples.py")
    return SAMPLES[name]


@functools.lru_cache(None)
def traced(sample: Sample) -> tuple[Graph, list[Any]]:
    """The graph of a sample, and the values of its inputs."""
    with Trace("sample"):  # else rows would be copied at once
        arrays = [ost.asarray(x) for x in sample.inputs]
        found = collect([term_of(y) for y in flatten(sample.function(*arrays))[0]])
    return found.graph, [np.asarray(t.operands[k].value) for t, k in found.captured]


def graphs(graph: Graph) -> Iterator[Graph]:
    """A graph and those inside it."""
    yield graph
    for node in graph.nodes:
        for _, body in node.subgraphs():
            yield from graphs(body)


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, n) for n in shape)


def extent(box: Box) -> tuple[int, ...]:
    return tuple(hi - lo for lo, hi in box)


def blank(shape: Sequence[int], dtype: Any, xp: Any = np) -> Any:
    """Memory in which it shows when an element is not written."""
    raw = xp.full(math.prod(shape) * dtype.itemsize, 0x7B, np.uint8)
    return raw.view(dtype).reshape(tuple(shape))


def ins_of(graph: Graph, node: Node) -> tuple[Any, ...]:
    return tuple(graph.specs[v] for v in node.inputs)


def place(graph: Graph, node: Node, ins: Sequence[Box], outs: Sequence[Box]) -> Place:
    shapes = tuple(s.shape for s in ins_of(graph, node)), tuple(s.shape for s in node.specs)
    return Place(tuple(ins), tuple(outs), *shapes)


def run(
    graph: Graph,
    node: Node,
    operands: Sequence[Any],
    at: Place | None = None,
    *,
    outs: Sequence[Any] | None = None,
    unread: Sequence[int] = (),
    xp: Any = np,
    ends: dict[Any, Any] | None = None,
) -> list[Any]:
    """What a node makes of its operands, or of parts of them, which are arrays of `xp`. `ends`: what parts
    that came before ended with, if the op goes on."""
    op: Op = OPS[node.op]
    if at is None:
        boxes = [whole(x.shape) for x in operands], [whole(s.shape) for s in node.specs]
        at = place(graph, node, *boxes)
    if op.kernel is None and not op.run.ufunc:
        assert op.view is not None
        return [op.view(xp, operands[0], at, **node.kw)]
    made: list[Any] = [
        None if k in unread else blank(extent(box), s.dtype, xp)
        for k, (box, s) in enumerate(zip(at.outs, node.specs, strict=True))
    ]
    made = list(outs) if outs is not None else made
    params = plain(node.kw)
    if op.run.ufunc:
        getattr(xp, op.run.ufunc)(*operands, out=made[0])
        return made
    assert op.kernel is not None
    if op.run.scratch is not None:
        specs = (*ins_of(graph, node), *node.specs)
        needs = op.run.scratch(
            [x.shape for x in operands], [extent(b) for b in at.outs], specs, **params
        )
        params["scratch"] = tuple(blank(s.shape, s.dtype, xp) for s in needs)
    if op.run.carries_state and ends is not None:
        others = tuple(b for d, b in enumerate(at.outs[0]) if d != params["axis"])
        params["scratch"] = ends.setdefault(others, params["scratch"])
    if op.run.placed:
        params["at"] = at
    op.kernel(xp, made[0] if len(made) == 1 else made, *operands, **params)
    return made


def nodes_of(name: str) -> Iterator[tuple[Graph, Node, list[Any], list[Any]]]:
    """Each node of this operation in its samples, with the values of its operands and results."""
    for sample in of(name):
        graph, inputs = traced(sample)
        values = list(inputs)
        for node in graph.nodes:
            op = OPS[node.op]
            if not (op.kernel or op.run.ufunc or op.view):
                break  # control flow
            operands = [values[v] for v in node.inputs]
            with np.errstate(all="ignore"):
                made = run(graph, node, operands)
            if node.op == name:
                yield graph, node, operands, made
            values.extend(made)


def same(got: Any, wanted: Any, what: str) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), what
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(got, wanted, err_msg=what)
        return
    is_complex = wanted.dtype.kind == "c"
    rtol = {8: 1e-10, 4: 1e-5, 2: 3e-2}[wanted.dtype.itemsize // (1 + is_complex)]
    kind = np.complex128 if is_complex else np.float64
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            got.astype(kind), wanted.astype(kind), rtol=rtol, atol=rtol, err_msg=what
        )
