"""Running sums in kernels in stages: which stages go along with them, tile after tile.

    walk = cumsum(x, 1); (cummax(walk) - walk).max(1)        rows: i; lanes along i; tiles of j

Of what all stages along `j` make, a tile is in cache: what `x` has there, transposed in registers;
the walk; its largest. One row for each running sum is carried from tile to tile. What needs all of
`j` comes behind the last tile; if that goes along `j`, too, all of `j` is in cache instead."""

from __future__ import annotations

from ostinato.ops.core.registry import OPS
from ostinato.ops.jit.stage_values import Stages


def goes_along(stages: Stages, k: int, label: int) -> bool:
    """Whether a node's own work runs over a label."""
    return label in stages.iterates(k)


def runs_once(stages: Stages, label: int, lane: int) -> bool:
    """Whether one pass along a label does all that runs over it: nothing there waits for all of it, and what is
    combined is so element by element of the lane."""
    if {*stages.running.values()} != {label} or any(
        label in stages.labels(v) for v in stages.gathered
    ):
        return False
    for r in stages.reductions.values():
        if label in r.over and (lane in r.over or r.kind == "moments"):
            return False
    late = waits(stages, label)
    return not any(
        goes_along(stages, k, label) and (k in late or OPS[node.op].moves.places)
        for k, node in enumerate(stages.body.nodes)
    )


def waits(stages: Stages, label: int) -> set[int]:
    """The nodes that need what is combined over all of a label."""
    body, found = stages.body, set[int]()
    ends = {v for v, r in stages.reductions.items() if label in r.over}
    for k, node in enumerate(body.nodes):
        makers = {body.producers[v] for v in node.inputs}
        combined = any(v in ends for u in makers if u >= 0 for v in body.outs(u))
        if combined or not found.isdisjoint(makers):
            found.add(k)
    return found
