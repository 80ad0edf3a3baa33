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
the result is asked, of which the answer is the same. Several operations are made again, too, if all begin
with one value that is kept: what slopes of an activation need, from what the activation was made of. The
`barrier` keeps both from being taken for one. This belongs to this machine: plan files hold the graph
without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import is_kernel, looked_at, replace

from .convex import NEGLIGIBLE_BYTES

CUT_OFF, CHOICE = "{0} <= {1}", "({1} if {0} else {2})"  # expressions of elements
MAX_WORK = (32, 2)  # of several operations that are made again: simple ones, and functions


def make_again(graph: Graph, target: Target, apart: bool = False) -> Graph:
    """The pass. `apart`: sums are kernels of their own, and bytes are what counts."""
    found = _Found(graph, target.memory_limit is None, apart)  # else its ladder says what is kept
    return replace(graph, found.readers, found.make, lambda g: make_again(g, target, apart))


class _Again(NamedTuple):
    """How a value is made again: of one that is in memory, in the place of another, by these nodes."""

    of: int
    place: int
    steps: Sequence[int]


class _Found:
    """Values that are made again, and for whom."""

    def __init__(self, graph: Graph, several: bool, apart: bool) -> None:
        self.graph, self.several, self.apart = graph, several, apart
        self.products = [0] * len(graph.inputs)  # one after the other, up to a value
        for k, node in enumerate(graph.nodes):
            depth = max([self.products[v] for v in node.inputs], default=0)
            self.products += [depth + self._is_product(k)] * len(node.specs)
        self.again: dict[int, _Again] = {}
        self.late: list[dict[int, int]] = []  # by node: its readers behind a product, behind what
        self.roots: dict[int, int] = {}  # of elements: the value of which alone they are made
        self.readers: dict[int, list[tuple[int, int]]] = {}  # by node: operands, behind what
        for k in range(len(graph.nodes)):
            self._note(k)
        asked = Counter(self.roots[v] for v in self.roots if self.late[graph.producers[v]])
        self.kept = {r for r, n in asked.items() if n > 1}  # one value instead of several
        for k, node in enumerate(graph.nodes):
            self._look_at(k, node)

    def _note(self, k: int) -> None:
        """Who reads it late, and what it is made of."""
        graph, node = self.graph, self.graph.nodes[k]
        (v, *more), op = graph.outs(k), OPS.get(node.op)
        self.late.append({})
        if more or graph.specs[v].nbytes < NEGLIGIBLE_BYTES or v in graph.outputs:
            return
        self.late[k] = {
            u: behind
            for u in graph.uses[v]
            if (behind := self._behind(u, self.products[v])) >= 0 and not self._is_product(u)
        }
        makers = [graph.producers[w] for w in node.inputs]
        again = any(m >= 0 and graph.nodes[m].op == "barrier" for m in makers)
        if op is not None and op.scalar and not op.element.draws and not again:
            found = {self.roots.get(w, -1) for w in self._full(k)}
            self.roots[v] = found.pop() if len(found) == 1 and min(found) >= 0 else v

    def _is_product(self, k: int) -> bool:
        node = self.graph.nodes[k]
        return op_of(node.op).product is not None or is_kernel(node)

    def _look_at(self, k: int, node: Node) -> None:
        graph = self.graph
        (v, *more) = graph.outs(k)
        if more or graph.specs[v].nbytes < NEGLIGIBLE_BYTES or v in graph.outputs:
            return
        several = self.several and self.late[k] and self.roots.get(v, v) in self.kept - {v}
        found = self._of_one(k, node) or (self._of_several(k) if several else None)
        room = 2 * graph.specs[v].nbytes  # a mask, which takes less than what it is made of, stays
        if found is not None and self.late[k] and room >= self.apart * graph.specs[found.of].nbytes:
            self.again[v] = found
            for u, behind in self.late[k].items():
                self.readers.setdefault(u, []).append((v, behind))

    def _full(self, k: int) -> list[int]:
        """The operands that are as large as the result."""
        size = self.graph.specs[self.graph.outs(k)[0]].size
        return [w for w in self.graph.nodes[k].inputs if self.graph.specs[w].size == size]

    def _of_one(self, k: int, node: Node) -> _Again | None:
        """By one cheap operation."""
        op, full = OPS.get(node.op), self._full(k)
        if op is None or not op.scalar or op.element.draws or op.work[0] > 2 or op.work[1]:
            return None
        if len(full) != 1:
            return None
        of = self._cut_off(k, node, full[0])
        return _Again(of, full[0], (k,)) if self._is_in_memory(of) else None

    def _of_several(self, last: int) -> _Again | None:
        """By what leads to it from one value that is kept, if kernels do all of it."""
        graph = self.graph
        (v,) = graph.outs(last)
        readers = [graph.nodes[u].op for u in graph.uses[v]]
        if not all(op in OPS and (OPS[op].scalar or OPS[op].reduce) for op in readers):
            return None  # it is in memory anyway
        root, steps, waiting = self.roots[v], set[int](), [v]
        while waiting:
            if (w := waiting.pop()) != root and (k := graph.producers[w]) not in steps:
                steps.add(k)
                waiting += self._full(k)
        work = zip(*(OPS[graph.nodes[k].op].work for k in steps), strict=True)
        if any(sum(each) > most for each, most in zip(work, MAX_WORK, strict=True)):
            return None
        return _Again(root, root, sorted(steps))

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
        alone = product is not None and (self.apart or not product.gemm)
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
        size = max(graph.specs[v].size for v in graph.nodes[u].inputs)
        sums = [v for v in graph.nodes[u].inputs if graph.specs[v].size < size]
        k, v = u, max(sums, key=deepest, default=-1)
        if self.apart and v >= 0 and deepest(v) > depth:
            return v  # made of what another kernel has reduced
        while True:
            v = max(graph.nodes[k].inputs, key=deepest, default=-1)
            if v < 0 or self.products[v] <= depth:
                return -1  # it is one itself
            k = graph.producers[v]
            if self._is_product(k):
                return max(graph.nodes[k].inputs, key=deepest)

    def make(self, builder: Builder, u: int, values: Sequence[int]) -> Sequence[int]:
        graph, node = self.graph, self.graph.nodes[u]
        inputs = [values[v] for v in node.inputs]
        for v, behind in self.readers[u]:
            of, place, steps = self.again[v]
            base, looks = self._base(of)
            given = values[base], values[behind]
            (late,) = builder.add("barrier", given, {"outputs": 1}, (graph.specs[base],))
            made = {place: looked_at(builder, late, looks)}
            for k in steps:
                step = graph.nodes[k]
                operands = [made.get(w, values[w]) for w in step.inputs]
                (made[graph.outs(k)[0]],) = builder.add(
                    step.op, operands, step.params, step.specs, step.line
                )
            inputs = [
                made[v] if w == v else new for w, new in zip(node.inputs, inputs, strict=True)
            ]
        return builder.add(node.op, inputs, node.params, node.specs, node.line)
