"""Whether a graph makes sense, and whether a program computes what it claims: for plans that come
from elsewhere.

`check_source`    a graph as users' functions make them
`check_graph`     every node's results follow from its operands by the op's own rule
`check_layouts`   every node may run on its parts as they lie, by the op's own indices
`same_program`    the lowered graph, without what only moves data, is the source, simplified
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ostinato.ops.core.build import Builder
from ostinato.ops.core.encode import Malformed, digest, need
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Window
from ostinato.ops.core.layout import Layout, Partial
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Spec
from ostinato.ops.flow.control import CONTROL
from ostinato.ops.planned.collective import COLLECTIVES, REDUCING, STORED, collective_of
from ostinato.ops.planned.reproducible import FIXED

from .layouts.shardings import SUM, extents_of, labels_of, sharding_of
from .machine import NOMINAL
from .passes.communicate import layout_of
from .passes.in_turns import holds
from .passes.layouts import choose_layouts
from .passes.simplify import simplify
from .passes.turn_blocks import grouped_like
from .plan import Target
from .policy import LETTERS, Chosen, policy_of
from .preparing import prepared
from .rewrite import Values, map_bodies, rebuild
from .tolerance import sites

MOST_BOXES = 1 << 21  # parts of arrays with windows or in blocks, which are listed
DEEPEST = 16  # of loops inside loops; Python's own limit is 20
_NEVER = ("relayout", "mark", "custom", "with_gradient", "solution", "call")  # no program has them


def check_source(graph: Graph) -> None:
    """Raises Malformed where a graph is none that users' functions make."""
    check_graph(graph, ("users",))
    _check_waiting(graph)


def _check_waiting(graph: Graph) -> None:
    need(not any(s.pending for s in graph.inputs), "an operand that has not come")
    for node in graph.nodes:
        for _, body in node.subgraphs():
            _check_waiting(body)


def check_graph(graph: Graph, makers: Sequence[str] = ("users", "passes"), depth: int = 0) -> None:
    """Raises Malformed at the first node that does not follow from its operands, by the rule that
    also holds for whoever traces. `makers`: who may have made the nodes."""
    need(depth < DEEPEST, "graphs inside graphs without end")
    for k, node in enumerate(graph.nodes):
        op = OPS.get(node.op)
        need(op is not None and op.made_by in makers, f"an operation {node.op!r:.60}")
        assert op is not None
        ins = [graph.specs[v] for v in node.inputs]
        try:
            made = op.infer(*ins, **node.kw)
        except Exception as error:
            raise Malformed(f"node {k}, {node.op}, which cannot be: {error}") from None
        made = made if isinstance(made, tuple) else (made,)
        facts = [(s.shape, s.dtype, s.pending) for s in made]
        need(
            facts == [(s.shape, s.dtype, s.pending) for s in node.specs],
            f"node {k}, {node.op}, whose results do not follow from its operands",
        )
        for _, body in node.subgraphs():
            check_graph(body, makers, depth + 1)


def seconds_of(graph: Graph) -> float:
    """How long all of it would take one nominal worker, without messages; the body of a `while`
    counts once."""
    total = 0.0
    for node in graph.nodes:
        op, kw = OPS[node.op], node.kw
        inner = sum(seconds_of(body) for _, body in node.subgraphs())
        if node.op == "blocks":
            total += inner + kw["turns"] * len(kw["body"].nodes) * NOMINAL.call_seconds
        elif node.op in CONTROL:
            total += kw.get("trips", 1) * (inner + NOMINAL.call_seconds)
        elif not op.is_view:
            ins = tuple(graph.specs[v] for v in node.inputs)
            total += NOMINAL.kernel_seconds(*op.cost(ins, node.specs, kw), op.run.dense)
    return total


