"""Operations on elements go to the kernel that reads what they make, if that reads what they are made of, too.

    kernel a: y = f(x), z = y * 0, writes y and z        kernel a: y = f(x), writes y
    kernel b: reads y and z                              kernel b: reads y, z = y * 0

An operation joins the first kernel that can have it (`groups.py`), and cannot know who reads its result.
The reader may read another array instead: `2 * u - before` of a step of waves is made by the next step, of
`before`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.jit.loops import COUNTED

from .convex import Group
from .joins import AGAIN, JOINED, work_of


def sink(graph: Graph, groups: Sequence[Group]) -> list[Group]:
    """Return the groups that are left. What the first kernel needs itself, both of them make."""
    home = {v: g for g in groups for k in g.members for v in graph.outs(k)}
    grouped = {k for g in groups for k in g.members}
    read = Counter(v for g in groups for v in g.operands)

    def is_in_memory(v: int) -> bool:
        return v in graph.outputs or not grouped.issuperset(graph.uses[v])

    def cone(v: int, maker: Group, reader: Group) -> tuple[set[int], set[int]]:
        """Find what makes a value of those that the reader has anyway, and of one that it reads instead; no
        nodes if that cannot be."""
        found: set[int] = set()
        instead: set[int] = set()
        waiting = [v]
        while waiting:
            u = waiting.pop()
            k = graph.producers[u]
            known = u != v and (
                u in reader.operands or (k >= 0 and graph.nodes[k].op == "constant")
            )
            if known or k in found:
                continue
            if u in maker.operands:
                instead.add(u)
                continue
            again = k in maker.members and _is_simple(graph, k) and read[u] == (u == v)
            if not again or is_in_memory(u):
                return set(), instead
            found.add(k)
            waiting += graph.nodes[k].inputs
        work = sum(work_of(graph.nodes[k]) for k in found)
        small = len(instead) <= 1 and all(
            graph.specs[u].nbytes <= graph.specs[v].nbytes for u in instead
        )
        return found if work <= AGAIN and small else set(), instead

    for reader in groups:
        for v in sorted(reader.operands, reverse=True):
            maker = home.get(v)
            moved = any(graph.nodes[k].op == JOINED for k in graph.uses[v] if k in reader.members)
            if maker is None or moved or reader.product or maker.product:
                continue
            if maker.space != reader.space:
                continue
            found, instead = cone(v, maker, reader)
            if found:
                reader.members = sorted({*reader.members, *found})
                del reader.operands[v]
                reader.operands |= dict.fromkeys(instead)
                read[v] -= 1
                read.update(instead)
                _drop(graph, maker, found)
    return [g for g in groups if g.members]


def _is_simple(graph: Graph, k: int) -> bool:
    """Whether its elements are made of those at the same place alone."""
    node = graph.nodes[k]
    if node.op in (JOINED, COUNTED) or OPS[node.op].element.draws or OPS[node.op].reduce:
        return False
    makers = [m for v in node.inputs if (m := graph.producers[v]) >= 0]
    return all(graph.nodes[m].op != COUNTED for m in makers)


def _drop(graph: Graph, group: Group, cone: Collection[int]) -> None:
    """Take out of a group what it does not read any more."""
    for k in sorted(cone, reverse=True):
        (v,) = graph.outs(k)
        if group.members and not any(u in group.members for u in graph.uses[v]):
            group.members.remove(k)
    for v in [*group.operands]:
        uses = graph.uses[v]
        counts = any(graph.nodes[u].op == COUNTED for u in uses)
        if not counts and not any(u in group.members for u in uses):
            del group.operands[v]
