"""Time steps of stencils, tile by tile in a block's shared memory (planner/fusion/step_chains.py).

before                                              after
%1 = fused_joins(%0; body=step) : float32[n,m]      %1 = fused_steps(%0; axis=0, body={ ... both })
%2 = fused_joins(%1; body=step) : float32[n,m]      return %1
return %2

This belongs to this machine: plan files hold the graph without it. Idempotent."""

from __future__ import annotations

import math

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import strided_like
from ostinato.ops.gpu.loops.block_tiles import BlockTile, neighbours_of, tile_of
from ostinato.planner.fusion.step_chains import Chain, Room, tile_steps
from ostinato.planner.layouts.costs import kernel_work
from ostinato.planner.machine import overlapped
from ostinato.planner.plan import Target, largest_part

LEAST_BYTES = 1 << 21  # of a step's result, or there are too few tiles


def tile_in_blocks(graph: Graph, target: Target) -> Graph:
    """The pass."""
    return tile_steps(graph, target, ROOM)


def cheapest(chain: Chain, target: Target, room: Room) -> tuple[float, int]:
    """The share of the time apart that tiles take, infinite if there can be none; all axes are cut."""
    body = chain.body
    specs = [largest_part(s) for s in (*body.inputs, *body.out_specs)]
    arrays = [strided_like(s.shape, s.dtype) for s in specs]
    tile = tile_of(
        body, tuple([x.shape for x in arrays[: len(body.inputs)]]), neighbours_of(body, arrays)
    )
    return (math.inf, 0) if tile is None else (_share_of_time(tile, target, room), 0)


def _share_of_time(tile: BlockTile, target: Target, room: Room) -> float:
    """How long tiles take, where the kernels one after the other take 1."""
    machine, body = target.machine, tile.body
    apart, near = 0.0, 0.0
    for k, node in enumerate(body.nodes):
        ins, outs = [body.specs[v] for v in node.inputs], [largest_part(s) for s in node.specs]
        work, touched = kernel_work(machine, node, [largest_part(s) for s in ins], outs)
        work *= outs[0].size / node.specs[0].size  # what is counted is that of all workers
        apart += machine.call_seconds + overlapped(work, machine.moving_seconds(touched, touched))
        reads = max(
            tile.along[0].parts[k], key=lambda part: math.prod(b - a for a, b in part.box)
        ).reads
        among = (len(reads) + len(outs)) * outs[0].nbytes
        near += tile.again(k) * overlapped(work, room.near * machine.moving_seconds(among, among))
    far = sum(largest_part(s).nbytes for s in (*body.inputs, *body.out_specs))
    return (machine.call_seconds + overlapped(near, machine.moving_seconds(far, far))) / apart


ROOM = Room(LEAST_BYTES, 0, steps=8, worth=0.85, less=1.0, near=0.1, cheapest=cheapest)
