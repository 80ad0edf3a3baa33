"""Programs of which it is written down what they need: it may only become less."""

from __future__ import annotations

import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.libraries.onednn import library
from ostinato.planner.passes.order import meetings
from ostinato.planner.plan import Plan

from tests.planner.pinned import figures, pinned, plans

ROOM, LITTLE = 1.03, 1024  # of the arena; bytes of which nobody speaks


@pytest.fixture(scope="module")
def made() -> dict[str, Plan]:
    return dict(plans())


@pytest.mark.skipif(
    bool(why_not()) or isinstance(library(), str), reason="no kernels, or no oneDNN"
)
def test_no_program_needs_more_than_before(made: dict[str, Plan]) -> None:
    before, worse = pinned(), []
    for name, plan in made.items():
        (kernels, nodes, room), most = figures(plan), before[name]
        if kernels > most[0] or nodes > most[1] or room > most[2] * ROOM + LITTLE:
            worse.append(f"{name}: {most} -> {kernels, nodes, room}")
    assert not worse, "\n".join(worse)
    assert made.keys() == before.keys()


def test_workers_meet_in_the_order_of_the_plan(made: dict[str, Plan]) -> None:
    """Whatever this machine makes of the rest, as another worker's may make something else."""
    several = 0
    for name, plan in made.items():
        assert met(plan.program.graph) == met(plan.lowered), name
        several += len(met(plan.lowered)) > 1
    assert several > 20


def met(graph: Graph) -> list[object]:
    """Collectives in two halves in whose middle nobody meets are as good as whole ones."""
    nodes, found = [graph.nodes[k] for k in meetings(graph, 2)], list[tuple[object, ...]]()
    for n in nodes:
        specs = tuple([(s.bare.shape, s.layout) for s in n.specs])
        begun = found.pop() if n.op == "wait" and found and found[-1][0] == "start" else None
        op = begun[1] if begun is not None and begun[2] == specs else n.op
        if begun is not None and op == n.op:
            found.append(begun)
        found.append((op, n.kw.get("collective"), specs))
    return found