# -- layouts --------------------------------------------------------------------------------
def check_layouts(graph: Graph, target: Target, in_turns: bool = False) -> None:
    """Raises Malformed at the first node that cannot run on its parts as they lie. `in_turns`: the last
    mesh axis is turns."""
    for spec in graph.specs:
        need(spec.layout is not None, "a value that lies nowhere")
        assert spec.layout is not None
        need(spec.layout.workers == target.workers, "a layout for other workers")
    listed = {s for s in graph.specs if (lies := s.layout) and (lies.windows or lies.blocks)}
    boxes = len(listed) * target.workers
    need(boxes <= MOST_BOXES, f"{boxes} parts of arrays")
    for spec in (s for n in graph.nodes for s in n.specs if n.op not in STORED):
        need(not layout_of(spec).stored, "a file that is made on the way")
    started: dict[int, Node] = {}
    for k, node in enumerate(graph.nodes):
        ins = [graph.specs[v] for v in node.inputs]
        need(node.op not in _NEVER, f"a node {node.op}")
        kind = collective_of(node.op, node.kw)
        if node.op == "wait":
            half = len(node.inputs) // 2
            makers = {graph.producers[v] for v in node.inputs[:half]}
            need(len(makers) == 1 and makers <= started.keys(), "a wait for nothing")
            need(
                started.pop(makers.pop()).inputs == node.inputs[half:], "a wait for something else"
            )
            need(
                [s.layout for s in ins[:half]] == [s.layout for s in node.specs],
                "a wait that moves",
            )
            continue
        if node.op == "read":
            need(layout_of(ins[0]).stored, "a read of what is there")
            need(not layout_of(node.specs[0]).windows, "a read of overlapping parts")
            need(not layout_of(node.specs[0]).partial_axes, "a read of addends")
            continue
        if node.op in STORED:
            *places, file = map(layout_of, ins)
            need(file.stored, "a part of a file of what is there")
            need(layout_of(node.specs[0]) is file, "a part of a file that lies elsewhere")
            need(not any(s.pending for s in ins), "a value that is read before it has come")
            need(all(p.is_whole or p.stored for p in places), "places that not all have")
            continue
        if node.op not in CONTROL:
            need(not any(layout_of(s).stored for s in ins), "a file that nobody reads")
        need(not any(s.pending for s in ins), "a value that is read before it has come")
        if node.op == "start":
            started[k] = node
        if node.op in ("round_addends", "widen_sum"):
            same = layout_of(ins[0]) is layout_of(node.specs[0])
            need(same, f"a {node.op} that moves")
        elif kind or node.op in ("narrow", "addend"):
            _check_collective(kind or node.op, node, ins)
        elif node.op in CONTROL:
            inside = target
            if node.op == "blocks":
                inside = replace(target, mesh=(*target.mesh, node.kw["turns"]))
            for _, body in node.subgraphs():
                check_layouts(body, inside, node.op == "blocks")
            _check_joints(node, ins, target)
        elif target.workers > 1:
            _check_way(node, ins, target)
    need(not started, "a start without a wait")
    need(in_turns or not any(layout_of(s).windows for s in graph.out_specs), "results that overlap")
    _check_rounded(graph, target)


def _check_rounded(graph: Graph, target: Target) -> None:
    """Check that what is rounded, but not in the source, is sent to a sum, and that the policy
    allows it."""
    policy = policy_of(target.precision)
    rounded: Counter[DType | None] = Counter()
    for k, node in enumerate(graph.nodes):
        if node.op == "round_addends":
            (has,), (sent,) = [graph.specs[v] for v in node.inputs], node.specs
            need(SUM in layout_of(has).splits, "a rounding of what is no addend")
            if isinstance(policy, Chosen):
                rounded[sent.dtype] += 1
            else:
                need(policy.sent(has.dtype) == sent.dtype, "addends sent in another dtype")
            for u in graph.uses[graph.starts[k]]:
                reader = graph.nodes[u]
                kind = collective_of(reader.op, reader.kw)
                need(kind in REDUCING or reader.op == "wait", "a rounding of what nobody adds")
    for dtype, times in rounded.items():
        assert isinstance(policy, Chosen)
        most = sum(LETTERS[x] == dtype for x in policy.sums)
        need(times <= most, "more sums rounded than the policy says")


def _check_collective(kind: str, node: Node, ins: Sequence[Spec]) -> None:
    need(kind in (*COLLECTIVES, "narrow", "addend"), f"a collective {kind!r:.40}")
    need(len(ins) == len(node.specs), "a collective that loses something")
    for has, gets in zip(ins, node.specs, strict=True):
        here, there = layout_of(has), layout_of(gets)
        need(kind == "narrow" or not here.windows, "a collective from overlapping parts")
        if kind == "narrow":
            pairs = zip(here.splits, there.splits, strict=False)
            stays = [a for a, (s, t) in enumerate(pairs) if isinstance(s, Partial) and s == t]
            same = here.without(stays).has_copy(there.without(stays), has.shape)
            need(same, "a narrow to what is not there")
        elif kind == "addend":
            begun = [a for a in there.partial_axes if here.splits[a] is None]
            need(all(there.splits[a] == SUM for a in begun), "addends of no sum")
            need(here is there.without(begun), "addends of what lies elsewhere")
        elif kind in REDUCING:
            end = here
            for a in node.kw["axes"]:
                need(0 <= a < len(here.mesh), "a reduction along no axis")
                need(here.splits[a] == Partial(node.kw["monoid"]), "a reduction of no addends")
                scatter = there.splits[a] if kind == "reduce_scatter" else None
                end = end.with_split(a, scatter)
            need((end.mesh, end.splits) == (there.mesh, there.splits), "a reduction to elsewhere")
            need(not there.windows, "a reduction to overlapping parts")
        else:
            need(not here.partial_axes and not there.partial_axes, "a move of addends")


