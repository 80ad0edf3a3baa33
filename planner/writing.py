"""A graph whose result goes into a file: whole, or, where it is joined from what is made, each piece by
itself.

before                                           after
%2 = multiply(%0, 2.0) : float64[9]              %2 = multiply(%0, 2.0) : float64[9]
%3 = concat(%1, %2; axis=0) : float64[12]        %3 = write(%1, %9; rows=(0,))
return %3                                        %4 = write(%2, %9; rows=(3,))
                                                 return %3 + %4

So all is read and written once: to read what is joined block by block, it would have to lie in a file
already. Pieces are slices of the result, which `read_files` makes of what is in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from ostinato.ops.array.expressions import Expression
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec, int64

from .passes.file_joins import SHARE
from .passes.file_views import groups
from .passes.reads import is_stored
from .plan import Target
from .rewrite import inline

# bytes of pieces that are written together, or such a share of the memory limit
MAX_JOINED_BYTES = 1 << 22
MAX_PIECES = 64


def writing(graph: Graph, target: Target) -> Graph:
    """The graph with a `write` of its result at the end; the file's number is its last input."""
    builder = Builder([*graph.inputs, Spec((), int64)])
    (value,) = inline(builder, graph, list(range(len(graph.inputs))))
    (line,) = [*graph.lines()][-1:] or [""]
    made = Expression(builder, value, line)
    ends = _ends(graph, target)
    place, rest = len(graph.inputs), [(0, n, 1) for n in made.shape[1:]]
    if len(ends) <= 2:
        return builder.graph([_written(*_unmerged(made), place, 0).value])
    parts = [(lo, made.slice([(lo, hi - lo, 1), *rest])) for lo, hi in itertools.pairwise(ends)]
    counts = [_written(part, 1, place, lo) for lo, part in parts]
    return builder.graph([sum(counts[1:], counts[0]).value])


def _written(part: Expression, axes: int, place: int, row: int) -> Expression:
    params = {"rows": (row,), "axes": axes}
    inputs = part.value, place
    (count,) = part.builder.add("write", inputs, params, (Spec((), int64),), part.line)
    return Expression(part.builder, count, part.line)


def _unmerged(made: Expression) -> tuple[Expression, int]:
    """Find what is written, before its first axes were counted in one row, and how many these were:
    parts of rows that are repeated begin where rows begin."""
    builder, node = made.builder, made.builder.maker(made.value)
    wide = [v for v in node.inputs if builder.specs[v].ndim] if node is not None else []
    if node is None or len(wide) != 1 or len(node.specs) > 1:
        return made, 1
    op, first = OPS[node.op], Expression(builder, wide[0], made.line)
    if op.moves.same_elements and op.moves.keeps_order and first.spec.ndim > made.spec.ndim:
        axes = 1 + first.spec.ndim - made.spec.ndim
        if made.shape[1:] == first.shape[axes:] and made.shape[0]:
            return first, axes
    if op.scalar:
        before, axes = _unmerged(first)
        if axes > 1:
            inputs = [before.value if v == wide[0] else v for v in node.inputs]
            spec = Spec(before.shape, made.spec.dtype)
            (value,) = builder.add(node.op, inputs, node.params, (spec,), node.line)
            return Expression(builder, value, made.line), axes
    return made, 1


def _ends(graph: Graph, target: Target) -> list[int]:
    """Where pieces of the result begin and end, along its first axis."""
    (v,) = graph.outputs
    spec = graph.specs[v]
    if not spec.ndim or not spec.shape[0] or not any(map(is_stored, graph.inputs)):
        return []
    limit = target.memory_limit
    most = MAX_JOINED_BYTES if limit is None else min(MAX_JOINED_BYTES, limit // SHARE)
    row, found = spec.nbytes // spec.shape[0], [0]
    inner = sorted(_borders(graph)[v])
    for k, end in enumerate(inner):
        after = inner[k + 1] if k + 1 < len(inner) else spec.shape[0]
        if (after - found[-1]) * row > most:  # else it goes with the next one
            found.append(end)
    return [*found, spec.shape[0]] if len(found) <= MAX_PIECES else []


def _borders(graph: Graph) -> list[set[int]]:
    """List for each value the rows at which another one begins that is made, through functions of
    elements and slices."""
    found: list[set[int]] = [set() for _ in graph.specs]
    for k, node in enumerate(graph.nodes):
        op, v = OPS[node.op], graph.starts[k]
        if not node.specs or not node.specs[0].ndim:
            continue
        rows = node.specs[0].shape[:1]
        if op.moves.concatenates and node.kw["axis"] == 0:
            ends = [0, *itertools.accumulate(graph.specs[u].shape[0] for u in node.inputs)]
            made = [not _is_read(graph, u) for u in node.inputs]
            found[v].update(
                e for e, two in zip(ends[1:], itertools.pairwise(made), strict=False) if any(two)
            )
            for at, u in zip(ends, node.inputs, strict=False):
                found[v].update(at + border for border in found[u])
        elif op.scalar or op.moves.concatenates:
            found[v].update(*(found[u] for u in node.inputs if graph.specs[u].shape[:1] == rows))
        elif op.moves.selects == "slices":
            start, size, step = (node.kw[name][0] for name in ("starts", "sizes", "steps"))
            for b in found[node.inputs[0]]:
                end = -((start - b) // step) if step > 0 else (start - b) // -step + 1
                found[v].update({end} if 0 < end < size else ())
        else:
            found[v].update(_again(graph, node))
    return found


def _is_read(graph: Graph, v: int) -> bool:
    """Whether a value is a part of a file as it is, which is joined to others where it is read."""
    while (k := graph.producers[v]) >= 0 and OPS[graph.nodes[k].op].moves.selects:
        v = graph.nodes[k].inputs[0]
    return k < 0 and is_stored(graph.specs[v])


def _again(graph: Graph, node: Node) -> Iterable[int]:
    """The rows at which all that is repeated begins again, one time behind the other, as `tile` has it."""
    op = OPS[node.op]
    k = graph.producers[node.inputs[0]] if node.inputs else -1
    if (
        not (op.moves.same_elements and op.moves.keeps_order)
        or k < 0
        or not OPS[graph.nodes[k].op].moves.repeats
    ):
        return ()
    wide, old = graph.nodes[k].specs[0].shape, graph.specs[graph.nodes[k].inputs[0]].shape
    axes, first = next(groups(wide, node.specs[0].shape))
    whole = math.prod(wide[d] for d in axes)
    if first != [0] or len(wide) != len(old) or old[0] == wide[0] or old[0] != 1 or not whole:
        return ()
    return range(whole // wide[0], whole, whole // wide[0])
