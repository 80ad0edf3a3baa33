"""Values that take an operation on one in memory, and are read again behind a product of a library, are made
again there: so the first kernel does not write them.

before                                              after
%2 = conv(%0, %1) : float32[n,1,8]                  %2 = conv(%0, %1) : float32[n,1,8]
%3 = mean(%2; axes=(0,)) : float32[8]               %3 = mean(%2; axes=(0,)) : float32[8]
%4 = subtract(%2, %3) : float32[n,1,8]              %4 = subtract(%2, %3) : float32[n,1,8]
%5 = tanh(%4) : float32[n,1,8]                      %5 = tanh(%4) : float32[n,1,8]
%6 = conv(%5, %1) : float32[n,1,8]                  %6 = conv(%5, %1) : float32[n,1,8]
%7 = multiply(%6, %4) : float32[n,1,8]              %7 = barrier(%2, %5; outputs=1) : float32[n,1,8]
return %7                                           %8 = subtract(%7, %3) : float32[n,1,8]
                                                    %9 = multiply(%6, %8) : float32[n,1,8]
                                                    return %9

Slopes of norms read the values without their means. Where slopes ask what was cut off (`where(x <= 0, 0, x)`),
the result is asked, of which the answer is the same. The `barrier` keeps both from being taken for one. This
belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.cpu.fused import FUSED
from ostinato.planner.fusion.convex import NEGLIGIBLE_BYTES
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import looked_at, replace

CUT_OFF, CHOICE = "{0} <= {1}", "({1} if {0} else {2})"  # expressions of elements


def make_again(graph: Graph, target: Target) -> Graph:
    """The pass."""
    found = _Found(graph)
    return replace(graph, found.readers, found.make, lambda g: make_again(g, target))


class _Found:
    """Values that are made again, and for whom."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.products = [0] * len(graph.inputs)  # one after the other, up to a value
        for k, node in enumerate(graph.nodes):
            depth = max([self.products[v] for v in node.inputs], default=0)
            self.products += [depth + self._is_product(k)] * len(node.specs)
        self.again: dict[int, tuple[int, int]] = {}  # what is made again: of which value, operand
        self.readers: dict[int, list[tuple[int, int]]] = {}  # by node: operands, behind what
        for k, node in enumerate(graph.nodes):
            self._look_at(k, node)

    def _is_product(self, k: int) -> bool:
        op = self.graph.nodes[k].op
        return op_of(op).product is not None or op in FUSED

    def _look_at(self, k: int, node: Node) -> None:
        graph = self.graph
        (v, *more) = graph.outs(k)
        if more or graph.specs[v].nbytes < NEGLIGIBLE_BYTES or v in graph.outputs:
            return
        op = OPS.get(node.op)
        if op is None or not op.scalar or op.element.draws or op.work[0] > 2 or op.work[1]:
            return
        size = graph.specs[v].size
        full = [j for j, w in enumerate(node.inputs) if graph.specs[w].size == size]
        if len(full) != 1:
            return
        of = self._cut_off(k, node, node.inputs[full[0]])
        if not self._is_in_memory(of):
            return
        for u in graph.uses[v]:
            behind = self._behind(u, self.products[v])
            if behind >= 0 and not self._is_product(u):
                self.again[v] = of, full[0]
                self.readers.setdefault(u, []).append((v, behind))

    def _cut_off(self, k: int, node: Node, x: int) -> int:
        """The result, where it tells as well as an operand whether that was cut off."""
        graph = self.graph
        if OPS[node.op].scalar != CUT_OFF or node.inputs[0] != x:
            return x
        (asked,), cut = graph.outs(k), node.inputs[1]
        for u in graph.uses[asked]:
            reader = graph.nodes[u]
            if op_of(reader.op).scalar == CHOICE and reader.inputs == (asked, cut, x):
                return graph.outs(u)[0]
        return x

    def _base(self, v: int) -> tuple[int, list[Node]]:
        """Find the value that one looks at, and how."""
        graph, looks = self.graph, list[Node]()
        while (k := graph.producers[v]) >= 0 and OPS[graph.nodes[k].op].view is not None:
            looks.append(graph.nodes[k])
            v = graph.nodes[k].inputs[0]
        return v, looks[::-1]

    def _is_in_memory(self, v: int) -> bool:
        """Whether it is anyway: a product reads it, or something behind one; or reductions, of what a library
        makes, since these are kernels of their own."""
        graph, (base, _) = self.graph, self._base(v)
        k = graph.producers[base]
        if k < 0 or base in self.again:
            return False
        product = op_of(graph.nodes[k].op).product
        alone = product is not None and not product.gemm
        seen = [base]
        for w in seen:  # and what looks at it
            for u in graph.uses[w]:
                op = op_of(graph.nodes[u].op)
                if self._is_product(u) or self._behind(u, self.products[base]) >= 0:
                    return True
                if alone and op.reduce is not None:
                    return True
                if op.view is not None:
                    seen += graph.outs(u)
        return False

    def _behind(self, u: int, depth: int) -> int:
        """Find an operand of the last product of a library that a node waits for, beyond so many; or -1."""
        graph, deepest = self.graph, self.products.__getitem__
        if self.products[graph.outs(u)[0]] <= depth:
            return -1
        k = u
        while True:
            v = max(graph.nodes[k].inputs, key=deepest, default=-1)
            if v < 0 or self.products[v] <= depth:
                return -1  # it is one itself
            k = graph.producers[v]
            if (product := op_of(graph.nodes[k].op).product) is not None or self._is_product(k):
                if product is None or product.gemm:
                    return -1  # one kernel with what is behind it
                return max(graph.nodes[k].inputs, key=deepest)

    def make(self, builder: Builder, u: int, values: Sequence[int]) -> Sequence[int]:
        graph, node = self.graph, self.graph.nodes[u]
        inputs = [values[v] for v in node.inputs]
        for v, behind in self.readers[u]:
            first, (of, which) = graph.nodes[graph.producers[v]], self.again[v]
            base, looks = self._base(of)
            given = values[base], values[behind]
            (late,) = builder.add("barrier", given, {"outputs": 1}, (graph.specs[base],))
            operands = [values[w] for w in first.inputs]
            operands[which] = looked_at(builder, late, looks)
            (made,) = builder.add(first.op, operands, first.params, first.specs, first.line)
            inputs = [made if w == v else new for w, new in zip(node.inputs, inputs, strict=True)]
        return builder.add(node.op, inputs, node.params, node.specs, node.line)
