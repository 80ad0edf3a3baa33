"""A plan as a picture: SVG, layer by layer, drawn from top to bottom.

networkx gives the layers; the order within one follows the mean position of what feeds a node, so
that lines seldom cross. Lines are as wide as a worker's part has bytes. Where there are several workers,
boxes are coloured by where results lie, and their edges say what kind of operation it is.
"""

from __future__ import annotations

import html
import itertools
import math
import os
from collections import Counter

from ostinato.ops.core.disk import write_page
from ostinato.ops.core.registry import OPS
from ostinato.ops.flow.control import CONTROL
from ostinato.ops.planned.collective import collective_of
from ostinato.planner.plan import Plan, export, largest_part
from ostinato.planner.prediction import again
from ostinato.planner.seeing.explain import amount
from ostinato.planner.title import title

COLOURS = {
    "input": ("#e8eef6", "#3b6ea5"),
    "compute": ("#ffffff", "#5b6b7b"),
    "dense": ("#fdf3dd", "#d9a441"),
    "collective": ("#fbe4e2", "#c0504d"),
    "control": ("#ece4f4", "#7d5ba6"),
    "output": ("#e4f2e6", "#5aa469"),
}
KINDS = {
    "input": "operand",
    "compute": "operation",
    "dense": "product of matrices",
    "collective": "message",
    "control": "loop or branch",
    "output": "result",
}
LAYOUTS = ("#dcebfb", "#fde7c8", "#dff3dc", "#f3dff0", "#e3e0fa", "#fadcd9", "#d5f0ee", "#f1ecc9")
WHOLE, ADDENDS = "#ffffff", "#f0f0f0"
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 216, 40, 18, 34, 24
MAX_PICTURE_NODES = 600  # nodes that a picture may have and still be looked at


@export
def draw(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The picture of a plan's program, written if there is a path."""
    text = svg(plan)
    if path is not None:
        write_page(path, text)
    return text


def svg(plan: Plan) -> str:
    """The picture as text."""
    labels, kinds, edges, lies = _graph(plan)
    places, width, height = _layout(list(labels), list(edges))
    fills = _fills(plan, lies)
    bottom = height + 30
    samples = _samples(fills, set(kinds.values()))
    height = bottom + 20 * len(samples) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="20" font-weight="600" fill="#1c2733">plan {plan.id[:12]}</text>',
    ]
    most = max(edges.values(), default=0)
    for (a, b), size in edges.items():
        (x1, y1), (x2, y2) = places[a], places[b]
        top, end = y1 + HEIGHT, y2
        middle = (top + end) / 2
        parts.append(
            f'<path d="M{x1:.0f},{top:.0f} C{x1:.0f},{middle:.0f} {x2:.0f},{middle:.0f} {x2:.0f},{end:.0f}" '
            f'fill="none" stroke="#a9b4bf" stroke-width="{_wide(size, most):.1f}">'
            f"<title>{amount(size)}</title></path>"
        )
    for name, (head, detail) in labels.items():
        x, y = places[name]
        fill, stroke = COLOURS[kinds[name]]
        fill = fills.get(lies[name], fill)
        parts.append(
            f'<g><rect x="{x - WIDTH / 2:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
            f'fill="{fill}" stroke="{stroke}"/>'
            f'<text x="{x:.0f}" y="{y + 16:.0f}" text-anchor="middle" fill="#1c2733">'
            f"{html.escape(head)}</text>"
            f'<text x="{x:.0f}" y="{y + 31:.0f}" text-anchor="middle" fill="#5b6b7b" font-size="10">'
            f"{html.escape(detail)}</text></g>"
        )
    parts += _legend(samples, bottom, most)
    return "\n".join([*parts, "</svg>\n"])


def _wide(size: int, most: int) -> float:
    """The width of a line: by the logarithm of its bytes, over four orders of magnitude."""
    return 1 + 6 * max(0.0, 1 + math.log10(max(size, 1) / most) / 4) if most else 1.0


def _fills(plan: Plan, lies: dict[str, str]) -> dict[str, str]:
    """The colour of each layout, the most frequent first; none where there is one worker."""
    if plan.target.workers == 1:
        return {}
    found, colours = {}, itertools.cycle(LAYOUTS)
    for layout, _ in Counter(lies.values()).most_common():
        if layout:
            whole = layout.startswith("whole")
            partial = layout.startswith("partial")
            found[layout] = WHOLE if whole else ADDENDS if partial else next(colours)
    return found


def _samples(fills: dict[str, str], kinds: set[str]) -> list[tuple[str, str, str]]:
    """List what the legend explains: boxes are filled by layout, if there are several workers, and
    outlined by what they are."""
    found = [(layout, fill, "#5b6b7b") for layout, fill in fills.items()]
    for kind, said in KINDS.items():
        if kind in kinds:
            fill, stroke = COLOURS[kind]
            found.append((said, WHOLE if fills else fill, stroke))
    return found