def _check_joints(node: Node, ins: Sequence[Spec], target: Target) -> None:
    """Layouts on both sides of the border of a graph inside."""
    kw = node.kw

    def same(outer: Sequence[Layout | None], inner: Sequence[Spec]) -> None:
        need([s.layout for s in inner] == list(outer), "a graph inside that lies elsewhere")

    def moved(spec: Spec, by: int) -> Layout:
        here = layout_of(spec)
        splits = tuple(s + by if isinstance(s, int) else s for s in here.splits)
        need(
            not any(isinstance(s, int) and s < 0 for s in splits), "a loop over parts of its turns"
        )
        return Layout(here.mesh, splits, (), here.blocks)

    given = [s.layout for s in ins]
    whole = Layout.whole(target.mesh)
    if node.op == "loop":
        nc, ns, _ = kw["counts"]
        body = kw["body"]
        same([whole, *given[: nc + ns], *(moved(s, -1) for s in ins[nc + ns :])], body.inputs)
        same(given[nc : nc + ns], body.out_specs[:ns])
        same([moved(s, 0) for s in body.out_specs[:ns]], node.specs[:ns])
        same([moved(s, 1) for s in body.out_specs[ns:]], node.specs[ns:])
    elif node.op == "while":
        nc, _ = kw["counts"]
        for g in (kw["condition"], kw["body"]):
            same(given, g.inputs)
        same(given[nc:], kw["body"].out_specs)
        same(given[nc:], node.specs)
        need(
            layout_of(kw["condition"].out_specs[0]).is_whole, "a condition that is not everybody's"
        )
    elif node.op == "blocks":
        _check_turns(node, ins)
    else:
        need(layout_of(ins[0]).is_whole, "a condition that is not everybody's")
        for g in (kw["then"], kw["otherwise"]):
            same(given[1:], g.inputs)
            same([s.layout for s in node.specs], g.out_specs)


def _check_turns(node: Node, ins: Sequence[Spec]) -> None:
    """Blocks of what lies outside go in; side by side, or as addends of one state, they come out."""
    body: Graph = node.kw["body"]
    need(not any(any(n.subgraphs()) for n in body.nodes), "turns with graphs inside")
    for each in body.nodes:
        if OPS[each.op].run.carries_state:
            *space, cut = layout_of(each.specs[0]).splits
            axis = each.kw["axis"]
            need(cut == axis or axis not in space, "workers that hand over in each turn")
    for spec in body.inputs:
        need(not isinstance(layout_of(spec).splits[-1], Partial), "addends that come in turns")
        need(not layout_of(spec).stored, "turns that read for themselves")
    for outer, inner in zip((*ins, *node.specs), (*body.inputs, *body.out_specs), strict=True):
        lies = layout_of(outer)
        need(
            not lies.stored or isinstance(layout_of(inner).splits[-1], int), "turns of a whole file"
        )
        here = layout_of(inner).without_last_axis
        fits = here.mesh == lies.mesh if lies.stored else holds(outer, here)
        need(fits, "blocks of something that lies elsewhere")
    k = 0
    while k < len(body.outputs):
        split, windows = (
            layout_of(body.out_specs[k]).splits[-1],
            layout_of(body.out_specs[k]).windows,
        )
        need(not windows, "results of turns that overlap")
        need(split is not None, "a result of turns that none of them has alone")
        width = MONOIDS[split.monoid].width if isinstance(split, Partial) else 1
        states = body.outputs[k : k + width]
        makers = {body.producers[v] for v in states}
        need(len(states) == width and len(makers) == 1, "addends of which some are missing")
        if isinstance(split, Partial):
            need(states == tuple(body.outs(makers.pop())), "addends in another order")
        k += width


