"""Several turns of a loop become one where its state then needs one wider halo for all of them.

before                                         after
%1 = loop(%0; trips=10, body=(                 %1 = loop(%0; trips=2, body=(
    %1 = relayout(%0) : ... window 64:-1:1:3       %1 = relayout(%0) : ... window 64:-4:1:9
    %2 = correlate(%1, ...)                        %2 = correlate(%1, ...) : ... window 64:-3:1:7
    return %2))                                    ...
                                                   return %5))
                                               %2 = loop(%1; trips=1, body={ of the two that are left })

As many as take least time for each, as the model of the machine has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.planner.rewrite import Values, inline, rebuild

TURNS = (2, 4, 8, 16)


def grouped(
    builder: Builder, node: Node, inputs: Sequence[int], turns: int, body: Callable[[int], Graph]
) -> Sequence[int]:
    """A loop with so many turns in one, and one turn of those that are left. `body`: of so many."""
    trips, ns = node.kw["trips"], node.kw["counts"][1]
    made = tuple(inputs)
    for times, count in ((trips // turns, turns), (1, trips % turns)):
        if count:
            params = {**node.kw, "body": body(count), "trips": times}
            states = builder.add("loop", made, params, node.specs, node.line)
            made = (*made[: len(made) - ns], *states)
    return made[len(made) - ns :]


def together(node: Node, turns: int) -> Graph:
    """A body that does what so many turns did."""
    body, (nc, ns, _) = node.kw["body"], node.kw["counts"]
    builder = Builder(body.inputs)
    consts, states = range(1, 1 + nc), list(range(1 + nc, 1 + nc + ns))
    for _ in range(turns):
        states = inline(builder, body, [0, *consts, *states])
    return builder.graph(states)


def may_be_grouped(node: Node) -> bool:
    """Whether a loop is one of steps, which stack nothing, do not ask for their number, and have no loops of
    their own."""
    if node.op != "loop" or node.kw["reverse"] or len(node.specs) > node.kw["counts"][1]:
        return False
    body: Graph = node.kw["body"]
    free = (
        not body.uses[0]
        and 0 not in body.outputs
        and not any(OPS[n.op].run.host_callback or any(n.subgraphs()) for n in body.nodes)
    )
    return free and not node.kw["counts"][2] and node.kw["trips"] > 1


def best_turns(node: Node, seconds: Callable[[int], float]) -> int:
    """How many turns take least time for each, if they are done in one that takes so many seconds."""
    first = least = seconds(1)
    best = 1
    for turns in TURNS:
        if turns > node.kw["trips"] or turns * len(node.kw["body"].nodes) > 1024:
            break
        took = seconds(turns) / turns
        if took > least:
            break
        best, least = turns, took
    return best if least <= 0.8 * first else 1  # updates in place may become copies


def grouped_like(graph: Graph, lowered: Graph) -> Graph:
    """The graph with as many turns of its loops in one as another graph has."""
    theirs = [n for n in lowered.nodes if n.op != "blocks" and any(n.subgraphs())]

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        if not any(node.subgraphs()) or not theirs:
            return None
        other = theirs.pop(0)
        if may_be_grouped(node) and other.op == "loop" and other.kw["trips"] < node.kw["trips"]:
            for turns in TURNS:
                if node.kw["trips"] // turns == other.kw["trips"]:
                    del theirs[: node.kw["trips"] % turns > 0]
                    return grouped(builder, node, inputs, turns, partial(together, node))
        inner = dict(other.subgraphs())
        params = {k: grouped_like(v, inner[k]) if k in inner else v for k, v in node.kw.items()}
        return builder.add(node.op, inputs, params, node.specs, node.line)

    return rebuild(graph, rule)