def _legend(samples: list[tuple[str, str, str]], top: float, most: int) -> list[str]:
    lines = []
    for k, (said, fill, stroke) in enumerate(samples):
        y = top + 20 * k
        lines.append(
            f'<rect x="{MARGIN}" y="{y:.0f}" width="26" height="14" rx="3" fill="{fill}" stroke="{stroke}"/>'
            f'<text x="{MARGIN + 34}" y="{y + 11:.0f}" fill="#1c2733">{html.escape(said)}</text>'
        )
    y = top + 20 * len(samples) + 8
    lines.append(
        f'<path d="M{MARGIN},{y:.0f} h26" stroke="#a9b4bf" stroke-width="{_wide(most, most):.1f}"/>'
        f'<text x="{MARGIN + 34}" y="{y + 4:.0f}" fill="#1c2733">{amount(most)} on each worker</text>'
    )
    return lines


def _graph(
    plan: Plan,
) -> tuple[dict[str, tuple[str, str]], dict[str, str], dict[tuple[str, str], int], dict[str, str]]:
    """Names with what to write in them, their kinds, who feeds whom how many bytes, and where results lie;
    views and numbers left out."""
    program, graph = plan.program, plan.program.graph
    called = dict(enumerate(plan.names))
    labels: dict[str, tuple[str, str]] = {}
    kinds: dict[str, str] = {}
    edges: dict[tuple[str, str], int] = {}
    lies: dict[str, str] = {}
    source: list[str] = []
    for k, spec in enumerate(graph.inputs):
        labels[f"i{k}"] = (_short(called.get(k, f"input {k}")), _short(str(spec)))
        kinds[f"i{k}"], lies[f"i{k}"] = "input", str(spec.layout or "")
        source.append(f"i{k}")
    for k, node in enumerate(graph.nodes):
        slot = program.slots[graph.starts[k]]
        if slot.kind == "alias":
            source.extend(source[v] for v, _ in zip(node.inputs, node.specs, strict=False))
            continue
        if slot.kind == "constant" or len(labels) >= MAX_PICTURE_NODES:
            source.extend([""] * len(node.specs))
            continue
        kind = collective_of(node.op, node.kw)
        control = node.op in CONTROL
        name = kind or title(node) + again(node)
        labels[f"n{k}"] = (_short(name), _short(str(node.specs[0]) if node.specs else ""))
        dense = OPS[node.op].run.dense
        kinds[f"n{k}"] = (
            "collective" if kind else "control" if control else "dense" if dense else "compute"
        )
        lies[f"n{k}"] = str(node.specs[0].layout or "") if node.specs else ""
        for v in node.inputs:
            if source[v]:
                edges[source[v], f"n{k}"] = largest_part(graph.specs[v]).nbytes
        source.extend([f"n{k}"] * len(node.specs))
    for k, v in enumerate(graph.outputs):
        labels[f"o{k}"], kinds[f"o{k}"] = (f"result {k}", _short(str(graph.specs[v]))), "output"
        lies[f"o{k}"] = str(graph.specs[v].layout or "")
        if source[v]:
            edges[source[v], f"o{k}"] = largest_part(graph.specs[v]).nbytes
    return labels, kinds, edges, lies


def _short(text: str) -> str:
    return text if len(text) <= 34 else text[:33] + "…"


def _layout(
    names: list[str], edges: list[tuple[str, str]]
) -> tuple[dict[str, tuple[float, float]], int, int]:
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from(edges)
    layers = [sorted(layer, key=names.index) for layer in nx.topological_generations(graph)]
    order: dict[str, float] = {}
    for layer in layers:
        feeds = {
            n: [order[p] for p in graph.predecessors(n) if p in order] or [float(k)]
            for k, n in enumerate(layer)
        }
        layer.sort(key=lambda n: sum(feeds[n]) / len(feeds[n]))
        for k, n in enumerate(layer):
            order[n] = k - len(layer) / 2
    widest = max((len(layer) for layer in layers), default=1)
    width = 2 * MARGIN + widest * (WIDTH + GAP_X)
    places: dict[str, tuple[float, float]] = {}
    for depth, layer in enumerate(layers):
        start = (width - len(layer) * (WIDTH + GAP_X) + GAP_X) / 2 + WIDTH / 2
        for k, n in enumerate(layer):
            places[n] = (start + k * (WIDTH + GAP_X), 30 + MARGIN + depth * (HEIGHT + GAP_Y))
    return places, int(width), int(2 * MARGIN + len(layers) * (HEIGHT + GAP_Y))
