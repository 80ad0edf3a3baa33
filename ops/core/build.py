"""Graphs made node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .exact import exact_items
from .graph import Graph, Items, Node, canonical
from .registry import lookup
from .spec import Spec


class Builder:
    """Makes a graph node by node; an equal node is made once."""

    def __init__(self, inputs: Sequence[Spec]) -> None:
        self.inputs = tuple(inputs)
        self.specs: list[Spec] = list(inputs)
        self.nodes: list[Node] = []
        self._makers: list[int] = [-1] * len(self.specs)
        self._seen: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self.line = ""  # of what is called from now on

    def add(
        self,
        op: str,
        inputs: Sequence[int],
        params: Items | Mapping[str, Any],
        specs: Sequence[Spec],
        line: str = "",
    ) -> tuple[int, ...]:
        """The values of this node, which may have been there already."""
        if not isinstance(params, tuple):
            params = tuple(sorted(params.items()))
        key = (op, tuple(inputs), exact_items(params), tuple(specs))
        found = self._seen.get(key)
        if found is None:
            first = len(self.specs)
            self.nodes.append(Node(op, key[1], params, key[3], line, key[2]))
            self.specs.extend(specs)
            self._makers.extend([len(self.nodes) - 1] * len(specs))
            found = self._seen[key] = tuple(range(first, len(self.specs)))
        return found

    def maker(self, value: int) -> Node | None:
        """The node that makes a value; None for an input."""
        k = self._makers[value]
        return self.nodes[k] if k >= 0 else None

    def call(self, op: str, *inputs: int, line: str = "", **params: Any) -> int:
        """One node whose specs follow from the op's own rule; its first value."""
        made = lookup(op).infer(*(self.specs[v].bare for v in inputs), **params)
        return self.add(
            op, inputs, params, made if isinstance(made, tuple) else (made,), line or self.line
        )[0]

    def graph(self, outputs: Sequence[int]) -> Graph:
        return canonical(Graph(self.inputs, tuple(self.nodes), tuple(outputs)))
