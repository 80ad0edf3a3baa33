"""A plan to which gathers of operands are given, instead of doing them in each run.

    (%0: float32[8,6] @ split 0, %1: ...)              (%0: ..., %1: ..., %2: float32[8,6] @ whole)
    %2 = start(%0; collective='all_gather')            %3 = matmul(%2, %1)
    %3 = wait(%2, %0)                                  return %3
    %4 = matmul(%3, %1)
    return %4

The rest is the same program. Whoever runs it gives what was gathered behind the other operands, of which it
is made by a plan of its own (`gather_of`). `ostinato/replicas.py` decides when that is done."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.planned.collective import collective_of

from .pipeline import program_of
from .plan import Key, Plan, local_bytes
from .policy import AS_WRITTEN
from .rewrite import reading
from .rewrite import replace as replaced

GATHERS = ("all_gather", "broadcast", "all_to_all")


@dataclass(frozen=True, slots=True)
class Gather:
    """A collective of an operand as it comes, or as it is seen or rounded."""

    node: int  # that does it, or starts it
    operand: int
    looks: tuple[Node, ...]  # in between, in order
    spec: Spec  # what it gives

    @property
    def bytes(self) -> int:
        """On each worker."""
        return local_bytes(self.spec)


def gathers(plan: Plan) -> tuple[Gather, ...]:
    """List a plan's gathers whose results could be given to it."""
    graph, found = plan.lowered, list[Gather]()
    for k, node in enumerate(graph.nodes):
        if collective_of(node.op, node.kw) not in GATHERS or len(node.inputs) > 1:
            continue
        (v,), looks = node.inputs, list[Node]()
        while v >= len(graph.inputs):
            maker = graph.nodes[graph.producers[v]]
            if len(maker.inputs) != 1 or not _only_looks(maker):
                break
            looks.insert(0, maker)
            (v,) = maker.inputs
        spec = node.specs[0]
        spec = Spec(spec.shape, spec.dtype, spec.layout)
        if v >= len(graph.inputs) or spec.layout is None or spec.layout.windows:
            continue
        lies = graph.specs[v].layout
        if lies is not None and not lies.stored and v not in plan.key.donated:
            found.append(Gather(k, v, tuple(looks), spec))
    return tuple(found)


def _only_looks(node: Node) -> bool:
    op = OPS[node.op]
    return op.made_by == "users" and (op.moves.converts or (op.moves.same_elements and op.is_view))


def gather_of(plan: Plan, gather: Gather) -> Key:
    """Make the key of the plan that does a gather alone."""
    has, (end, layout) = plan.traced.inputs[gather.operand], (gather.spec, gather.spec.layout)
    assert layout is not None
    builder, v = Builder((has,)), 0
    for look in gather.looks:
        (v,) = builder.add(look.op, (v,), look.params, [s.bare for s in look.specs], look.line)
    params = {"split": layout.splits, "mesh": None}
    (v,) = builder.add("resplit", (v,), params, (end.bare,), "")
    return Key(builder.graph([v]), replace(plan.target, precision=AS_WRITTEN))


def given(plan: Plan, which: tuple[int, ...]) -> Plan:
    """The plan to which some of its gathers are given, behind its operands."""
    found = [gathers(plan)[k] for k in which]
    before = plan.lowered
    count, more = len(before.inputs), len(found)

    def source_of(v: int) -> int:
        return v if v < count else v + more

    nodes = tuple([reading(n, [source_of(v) for v in n.inputs]) for n in before.nodes])
    inputs = (*before.inputs, *(g.spec for g in found))
    graph = Graph(inputs, nodes, tuple([source_of(v) for v in before.outputs]))
    comes = {g.node: count + k for k, g in enumerate(found)}
    for k, node in enumerate(graph.nodes):
        if node.op == "wait" and (maker := graph.producers[node.inputs[0]]) in comes:
            comes[k] = comes[maker]

    def instead(builder: Builder, k: int, values: object) -> list[int]:
        return [comes[k]]

    graph = replaced(graph, comes, instead)
    key = replace(plan.key, gathered=which)
    program = program_of(graph, key, plan.results)
    return Plan(key, graph, program, plan.results, plan.names, called=plan.called, gap=plan.gap)
