"""A split in time: a part of a graph runs block after block of an index, so that what lies between
never exists as a whole.

before, with a memory limit                      after
(%0: float32[n,4], %1: float32[k,4])             (%0: float32[n,4], %1: float32[k,4])
%2 = matmul(%0, %1.T) : float32[n,k]             %2 = blocks(%0, %1; turns=16, body={
%3 = exp(%2) : float32[n,k]                          ... the same three nodes, cut into 16 turns
%4 = sum(%3; axes=(0,)) : float32[k]                 })
return %4                                        return %2

A turn is one more mesh axis (see ops/flow/control.py), so the rules are those of a cut in space: an
index that is parallel is written side by side, one that is reduced leaves addends, one that is
whole ends the part. What is read in windows is read in blocks that overlap, and what lies between is
made in such blocks: of a window on a window, two rows more on each side. Windows on one value that have
rows in common are one block; those that have none, as of the two ends of what is rolled, are made apart.
The pass is not idempotent: what was split is not split again.

A part grows from a value and one of its axes (in_turns.py). `split_time` cuts what reads or writes files;
which parts are cut because of a memory limit, and into how many turns, is decided in fitting.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import BLOCKS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec
from ostinato.ops.flow.control import CONTROL
from ostinato.ops.planned.reproducible import FIXED
from ostinato.planner.lowering import lower
from ostinato.planner.plan import Program, Target, local_bytes, peak_bytes
from ostinato.planner.rewrite import Values, rebuild, rewrite_bodies

from .buckets import fill_buckets
from .in_turns import emit, grow, indices_at, shortest
from .memory import assign_memory
from .overlap import overlap

READ_BYTES = 32 << 20  # of a file at once
MOST_TURNS = 4096
MORE = 8  # times as many turns, so that they begin where rows do
TRIED = 128  # turns at which a part shows whether it is worth while
SEEDS = 8  # values from which parts grow
PARTS = 8  # that one graph is split into
NEARLY = 1.1  # times what there is
MAX_QUICK_CUTS = 3  # parts that are cut to see what that brings, where it is to be found quickly


def split_time(graph: Graph, target: Target, donated: Sequence[int] = ()) -> Graph:
    """The pass; nothing unless the plan reads or writes files."""
    limit = target.memory_limit
    before = graph
    if any(s.layout is not None and s.layout.stored for s in graph.inputs) or any(
        n.op == "write" for n in graph.nodes
    ):
        graph = cut_fixed_blocks(graph) if target.numerics == "any-workers" else graph
    if limit is None:
        found = streamed(graph, target, READ_BYTES, READ_BYTES)
        return before if found is graph else found
    size = min(READ_BYTES, max(limit // 8, 1))
    found = streamed(graph, target, size, size)
    if found == graph:
        return before
    for shrink in (1, 4, 16, 64):
        for keep in (size, 0, math.inf):
            found = streamed(graph, target, size // shrink, keep)
            if peak_bytes(running(found, target, donated)) <= limit:
                return found
    return streamed(graph, target, size, 0)


def cut_fixed_blocks(graph: Graph) -> Graph:
    """Reductions in a fixed order as the blocks that they are made of, and the tree over these: the
    same bits, and an index that can be cut."""

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        algorithms = OPS[node.op].parallel.algorithms
        if node.op not in FIXED.values() or algorithms is None:
            return None
        ins = tuple(builder.specs[v] for v in inputs)
        lies = node.specs[0].layout
        if lies is None or any(s.layout is None or not s.layout.is_whole for s in ins):
            return None  # cut in space
        (found,) = algorithms(ins, node.specs, node.kw)
        values = list(inputs)
        for inner in found.nodes:
            specs = [s.at(lies) for s in inner.specs]
            read = [values[v] for v in inner.inputs]
            values.extend(builder.add(inner.op, read, inner.params, specs, node.line))
        return [values[v] for v in found.outputs]

    return rebuild(graph, rule)


def running(graph: Graph, target: Target, donated: Sequence[int] = ()) -> Program:
    """The program that a plan of this graph runs."""
    outputs = tuple(v for v in graph.outputs if v >= len(graph.inputs))
    kept = Graph(graph.inputs, graph.nodes, outputs)
    sent = overlap(fill_buckets(kept, target), target, donated)
    return lower(sent, target, donated, donated)


def roughly(graph: Graph, target: Target, donated: Sequence[int] = ()) -> int:
    """Estimate a graph's peak of bytes per worker, if each node were a kernel."""
    return peak_bytes(assign_memory(graph, described(target.device), donated))


