"""The graph: frozen nodes in a canonical order. Data only; nothing here optimises, draws or runs.

Values are numbered: the inputs first, then the outputs of each node. In a canonical graph nodes
stand in the order in which a depth-first walk from the outputs finishes them, equal nodes are one,
and dead ones are gone; so equal computations are equal graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .exact import exact_items
from .locks import cached_property
from .spec import Spec

Items = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Node:
    op: str
    inputs: tuple[int, ...]
    params: Items = field(compare=False)
    specs: tuple[Spec, ...]
    line: str = field(default="", compare=False)  # the user's own file and line
    key: Any = field(default=None, repr=False)  # its parameters, to the bit

    def __post_init__(self) -> None:
        if self.key is None:
            object.__setattr__(self, "key", exact_items(self.params))

    @property
    def kw(self) -> dict[str, Any]:
        return dict(self.params)

    def subgraphs(self) -> Iterator[tuple[str, Graph]]:
        for name, value in self.params:
            if isinstance(value, Graph):
                yield name, value


@dataclass(frozen=True, repr=False)  # show.py writes it as text
class Graph:
    inputs: tuple[Spec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    @cached_property
    def specs(self) -> tuple[Spec, ...]:
        """The spec of every value."""
        found = list(self.inputs)
        for node in self.nodes:
            found.extend(node.specs)
        return tuple(found)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of each node's first output."""
        found, at = [], len(self.inputs)
        for node in self.nodes:
            found.append(at)
            at += len(node.specs)
        return tuple(found)

    @cached_property
    def producers(self) -> tuple[int, ...]:
        """For each value the node that makes it; -1 for inputs."""
        found = [-1] * len(self.inputs)
        for k, node in enumerate(self.nodes):
            found.extend([k] * len(node.specs))
        return tuple(found)

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For each value the nodes that read it, once per operand."""
        found: list[list[int]] = [[] for _ in self.specs]
        for k, node in enumerate(self.nodes):
            for v in node.inputs:
                found[v].append(k)
        return tuple(map(tuple, found))

    @cached_property
    def has_bodies(self) -> bool:
        """Whether some nodes have graphs inside."""
        return any(isinstance(v, Graph) for node in self.nodes for _, v in node.params)

    @cached_property
    def out_specs(self) -> tuple[Spec, ...]:
        return tuple(self.specs[v] for v in self.outputs)

    def outs(self, k: int) -> range:
        """The values that node k makes."""
        return range(self.starts[k], self.starts[k] + len(self.nodes[k].specs))

    def lines(self) -> Iterator[str]:
        """The user's line of each node, its bodies' behind it."""
        for node in self.nodes:
            yield node.line
            for _, body in node.subgraphs():
                yield from body.lines()

    def with_lines(self, now: Mapping[str, str]) -> Graph:
        """Copy the graph for other lines of the user's."""
        nodes = []
        for n in self.nodes:
            params = n.params
            if any(isinstance(v, Graph) for _, v in params):
                params = tuple(
                    (k, v.with_lines(now) if isinstance(v, Graph) else v) for k, v in params
                )
            nodes.append(Node(n.op, n.inputs, params, n.specs, now.get(n.line, n.line), n.key))
        return Graph(self.inputs, tuple(nodes), self.outputs)

    @cached_property
    def _hash(self) -> int:
        return hash((self.inputs, self.nodes, self.outputs))

    def __hash__(self) -> int:
        return self._hash


def canonical(graph: Graph) -> Graph:
    """Put the nodes in canonical order, and drop dead ones."""
    first = len(graph.inputs)
    producers, starts = graph.producers, graph.starts
    number = list(range(first)) + [-1] * (len(graph.specs) - first)
    order: list[Node] = []
    count = first
    placed = [False] * len(graph.nodes)
    for root in graph.outputs:
        stack = [producers[root]]
        while stack:
            k = stack[-1]
            if k < 0 or placed[k]:
                stack.pop()
                continue
            node = graph.nodes[k]
            waiting = [
                p for v in reversed(node.inputs) if (p := producers[v]) >= 0 and not placed[p]
            ]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            placed[k] = True
            order.append(
                Node(
                    node.op,
                    tuple(number[v] for v in node.inputs),
                    node.params,
                    node.specs,
                    node.line,
                    node.key,
                )
            )
            for v in range(starts[k], starts[k] + len(node.specs)):
                number[v], count = count, count + 1
    return Graph(graph.inputs, tuple(order), tuple(number[v] for v in graph.outputs))
