"""Time steps of stencils, tile by tile in a block's shared memory (planner/fusion/step_chains.py).

before                                              after
%1 = fused_joins(%0; body=step) : float32[n,m]      %1 = fused_steps(%0; axis=0, body={ ... both })
%2 = fused_joins(%1; body=step) : float32[n,m]      return %1
return %2

Of loops whose turns are such steps several turns become one, so that there is something to put together:

before                                              after
%1 = loop(%0; trips=18, body={step})                %1 = loop(%0; trips=4, body={step, step, step, step})
                                                    %2 = step(%1)
                                                    %3 = step(%2)

This belongs to this machine: plan files hold the graph without it. Idempotent."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import strided_like
from ostinato.ops.gpu.loops.block_tiles import BlockTile, neighbours_of, tile_of
from ostinato.ops.gpu.loops.schedule import WRITTEN
from ostinato.ops.jit.moves import has_moves
from ostinato.planner.fusion.step_chains import Chain, Room, tile_steps
from ostinato.planner.layouts.costs import kernel_work
from ostinato.planner.passes.turn_blocks import may_be_grouped, together
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.prediction import GPU
from ostinato.planner.rewrite import inline, replace

from .fuse import fuse

LEAST_BYTES = 1 << 21  # of a step's result, or there are too few tiles


def tile_in_blocks(graph: Graph, target: Target) -> Graph:
    """The pass."""
    return tile_steps(graph, target, ROOM)


def join_turns(graph: Graph, target: Target) -> Graph:
    """The pass that puts turns of loops together, where kernels become fewer."""
    many = {k: n for k, node in enumerate(graph.nodes) if (n := _turns(node, target)) > 1}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, count = graph.nodes[k], many[k]
        trips, first = node.kw["trips"], node.kw["counts"][0]
        ins, body = [values[v] for v in node.inputs], node.kw["body"]
        kw = {**node.kw, "body": together(node, count), "trips": trips // count}
        made = [*builder.add(node.op, ins, tuple(kw.items()), node.specs, node.line)]
        for _ in range(trips % count):
            made = inline(builder, body, [ins[0], *ins[:first], *made])
        return made

    return replace(graph, many, make, lambda g: join_turns(g, target))


def _turns(node: Node, target: Target) -> int:
    """How many turns of a loop are to be one: 1 if no kernels become fewer."""
    if not may_be_grouped(node):
        return 1
    body, trips = node.kw["body"], node.kw["trips"]
    draws = any(OPS[n.op].element.draws for n in body.nodes)
    large = max(largest_part(s).nbytes for s in node.specs) >= LEAST_BYTES
    if draws or not large or not has_moves(body) or 8 * len(body.nodes) > WRITTEN:
        return 1
    found = [(float(_kernels(body, target)), 1)]
    found += [(_kernels(together(node, n), target) / n, n) for n in (2, 4, 8) if n <= trips]
    (apart, _), (least, count) = found[0], min(found)
    return count if 2 * least <= apart else 1


def _kernels(body: Graph, target: Target) -> int:
    return len(tile_in_blocks(fuse(body, target), target).nodes)


def cheapest(chain: Chain, target: Target, room: Room) -> tuple[float, int]:
    """The share of the time apart that tiles take, infinite if there can be none; all axes are cut."""
    body = chain.body
    specs = [largest_part(s) for s in (*body.inputs, *body.out_specs)]
    arrays = [strided_like(s.shape, s.dtype) for s in specs]
    tile = tile_of(
        body, tuple([x.shape for x in arrays[: len(body.inputs)]]), neighbours_of(body, arrays)
    )
    return (math.inf, 0) if tile is None else (_share_of_time(tile, target), 0)


def _share_of_time(tile: BlockTile, target: Target) -> float:
    """How long tiles take, where the kernels one after the other take 1."""
    machine, body = target.machine, tile.body
    apart, near = 0.0, 0.0
    for k, node in enumerate(body.nodes):
        ins, outs = [body.specs[v] for v in node.inputs], [largest_part(s) for s in node.specs]
        work, touched = kernel_work(machine, node, [largest_part(s) for s in ins], outs)
        work *= outs[0].size / node.specs[0].size  # what is counted is that of all workers
        apart += machine.call_seconds
        apart += machine.overlapped(work, machine.moving_seconds(touched, touched))
        reads = max(
            tile.along[0].parts[k], key=lambda part: math.prod(b - a for a, b in part.box)
        ).reads
        each = GPU.step * max(1.0, len(reads) / GPU.step_reads)
        shared = machine.flops_seconds(each * outs[0].size, False, outs[0].dtype.name)
        near += tile.again(k) * (work + shared)
    far = sum(largest_part(s).nbytes for s in (*body.inputs, *body.out_specs))
    return (
        machine.call_seconds + machine.overlapped(near, machine.moving_seconds(far, far))
    ) / apart


ROOM = Room(LEAST_BYTES, 0, steps=8, worth=0.85, less=0.97, cheapest=cheapest)