def streamed(graph: Graph, target: Target, size: int, keep: float) -> Graph:
    """The graph that reads and writes files block after block along their first axis, as far as it
    can."""
    whole: set[Node] = set()
    for _ in range(PARTS):
        k = next((k for k in range(len(graph.nodes)) if _streams(graph, k, size, whole)), None)
        if k is None:
            break
        v = _in_memory(graph, k)
        spec = graph.specs[v]
        dim, turns = _parts(graph, spec, target)
        most = min(shortest(spec, dim), most_turns(target)) if spec.ndim else 1
        turns = turns or min(-(-local_bytes(spec) // max(size, 1)), most)
        turns = _alike(graph, turns, most, target.workers) if turns > 1 else turns
        made = split_along(graph, target, v, dim, turns, keep) if turns > 1 else None
        whole.add(graph.nodes[k])
        if made is not None:
            graph = made[0]
    return rewrite_bodies(graph, lambda g: streamed(g, target, size, keep))


def _streams(graph: Graph, k: int, size: int, tried: set[Node]) -> bool:
    node = graph.nodes[k]
    wanted = node.op in ("read", "write") and node not in tried
    return wanted and local_bytes(graph.specs[_in_memory(graph, k)]) > size


def _parts(graph: Graph, spec: Spec, target: Target) -> tuple[int, int]:
    """An axis of such a value, and the parts that each worker has along it, where some operation works
    through parts of it, as `work_in_blocks` laid down; else the first one that is longer than 1, and 0."""
    bounds = [n.kw["bounds"] for n in graph.nodes if "bounds" in n.kw]
    for d, size in enumerate(spec.shape):
        counts = [len(b) - 1 for b in bounds if b[-1] == size]
        if counts:
            return d, max(counts) // target.workers
    return next((d for d, n in enumerate(spec.shape) if n > 1), 0), 0


def _alike(graph: Graph, turns: int, most: int, workers: int) -> int:
    """As many turns, or some more, where turns begin at the same elements in all shapes that these have:
    rows that are counted in one row, or apart."""
    rows = 0
    for k, node in enumerate(graph.nodes):
        if OPS[node.op].reshapes:
            indices = indices_at(graph, k)
            for label in indices.chunked:
                shapes = zip((indices.ins[0], indices.outs[0]), _shapes(graph, k), strict=True)
                rows = math.gcd(rows, *(s[dims.index(label)] for dims, s in shapes))
    each = rows // workers if rows % workers == 0 else 0
    fits = (n for n in range(turns, min(turns * MORE, most) + 1) if each and each % n == 0)
    return next(fits, turns)


def _shapes(graph: Graph, k: int) -> tuple[Shape, Shape]:
    node = graph.nodes[k]
    return graph.specs[node.inputs[0]].shape, node.specs[0].shape


def _in_memory(graph: Graph, k: int) -> int:
    """Return the value that is read from a file, or written to one."""
    node = graph.nodes[k]
    return graph.starts[k] if node.op == "read" else node.inputs[0]


# -- what could be cut -----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Seed:
    """A value, or what makes it, and the axis that is cut; down into bodies."""

    path: tuple[tuple[int, str], ...]  # nodes and the names of their graphs
    value: int
    dim: int
    most: int  # turns
    keep: float  # bytes; larger values that are needed later are computed again


def cut_further(
    graph: Graph,
    target: Target,
    donated: Sequence[int],
    limit: int,
    needs: Callable[[Graph], int],
    quickly: bool,
) -> list[Graph]:
    """Graphs with one more part in turns, in as few as fit into the limit; the cheapest by the bytes
    that they move, first. Where none fits, those that need least. `needs`: bytes of a graph.
    `quickly`: most is decided without kernels, which take their time to be made, and of parts that
    are alike one is looked at."""
    before = needs(graph)
    tried: list[tuple[float, int, _Seed, Graph]] = []
    for seed in _seeds(graph, target, limit, quickly):
        made = _apply(graph, target, seed, min(seed.most, TRIED))
        if made is not None and all(made[0] != t[3] for t in tried):
            tried.append((made[1], len(tried), seed, made[0]))
    tried.sort(key=lambda t: t[:2])
    if quickly:
        scale = before / max(roughly(graph, target, donated), 1)
        lows = [int(roughly(found, target, donated) * scale) for *_, found in tried]
    else:
        lows = [needs(found) for *_, found in tried]
    reach = [(low, seed) for low, (_, _, seed, _) in zip(lows, tried, strict=True) if low < before]
    lowest = min((low for low, _ in reach), default=0)
    nearly = limit if lowest <= limit else lowest * 1.1  # more turns may do, or more parts
    reach = [(low, s) for low, s in reach if low <= nearly][: MAX_QUICK_CUTS if quickly else None]
    ready: list[tuple[bool, float, int, Graph]] = []
    for low, seed in reach:
        enough = limit if low <= limit else max(limit, low + low // 20)
        turns = _fewest(graph, target, seed, enough, (before, low), needs, quickly)
        if turns is not None:
            ready.append((needs(turns[0]) > limit, turns[1], len(ready), turns[0]))
    return [found for *_, found in sorted(ready, key=lambda r: r[:3])]


def _fewest(
    graph: Graph,
    target: Target,
    seed: _Seed,
    enough: int,
    known: tuple[int, int],
    needs: Callable[[Graph], int],
    quickly: bool,
) -> tuple[Graph, float] | None:
    """In as few turns as are enough, by doubling them; it begins where it would be, if what is cut
    fell as turns rise. `known`: what is needed in one turn, and in those that were tried. `quickly`:
    fewer turns are tried only where that would nearly do."""
    ladder, (whole, low) = list(_ladder(seed)), known
    tried = min(seed.most, TRIED)
    part = (whole - low) * tried / max(tried - 1, 1)
    guess = part / max(enough - whole + part, part / seed.most, 1)
    at = next((k for k, n in enumerate(ladder) if n >= guess), len(ladder) - 1)
    best = None
    while 0 <= at < len(ladder):
        made = _apply(graph, target, seed, ladder[at])
        if made is not None and needs(made[0]) <= enough:
            best, at = made, at - 1
            if quickly and at >= 0 and whole - part + part / ladder[at] > enough * NEARLY:
                break
        elif best is not None:
            break
        else:
            at += 1
            if at < len(ladder) and ladder[at] < guess:
                continue
    return best


def _ladder(seed: _Seed) -> Iterator[int]:
    turns = 2
    while turns < seed.most:
        yield turns
        turns *= 2
    yield seed.most


def _seeds(
    graph: Graph,
    target: Target,
    limit: int,
    quickly: bool,
    path: tuple[tuple[int, str], ...] = (),
) -> Iterator[_Seed]:
    """The axes of the largest values, down into bodies; each part once."""
    large = sorted(
        (v for v, s in enumerate(graph.specs) if local_bytes(s) * 64 > limit and not s.pending),
        key=lambda v: (-local_bytes(graph.specs[v]), v),
    )
    if quickly:  # one of a kind
        large = list({graph.specs[v]: v for v in reversed(large)}.values())[::-1]
    seen: set[tuple[object, ...]] = set()
    for v in large[:SEEDS]:
        spec = graph.specs[v]
        assert spec.layout is not None
        for d in range(spec.ndim):
            most = min(shortest(spec, d), most_turns(target))
            part = grow(graph, target, v, d, min(most, TRIED)) if most >= 2 else None
            for keep in (math.inf, limit / 8, 0) if part is not None else ():
                assert part is not None
                facts = most, tuple(sorted(part.cut.items())), tuple(part.results(keep))
                if (*facts, *sorted(part.shardings)) not in seen:
                    seen.add((*facts, *sorted(part.shardings)))
                    yield _Seed(path, v, d, most, keep)
    for k, node in enumerate(graph.nodes):
        if node.op in CONTROL and node.op != "blocks":
            for name, body in node.subgraphs():
                yield from _seeds(body, target, limit, quickly, (*path, (k, name)))


def most_turns(target: Target) -> int:
    """Blocks of the fixed grid are not cut."""
    return BLOCKS // target.workers if target.numerics == "any-workers" else MOST_TURNS


def _apply(graph: Graph, target: Target, seed: _Seed, turns: int) -> tuple[Graph, float] | None:
    """The graph with the seed's part in turns, and the bytes that this moves in addition."""
    if seed.path:
        (k, name), *rest = seed.path
        node = graph.nodes[k]
        body = dict(node.subgraphs())[name]
        inner = _Seed(tuple(rest), seed.value, seed.dim, seed.most, seed.keep)
        made = _apply(body, target, inner, turns)
        if made is None:
            return None
        times = node.kw["trips"] if node.op == "loop" else 1
        params = tuple((p, made[0] if p == name else value) for p, value in node.params)
        nodes = list(graph.nodes)
        nodes[k] = Node(node.op, node.inputs, params, node.specs, node.line)
        return Graph(graph.inputs, tuple(nodes), graph.outputs), made[1] * times
    return split_along(graph, target, seed.value, seed.dim, turns, seed.keep)


def split_along(
    graph: Graph, target: Target, value: int, dim: int, turns: int, keep: float
) -> tuple[Graph, float] | None:
    """All that can run in turns along a value's axis: a part, then one of what needs the end of the
    first, and so on; and the bytes that this moves in addition."""
    price, before = 0.0, graph
    for _ in range(PARTS):
        part = grow(graph, target, value, dim, turns)
        made = emit(graph, part, keep, value) if part is not None else None
        if part is not None and made is None and part.moved:
            part = grow(graph, target, value, dim, turns, moves=False)
            made = emit(graph, part, keep, value) if part is not None else None
        if part is None or made is None or made[0] == graph:
            break
        price += part.price(keep)
        graph, value = made
        if value >= len(graph.specs) or not graph.uses[value]:
            break
    return (graph, price) if graph is not before else None