def _check_way(node: Node, ins: Sequence[Spec], target: Target) -> None:
    """Find the labels that the layouts cut, and compare with what those need and give."""
    if node.op in ("barrier", "copy"):
        same = [s.layout for s in ins[: len(node.specs)]] == [s.layout for s in node.specs]
        need(same, f"a {node.op} that moves")
        return
    blocks = target.numerics == "any-workers"
    indices = OPS[node.op].indices(tuple(ins), node.specs, node.kw)
    chosen: list[str | None] = []
    for axis in range(len(target.mesh)):
        labels = labels_of(indices, node, ins, axis)
        need(len(labels) <= 1, f"{node.op} cut along two indices at once")
        need(
            None not in labels, f"{node.op} cut along an index that is whole, or addends of nothing"
        )
        chosen.append(labels.pop() if labels else None)
    seen = {
        c: window
        for dims, spec in zip(indices.outs, node.specs, strict=True)
        for d, c in enumerate(dims)
        if c is not None and (window := layout_of(spec).window(d)) is not None
    }
    sharding = sharding_of(
        indices,
        extents_of(indices, ins, node.specs),
        ins,
        node,
        tuple(chosen),
        target.mesh,
        blocks,
        seen,
    )
    need(sharding is not None, f"{node.op} cut where it cannot be")
    assert sharding is not None
    for spec, needed, dims in zip(ins, sharding.needs, indices.ins, strict=True):
        here = layout_of(spec)
        same = all(
            here.window(d) == needed.window(d)
            for d, c in enumerate(dims)
            if not isinstance(c, Window)
        )
        fits = here is needed or (
            here.splits == needed.splits
            and here.has_copy(needed, spec.shape)
            and bool(needed.windows)
            and same
        )
        need(fits, f"an operand of {node.op} in another layout than it needs")
    need(
        [layout_of(s) for s in node.specs] == list(sharding.gives),
        f"a result of {node.op} in another layout than it comes in",
    )


# -- meaning --------------------------------------------------------------------------------
def same_program(source: Graph, lowered: Graph, target: Target) -> bool:
    """Whether a lowered graph computes its source: both without what only moves data are the same
    graph. Where an op may bring algorithms of its own, the layouts are chosen again to see which.
    """
    policy = policy_of(target.precision)
    if isinstance(policy, Chosen):
        count = len(list(sites(simplify(source, target))))
        need(len(policy.products) == count, "a letter for each product")
    wanted = grouped_like(prepared(source, target), lowered)
    found = digest(plain(lowered))  # which tells 0.0 from -0.0, and 1 from True
    return digest(plain(wanted)) == found or (
        _has_algorithms(wanted) and digest(plain(choose_layouts(wanted, target))) == found
    )


def _has_algorithms(graph: Graph) -> bool:
    return any(
        OPS[node.op].parallel.algorithms is not None
        or any(_has_algorithms(g) for _, g in node.subgraphs())
        for node in graph.nodes
    )


MOVING = (
    *("narrow", "addend", "round_addends", "widen_sum", "relayout", "resplit", "copy", "start"),
    *("wait", "read", "barrier"),
)


def plain(graph: Graph) -> Graph:
    """The graph without layouts, collectives, copies and what only says when, and with casts behind
    what only looks at their operands: the same numbers, whichever comes first."""
    bare = Graph(tuple(s.bare for s in graph.inputs), graph.nodes, graph.outputs)

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int]:
        if node.op == "blocks":
            body, values = node.kw["body"], list(inputs)
            for inner in body.nodes:
                made = rule(builder, inner, tuple([values[v] for v in inner.inputs]))
                values.extend(made[: len(inner.specs)])
            return [values[v] for v in body.outputs]
        if node.op in (*COLLECTIVES, *MOVING):
            return inputs[: len(node.specs)]
        if OPS[node.op].moves.converts and builder.specs[inputs[0]].dtype == node.specs[0].dtype:
            return inputs  # what was sent rounded
        node = map_bodies(node, plain)
        if OPS[node.op].moves.same_elements:
            return (_seen_before_casts(builder, node, inputs[0]),)
        if node.op == "tree":  # of blocks: the fixed form of the same reduction
            blocks = builder.maker(inputs[0])
            if blocks is not None and blocks.op in FIXED:
                name = FIXED[blocks.op]
                specs = tuple(s.bare for s in node.specs)
                return builder.add(name, blocks.inputs, blocks.params, specs, node.line)
        return builder.add(node.op, inputs, node.params, [s.bare for s in node.specs], node.line)

    return rebuild(bare, rule)


def _seen_before_casts(builder: Builder, look: Node, v: int) -> int:
    """A value as a node looks at it, with its casts behind that."""
    maker, (spec,) = builder.maker(v), look.specs
    if maker is not None and OPS[maker.op].moves.converts:
        seen = _seen_before_casts(builder, look, maker.inputs[0])
        cast = Spec(spec.shape, maker.specs[0].dtype)
        return builder.add(maker.op, (seen,), maker.params, (cast,), maker.line)[0]
    seen_spec = Spec(spec.shape, builder.specs[v].dtype)
    return builder.add(look.op, (v,), look.params, (seen_spec,), look.line)[0]
