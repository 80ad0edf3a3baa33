"""Why an array lies as it does: what the next best layouts would cost more, and where.

x: split 0 of 2 takes 1.31 ms
  whole of 2      +0.92 ms   matmul -> float32[8192,64] 0.6 ms (train.py:7)
  split 1 of 2    +3.3 ms    all_to_all of float32[8192,64] 2.1 ms (train.py:7)"""

from __future__ import annotations

from collections import defaultdict

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.user_line import misfit
from ostinato.planner.layouts.costs import node_seconds
from ostinato.planner.layouts.options import candidates
from ostinato.planner.machine import Machine
from ostinato.planner.passes.communicate import kind_of
from ostinato.planner.passes.layouts import choose_layouts, given, lay_out, twins
from ostinato.planner.plan import Plan, export, local_bytes
from ostinato.planner.preparing import prepared
from ostinato.planner.seeing.explain import amount, seconds

from ostinato.errors import ArgumentError

Spent = dict[tuple[str, str], float]  # by what is done and the user's line
SHOWN = 3


@export
def why(plan: Plan, name: str) -> str:
    """The layouts of an operand or a result, the one it has first."""
    graph, target = prepared(plan.traced, plan.target), plan.target
    if target.workers == 1:
        return f"{name}: one worker has all of it"
    names = list(plan.names[: len(graph.inputs)])
    names += [f"operand {k}" for k in range(len(names), len(graph.inputs))]
    results = [f"result {k}" for k in range(len(graph.outputs))]
    if name not in names and name not in results:
        got, needed = "no array of this plan", "one of " + ", ".join([*names, *results])
        raise misfit(ArgumentError, f"why({name!r:.60})", got=got, needed=needed)
    inputs = given(graph, target)
    chosen = choose_layouts(graph, target)
    ends: list[Layout | None] = [s.layout for s in chosen.out_specs]
    k = names.index(name) if name in names else results.index(name)
    spec = inputs[k] if name in names else chosen.out_specs[k]
    assert spec.layout is not None
    if spec.layout.stored:
        return f"{name}: lies in a file, of which each worker reads what it needs"
    found, state = [], twins(graph)
    for layout in candidates(spec.bare, target.mesh, target.numerics == "any-workers"):
        if layout is spec.layout:
            continue
        if name in names:
            others = [*inputs[:k], spec.at(layout), *inputs[k + 1 :]]
            back = [layout if state.get(n) == k else end for n, end in enumerate(ends)]
            made = lay_out(graph, others, target, back)
        else:
            made = lay_out(graph, inputs, target, [*ends[:k], layout, *ends[k + 1 :]])
        found.append((layout, _spent(target.machine, made)))
    now = _spent(target.machine, chosen)
    total = sum(now.values())
    lines = [f"{name}: {spec.layout} takes {seconds(total)} ({target.machine.name} machine)"]
    found.sort(key=lambda f: sum(f[1].values()))
    rows = []
    for layout, spent in found[:SHOWN]:
        more = local_bytes(spec.at(layout)) - local_bytes(spec)
        room = f"{amount(more)} more memory per worker" if more > 0 else ""
        causes = ", ".join(filter(None, (_cause(now, spent), room)))
        rows.append((str(layout), sum(spent.values()) - total, causes))
    wide = max([len(w) for w, _, _ in rows], default=0)
    lines += [f"  {w:<{wide}}  {_more(extra):>9}  {cause}".rstrip() for w, extra, cause in rows]
    return "\n".join(lines)


def _more(extra: float) -> str:
    return ("+" if extra >= 0 else "-") + seconds(abs(extra))


def _spent(machine: Machine, graph: Graph) -> Spent:
    spent: Spent = defaultdict(float)
    specs = {id(n): [g.specs[v] for v in n.inputs] for g in _graphs(graph) for n in g.nodes}
    for node, took in node_seconds(machine, graph):
        what = f"{node.op} -> {node.specs[0].bare}"
        if node.op == "relayout":
            (has, *_), end = specs[id(node)], node.specs[0].layout
            assert has.layout is not None
            assert end is not None
            kind = "sum of parts" if has.layout.partial_axes else kind_of(has, end)
            kind = "addends" if end.partial_axes else kind
            what = f"{kind} of {has.bare}"
        spent[what, node.line] += took
    return spent


def _graphs(graph: Graph) -> list[Graph]:
    return [graph, *(g for n in graph.nodes for _, b in n.subgraphs() for g in _graphs(b))]


def _cause(now: Spent, then: Spent) -> str:
    """Find what takes most of what a layout takes more."""
    more = {key: took - now.get(key, 0.0) for key, took in then.items()}
    (what, line), extra = max(more.items(), key=lambda m: m[1], default=(("", ""), 0.0))
    if extra <= 0:
        return ""
    return f"{what} {_more(extra)}" + (f" ({line})" if line else "")
