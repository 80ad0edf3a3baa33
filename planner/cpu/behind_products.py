"""What is elementwise behind a product, and its library does as it writes it, becomes one kernel with it.

before                                                after
%2 = conv(%0, %1; ...) : float32[2,9,9,1,8]           %3 = fused_product(%0, %1, %2; body={
%3 = squeeze(%2; axes=(3,)) : float32[2,9,9,8]            %3 = conv(%0, %1)
%5 = add(%3, %4) : float32[2,9,9,8]                       ... })
%6 = where(%5 <= 0, 0, %5) : float32[2,9,9,8]         return %3
return %6

Slopes ask where a value was cut off below 0; that is then asked of the result, of which the answer is the same,
so that nothing else reads what is in between. This belongs to this machine: plan files hold the graph without
it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.cpu.fused import STEPS
from ostinato.ops.jit.library_steps import LibraryStep, steps_behind
from ostinato.planner.fusion.convex import Unit
from ostinato.planner.fusion.groups import node_of
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace


def take_epilogues(graph: Graph, target: Target) -> Graph:
    graph = _ask_results(graph, _steps(graph, target))
    found = {steps[-1].nodes[-1]: (k, steps) for k, steps in _steps(graph, target).items()}

    def make(builder: Builder, last: int, values: Sequence[int]) -> Sequence[int]:
        k, steps = found[last]
        members = [k, *(u for step in steps for u in step.nodes)]
        others = [step.operand for step in steps if step.operand >= 0]
        unit = Unit(members=members, operands=dict.fromkeys((*graph.nodes[k].inputs, *others)))
        node, _, _ = node_of(graph, unit, {steps[-1].made}, STEPS)
        ins = [values[v] for v in node.inputs]
        return builder.add(node.op, ins, node.params, node.specs, node.line)

    return replace(graph, found, make, lambda g: take_epilogues(g, target))


def _steps(graph: Graph, target: Target) -> dict[int, list[LibraryStep]]:
    """The steps that are done with each product; what adds two of them, with the later one."""
    device, found, taken = described(target.device), dict[int, list[LibraryStep]](), set[int]()
    for k, node in reversed([*enumerate(graph.nodes)]):
        if OPS[node.op].product and (
            behind := {*device.epilogue_of(graph, k, target.numerics == "fast")} - taken
        ):
            steps = [*takewhile(lambda s: behind.issuperset(s.nodes), steps_behind(graph, k))]
            while steps and not (steps[-1].kind and _are_able(graph, k, steps)):
                steps.pop()
            if steps:
                found[k] = steps
                taken.update(u for step in steps for u in step.nodes)
    return found


def _are_able(graph: Graph, k: int, steps: Sequence[LibraryStep]) -> bool:
    read = [*graph.nodes[k].inputs, *(s.operand for s in steps if s.operand >= 0)]
    return len(read) == len({*read}) and all(_is_told(graph, s) for s in steps)


def _is_told(graph: Graph, step: LibraryStep) -> bool:
    """Whether all that asks where a value is below 0 comes later, and so can ask the result."""
    last = step.nodes[-1]
    return step.sign < 0 or (
        step.sign not in graph.outputs and all(u >= last for u in graph.uses[step.sign])
    )


def _ask_results(graph: Graph, found: dict[int, list[LibraryStep]]) -> Graph:
    signs = {s.sign: s for steps in found.values() for s in steps if s.sign >= 0}
    asking = {u for v, s in signs.items() for u in graph.uses[v] if u != s.nodes[-1]}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, ins = graph.nodes[k], list[int]()
        for v in node.inputs:
            if v not in signs:
                ins.append(values[v])
                continue
            step = signs[v]
            sign = graph.nodes[step.nodes[0]]
            given = values[step.made], values[sign.inputs[1]]
            ins += builder.add(sign.op, given, sign.params, sign.specs, sign.line)
        return builder.add(node.op, ins, node.params, node.specs, node.line)

    return replace(graph, asking, make)
