"""The order of a long kernel's operations, in which what they make waits in few registers.

A graph's order may be that of one result after the other. Here a value goes on as soon as something reads it
and leaves no more values behind than before, if need be with one or two others made first:

    z0 = x0 < 4, x1 = f(x0), z1 = x1 < 4, ..., c0 = c + z0, c1 = c0 + z1
    z0 = x0 < 4, c0 = c + z0, x1 = f(x0), z1 = x1 < 4, c1 = c0 + z1, ..."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.graph import Graph


def order_for_registers(
    graph: Graph, members: Sequence[int], at_once: int = 3
) -> tuple[list[int], list[int]]:
    """Some nodes in another order, and how many registers of 4 bytes have values behind each of them. `at_once`
    are done to be rid of a value."""
    own, done, order, taken = {*members}, set[int](), list[int](), list[int]()
    left = {v: sum(u in own for u in {*graph.uses[v]}) for k in members for v in graph.outs(k)}
    alive = 0

    def run(k: int) -> int:
        """Registers that are taken, less those that are free again."""
        change = 0
        for v in graph.outs(k):
            change += (left[v] > 0) * _words(graph, v)
        for v in {*graph.nodes[k].inputs} & left.keys():
            left[v] -= 1
            change -= (left[v] == 0) * _words(graph, v)
        return change

    def undo(k: int) -> None:
        for v in {*graph.nodes[k].inputs} & left.keys():
            left[v] += 1

    def missing(k: int) -> list[int]:
        """A node behind those that it still waits for; empty if these are too many."""
        found, waiting = [k], [k]
        while waiting:
            for v in graph.nodes[waiting.pop()].inputs:
                j = graph.producers[v]
                if j in own and j not in done and j not in found:
                    found.append(j)
                    waiting.append(j)
            if len(found) > at_once:
                return []
        return sorted(found)

    for k in members:
        ready = [] if k in done else [k]
        while ready:
            j = ready.pop(0)
            if j in done:
                continue
            alive += run(j)
            taken.append(alive)
            done.add(j)
            order.append(j)
            for u in sorted({u for v in graph.outs(j) for u in graph.uses[v] if u in own} - done):
                some = missing(u)
                change = sum(map(run, some))
                for i in some:
                    undo(i)
                if some and change <= 0:
                    ready = [*some, *ready]
                    break
    return order, taken


def _words(graph: Graph, v: int) -> int:
    return -(-graph.specs[v].dtype.itemsize // 4)
