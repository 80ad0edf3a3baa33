"""What a loop's kernel knows of values while it is written: where they lie, how elements are had, what they
read; and in which order a body's operations are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Shape, Spec, strided_like
from ostinato.ops.flow.control import ONE_KERNEL
from ostinato.ops.jit.values import Unsupported, Value

MAX_LOOP_ELEMENTS = 1 << 15  # beyond, threads and libraries are worth their calls
Index = tuple[str, ...]
Strides = tuple[int, ...]


@dataclass(eq=False)
class Buffer:
    """Memory that turns write, in order."""

    at: str  # the register that has its address
    size: int  # in elements
    cell: str = ""  # where that is kept, if two change places


@dataclass(frozen=True)
class Strided:
    """Where an array's elements are in memory."""

    at: str
    strides: Strides
    room: Buffer | None = None  # None for what no turn writes


@dataclass(eq=False)
class Seen:
    """A value as loops have its elements."""

    shape: Shape
    dtype: DType
    element: Callable[[Index], Value]
    # whether in step with its own elements
    reads: Mapping[Buffer, bool] = field(default_factory=dict)
    lies: Strided | None = None
    work: float = 0.0  # of an element that is made
    made: tuple[Node, Sequence[Seen]] | None = None  # by an elementwise operation
    index: int | None = None  # the axis, from the end, of which its elements are the places
    masked: Masked | None = None

    @property
    def is_number(self) -> bool:
        return math.prod(self.shape) == 1

    @property
    def is_mask(self) -> bool:
        """Whether it is made where it is read, as it says a range."""
        return self.masked is not None and self.masked.inside is None

    @property
    def is_moved(self) -> bool:
        """Whether something of it is to be made or found."""
        return self.lies is None and not self.is_number


class Limit(NamedTuple):
    """A range begins, and ends, so much behind a number; None: it is not limited so."""

    number: Seen
    begin: int | None
    end: int | None


@dataclass(frozen=True)
class Masked:
    """An array that has elements of its own in a range along an axis only; a mask, where it is true."""

    axis: int  # from the end
    limits: tuple[Limit, ...]
    inside: Seen | None = None
    outside: str = ""  # the number that is everywhere else


@dataclass
class Carried:
    """What goes from turn to turn: a number in a cell, or an array in one of two buffers."""

    spec: Spec
    cell: str
    room: Buffer | None = None
    other: Buffer | None = None
    is_other_used: bool = False


class Frame:
    """A body that is being written."""

    def __init__(self, graph: Graph, values: Sequence[Seen], homes: Mapping[int, Carried]) -> None:
        self.graph = graph
        self.values = dict(enumerate(values))
        self.order = writing_order(graph)
        place = {k: n for n, k in enumerate(self.order)}
        self.last = [max((place[u] for u in uses), default=-1) for uses in graph.uses]
        for v in graph.outputs:
            self.last[v] = len(self.order)
        self.at = 0  # where it is in this order
        self.homes = dict(homes)

    def alive(self) -> list[int]:
        """The values that are read later."""
        return [v for v in self.values if self.last[v] > self.at]


def _source(graph: Graph, v: int) -> int:
    """Find the value that a view is of."""
    while (k := graph.producers[v]) >= 0 and OPS[graph.nodes[k].op].view is not None:
        (v,) = graph.nodes[k].inputs
    return v


def _written(node: Node) -> Sequence[int]:
    """The operands over which its results may be written."""
    if node.op in ONE_KERNEL:
        nc, ns = node.kw["counts"][:2]
        return node.inputs[nc : nc + ns]
    if node.op == "branch":
        return node.inputs[1:]
    return [
        node.inputs[n] for n in OPS[node.op].run.overwrite if n >= 0 and not OPS[node.op].scalar
    ]


@lru_cache(256)
def writing_order(graph: Graph) -> tuple[int, ...]:
    """The nodes, each behind those that it reads, and those that write over an operand behind all others that
    read it, where that can be."""
    readers: dict[int, set[int]] = {}
    for k, node in enumerate(graph.nodes):
        for v in node.inputs:
            readers.setdefault(_source(graph, v), set()).add(k)
    waits = [{graph.producers[v] for v in n.inputs} - {-1} for n in graph.nodes]
    late = [
        set[int]().union(*(readers[_source(graph, v)] for v in _written(n))) - {k}
        for k, n in enumerate(graph.nodes)
    ]
    done, order, left = set[int](), list[int](), list(range(len(graph.nodes)))
    while left:
        found = next((k for k in left if waits[k] <= done and late[k] <= done), -1)
        k = found if found >= 0 else next(k for k in left if waits[k] <= done)
        left.remove(k)
        done.add(k)
        order.append(k)
    return tuple(order)


def fit(index: Index, shape: Shape) -> Index:
    """Index the array that is broadcast to a shape."""
    own = index[len(index) - len(shape) :]
    return tuple("0" if n == 1 else i for i, n in zip(own, shape, strict=True))


def is_whole(x: Seen) -> bool:
    lies = x.lies
    return (
        lies is not None
        and lies.room is not None
        and lies.at == lies.room.at
        and math.prod(x.shape) == lies.room.size
        and lies.strides == strided_like(x.shape, x.dtype).strides
    )


def limited(shape: Shape, whole: Shape = ()) -> Shape:
    """A shape over which loops may go."""
    if math.prod(whole or shape) > MAX_LOOP_ELEMENTS:
        raise Unsupported("long loops")
    return shape


def homes_of(graph: Graph, states: Sequence[Carried | None]) -> dict[int, Carried]:
    """Where values are made that become states."""
    found: dict[int, Carried] = {}
    for v, state in zip(graph.outputs, states, strict=False):
        while state is not None and state.room is not None and v not in found:
            k = graph.producers[v]
            if k < 0:
                break
            node = graph.nodes[k]
            found[v] = state
            if node.op in ("put", "update_slice") or (
                OPS[node.op].moves.same_elements and OPS[node.op].moves.keeps_order
            ):
                v = node.inputs[0]
            elif node.op in ONE_KERNEL:
                nc, ns = node.kw["counts"][:2]
                which = v - graph.starts[k]
                if which >= ns:
                    break
                v = node.inputs[nc + which]
            else:
                break
    return found
