"""Parts of files that are near each other are read as one, and so are files that are joined.

before                                             after
%1 = slice_file(%0; starts=(5, 0), sizes=(3, 4))   %1 = slice_file(%0; starts=(5, 0), sizes=(4, 4))
%2 = slice_file(%0; starts=(6, 0), sizes=(3, 4))   %2 = read(%1) : float32[4,4]
...                                                %3 = slice(%2; starts=(0, 0), sizes=(3, 4))
                                                   %4 = slice(%2; starts=(1, 0), sizes=(3, 4))"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ostinato.ops.array.expressions import Expression, constant
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec, int64
from ostinato.ops.planned.collective import STORED
from ostinato.planner.rewrite import replace

from .file_views import Part

CLOSE = 1 << 12  # bytes between two parts of a file that are sooner read than left out
MIN_FILE_JOIN_BYTES = 1 << 22  # bytes that are joined in the file, as they are read in blocks,
SHARE = 16  # or such a part of the memory limit
ROW = 1 << 16  # bytes of a row that is read for a few columns
WIDER = 2  # times as wide as a part is, where more is read beside it

Box = tuple[Part, ...]


def together(graph: Graph, most: int) -> Graph:
    """Parts that have the same rows are read as one, and so are small ones that overlap, or nearly."""
    parts: dict[int, dict[int, Box]] = {}
    for k, node in enumerate(graph.nodes):
        readers = [graph.nodes[u] for u in graph.uses[graph.starts[k]]] if node.specs else []
        stays = any(n.op in STORED or any(n.subgraphs()) for n in readers)
        if node.op == "slice_file" and node.specs[0].size and not stays:
            kw = node.kw
            box = tuple(zip(kw["starts"], kw["sizes"], kw["steps"], strict=True))
            parts.setdefault(node.inputs[0], {})[k] = box
    hulls: dict[int, Box] = {}
    for v, boxes in parts.items():
        spec = graph.specs[v]
        whole = v in graph.outputs or any(
            graph.nodes[u].op not in STORED and not any(graph.nodes[u].subgraphs())
            for u in graph.uses[v]
        )
        rows: dict[Part, list[int]] = {}
        for k, box in boxes.items():
            rows.setdefault(box[0], []).append(k)
        for row, same in rows.items():
            all_ = [*same, -1] if whole and row == (0, spec.shape[0], 1) else same
            hull = _hull([boxes[k] if k >= 0 else all_parts(spec.shape) for k in all_])
            if len(all_) > 1 and (-1 in all_ or _inner(hull) * spec.dtype.itemsize <= ROW):
                hulls.update(dict.fromkeys(same, hull))
        hulls.update(_as_wide({k: hulls.get(k, box) for k, box in boxes.items()}, spec, whole))
        small = {k: box for k, box in boxes.items() if k not in hulls}
        hulls.update(_small(small, spec.dtype.itemsize, most))
    return read_as_one(graph, hulls)


def joined(graph: Graph, files: Collection[int], most: int) -> Graph:
    """Files that are joined along their first axis to more than `most` bytes as one file, which is read
    in blocks: no part of the result needs more of them than it is itself."""
    known = {v for v in files if v < len(graph.inputs)}
    builder, values = Builder(graph.inputs), list(range(len(graph.inputs)))
    for k, node in enumerate(graph.nodes):
        inputs = [values[v] for v in node.inputs]
        op, specs, params = node.op, node.specs, node.params
        if op in STORED:
            known.add(graph.starts[k])
        if OPS[op].moves.concatenates and node.kw["axis"] == 0 and known.issuperset(node.inputs):
            ins = [builder.specs[v] for v in inputs]
            alike = len({(s.dtype, s.layout) for s in ins}) == 1
            if alike and specs[0].nbytes > most:
                op, params, specs = "join_files", (), (specs[0].bare.at(ins[0].layout),)
                known.add(graph.starts[k])
        values.extend(builder.add(op, inputs, params, specs, node.line))
    return builder.graph([values[v] for v in graph.outputs])


def written_once(graph: Graph) -> Graph:
    """The graph that writes a value that goes to several places from one block of it."""
    writes: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for k, node in enumerate(graph.nodes):
        if node.op == "write":
            writes.setdefault((node.inputs, node.kw["axes"]), []).append(k)
    first = {ks[0]: ks for ks in writes.values() if len(ks) > 1}
    if not first:
        return graph

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        if k not in first:
            return (constant(builder, 0, int64, line=node.line).value,)
        params, inputs = node.kw, [values[v] for v in node.inputs]
        params["rows"] = tuple(r for j in first[k] for r in graph.nodes[j].kw["rows"])
        return builder.add(node.op, inputs, params, node.specs, node.line)

    return replace(graph, {k for ks in first.values() for k in ks}, make)


def read_as_one(graph: Graph, hulls: dict[int, Box]) -> Graph:
    """The graph that reads these boxes, and of each in memory what is wanted."""

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, hull, source = graph.nodes[k], hulls[k], values[graph.nodes[k].inputs[0]]
        file, kw = graph.specs[node.inputs[0]], node.kw
        starts, sizes, steps = (tuple(p[j] for p in hull) for j in range(3))
        if hull != all_parts(file.shape):
            params = {"starts": starts, "sizes": sizes, "steps": steps}
            made = Spec(sizes, file.dtype, file.layout)
            (source,) = builder.add("slice_file", (source,), params, (made,), node.line)
        read = builder.add("read", (source,), (), (Spec(sizes, file.dtype),), node.line)
        first = [(a - b) // by for a, b, by in zip(kw["starts"], starts, steps, strict=True)]
        apart = [a // by for a, by in zip(kw["steps"], steps, strict=True)]
        parts = tuple(zip(first, kw["sizes"], apart, strict=True))
        if parts == all_parts(sizes):
            return read
        return (Expression(builder, read[0], node.line).slice(parts).value,)

    return replace(graph, hulls, make)


def all_parts(shape: Shape) -> Box:
    return tuple((0, n, 1) for n in shape)


def _inner(box: Box) -> int:
    return math.prod(n for _, n, _ in box[1:])


def _hull(boxes: Sequence[Box]) -> Box:
    """The smallest box that has them all; an axis that is the same in all stays as it is."""
    found = []
    for parts in zip(*boxes, strict=True):
        if len(set(parts)) == 1:
            found.append(parts[0])
            continue
        ends = [e for start, n, step in parts for e in (start, start + step * (n - 1))]
        found.append((min(ends), max(ends) + 1 - min(ends), 1))
    return tuple(found)


def _small(boxes: dict[int, Box], size: int, most: int) -> dict[int, Box]:
    """Groups of small boxes, each of which is little more than all that are in it."""
    found: dict[int, Box] = {}
    group: list[int] = []
    hull: Box = ()
    held = 0

    def close() -> None:
        if len(group) > 1:
            found.update(dict.fromkeys(group, hull))

    for k in sorted(boxes, key=lambda k: (min(_ends(boxes[k])), k)):
        own = math.prod(n for _, n, _ in boxes[k])
        new = _hull([hull, boxes[k]]) if group else boxes[k]
        enough = min((held + own) * size + CLOSE, most)
        if group and math.prod(n for _, n, _ in new) * size <= enough:
            hull, held = new, held + own
        else:
            close()
            group, hull, held = [], boxes[k], own
        group.append(k)
    close()
    return found


def _as_wide(boxes: dict[int, Box], spec: Spec, whole: bool) -> dict[int, Box]:
    """Parts whose rows are a few rows apart, each as wide as all of them, if that is little more: what the
    one has read is copied for the others then."""
    found: dict[int, Box] = {}
    near: list[list[tuple[int, Box]]] = []
    for k, box in sorted(boxes.items(), key=lambda b: b[1][0]) if spec.ndim > 1 else ():
        group = next((g for g in near if _is_beside(g[-1][1], box, spec)), None)
        if group is None:
            beside = whole and _is_beside(box, all_parts(spec.shape), spec)
            near.append(group := [(-1, all_parts(spec.shape))] if beside else [])
        group.append((k, box))
    for group in near:
        inner = _hull([box[1:] for _, box in group])
        least = min(_inner(box) for _, box in group)
        if math.prod(n for _, n, _ in inner) <= WIDER * least:
            found.update({k: (box[0], *inner) for k, box in group if k >= 0 and box[1:] != inner})
    return found


def _is_beside(one: Box, other: Box, spec: Spec) -> bool:
    """Whether rows of two parts, each in a row, are about the same."""
    (a, m, by), (b, n, step) = one[0], other[0]
    row = spec.nbytes // max(spec.shape[0], 1)
    apart = max(abs(a - b), abs(a + m - b - n))
    return by == step == 1 and apart * row <= ROW and 2 * apart < min(m, n)


def _ends(box: Box) -> tuple[int, int]:
    start, n, step = box[0] if box else (0, 1, 1)
    return start, start + step * (n - 1)
