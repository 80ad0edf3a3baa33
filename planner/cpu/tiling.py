"""Time steps of stencils, tile by tile in a thread's cache (planner/fusion/step_chains.py).

before                                              after
%1 = fused_joins(%0; body=step) : float32[n,m]      %1 = fused_steps(%0; axis=0, body={ ... both })
%2 = fused_joins(%1; body=step) : float32[n,m]      return %1
return %2

This belongs to this machine: plan files hold the graph without it. Idempotent."""

from __future__ import annotations

from ostinato.ops.core.graph import Graph
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.threads import most_threads
from ostinato.planner.fusion.step_chains import Room, tile_steps
from ostinato.planner.plan import Target


def tile_in_cache(graph: Graph, target: Target) -> Graph:
    return tile_steps(graph, target, Room(LIMITS.tile_bytes, LIMITS.thread_tiles * most_threads()))
